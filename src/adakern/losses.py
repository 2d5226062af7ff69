r"""Losses: the value $\ell(y,s)$, the error signal $\Delta=-\partial\ell/\partial s$, and the conjugate $\ell^*$.

$\mathcal L=\sum_\mu \ell(y_\mu,s_\mu)$, with targets and outputs of shape (points, outputs). The conjugate
$\ell^*(y,p)=\max_s\,(s\cdot p-\ell(y,s))$ enters the dual of two-layer problems.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax.scipy.special import xlogy
from jaxtyping import Array, Float

from adakern import checks


class Loss(ABC):
    """One loss per point, summed over its outputs."""

    name: str

    @abstractmethod
    def value(self, y: Float[Array, "p c"], s: Float[Array, "p c"]) -> Float[Array, " p"]:
        r"""$\ell(y,s)$ for each point."""

    @abstractmethod
    def error(self, y: Float[Array, "p c"], s: Float[Array, "p c"]) -> Float[Array, "p c"]:
        r"""$\Delta=-\partial\ell/\partial s$."""

    @abstractmethod
    def curvature(self, y: Float[Array, "p c"], s: Float[Array, "p c"]) -> Array:
        r"""$\partial^2\ell/\partial s^2$: shape (points, outputs) where outputs do not interact, else (points, outputs, outputs)."""

    @abstractmethod
    def conjugate(self, y: Float[Array, "p c"], p: Float[Array, "p c"]) -> Float[Array, " p"]:
        r"""$\ell^*(y,p)$ for each point; $+\infty$ where the maximum is unbounded."""

    @abstractmethod
    def link(self, s: Float[Array, "p c"]) -> Float[Array, "p c"]:
        r"""$f=\sigma(s)$, the output that a user reads."""


@dataclass(frozen=True)
class Squared(Loss):
    r"""$\ell=\frac12|y-s|^2$, $\Delta=y-s$, $f=s$, $\ell^*=y\cdot p+\frac12|p|^2$."""

    name: str = field(default="squared", init=False)

    def value(self, y: Array, s: Array) -> Array:
        return 0.5 * jnp.sum((y - s) ** 2, axis=-1)

    def error(self, y: Array, s: Array) -> Array:
        return y - s

    def curvature(self, y: Array, s: Array) -> Array:
        return jnp.ones_like(s)

    def conjugate(self, y: Array, p: Array) -> Array:
        return jnp.sum(y * p + 0.5 * p * p, axis=-1)

    def link(self, s: Array) -> Array:
        return s


@dataclass(frozen=True)
class Logistic(Loss):
    r"""$\ell=\ln(1+e^{-ys})$ with $y=\pm1$, $\Delta=y/(1+e^{ys})$, $f=\tanh(s/2)$, the mean label."""

    name: str = field(default="logistic", init=False)

    def value(self, y: Array, s: Array) -> Array:
        return jnp.sum(jax.nn.softplus(-y * s), axis=-1)

    def error(self, y: Array, s: Array) -> Array:
        return y * jax.nn.sigmoid(-y * s)

    def curvature(self, y: Array, s: Array) -> Array:
        return jax.nn.sigmoid(s) * jax.nn.sigmoid(-s)

    def conjugate(self, y: Array, p: Array) -> Array:
        q = -y * p  # in [0, 1]: minus the slope along the label
        inside = (q >= 0) & (q <= 1)
        entropy = xlogy(jnp.clip(q, 0, 1), jnp.clip(q, 0, 1)) + xlogy(1 - jnp.clip(q, 0, 1), 1 - jnp.clip(q, 0, 1))
        return jnp.sum(jnp.where(inside, entropy, jnp.inf), axis=-1)

    def link(self, s: Array) -> Array:
        return jnp.tanh(s / 2)


@dataclass(frozen=True)
class Softmax(Loss):
    r"""$\ell=\ln\sum_c e^{s_c}-y\cdot s$ with one-hot $y$, $\Delta=y-\mathrm{softmax}(s)$, $f=\mathrm{softmax}(s)$."""

    name: str = field(default="softmax", init=False)

    def value(self, y: Array, s: Array) -> Array:
        return jax.nn.logsumexp(s, axis=-1) - jnp.sum(y * s, axis=-1)

    def error(self, y: Array, s: Array) -> Array:
        return y - jax.nn.softmax(s, axis=-1)

    def curvature(self, y: Array, s: Array) -> Array:
        p = jax.nn.softmax(s, axis=-1)
        return jnp.eye(s.shape[-1], dtype=s.dtype)[None, :, :] * p[:, :, None] - p[:, :, None] * p[:, None, :]

    def conjugate(self, y: Array, p: Array) -> Array:
        q = p + y  # a probability vector where the conjugate is finite
        tolerance = 64 * jnp.finfo(q.dtype).eps
        inside = jnp.all(q >= -tolerance, axis=-1) & (jnp.abs(jnp.sum(q, axis=-1) - 1) <= tolerance * q.shape[-1])
        return jnp.where(inside, jnp.sum(xlogy(jnp.maximum(q, 0), jnp.maximum(q, 0)), axis=-1), jnp.inf)

    def link(self, s: Array) -> Array:
        return jax.nn.softmax(s, axis=-1)


_REGISTRY: dict[str, Loss] = {loss.name: loss for loss in (Squared(), Logistic(), Softmax())}
NAMES = tuple(_REGISTRY)


def get(name: str) -> Loss:
    """The loss of that name."""
    return _REGISTRY[checks.choice("loss", name, NAMES)]
