"""How far a solve of the aNTK has come, for its checkpoint: the starts that have ended, and where the next one is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from adakern.checkpoints import Checkpoint
from adakern.limits.flow_gap import Gap
from adakern.solvers import packing
from adakern.solvers.atoms import Atoms
from adakern.solvers.rest_task import End, Meter


class _Held(NamedTuple):
    """What goes into the file."""

    ends: tuple[End, ...] = ()
    atoms: Atoms | None = None  # of the start under way
    weights: tuple[np.ndarray, ...] = ()  # of its network, while that follows the flow
    left: float = 0.0  # time that it has to go
    used: int = 0  # evaluations
    raised: bool = False  # whether the start under way came from a smaller richness


_KINDS = {kind.__name__: kind for kind in (_Held, End, Atoms, Gap)}


class Journal:
    """Kept while a solve goes on, and read by one that goes on from it: to the same places, not by the same steps."""

    def __init__(self, checkpoint: Checkpoint, meter: Meter, tolerance: float) -> None:
        self._checkpoint, self._meter = checkpoint, meter
        self._stretch: Callable[[], None] = lambda: None
        left = checkpoint.load()
        held = _Held() if left is None else packing.unpack(left, _KINDS)
        good = [end.good(tolerance) for end in held.ends]
        if not all(good):  # a start that has not come to rest goes on, and those after it begin again
            first = good.index(False)
            last = held.ends[first]
            held = held._replace(ends=held.ends[:first], atoms=last.atoms, weights=(), raised=last.raised)
        self._held = held
        meter.used, meter.reach = held.used, self._reach

    @property
    def ends(self) -> tuple[End, ...]:
        return self._held.ends

    @property
    def atoms(self) -> Atoms | None:
        """Where the start under way was left, if it was."""
        return self._held.atoms

    @property
    def raised(self) -> bool:
        """Whether that start came from a smaller richness, not by the flow."""
        return self._held.raised

    @property
    def network(self) -> tuple[tuple[np.ndarray, ...], float] | None:
        """The network that was following the flow, and the time that it has to go."""
        return (self._held.weights, self._held.left) if self._held.weights else None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Written every half minute, when something breaks in, and at the end: what has not converged can go on from it."""
        with self._checkpoint.guarding(lambda: packing.pack(self._held)) as self._stretch:
            yield
        self._checkpoint.save(packing.pack(self._held))

    def flow(self, weights: tuple[np.ndarray, ...], left: float) -> None:
        self._held = self._held._replace(weights=weights, left=left, used=self._meter.used)
        self._stretch()

    def came_raised(self) -> None:
        self._held = self._held._replace(raised=True)

    def end(self, end: End) -> None:
        self._held = _Held((*self._held.ends, end), used=self._meter.used)
        self._stretch()

    def _reach(self, atoms: Atoms) -> None:
        self._held = self._held._replace(atoms=atoms, weights=(), left=0.0, used=self._meter.used)
        self._stretch()
