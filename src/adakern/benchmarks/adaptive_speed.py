"""How long the particle solver takes, a sampled network takes to the same error, and the published algorithm takes to anything.

Compilation happens once per shape and is taken out of every time alike, as JAX itself reports it; the first call's time is given with it.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import jax
import numpy as np

from adakern import datasets, finite, precision
from adakern.limits import ANBK, NNGPK
from adakern.metrics import alignment
from adakern.networks import MLP
from adakern.progress import Progress
from adakern.solution import Solution
from adakern.solvers import minmax
from adakern.solving import solve

WIDTH = 1024
PRECISION = "float32"  # of solver and network alike
BURN_IN = 5.0  # features relax within a rescaled time of order one
ENOUGH = 0.99  # alignment at the worst layer at which an algorithm has arrived
_MARGIN = 1.1  # time beyond what 1/sqrt(time) asks for: error bars have errors
_ENDLESS = 10**9  # outer steps: the clock is to end it
_COMPILED = "/jax/core/compile/backend_compile_duration"


@dataclass
class Watch:
    """Seconds on the wall without those of the compiler, which are apart."""

    wall: float = 0.0
    compiler: float = 0.0

    @property
    def seconds(self) -> float:
        return self.wall - self.compiler


_watches: list[Watch] = []


def _heard(event: str, duration_secs: float, **kwargs: str | int) -> None:
    if event == _COMPILED:
        for watch in _watches:
            watch.compiler += duration_secs


jax.monitoring.register_event_duration_secs_listener(_heard)


@contextmanager
def stopwatch() -> Iterator[Watch]:
    watch, began = Watch(), time.perf_counter()
    _watches.append(watch)
    try:
        yield watch
    finally:
        _watches.remove(watch)
        watch.wall = time.perf_counter() - began


@dataclass(frozen=True)
class Race:
    """One row: seconds of both sides, and how many times longer the other one takes."""

    setting: str
    first_s: float  # of the solver, compilation included
    theory_s: float
    theory: str  # what it reached
    other_s: float
    other: str
    ratio: float
    bound: bool = False  # the ratio is at least this
    note: str = ""
    ok: bool | None = None
    series: dict[str, Any] = field(default_factory=dict)


def _errors(kernels: Any, errors: Any) -> np.ndarray:
    return np.array([np.linalg.norm(e) / np.linalg.norm(k) for e, k in zip(errors, kernels, strict=True)])


def _per_cent(values: np.ndarray) -> str:
    return ", ".join(f"{100 * value:.2f}" for value in values) + " %"


def _solved(limit: ANBK, X: Any, y: Any, tolerance: float, precision: str) -> tuple[Solution, float, float]:
    """A solution, the seconds of the first call with its compilation, and of the second without."""
    options: dict[str, Any] = {"tolerance": tolerance, "precision": precision, "throw": False}
    if limit.network.depth > 1:  # one hidden layer is left to what `solve` takes by itself
        options["steps"] = 100_000
    with stopwatch() as first:
        solve(limit, X, y, seed=0, **options)
    with stopwatch() as second:
        solution = solve(limit, X, y, seed=1, **options)
    return solution, first.wall, second.seconds


def networks(depth: int, richness: float, cap: float, tolerance: float) -> Iterator[dict[str, Any]]:
    """Against a network, sampled until every kernel's error is the solver's or the cap, in seconds, is spent."""
    X, y, *_ = datasets.mnist(n_train=50, n_test=1)
    net = MLP(depth, "tanh")  # type: ignore[arg-type]
    solution, first, seconds = _solved(ANBK(net, richness=richness, beta=50.0), X, y, tolerance, PRECISION)
    goal = _errors(solution.kernels, solution.kernel_errors)
    length, spent = 10.0, 0.0
    while True:
        with stopwatch() as watch:
            run = finite.langevin(
                net,
                X,
                y,
                richness=richness,
                beta=50.0,
                width=WIDTH,
                precision=PRECISION,
                burn_in=BURN_IN,
                time=BURN_IN + length,
                snapshots=1,
                throw=False,
            )
        spent += watch.wall
        reached = _errors(run.kernels, run.kernel_errors)
        excess = float(np.max(reached / goal)) ** 2
        rate = watch.seconds / (BURN_IN + length)  # seconds per unit of time
        affordable = (cap - spent - watch.compiler) / rate - BURN_IN
        longer = min(_MARGIN * excess * length, affordable)
        if excess <= 1 or longer < 1.05 * length:
            break
        length = longer
    arrived = excess <= 1
    other = watch.seconds if arrived else rate * (BURN_IN + excess * length)
    note = "" if arrived else f"extrapolated by error ~ 1/sqrt(time) from {watch.seconds:.0f} s: the cap was hit"
    stuck = "" if solution.converged else f"solver: {solution.status}"
    yield asdict(
        Race(
            setting=f"L={depth} tanh, richness {richness:g}: network, N={WIDTH}, to {100 * tolerance:g} %",
            first_s=first,
            theory_s=seconds,
            theory=f"{solution.stats['solver']}, error {_per_cent(goal)}",
            other_s=other,
            other=f"error {_per_cent(reached)} after time {length:.0f}, {run.stats['steps']} steps",
            ratio=other / seconds,
            note="; ".join(part for part in (note, stuck) if part),
            series={
                "goal": goal.tolist(),
                "reached": reached.tolist(),
                "time": length,
                "compiler_s": watch.compiler,
                "alignment": [
                    alignment(ours, theirs) for ours, theirs in zip(solution.kernels, run.kernels, strict=True)
                ],
            },
        )
    )


def published(budget: float) -> Iterator[dict[str, Any]]:
    """Against min-max descent and ascent: seconds to an alignment of 0.99 at every layer."""
    X, y, *_ = datasets.mnist(n_train=50, n_test=1)
    net = MLP(2, "tanh")  # type: ignore[arg-type]
    limit = ANBK(net, richness=0.5, beta=50.0)
    ours, first, seconds = _solved(limit, X, y, 0.05, "float64")
    reference = solve(limit, X, y, seed=2, tolerance=0.005, steps=100_000, throw=False)

    def aligned(kernels: tuple[np.ndarray, ...]) -> list[float]:
        return [alignment(ours, theirs) for ours, theirs in zip(kernels, reference.kernels, strict=True)]

    start, mine = aligned(solve(NNGPK(net, beta=50.0), X, y).kernels), aligned(ours.kernels)
    track: list[tuple[int, float, list[float]]] = []

    def look(steps: int, elapsed: float, kernels: tuple[np.ndarray, ...]) -> bool:
        track.append((steps, elapsed, aligned(kernels)))
        return min(track[-1][2]) >= ENOUGH

    with precision.scope("float64"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of its sample size; the alignment says it all
        settings: dict[str, Any] = {"seed": 0, "precision": "float64", "progress": Progress(False)}
        minmax.solve(limit, X, y[:, None], outer=1, inner=1, **settings)  # compiles
        with stopwatch() as spent:
            answer = minmax.solve(limit, X, y[:, None], outer=_ENDLESS, seconds=budget, watch=look, **settings)
    reached = aligned(answer.kernels)
    arrived = min(reached) >= ENOUGH
    other = track[-1][1] if arrived and track else min(spent.wall, budget)  # less than the budget where it broke down
    note = f"it starts from the lazy kernels at {_list(start)}"
    if max(start) >= ENOUGH:
        note += "; the criterion is the worst layer, the lazy start meets it at another"
    if min(start) >= ENOUGH:
        note += ": already at the goal, so this row says nothing"
    if not arrived:
        note += f"; short of {ENOUGH:g}: {answer.status.split(';')[0].replace(f' of {_ENDLESS}', '')}"
        note += _extrapolated(track, other, seconds)
    if not reference.converged:
        note += f"; the reference did not converge: {reference.status}"
    kept = track[:: max(1, math.ceil(len(track) / 100))]
    yield asdict(
        Race(
            setting="L=2 tanh, richness 0.5: published algorithm, alignment 0.99 at the worst layer",
            first_s=first,
            theory_s=seconds,
            theory=f"alignment {_list(mine)}",
            other_s=other,
            other=f"alignment {_list(reached)} after {answer.stats['steps']} outer steps",
            ratio=other / seconds,
            bound=not arrived,
            note=note,
            ok=min(mine) >= ENOUGH,
            series={"track": kept, "start": start, "reached": reached, "mine": mine},
        )
    )


def _extrapolated(track: list[tuple[int, float, list[float]]], spent: float, seconds: float) -> str:
    """What the alignment of the worst layer, as it rose so far, would take to the goal: an estimate, where it rose at all."""
    steps = sorted({step: min(aligned) for step, _, aligned in track if step > 0}.items())
    if len(steps) < 3:
        return ""
    (first, low), (last, high) = steps[0], steps[-1]
    rise = (high - low) / (last - first)
    if rise <= 0:
        return f"; over {last} outer steps the worst layer did not rise at all"
    needed = (ENOUGH - high) / rise * spent / last
    return (
        f"; the worst layer rose by {rise:.1e} an outer step, at which rate the goal is {needed / 3600:.0f} hours away, "
        f"{needed / seconds:.0e} times the solver's time"
    )


def _list(values: list[float]) -> str:
    return ", ".join(f"{value:.4f}" for value in values)
