"""Atoms downhill while ReLU's corner closes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from adakern.solvers import atoms as atomic
from adakern.solvers.atoms import Atoms
from adakern.solvers.descending import descend
from adakern.solvers.rest_task import Meter, Problem

ANGLES = (0.1, 0.03, 0.01, 3e-3, 1e-3)
_LAST = 3e-4  # when no neuron is missing any more
_AGAIN = 3  # descents at the last
_PATIENCE, _MORE_PATIENCE = 400, 3000  # evaluations of one angle, and of the last
LOOSE = 1e-2  # relative gradient at which white particles have sorted themselves
STAGE = 1e-3  # and at which an angle is done with
_FINE = 0.5  # of the tolerance, at the last angle
CLOSE = (
    0.01,
    1e-3,
    0.1,
)  # distance within which unit neurons are one: at most, at least, and over the angle of the corner


def settle(
    task: Problem, found: Atoms, tolerance: float, meter: Meter, patience: int = _PATIENCE
) -> tuple[Atoms, float, float]:
    """Descent at a fixed angle; the objective and the relative gradient where it ended."""
    shape, decays = task.shape, task.limit.decays
    scales = [np.sqrt(decay * shares)[:, None] for decay, shares in zip(decays[:-1], found.shares, strict=True)]
    cuts = np.cumsum([weights.size for weights in found.incoming])[:-1]

    def atoms(z: np.ndarray) -> Atoms:
        parts = zip(np.split(z, cuts), found.incoming, scales, strict=True)
        return replace(found, incoming=tuple(part.reshape(w.shape) / scale for part, w, scale in parts))

    def function(z: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradients = atomic.value_and_gradient(shape, atoms(z))
        return value, np.concatenate([(g / scale).ravel() for g, scale in zip(gradients, scales, strict=True)])

    z = np.concatenate([(w * scale).ravel() for w, scale in zip(found.incoming, scales, strict=True)])
    end = descend(function, z, tolerance=tolerance, evaluations=min(meter.left, patience), report=meter.report)
    meter.used += end.evaluations
    return atoms(end.x), end.value, end.relative


def sharpen(task: Problem, found: Atoms, begin: int, meter: Meter) -> tuple[Atoms, float]:
    """Descent while the corner closes, merged after every angle; and the objective at the last of them."""
    value = np.inf
    for angle in ANGLES[begin:] if task.model.kinked else (0.0,):
        found, value, _ = settle(task, replace(found, angle=angle), STAGE, meter)
        found = atomic.merge(task.shape, found, min(max(CLOSE[2] * angle, CLOSE[1]), CLOSE[0]))
        meter.reach(found)
    return found, value


def polish(task: Problem, found: Atoms, tolerance: float, meter: Meter) -> tuple[Atoms, float, float]:
    """Descent to a fraction of the tolerance, the corner closed further."""
    sharp = replace(found, angle=_LAST if task.model.kinked else 0.0)
    ends = []
    for _ in range(_AGAIN):  # corners that neurons have left are still in the memory of the descent: it begins anew
        ends.append(settle(task, sharp, _FINE * tolerance, meter, _MORE_PATIENCE))
        sharp, _, relative = ends[-1]
        meter.reach(sharp)
        if relative <= tolerance or meter.spent:
            break
    return min(ends, key=lambda end: end[2])  # where nothing is left to gain, gradients are rounding
