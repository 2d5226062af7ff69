r"""The initial weights between two hidden layers, known only where training has asked for them.

In an infinitely wide network $u=N^{-1/2}W\varphi$ and $r=N^{-1/2}W^\top g$ are Gaussian processes over time, each with a response to the other. A population of $M$ neurons a layer stands for them, and
$W$ for the sum

$$W_0=\sum_i\xi_i\otimes Y_i+\sum_jZ_j\otimes\zeta_j,\qquad\langle Y_iY_k\rangle=\langle Z_iZ_k\rangle=\delta_{ik},$$

$Y$ the directions of features below that were met so far, $\xi$ white Gaussians above, $Z$ the directions of gradients above, $\zeta$ white Gaussians below; averages are over neurons. Then $W_0\varphi$ is the
Gaussian process $\sum_i\langle Y_i\varphi\rangle\xi_i$, of covariance $\langle\varphi(t)\varphi(s)\rangle$, plus $\sum_jZ_j\langle\zeta_j\varphi\rangle$, which by Stein's lemma is the response
$\gamma_0\int A\,g$: no Jacobian is needed. A direction that is met for the first time gets a fresh $\xi$, drawn *orthogonal to everything that is known in its layer*. Causality asks for that (nothing known can respond to
what is not drawn yet), and it keeps the response free of most of its Monte-Carlo noise: with independent draws every known direction adds $1/M$ to the variance of all fields.

Linear networks need no draws: fields are vectors of coordinates in the finitely many Gaussians, a fresh one is the next unit vector, and averages are inner products.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

product = functools.partial(jnp.matmul, precision="highest")

_NOVEL = 1e-6  # of a unit vector's square that lies outside of what is known: less is rounding and truncation


class Known(NamedTuple):
    """Orthonormal rows that span all that is known of a layer, (most, M); in coordinates only how many of them are in use."""

    rows: Array
    used: Array  # how many


class Side(NamedTuple):
    """One direction of a matrix: what was put in, what came out, and what stands for the rest."""

    asked: Array  # orthonormal rows, (most, M)
    given: Array  # white rows of the other layer, (most, M)
    used: Array  # how many
    scale: Array  # the largest mean square of what was put in
    spare: Array  # white rows of the other layer for what is too small to be remembered, (P, M)
    rest: Array  # what that gave when it was asked last, (P, M)


class Weights(NamedTuple):
    """Between a layer and the next: features on their way up, gradients on their way down."""

    up: Side
    down: Side


def coordinates(rows: Array, side: Side, share: Array) -> Array:
    r"""$\langle Y_i\varphi\rangle$, (rows, most)."""
    return product(rows, side.asked.T) * share


def answers(rows: Array, other: Side, share: Array) -> Array:
    r"""$\langle\zeta_j\varphi\rangle$, (rows, most): the response is $\sum_jZ_j$ times it."""
    return product(rows, other.given.T) * share


def rest_alone(rows: Array, inside: Array, noise: Array, share: Array) -> Array:
    """What points that are not trained on have outside of the directions that are remembered, each by itself, along one Gaussian."""
    left = jnp.sum(rows * rows, axis=1) * share - jnp.sum(inside * inside, axis=1)
    return jnp.sqrt(jnp.maximum(left, 0.0))[:, None] * noise[None, :]


def learn(known: Known, rows: Array, share: Array, exact: bool) -> Known:
    """What is known with more rows."""
    if exact:
        return known
    left = _outside(rows, known.rows, share)
    values, vectors = jnp.linalg.eigh(product(left, left.T) * share)
    new, kept = _units(left, values, vectors, jnp.asarray(_NOVEL, rows.dtype))
    return Known(_put(known.rows, new, known.used), known.used + kept)


def fresh(known: Known, key: Array, count: int, kept: Array, share: Array, exact: bool) -> tuple[Known, Array]:
    """So many white rows, orthogonal to all that is known, of which the first `kept` are in use; and what is known with them."""
    width = known.rows.shape[1]
    used = (jnp.arange(count) < kept)[:, None]
    if exact:
        places = known.used + jnp.arange(count)
        rows = jnp.where(used, jax.nn.one_hot(places, width, dtype=known.rows.dtype), 0.0)
        return Known(known.rows, known.used + kept), rows
    rows = white(known, key, count, share)
    rows = jnp.where(used, rows, 0.0)
    return Known(_put(known.rows, rows, known.used), known.used + kept), rows


def white(known: Known, key: Array, count: int, share: Array) -> Array:
    """Orthonormal Gaussian rows, orthogonal to all that is known."""
    drawn = jax.random.normal(key, (count, known.rows.shape[1]), known.rows.dtype)
    left = _outside(drawn, known.rows, share)
    values, vectors = jnp.linalg.eigh(product(left, left.T) * share)
    turned = product(vectors.T, left) / jnp.sqrt(jnp.maximum(values, jnp.finfo(left.dtype).tiny))[:, None]
    return product(vectors, turned)


def ask(
    side: Side, rows: Array, here: Known, there: Known, key: Array, least: Array, share: Array, exact: bool
) -> tuple[Side, Known, Known]:
    """The side after it was asked for these rows: directions whose share of the mean square exceeds `least` are new, and get Gaussians of the other layer.

    What is left has the right covariance at every moment, but always along the same Gaussians: it is not remembered.
    """
    scale = jnp.maximum(side.scale, jnp.mean(jnp.sum(rows * rows, axis=1)) * share)
    left = _outside(rows, side.asked, share)
    values, vectors = jnp.linalg.eigh(product(left, left.T) * share)
    new, kept = _units(left, values, vectors, least * scale)
    there, drawn = fresh(there, key, len(rows), kept, share, exact)
    here = learn(here, new, share, exact)
    asked, given = _put(side.asked, new, side.used), _put(side.given, drawn, side.used)
    if not exact:
        small = jnp.where(values > least * scale, 0.0, jnp.sqrt(jnp.maximum(values, 0.0)))
        side = side._replace(rest=product(vectors * small[None, :], product(vectors.T, side.spare)))
    return side._replace(asked=asked, given=given, used=side.used + kept, scale=scale), here, there


def _outside(rows: Array, basis: Array, share: Array) -> Array:
    for _ in range(2):  # once more, against rounding
        rows = rows - product(product(rows, basis.T) * share, basis)
    return rows


def _units(rows: Array, values: Array, vectors: Array, floor: Array) -> tuple[Array, Array]:
    """Orthonormal combinations of rows whose squares exceed the floor, the largest first, zeros after them; and how many."""
    order = jnp.arange(len(values))[::-1]
    values, vectors = values[order], vectors[:, order]
    keep = values > floor
    factors = jnp.where(keep, 1 / jnp.sqrt(jnp.where(keep, values, 1.0)), 0.0)
    return product((vectors * factors[None, :]).T, rows), jnp.sum(keep).astype(jnp.int32)


def _put(buffer: Array, rows: Array, count: Array) -> Array:
    return jax.lax.dynamic_update_slice(buffer, rows, (count, jnp.zeros_like(count)))
