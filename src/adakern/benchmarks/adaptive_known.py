r"""The aNBK solver against what is known in closed form or in a limit: linear networks, small richness, large richness.

`solver` are the arguments of `solve` that set its precision; errors come from the scatter over seeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
from scipy import optimize

from adakern import datasets
from adakern.benchmarks.truth import Row, overlaps
from adakern.limits import ANBK, NNGPK
from adakern.networks import MLP
from adakern.solution import Solution
from adakern.solving import solve

BETA = 50.0
LAZY = (0.025, 0.05, 0.1, 0.15, 0.2, 0.4)


def whitened(points: int) -> tuple[np.ndarray, np.ndarray]:
    r"""Inputs with $\Phi^0=I$, and a target of norm one."""
    rng = np.random.default_rng(0)
    y = rng.normal(size=points)
    return np.sqrt(points) * np.linalg.qr(rng.normal(size=(points, points)))[0], y / np.linalg.norm(y)


def _solutions(limit: ANBK, X: np.ndarray, y: np.ndarray, seeds: int, options: dict[str, Any]) -> list[Solution]:
    return [solve(limit, X, y, seed=seed, solver="particles", **options) for seed in range(seeds)]


def _unfinished(solutions: list[Solution]) -> str:
    stuck = [solution for solution in solutions if not solution.converged]
    return f" ({len(stuck)} of {len(solutions)} solves not converged: {stuck[0].status})" if stuck else ""


def _known(row: Row, ok: bool | None) -> dict[str, Any]:
    return {**asdict(row), "sigmas": row.sigmas, "ok": ok}


def _overlap(solutions: list[Solution], y: np.ndarray, layer: int) -> tuple[float, float]:
    r"""$y^\top\Phi^\ell y$ and its standard error, from the scatter over seeds."""
    values = np.array([y @ solution.kernels[layer] @ y for solution in solutions])
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values)))


def linear(
    name: str, seeds: int, solver: dict[str, Any], depth: int, richness: float, beta: float
) -> Iterator[dict[str, Any]]:
    """Label overlaps of every layer of a linear network on whitened data against their closed form."""
    X, y = whitened(4)
    limit = ANBK(MLP(depth, "linear"), richness=richness, beta=beta)  # type: ignore[arg-type]
    found = _solutions(limit, X, y, seeds, solver)
    stuck = _unfinished(found)
    for layer, expected in enumerate(overlaps(depth, richness, beta)):
        mean, error = _overlap(found, y, layer)
        row = Row("linear", f"{name}: overlap of layer {layer + 1}, {len(found)} seeds{stuck}", mean, error, expected)
        yield _known(row, row.sigmas < 3 and not stuck)


def ultra_rich(name: str, seeds: int, solver: dict[str, Any], depth: int, richness: float) -> Iterator[dict[str, Any]]:
    r"""$c_L$ of a linear network on whitened data over its closed form, and over the limit $\gamma_0^{2L/(L+1)}$, which it reaches as $\gamma_0\to\infty$."""
    X, y = whitened(4)
    limit = ANBK(MLP(depth, "linear"), richness=richness, beta=BETA)  # type: ignore[arg-type]
    found = _solutions(limit, X, y, seeds, solver)
    stuck, closed = _unfinished(found), float(overlaps(depth, richness, BETA)[-1])
    last = richness ** (2 * depth / (depth + 1))
    mean, error = _overlap(found, y, depth - 1)
    row = Row(
        "ultra-rich", f"{name}: over the closed form, {len(found)} seeds{stuck}", mean / closed, error / closed, 1.0
    )
    yield _known(row, row.sigmas < 3 and not stuck)
    row = Row("ultra-rich", f"{name}: over the limit", mean / last, error / last, closed / last)
    yield _known(row, None)


def lazy(name: str, seeds: int, solver: dict[str, Any], depth: int) -> Iterator[dict[str, Any]]:
    r"""$|\Phi-\Phi_{\rm lazy}|/|\Phi_{\rm lazy}|$ of the last layer against richness, and the power with which it vanishes.

    Products of different seeds' deviations, averaged, estimate $|\Phi-\Phi_{\rm lazy}|^2$ without the noise's own square; leaving out one seed at a time gives the error.
    """
    X, y, *_ = datasets.mnist(n_train=20, n_test=1)
    net = MLP(depth, "tanh")  # type: ignore[arg-type]
    still = solve(NNGPK(net, beta=BETA), X, y).kernel
    sizes, errors, stuck = [], [], ""
    for richness in LAZY:
        limit = ANBK(net, richness=richness, beta=BETA)
        found = _solutions(limit, X, y, seeds, solver)
        stuck = stuck or _unfinished(found)
        size, error = _deviation(np.stack([solution.kernel - still for solution in found]))
        sizes.append(size / float(np.linalg.norm(still)))
        errors.append(error / float(np.linalg.norm(still)))
        setting = f"{name}, richness {richness:g}: relative deviation{_unfinished(found)}"
        yield _known(Row("lazy", setting, sizes[-1], errors[-1], None), None)
    for i in range(len(LAZY) - 1):
        gap = math.log(LAZY[i + 1] / LAZY[i])
        error = math.hypot(*(errors[j] / sizes[j] for j in (i, i + 1))) / gap
        setting = f"{name}: power from richness {LAZY[i]:g} to {LAZY[i + 1]:g}"
        yield _known(Row("lazy", setting, math.log(sizes[i + 1] / sizes[i]) / gap, error, None), None)
    slope, error = _power(np.asarray(sizes), np.asarray(errors))
    row = Row("lazy", f"{name}: power as richness goes to 0{stuck}", slope, error, 2.0)
    yield _known(row, row.sigmas < 3 and not stuck)


def _power(sizes: np.ndarray, errors: np.ndarray) -> tuple[float, float]:
    r"""$s$ of $\log d=a+s\log\gamma_0-q\log(1+b\gamma_0^2)$, and its standard error: a power at small richness that bends over at larger."""

    def law(g: np.ndarray, a: float, s: float, q: float, b: float) -> np.ndarray:
        return a + s * np.log(g) - abs(q) * np.log1p(abs(b) * g**2)

    start = (math.log(sizes[1] / LAZY[1] ** 2), 2.0, 0.5, 20.0)
    best, covariance = optimize.curve_fit(
        law, np.asarray(LAZY), np.log(sizes), start, errors / sizes, absolute_sigma=True, maxfev=20000
    )
    return float(best[1]), float(np.sqrt(covariance[1, 1]))


def _deviation(parts: np.ndarray) -> tuple[float, float]:
    """Size of the mean of noisy arrays, without the bias of the noise, and its jackknife error."""

    def size(some: np.ndarray) -> float:
        count = len(some)
        square = (np.sum(some.sum(axis=0) ** 2) - np.sum(some**2)) / (count * (count - 1))
        return math.sqrt(max(float(square), 1e-300))

    count = len(parts)
    left = np.array([size(np.delete(parts, i, axis=0)) for i in range(count)])
    return size(parts), float(np.sqrt((count - 1) / count * np.sum((left - left.mean()) ** 2)))
