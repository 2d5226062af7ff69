r"""How the lazy recursion answers to a change of the kernel below, in first order: $M(C)=E_{h\sim N(0,C)}\varphi\varphi^\top$ and its derivative."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from adakern import quadrature
from adakern.activations import Activation, Numeric
from adakern.activations.numeric import SeriesRule
from adakern.errors import ConvergenceError

RADIUS = 10.0  # where r⁵ exp(-r²/2) is below 1e-16
_NO_VARIANCE = 1e-6  # × the largest: stands for a variance of zero in a difference over it
BLURRED = (
    "quadrature cannot resolve the activation {!r} at the size of these fields; "
    "rescale X to order one, or use a smooth activation"
)


class Response(NamedTuple):
    r"""The derivative of $C\mapsto M(C)$: of $M_{\mu\nu}$ in $C_{\mu\nu}$ and in $C_{\mu\mu}$ ($\mu\ne\nu$), and of $M_{\mu\mu}$ in $C_{\mu\mu}$."""

    across: np.ndarray
    along: np.ndarray
    own: np.ndarray

    def push(self, change: np.ndarray) -> np.ndarray:
        """The change of M for a symmetric change of C; stacks of them too."""
        variance = np.diagonal(change, axis1=-2, axis2=-1)
        result = self.across * change + self.along * variance[..., :, None] + self.along.T * variance[..., None, :]
        index = np.arange(len(self.own))
        result[..., index, index] = self.own * variance
        return result

    def pull(self, dual: np.ndarray) -> np.ndarray:
        """The adjoint of `push`."""
        result = self.across * dual
        np.fill_diagonal(result, self.own * np.diagonal(dual) + 2 * np.sum(self.along * dual, axis=1))
        return result


def response(activation: Activation, field: np.ndarray, kernel: np.ndarray) -> Response:
    r"""$\partial M_{\mu\nu}/\partial C_{\mu\nu}=E[\varphi'(u)\varphi'(v)]$ (Price), $\partial M_{\mu\nu}/\partial C_{\mu\mu}=\left(E[u\varphi'(u)\varphi(v)]-C_{\mu\nu}E[\varphi'\varphi']\right)/2C_{\mu\mu}$.

    Not by automatic differentiation: the moments are written with roots and maxima, whose derivatives are NaN for collinear points and wrong for equal variances.
    """
    variance = np.diagonal(field)
    rule = activation.rule(variance, "float64")
    across = np.asarray(_slopes(rule, jnp.asarray(variance), jnp.asarray(field))).copy()
    np.fill_diagonal(across, 0.0)
    degree = activation.degree
    if degree is not None:  # uφ'(u) = kφ(u); where nothing varies φ is 0, and what multiplies it arbitrary
        inverse = np.where(variance > 0, 1 / np.where(variance > 0, variance, 1.0), 0.0)
        pairs, own = degree * kernel, degree * np.diagonal(kernel) * inverse
    else:
        largest = variance.max() if variance.max() > 0 else 1.0
        safe = np.where(variance > 0, variance, _NO_VARIANCE * largest)
        inverse = 1 / safe
        numeric = activation if isinstance(activation, Numeric) else Numeric(activation, activation.name)
        nodes = numeric.rule(safe, "float64")  # closed forms need one too: they have no E[uφ'(u)φ(v)]
        if not nodes.resolved:
            raise ConvergenceError(BLURRED.format(activation.name))
        pairs = np.asarray(mixed(nodes, numeric, jnp.asarray(safe), jnp.asarray(field)))
        own = np.asarray(_own_mixed(activation, jnp.asarray(safe))) * inverse
    along = (pairs - field * across) * (inverse / 2)[:, None]
    np.fill_diagonal(along, 0.0)
    return Response(across, along, own)


@functools.partial(jax.jit, static_argnums=0)
def _slopes(rule: Any, variance: Array, block: Array) -> Array:
    return rule.slopes(variance, variance, block)


def _radial(activation: Activation) -> Callable[[Array], Array]:
    return lambda u: u * activation.derivative(u)


@functools.partial(jax.jit, static_argnums=0)
def _own_mixed(activation: Activation, variance: Array) -> Array:
    r"""$E[u\varphi'(u)\varphi(u)]$."""
    return quadrature.line_mean(lambda u: _radial(activation)(u) * activation(u), variance, order=400)


@functools.partial(jax.jit, static_argnums=(0, 1))
def mixed(rule: Any, activation: Activation, variance: Array, block: Array) -> Array:
    r"""$E[u\varphi'(u)\varphi(v)]$ for every pair, $u$ of the row's point, by the nodes of a rule that integrates $\varphi$ and $\varphi'$."""
    a, b = (jnp.broadcast_to(side, block.shape) for side in (variance[:, None], variance[None, :]))
    if isinstance(rule, SeriesRule):
        radial = quadrature.coefficients(_radial(activation), rule.terms, variance)
        plain = quadrature.coefficients(activation, rule.terms, variance)
        return quadrature.series(radial, plain, jnp.clip(block / (jnp.sqrt(a) * jnp.sqrt(b)), -1.0, 1.0))
    return _mixed_polar(_radial(activation), activation, rule.level, a, b, block)


def _mixed_polar(f: Callable, g: Callable, level: int, a: Array, b: Array, c: Array) -> Array:
    r"""$E[f(u)g(v)]$ as in `quadrature.polar`, which has one function."""
    radial, angular = quadrature.LEVELS[level]
    r, weight = quadrature.legendre(radial, 0.0, RADIUS)
    radii = (jnp.asarray(r), jnp.asarray(weight * r * np.exp(-r * r / 2) / (2 * np.pi)))
    angles = tuple(jnp.asarray(part) for part in quadrature.legendre(angular, 0.0, 1.0))
    theta, _, _ = quadrature.correlation_angle(a, b, c)

    def ray(total: Array, angle: tuple[Array, ...]) -> tuple[Array, None]:
        for start, width in ((jnp.zeros_like(theta), theta), (theta, jnp.pi - theta)):
            t = start + width * angle[0] - jnp.pi / 2
            along_u, along_v = jnp.sqrt(a) * jnp.cos(t), jnp.sqrt(b) * jnp.cos(t - theta)

            def add(part: Array, radius: tuple[Array, ...], u: Array = along_u, v: Array = along_v) -> Any:
                u, v = radius[0] * u, radius[0] * v
                return part + radius[1] * (f(u) * g(v) + f(-u) * g(-v)), None

            total = total + angle[1] * width * jax.lax.scan(add, jnp.zeros_like(total), radii)[0]
        return total, None

    return jax.lax.scan(ray, jnp.zeros_like(theta), angles)[0]
