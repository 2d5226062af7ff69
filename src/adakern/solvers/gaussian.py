r"""The variational Gaussian approximation, by a trust-region Newton method on the covariances of every layer.

In white coordinates the unknowns are $C_\ell=WW^\top$ and

$$F=\tfrac12\sum_\ell\left[\mathrm{Tr}\,C_\ell-r_\ell-\ln\det C_\ell\right]+E(\Phi^L),\qquad \Phi^\ell=M(A\,C_\ell A^\top),\quad AA^\top=\Phi^{\ell-1}/\lambda_{\ell-1}.$$

A step is a symmetric matrix per layer, $C\to W(I+S+\frac12S^2)W^\top$: positive definite for every $S$, and a unit of $S$ is a unit of the Gaussian law's own (Fisher)
metric wherever $C$ is, $\partial F/\partial S=\frac12[W^\top(I+2\,\partial E/\partial C)W-I]$. There the relative entropy is perfectly conditioned; what is stiff is $E$, through the readout at large
$\beta$. The fixed point $C\leftarrow(I+2\,\partial E/\partial C)^{-1}$ needs as many damped steps as $E$ is stiff, conjugate gradients on Newton's equations its root, and both only as many
as there are stiff directions.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array
from threadpoolctl import threadpool_limits

from adakern import inputs, linalg, losses, memory
from adakern.activations import Activation, MomentRule
from adakern.activations.numeric import PolarRule
from adakern.limits import readout
from adakern.limits.base import Answer
from adakern.limits.vga import VGA, choose, moments
from adakern.losses import Loss
from adakern.precision import scope
from adakern.progress import Progress

TOLERANCE = 1e-8
STEPS = 200

_HEADROOM = 4.0  # by which variances may grow before the moment rules are chosen again
_CONJUGATE = 500  # most conjugate-gradient iterations of a step
_LARGEST = 8.0  # trust radius
_ROUNDING = 1e-13  # of the terms of F: decreases below are not measured
_STALLED = 4  # steps at the level of rounding that did not help, after which no other will
_THREADED = 512  # points from which a factorisation is worth several threads

Factors = tuple[Array, ...]


class Form(NamedTuple):
    """What a compiled step is specialised to."""

    activation: Activation
    rules: tuple[MomentRule, ...]
    loss: Loss


class Data(NamedTuple):
    """The problem's arrays: root of Φ⁰/λ_0 over distinct points, which of them each point is, targets, γ0, β, λ_0..λ_L."""

    root: Array
    member: Array
    y: Array
    richness: Array
    beta: Array
    decays: Array


class State(NamedTuple):
    """Every layer's covariance and kernel, and the readout."""

    covariances: tuple[Array, ...]
    kernels: tuple[Array, ...]


class Move(NamedTuple):
    """A proposed step: factors after it, the decrease of F that the quadratic model promises, how stationary it was before, |S|, and gradients' products."""

    factors: Factors
    predicted: Array
    stationarity: Array
    size: Array
    inner: Array


def solve(
    limit: VGA,
    X: np.ndarray,
    y: np.ndarray,
    *,
    precision: str,
    tolerance: float = TOLERANCE,
    steps: int = STEPS,
    progress: Progress | None = None,
) -> Answer:
    r"""Solve a VGA limit from the prior, $C_\ell=I$; `y` has shape (points, outputs). Computes in float64 whatever `precision` is, and casts what comes out.

    `draws` of the answer are not samples: the rows of layer $\ell$'s are $r$ points with $\sum\varepsilon\varepsilon^\top=C_\ell$, in float64.

    Args:
        tolerance: largest $|W^\top(I+2\,\partial E/\partial C)W-I|_F$ of any layer at which the answer counts as stationary: relative, in the law's own metric.
        steps: most Newton steps.
    """
    points = inputs.distinct(X)
    size, depth = len(points.first), limit.network.depth
    memory.require(8 * (100 * depth * size**2 + (depth + 6) * len(X) ** 2), f"Gaussian laws over {len(X)} points")
    threads = 1 if len(X) < _THREADED else None
    with scope("float64"), threadpool_limits(threads, user_api="blas"):
        root, report = inputs.root(limit.network, X[points.first], limit.decays[0])
        numbers = (jnp.asarray(limit.richness), jnp.asarray(limit.beta), jnp.asarray(limit.decays))
        data = Data(root, jnp.asarray(points.member), jnp.asarray(y, float), *numbers)
        search = _Search(limit, data, tolerance, steps)
        with (progress or Progress()).task("VGA", total=steps) as advance:
            while not search.finished:
                advance(search.step())
        return _answer(limit, points, data, search, precision, report)


class _Search:
    """The outer iteration: moment rules for the variances at hand, the trust radius, and when to stop."""

    def __init__(self, limit: VGA, data: Data, tolerance: float, steps: int) -> None:
        self._data, self._tolerance, self._most = data, tolerance, steps
        self._activation, self._loss = limit.network.activation, losses.get(limit.loss)
        ranks = [data.root.shape[1]] + [data.root.shape[0]] * (limit.network.depth - 1)
        self.factors: Factors = tuple(jnp.eye(rank) for rank in ranks)
        self.steps = self.inner = self.idle = 0
        self.radius, self.stationarity, self.best = 1.0, np.inf, np.inf
        self.converged = self.finished = False
        self.reach = [0.0] * len(ranks)
        self.form = Form(self._activation, (), self._loss)
        self.rerule()

    def rerule(self) -> None:
        """Rules that hold for the variances at hand and beyond; layer by layer, as each needs the kernel below."""
        rules: list[MomentRule] = []
        for layer, reach in enumerate(self.reach):
            here = tuple(rules)
            variance = np.asarray(_variances(self.form._replace(rules=here), self._data, self.factors[: layer + 1]))
            largest = float(variance.max())
            if largest > reach or not self.form.rules:
                self.reach[layer] = _HEADROOM * largest
                rule = choose(self._activation, np.append(variance, self.reach[layer]))
                if isinstance(rule, PolarRule):  # dear: only as fine as it has to be
                    self.reach[layer] = 1.1 * largest
                    rule = choose(self._activation, np.append(variance, self.reach[layer]))
                rules.append(rule)
            else:
                rules.append(self.form.rules[layer])
        self.form = self.form._replace(rules=tuple(rules))

    def step(self) -> str:
        self.finished = not all(rule.resolved for rule in self.form.rules)
        if self.finished:
            return ""
        move = _move(self.form, self._data, self.factors, jnp.asarray(self.radius))
        self.stationarity, predicted = float(np.max(move.stationarity)), float(move.predicted)
        self.converged = self.stationarity <= self._tolerance
        self.finished = self.converged or self.steps >= self._most or not np.isfinite(self.stationarity)
        if self.finished:
            return ""
        before, after = (float(_value(self.form, self._data, at)) for at in (self.factors, move.factors))
        self.steps, self.inner = self.steps + 1, self.inner + int(move.inner)
        noise = _ROUNDING * (1 + abs(before) + sum(float(jnp.sum(factor**2)) for factor in self.factors))
        measured = predicted > 10 * noise
        accepted = np.isfinite(after) and before - after >= (1e-4 * predicted if measured else -10 * noise)
        good = accepted and (not measured or before - after > 0.5 * predicted)
        if not measured:  # go on by the gradient alone, as long as it falls
            self.idle = 0 if self.stationarity < 0.5 * self.best else self.idle + 1
            self.finished = self.idle >= _STALLED
        self.best = min(self.best, self.stationarity)
        if not accepted:
            self.radius = 0.25 * min(self.radius, float(move.size))
            self.finished = self.finished or self.radius < 1e-12
        else:
            self.factors = move.factors
            self.rerule()
            if good and float(move.size) > 0.9 * self.radius:
                self.radius = min(2.5 * self.radius, _LARGEST)
            elif not good:
                self.radius = 0.5 * self.radius
        return f"F = {before:.6g}, stationary to {self.stationarity:.1g}"

    @property
    def status(self) -> str:
        if self.converged:
            return (
                f"stationary to {self.stationarity:.2g} after {self.steps} Newton steps (asked: {self._tolerance:.2g})"
            )
        if not np.isfinite(self.stationarity):
            return "the free energy is not finite; rescale X to order one, or use a smaller beta or richness"
        if self.steps < self._most:
            return f"rounding keeps the covariances from being stationary beyond {self.stationarity:.2g} (asked: {self._tolerance:.2g}); give a larger tolerance or a smaller beta"
        return f"stationary to {self.stationarity:.2g} only after {self.steps} Newton steps (asked: {self._tolerance:.2g}); give more steps or a larger tolerance"


@functools.partial(jax.jit, static_argnums=0)
def _variances(form: Form, data: Data, factors: Factors) -> Array:
    """Of the fields of the last of these layers; one rule fewer than factors is needed."""
    return jnp.maximum(jnp.diagonal(_climb(form, data, factors, len(factors) - 1).covariances[-1]), 0.0)


@functools.partial(jax.jit, static_argnums=0)
def _state(form: Form, data: Data, factors: Factors) -> State:
    return _climb(form, data, factors, len(factors))


def _dot(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision="highest")


def _climb(
    form: Form,
    data: Data,
    factors: Factors,
    features: int,
    turns: Factors | None = None,
    sources: Factors | None = None,
) -> State:
    r"""$\Sigma_\ell$ and, for the first `features` layers, $\Phi^\ell$. `turns`: $I+S+\frac12S^2$ of a step; `sources`: added to the kernels, to differentiate by."""
    covariances: list[Array] = []
    kernels: list[Array] = []
    for layer, factor in enumerate(factors):
        below = data.root if layer == 0 else linalg.cholesky_root(kernels[-1] / data.decays[layer])
        white = _dot(below, factor)
        covariances.append(_dot(white if turns is None else _dot(white, turns[layer]), white.T))
        if layer < features:
            kernel = moments(form.activation, form.rules[layer], covariances[-1])
            kernels.append(kernel if sources is None else kernel + sources[layer])
    return State(tuple(covariances), tuple(kernels))


def _energy(form: Form, data: Data, kernel: Array) -> Array:
    whole = kernel[data.member][:, data.member]
    return readout.energy(form.loss, whole, data.y, data.richness, data.beta, data.decays[-1])


def _free_energy(form: Form, data: Data, factors: Factors) -> Array:
    """F at C = WWᵀ."""
    total = _energy(form, data, _climb(form, data, factors, len(factors)).kernels[-1])
    for factor in factors:
        total += 0.5 * (jnp.sum(factor**2) - len(factor)) - jnp.linalg.slogdet(factor)[1]
    return total


def _turn(step: Array) -> Array:
    """I + S + S²/2."""
    symmetric = (step + step.T) / 2
    return jnp.eye(len(step), dtype=step.dtype) + symmetric + 0.5 * _dot(symmetric, symmetric)


def _change(form: Form, data: Data, factors: Factors, steps: Factors) -> Array:
    r"""F after a step S of every layer, to second order and up to a constant: $\ln\det(I+S+\frac12S^2)=\mathrm{Tr}\,S+O(S^3)$."""
    turns = tuple(map(_turn, steps))
    total = _energy(form, data, _climb(form, data, factors, len(factors), turns).kernels[-1])
    for factor, turn, step in zip(factors, turns, steps, strict=True):
        total += 0.5 * (jnp.sum(_dot(factor.T, factor) * turn) - jnp.trace(step))
    return total


@functools.partial(jax.jit, static_argnums=0)
def _move(form: Form, data: Data, factors: Factors, radius: Array) -> Move:
    zero, unravel = ravel_pytree(tuple(jnp.zeros_like(factor) for factor in factors))
    gradient, curvature = jax.linearize(jax.grad(lambda flat: _change(form, data, factors, unravel(flat))), zero)
    step, predicted, inner = _steihaug(curvature, gradient, radius)
    new = tuple(_dot(w, jnp.linalg.cholesky(_turn(s))) for w, s in zip(factors, unravel(step), strict=True))
    stationarity = jnp.stack([2 * jnp.linalg.norm(part) for part in unravel(gradient)])
    return Move(new, predicted, stationarity, jnp.linalg.norm(step), inner)


_value = jax.jit(_free_energy, static_argnums=0)


class _Conjugate(NamedTuple):
    step: Array
    product: Array  # curvature times step
    residual: Array
    direction: Array
    square: Array
    taken: Array
    done: Array


def _steihaug(curvature: Any, gradient: Array, radius: Array) -> tuple[Array, Array, Array]:
    """Conjugate gradients for Newton's step, to the trust region's edge where that comes first or the curvature is negative (Steihaug 1983)."""
    size = jnp.linalg.norm(gradient)
    goal = jnp.minimum(0.1, size) * size  # quadratic convergence near the end

    def body(at: _Conjugate) -> _Conjugate:
        product = curvature(at.direction)
        bend = jnp.sum(at.direction * product)
        length = at.square / jnp.where(bend > 0, bend, 1.0)
        outside = (bend <= 0) | (jnp.linalg.norm(at.step + length * at.direction) >= radius)
        a, b = jnp.sum(at.direction**2), jnp.sum(at.step * at.direction)
        c = jnp.maximum(radius**2 - jnp.sum(at.step**2), 0.0)
        edge = c / (b + jnp.sqrt(b**2 + a * c) + jnp.finfo(a.dtype).tiny)
        length = jnp.where(outside, edge, length)
        residual = at.residual - length * product
        square = jnp.sum(residual**2)
        return _Conjugate(
            at.step + length * at.direction,
            at.product + length * product,
            residual,
            residual + square / at.square * at.direction,
            square,
            at.taken + 1,
            outside | (jnp.sqrt(square) <= goal),
        )

    start = _Conjugate(
        jnp.zeros_like(gradient),
        jnp.zeros_like(gradient),
        -gradient,
        -gradient,
        size**2,
        jnp.zeros((), int),
        size == 0,
    )
    end = jax.lax.while_loop(lambda at: ~at.done & (at.taken < _CONJUGATE), body, start)
    return end.step, -jnp.sum(end.step * (gradient + 0.5 * end.product)), end.taken


@functools.partial(jax.jit, static_argnums=0)
def _duals(form: Form, data: Data, factors: Factors, sources: Factors) -> Factors:
    r"""$\hat\Phi^\ell=2\,dE/d\Phi^\ell$ through the layers above, at fixed laws of the white coordinates; symmetric."""

    def energy(added: Factors) -> Array:
        return _energy(form, data, _climb(form, data, factors, len(factors), sources=added).kernels[-1])

    return tuple(part + part.T for part in jax.grad(energy)(sources))


def _answer(
    limit: VGA, points: inputs.Distinct, data: Data, search: _Search, precision: str, report: dict[str, Any]
) -> Answer:
    form, factors = search.form, search.factors
    state = _state(form, data, factors)
    kernels = tuple(points.expand(np.asarray(kernel)) for kernel in state.kernels)
    inner = jax.jit(readout.solve, static_argnums=0)(
        form.loss, jnp.asarray(kernels[-1]), data.y, data.beta, data.decays[-1]
    )
    v = np.asarray(inner.v)
    duals = _duals(form, data, factors, tuple(jnp.zeros_like(kernel) for kernel in state.kernels))
    spread = [points.spread(np.asarray(dual)) for dual in duals[:-1]]
    top = -(limit.richness**2) / limit.decays[-1] * v @ v.T
    coefficients = v / limit.decays[-1]
    outputs = jnp.asarray(kernels[-1] @ coefficients)
    entropies = [
        0.5 * (float(np.sum(w**2)) - len(w)) - float(np.linalg.slogdet(w)[1]) for w in map(np.asarray, factors)
    ]
    blurred = [layer for layer, rule in enumerate(form.rules, start=1) if not rule.resolved]
    status = search.status
    if blurred:
        status = (
            f"quadrature cannot resolve the activation {limit.network.activation.name!r} at the size of layer {blurred[0]}'s fields; "
            "rescale X to order one, use a smaller richness, or a smooth activation"
        )
    stats: dict[str, Any] = {
        "solver": "gaussian",
        "steps": search.steps,
        "inner_steps": search.inner,
        "stationarity": search.stationarity,
        "free_energy": float(_value(form, data, factors)),
        "entropies": entropies,
        "newton": {"steps": int(inner.steps), "residual": float(inner.residual)},
        "root": report,
    }
    cast = tuple(kernel.astype(precision) for kernel in kernels)
    return Answer(
        kernels=cast,
        kernel=cast[-1],
        coefficients=coefficients.astype(precision),
        fitted=np.asarray(form.loss.link(outputs)).astype(precision),
        errors=(v / limit.beta).astype(precision),
        kernel_errors=tuple(np.zeros_like(kernel) for kernel in cast),
        duals=tuple(dual.astype(precision) for dual in (*spread, top)),
        draws=tuple(np.asarray(factor).T.copy() for factor in factors),
        converged=search.converged and not blurred,
        status=status,
        stats=stats,
    )
