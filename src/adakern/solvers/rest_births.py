"""Deep networks: settled atoms, and the neurons that are missing among them."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from adakern.limits import resting, unit_search, unit_starts
from adakern.precision import scope
from adakern.solvers import atoms as atomic
from adakern.solvers.atoms import Atoms
from adakern.solvers.rest_settle import polish, sharpen
from adakern.solvers.rest_task import End, Meter, Problem, errors, summed

_AGAIN = (
    4  # index of the angle from which descent begins again after births: what is born may stand close to what is there
)
_ROUNDS = 30  # of births
_BORN = 24  # neurons born in a layer at once
_APART = 3e-3  # distance between two of them
_SEEDS = 256  # random starts of a search
_MASS = 0.02  # of a layer, that the newborn get
_EXCESS = 1e-5  # pull on an absent neuron, beyond its decay, at which a deep network tries to do with it
_GAIN = 1e-6  # of the objective, for which it is worth trying again


def _search(task: Problem, found: Atoms, seed: int) -> tuple[list[unit_search.Found], list[np.ndarray]]:
    """Local maxima of the pull on unit neurons of every layer, in units of the decay that they would pay, and what the layers above them want."""
    limit, found = task.limit, replace(found, angle=0.0)
    layers = atomic.layers(task.shape, found)
    delta = summed(task, errors(task, found))
    where = task.shape.where
    rest = resting.recursion(layers, delta, limit.richness, limit.decays, where)
    below = resting.inflow(layers, task.shape.root, where)
    pushed = [np.sqrt(n.weights)[:, None] * q for n, q in zip(layers[1:], rest.fields[1:], strict=True)]
    above = [where.places(layer, rows) for layer, rows in enumerate(pushed)] + [where.pool.factor(delta)]
    results = []
    for layer, (root, factor) in enumerate(zip(below, above, strict=True)):
        unit = found.incoming[layer] / np.maximum(np.linalg.norm(found.incoming[layer], axis=1), 1e-300)[:, None]
        with scope("float64"):
            key = jax.random.key(seed * 1000 + layer)
            starts = unit_starts.default_starts(jnp.asarray(root), jnp.asarray(factor), _SEEDS, key)
            every = np.concatenate([np.asarray(starts), unit])
            result = unit_search.search(limit.network.activation, root, factor, every, exact=False)
        price = np.sqrt(limit.decays[layer] * limit.decays[layer + 1]) / limit.richness
        results.append(result._replace(values=np.asarray(result.values) / price))
    return results, [*rest.coefficients[1:]]


def _born(
    task: Problem, found: Atoms, results: list[unit_search.Found], wanted: list[np.ndarray], excess: float
) -> Atoms:
    """The neurons that would pull hardest, added to the layers where any pulls more than it costs."""
    for layer in range(len(results) - 1, -1, -1):
        values, directions = results[layer].values, np.asarray(results[layer].directions)
        chosen: list[int] = []
        for index in np.argsort(-values):
            if values[index] < 1 + excess or len(chosen) == _BORN:
                break
            if all(np.linalg.norm(directions[index] - directions[other]) > _APART for other in chosen):
                chosen.append(int(index))
        if not chosen:
            continue
        new = directions[chosen]
        total = float(np.sum(found.shares[layer][:, None] * found.incoming[layer] ** 2))
        mass = _MASS * total if total > 0 else 1e-2
        pulls = None
        if layer + 1 < len(results):
            below = resting.inflow(atomic.layers(task.shape, found), task.shape.root, task.shape.where)[layer]
            values_new = np.maximum(new @ below.T, 0.0) if task.model.kinked else new @ below.T
            pulls = wanted[layer] @ task.shape.where.gather(layer, np.sqrt(mass / len(chosen)) * values_new)
            newborn = len(found.shares[layer + 1]) - len(pulls)  # of the layer above, which take nothing in yet
            pulls = np.concatenate([pulls, np.zeros((newborn, pulls.shape[1]))])
        found = atomic.add(found, layer, new, pulls, mass)
    return found


def settled(task: Problem, found: Atoms, value: float, seed: int, tolerance: float, meter: Meter) -> End:
    """From atoms at a nearly closed corner to rest."""
    number = 0
    for number in range(_ROUNDS if task.shape.homogeneous else 0):
        results, wanted = _search(task, found, seed + number)
        excess = max(float(np.max(result.values)) - 1 for result in results)
        if meter.spent or excess <= _EXCESS:
            break
        tried, lower = sharpen(task, _born(task, found, results, wanted, 0.3 * min(_EXCESS, excess)), _AGAIN, meter)
        gained = value - lower
        if gained > 0:
            found, value = tried, lower
        if gained < _GAIN * abs(value):
            break  # it dies again: the pull on it is that of a corner, which gives way
    found, value, relative = polish(task, found, tolerance, meter)
    excess = 0.0
    if task.shape.homogeneous:
        excess = max(float(np.max(result.values)) - 1 for result in _search(task, found, seed + number)[0])
    return End(found, value, relative, excess, None, number)
