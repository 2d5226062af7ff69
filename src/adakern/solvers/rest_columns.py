r"""One hidden layer of ReLU or another activation with a corner over windows of images, squared loss: very many unit neurons, of which the best masses are found again and again while others join.

Given the neurons, the best masses are a smooth convex problem (`interior`), and its errors $\Delta$ pull on unit neurons that are not there yet: local maxima of the pull close to those that are, and others far from them, climbed to by the hundred in a few
matrix products (`rounded`). All that are pulled harder than they cost join. Nothing is moved, and no step is shared between neurons: a round costs less than a Newton step of as many neurons does.

Where neurons are very many, errors of one round fit the neurons at hand, and pull on others by chance. Others are looked for where the mean of the errors over rounds pulls, which no neuron is pulled as hard by.

Where windows are many and have few dimensions, the neurons at hand soon cover what can pull. In as many dimensions as there are rows, hardly two searches meet, and neurons have to be moved (`rest_path`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from adakern import losses
from adakern.limits import flow_gap, unit_search, unit_starts
from adakern.solvers import atoms as atomic
from adakern.solvers import corrective, interior, rest_gap, rest_step, rest_wide
from adakern.solvers.atoms import Atoms
from adakern.solvers.rest_settle import settle
from adakern.solvers.rest_task import End, Meter, Problem, squared_curvature

MANY = 200  # neurons that are given, from which on more join them here, and Newton's method is left for later
_DENSE = 4  # rows of the root over its dimensions, from which on
_TURNS, _ROUNDS = 4, 30  # of columns and of moving what is left of them; and of columns in one
_INNER = 0.1  # of the gap, for that of the masses among the neurons at hand
_FINEST, _COARSE = 1e-9, 1e-3
_WORK, _FRESH = (
    2e10,
    (256, 1024),
)  # numbers that all products of a round's starts go through; and starts, at least and at most
_YOUNG, _PARENTS = 128, 32  # starts around what was found, and around how many of these
_LIGHT = 1e-3  # of the mean mass: lighter neurons go, unless they are pulled
_IDLE = 2e-3  # by this little less than they cost
_JOIN = 0.1  # of the gap: a pull that is so much more than the price joins
_SHARE = 1e-3  # of the mean mass, that newcomers begin with
_SAME = 0.5  # times the square of the gap, for one minus the cosine of neurons that are one
_MEAN = 0.5  # share of this round's errors in their mean
_ROUGH = 4  # angles of the start's descent: the directions are good enough by then
_ONE = (
    0.02,
    0.05,
    0.1,
    0.15,
    0.2,
)  # distances within which neurons are one before they are moved: the first that leaves
_NUMBERS = 2e7  # so many fields, or the last
_SINGLE, _FEW = 1e-3, 2e6  # tolerance and fields from which on single precision is enough for that, and
_LOOSE = ((1e-3, 1.0, 150), (1e-4, 1.0, 200))  # angles, relative gradients over the tolerance, evaluations
_STILL = 3.0  # of the tolerance: the relative gradient of neurons that are at rest
_BETTER = 0.7  # what is left of the gap after a turn that is worth another


class Columns(NamedTuple):
    """Unit neurons with their masses, λ0 times these in all what they cost."""

    units: np.ndarray
    masses: np.ndarray

    def some(self, which: np.ndarray) -> Columns:
        return Columns(self.units[which], self.masses[which])

    def atoms(self) -> Atoms:
        """With sharp corners."""
        count = len(self.masses)
        weights = self.units * np.sqrt(self.masses * count)[:, None]
        return Atoms((weights,), (np.full(count, 1 / count),), 0.0)


def serves(task: Problem, convex: rest_step.Convex, seed: int) -> bool:
    """Whether windows are many, of few dimensions, and strong pulls make for many neurons."""
    rows, rank = convex.root.shape
    if task.limit.loss != "squared" or rows <= _DENSE * rank:
        return False
    if not unit_search.large(convex.root, convex.pool.factor(convex.zero)):
        return False
    return rest_wide.serves(task, convex, seed)


def begun(
    task: Problem, convex: rest_step.Convex, seed: int, tolerance: float, meter: Meter, found: Atoms | None = None
) -> tuple[Atoms, End | None]:
    """Many neurons downhill, or those that are given; then turns of columns, and of what is left of them moved, as long as the gap falls. An end where it is met, and neurons for Newton's method where it is not."""
    if found is None:
        found = rest_wide.descended(task, seed, meter, rest_wide.ANGLES[:_ROUGH])
    rng = np.random.default_rng([seed, 5])
    columns, enough = Columns(*rest_gap.unit_neurons(found)), rest_gap.MOST * tolerance
    best: End | None = None
    for turn in range(_TURNS):
        columns = generated(task, convex, columns, tolerance, meter, rng)
        tight = _moved(task, _fewer(task, columns.atoms()), tolerance, meter)
        moved, more = rest_gap.measured(
            task, convex, tight, seed + turn * rest_gap.VERIFY, turn, enough, rest_wide.searches(convex)
        )
        meter.gap(moved.violation)
        meter.reach(moved.atoms)
        if meter.spent or (moved.violation <= enough and moved.relative <= _STILL * tolerance):
            return moved.atoms, moved
        if best is not None and moved.violation > _BETTER * best.violation:
            break
        best = moved
        own = Columns(*rest_gap.unit_neurons(moved.atoms))
        columns = _joined(own, np.concatenate([more.directions[more.values > 1], columns.units]), _FINEST)
    return min((best, moved), key=lambda one: one.violation).atoms if best is not None else moved.atoms, None


def _fewer(task: Problem, found: Atoms) -> Atoms:
    """Neurons close to each other become one, so many that moving them does not take too long."""
    for close in _ONE:
        merged = atomic.merge(task.shape, found, close)
        if len(merged.shares[0]) * len(task.shape.root) <= _NUMBERS:
            break
    return merged


def _moved(task: Problem, found: Atoms, tolerance: float, meter: Meter) -> tuple[Atoms, float, float]:
    """Neurons downhill with corners that close, of large problems in single precision where that is enough; the value and the relative gradient."""
    angles = rest_wide.TIGHT
    if tolerance >= _SINGLE and len(found.shares[0]) * len(task.shape.root) > _FEW:
        angles, shape = _LOOSE, replace(task.shape, root=task.shape.root.astype(np.float32))
        task = task._replace(shape=shape)
    value = relative = np.inf
    for angle, goal, patience in angles:
        found, value, relative = settle(task, replace(found, angle=angle), goal * tolerance, meter, patience)
    return found, value, relative


def generated(
    task: Problem,
    convex: rest_step.Convex,
    begin: Columns,
    tolerance: float,
    meter: Meter,
    rng: np.random.Generator,
) -> Columns:
    """Rounds from these neurons until the gap, as their own searches see it, is met, or there is nothing left to spend. Called inside `precision.scope("float64")`."""
    limit, curvature = task.limit, squared_curvature(task.limit, task.points)
    assert curvature is not None
    columns, gap, mean = begin, 1.0, np.zeros_like(convex.zero)
    scale = limit.richness / np.sqrt(limit.decays[1])  # V over Δ
    for number in range(_ROUNDS):
        features = convex.pool.rows(convex.features(columns.units))
        inner = float(np.clip(_INNER * min(gap, tolerance), _FINEST, _COARSE))
        law = interior.best(features, columns.masses, limit.decays[0], task.shape.energy, curvature, inner)
        columns, delta = columns._replace(masses=law.masses), law.pull / scale
        mean = _MEAN * delta + (1 - _MEAN) * mean if number else delta
        heavy = columns.some(law.masses > _LIGHT * law.masses.mean())
        there = _sought(task, convex, heavy.units, mean, rng)
        ours = unit_search.pulls(limit.network.activation, convex.root, convex.pool.factor(delta), there.directions)
        own = np.sqrt(np.maximum(1 - 2 * law.slopes / limit.decays[0], 0.0))
        largest = max(float(np.max(ours)), float(np.max(own)) * convex.price)
        gap = _gap(task, convex, features, law.masses, delta, largest)
        meter.used += law.evaluations
        meter.gap(gap)
        meter.advance(f"duality gap {gap:.1e}, {len(heavy.masses)} neurons", law.evaluations)
        meter.reach(heavy.atoms())
        if gap <= rest_gap.MOST * tolerance or meter.spent:
            break
        pulls = np.maximum(there.values, ours) / convex.price
        some = pulls > 1 + _JOIN * gap
        missing = there.directions[some][np.argsort(-pulls[some])]
        stay = (law.masses > _LIGHT * law.masses.mean()) | (own > 1 - _IDLE)
        columns = _joined(columns.some(stay), missing, max(_SAME * gap**2, _FINEST))
    return heavy


def _sought(
    task: Problem, convex: rest_step.Convex, own: np.ndarray, delta: np.ndarray, rng: np.random.Generator
) -> unit_search.Found:
    """What these errors pull on: far from neurons at hand, close to them, and around what that finds."""
    activation, factor = task.limit.network.activation, convex.pool.factor(delta)
    count = int(np.clip(_WORK / (convex.root.size + factor.size), *_FRESH))
    random = rng.standard_normal((count - count // 2, convex.root.shape[1]))
    # Of many points, starts around neurons at hand lead to what is missing more often than points do.
    starts = np.concatenate([random, unit_starts.hops(own, count // 2, rng)])
    far = unit_search.climbed(activation, convex.root, factor, starts)
    found = unit_search.joined(far, unit_search.climbed(activation, convex.root, factor, own, near=True))
    young = unit_starts.hops(unit_search.apart(found, own, _PARENTS), _YOUNG, rng)
    return unit_search.joined(found, unit_search.climbed(activation, convex.root, factor, young))


def _gap(
    task: Problem,
    convex: rest_step.Convex,
    features: np.ndarray,
    masses: np.ndarray,
    delta: np.ndarray,
    largest: float,
) -> float:
    """The duality gap of these masses, as good as the search is."""
    limit, y = task.limit, task.y
    rows = corrective.weighted(masses, features)
    outputs = (rows.T @ (rows @ delta) / limit.decays[1])[task.points.member]
    sizes = np.linalg.norm((features @ delta).reshape(len(masses), -1), axis=1)
    cost = float(np.sum(masses * sizes)) / limit.decays[1]
    # Errors summed over equal points, at every point: these differ by their targets.
    counts = np.bincount(task.points.member)[:, None]
    signal = y + ((delta - task.points.add(y)) / counts)[task.points.member]
    return flow_gap.measured(losses.get(limit.loss), y, outputs, signal, cost, convex.price, largest).relative


def _joined(columns: Columns, new: np.ndarray, same: float) -> Columns:
    """With the new ones among these, each once, the first of them first."""
    count = len(columns.units)
    every = np.concatenate([columns.units, np.zeros_like(new)])
    for u in new:
        if np.max(every[:count] @ u, initial=-1.0) < 1 - same:
            every[count], count = u, count + 1
    share = np.full(count - len(columns.units), _SHARE * columns.masses.mean())
    return Columns(every[:count], np.concatenate([columns.masses, share]))
