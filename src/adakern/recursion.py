r"""The kernel recursion of the lazy limit, $\Phi^0\to\Phi^1\to\dots\to\Phi^L$, in tiles of bounded size.

With Gaussian fields $h^\ell\sim N(0,\Phi^{\ell-1}/\lambda_{\ell-1})$:

$$\Phi^\ell=E[\varphi\varphi^\top],\qquad \dot\Phi^\ell=\tfrac1{\lambda_\ell}E[\varphi'\varphi'^\top],\qquad
  G^\ell=G^{\ell+1}\circ\dot\Phi^\ell,\quad G^{L+1}=1,\qquad K=\sum_{\ell=0}^LG^{\ell+1}\circ\Phi^\ell .$$

An entry of $\Phi^\ell$ depends on the same entry of $\Phi^{\ell-1}$ and on two variances alone. So the variances of all points are carried
through the layers first (cheap, one-dimensional), and then any tile of the kernels can be computed on its own.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from adakern.activations import Activation, MomentRule

_UNROLLED = 4  # layers up to which the recursion is compiled layer by layer
TILE = 1024  # points per side of a tile: large enough for the matrix product, small enough for the cache


class Variances(NamedTuple):
    """Diagonals of the kernels of a set of points, and the moment rule that serves all of them at each layer."""

    values: tuple[np.ndarray, ...]  # Φ^0..Φ^L on the diagonal
    slopes: tuple[np.ndarray, ...]  # the slope kernels of layers 1..L on the diagonal, divided by their decay
    rules: tuple[MomentRule, ...]

    def split(self, points: int) -> tuple[Variances, Variances]:
        """The first `points` points, and the rest."""
        first = Variances(tuple(v[:points] for v in self.values), tuple(v[:points] for v in self.slopes), self.rules)
        rest = Variances(tuple(v[points:] for v in self.values), tuple(v[points:] for v in self.slopes), self.rules)
        return first, rest


class Tile(NamedTuple):
    """One tile of every kernel: Φ^1..Φ^L, and for the tangent kernel G^1..G^L and K."""

    kernels: tuple[Array, ...]
    gradients: tuple[Array, ...]
    tangent: Array | None


def product(rows: Float[Array, "n d"], columns: Float[Array, "m d"]) -> Float[Array, "n m"]:
    """rows @ columns.T in full precision: accelerators round float32 products to fewer bits unless told otherwise."""
    return jnp.matmul(rows, columns.T, precision=jax.lax.Precision.HIGHEST)


def variances(
    activation: Activation, depth: int, decay: tuple[float, ...], features: np.ndarray, precision: str
) -> Variances:
    """Carry the variances of a set of points (rows of `features`) through the layers."""
    values = [np.einsum("nd,nd->n", features, features)]
    slopes, rules = [], []
    for layer in range(1, depth + 1):
        incoming = values[-1] / decay[layer - 1]
        rule = activation.rule(incoming, precision)
        own, slope = _own(rule, jnp.asarray(incoming))
        values.append(np.asarray(own))
        slopes.append(np.asarray(slope) / decay[layer])
        rules.append(rule)
    return Variances(tuple(values), tuple(slopes), tuple(rules))


@functools.partial(jax.jit, static_argnames="rule")
def _own(rule: MomentRule, variance: Array) -> tuple[Array, Array]:
    return rule.own_values(variance), rule.own_slopes(variance)


@functools.partial(jax.jit, static_argnames=("rules", "tangent"))
def tile(
    rules: tuple[MomentRule, ...],
    tangent: bool,
    decay: Float[Array, " l"],
    row_variances: tuple[Array, ...],
    column_variances: tuple[Array, ...],
    rows: Float[Array, "n d"],
    columns: Float[Array, "m d"],
) -> Tile:
    """Every layer's kernels between two sets of points given by their features."""
    first = product(rows, columns)
    layers = (jnp.stack(row_variances), jnp.stack(column_variances), decay[:-1], decay[1:])

    def climb(rule: MomentRule, below: Array, layer: tuple[Array, ...]) -> tuple[Array, tuple[Array, Array | None]]:
        row, column, decay_below, decay_here = layer
        arguments = (row / decay_below, column / decay_below, below / decay_below)
        kernel = rule.values(*arguments)
        return kernel, (kernel, rule.slopes(*arguments) / decay_here if tangent else None)

    if len(set(rules)) == 1 and len(rules) > _UNROLLED:  # one compiled layer, however deep the network
        _, (stack, slope_stack) = jax.lax.scan(functools.partial(climb, rules[0]), first, layers)
        kernels, slopes = [first, *stack], [] if slope_stack is None else list(slope_stack)
    else:
        kernels, slopes = [first], []
        for index, rule in enumerate(rules):
            # The barrier keeps the compiler from fusing layers into one expression that grows with every one of them.
            below = jax.lax.optimization_barrier(kernels[-1])
            kernel, (_, slope) = climb(rule, below, tuple(part[index] for part in layers))
            kernels.append(kernel)
            slopes.append(slope)
    if not tangent:
        return Tile(tuple(kernels[1:]), (), None)
    gradient, total, gradients = jnp.ones_like(kernels[0]), kernels[-1], []
    for layer in range(len(rules), 0, -1):
        gradient = gradient * slopes[layer - 1]
        gradients.append(gradient)
        total = total + gradient * kernels[layer - 1]
    return Tile(tuple(kernels[1:]), tuple(gradients[::-1]), total)


@functools.partial(jax.jit, static_argnames=("rules", "tangent"))
def top(
    rules: tuple[MomentRule, ...],
    tangent: bool,
    decay: Float[Array, " l"],
    row_variances: tuple[Array, ...],
    column_variances: tuple[Array, ...],
    rows: Float[Array, "n d"],
    columns: Float[Array, "m d"],
) -> Float[Array, "n m"]:
    r"""The predictor's kernel alone ($\Phi^L$, or $K$), for blocks against the training points."""
    result = tile(rules, tangent, decay, row_variances, column_variances, rows, columns)
    return result.kernels[-1] if result.tangent is None else result.tangent


def spans(total: int, size: int) -> Iterator[slice]:
    """Cut `total` rows into slices of equal length; the last may overlap the one before, so that one shape is compiled."""
    size = min(size, total)
    for start in range(0, total, size):
        begin = min(start, total - size)
        yield slice(begin, begin + size)
