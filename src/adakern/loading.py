"""`load`: reads back whatever adakern saved."""

from __future__ import annotations

from os import PathLike
from typing import Any

from adakern import files, solution, storage
from adakern.finite import storing
from adakern.finite.run import Run
from adakern.solution import Solution
from adakern.trajectories import Trajectory, trajectory


def load(path: str | PathLike[str], *, activation: Any = None) -> Solution | Run | Trajectory:
    """Read a `Solution`, a `Trajectory` or a finite-width `Run` that its `save` wrote.

    Args:
        path: the file.
        activation: the callable of a network whose activation has no name of its own; files hold no code.
    """
    kind = files.kind(path, storage.FORMAT, storing.FORMAT, trajectory.FORMAT)
    readers: dict[str, Any] = {storing.FORMAT: storing.load, trajectory.FORMAT: trajectory.load}
    return readers.get(kind, solution.load)(path, activation=activation)
