r"""What is exact about the aNBK, against what is sampled: closed forms of linear networks, perturbation theory, the two-layer dual and its certificate, and what a Gaussian law costs.

Each check yields rows of one shape, as in `benchmarks.truth`.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.linalg

from adakern import datasets, finite
from adakern import linear as forms
from adakern.benchmarks.truth import Row
from adakern.limits import ANBK, VGA
from adakern.metrics import alignment
from adakern.networks import MLP
from adakern.perturbing import perturbation
from adakern.solution import Solution
from adakern.solving import solve

BETA = 50.0
SMALL = (0.4, 0.2, 0.1, 0.05, 0.025)  # richness towards 0, closed forms
SAMPLED = (0.3, 0.2, 0.14, 0.1, 0.07)  # the same where the rest is known with an error
_TRIES = 3  # timings of a factorisation, of which the best counts


def _mlp(depth: int, activation: str) -> MLP:
    return MLP(depth, activation)  # type: ignore[arg-type]  # a name


def _judged(row: Row, sigmas: float = 3.0) -> Row:
    return replace(row, ok=row.sigmas < sigmas)


def networks(quick: bool) -> Iterator[Row]:
    """Linear networks on whitened data, L = 8, richness 4, beta 10 (the paper's figure 2): label overlaps of a Langevin-sampled network against the closed form, which is that of width N → ∞."""
    X, y = 2.0 * np.eye(4), np.full(4, 0.5)
    expected = forms.overlaps(8, 4.0, 10.0)
    exact = solve(ANBK(_mlp(8, "linear"), richness=4.0, beta=10.0), X, y)
    off = max(abs(float(y @ kernel @ y) / c - 1) for kernel, c in zip(exact.kernels, expected, strict=True))
    yield Row(
        "networks", "solver against ak.linear.overlaps, largest relative difference", off, 0.0, 0.0, ok=off < 1e-9
    )
    widths = (64, 128) if quick else (512, 1024)
    found = {}
    for width in widths:
        run = finite.langevin(
            _mlp(8, "linear"),
            X,
            y,
            richness=4.0,
            beta=10.0,
            width=width,
            time=40.0 if quick else 210.0,
            burn_in=10.0,
            replicas=4,
            seed=width,
            snapshots=1,
            throw=False,
        )
        found[width] = np.array([run.stats["label_overlap"], run.stats["label_overlap_error"]])
    for layer, c in enumerate(expected):
        for width in widths:
            mean, error = found[width][:, layer]
            name = f"N={width}: overlap of layer {layer + 1}"
            series = {"layer": layer + 1, "width": width}
            yield Row("networks", name, float(mean), float(error), float(c), series=series)
        # Deviations of a finite network fall as 1/N: two widths give the limit.
        low, high = (found[width][:, layer] for width in widths)
        mean = 2 * high[0] - low[0]
        row = Row(
            "networks", f"N→∞ from both: overlap of layer {layer + 1}", mean, math.hypot(2 * high[1], low[1]), float(c)
        )
        yield _judged(row)


def particles(quick: bool) -> Iterator[Row]:
    """The closed recursion against white particles, MNIST 0/1, linear: relative difference of each kernel, in units of the particles' standard error (as a whole matrix: about 1)."""
    X, y, *_ = datasets.mnist(n_train=20 if quick else 50, n_test=1)
    for depth, richness in ((1, 1.0), (2, 1.0), (4, 0.5)):
        limit = ANBK(_mlp(depth, "linear"), richness=richness, beta=BETA)
        exact = solve(limit, X, y)
        sampled = solve(limit, X, y, solver="particles", tolerance=0.01, steps=100_000, throw=False)
        for layer in range(depth):
            scale = float(np.linalg.norm(exact.kernels[layer]))
            off = float(np.linalg.norm(sampled.kernels[layer] - exact.kernels[layer])) / scale
            error = float(np.linalg.norm(sampled.kernel_errors[layer])) / scale
            note = "" if sampled.converged else f" ({sampled.status})"
            row = Row("particles", f"L={depth}, richness {richness:g}, layer {layer + 1}{note}", off, error, 0.0)
            yield replace(row, ok=off < 2 * error and sampled.converged)
        yield Row(
            "particles",
            f"L={depth}, richness {richness:g}: largest difference of the outputs",
            float(np.abs(sampled.fitted - exact.fitted).max()),
            0.0,
            None,
        )


def _rest(exact: np.ndarray, first: Any, layer: int, richness: float) -> np.ndarray:
    """(exact - lazy - γ0² first) / γ0⁴."""
    rest: np.ndarray = (exact - first.lazy[layer] - richness**2 * first.first[layer]) / richness**4
    return rest


def orders(quick: bool) -> Iterator[Row]:
    """Perturbation theory: |exact − lazy − γ0²·first order| / (γ0⁴ |lazy|) of the last kernel as richness falls; it must stay bounded (a wrong first order grows fourfold with every halving). Linear networks in closed form, P = 10; ReLU and tanh, P = 6, where the exact kernel has an error bar."""
    for depth in (1, 2, 4):
        X, y = _points(10)
        limit = ANBK(_mlp(depth, "linear"), beta=5.0)
        theory = perturbation(limit, X, y)
        scale = float(np.linalg.norm(theory.lazy[-1]))
        sizes = []
        for richness in SMALL:
            exact = solve(replace(limit, richness=richness), X, y).kernel
            sizes.append(float(np.linalg.norm(_rest(exact, theory, depth - 1, richness))) / scale)
            series = {"problem": f"linear, L={depth}", "richness": richness}
            yield Row("orders", f"linear, L={depth}, richness {richness:g}", sizes[-1], 0.0, None, series=series)
        growth = sizes[-1] / sizes[-2]
        yield Row("orders", f"linear, L={depth}: growth with the last halving", growth, 0.0, 1.0, ok=growth < 1.3)
    for activation in ("relu", "tanh"):
        for depth in (1, 2):
            yield from _sampled_orders(activation, depth, quick)


def _sampled_orders(activation: str, depth: int, quick: bool) -> Iterator[Row]:
    """With error bars: those of the solver and of the first order, each over γ0⁴."""
    X, y = _points(6)
    limit = ANBK(_mlp(depth, activation), beta=5.0)
    theory = perturbation(limit, X, y, samples=1 << (16 if quick else 20))
    scale = float(np.linalg.norm(theory.lazy[-1]))
    sizes, errors = [], []
    for richness in SAMPLED[:2] if quick else SAMPLED:
        found = [_precise(replace(limit, richness=richness), X, y, seed, quick) for seed in range(2 if quick else 4)]
        rest = _rest(np.mean([part.kernel for part in found], axis=0), theory, depth - 1, richness)
        noise = np.linalg.norm(np.mean([part.kernel_errors[-1] ** 2 for part in found], axis=0) ** 0.5) / math.sqrt(
            len(found)
        )
        error = math.hypot(float(noise) / richness**4, float(np.linalg.norm(theory.errors[-1])) / richness**2) / scale
        # The norm of a noisy matrix is too large by its noise, in squares.
        square = (float(np.linalg.norm(rest)) / scale) ** 2 - error**2
        sizes.append(math.sqrt(max(square, 0.0)))
        errors.append(error)
        how = found[0].stats["solver"] + ("" if all(part.converged for part in found) else ", not converged")
        series = {"problem": f"{activation}, L={depth}", "richness": richness}
        name = f"{activation}, L={depth}, richness {richness:g} ({how})"
        yield Row("orders", name, sizes[-1], error, None, series=series)
    # Without a wrong first order the rest grows by less than it did before; with one, as 1/γ0².
    last, first = sizes[-1], sizes[0]
    wrong = first * (SAMPLED[0] / SAMPLED[len(sizes) - 1]) ** 2
    row = Row(
        "orders",
        f"{activation}, L={depth}: at the smallest richness (a wrong first order: at least {wrong:.3g})",
        last,
        errors[-1],
        None,
    )
    yield replace(row, ok=last < 0.5 * wrong + 3 * errors[-1] and last < 4 * first + 3 * errors[-1])


def _precise(limit: ANBK, X: np.ndarray, y: np.ndarray, seed: int, quick: bool) -> Solution:
    if limit.network.depth == 1:
        return solve(
            limit, X, y, solver="dual", seed=seed, particles=1 << (17 if quick else 20), tolerance=1e-2, throw=False
        )
    return solve(
        limit, X, y, solver="particles", seed=seed, particles=8192, tolerance=0.002, steps=100_000, throw=False
    )


def _points(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    X = rng.standard_normal((count, count + 2))
    return X, np.sign(X[:, 0] * X[:, 1])


def dual(quick: bool) -> Iterator[Row]:
    """The two-layer dual against white particles, MNIST 0/1, P = 50: relative difference of the kernels with the joint standard error (as whole matrices: about 1 of them), the largest difference of the outputs, and the share of a fresh sample that is effective."""
    X, y, X_test, _ = datasets.mnist(n_train=20 if quick else 50, n_test=300)
    for activation in ("tanh", "relu"):
        for richness in (0.3,) if quick else (0.1, 0.2, 0.3, 0.5):
            limit = ANBK(_mlp(1, activation), richness=richness, beta=BETA)
            options: dict[str, Any] = {"tolerance": 0.01, "throw": False}
            newton = solve(limit, X, y, solver="dual", **options)
            sampled = solve(limit, X, y, solver="particles", steps=100_000, **options)
            scale = float(np.linalg.norm(sampled.kernel))
            off = float(np.linalg.norm(newton.kernel - sampled.kernel)) / scale
            joint = math.hypot(*(float(np.linalg.norm(part.kernel_errors[0])) / scale for part in (newton, sampled)))
            fine = newton.converged and sampled.converged
            name = f"{activation}, richness {richness:g}"
            yield Row("dual", f"{name}: kernels apart", off, joint, 0.0, ok=off < 2 * joint and fine)
            (f, doubt), (g, other) = newton.predict(X_test, return_std=True), sampled.predict(X_test, return_std=True)
            apart = float(np.sqrt(np.mean((f - g) ** 2)))
            error = float(np.sqrt(np.mean(doubt**2 + other**2)))
            yield Row("dual", f"{name}: 300 test predictions apart, rms", apart, error, 0.0, ok=apart < 3 * error)
            yield Row("dual", f"{name}: effective share", float(newton.stats["ess"]), 0.0, None)
            seconds = [
                _timed(functools.partial(solve, limit, X, y, solver=solver, seed=1, **options))
                for solver in ("dual", "particles")
            ]
            yield Row("dual", f"{name}: seconds of the particles over the dual's", seconds[1] / seconds[0], 0.0, None)


def certificate(quick: bool) -> Iterator[Row]:
    """The certificate, nats: free energy of the law that an answer tilts, minus the dual's value. MNIST 0/1, P = 50, tanh, richness 1. It falls with the square of the error as a solver goes on, and is large for what is not the answer."""
    X, y, *_ = datasets.mnist(n_train=20 if quick else 50, n_test=1)
    limit = ANBK(_mlp(1, "tanh"), richness=1.0, beta=BETA)
    values = []
    for steps in (20, 60, 140, 300, 1000, 4000):
        options: dict[str, Any] = {"tolerance": 0.02 if steps < 4000 else 0.005, "steps": steps, "throw": False}
        solution = solve(limit, X, y, solver="particles", **options)
        values.append((_finite(solution.certificate), solution.stats.get("certificate_error") or 0.0))
        word = "converged" if solution.converged else "not converged"
        name = f"particles, {steps} gradients ({word})"
        good = values[-1][0] > -3 * values[-1][1]
        yield Row("certificate", name, *values[-1], None, ok=good, series={"gradients": solution.stats["steps"]})
    fell = values[-1][0] / values[0][0]
    yield Row("certificate", "last over first", fell, 0.0, None, ok=fell < 0.1)
    for samples in (4096, 65536):
        solution = solve(limit, X, y, solver="dual", particles=samples, throw=False)
        value, error = _finite(solution.certificate), solution.stats.get("certificate_error") or 0.0
        yield Row("certificate", f"dual, {samples} samples", value, error, None, ok=value > -3 * error)
    lazy = solve(ANBK(_mlp(1, "tanh"), richness=0.01, beta=BETA), X, y, solver="dual")
    from adakern.limits.certificate import certificate as of_any

    value, error = of_any(limit, X, y, lazy.coefficients)
    yield Row("certificate", "the lazy answer, at richness 1", value, error, None, ok=value > 10 * values[-1][0])
    solution = solve(limit, X, y, solver="minmax", steps=1, throw=False) if not quick else lazy
    if not quick:
        value, error = _finite(solution.certificate), solution.stats.get("certificate_error") or 0.0
        yield Row("certificate", "published algorithm, one outer step", value, error, None)
    exact = solve(ANBK(_mlp(1, "linear"), richness=1.0, beta=BETA), X, y)
    yield Row(
        "certificate",
        "linear network in closed form",
        _finite(exact.certificate),
        0.0,
        0.0,
        ok=abs(_finite(exact.certificate)) < 1e-6,
    )


def _finite(value: float | None) -> float:
    return 1e300 if value is None or not np.isfinite(value) else float(value)


def gaussian(quick: bool) -> Iterator[Row]:
    """The variational Gaussian approximation beside the exact law, MNIST 0/1, P = 50: free energies in nats (a bound for L = 1), and how far its last kernel is off."""
    X, y, *_ = datasets.mnist(n_train=20 if quick else 50, n_test=1)
    cases = (
        (1, "tanh", 0.3),
        (1, "tanh", 1.0),
        (1, "tanh", 3.0),
        (1, "relu", 0.3),
        (1, "relu", 1.0),
        (2, "tanh", 0.5),
        (2, "relu", 0.5),
    )
    for depth, activation, richness in cases[1:2] if quick else cases:
        numbers: dict[str, Any] = {"richness": richness, "beta": BETA}
        best = solve(VGA(_mlp(depth, activation), **numbers), X, y)
        exact = solve(ANBK(_mlp(depth, activation), **numbers), X, y, tolerance=0.01, throw=False)
        name = f"{activation}, L={depth}, richness {richness:g}"
        if exact.free_energy is not None and best.free_energy is not None:
            error = float(exact.stats["free_energy_error"])
            row = Row(
                "gaussian", f"{name}: free energy, exact as expected", best.free_energy, 0.0, exact.free_energy, error
            )
            yield replace(row, ok=best.free_energy > exact.free_energy - 3 * error if depth == 1 else None)
        off = float(np.linalg.norm(best.kernel - exact.kernel) / np.linalg.norm(exact.kernel))
        yield Row(
            "gaussian",
            f"{name}: kernel off",
            off,
            float(np.linalg.norm(exact.kernel_errors[-1]) / np.linalg.norm(exact.kernel)),
            None,
        )
        yield Row("gaussian", f"{name}: alignment", alignment(best.kernel, exact.kernel), 0.0, None)


def cost(quick: bool) -> Iterator[Row]:
    """Linear, L = 16, P = 5000: seconds of `solve`, audit included, over those of one Cholesky factorisation of that size (scipy); 784 features, then 6000, where the input kernel has full rank."""
    points = 1000 if quick else 5000
    for features in (784, 6 * points // 5):
        rng = np.random.default_rng(0)
        X = rng.standard_normal((points, features))
        y = np.sign(X[:, 0] + 0.5 * rng.standard_normal(points))
        matrix = X @ X.T / features + np.eye(points)
        bare = min(
            _timed(functools.partial(scipy.linalg.cholesky, matrix, lower=True, check_finite=False))
            for _ in range(_TRIES)
        )
        limit = ANBK(_mlp(16, "linear"), richness=1.0, beta=BETA)
        start = time.perf_counter()
        solution = solve(limit, X, y)
        seconds = time.perf_counter() - start
        name = f"P={points}, D={features} ({solution.stats['route']})"
        yield Row(
            "cost",
            f"{name}: Cholesky factorisations",
            seconds / bare,
            0.0,
            None,
            ok=None if quick else seconds / bare <= 30,
            series={"solve": seconds, "cholesky": bare},
        )
        yield Row("cost", f"{name}: residual", solution.residual, 0.0, 0.0, ok=solution.residual < 1e-9)


def _timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


CHECKS: dict[str, Callable[[bool], Iterator[Row]]] = {
    "networks": networks,
    "particles": particles,
    "orders": orders,
    "dual": dual,
    "certificate": certificate,
    "gaussian": gaussian,
    "cost": cost,
}
