"""Many neurons of one hidden layer of ReLU or another activation with a corner, downhill together with their readouts solved for: where Newton's method begins.

Newton's method adds neurons where they are missing, a few at a time, and a step of it costs a factorisation for every neuron. A few hundred quasi-Newton steps of many neurons at once, whose
corners close on the way, cost less than one of its rounds where points are many, and end a few tenths of a percent above the least value (100 images), or a percent (1000).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from adakern import losses
from adakern.limits import unit_search, unit_starts
from adakern.precision import scope
from adakern.solvers import atoms as atomic
from adakern.solvers import rest_gap, rest_step
from adakern.solvers.atoms import Atoms
from adakern.solvers.rest_settle import settle
from adakern.solvers.rest_task import End, Meter, Problem, factor, summed

_TURNS, _BETTER = 8, 0.7  # of many neurons downhill, and what is left of the gap after one that is worth another
_THOROUGH = 2e6  # numbers of the root that all searches of one turn go through
_MANY = 200  # outputs of training points and positions from which on many neurons begin, if
_GLANCE, _STRONG = 32, 10.0  # one of so many starts is pulled this much harder than it takes to live
_NEW = 40  # neurons that join in a turn, at most
ANGLES = ((0.3, 50), (0.1, 60), (0.03, 80), (0.01, 120), (3e-3, 200), (1e-3, 300))  # and evaluations at each
_NEURONS = (100, 3, 1000)  # at least, for a point, and at most
_NUMBERS, _PAIRS = (
    10_000_000,
    10,
)  # fields at all points and positions, at most, and weights times this, which the descent remembers
_SCALES = np.geomspace(1e-3, 1e3, 13)  # of all lengths, among which the best is found, and
_BELOW = 0.2  # of it, where the descent begins: growing where it serves is quicker than shrinking everywhere else
_AGAIN, _FALLS = 4, 1e-3  # how often the last angle is gone on with, as long as the value falls by this much of itself
TIGHT = ((1e-4, 3.0, 200), (1e-5, 0.5, 300))  # angles, relative gradients over the tolerance, evaluations
_NEWCOMER = 0.01  # of the mean mass
_STILL = 1e-5  # relative gradient at which an angle is done with
_CLOSE = 0.05  # of the angle: distance within which unit neurons are one
_LIGHT = 1e-4  # of the mean mass: neurons that are about to die


def serves(task: Problem, convex: rest_step.Convex, seed: int) -> bool:
    """Whether to begin with many neurons, downhill.

    Few points are done sooner without, readouts of several outputs are not quickly solved for unless the loss is squared, and close to the threshold few neurons are there to be found, whose lengths the value hardly feels.
    """
    quick = task.limit.loss == "squared" or task.y.shape[1] == 1
    if not (task.model.kinked and quick and len(convex.root) * task.y.shape[1] > _MANY):
        return False
    delta = convex.error(convex.zero)
    starts = unit_starts.default_starts(convex.root, convex.pool.factor(delta), _GLANCE, jax.random.key(seed))
    pulls = np.linalg.norm(convex.signals(convex.features(starts), delta), axis=1)
    return float(np.max(pulls)) > _STRONG * convex.price


def begun(
    task: Problem, convex: rest_step.Convex, seed: int, tolerance: float, meter: Meter
) -> tuple[Atoms, End | None]:
    """Many neurons downhill, and with them others that a search finds missing as long as the gap falls quickly; and an end, where that is all that was asked for."""
    found, before = descended(task, seed, meter), np.inf
    for turn in range(_TURNS):
        if meter.spent:
            break
        tight = tightened(task, found, tolerance, meter)
        end, pulls = rest_gap.measured(
            task, convex, tight, seed + turn * rest_gap.VERIFY, turn, rest_gap.MOST * tolerance, searches(convex)
        )
        enough = (rest_gap.ENOUGH if unit_search.few(pulls) else rest_gap.MOST) * tolerance
        if end.violation <= enough and end.relative <= tolerance:
            return found, end
        missing = unit_search.first(unit_search.Found(*(part[pulls.values > 1] for part in pulls)), _NEW).directions
        if end.violation > _BETTER * before or not len(missing):
            break
        before = end.violation
        found = joined(task, found, missing, meter)
        meter.reach(found)
    return found, None


def searches(convex: rest_step.Convex) -> int:
    """How many confirm a gap."""
    return int(np.clip(_THOROUGH / convex.root.size, 1, rest_gap.VERIFY))


def descended(task: Problem, seed: int, meter: Meter, angles: Sequence[tuple[float, int]] = ANGLES) -> Atoms:
    """Unit neurons of a search's starts, to where the last of the angles leaves them. In single precision, which half of the time is enough for."""
    root, limit = task.shape.root, task.limit
    task = task._replace(shape=replace(task.shape, root=root.astype(np.float32)))
    points = len(task.points.first)
    most = _NUMBERS // max(len(root), _PAIRS * root.shape[1])
    count = int(np.clip(_NEURONS[1] * points, _NEURONS[0], max(min(_NEURONS[2], most), _NEURONS[0])))
    with scope("float64"):
        delta = np.asarray(losses.get(limit.loss).error(jnp.asarray(task.y), jnp.zeros(task.y.shape)))
        # Half as a search begins, half with white noise on all points: large where the inputs are.
        aimed = unit_starts.default_starts(root, factor(task, summed(task, delta)), count // 2, jax.random.key(seed))
        noise = np.random.default_rng([seed, 3]).standard_normal((count - len(aimed), len(root))) @ root
        starts = np.concatenate([unit_search.unit(noise), aimed])
        found = _scaled(task, Atoms((starts,), (np.full(count, 1 / count),), angles[0][0]))
        before = np.inf
        for angle, patience in (*angles, *(angles[-1],) * _AGAIN):
            if meter.spent:
                break
            again = found.angle == angle
            found, value, _ = settle(task, replace(found, angle=angle), _STILL, meter, patience)
            found = _lighter(atomic.merge(task.shape, found, _CLOSE * angle))
            meter.reach(found)
            if again and value > (1 - _FALLS) * before:
                break
            before = value
    return found


def joined(task: Problem, found: Atoms, directions: np.ndarray, meter: Meter) -> Atoms:
    """With other unit neurons, small at first, downhill at the same angle."""
    (weights,), (shares,) = found.incoming, found.shares
    masses = np.concatenate([shares * np.sum(weights**2, axis=1), np.zeros(len(directions))])
    masses[len(shares) :] = _NEWCOMER * masses.sum() / len(shares)
    units = np.concatenate([unit_search.unit(weights), directions])
    count = len(units)
    both = Atoms((units * np.sqrt(masses * count)[:, None],), (np.full(count, 1 / count),), found.angle)
    after, _, _ = settle(task, both, _STILL, meter, ANGLES[-1][1])
    return _lighter(atomic.merge(task.shape, after, _CLOSE * found.angle))


def tightened(task: Problem, found: Atoms, tolerance: float, meter: Meter) -> tuple[Atoms, float, float]:
    """With the corner all but closed; the value and the relative gradient there."""
    value = relative = np.inf
    for angle, goal, patience in TIGHT:
        found, value, relative = settle(task, replace(found, angle=angle), goal * tolerance, meter, patience)
    return found, value, relative


def _scaled(task: Problem, found: Atoms) -> Atoms:
    """Lengths a little below those that fit best."""
    values = [atomic.value_and_gradient(task.shape, _times(found, scale))[0] for scale in _SCALES]
    return _times(found, _BELOW * float(_SCALES[int(np.argmin(values))]))


def _times(found: Atoms, scale: float) -> Atoms:
    return replace(found, incoming=tuple(scale * weights for weights in found.incoming))


def _lighter(found: Atoms) -> Atoms:
    """Without the neurons that are about to die."""
    (weights,), (shares,) = found.incoming, found.shares
    masses = shares * np.sum(weights**2, axis=1)
    alive = masses > _LIGHT * masses.mean()
    if not alive.any():
        return found
    count = int(alive.sum())
    scale = np.sqrt(shares[alive] * count)[:, None]
    return replace(found, incoming=(weights[alive] * scale,), shares=(np.full(count, 1 / count),))
