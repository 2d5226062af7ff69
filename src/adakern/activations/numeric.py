"""Activations whose moments come by quadrature: tanh, and any function a user brings."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from adakern import quadrature
from adakern.activations.base import Activation, MomentRule
from adakern.precision import scope

# Agreement asked of a rule before it is used, relative to E[φ²]; well inside what the answer is good for.
_TOLERANCE = {"float64": 1e-12, "float32": 2e-6}
_ACCEPTABLE = 1e-6  # agreement of the two finest levels at which their result still counts as good


@dataclass(frozen=True)
class PolarRule(MomentRule):
    """Polar quadrature at a fixed level."""

    activation: Numeric
    level: int
    resolved: bool = True

    def values(self, rows: Array, columns: Array, block: Array) -> Array:
        return self._moment(self.activation, rows, columns, block)

    def slopes(self, rows: Array, columns: Array, block: Array) -> Array:
        return self._moment(self.activation.derivative, rows, columns, block)

    def own_values(self, variance: Array) -> Array:
        return quadrature.polar(self.activation, self.level, variance, variance, variance)

    def own_slopes(self, variance: Array) -> Array:
        return quadrature.polar(self.activation.derivative, self.level, variance, variance, variance)

    def _moment(self, function: Callable[[Array], Array], rows: Array, columns: Array, block: Array) -> Array:
        a, b = jnp.broadcast_to(rows[:, None], block.shape), jnp.broadcast_to(columns[None, :], block.shape)
        return quadrature.polar(function, self.level, a, b, block)


@dataclass(frozen=True)
class SeriesRule(MomentRule):
    """Hermite series with a fixed number of terms, whose tail was bounded when it was chosen."""

    activation: Numeric
    terms: int

    def values(self, rows: Array, columns: Array, block: Array) -> Array:
        return self._moment(self.activation, rows, columns, block)

    def slopes(self, rows: Array, columns: Array, block: Array) -> Array:
        return self._moment(self.activation.derivative, rows, columns, block)

    def own_values(self, variance: Array) -> Array:
        return jnp.sum(quadrature.coefficients(self.activation, self.terms, variance) ** 2, axis=1)

    def own_slopes(self, variance: Array) -> Array:
        return jnp.sum(quadrature.coefficients(self.activation.derivative, self.terms, variance) ** 2, axis=1)

    def _moment(self, function: Callable[[Array], Array], rows: Array, columns: Array, block: Array) -> Array:
        scale = jnp.sqrt(rows)[:, None] * jnp.sqrt(columns)[None, :]
        rho = jnp.where(scale > 0, block / jnp.where(scale > 0, scale, 1.0), 0.0)
        return quadrature.series(
            quadrature.coefficients(function, self.terms, rows),
            quadrature.coefficients(function, self.terms, columns),
            jnp.clip(rho, -1.0, 1.0),
        )


@dataclass(frozen=True)
class Numeric(Activation):
    r"""Any elementwise, jax-differentiable function; moments by quadrature.

    Smooth functions, and functions with a kink at the origin, reach 1e-12. Kinks elsewhere (a hard tanh) limit the accuracy
    that quadrature can reach; the rule then settles at its finest level and says whether that resolved it.

    Attributes:
        function: maps an array to an array of the same shape.
        name: for files and messages.
        degree: homogeneity degree, if it has one.
    """

    function: Callable[[Array], Array] = field(repr=False)
    name: str = "custom"
    degree: int | None = None

    def __call__(self, h: Array) -> Array:
        return self.function(h)

    def rule(self, variances: np.ndarray, precision: str) -> MomentRule:
        tolerance = _TOLERANCE[precision]
        with scope("float64"):  # the choice is about truncation; rounding in float32 would drown it
            return self._choose(jnp.asarray(_probe(np.asarray(variances, dtype=np.float64))), tolerance)

    def _choose(self, probe: Array, tolerance: float) -> MomentRule:
        if self.degree is None and float(jnp.max(probe)) > quadrature.STEEPEST**2:
            return PolarRule(self, len(quadrature.LEVELS) - 1, False)
        for terms in quadrature.TERMS:
            if float(_series_tail(self, terms, probe)) <= tolerance:
                return SeriesRule(self, terms)
        previous, settled = _polar_probe(self, 0, probe), np.inf
        for level in range(1, len(quadrature.LEVELS)):
            current = _polar_probe(self, level, probe)
            if float(jnp.max(jnp.abs(current - previous))) <= tolerance:
                return PolarRule(self, level)
            settled = float(jnp.max(jnp.abs(current - previous)))
            previous = current
        return PolarRule(self, len(quadrature.LEVELS) - 1, settled <= _ACCEPTABLE)


def _probe(variances: np.ndarray, most: int = 6) -> np.ndarray:
    """A few variances spread over the whole range of those at hand, extremes included.

    A smooth φ is hardest to integrate at the largest variance; the others guard against one that is not.
    """
    levels = np.quantile(variances, np.linspace(0.0, 1.0, most))
    return levels.astype(np.float64)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _series_tail(activation: Numeric, terms: int, variance: Array) -> Array:
    r"""The largest $\tau(a)/E[\varphi^2]$ over the probe, for $\varphi$ and $\varphi'$: bounds the series' relative error."""

    def tail(function: Callable[[Array], Array]) -> Array:
        total = quadrature.line_mean(lambda u: function(u) ** 2, variance, order=400)
        kept = jnp.sum(quadrature.coefficients(function, terms, variance) ** 2, axis=1)
        return jnp.max(jnp.abs(total - kept) / jnp.where(total > 0, total, 1.0))

    return jnp.maximum(tail(activation), tail(activation.derivative))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _polar_probe(activation: Numeric, level: int, variance: Array) -> Array:
    """Moments of φ and φ' at probe pairs over the whole range of correlations, each scaled by its own size at ρ = 1."""
    rho = jnp.asarray([-1.0, -0.999, -0.6, 0.0, 0.4, 0.99, 0.99999, 1.0], variance.dtype)
    largest = jnp.broadcast_to(jnp.max(variance), variance.shape)
    first, second = jnp.concatenate([variance, variance]), jnp.concatenate([variance, largest])
    a, b = (jnp.repeat(side[:, None], len(rho), axis=1) for side in (first, second))
    pairs = (a, b, rho[None, :] * jnp.sqrt(a * b))
    stacked = tuple(
        jnp.stack(parts) for parts in zip(pairs, (a, a, a), (b, b, b), strict=True)
    )  # one call: one compilation

    def scaled(function: Callable[[Array], Array]) -> Array:
        value, own_a, own_b = quadrature.polar(function, level, *stacked)
        size = jnp.sqrt(own_a * own_b)
        return value / jnp.where(size > 0, size, 1.0)

    return jnp.stack([scaled(activation), scaled(activation.derivative)])
