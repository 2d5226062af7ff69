"""The aNTK solver itself: its certificate, its seconds beside those of other ways, whether starts matter, and its range."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from adakern import finite
from adakern.benchmarks import flow_plain
from adakern.benchmarks.adaptive_speed import stopwatch
from adakern.benchmarks.flow_networks import DEEPER, rested
from adakern.benchmarks.flow_rows import (
    Options,
    Row,
    Setting,
    antk,
    below,
    cifar,
    mlp,
    mnist,
    name,
    relative,
)
from adakern.errors import ConvergenceError
from adakern.solution import Solution
from adakern.solving import solve

GAP = 1e-4
FINEST = 1e-6  # no flow is asked for a smaller gap
AIM = 20.0  # seconds of plain flow over the solver's
WIDTH = 1024
MOTION = 1e-4  # of a network, per 1/decay: the solver's own tolerance


def certificate(options: Options, data: Callable[..., Any], points: int, decay: float, label: str) -> Iterator[Row]:
    """The gap, and how long plain gradient flow takes to the same."""
    X, y, *_ = data(min(points, 50) if options.quick else points)
    limit = antk(1, "relu", 1.0, decay)
    with stopwatch() as watch:
        solution = rested(limit, X, y)
    gap = np.inf if solution.certificate is None else float(solution.certificate)
    note = "" if solution.converged else f"NOT converged: {solution.status}"
    yield below(f"{label}: gap relative to the value", gap, GAP, note=note)
    yield Row(f"{label}: seconds", watch.seconds, note=f"and {watch.compiler:.1f} of the compiler")
    yield Row(f"{label}: neurons", float(solution.stats["neurons"][0]))
    kept = None if options.runs is None else options.runs / f"plain {label}.json"
    track, tried = flow_plain.race(limit, X, y, max(gap, FINEST), options.cap, kept)
    listing = ", ".join(f"{one.step:.2g} ({one.gaps[-1]:.1e} after {one.seconds[-1]:.1f} s)" for one in tried)
    sign = "" if track.reached else "> "
    ratio = track.seconds[-1] / watch.seconds
    yield Row(
        f"{label}: seconds of plain flow over the solver's",
        ratio,
        f"≥ {AIM:g}",
        None if not track.reached and ratio < AIM else ratio >= AIM,
        note=f"{sign}{ratio:.3g}: {track.seconds[-1]:.1f} s, {track.steps} steps of {track.step:.2g}, the best of {listing}",
        series={
            "problem": label,
            "solver": [watch.seconds, gap],
            "seconds": track.seconds,
            "gaps": track.gaps,
            "bound": not track.reached,
            "ratio": ratio,
        },
    )


def speed(options: Options, depth: int, activation: str, decay: float) -> Iterator[Row]:
    """Against a network of width 1024 that is trained until it moves as little as the solver's tolerance, per 1/decay."""
    X, y, *_ = mnist(20 if options.quick else 50)
    width = options.width or (128 if options.quick else WIDTH)
    limit = antk(depth, activation, 1.0, decay)
    with stopwatch() as first:
        solve(limit, X, y, throw=False)
    with stopwatch() as watch:
        solution = solve(limit, X, y, seed=1, throw=False)
    label = name(depth, activation, 1.0, decay)
    note = solution.status if solution.converged else f"NOT converged: {solution.status}"
    starts = len(solution.stats["starts"]) + int(solution.stats["starts_that_died"])
    yield Row(
        f"{label}: seconds of the solver",
        watch.seconds,
        note=f"{starts} starts, for error bars; first call {first.wall:.1f} s; {note}",
    )
    ways = (
        {"": {"accuracy": 1e-5}}
        if depth == 1
        else {f" by {way}": {**DEEPER[activation], "method": way} for way in ("descent", "momentum")}
    )
    for way, how in ways.items():
        seconds, run = _trained(options, (X, y), depth, activation, decay, width, how)
        bound, ratio = not run.stats["stationary"], seconds / watch.seconds
        sign = "> " if bound else ""
        yield Row(
            f"{label}: seconds of a network, N={width}{way}, over the solver's",
            ratio,
            "≥ 1",
            None if bound and ratio < 1 else ratio >= 1,
            note=f"{sign}{ratio:.3g}: {seconds:.1f} s, {run.stats['evaluations']} gradients, {run.status}",
            series={
                "problem": f"{label}{way}",
                "ratio": ratio,
                "bound": bound,
                "theory_s": watch.seconds,
                "network_s": seconds,
            },
        )
        if starts > 1:  # one network beside one start
            each = starts * ratio
            yield Row(f"{label}: the same{way}, over one of the {starts} starts", each, note=f"{sign}{each:.3g}")


def _trained(
    options: Options, data: Any, depth: int, activation: str, decay: float, width: int, how: dict[str, Any]
) -> tuple[float, finite.Run]:
    """A network that has come to rest, or as far as the cap lets it; and its seconds."""
    length, spent = 8.0, 0.0
    while True:
        with stopwatch() as clock:
            run = finite.gradient_flow(
                mlp(depth, activation),
                *data,
                richness=1.0,
                decay=decay,
                width=width,
                time=length / decay,
                tolerance=MOTION,
                precision="float32",
                throw=False,
                **how,
            )
        spent += clock.wall
        # Each run begins anew; only the last one counts.
        if run.stats["stationary"] or not run.converged or spent + 2 * clock.seconds > options.cap:
            return clock.seconds, run
        length *= 2


def starts(options: Options, depth: int, activation: str, decay: float) -> Iterator[Row]:
    """Where different seeds end, each with two starts of its own."""
    X, y, *_ = mnist(10 if options.quick else 20)
    limit = antk(depth, activation, 1.0, decay)
    ends = [solve(limit, X, y, seed=seed, throw=False) for seed in range(2 if options.quick else 4)]
    values = np.asarray([float(end.stats["objective"]) for end in ends])
    label = name(depth, activation, 1.0, decay)
    spread = float(values.max() / values.min() - 1)
    text = "; ".join(dict.fromkeys(_remarks(end) for end in ends if _remarks(end)))
    listing = f"{values.min():.6g} to {values.max():.6g}, zero predictor {ends[0].stats['zero_objective']:.6g}"
    note = f"{listing}{'; ' + text if text else ''}"
    if depth == 1 and activation == "relu":  # convex
        yield below(f"{label}: values of {len(ends)} seeds apart, relative", spread, GAP, note=note)
    else:
        yield Row(f"{label}: values of {len(ends)} seeds apart, relative", spread, note=note)
    pairs = list(itertools.combinations(ends, 2))
    for layer in range(depth):
        off = max(relative(a.kernels[layer], b.kernels[layer]) for a, b in pairs)
        yield Row(f"{label}: kernels of layer {layer + 1} apart, largest of {len(pairs)} pairs", off)


def _remarks(solution: Solution) -> str:
    """What a solution has to say beyond how far it is at rest."""
    return "; ".join(solution.status.split("; ")[1:]) if solution.converged else f"NOT converged: {solution.status}"


def reach(options: Options, depth: int, activation: str, richness: float, decay: float, points: int) -> Iterator[Row]:
    """Solve once, with every option at its default."""
    X, y, *_ = mnist(min(points, 10) if options.quick else points)
    label = f"{name(depth, activation, richness, decay)}, P={len(X)}"
    began, said = time.perf_counter(), ""
    found: Any
    try:
        found = solve(antk(depth, activation, richness, decay), X, y)
    except ConvergenceError as failure:
        found, said = failure.result, str(failure)
    seconds = time.perf_counter() - began
    if said:
        yield Row(f"{label}: seconds", seconds, "converged, or says what to do", None, note=said)
    else:
        text = f"{found.status}; neurons {', '.join(str(n) for n in found.stats['neurons'])}"
        yield Row(f"{label}: seconds", seconds, "converged, or says what to do", True, note=text)


def certificate_settings() -> dict[str, Setting]:
    rows = [("mnist", mnist, points, 1.0) for points in (50, 100, 300, 1000)]
    rows += [("mnist", mnist, 50, decay) for decay in (0.1, 0.01)] + [("cifar", cifar, 300, 1.0)]
    found: dict[str, Setting] = {}
    for source, data, points, decay in rows:
        label = f"{source}, P={points}, decay {decay:g}"
        found[label] = partial(certificate, data=data, points=points, decay=decay, label=label)
    return found


def _settings(measure: Callable[..., Iterator[Row]], rows: Any) -> dict[str, Setting]:
    return {
        name(depth, activation, 1.0, decay): partial(measure, depth=depth, activation=activation, decay=decay)
        for depth, activation, decay in rows
    }


def speed_settings() -> dict[str, Setting]:
    rows = ((d, phi, decay) for d, decay in ((1, 1.0), (2, 0.1), (3, 0.03)) for phi in ("relu", "tanh"))
    return _settings(speed, rows)


def starts_settings() -> dict[str, Setting]:
    places = ((1, 1.0), (1, 0.1), (2, 0.1), (2, 0.01), (3, 0.03), (4, 0.01))
    return _settings(starts, ((d, phi, decay) for d, decay in places for phi in ("relu", "tanh")))


def range_settings() -> dict[str, Setting]:
    decays = (1e-3, 0.1, 1.0, 10.0)
    rows = [
        (depth, phi, g, decay, 20)
        for depth in (1, 2, 5)
        for phi in ("relu", "tanh")
        for g in (0.01, 0.1, 1.0, 10.0)
        for decay in decays
    ]
    rows += [(depth, phi, 1.0, 0.1, 1) for depth in (1, 5) for phi in ("relu", "tanh")]
    rows += [(1, phi, 1.0, 1.0, points) for points in (200, 1000) for phi in ("relu", "tanh")]
    rows += [(2, "relu", 1.0, 0.1, 200)]
    found: dict[str, Setting] = {}
    for depth, phi, g, decay, points in rows:
        problem = {"depth": depth, "activation": phi, "richness": g, "decay": decay, "points": points}
        found[f"{name(depth, phi, g, decay)}, P={points}"] = partial(reach, **problem)  # type: ignore[arg-type]
    return found
