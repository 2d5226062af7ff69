"""Room for directions: how much is in use, more of it where it runs out, and all of it as arrays of a file."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from adakern.chebyshev import Motion
from adakern.trajectories.deep_flow import Bases, State
from adakern.trajectories.deep_weights import Known, Side, Weights


class Population(NamedTuple):
    """One population: what is known of its initial weights, where it began, and where it is."""

    bases: Bases
    first: State
    motion: Motion


class Used(NamedTuple):
    """The largest numbers of rows in use: directions of a matrix, and all that is known of a layer."""

    directions: int
    known: int


def used(bases: Bases) -> Used:
    counts = [side.used for weights in bases.weights for side in weights]
    found = jax.device_get((counts, [known.used for known in bases.known]))
    return Used(max(map(int, found[0])), max(map(int, found[1])))


def room(bases: Bases) -> Used:
    """What there is room for."""
    return Used(bases.weights[0].up.asked.shape[0], bases.known[0].rows.shape[0])


def widened(population: Population, directions: int, known: int, width: int) -> Population:
    """The same with more room; neurons of a population are as many as they are, coordinates may become more."""
    bases, first, motion = population

    def rows(array: Array, most: int) -> Array:
        return _padded(array, most, width)

    def side(one: Side) -> Side:
        return one._replace(
            asked=rows(one.asked, directions),
            given=rows(one.given, directions),
            spare=rows(one.spare, len(one.spare)),
            rest=rows(one.rest, len(one.rest)),
        )

    def state(one: State) -> State:
        C = tuple(_padded(each, directions, directions) for each in one.C)
        return State(rows(one.w, len(one.w)), C, rows(one.a, len(one.a)), one.fade)

    return Population(
        Bases(
            tuple(Weights(side(one.up), side(one.down)) for one in bases.weights),
            tuple(Known(rows(one.rows, max(known, len(one.rows))), one.used) for one in bases.known),
            rows(bases.far, len(bases.far)),
        ),
        state(first),
        motion._replace(state=state(motion.state), velocity=state(motion.velocity), direction=state(motion.direction)),
    )


def _padded(array: Array, height: int, width: int) -> Array:
    return jnp.pad(array, ((0, height - array.shape[0]), (0, width - array.shape[1])))


def pack(population: Population) -> dict[str, np.ndarray]:
    return {f"population.{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(population))}


def unpack(arrays: dict[str, np.ndarray], like: Population) -> Population:
    """What `pack` wrote, in the structure of another population, whose buffers may be smaller."""
    leaves, structure = jax.tree.flatten(like)
    packed: list[Any] = []
    for i, leaf in enumerate(leaves):
        array = jnp.asarray(arrays[f"population.{i}"])
        packed.append(array.reshape(()) if leaf.ndim == 0 else array)  # a file gives scalars back as arrays of one
    return jax.tree.unflatten(structure, packed)
