r"""The aNTK against trained networks of finite width: where they end, and how they get there."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import numpy as np

from adakern import finite
from adakern.benchmarks.flow_rows import (
    Options,
    Row,
    Setting,
    antk,
    apart,
    below,
    cifar,
    mnist,
    name,
    relative,
    rms,
)
from adakern.benchmarks.flow_runs import Ended, ended
from adakern.benchmarks.truth import REFERENCE
from adakern.limits import ANTK
from adakern.metrics import alignment
from adakern.solution import Solution
from adakern.solving import solve
from adakern.trajectories import dynamics as follow

Data = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # X, y, X_test, y_test
LEAST = 0.9995  # alignment
CLOSE = 1e-3  # outputs that are this near are the same, however near the networks are to each other
# Deeper networks are trained to their end by momentum, at a fraction of the gradients that the adaptive Runge-Kutta pair takes; larger steps chatter at the kinks of ReLU.
DEEPER: dict[str, dict[str, Any]] = {
    "relu": {"method": "momentum", "step": 0.004},
    "tanh": {"method": "momentum", "step": 0.008},
}
SEEDS = 3  # deep networks of ReLU have several places to rest: the lowest of so many solves counts
ELSEWHERE = 1e-3  # a network whose value is above the theory's by more than this, relative, rests elsewhere
LOWER = 1e-4  # a network's value may be below the theory's by this, relative
MOMENTS = 12


def trained(options: Options, limit: ANTK, data: Data, how: dict[str, Any], width: int, seed: int) -> finite.Run:
    # One hidden layer is cheap, and slow where decay is strong: tanh still moves by 1 % per unit of time at 6/decay.
    length = options.time or (20.0 if options.quick else 60.0 if limit.network.depth == 1 else 96.0)
    X, y, X_test, _ = data
    return finite.gradient_flow(
        limit.network,
        X,
        y,
        richness=limit.richness,
        decay=limit.decay,
        width=width,
        seed=seed,
        time=length / min(limit.decays),
        X_test=X_test,
        tolerance=1e-6,
        precision="float32",
        throw=False,
        **how,
    )


def _widths(options: Options, widths: tuple[int, int]) -> list[tuple[int, int]]:
    """(width, seed), the widest last."""
    if options.width is not None:
        return [(options.width, 1), (options.width, 0)]
    small, large = widths
    return [(small, 0), (small, 1), (large, 0)]


def networks(
    options: Options,
    label: str,
    limit: ANTK,
    data: Data,
    how: dict[str, Any] | None = None,
    widths: tuple[int, int] = (2048, 8192),
) -> tuple[list[tuple[int, int]], list[Ended]]:
    """Width and seed of the networks of a comparison, and where they end."""
    depth, activation = limit.network.depth, limit.network.activation.name
    how = how or (DEEPER[activation] if depth > 1 else {"accuracy": 1e-5})
    sizes = _widths(options, widths)
    found = []
    for width, seed in sizes:
        train = partial(trained, options, limit, data, how, width, seed)
        key = f"{label}, N={width}, seed {seed}" + (f", time {options.time:g}" if options.time else "")
        found.append(ended(train, limit.network, data[0], options.runs, key, (width, seed) == sizes[-1]))
    return sizes, found


def compare(
    options: Options,
    label: str,
    limit: ANTK,
    data: Data,
    widths: tuple[int, int],
    how: dict[str, Any] | None = None,
) -> Iterator[Row]:
    """Kernels, outputs and predictions of the theory beside those of networks of two widths, which are trained as `how` says."""
    X, y, X_test, _ = data
    depth, activation = limit.network.depth, limit.network.activation.name
    sizes, runs = networks(options, label, limit, data, how, widths)
    several = depth > 1 and activation == "relu" and not options.quick
    theories = [
        rested(limit, X, y, seed=seed, checkpoint=options.checkpoint(f"{label}, {len(X)} points, seed {seed}"))
        for seed in range(SEEDS if several else 1)
    ]
    theory = min(theories, key=lambda one: (not one.converged, float(one.stats["objective"])))
    predicted = theory.predict(X_test)
    said = "" if theory.converged else f"theory: {theory.status}"
    if several:
        values = [float(one.stats["objective"]) for one in theories]
        listing = ", ".join(f"{value:.6g}" for value in values)
        note = f"{listing}; the lowest is compared"
        yield Row(f"{label}: values of {SEEDS} seeds apart, relative", max(values) / min(values) - 1, note=note)
    least = 0.99 if options.quick else LEAST
    for (width, seed), run in zip(sizes, runs, strict=True):
        at = f"{label}, N={width}" + (f", seed {seed}" if seed else "")
        judged = (width, seed) == sizes[-1]
        for layer, (ours, theirs) in enumerate(zip(theory.kernels, run.kernels, strict=True), 1):
            series = {"problem": label, "layer": layer, "width": width, "seed": seed}
            value = alignment(ours, theirs.astype(np.float64))
            good = value >= least and theory.converged and run.converged
            note = f"{100 * relative(ours, theirs):.2g} % off" + (f"; {said}" if said else "")
            yield Row(
                f"{at}: alignment of layer {layer}",
                value,
                f"≥ {least:g}" if judged else "",
                good if judged else None,
                note=note,
                series=series,
            )
        state = "stationary" if run.facts["stationary"] else "not stationary"
        note = f"{state}; {run.facts['how']}" + ("" if run.converged else f"; FAILED: {run.facts['status']}")
        yield Row(f"{at}: motion per unit of time", float(run.facts["rate"]), note=note)
    for layer in range(depth):
        among = [
            alignment(a.kernels[layer].astype(np.float64), b.kernels[layer].astype(np.float64))
            for a, b in itertools.combinations(runs, 2)
        ]
        yield Row(f"{label}: alignment of layer {layer + 1} among the networks, lowest", min(among))
    last, at = runs[-1], f"{label}, N={sizes[-1][0]}"
    excess = float(last.facts["value"]) / float(theory.stats["objective"]) - 1
    if depth > 1 and (activation == "relu" or excess > ELSEWHERE):
        yield from _own_place(theory, last, at, least)
    own = max(apart(a.fitted, b.fitted) for a, b in itertools.combinations(runs, 2))
    off = apart(theory.fitted, last.fitted)
    yield Row(f"{at}: value over the theory's, minus one", excess, f"≥ {-LOWER:g}", excess >= -LOWER)
    series = {"problem": label, "theory": theory.fitted.tolist(), "network": last.fitted.tolist()}
    note = f"networks among each other {own:.2g}; {theory.stats['seconds']:.0f} s for the theory"
    if depth == 1 and activation == "relu":  # convex in f: a value above the least bounds how far from rest outputs are
        allowed = math.sqrt(2 * max(excess, 0.0) * float(theory.stats["objective"])) / limit.richness
        note += f"; its value leaves it {allowed:.2g}"
    # Deep networks that rest elsewhere are far from each other as well: what they differ by is no bar then.
    elsewhere = depth > 1 and excess > ELSEWHERE
    bar = CLOSE if elsewhere else max(own, CLOSE)
    yield below(f"{at}: outputs apart, largest", off, bar, note=note, series=series)
    own = max(
        rms(np.asarray(a.test_predictions) - np.asarray(b.test_predictions)) for a, b in itertools.combinations(runs, 2)
    )
    off = rms(predicted - last.test_predictions)
    yield below(
        f"{at}: {len(X_test)} test outputs apart, rms",
        off,
        CLOSE if elsewhere else max(own, CLOSE),
        note=f"networks among each other {own:.2g}",
    )


def rested(limit: Any, X: Any, y: Any, **rest: Any) -> Solution:
    """Few neurons and many short steps: the processor's work, also where there is a GPU."""
    with jax.default_device(jax.devices("cpu")[0]):
        return solve(limit, X, y, throw=False, **rest)


def _own_place(theory: Solution, run: Ended, at: str, least: float) -> Iterator[Row]:
    """Deep networks have several places to rest: the one that this network is close to, found from its own neurons, and how far that is from what `solve` finds by itself."""
    place = rested(theory.limit, theory.X, theory.y, init=run)
    said = place.status if place.converged else f"NOT converged: {place.status}"
    worth = float(place.stats["objective"]) / float(theory.stats["objective"]) - 1
    yield Row(f"{at}: value of the place it is close to, over the theory's, minus one", worth, note=said)
    for layer, (rest, ours, theirs) in enumerate(zip(place.kernels, theory.kernels, run.kernels, strict=True), 1):
        value = alignment(rest, theirs.astype(np.float64))
        note = f"{100 * relative(rest, theirs):.2g} % off; the theory's kernel is {100 * relative(ours, rest):.2g} % off it"
        good = value >= least and place.converged and run.converged
        yield Row(f"{at}: alignment of layer {layer} with that place", value, f"≥ {least:g}", good, note=note)
    yield Row(f"{at}: outputs apart from that place, largest", apart(place.fitted, run.fitted))


def fixture(options: Options) -> Iterator[Row]:
    """A network that another program trained (tests/fixtures/README.md)."""
    X, y, X_test, _ = mnist(50, 600)
    with np.load(REFERENCE) as file:
        phi, f, ft = (file[f"mnist50_flow_tanh_g1.0/{part}"] for part in ("Phi", "f", "ft"))
    theory = solve(antk(1, "tanh", 1.0, 1.0), X, y, throw=False)
    label = "another program's network, L=1 tanh, richness 1, decay 1, N=8192"
    yield below(f"{label}: kernel off, relative", relative(theory.kernel, phi[0]), CLOSE)
    yield below(f"{label}: outputs apart, largest", apart(theory.fitted, f), CLOSE)
    yield below(f"{label}: 600 test outputs apart, rms", rms(theory.predict(X_test) - ft), CLOSE)


def race(
    options: Options,
    label: str,
    limit: ANTK,
    data: Data,
    times: np.ndarray,
    width: int,
    copies: int,
    accuracy: float = 1e-5,
) -> Iterator[Row]:
    """Losses over time of the dynamics, to this accuracy, and of networks, each with standard errors over `copies` independent ones of so many neurons, unless the options say otherwise."""
    X, y, X_test, y_test = data
    copies, neurons = options.replicas or copies, options.width or width
    tests: dict[str, Any] = {"X_test": X_test, "y_test": y_test}
    many: dict[str, Any] = {"neurons": neurons, "replicas": copies, "accuracy": accuracy}
    theory = follow(limit, X, y, times, keep=False, **many, **tests)
    train, test, seconds = [], [], 0.0
    for seed in range(copies):
        run = finite.gradient_flow(
            limit.network,
            X,
            y,
            richness=limit.richness,
            decay=limit.decay,
            width=neurons,
            time=float(times[-1]),
            times=times.tolist(),
            seed=100 + seed,
            centred=True,
            tolerance=0.0,
            precision="float32",
            **tests,
        )
        rows = [int(np.argmin(np.abs(run.times - moment))) for moment in times]
        train.append(run.losses[rows])
        test.append(np.asarray(run.test_losses)[rows])
        seconds += float(run.stats["seconds"])
    at = f"{label}, N={neurons}, {copies} networks"
    note = f"{theory.stats['seconds']:.0f} s for the theory, {seconds:.0f} s for the networks"
    pairs = (
        ("train", train, theory.train_loss, theory.train_loss_errors),
        ("test", test, theory.test_loss, theory.test_loss_errors),
    )
    for kind, found, ours, doubt in pairs:
        mean, error = np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / math.sqrt(copies)
        ours, doubt = np.asarray(ours), np.asarray(doubt)
        z = (ours - mean) / np.hypot(error, doubt)
        series = {
            "problem": label,
            "kind": kind,
            "times": times.tolist(),
            "theory": ours.tolist(),
            "theory_error": doubt.tolist(),
            "network": mean.tolist(),
            "network_error": error.tolist(),
            "z": z.tolist(),
        }
        yield below(f"{at}: {kind} loss, rms z over {len(times)} times", rms(z), 2.0, note=note, series=series)
        yield below(f"{at}: {kind} loss, largest z", float(np.abs(z).max()), 4.0)


def network_settings() -> dict[str, Setting]:
    found: dict[str, Setting] = {"another program": fixture}
    for depth, decay in ((1, 1.0), (2, 0.1), (2, 0.03), (3, 0.1), (3, 0.03)):
        for activation in ("relu", "tanh"):
            problem = (depth, activation, 1.0, decay)
            found[f"mnist {name(*problem)}"] = partial(_compare, source="mnist", data=mnist, points=50, problem=problem)
    for richness in (0.3, 1.0):
        problem = (1, "relu", richness, 1.0)
        found[f"cifar {name(*problem)}"] = partial(_compare, source="cifar", data=cifar, points=300, problem=problem)
    return found


def _compare(
    options: Options, source: str, data: Any, points: int, problem: tuple[int, str, float, float]
) -> Iterator[Row]:
    found = data(points if not options.quick else min(points, 100), options.tests())
    # 300 pictures have 300 directions, and few of 2048 neurons begin close to where many end.
    widths = (256, 512) if options.quick else (8192, 32768) if points > 50 else (2048, 8192)
    return compare(options, f"{source} {name(*problem)}", antk(*problem), found, widths)


def _race(options: Options, problem: tuple[int, str, float, float]) -> Iterator[Row]:
    times = np.geomspace(0.02, 2.0 if options.quick else 10.0, MOMENTS)
    width, copies = (512, 3) if options.quick else (4096, 8)
    return race(options, name(*problem), antk(*problem), mnist(50, options.tests()), times, width, copies)


def dynamics_settings() -> dict[str, Setting]:
    found: dict[str, Setting] = {}
    for activation in ("relu", "tanh"):
        for decay in (0.0, 0.1, 1.0):
            for richness in (0.3, 1.0, 3.0) if decay < 1 else (1.0,):
                problem = (1, activation, richness, decay)
                found[name(*problem)] = partial(_race, problem=problem)
    return found
