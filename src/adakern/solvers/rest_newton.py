"""Few neurons of one hidden layer, homogeneous activation, by Newton's method: steps of `rest_step` while the corner's angle falls; and neurons that leave and join."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from threadpoolctl import ThreadpoolController

from adakern.solvers.rest_step import Convex, Law, Place, direction, place

_BLAS = ThreadpoolController()
_STIFF = 0.1  # curvature of a point, over that of the neuron's length, below which it is left out of Newton's matrix
_NEAR = 1e-6  # gain of a step, over the value, below which nearly all points count
_HALVINGS = 8
_DAMPING, _HARD = 1e-3, 1e6  # over the curvature of lengths: where it begins, and where it is given up
_FLOOR = 0.05  # of lengths, over their mean and the angle
_FOLLOW, _FALL = 0.1, 4.0  # an angle is done with when a step gains less than this of it; how fast angles fall
_LIGHT = 0.03  # of the mean length: lighter neurons may be let go
_ALIKE = 0.99  # cosine of readouts of neurons that may be one


class Rest(NamedTuple):
    """Where Newton's method ended."""

    law: Law
    slopes: np.ndarray  # φ', (K, P)
    value: float
    decrement: float  # what the last step was about to gain, over the value
    steps: int


def _moved(law: Law, move: np.ndarray, turn: np.ndarray, fraction: float) -> Law:
    readouts = law.readouts + fraction * turn
    return Law(law.weights + fraction * move, readouts / np.linalg.norm(readouts, axis=1, keepdims=True))


def descend(
    task: Convex,
    law: Law,
    *,
    angles: tuple[float, float],
    goal: float,
    steps: int,
    tailed: bool = True,
    report: Callable[[float], bool] | None = None,
) -> Rest:
    """Newton steps while the corner's angle falls from the first to the last of `angles`, until one is to gain less than `goal` of the value.

    `report` is told what each step was to gain, over the value, and says whether to go on. Lengths have a floor that falls with the angle where corners are `tailed`: neurons pass through
    zero, and others grow from next to nothing.
    """
    angle, last = angles
    damping, decrement, used, floor = _DAMPING, np.inf, 0, 0.0
    with _BLAS.limit(limits=1, user_api="blas"):
        for used in range(1, steps + 1):  # noqa: B007
            sizes = np.linalg.norm(law.weights, axis=1)
            floor = _FLOOR * angle * float(sizes.mean()) if tailed else 0.0
            at = place(task, law, angle, floor, tailed)
            stiff = _STIFF if abs(decrement) > _NEAR else _STIFF * _NEAR
            move, turn, gain = direction(task, law, at, damping, stiff)
            decrement = gain / at.value
            fraction, law = _search(task, law, at, move, turn, gain, (angle, floor, tailed))
            if report is not None and not report(decrement):
                break
            if fraction >= 0.5:  # close to the end damping goes
                damping = max(damping / 10, min(_DAMPING, decrement))
            elif fraction < 0.25:
                damping = min(max(damping, 1e-6) * 10, _HARD)
            settled = 0 <= decrement <= goal
            if (settled and angle <= last) or (fraction == 0.0 and damping >= _HARD):
                break
            if settled or (fraction >= 0.5 and decrement <= _FOLLOW * angle):
                angle = max(angle / _FALL, last)
        at = place(task, law, angle, floor, tailed)
    return Rest(law, at.slopes, at.value, decrement, used)


def _search(
    task: Convex,
    law: Law,
    at: Place,
    move: np.ndarray,
    turn: np.ndarray,
    gain: float,
    corners: tuple[float, float, bool],
) -> tuple[float, Law]:
    """The largest of 1, ½, ¼, … of a step that goes downhill, and where it leads; 0 and where it was, if none does."""
    flat = 8 * np.finfo(np.float64).eps * abs(at.value)
    fraction = 1.0
    for _ in range(_HALVINGS if gain > 0 else 0):
        there = _moved(law, move, turn, fraction)
        if place(task, there, *corners).value <= at.value - 1e-4 * fraction * gain + flat:
            return fraction, there
        fraction /= 2
    return 0.0, law


def thinned(task: Convex, law: Law, closeness: float, margin: float, errors: np.ndarray | None = None) -> Law:
    """Neurons closer than that become one, and light ones whose pull is by the margin too weak to live go. Not at rest any more: the outputs feel both."""
    sizes = np.linalg.norm(law.weights, axis=1)
    units = law.weights / np.maximum(sizes, np.finfo(np.float64).tiny)[:, None]
    at = place(task, Law(units, law.readouts))
    delta = task.error(place(task, law).outputs) if errors is None else errors
    dying = (np.linalg.norm(task.signals(at.features, delta), axis=1) < (1 - margin) * task.price) & (
        sizes < _LIGHT * sizes.mean()
    )
    groups: list[list[int]] = []
    for k in np.argsort(-sizes):
        if dying[k] or sizes[k] == 0:
            continue
        for group in groups:
            first = group[0]
            if units[first] @ units[k] > 1 - 0.5 * closeness**2 and law.readouts[first] @ law.readouts[k] > _ALIKE:
                group.append(int(k))
                break
        else:
            groups.append([int(k)])
    weights = [law.weights[group].sum(axis=0) for group in groups]
    return Law(np.stack(weights), law.readouts[[group[0] for group in groups]]) if groups else law


def joined(task: Convex, law: Law | None, directions: np.ndarray, length: float, delta: np.ndarray) -> Law:
    """With new neurons of that length, read out along their own pull on the errors."""
    signals = task.signals(task.features(directions), delta)
    norms = np.linalg.norm(signals, axis=1)
    some = norms > 0
    new = Law(length * directions[some], signals[some] / norms[some][:, None])
    if law is None:
        return new
    return Law(*(np.concatenate(both) for both in zip(law, new, strict=True)))
