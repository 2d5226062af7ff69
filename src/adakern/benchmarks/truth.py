r"""Finite-width networks against what is known without them: closed forms, quadrature, lazy limits, and other programs' networks.

Each check returns rows of one shape, so that they make one table: a measured number, its standard error, what it should be, and what that itself is uncertain by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy import integrate, optimize, stats

from adakern import datasets, finite
from adakern.averages import Stream
from adakern.limits import NNGP, NNGPK
from adakern.metrics import alignment
from adakern.networks import MLP
from adakern.renormalization import renormalize
from adakern.solving import solve

REFERENCE = Path("tests/fixtures/wide_networks.npz")  # from the repository's root


@dataclass(frozen=True)
class Row:
    """One comparison. `ok` is None where the row informs and is not judged."""

    check: str
    setting: str
    measured: float
    error: float
    expected: float | None
    doubt: float = 0.0
    ok: bool | None = None
    series: dict[str, Any] = field(default_factory=dict)

    @property
    def sigmas(self) -> float:
        """Difference in units of the joint standard error."""
        joint = math.hypot(self.error, self.doubt)
        if self.expected is None or joint == 0:
            return math.inf
        return abs(self.measured - self.expected) / joint


def _mlp(depth: int, activation: str) -> MLP:
    return MLP(depth, activation)  # type: ignore[arg-type]  # a name


def overlaps(depth: int, richness: float, beta: float) -> np.ndarray:
    r"""$c_\ell=(1+\gamma_0^2c_L/(1/\beta+c_L)^2)^\ell$, the label overlaps of a linear network on whitened data at infinite width."""

    def gap(c: float) -> float:
        return c - (1 + richness**2 * c / (1 / beta + c) ** 2) ** depth

    last = optimize.brentq(gap, 1.0, (1 + richness**2 * beta) ** depth + 1, xtol=1e-14)
    return last ** (np.arange(1, depth + 1) / depth)


def linear(quick: bool) -> Iterator[Row]:
    """Linear networks on whitened data: overlaps at every layer against the closed form, and how the deviation falls with width."""
    points, richness, beta = 4, 1.0, 10.0
    X, y = math.sqrt(points) * np.eye(points), np.full(points, 0.5)
    widths = (32, 64, 128) if quick else (128, 256, 512, 1024, 2048)
    for depth in (1, 3):
        expected = overlaps(depth, richness, beta)
        means, errors, spreads = [], [], []
        for width in widths:
            run = finite.langevin(
                _mlp(depth, "linear"),
                X,
                y,
                richness=richness,
                beta=beta,
                width=width,
                time=110.0 if quick else 210.0,
                burn_in=10.0,
                replicas=8 if quick else max(4, 32 * 128 // width),
                seed=width,
                snapshots=1,
            )
            means.append(run.stats["label_overlap"])
            errors.append(run.stats["label_overlap_error"])
            spreads.append(run.stats["label_overlap_spread"])
            judged = width == widths[-1] if quick else width == 1024
            for layer in range(depth):
                row = Row(
                    "linear, whitened",
                    f"L={depth}, N={width}: overlap of layer {layer + 1}",
                    means[-1][layer],
                    errors[-1][layer],
                    float(expected[layer]),
                )
                yield Row(**{**row.__dict__, "ok": row.sigmas < 3 if judged else None})
        logs = np.log(widths)
        spread = np.asarray(spreads)[:, -1]
        slope, slope_error = _slope(logs, np.log(spread), np.full(len(logs), 0.05))
        series = {
            "widths": list(widths),
            "means": means,
            "errors": errors,
            "spreads": spreads,
            "theory": expected.tolist(),
        }
        yield Row(
            "linear, whitened",
            f"L={depth}: slope of log fluctuation of the last overlap in log N",
            slope,
            slope_error,
            -0.5,
            ok=abs(slope + 0.5) < max(0.1, 3 * slope_error),
            series=series,
        )
        bias = np.asarray(means)[:, -1] - expected[-1]
        # One straight line through the origin in 1/N, by least squares with the errors as weights.
        inverse, weight = 1 / np.asarray(widths), 1 / np.asarray(errors)[:, -1] ** 2
        coefficient = float(np.sum(weight * inverse * bias) / np.sum(weight * inverse**2))
        uncertain = float(1 / np.sqrt(np.sum(weight * inverse**2)))
        chi = float(np.sum(weight * (bias - coefficient * inverse) ** 2))
        yield Row(
            "linear, whitened",
            f"L={depth}: N times the mean's deviation; chi² of a 1/N law, {len(widths) - 1} degrees, {chi:.1f}",
            coefficient,
            uncertain,
            None,
            ok=bool(stats.chi2.sf(chi, len(widths) - 1) > 0.003),
        )


def _slope(x: np.ndarray, y: np.ndarray, error: np.ndarray) -> tuple[float, float]:
    weight = 1 / error**2
    centre = np.sum(weight * x) / weight.sum()
    square = np.sum(weight * (x - centre) ** 2)
    return float(np.sum(weight * (x - centre) * y) / square), float(1 / np.sqrt(square))


def one_neuron_law(phi: Callable[[Any], Any], richness: float, beta: float, y: float) -> tuple[np.ndarray, np.ndarray]:
    r"""Grid and distribution function of $h$ for one neuron at one point $x=1$: the readout weight integrates out, and quadrature does the rest."""
    h = np.linspace(-9, 9, 60001)
    variance = (phi(h) / richness) ** 2 + 1 / (beta * richness**2)
    log = -(h**2) / 2 - 0.5 * np.log(variance) - y**2 / (2 * variance)
    mass = integrate.cumulative_trapezoid(np.exp(log - log.max()), h, initial=0)
    return h, mass / mass[-1]


def one_neuron(quick: bool) -> Iterator[Row]:
    """One neuron, one point: draws against the exact density by quadrature, for both samplers."""
    draws = 1000 if quick else 20000
    for name, phi in (("tanh", np.tanh), ("relu", lambda h: np.maximum(h, 0))):
        for sampler in ("baoab", "euler"):
            richness, beta, target = 1.0, 20.0, 1.0
            run = finite.langevin(
                _mlp(1, name),
                np.ones((1, 1)),
                np.array([target]),
                richness=richness,
                beta=beta,
                width=1,
                time=40.0,
                burn_in=39.0,
                replicas=draws,
                sampler=sampler,
                snapshots=1,
                throw=False,
            )
            h, mass = one_neuron_law(phi, richness, beta, target)
            test = stats.kstest(run.density(1, 0)[0], lambda x, h=h, mass=mass: np.interp(x, h, mass))
            limit = 1.63 / math.sqrt(draws)  # exceeded by chance once in a hundred
            yield Row(
                "one neuron, one point",
                f"{name}, {sampler}: Kolmogorov-Smirnov distance of {draws} draws; 1 in 100 exceed {limit:.4f}",
                float(test.statistic),
                0.0,
                0.0,
                ok=bool(test.statistic < limit),
            )


def discretisation(quick: bool) -> Iterator[Row]:
    """Bias of the two samplers at like fractions of their stability limits: the mean squared error of one tanh neuron, whose output is the stiff direction."""
    draws = 2000 if quick else 50000
    richness, beta, target = 1.0, 20.0, 1.0
    h, mass = one_neuron_law(np.tanh, richness, beta, target)
    prior, noise = (np.tanh(h) / richness) ** 2, 1 / (beta * richness**2)
    square = (target * noise / (prior + noise)) ** 2 + prior * noise / (prior + noise)  # of y - s, given h
    expected = float(integrate.trapezoid(np.gradient(mass, h) * square, h))
    for sampler, multiples in (("baoab", (1.0, 2.5)), ("euler", (1.0, 6.0))):
        own: float | None = None
        for multiple in multiples:
            run = finite.langevin(
                _mlp(1, "tanh"),
                np.ones((1, 1)),
                np.array([target]),
                richness=richness,
                beta=beta,
                width=1,
                time=40.0,
                burn_in=38.0,
                replicas=draws,
                sampler=sampler,
                step=None if own is None else own * multiple,
                snapshots=1,
                throw=False,
            )
            own = float(run.stats["step"]) if own is None else own
            values = 2 * run.replica_losses[run.times > 38.0].mean(axis=0)
            error = float(values.std() / math.sqrt(len(values)))
            setting = f"{sampler}, step {run.stats['step']:.2g}, {multiple:g} times its own choice: <(y - s)²>"
            yield Row("discretisation", setting, float(values.mean()), error, expected)


def lazy(quick: bool) -> Iterator[Row]:
    """Small richness against NNGPK; NTK parameterisation against NNGP's mean and variance."""
    X, y, X_test, _ = datasets.mnist(n_train=20, n_test=40)
    width, time, replicas = (256, 60.0, 2) if quick else (4096, 110.0, 2)
    net = _mlp(1, "tanh")
    exact = solve(NNGP(net, beta=50.0), X, y)
    cases = {"mean-field, richness 0.05": ("mean-field", 0.05), "NTK parameterisation": ("ntk", 1.0)}
    for setting, (parameterization, richness) in cases.items():
        run = finite.langevin(
            net,
            X,
            y,
            richness=richness,
            beta=50.0,
            width=width,
            time=time,
            burn_in=10.0,
            replicas=replicas,
            parameterization=parameterization,
            X_test=X_test,
            tolerance=0.2,
        )
        theory = solve(NNGPK(net, beta=50.0), X, y).predict(X_test)
        z = (run.test_predictions - theory) / run.test_errors
        yield Row(
            "lazy",
            f"{setting}, N={width}: mean square of the predictors' difference over its error, 40 points",
            float(np.mean(z**2)),
            float(np.std(z**2) / math.sqrt(len(z))),
            1.0,
            ok=bool(np.mean(z**2) < 3),
        )
        if parameterization == "ntk":
            ratio = np.asarray(run.test_spread) ** 2 / exact.variance(X_test)
            yield Row(
                "lazy",
                f"{setting}, N={width}: variance of the outputs over NNGP's, mean of 40 points",
                float(np.mean(ratio)),
                float(np.std(ratio) / math.sqrt(len(ratio))),
                1.0,
                doubt=0.02,
                ok=bool(abs(np.mean(ratio) - 1) < 0.05 if not quick else abs(np.mean(ratio) - 1) < 0.2),
            )


def single_point(quick: bool) -> Iterator[Row]:
    r"""One ReLU point under gradient flow with decay: $\langle h^2\rangle=\gamma_0-\lambda$, and death below."""
    width = 1024 if quick else 8192
    for richness, decay in ((2.0, 0.5), (1.0, 0.3), (1.0, 0.9), (0.5, 1.0), (0.9, 1.0)):
        run = finite.gradient_flow(
            _mlp(1, "relu"),
            np.ones((1, 1)),
            np.ones(1),
            richness=richness,
            decay=decay,
            width=width,
            time=200.0,
            tolerance=1e-5,
        )
        values, weights = run.density(1, 0)
        measured = float(np.sum(weights * values**2))
        expected = max(richness - decay, 0.0)
        yield Row(
            "one ReLU point, decay",
            f"richness {richness:g}, decay {decay:g}: <h²>, to 0.001",
            measured,
            0.0,
            expected,
            ok=abs(measured - expected) < 1e-3,
        )


def references(quick: bool) -> Iterator[Row]:
    """Networks that other programs sampled or trained: kernels, layer by layer."""
    if not REFERENCE.exists():
        return
    X, y, X_test, _ = datasets.mnist(n_train=50, n_test=600)
    saved = np.load(REFERENCE)
    cases = {
        "mnist50_L1_relu_g1.0": (_mlp(1, "relu"), 1.0, 4096),
        "mnist50_L1_tanh_g0.3": (_mlp(1, "tanh"), 0.3, 4096),
        "mnist50_L2_tanh_g0.5": (_mlp(2, "tanh"), 0.5, 4096),
    }
    for name, (net, richness, width) in cases.items():
        width = 256 if quick else width
        run = finite.langevin(
            net,
            X,
            y,
            richness=richness,
            beta=50.0,
            width=width,
            time=40.0 if quick else 60.0,
            burn_in=10.0,
            X_test=X_test,
            throw=not quick,
        )
        yield from _kernel_rows(
            "Langevin", f"{name}, N={width}", run, saved[f"{name}/Phi"], saved[f"{name}/rel"], quick
        )
    name, width = "mnist50_flow_tanh_g1.0", 512 if quick else 8192
    flow = finite.gradient_flow(_mlp(1, "tanh"), X, y, richness=1.0, decay=1.0, width=width, time=60.0)
    yield from _kernel_rows(
        "gradient flow", f"{name}, N={width}", flow, saved[f"{name}/Phi"], saved[f"{name}/rel"], quick
    )


def _kernel_rows(
    check: str, setting: str, run: finite.Run, kernels: np.ndarray, doubts: np.ndarray, quick: bool
) -> Iterator[Row]:
    for layer, (theirs, doubt) in enumerate(zip(kernels.astype(np.float64), doubts, strict=True)):
        ours, size = run.kernels[layer].astype(np.float64), float(np.linalg.norm(theirs))
        off = float(np.linalg.norm(ours - theirs)) / size
        error = float(np.linalg.norm(run.kernel_errors[layer])) / size
        aligned = alignment(ours, theirs)
        yield Row(
            check,
            f"{setting}: alignment of layer {layer + 1}",
            aligned,
            0.0,
            1.0,
            ok=aligned > (0.99 if quick else 0.999),
        )
        row = Row(check, f"{setting}: relative difference of layer {layer + 1}", off, error, 0.0, doubt=float(doubt))
        yield Row(**{**row.__dict__, "ok": row.sigmas < 2})


def mixture_loss(limit: NNGP, X: Any, y: Any, X_test: Any, y_test: Any, width: int) -> float:
    r"""Test loss, bias² + variance, of one hidden linear layer of this width in NTK parameterisation, exactly: given the scale $Q$ of the kernel, whose prior
    is Gamma(N/2, N/2), the outputs are a Gaussian process; one integral over $Q$ is left."""
    infinite = solve(limit, X, y)
    values, vectors = np.linalg.eigh(infinite.kernel)
    cross, turned, noise = infinite.cross_kernel(X_test) @ vectors, vectors.T @ y, 1 / limit.beta
    own = infinite.variance(X_test) + np.sum(cross**2 / (values + noise), axis=1)
    scales = np.exp(np.linspace(-4, 4, 2001))
    logs, losses = [], []
    for q in scales:
        spectrum = noise + q * np.maximum(values, 0)
        logs.append(0.5 * (width * (np.log(q) - q) - np.sum(np.log(spectrum) + turned**2 / spectrum)))
        mean, variance = q * cross @ (turned / spectrum), q * own - q**2 * np.sum(cross**2 / spectrum, axis=1)
        losses.append(np.mean((mean - y_test) ** 2 + variance))
    mass = np.exp(np.asarray(logs) - max(logs))
    return float(np.sum(mass * losses) / np.sum(mass))


def renormalized(quick: bool) -> Iterator[Row]:
    """NTK parameterisation at finite P/N: test loss, bias² + variance. A linear network against its exact mixture over scales; erf networks, for information, against the scale-renormalised kernel."""
    X, y, X_test, y_test = datasets.mnist(n_train=40 if quick else 100, n_test=100)
    widths = (16, 64) if quick else (16, 64, 256, 1024)
    for activation, depth in (("linear", 1), ("erf", 1), ("erf", 2)):
        net = _mlp(depth, activation)
        limit = NNGP(net, beta=20.0)
        plain = solve(limit, X, y)
        infinite = float(np.mean((plain.predict(X_test) - y_test) ** 2 + plain.variance(X_test)))
        for width in widths:
            theory = renormalize(limit, X, y, width=width)
            solution = solve(theory.limit, X, y)
            saddle = float(np.mean((solution.predict(X_test) - y_test) ** 2 + solution.variance(X_test)))
            exact = activation == "linear"
            expected = mixture_loss(limit, X, y, X_test, y_test, width) if exact else saddle
            run = finite.langevin(
                net,
                X,
                y,
                parameterization="ntk",
                richness=1.0,
                beta=20.0,
                width=width,
                time=100.0 if quick else 120.0,
                burn_in=20.0,
                replicas=4 if quick else 16,
                X_test=X_test,
                y_test=y_test,
                tolerance=0.2,
                throw=False,
                snapshots=1,
            )
            stream = Stream((1,))
            for loss in np.asarray(run.test_losses):
                stream.add(np.asarray([2 * loss]))
            scales = ", ".join(f"{q:.3f}" for q in theory.scales)
            row = Row(
                "NTK parameterisation, P/N finite",
                f"{activation}, L={depth}, N={width}: test loss; NNGP {infinite:.4f}, renormalised {saddle:.4f}, Q {scales}",
                float(stream.mean[0]),
                float(stream.error[0]),
                expected,
                series={"width": width, "depth": depth, "activation": activation, "nngp": infinite, "saddle": saddle},
            )
            yield Row(**{**row.__dict__, "ok": row.sigmas < 3.5 if exact else None})


CHECKS: dict[str, Callable[[bool], Iterator[Row]]] = {
    "linear": linear,
    "one-neuron": one_neuron,
    "discretisation": discretisation,
    "lazy": lazy,
    "single-point": single_point,
    "references": references,
    "renormalized": renormalized,
}
