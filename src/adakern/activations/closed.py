r"""The activations with closed-form moments: linear, ReLU, erf, sine, GELU.

Every form is written with $\sqrt{\cdot}$ and `arctan2` of a determinant instead of `arcsin`/`arccos` of a correlation,
so that it is finite and accurate for correlations up to and including ±1.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax.scipy.stats import norm
from jaxtyping import Array

from adakern.activations.base import ClosedForm
from adakern.quadrature import correlation_angle


@dataclass(frozen=True)
class Linear(ClosedForm):
    r"""$\varphi(h)=h$. $E[\varphi\varphi]=c$, $E[\varphi'\varphi']=1$."""

    name: str = field(default="linear", init=False)
    degree: int | None = field(default=1, init=False)

    def __call__(self, h: Array) -> Array:
        return h

    def mean(self, centre: Array, spread: Array) -> Array:
        return centre + 0 * spread

    def mean_square(self, centre: Array, spread: Array) -> Array:
        return centre**2 + spread**2

    def moment(self, a: Array, b: Array, c: Array) -> Array:
        return c

    def slope_moment(self, a: Array, b: Array, c: Array) -> Array:
        return jnp.ones_like(c)


@dataclass(frozen=True)
class ReLU(ClosedForm):
    r"""$\varphi(h)=\max(h,0)$: the arc-cosine kernels of Cho & Saul (2009).

    $E[\varphi\varphi]=\frac{1}{2\pi}\left(s+(\pi-\theta)c\right)$, $E[\varphi'\varphi']=\frac{\pi-\theta}{2\pi}$, with $c=\sqrt{ab}\cos\theta$,
    $s=\sqrt{ab}\sin\theta$. The slope of a point whose variance is zero counts as $\frac12$, the limit of small variance.
    """

    name: str = field(default="relu", init=False)
    degree: int | None = field(default=1, init=False)

    def __call__(self, h: Array) -> Array:
        return jax.nn.relu(h)

    def mean(self, centre: Array, spread: Array) -> Array:
        return centre * norm.cdf(_ratio(centre, spread)) + spread * norm.pdf(_ratio(centre, spread))

    def mean_square(self, centre: Array, spread: Array) -> Array:
        x = _ratio(centre, spread)
        return (centre**2 + spread**2) * norm.cdf(x) + centre * spread * norm.pdf(x)

    def moment(self, a: Array, b: Array, c: Array) -> Array:
        theta, _, s = correlation_angle(a, b, c)
        return (s + (jnp.pi - theta) * c) / (2 * jnp.pi)

    def slope_moment(self, a: Array, b: Array, c: Array) -> Array:
        theta, _, _ = correlation_angle(a, b, c)
        return (jnp.pi - theta) / (2 * jnp.pi)


@dataclass(frozen=True)
class Erf(ClosedForm):
    r"""$\varphi(h)=\mathrm{erf}(h)$ (Williams 1997).

    With $d=(1+2a)(1+2b)-4c^2$: $E[\varphi\varphi]=\frac2\pi\arctan\frac{2c}{\sqrt d}$, $E[\varphi'\varphi']=\frac{4}{\pi\sqrt d}$.
    """

    name: str = field(default="erf", init=False)
    degree: int | None = field(default=None, init=False)

    def __call__(self, h: Array) -> Array:
        return jax.lax.erf(h)

    def mean(self, centre: Array, spread: Array) -> Array:
        return jax.lax.erf(centre / jnp.sqrt(1 + 2 * spread**2))

    def moment(self, a: Array, b: Array, c: Array) -> Array:
        return (2 / jnp.pi) * jnp.arctan2(2 * c, jnp.sqrt(_determinant(2 * a, 2 * b, 2 * c)))

    def slope_moment(self, a: Array, b: Array, c: Array) -> Array:
        return (4 / jnp.pi) / jnp.sqrt(_determinant(2 * a, 2 * b, 2 * c))


@dataclass(frozen=True)
class Sine(ClosedForm):
    r"""$\varphi(h)=\sin h$. $E[\varphi\varphi]=e^{-(a+b)/2}\sinh c$, $E[\varphi'\varphi']=e^{-(a+b)/2}\cosh c$."""

    name: str = field(default="sine", init=False)
    degree: int | None = field(default=None, init=False)

    def __call__(self, h: Array) -> Array:
        return jnp.sin(h)

    def mean(self, centre: Array, spread: Array) -> Array:
        return jnp.exp(-(spread**2) / 2) * jnp.sin(centre)

    def mean_square(self, centre: Array, spread: Array) -> Array:
        return 0.5 * (1 - jnp.exp(-2 * spread**2) * jnp.cos(2 * centre))

    def moment(self, a: Array, b: Array, c: Array) -> Array:
        size = jnp.abs(c)  # exp of the combined exponent: sinh alone overflows
        return -0.5 * jnp.sign(c) * jnp.exp(size - (a + b) / 2) * jnp.expm1(-2 * size)

    def slope_moment(self, a: Array, b: Array, c: Array) -> Array:
        size = jnp.abs(c)
        return 0.5 * jnp.exp(size - (a + b) / 2) * (1 + jnp.exp(-2 * size))


@dataclass(frozen=True)
class GELU(ClosedForm):
    r"""$\varphi(h)=h\,\Phi(h)$, the exact form with the normal distribution function (not the tanh approximation).

    By Gaussian integration by parts, with $d=(1+a)(1+b)-c^2$ and $p=\frac14+\frac{1}{2\pi}\arctan\frac{c}{\sqrt d}=E[\Phi(u)\Phi(v)]$:

    $$E[\varphi\varphi]=cp+\frac{ab+c^2(1-ab)/((1+a)(1+b))}{2\pi\sqrt d},\qquad
      E[\varphi'\varphi']=p+\frac{c}{2\pi\sqrt d}\left(\frac1{1+a}+\frac1{1+b}+\frac1d\right).$$
    """

    name: str = field(default="gelu", init=False)
    degree: int | None = field(default=None, init=False)

    def __call__(self, h: Array) -> Array:
        return jax.nn.gelu(h, approximate=False)

    def mean(self, centre: Array, spread: Array) -> Array:
        root = jnp.sqrt(1 + spread**2)
        return centre * norm.cdf(centre / root) + spread**2 / root * norm.pdf(centre / root)

    def moment(self, a: Array, b: Array, c: Array) -> Array:
        root = jnp.sqrt(_determinant(a, b, c))
        # ab + c²(1-ab)/((1+a)(1+b)), regrouped so that no product of four variances is formed
        first, second = c / (1 + a), c / (1 + b)
        bracket = a * (b / root) + first * (second / root) - a * first * (b * second / root)
        return c * _both_below(c, root) + bracket / (2 * jnp.pi)

    def slope_moment(self, a: Array, b: Array, c: Array) -> Array:
        d = _determinant(a, b, c)
        root = jnp.sqrt(d)
        return _both_below(c, root) + c / (2 * jnp.pi * root) * (1 / (1 + a) + 1 / (1 + b) + 1 / d)


def _determinant(a: Array, b: Array, c: Array) -> Array:
    r"""$(1+a)(1+b)-c^2$, as $1+a+b+(ab-c^2)$ with the bracket kept from going negative by rounding."""
    m = jnp.where(a == b, a, jnp.sqrt(a) * jnp.sqrt(b))
    return 1 + a + b + jnp.maximum(m - c, 0.0) * jnp.maximum(m + c, 0.0)


def _both_below(c: Array, root: Array) -> Array:
    return 0.25 + jnp.arctan2(c, root) / (2 * jnp.pi)


def _ratio(centre: Array, spread: Array) -> Array:
    """centre / spread, with a spread of zero counting as an infinitely sharp one."""
    tiny = jnp.finfo(centre.dtype).tiny
    return centre / jnp.maximum(spread, tiny**0.5)
