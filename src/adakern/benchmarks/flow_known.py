r"""What is known of gradient flow with weight decay without a network: one point, subgradients at kinks, and the limit of zero temperature."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from adakern import inputs
from adakern.benchmarks.flow_rows import Options, Row, Setting, antk, apart, below, mlp, mnist, name
from adakern.extension_rest import RestExtension
from adakern.limits import ANBK, resting
from adakern.solution import Solution
from adakern.solving import solve
from adakern.trajectories import dynamics as follow

TRANSITION = (0.5, 1 - 1e-3, 1 + 1e-3, 2.0, 10.0)
EXACT = 1e-6
FINE = 1e-8  # tolerance of the solver there: near the transition outputs are far more sensitive than the value
TRAINED, TESTED = 1e-3, 2e-4  # kernel predictor against network predictor
NEAR = 1e-3  # of a neuron's largest field: what stands on the kink
COLD = (1.0, 4.0, 16.0, 64.0, 256.0)
LAPLACE = 1.5  # excess kurtosis of the sum of two Laplace variables
X1, Y1 = np.ones((1, 1)), np.ones(1)


def one_point(options: Options, activation: str, richness: float) -> Iterator[Row]:
    r"""$x=y=\lambda=1$: stationarity, $\lambda a=\gamma_0\Delta\varphi$ and $\lambda h=\gamma_0\Delta\varphi'a$, leaves alive only $h$ with $\varphi'=1$ and only if $\gamma_0\Delta=\lambda$; so $\langle\varphi^2\rangle=\gamma_0-\lambda$."""
    tolerance = None if activation == "linear" else FINE  # linear: a closed form
    solution = solve(antk(1, activation, richness, 1.0), X1, Y1, tolerance=tolerance, throw=False)
    kernel, delta = float(solution.kernel[0, 0]), float(solution.errors[0])
    features = float(solution.kernels[0][0, 0])
    alive = richness > 1.0
    wanted = (1 / richness, richness - 1.0) if alive else (1.0, 0.0)
    label = f"{activation}, richness {richness:g}"
    series = {"activation": activation, "richness": richness, "size": features, "delta": delta}
    note = "" if solution.converged else f"NOT converged: {solution.status}"
    yield below(f"{label}: Δ − {wanted[0]:.6g}", abs(delta - wanted[0]), EXACT, note=note, series=series)
    yield below(f"{label}: ⟨φ²⟩ − {wanted[1]:.6g}", abs(features - wanted[1]), EXACT, note=note)
    dead = solution.status.startswith("everything dies") or features == 0.0
    if not alive:
        text = solution.status.split(":")[0]
        yield Row(f"{label}: outputs (dead)", float(solution.fitted[0]), "0", bool(dead and kernel == 0.0), note=text)


def laplace(options: Options, richness: float) -> Iterator[Row]:
    """The same numbers from Laplace-distributed weights, whose law is still seen at the end: h is then a multiple of the sum of the two initial weights of its neuron."""
    neurons, copies = (512, 4) if options.quick else (4096, 8)
    limit = antk(1, "linear", richness, 1.0)
    for initial, expected in (("laplace", LAPLACE), ("normal", 0.0)):
        end = follow(limit, X1, Y1, [40.0], initial=initial, neurons=neurons, replicas=copies, accuracy=1e-7)
        assert end.weights is not None
        h = np.asarray(end.weights[-1, :, :, 0], np.float64)
        label = f"dynamics of linear from {initial} weights, richness {richness:g}"
        delta = 1 - float(end.fitted[-1, 0])
        yield below(f"{label}: Δ − {1 / richness:g}", abs(delta - 1 / richness), EXACT)
        yield below(f"{label}: ⟨h²⟩ − {richness - 1:g}", abs(float(np.mean(h**2)) - (richness - 1)), 1e-5 * richness)
        # One number from all neurons, its error from leaving out one replica at a time: a ratio of moments of few neurons is biased.
        whole = _excess(h)
        parts = [_excess(np.delete(h, i, axis=0)) for i in range(copies)]
        error = math.sqrt((copies - 1) / copies * float(np.sum((np.asarray(parts) - np.mean(parts)) ** 2)))
        yield Row(
            f"{label}: excess kurtosis of h",
            whole,
            f"{expected:g} ± 4 errors",
            abs(whole - expected) < 4 * error,
            error=error,
        )


def _excess(h: np.ndarray) -> float:
    return float(np.mean(h**4) / np.mean(h**2) ** 2 - 3)


class _Naive(RestExtension):
    """The same neurons, whose gradient fields have other slopes at training points; fields at new points are unchanged."""

    def __init__(self, solution: Solution, slopes: list[np.ndarray]) -> None:
        limit: Any = solution.limit
        super().__init__(limit, solution.X, solution.draws, solution.slopes, solution.shares, _columns(solution.errors))
        layers = [n._replace(slopes=t) for n, t in zip(self._layers, slopes, strict=True)]
        self._gradients = resting.gradients(layers, self._errors[:, 0], limit.richness, limit.decays)


def _columns(values: np.ndarray) -> np.ndarray:
    return values if values.ndim == 2 else values[:, None]


def clarke(options: Options, depth: int, decay: float) -> Iterator[Row]:
    """K Δ/κ against the outputs, with the slopes of the solution and with 1[h > 0] of whatever sign h has at a kink."""
    X, y, X_test, _ = mnist(20 if options.quick else 50, options.tests())
    solution = solve(antk(depth, "relu", 1.0, decay), X, y, throw=False)
    label = f"L={depth}, decay {decay:g}"
    said = "" if solution.converged else f"NOT converged: {solution.status}"
    naive, share = [], []
    for h, slopes in zip(solution.draws, solution.slopes, strict=True):
        kink = np.abs(h) < NEAR * np.abs(h).max(axis=1, keepdims=True)
        naive.append(np.where(kink, h > 0, slopes).astype(np.float64))
        share.append(float(np.mean(kink)))
    listing = ", ".join(f"{value:.3f}" for value in share)
    yield Row(f"{label}: pairs on a kink, layer 1", share[0], note=f"by layer {listing}; {solution.status}")
    for kind, used, bars in (
        ("slopes of the solution", list(solution.slopes), (TRAINED, TESTED)),
        ("1[h > 0]", naive, None),
    ):
        predictor = _Naive(solution, used)
        where = ((solution.X, solution.fitted, "training outputs"), (X_test, solution.predict(X_test), "test outputs"))
        for place, (points, outputs, what) in enumerate(where):
            off = apart(predictor.blocks(points)[0] @ solution.coefficients, outputs)
            if place == 0:
                off = apart(_tangent(solution, used) @ solution.coefficients, outputs)
            text = f"{label}, {kind}: {len(points)} {what} apart, largest"
            series = {"depth": depth, "kind": kind, "what": what}
            if bars is None:
                yield Row(text, off, series=series)
            else:
                yield below(text, off, bars[place], note=said, series=series)


def _tangent(solution: Solution, slopes: list[np.ndarray]) -> np.ndarray:
    """K at the training points with these slopes."""
    limit: Any = solution.limit
    points = inputs.distinct(solution.X)
    features = [np.maximum(h, 0.0) for h in solution.draws]
    layers = [resting.Neurons(*parts) for parts in zip(solution.shares, features, slopes, strict=True)]
    errors = points.add(_columns(solution.errors))[:, 0]
    fields = resting.gradients(layers, errors, limit.richness, limit.decays)
    grams = [resting.gram(n.weights, g) for n, g in zip(layers, fields, strict=True)]
    below_all = [inputs.input_kernel(limit.network, solution.X[points.first]), *(n.kernel for n in layers)]
    return points.expand(resting.tangent(below_all, grams))


def cold(options: Options, depth: int, activation: str, decay: float) -> Iterator[Row]:
    r"""The posterior $\exp\{-b(\gamma_0^2N\mathcal L+\frac\lambda2|W|^2)\}$, which is the aNBK with $\beta=b$ and decay $b\lambda$, as $b$ grows."""
    X, y, *_ = mnist(10 if options.quick else 20)
    rest = solve(antk(depth, activation, 1.0, decay), X, y, throw=False)
    label = name(depth, activation, 1.0, decay)
    sizes, errors, places = [], [], COLD[:3] if options.quick else COLD
    for b in places:
        limit = ANBK(mlp(depth, activation), richness=1.0, beta=b, decay=b * decay)
        warm = solve(limit, X, y, tolerance=0.02 if options.quick else 0.005, steps=100_000, throw=False)
        off = apart(warm.fitted, rest.fitted)
        doubt = float(np.max(warm.predict(X, return_std=True)[1]))
        sizes.append(off)
        errors.append(doubt)
        series = {"problem": label, "b": b, "off": off}
        note = "" if warm.converged else f"NOT converged: {warm.status}"
        yield Row(f"{label}, b = {b:g}: outputs apart, largest", off, error=doubt, note=note, series=series)
    fell = sizes[-1] / sizes[0]
    allowed = 4 * places[0] / places[-1] + 3 * errors[-1] / sizes[0]
    yield below(
        f"{label}: from b = {places[0]:g} to {places[-1]:g} it falls to",
        fell,
        allowed,
        note="as 1/b within a factor of four, and three errors"
        + ("" if rest.converged else f"; aNTK NOT converged: {rest.status}"),
    )


def one_point_settings() -> dict[str, Setting]:
    found: dict[str, Setting] = {
        f"{activation}, richness {richness:g}": partial(one_point, activation=activation, richness=richness)
        for activation in ("linear", "relu")
        for richness in TRANSITION
    }
    return found | {f"laplace, richness {g:g}": partial(laplace, richness=g) for g in (2.0, 10.0)}


def clarke_settings() -> dict[str, Setting]:
    return {
        f"L={depth}, decay {decay:g}": partial(clarke, depth=depth, decay=decay)
        for depth, decay in ((1, 1.0), (2, 0.1), (3, 0.03))
    }


def cold_settings() -> dict[str, Setting]:
    return {
        name(depth, activation, 1.0, decay): partial(cold, depth=depth, activation=activation, decay=decay)
        for depth, decay in ((1, 0.5), (2, 0.1))
        for activation in ("tanh", "relu")
    }
