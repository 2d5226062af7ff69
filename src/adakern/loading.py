"""`load`: reads back whatever adakern saved."""

from __future__ import annotations

from os import PathLike
from typing import Any

from adakern import files, solution, storage
from adakern.finite import storing
from adakern.finite.run import Run
from adakern.solution import Solution


def load(path: str | PathLike[str], *, activation: Any = None) -> Solution | Run:
    """Read a `Solution` or a finite-width `Run` that its `save` wrote.

    Args:
        path: the file.
        activation: the callable of a network whose activation has no name of its own; files hold no code.
    """
    kind = files.kind(path, storage.FORMAT, storing.FORMAT)
    return (
        storing.load(path, activation=activation)
        if kind == storing.FORMAT
        else solution.load(path, activation=activation)
    )
