"""How far a solve by particles is."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from adakern.solvers import tally
from adakern.solvers.clock import DRAG, Progressed
from adakern.solvers.dynamics import Shadow, Stack
from adakern.solvers.tally import Batch, Tally


@dataclass(frozen=True)
class Record:
    """How far a solve is. Each stretch gives a new record, so that an interrupt finds the old one whole."""

    stack: Stack
    shadow: Shadow
    tally: Tally
    phase: str = "burn-in"  # then "couple", "settle", "average"
    coupled: bool = False  # while the biases are measured
    snapshots: tuple[tuple[np.ndarray, ...], ...] = ()
    stride: int = 1  # stretches from one to the next
    since: int = 0  # the latest
    watched: tuple[tuple[float, ...], ...] = ()  # energy and tails of the latest stretches of the burn-in
    ramp: float = 0.0  # share of the richness that the burn-in has reached; 0 before the first look at the stiffness
    time: float = 0.0
    held: float = 0.0  # time left for which the readout is held
    friction: float = DRAG
    settled: int = 0
    finished: bool = False
    trace: tuple[tuple[float, float], ...] = field(default=())  # (gradients, energy) along the way
    clock: Progressed | None = None  # at the end of the stretch


KINDS = {
    kind.__name__: kind for kind in (Record, Stack, Shadow, Tally, Batch, tally.Probe, Progressed)
}  # what a checkpoint holds
