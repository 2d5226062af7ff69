"""One hidden layer of a homogeneous activation and many points: problems whose neurons cost more come first, each from where the last one ended.

A high price leaves few neurons, whose Newton steps are cheap, and lets outputs be far from their targets. While it falls, neurons join where they are missing, and outputs never have to find their way from nothing to targets that are nearly met, along which
Newton's method creeps. A price falls when the gap is a tenth of the value, or after a few rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np

from adakern.limits import unit_search, unit_starts
from adakern.solvers import rest_gap, rest_newton, rest_rounds, rest_search
from adakern.solvers.atoms import Atoms
from adakern.solvers.rest_step import Convex, Law
from adakern.solvers.rest_task import Meter, Problem

_GLANCE = 64  # starts whose pull tells how high the price is to begin with:
_FIRST, _FALL = 0.2, 3.0  # of that pull, and by how much it falls from one problem to the next
_STRONG = 10.0  # how much harder than it takes to live one of them is pulled, where this is worth it
_ROUNDS, _STEPS = 6, 30  # of Newton's method in each problem, at most, and in each round
_CLOSE = 0.1  # duality gap at which the price falls
_NEW = 60  # neurons that join in a round, at most
_OPEN, _CORNER = 0.3, 0.03  # angle of the corner in the beginning, and after the first round
_ANGLE, _GAIN = 0.1, 1e-3  # of the gap: the angle, and what a round's last step gains


class Approach(NamedTuple):
    """Where the last problem begins: neurons, the angle of their corners, and directions that were met."""

    law: Law
    angle: float
    known: np.ndarray


def serves(task: Problem, convex: Convex, seed: int) -> bool:
    """Whether points are many, neurons have one readout, and strong pulls make for many neurons."""
    if rest_gap.readouts(task) > 1 or not unit_search.large(convex.root, convex.zero):
        return False
    return task.model.kinked and _strongest(convex, seed) > _STRONG * convex.price


def _strongest(convex: Convex, seed: int) -> float:
    """The pull of the targets on the best of a few starts."""
    delta = convex.error(convex.zero)
    starts = unit_starts.default_starts(convex.root, convex.pool.factor(delta), _GLANCE, jax.random.key(seed))
    return float(np.max(np.linalg.norm(convex.signals(convex.features(starts), delta), axis=1)))


def approached(
    task: Problem, convex: Convex, seed: int, meter: Meter, atoms: Callable[[Law, float], Atoms]
) -> Approach:
    """Neurons of the price asked for, as far as a few rounds bring them. `atoms` makes of them, and of the angle of their corners, what a checkpoint keeps."""
    law: Law | None = None
    angle, number, rng = _CORNER, 0, np.random.default_rng([seed, 4])
    known = np.zeros((0, convex.root.shape[1]))
    price = max(_FIRST * _strongest(convex, seed), convex.price)
    while True:
        dear, gap = replace(convex, price=price), 1.0
        for _ in range(_ROUNDS):
            number += 1
            key = jax.random.fold_in(jax.random.key(seed), number)
            pulls, starts = rest_search.pulls(task, dear, law, known, angle, gap, rng, key)
            if law is not None:
                gap, _ = rest_rounds.gap_of(task, dear, law, angle, float(np.max(pulls.values)))
                if gap < _CLOSE or meter.spent:
                    break
            closed = angle if law is None else min(angle, _ANGLE * gap)
            begun = rest_rounds.renewed(task, dear, law, pulls, starts, min(gap, _CLOSE), angle, 1.0, _NEW)
            begin = _OPEN if law is None else min(_OPEN, 4 * closed)

            def report(decrement: float, price: float = price, gap: float = gap) -> bool:
                meter.used += 1
                meter.advance(f"neurons at {price / convex.price:.3g} times their price, gap {gap:.1e}", 1)
                return not meter.spent

            law = rest_newton.descend(
                dear, begun, angles=(begin, closed), goal=_GAIN * gap, steps=min(_STEPS, meter.left), report=report
            ).law
            angle, known = closed, rest_search.remembered(known, pulls)
            meter.reach(atoms(law, angle))
        if price <= convex.price or meter.spent:
            break
        price = max(price / _FALL, convex.price)
        if price < convex.price * _FALL**0.5:
            price = convex.price
    assert law is not None
    return Approach(law, angle, known)
