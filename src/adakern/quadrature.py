r"""Expectations of $\varphi(u)\varphi(v)$ under a bivariate Gaussian, for any $\varphi$ and every correlation.

Two rules that agree with closed forms to rounding error, and a test of each that says when it may be used:

* **Polar.** With $u=\sqrt a\,r\cos t$, $v=\sqrt b\,r\cos(t-\theta)$, $\cos\theta=\rho$,

  $$E[\varphi(u)\varphi(v)] = \int_0^\infty\! r e^{-r^2/2}\,dr \int_0^{2\pi} \frac{dt}{2\pi}\,\varphi(u)\varphi(v).$$

  The map is smooth in $\rho$ up to and including $\rho=\pm1$, and a kink of $\varphi$ at the origin (ReLU) lies on the four
  rays $u=0$, $v=0$: cutting the circle there leaves smooth pieces, on which Gauss–Legendre converges exponentially.
* **Hermite series** (Mehler). With $\alpha_k(a)=E[\varphi(\sqrt a z)\,\mathrm{he}_k(z)]$, $\mathrm{he}_k$ the normalised Hermite polynomials,

  $$E[\varphi(u)\varphi(v)] = \sum_k \rho^k \alpha_k(a)\alpha_k(b), \qquad
    |\text{tail}| \le \sqrt{\tau(a)\tau(b)}, \quad \tau(a)=E[\varphi^2]-\sum_{k<K}\alpha_k(a)^2 .$$

  A few multiplications per pair where polar needs a thousand evaluations of $\varphi$; the bound decides whether it may be used.

scipy has Gauss rules on an interval, which are used here, but none for a correlated pair.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import roots_legendre

from adakern import floors

Function = Callable[[Array], Array]

# (radial, angular) orders of the polar rule, coarse to fine; each is about 1.5 times the one before.
LEVELS = ((24, 16), (32, 24), (48, 32), (64, 48), (96, 64), (144, 96), (216, 144), (320, 216))
# Standard deviation of the fields beyond which a sigmoid's step falls between the nodes of every level.
STEEPEST = 32.0
# Numbers of terms of the Hermite series, few to many.
TERMS = (16, 32, 64, 128, 256, 512, 1024)

_RADIUS = {"float64": 9.0, "float32": 6.5}  # exp(-r²/2) is below rounding error beyond
_LINE = 13.0  # where he_k(z) exp(-z²/2) is below 1e-16 for every k in TERMS


@functools.lru_cache
def legendre(order: int, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Gauss–Legendre nodes and weights on [low, high]."""
    nodes, weights = roots_legendre(order)
    half = (high - low) / 2
    return low + half * (nodes + 1), half * weights


def correlation_angle(
    a: Float[Array, "*s"], b: Float[Array, "*s"], c: Float[Array, "*s"]
) -> tuple[Float[Array, "*s"], Float[Array, "*s"], Float[Array, "*s"]]:
    r"""$(\theta, m, s)$ with $m=\sqrt{ab}$, $c=m\cos\theta$, $s=m\sin\theta$; a zero variance counts as uncorrelated.

    `arccos(c/m)` loses half the digits near ±1 and is NaN one rounding error beyond. Here $\theta$ comes from $\sqrt{m-c}$ and $\sqrt{m+c}$, in which a distance
    from ±1 that rounding of $a,b,c$ alone can cause counts as zero (`floors.CORRELATION`), so that equal and collinear points are exactly so.
    No product of variances is formed, which could overflow or underflow.
    """
    m = jnp.where(a == b, a, jnp.sqrt(a) * jnp.sqrt(b))
    rounding = floors.CORRELATION * jnp.finfo(m.dtype).eps * m
    apart, opposed = (jnp.where(gap > rounding, gap, 0.0) for gap in (m - c, m + c))
    s = jnp.sqrt(apart) * jnp.sqrt(opposed)
    return jnp.where(m > 0, jnp.arctan2(s, c), jnp.pi / 2), m, s


def polar(
    function: Function, level: int, a: Float[Array, "*s"], b: Float[Array, "*s"], c: Float[Array, "*s"]
) -> Float[Array, "*s"]:
    r"""$E[\varphi(u)\varphi(v)]$ for $(u,v)\sim N(0,[[a,c],[c,b]])$, elementwise, at `LEVELS[level]`."""
    radial, angular = LEVELS[level]
    r, r_weight = legendre(radial, 0.0, _RADIUS[str(a.dtype)])
    r_weight = r_weight * r * np.exp(-r * r / 2) / (2 * np.pi)
    x, x_weight = legendre(angular, 0.0, 1.0)
    radii = (jnp.asarray(r, a.dtype), jnp.asarray(r_weight, a.dtype))
    angles = (jnp.asarray(x, a.dtype), jnp.asarray(x_weight, a.dtype))
    theta, _, _ = correlation_angle(a, b, c)
    root_a, root_b = jnp.sqrt(a), jnp.sqrt(b)

    def ray(total: Array, angle: tuple[Array, Array]) -> tuple[Array, None]:
        fraction, weight = angle
        # Half the circle, cut at u = 0 and v = 0; the other half is its mirror image (-u, -v).
        first, second = theta * fraction - jnp.pi / 2, theta + (jnp.pi - theta) * fraction - jnp.pi / 2
        for t, width in ((first, theta), (second, jnp.pi - theta)):
            cos_u, cos_v = root_a * jnp.cos(t), root_b * jnp.cos(t - theta)

            def along(
                part: Array, radius: tuple[Array, Array], cos_u: Array = cos_u, cos_v: Array = cos_v
            ) -> tuple[Array, None]:
                u, v = radius[0] * cos_u, radius[0] * cos_v
                return part + radius[1] * (function(u) * function(v) + function(-u) * function(-v)), None

            part, _ = jax.lax.scan(along, jnp.zeros_like(total), radii)
            total = total + weight * width * part
        return total, None

    return jax.lax.scan(ray, jnp.zeros_like(theta), angles)[0]


def _hermite(terms: int, z: np.ndarray) -> np.ndarray:
    """Normalised probabilists' Hermite polynomials he_0..he_{terms-1} at z, times exp(-z²/4), shape (terms, nodes)."""
    rows = [np.exp(-z * z / 4), z * np.exp(-z * z / 4)]
    for k in range(1, terms - 1):
        rows.append((z * rows[k] - np.sqrt(k) * rows[k - 1]) / np.sqrt(k + 1))
    return np.stack(rows[:terms])


@functools.lru_cache
def _line(order: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of E over z ~ N(0,1), cut at the origin where an activation may have a kink."""
    x, w = legendre(order, 0.0, _LINE)
    z = np.concatenate([-x[::-1], x])
    return z, np.concatenate([w[::-1], w]) * np.exp(-z * z / 2) / np.sqrt(2 * np.pi)


def line_mean(function: Function, variance: Float[Array, " n"], order: int = 200) -> Float[Array, " n"]:
    r"""$E[f(\sqrt a z)]$, one-dimensional, for each variance."""
    z, w = _line(order)
    nodes, weights = jnp.asarray(z, variance.dtype), jnp.asarray(w, variance.dtype)
    return function(jnp.sqrt(variance)[:, None] * nodes[None, :]) @ weights


def coefficients(function: Function, terms: int, variance: Float[Array, " n"]) -> Float[Array, "n k"]:
    r"""$\alpha_k(a)=E[\varphi(\sqrt a z)\,\mathrm{he}_k(z)]$ for $k<$ `terms`."""
    z, w = _line(400)
    with np.errstate(under="ignore"):
        table = _hermite(terms, z) * (w * np.exp(z * z / 4))[None, :]
    values = function(jnp.sqrt(variance)[:, None] * jnp.asarray(z, variance.dtype)[None, :])
    return values @ jnp.asarray(table.T, variance.dtype)


def series(alpha_a: Float[Array, "n k"], alpha_b: Float[Array, "m k"], rho: Float[Array, "n m"]) -> Float[Array, "n m"]:
    r"""$\sum_k \rho^k\alpha_k(a)\alpha_k(b)$ by Horner's rule, for every pair of a row and a column point."""

    def horner(total: Array, pair: tuple[Array, Array]) -> tuple[Array, None]:
        return total * rho + pair[0][:, None] * pair[1][None, :], None

    return jax.lax.scan(horner, jnp.zeros_like(rho), (alpha_a.T[::-1], alpha_b.T[::-1]))[0]


def shifted_mean(
    function: Function, centre: Float[Array, "*s"], spread: Float[Array, "*s"], order: int = 16
) -> Float[Array, "*s"]:
    r"""$E[f(m+\sigma z)]$, elementwise, without holding more than one node's values at a time.

    Gauss–Legendre on three pieces, cut at the middle of the Gaussian and at the origin of $f$'s argument, where an activation is steepest or has its kink:
    Gauss–Hermite, whose nodes are placed without regard to it, is off by per cents where $\sigma$ is large.
    """
    edge = 7.0
    origin = jnp.clip(-centre / jnp.maximum(spread, jnp.finfo(centre.dtype).tiny ** 0.5), -edge, edge)
    low, high = jnp.minimum(origin, 0.0), jnp.maximum(origin, 0.0)
    x, w = legendre(order, 0.0, 1.0)
    table = (jnp.asarray(x, centre.dtype), jnp.asarray(w / np.sqrt(2 * np.pi), centre.dtype))

    def add(total: Array, node: tuple[Array, Array]) -> tuple[Array, None]:
        for start, width in ((-edge, low + edge), (low, high - low), (high, edge - high)):
            z = start + width * node[0]
            total = total + node[1] * width * jnp.exp(-z * z / 2) * function(centre + spread * z)
        return total, None

    return jax.lax.scan(add, jnp.zeros_like(origin), table)[0]
