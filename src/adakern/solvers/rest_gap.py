"""The duality gap of the neurons of one hidden layer of a homogeneous activation, as good as the search for what pulls hardest on them."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from adakern import losses
from adakern.limits import flow_gap, unit_search
from adakern.precision import scope
from adakern.solvers import atoms as atomic
from adakern.solvers import rest_search, rest_step
from adakern.solvers.atoms import Atoms
from adakern.solvers.rest_task import End, Problem, errors, summed

ENOUGH, MOST = (
    0.1,
    0.8,
)  # of the tolerance, for the gap: what is aimed at, and what is enough where there are many maxima
VERIFY = 6  # searches, one after the other, where there are many maxima, as long as
_FAILED, _LOST = 10.0, 1.5  # the gap is not this times too large, and with several outputs


def convex_of(task: Problem) -> rest_step.Convex:
    limit, root, points = task.limit, task.shape.root, task.points
    loss, member, y = losses.get(limit.loss), points.member, task.y
    counts = np.bincount(member).astype(np.float64)
    eye = np.eye(y.shape[1])

    def value(s: np.ndarray) -> float:
        if limit.loss == "squared":
            return 0.5 * float(np.sum((y - s[member]) ** 2))
        return float(jnp.sum(loss.value(jnp.asarray(y), jnp.asarray(s[member]))))

    def error(s: np.ndarray) -> np.ndarray:
        return points.add(np.asarray(loss.error(jnp.asarray(y), jnp.asarray(s[member])), np.float64))

    def curvature(s: np.ndarray) -> np.ndarray:
        if limit.loss == "squared":
            return counts[:, None, None] * eye[None, :, :]
        each = np.asarray(loss.curvature(jnp.asarray(y), jnp.asarray(s[member])), np.float64)
        each = each[:, :, None] * eye[None, :, :] if each.ndim == 2 else each
        return points.add(each.reshape(len(each), -1)).reshape(len(counts), *eye.shape)

    return rest_step.Convex(
        root,
        root @ root.T if task.shape.where.pool.sites == 1 else np.zeros((0, 0)),
        np.linalg.norm(root, axis=1),
        unit_search.bends(limit.network.activation),
        float(np.sqrt(limit.decays[0] * limit.decays[1])) / limit.richness,
        np.zeros((len(counts), y.shape[1])),
        value,
        error,
        curvature,
        task.shape.where.pool,
    )


def unit_neurons(found: Atoms) -> tuple[np.ndarray, np.ndarray]:
    """Directions and masses of the neurons of the first layer."""
    lengths = np.linalg.norm(found.incoming[0], axis=1)
    alive = lengths > 0
    return found.incoming[0][alive] / lengths[alive][:, None], found.shares[0][alive] * lengths[alive] ** 2


def certificate(task: Problem, found: Atoms, largest: float, signal: np.ndarray | None = None) -> flow_gap.Gap:
    r"""One hidden layer: the duality gap; `largest` is the strongest pull on a unit neuron, in units of its decay, of the errors or of another dual point `signal`."""
    limit = task.limit
    neurons = atomic.layers(task.shape, found)[0]
    delta = errors(task, found)
    price = float(np.sqrt(limit.decays[0] * limit.decays[1])) / limit.richness
    readouts = limit.richness / limit.decays[1] * neurons.pool.rows(neurons.features) @ summed(task, delta)
    sizes = np.linalg.norm(readouts.reshape(len(neurons.weights), -1), axis=1)
    lengths = np.linalg.norm(found.incoming[0], axis=1) * sizes
    s = (neurons.kernel @ summed(task, delta) / limit.decays[1])[task.points.member]
    norm = float(np.sum(neurons.weights * lengths)) / limit.richness
    dual = delta if signal is None else signal
    with scope("float64"):
        return flow_gap.measured(losses.get(limit.loss), task.y, s, dual, norm, price, largest * price)


def readouts(task: Problem) -> int:
    """Of a neuron: one for each output, and for each position where these are not averaged."""
    pool = task.shape.where.pool
    return task.y.shape[1] * (1 if pool.mean else pool.sites)


def measured(
    task: Problem,
    convex: rest_step.Convex,
    rest: tuple[Atoms, float, float],
    seed: int,
    rounds: int,
    enough: float,
    searches: int,
) -> tuple[End, unit_search.Found]:
    """The duality gap of atoms whose corners are all but closed, and what pulls hardest on them, as so many searches find it; as few as one, where that is already too much."""
    (found, value, relative), lost = rest, _FAILED if readouts(task) == 1 else _LOST
    units, _ = unit_neurons(found)
    sharp = replace(found, angle=0.0)
    # Errors of corners that are all but closed are a dual point as well, and the better one where targets are nearly met.
    tried, others = [], []
    for one in (sharp, found) if found.angle else (sharp,):
        delta = errors(task, one)
        pulls = convex.signals(convex.features(units), summed(task, delta))
        largest = float(np.max(np.linalg.norm(pulls, axis=1), initial=0.0)) / convex.price
        for search in range(searches):
            others.append(
                rest_search.strongest(task, convex, units, summed(task, delta), jax.random.key(seed + search))
            )
            largest = max(largest, float(np.max(others[-1].values)))
            gap = certificate(task, sharp, largest, delta)
            if gap.relative > lost * enough:
                break
        tried.append((gap, largest - 1))
        if gap.relative <= enough:
            break
    gap, excess = min(tried, key=lambda one: one[0].relative)
    return End(found, value, relative, excess, gap, rounds), unit_search.joined(*others)
