"""Where atoms come from: particles from the network's initial law, or fields that are given."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from adakern.solvers import atoms as atomic
from adakern.solvers import rest_model
from adakern.solvers.atoms import Atoms
from adakern.solvers.descending import descend
from adakern.solvers.rest_settle import ANGLES, CLOSE, LOOSE
from adakern.solvers.rest_task import Meter, Problem


def white(task: Problem, seed: int, start: int, count: int, meter: Meter) -> Atoms:
    """Particles from the network's initial law, downhill until they have sorted themselves, condensed."""
    white = task.white
    depth = task.limit.network.depth
    ranks = [white.root.shape[1], *task.shape.where.fields(len(task.points.first), depth)[1:]]
    rng = np.random.default_rng([seed, start])
    first = [rng.standard_normal((count, rank)) for rank in ranks]
    scales = [np.sqrt(decay / count) for decay in task.limit.decays[:-1]]
    cuts = np.cumsum([part.size for part in first])[:-1]
    angle = jnp.asarray(ANGLES[0], white.root.dtype)

    def positions(z: np.ndarray) -> rest_model.Layers:
        parts = zip(np.split(z, cuts), scales, ranks, strict=True)
        return tuple(jnp.asarray((part / scale).reshape(count, rank), white.root.dtype) for part, scale, rank in parts)

    def function(z: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradients = rest_model.value_and_gradient(task.model, white, positions(z), angle)
        flat = [np.asarray(part, np.float64).ravel() / scale for part, scale in zip(gradients, scales, strict=True)]
        return float(value), np.concatenate(flat)

    z = np.concatenate([(part * scale).ravel() for part, scale in zip(first, scales, strict=True)])
    end = descend(function, z, tolerance=LOOSE, evaluations=meter.left, report=meter.report)
    meter.used += end.evaluations
    return _condensed(task, positions(end.x))


def _condensed(task: Problem, positions: rest_model.Layers) -> Atoms:
    angle = jnp.asarray(ANGLES[0], task.white.root.dtype)
    _, roots = rest_model.climb(task.model, task.white, positions, angle)
    features, fields = [], []
    for epsilon, root in zip(positions, roots, strict=True):
        features.append(np.asarray(rest_model.features(task.model, epsilon, root, angle), np.float64))
        fields.append(np.asarray(jnp.matmul(epsilon, root.T, precision="highest"), np.float64))
    white = [np.asarray(p, np.float64) for p in positions]
    made = atomic.condense(white, features, fields, ANGLES[0], task.shape.where)
    return atomic.merge(task.shape, made, CLOSE[0])


def from_fields(task: Problem, given: list[tuple[np.ndarray, np.ndarray]]) -> Atoms:
    """Neurons of every layer given by their fields at all points (of a CNN at their positions) and their shares, with the shortest weights that make them."""
    first = task.points.first
    fields, shares = [field for field, _ in given], [share for _, share in given]
    own = [field.reshape(len(field), len(task.y), -1)[:, first].reshape(len(field), -1) for field in fields]
    features = [task.shape.curve(field, np.zeros_like(field))[0] for field in own]
    weights = own[0] @ np.linalg.pinv(task.shape.root).T
    made = atomic.condense([weights, *own[1:]], features, own, 0.0, task.shape.where, shares)
    return atomic.merge(task.shape, made, CLOSE[1])
