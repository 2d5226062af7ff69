"""The aNBK solver with its default settings from one end of its range to the other: what converges, how long it takes, and what the rest says."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from adakern import datasets
from adakern.errors import ConvergenceError
from adakern.limits import ANBK
from adakern.networks import MLP
from adakern.solving import solve


@dataclass(frozen=True)
class Problem:
    """One corner, edge or middle of the range."""

    depth: int
    activation: str
    richness: float
    beta: float
    points: int

    @property
    def name(self) -> str:
        return f"L={self.depth} {self.activation}, richness {self.richness:g}, beta {self.beta:g}, P={self.points}"


PROBLEMS = tuple(
    Problem(*numbers)
    for numbers in (
        *((1, phi, g, 50.0, 50) for phi in ("tanh", "relu") for g in (0.01, 0.1, 1.0, 10.0)),
        *((4, phi, g, 50.0, 20) for phi in ("tanh", "relu") for g in (0.01, 1.0, 10.0)),
        *((8, "tanh", g, beta, 20) for g in (0.01, 1.0, 10.0) for beta in (1.0, 1e4)),
        *((2, "tanh", 1.0, beta, 50) for beta in (1.0, 100.0, 1e4)),
        *((depth, "tanh", g, 1e4, 1) for depth in (1, 8) for g in (0.01, 10.0)),
        *((1, "relu", g, 50.0, points) for points in (200, 1000) for g in (0.1, 1.0)),
        (1, "tanh", 10.0, 1e4, 200),
    )
)


@dataclass(frozen=True)
class Outcome:
    """One row. `said` is what the solver says of an answer that did not converge."""

    setting: str
    seconds: float  # with compilation
    gradients: int
    step: float | None
    error: float | None  # relative standard error of the worst kernel or of the outputs
    residual: float | None
    said: str
    ok: bool | None


def measure(problem: Problem) -> Iterator[dict[str, Any]]:
    """Solve once, with every setting at its default."""
    X, y, *_ = datasets.mnist(n_train=problem.points, n_test=1)
    net = MLP(problem.depth, problem.activation)  # type: ignore[arg-type]  # a name
    limit = ANBK(net, richness=problem.richness, beta=problem.beta)
    began, said = time.perf_counter(), ""
    solution: Any
    try:
        solution = solve(limit, X, y)
    except ConvergenceError as failure:
        solution, said = failure.result, str(failure)
    seconds = time.perf_counter() - began
    gradients: Any = 0
    step: Any = np.nan
    error: Any = np.nan
    residual: Any = np.nan
    if solution is not None:
        gradients, step, error = (solution.stats[name] for name in ("steps", "step_size", "relative_error"))
        residual = solution.residual
    step, error, residual = (float(value) if np.isfinite(value) else None for value in (step, error, residual))
    yield asdict(Outcome(problem.name, seconds, int(gradients), step, error, residual, said, None if said else True))
