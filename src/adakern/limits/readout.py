r"""The readout of the Bayesian limit at a given kernel, for every loss: the inner problem of `ANBK`.

$$E(\Phi)=\min_s\ \beta\gamma_0^2\sum_\mu\ell(y_\mu,s_\mu)+\tfrac12\gamma_0^2\lambda\,s^\top\Phi^{-1}s,\qquad s=\Phi v/\lambda,\quad v=\beta\Delta(s),\qquad
\frac{dE}{d\Phi}=-\frac{\gamma_0^2}{2\lambda}vv^\top .$$

The unknown is $v$, never $\Phi^{-1}s$, so that singular kernels are served. With $K=\Phi/\lambda$ and $W=\beta\,\partial^2\ell/\partial s^2$, Newton's method
and the derivatives of $v$ need the same operator, $(K+W^{-1})^{-1}$: one Cholesky factor (squared), one for each output (logistic), or those and
one of their sum (softmax; Rasmussen and Williams 2006, algorithm 3.3).

Only the symmetric part of `kernel` counts.
"""

# Not optimistix: its Newton forms the PC×PC Jacobian or hides it behind an iterative solver, and has no line search on J.

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float

from adakern import linalg
from adakern.losses import Loss, Softmax, Squared

Scalar = float | Float[Array, ""]

STEPS = 200  # Newton steps; never met in the tests
TOLERANCE = {"float64": 1e-12, "float32": 3e-6}  # relative residual at which Newton's method stops
SMALLEST = 2.0**-40  # the line search gives up below this fraction of the Newton step


class Readout(NamedTuple):
    r"""$v=\beta\Delta(\Phi v/\lambda)$, the Newton steps it took (0: closed form) and its relative residual."""

    v: Array
    steps: Array
    residual: Array


def solve(
    loss: Loss,
    kernel: Float[Array, "p p"],
    y: Float[Array, "p c"],
    beta: Scalar,
    decay: Scalar,
    start: Float[Array, "p c"] | None = None,
) -> Readout:
    r"""$v$ with a report; `start` is an earlier $v$ to begin from. Not for differentiation: that is `readout`.

    The residual is $|\beta\Delta(\Phi v/\lambda)-v|$ over $|v|$; rounding leaves it at about $10^{-16}\beta|\Phi|/\lambda$ at worst, which the squared loss and noisy labels reach.
    """
    K, beta, y, start = _prepare(kernel, y, beta, decay, start)
    return _solve(loss, K, y, beta, start)


def readout(
    loss: Loss,
    kernel: Float[Array, "p p"],
    y: Float[Array, "p c"],
    beta: Scalar,
    decay: Scalar,
    start: Float[Array, "p c"] | None = None,
) -> Float[Array, "p c"]:
    r"""$v=\beta\Delta(\Phi v/\lambda)$, differentiated implicitly: $dv=-(K+W^{-1})^{-1}dK\,v$, one structured solve. `start` has no derivative."""
    K, beta, y, start = _prepare(kernel, y, beta, decay, start)
    return _readout(loss, K, y, beta, start)


def energy(
    loss: Loss,
    kernel: Float[Array, "p p"],
    y: Float[Array, "p c"],
    richness: Scalar,
    beta: Scalar,
    decay: Scalar,
    start: Float[Array, "p c"] | None = None,
) -> Float[Array, ""]:
    r"""$E(\Phi)$, what the data add to the free energy; its gradient in `kernel` is $-\frac{\gamma_0^2}{2\lambda}vv^\top$."""
    return energy_and_readout(loss, kernel, y, richness, beta, decay, start)[0]


def energy_and_readout(
    loss: Loss,
    kernel: Float[Array, "p p"],
    y: Float[Array, "p c"],
    richness: Scalar,
    beta: Scalar,
    decay: Scalar,
    start: Float[Array, "p c"] | None = None,
) -> tuple[Float[Array, ""], Float[Array, "p c"]]:
    r"""$E(\Phi)$ and $v$, from one solve; for `jax.value_and_grad(..., has_aux=True)`."""
    K, beta, y, start = _prepare(kernel, y, beta, decay, start)
    v = _readout(loss, K, y, beta, start)
    return _envelope(loss, K, y, jnp.asarray(richness, K.dtype), beta, v), v


def hessian(loss: Loss, y: Float[Array, "p c"], s: Float[Array, "p c"]) -> Array:
    r"""$\partial^2\ell/\partial s^2$: (points, outputs) where outputs do not interact, (points, outputs, outputs) for softmax."""
    return loss.curvature(y, s)


def _prepare(
    kernel: Array, y: Array, beta: Scalar, decay: Scalar, start: Array | None
) -> tuple[Array, Array, Array, Array]:
    dtype = kernel.dtype
    K = (kernel + kernel.T) / (2 * jnp.asarray(decay, dtype))
    y = jnp.asarray(y, dtype)
    start = jnp.zeros_like(y) if start is None else jnp.asarray(start, dtype)
    return K, jnp.asarray(beta, dtype), y, start


# ---------------------------------------------------------------------------------------------------------------------
# Losses, without the cancellations of 1 - p and ln Σ exp - s at confident outputs: v is β times those small numbers


def _probabilities(s: Array) -> tuple[Array, Array, Array]:
    """p = softmax(s), 1 - p and -ln p, each to relative precision."""
    top = jax.nn.one_hot(jnp.argmax(s, axis=-1), s.shape[-1], dtype=s.dtype)
    shifted = s - jnp.max(s, axis=-1, keepdims=True)
    p = jax.nn.softmax(s, axis=-1)
    others = jnp.sum((1 - top) * p, axis=-1, keepdims=True)
    rest = jnp.sum((1 - top) * jnp.exp(shifted), axis=-1, keepdims=True)
    return p, jnp.where(top > 0, others, 1 - p), jnp.log1p(rest) - shifted


def _error(loss: Loss, y: Array, s: Array) -> Array:
    if isinstance(loss, Softmax):
        p, q, _ = _probabilities(s)
        return y * q - (1 - y) * p
    return loss.error(y, s)


def _value(loss: Loss, y: Array, s: Array) -> Array:
    if isinstance(loss, Softmax):
        return jnp.sum(y * _probabilities(s)[2])
    return jnp.sum(loss.value(y, s))


# ---------------------------------------------------------------------------------------------------------------------
# The structured operator


def _dot(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision="highest")


def _weights(loss: Loss, y: Array, s: Array, beta: Array) -> Array:
    """W (points, outputs) where it is diagonal; for softmax its diagonal part βp, of W = βp - βppᵀ."""
    if isinstance(loss, Softmax):
        return beta * jax.nn.softmax(s, axis=-1)
    return beta * loss.curvature(y, s)


def _cholesky(matrix: Array) -> Array:
    """A factor; where β|K| leaves no digits and it fails, of the matrix plus its rounding (a shorter Newton step)."""
    size, eps = matrix.shape[-1], jnp.finfo(matrix.dtype).eps
    plain = jnp.linalg.cholesky(matrix)

    def ridged() -> Array:
        return jnp.linalg.cholesky(
            matrix + size * eps * jnp.max(jnp.diagonal(matrix)) * jnp.eye(size, dtype=matrix.dtype)
        )

    return jax.lax.cond(jnp.isfinite(plain[-1, -1]), lambda: plain, ridged)


def _operator(loss: Loss, K: Array, weights: Array, beta: Array) -> Callable[[Array], Array]:
    r"""$t\mapsto(K+W^{-1})^{-1}t=(I+WK)^{-1}Wt$, a symmetric operator on (points, outputs) that exists also where $W$ or $K$ is singular."""
    eye = jnp.eye(K.shape[0], dtype=K.dtype)
    root = jnp.sqrt(weights.T + jnp.finfo(K.dtype).tiny)

    def factorised(row: Array) -> Array:
        return _cholesky(row[:, None] * K * row[None, :] + eye)

    if isinstance(loss, Squared):  # the same matrix for every output
        same, lower = root[:1].T, factorised(root[0])
        return lambda t: same * cho_solve((lower, True), same * t)
    factor = linalg.each(factorised, root)
    if isinstance(loss, Softmax):
        return _coupled(factor, root)

    def apply(t: Array) -> Array:
        return root.T * linalg.each(lambda low, b: cho_solve((low, True), b), factor, (root.T * t).T).T

    return apply


def _coupled(factor: Array, root: Array) -> Callable[[Array], Array]:
    r"""Softmax: $E-E1(1^\top E1)^{-1}1^\top E$, with $E_c=(K+D_c^{-1})^{-1}$, $D=\beta p$, and 1 the sum over outputs."""
    white = linalg.each(lambda low, row: solve_triangular(low, jnp.diag(row), lower=True), factor, root)
    blocks = jnp.einsum("cij,cik->cjk", white, white, precision="highest")
    total = jnp.sum(blocks, axis=0)
    lower = _cholesky(total)

    def apply(t: Array) -> Array:
        e = jnp.einsum("cij,jc->ic", blocks, t, precision="highest")
        common = cho_solve((lower, True), jnp.sum(e, axis=1))
        return e - jnp.einsum("cij,j->ic", blocks, common, precision="highest")

    return apply


def _split(loss: Loss, K: Array, weights: Array, r: Array) -> tuple[Array, Array]:
    r"""$t,r_2$ with $r=Wt+r_2$, so that $(I+WK)^{-1}r=(K+W^{-1})^{-1}(t-Kr_2)+r_2$ without cancellation.

    $t$ alone would divide by vanishing curvatures, $r_2$ alone subtracts nearly equal numbers where $WK\gg1$.
    """
    strong = weights * jnp.diagonal(K)[:, None] > 1
    first = jnp.where(strong, r, 0.0)
    if isinstance(loss, Softmax):  # W's range: rows that sum to 0, which the likeliest class makes up
        top = jax.nn.one_hot(jnp.argmax(weights, axis=-1), r.shape[-1], dtype=r.dtype)
        first = first - top * jnp.sum(first, axis=-1, keepdims=True)
    return jnp.where(strong, first / jnp.where(strong, weights, 1.0), 0.0), r - first


# ---------------------------------------------------------------------------------------------------------------------
# The solver


def _relative(r: Array, v: Array, y: Array, beta: Array) -> Array:
    floor = jnp.finfo(v.dtype).eps * beta * jnp.linalg.norm(y) + jnp.finfo(v.dtype).tiny
    return jnp.linalg.norm(r) / jnp.maximum(jnp.linalg.norm(v), floor)


def _solve(loss: Loss, K: Array, y: Array, beta: Array, start: Array) -> Readout:
    if isinstance(loss, Squared):
        v, steps = _operator(loss, K, jnp.broadcast_to(beta, y.shape), beta)(y), jnp.zeros((), int)
    elif isinstance(loss, Softmax):
        v, steps = _newton(loss, K, y, beta, start - jnp.mean(start, axis=-1, keepdims=True))
    else:  # one problem for each output

        def column(target: Array, begin: Array) -> tuple[Array, Array]:
            v, steps = _newton(loss, K, target[:, None], beta, begin[:, None])
            return v[:, 0], steps

        rows, each = linalg.each(column, y.T, start.T)
        v, steps = rows.T, jnp.max(each)
    residual = _relative(beta * _error(loss, y, _dot(K, v)) - v, v, y, beta)
    return Readout(v, steps, residual)


class _State(NamedTuple):
    v: Array
    s: Array  # K v
    r: Array  # β Δ(s) - v
    residual: Array
    steps: Array
    stalled: Array


def _newton(loss: Loss, K: Array, y: Array, beta: Array, start: Array) -> tuple[Array, Array]:
    r"""Minimises the convex $J(v)=\beta\sum\ell(y,Kv)+\frac12v^\top Kv$ by Newton steps, halved until $J$ goes down."""
    eps = jnp.finfo(K.dtype).eps
    tolerance = TOLERANCE[str(K.dtype)]

    def objective(v: Array, s: Array) -> Array:
        return beta * _value(loss, y, s) + 0.5 * jnp.sum(v * s)

    def residual(v: Array, s: Array) -> Array:
        return beta * _error(loss, y, s) - v

    def state(v: Array, steps: Array) -> _State:
        s = _dot(K, v)
        r = residual(v, s)
        return _State(v, s, r, _relative(r, v, y, beta), steps, jnp.zeros((), bool))

    def step(at: _State) -> _State:
        weights = _weights(loss, y, at.s, beta)
        t, rest = _split(loss, K, weights, at.r)
        d = _operator(loss, K, weights, beta)(t - _dot(K, rest)) + rest
        kd = _dot(K, d)
        slope = -jnp.sum(at.r * kd)
        here = objective(at.v, at.s)
        rounding = 8 * eps * (jnp.abs(here) + jnp.sum(jnp.abs(at.v * at.s)))

        def refused(fraction: Array) -> Array:
            v, s = at.v + fraction * d, at.s + fraction * kd
            downhill = -jnp.sum(residual(v, s) * kd) <= 0  # J still falls along d, so by convexity it has fallen
            lower = objective(v, s) <= here + 1e-4 * fraction * slope + rounding
            return ~(downhill | lower) & (fraction > SMALLEST)

        fraction = jax.lax.while_loop(refused, lambda fraction: fraction / 2, jnp.ones((), K.dtype))
        new = state(at.v + fraction * d, at.steps + 1)
        # At the level of rounding: J cannot fall measurably and the residual no longer shrinks
        stalled = (-slope <= rounding) & ~(new.residual < 0.25 * at.residual) | (fraction <= SMALLEST)
        worse = stalled & ~(new.residual < at.residual)
        new = jax.tree.map(lambda a, b: jnp.where(worse, a, b), at._replace(steps=new.steps), new)
        return new._replace(stalled=stalled)

    def going(at: _State) -> Array:
        return (at.residual > tolerance) & (at.steps < STEPS) & ~at.stalled

    zero = jnp.zeros_like(start)
    better = objective(start, _dot(K, start)) < objective(zero, zero)
    end = jax.lax.while_loop(going, step, state(jnp.where(better, start, zero), jnp.zeros((), int)))
    return end.v, end.steps


# ---------------------------------------------------------------------------------------------------------------------
# Derivatives


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _readout(loss: Loss, K: Array, y: Array, beta: Array, start: Array) -> Array:
    return _solve(loss, K, y, beta, start).v


@_readout.defjvp
def _readout_jvp(
    loss: Loss, primals: tuple[Array, Array, Array, Array], tangents: tuple[Array, Array, Array, Array]
) -> tuple[Array, Array]:
    r"""$(I+WK)\,dv=d\beta\,\Delta+\beta\,\partial_y\Delta\,dy-W\,dK\,v$."""
    K, y, beta, start = primals
    dK, dy, dbeta, _ = tangents
    v = _readout(loss, K, y, beta, start)
    s = _dot(K, v)
    weights = _weights(loss, y, s, beta)
    delta, ddelta = jax.jvp(lambda target: _error(loss, target, s), (y,), (dy,))
    t, rest = _split(loss, K, weights, dbeta * delta + beta * ddelta)
    return v, _operator(loss, K, weights, beta)(t - _dot(K, rest) - _dot(dK, v)) + rest


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _envelope(loss: Loss, K: Array, y: Array, richness: Array, beta: Array, v: Array) -> Array:
    return richness**2 * (beta * _value(loss, y, _dot(K, v)) + 0.5 * jnp.sum(v * _dot(K, v)))


@_envelope.defjvp
def _envelope_jvp(
    loss: Loss,
    primals: tuple[Array, Array, Array, Array, Array],
    tangents: tuple[Array, Array, Array, Array, Array],
) -> tuple[Array, Array]:
    """The minimum over s: only what is explicit counts, so that v's own tangent is left out."""
    K, y, richness, beta, v = primals
    dK, dy, drichness, dbeta, _ = tangents
    s = _dot(K, v)
    value, dvalue = jax.jvp(lambda target: _value(loss, target, s), (y,), (dy,))
    inner = beta * value + 0.5 * jnp.sum(v * s)
    dinner = dbeta * value + beta * dvalue - 0.5 * jnp.sum(v * _dot(dK, v))
    return richness**2 * inner, richness**2 * dinner + 2 * richness * drichness * inner
