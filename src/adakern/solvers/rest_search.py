"""Searches for the neurons that a law of unit neurons misses: of these `rest_convex` makes its rounds."""

from __future__ import annotations

import jax
import numpy as np

from adakern.limits import unit_search, unit_starts
from adakern.solvers import rest_read, rest_step
from adakern.solvers.rest_task import Problem

_SEEDS = 256  # random starts of a search
_FRESH = (128, 64, 96)  # random starts: at first, then, and with several outputs
_HOPS = 128  # from neurons at hand, from which others are searched for
_CLOSER = 0.02  # gap below which the families of what they find are searched too
_FAMILIES, _YOUNG = 16, 3  # how many, and rounds
_WEAKER, _MEMORY, _SAME = 0.03, 1000, 1e-4  # directions that are kept: how weak, how many, how close they count as one


def pulls(
    task: Problem,
    convex: rest_step.Convex,
    law: rest_step.Law | None,
    known: np.ndarray,
    angle: float,
    gap: float,
    rng: np.random.Generator,
    key: jax.Array,
) -> tuple[unit_search.Found, np.ndarray]:
    """Local maxima of the pull, from random starts, from hops around the neurons at hand and in the families of both; and the starts."""
    delta = convex.error(convex.zero) if law is None else rest_read.errors(task, convex, law, angle).summed
    signal, activation = convex.pool.factor(delta), task.limit.network.activation
    single = signal.shape[1] == 1
    own = np.zeros((0, convex.root.shape[1]))
    if law is not None:
        own = law.weights / np.linalg.norm(law.weights, axis=1, keepdims=True)
    large = unit_search.large(convex.root, signal)
    if law is None or large:
        many = _FRESH[0] if law is None else many_starts(task, signal)
    else:
        many = _FRESH[1] if single else _FRESH[2]
    starts = unit_starts.default_starts(convex.root, signal, many, key)
    if single or large:
        starts = np.concatenate([starts, unit_starts.hops(own, _HOPS if law is not None else 0, rng)])
    if single or large:
        found = unit_search.sought(activation, convex.root, signal, starts)
    else:
        found = unit_search.search(activation, convex.root, signal, starts, exact=False)
    if law is not None and not single and not large:
        # Climbs are long, and what is missing is close to what is there.
        places = np.concatenate([own, unit_search.apart(recalled(task, convex, law, angle, known), own, _HOPS // 4)])
        places = unit_starts.some(places, convex.root, rng)
        found = unit_search.joined(
            found, unit_search.families(activation, convex.root, signal, places, rng, rounds=2, tries=2)
        )
    elif law is not None and gap < _CLOSER and not unit_search.few(found):
        heads = unit_search.apart(found, own, _FAMILIES)
        near = unit_starts.some(own, convex.root, rng)
        there = unit_search.families(activation, convex.root, signal, near, rng, rounds=1, tries=1)
        others = unit_search.families(activation, convex.root, signal, heads, rng, rounds=1 if large else _YOUNG)
        found = unit_search.joined(found, there, others)
    return found._replace(values=np.asarray(found.values) / convex.price), starts


def remembered(known: np.ndarray, pulls: unit_search.Found) -> np.ndarray:
    """Directions that pull nearly as hard as it takes to be there, each once, the latest first."""
    near = unit_search.first(
        unit_search.Found(*(part[pulls.values > 1 - _WEAKER] for part in pulls)), _MEMORY
    ).directions
    old = known[np.max(known @ near.T, axis=1, initial=-1.0) < 1 - _SAME] if len(near) else known
    return np.concatenate([near, old])[:_MEMORY]


def recalled(
    task: Problem, convex: rest_step.Convex, law: rest_step.Law, angle: float, known: np.ndarray
) -> unit_search.Found:
    """Known directions and their pulls now."""
    delta = rest_read.errors(task, convex, law, angle).summed
    values = np.linalg.norm(convex.signals(convex.features(known), delta), axis=1) / convex.price
    return unit_search.Found(known, values, np.zeros((len(known), 0)), np.zeros(len(known)))


def hardest(
    task: Problem, convex: rest_step.Convex, law: rest_step.Law, angle: float, key: jax.Array
) -> unit_search.Found:
    """The strongest pulls that a longer search finds."""
    units = law.weights / np.linalg.norm(law.weights, axis=1, keepdims=True)
    return strongest(task, convex, units, rest_read.errors(task, convex, law, angle).summed, key)


def strongest(
    task: Problem, convex: rest_step.Convex, units: np.ndarray, delta: np.ndarray, key: jax.Array
) -> unit_search.Found:
    """The same of given unit neurons and errors."""
    signal = convex.pool.factor(delta)
    starts = unit_starts.default_starts(convex.root, signal, many_starts(task, signal), key)
    found = unit_search.hardest(task.limit.network.activation, convex.root, signal, starts, key, known=units)
    return found._replace(values=np.asarray(found.values) / convex.price)


def many_starts(task: Problem, signal: np.ndarray) -> int:
    """Random starts of a long search."""
    return _SEEDS if task.shape.where.network is None else unit_starts.images_starts(task.shape.root, signal)
