r"""The aNTK against trained networks of finite width: where they end, and how they get there."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
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
    mlp,
    mnist,
    name,
    relative,
    rms,
)
from adakern.benchmarks.truth import REFERENCE
from adakern.metrics import alignment
from adakern.solution import Solution
from adakern.solving import solve
from adakern.trajectories import dynamics as follow

LEAST = 0.9995  # alignment
CLOSE = 1e-3  # outputs that are this near are the same, however near the networks are to each other
# Deeper networks are trained to their end by momentum, at a fraction of the gradients that the adaptive Runge-Kutta pair takes; larger steps chatter at the kinks of ReLU.
DEEPER: dict[str, dict[str, Any]] = {
    "relu": {"method": "momentum", "step": 0.004},
    "tanh": {"method": "momentum", "step": 0.008},
}
LOWER = 1e-4  # a network's value may be below the theory's by this, relative
MOMENTS = 12


def _trained(
    options: Options,
    X: Any,
    y: Any,
    X_test: Any,
    depth: int,
    activation: str,
    richness: float,
    decay: float,
    **rest: Any,
) -> finite.Run:
    # One hidden layer is cheap, and slow where decay is strong: tanh still moves by 1 % per unit of time at 6/decay.
    length = options.time or (20.0 if options.quick else 60.0 if depth == 1 else 96.0)
    how = DEEPER[activation] if depth > 1 else {"accuracy": 1e-5}
    return finite.gradient_flow(
        mlp(depth, activation),
        X,
        y,
        richness=richness,
        decay=decay,
        time=length / decay,
        X_test=X_test,
        tolerance=1e-6,
        precision="float32",
        throw=False,
        **how,
        **rest,
    )


def _value(run: finite.Run) -> float:
    r"""$\gamma_0^2\sum_\mu\ell_\mu+\frac1{2N}\sum_\ell\lambda_\ell|W^\ell|^2$ at the end: what gradient flow lowers, per neuron."""
    s, seen = run.settings, len(run.X)
    norms = sum(
        decay * float(np.sum(np.square(w[-1], dtype=np.float64)))
        for decay, w in zip(s.decays, run.weights, strict=True)
    )
    return s.richness**2 * seen * float(run.losses[-1]) + norms / (2 * s.width)


def _widths(options: Options) -> list[tuple[int, int]]:
    """(width, seed), the widest last."""
    if options.width is not None:
        return [(options.width, 1), (options.width, 0)]
    small, large = (256, 512) if options.quick else (2048, 8192)
    return [(small, 0), (small, 1), (large, 0)]


def compare(
    options: Options,
    source: str,
    data: Callable[..., Any],
    points: int,
    depth: int,
    activation: str,
    richness: float,
    decay: float,
) -> Iterator[Row]:
    """Kernels, outputs and predictions of the theory beside those of networks of two widths."""
    X, y, X_test, _ = data(points if not options.quick else min(points, 100), options.tests())
    theory = _rested(antk(depth, activation, richness, decay), X, y)
    predicted = theory.predict(X_test)
    label = f"{source} {name(depth, activation, richness, decay)}"
    said = "" if theory.converged else f"theory: {theory.status}"
    least = 0.99 if options.quick else LEAST
    runs: list[finite.Run] = []
    sizes = _widths(options)
    for width, seed in sizes:
        run = _trained(options, X, y, X_test, depth, activation, richness, decay, width=width, seed=seed)
        runs.append(run)
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
        state = "stationary" if run.stats["stationary"] else "not stationary"
        how = (
            f"{run.stats['method']}, {run.stats['steps']} steps to t = {run.times[-1]:g}, {run.stats['seconds']:.0f} s"
        )
        note = f"{state}; {how}" + ("" if run.converged else f"; FAILED: {run.status}")
        yield Row(f"{at}: motion per unit of time", float(run.stats["rate"] or math.nan), note=note)
    last, at = runs[-1], f"{label}, N={sizes[-1][0]}"
    if depth > 1 and activation == "relu":
        yield from _own_place(theory, last, at, least)
    own = max(apart(a.fitted, b.fitted) for a, b in itertools.combinations(runs, 2))
    off = apart(theory.fitted, last.fitted)
    excess = _value(last) / float(theory.stats["objective"]) - 1
    yield Row(f"{at}: value over the theory's, minus one", excess, f"≥ {-LOWER:g}", excess >= -LOWER)
    series = {"problem": label, "theory": theory.fitted.tolist(), "network": last.fitted.tolist()}
    note = f"networks among each other {own:.2g}; {theory.stats['seconds']:.0f} s for the theory"
    if depth == 1 and activation == "relu":  # convex in f: a value above the least bounds how far from rest outputs are
        allowed = math.sqrt(2 * max(excess, 0.0) * float(theory.stats["objective"])) / richness
        note += f"; its value leaves it {allowed:.2g}"
    yield below(f"{at}: outputs apart, largest", off, max(own, CLOSE), note=note, series=series)
    own = max(
        rms(np.asarray(a.test_predictions) - np.asarray(b.test_predictions)) for a, b in itertools.combinations(runs, 2)
    )
    off = rms(predicted - last.test_predictions)
    yield below(
        f"{at}: {len(X_test)} test outputs apart, rms",
        off,
        max(own, CLOSE),
        note=f"networks among each other {own:.2g}",
    )


def _rested(limit: Any, X: Any, y: Any, **rest: Any) -> Solution:
    """Few neurons and many short steps: the processor's work, also where there is a GPU."""
    with jax.default_device(jax.devices("cpu")[0]):
        return solve(limit, X, y, throw=False, **rest)


def _own_place(theory: Solution, run: finite.Run, at: str, least: float) -> Iterator[Row]:
    """Deep ReLU networks have several places to rest: the one that this network is close to, found from its own neurons, and how far that is from what `solve` finds by itself."""
    place = _rested(theory.limit, theory.X, theory.y, init=run)
    said = place.status if place.converged else f"NOT converged: {place.status}"
    worth = float(place.stats["objective"]) / float(theory.stats["objective"]) - 1
    yield Row(f"{at}: value of the place it is close to, over the theory's, minus one", worth, note=said)
    for layer, (rest, ours, theirs) in enumerate(zip(place.kernels, theory.kernels, run.kernels, strict=True), 1):
        value = alignment(rest, theirs.astype(np.float64))
        note = f"{100 * relative(rest, theirs):.2g} % off; the theory's kernel is {100 * relative(ours, rest):.2g} % off it"
        good = value >= least and place.converged and run.converged
        yield Row(f"{at}: alignment of layer {layer} with that place", value, f"≥ {least:g}", good, note=note)


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


def race(options: Options, activation: str, richness: float, decay: float) -> Iterator[Row]:
    """Losses over time of the dynamics and of networks, each with standard errors over independent ones."""
    X, y, X_test, y_test = mnist(50, options.tests())
    copies = options.replicas or (3 if options.quick else 8)
    neurons = options.width or (512 if options.quick else 4096)
    times = np.geomspace(0.02, 2.0 if options.quick else 10.0, MOMENTS)
    limit = antk(1, activation, richness, decay)
    tests: dict[str, Any] = {"X_test": X_test, "y_test": y_test}
    theory = follow(limit, X, y, times, neurons=neurons, replicas=copies, keep=False, **tests)
    train, test, seconds = [], [], 0.0
    for seed in range(copies):
        run = finite.gradient_flow(
            limit.network,
            X,
            y,
            richness=richness,
            decay=decay,
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
    label = f"{name(1, activation, richness, decay)}, N={neurons}, {copies} networks"
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
            "problem": name(1, activation, richness, decay),
            "kind": kind,
            "times": times.tolist(),
            "theory": ours.tolist(),
            "theory_error": doubt.tolist(),
            "network": mean.tolist(),
            "network_error": error.tolist(),
            "z": z.tolist(),
        }
        yield below(f"{label}: {kind} loss, rms z over {MOMENTS} times", rms(z), 2.0, note=note, series=series)
        yield below(f"{label}: {kind} loss, largest z", float(np.abs(z).max()), 4.0)


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
    return compare(options, source, data, points, *problem)


def dynamics_settings() -> dict[str, Setting]:
    found: dict[str, Setting] = {}
    for activation in ("relu", "tanh"):
        for decay in (0.0, 0.1, 1.0):
            for richness in (0.3, 1.0, 3.0) if decay < 1 else (1.0,):
                key = name(1, activation, richness, decay)
                found[key] = partial(race, activation=activation, richness=richness, decay=decay)
    return found
