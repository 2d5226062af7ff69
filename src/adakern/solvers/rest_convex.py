"""One hidden layer of a homogeneous activation: convex over laws of unit neurons, solved to a duality gap."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from adakern import losses
from adakern.limits import flow_gap, unit_search, unit_starts
from adakern.solvers import atoms as atomic
from adakern.solvers import (
    corrective,
    rest_columns,
    rest_gap,
    rest_newton,
    rest_path,
    rest_rounds,
    rest_search,
    rest_step,
    rest_wide,
)
from adakern.solvers.atoms import Atoms
from adakern.solvers.rest_settle import CLOSE, settle
from adakern.solvers.rest_task import End, Meter, Problem, errors, factor, squared_curvature, summed

_AIM = 0.01  # of the tolerance, for the duality gap: outputs differ by the root of it
_EXTRA = 1  # turns taken for that when the tolerance is met
_OUTER = 6  # turns of conditional gradients and descent
_CORRECTIONS = 10  # rounds of conditional gradients in the first turn; twice as many in each one after it
_TIGHTEN = (
    (1e-3, 10.0, 400),
    (1e-4, 3.0, 400),
    (1e-5, 0.5, 1500),
)  # angle, relative gradient over the tolerance, evaluations
_LARGEST = 4000  # numbers of outputs up to which Newton's matrix is formed
_ROUNDS, _STEPS = 120, 80  # of Newton's method with new neurons, and steps in one
_OPEN, _CLOSED = 0.3, 1e-6  # angle of the corner in the beginning and in the end
_THRESHOLD = 0.01  # tolerance over the square of the distance to the threshold, for the gap
_TIGHTER, _FINEST = 1e-2, 1e-10  # by how much that falls, and how far, while neurons are not at rest
_QUICK = 20  # rounds after which, or with many maxima, most of the tolerance is enough
_REPEATS, _MISSING = 4, 0.3  # descents between two searches, and excess of a known direction, over the gap, for another
_ANGLE = 0.1  # of the gap, for that of a round
_GAIN = 1e-3  # of the gap: a round's last step gains no more, nor more than
_FINER, _LAST = 1e-3, 400  # of that, for the last steps of all, and how many these are where neurons are slow
_CARE = 50.0  # times the loss and the square of the gap, both over the value
_RIDGED = 10.0  # times the gap, with several outputs: along ridges a step gains little
_OTHERS = 16  # of these that join in a round
_HALF = 0.5  # of the tolerance, for their gap
_ROUNDING = 1e-14  # of the value: a step that gains less is none
_TRY = 2.0  # of the tolerance: gap from which it is tried to close the corner and be done, unless points are many, when that takes minutes
_CALM = 3  # searches in a row that find nothing, where there are many maxima, before the corner is closed


def corrected(task: Problem, found: Atoms, seed: int, tolerance: float, meter: Meter) -> End:
    """One hidden layer, homogeneous: from condensed particles to the duality gap asked for, and beyond it while that is quick."""
    limit, root = task.limit, task.shape.root
    price = float(np.sqrt(limit.decays[0] * limit.decays[1])) / limit.richness
    scale = limit.richness / np.sqrt(limit.decays[1])  # V over Δ
    pool, single = task.shape.where.pool, rest_gap.readouts(task) == 1
    rng = np.random.default_rng([seed, 2])

    def phi(fields: np.ndarray) -> np.ndarray:
        rows: np.ndarray = pool.rows(task.shape.curve(fields, np.zeros_like(fields))[0])
        return rows

    def find(pull: np.ndarray, starts: np.ndarray, far: bool) -> unit_search.Found:
        signal = factor(task, pull / scale)
        if single:
            result = unit_search.search(limit.network.activation, root, signal, starts)
        else:  # many maxima, none of them sharp: rough ones, and the best of the same families
            rough = unit_search.search(limit.network.activation, root, signal, starts, exact=False)
            young = unit_search.families(limit.network.activation, root, signal, starts, rng, rounds=1, tries=2)
            result = unit_search.joined(rough, unit_search.first(young, _OTHERS))
        if far:
            key = jax.random.key(seed + meter.used)
            others = unit_starts.default_starts(root, signal, rest_search.many_starts(task, signal), key)
            more = unit_search.hardest(limit.network.activation, root, signal, others, key, known=starts)
            result = unit_search.joined(result, more)
        return result._replace(values=np.asarray(result.values) / price)

    def measure(features: np.ndarray, masses: np.ndarray, pull: np.ndarray, pulls: unit_search.Found) -> float:
        rows = corrective.weighted(masses, features)
        delta = pull / scale
        s = (rows.T @ (rows @ delta) / limit.decays[1])[task.points.member]
        pushes = np.linalg.norm((rows @ delta).reshape(len(masses), -1), axis=1)
        norm = float(np.sum(np.sqrt(masses) * pushes)) / limit.decays[1]
        signal = np.asarray(losses.get(limit.loss).error(jnp.asarray(task.y), jnp.asarray(s)))
        largest = float(np.max(pulls.values)) * price
        return flow_gap.measured(losses.get(limit.loss), task.y, s, signal, norm, price, largest).relative

    def report(gap: float, count: int) -> bool:
        meter.used += 1
        meter.gap(gap)
        meter.advance(f"duality gap {gap:.1e}", 1)
        return not meter.spent

    best: End | None = None
    least, number = np.inf, 0
    for number in range(1, _OUTER + 1):
        law = corrective.solve(
            root,
            phi,
            limit.decays[0],
            task.shape.energy,
            squared_curvature(limit, task.points),
            find,
            measure,
            rest_gap.unit_neurons(found),
            aim=(_AIM if single else _HALF) * tolerance,
            rounds=_CORRECTIONS * 2 ** min(number - 1, 2),
            report=report,
        )
        if count := len(law.masses):  # where none is left, the masses have not come to rest
            incoming = law.directions * np.sqrt(law.masses * count)[:, None]
            found = Atoms((incoming,), (np.full(count, 1 / count),), 0.0)
        value = relative = np.inf
        for angle, goal, patience in _TIGHTEN:
            found = atomic.merge(task.shape, found, CLOSE[1])
            angle = angle if task.model.kinked else 0.0
            found, value, relative = settle(task, replace(found, angle=angle), goal * tolerance, meter, patience)
        sharp = replace(found, angle=0.0)
        pulls = find(scale * summed(task, errors(task, sharp)), rest_gap.unit_neurons(sharp)[0], True)
        excess = float(np.max(pulls.values)) - 1
        gap = rest_gap.certificate(task, sharp, excess + 1)
        if best is None or gap.relative <= least:
            best, least = End(found, value, relative, excess, gap, number), gap.relative
        meter.reach(found)
        extra = number <= _EXTRA and single
        if least <= (_AIM if extra else 1.0) * tolerance or meter.spent:
            break
    assert best is not None
    return best._replace(rounds=number)


def fits(task: Problem) -> bool:
    """Whether Newton's matrix is small enough to be formed."""
    return len(task.points.first) * task.y.shape[1] <= _LARGEST


def newton(task: Problem, seed: int, tolerance: float, meter: Meter, found: Atoms | None = None) -> End:
    """From nothing, from problems with a higher price (`rest_path`), from very many neurons (`rest_columns`), from many that went downhill before (`rest_wide`), or from atoms, by Newton's method on all neurons together while others join; `corrected` goes on where that does not reach the gap asked for."""
    convex = rest_gap.convex_of(task)
    path = found is None and rest_path.serves(task, convex, seed)
    many = found is None or len(found.shares[0]) > rest_columns.MANY
    columns = many and not path and rest_columns.serves(task, convex, seed)
    wide = found is None and not path and not columns and rest_wide.serves(task, convex, seed)
    early: End | None = None
    if columns:
        found, early = rest_columns.begun(task, convex, seed, tolerance, meter, found)
    elif wide:
        found, early = rest_wide.begun(task, convex, seed, tolerance, meter)
    if early is not None:
        return early
    law = None if found is None else _law(task, found)
    gap, care, calm, fine = 1.0, 1.0, 0, tolerance
    angle = (
        _CLOSED if law is not None and found is not None and found.angle == _CLOSED else _OPEN
    )  # left by this method
    angle = rest_wide.ANGLES[-1][0] if wide or columns else angle
    rng = np.random.default_rng([seed, 1])

    def report(decrement: float) -> bool:
        meter.used += 1
        meter.advance(f"duality gap {gap:.1e}", 1)
        return not meter.spent

    number, single = 0, rest_gap.readouts(task) == 1
    large = unit_search.large(convex.root, convex.pool.factor(convex.zero))
    worth = rest_gap.MOST if large else _TRY
    end: End | None = None
    known = np.zeros((0, convex.root.shape[1]))
    if path:
        law, angle, known = rest_path.approached(task, convex, seed, meter, partial(_atoms, task))
    for number in range(1, _ROUNDS + 1):
        pulls, starts = rest_search.pulls(task, convex, law, known, angle, gap, rng, jax.random.key(seed + number))
        if law is None:
            # Close to the threshold the value hardly knows whether there are neurons at all: it gains as the square of the distance.
            above = float(np.max(pulls.values)) - 1
            fine = min(tolerance, max(_THRESHOLD * above**2, _FINEST)) if above > 0 else tolerance
        else:
            gap, misfit = rest_rounds.gap_of(task, convex, law, angle, float(np.max(pulls.values)))
            meter.gap(gap)
            # Where targets are nearly met, or neurons are cheap, a little of the value is much of the errors.
            care = min(_CARE * gap * misfit / _GAIN, 1.0)
            calm = calm + 1 if gap <= worth * fine else 0
        last = meter.spent or number == _ROUNDS
        if law is not None and (calm >= (1 if unit_search.few(pulls) else _CALM) or last):
            more = rest_search.hardest(task, convex, law, angle, jax.random.key(seed - number))
            pulls = unit_search.joined(pulls, more)
            gap, _ = rest_rounds.gap_of(task, convex, law, angle, float(np.max(pulls.values)))
            calm = calm if gap <= worth * fine else 0
            if calm or last:
                quick = number <= _QUICK and unit_search.few(pulls)
                enough = max((rest_gap.ENOUGH if quick else rest_gap.MOST) * fine, min(fine, _CLOSED))
                finest = max(_FINER * _GAIN * gap * care, _ROUNDING)
                searches = 1 if unit_search.few(pulls) else rest_gap.VERIFY
                close = partial(
                    _ended, task, convex, law, seed + number * rest_gap.VERIFY, number, finest, enough, meter
                )
                tried, more = close(searches, _STEPS)
                if _relative(tried) <= enough and tried.relative > tolerance:  # in value, but neurons are not there yet
                    slower, others = close(1, _LAST)
                    tried, more = min(tried, slower, key=lambda one: one.relative), unit_search.joined(more, others)
                pulls = unit_search.joined(pulls, more)
                end = tried if end is None or _rank(tried, tolerance) < _rank(end, tolerance) else end
                if last or (_relative(end) <= enough and (end.relative <= tolerance or fine <= _FINEST)):
                    break
                if _relative(end) <= enough:  # so little of the value that neurons need not be at rest for it
                    fine = max(_TIGHTER * fine, _FINEST)
                calm = 0
        known = rest_search.remembered(known, pulls)
        closed = max(min(angle, _ANGLE * gap), _CLOSED)
        begin = _OPEN if number == 1 and not (wide or path or columns) else min(_OPEN, 4 * closed)
        for _ in range(
            _REPEATS if number > 1 and not large else 1
        ):  # of many points a search takes less than a descent
            begun = rest_rounds.renewed(task, convex, law, pulls, starts, gap, angle, care)
            law = rest_newton.descend(
                convex,
                begun,
                angles=(begin, closed),
                goal=max(_GAIN * gap * (care if single else min(care, _RIDGED * gap)), _ROUNDING),
                steps=min(_STEPS, meter.left),
                report=report,
            ).law
            angle = closed
            # What was found before is found again at once: others of it are missing now.
            pulls, starts = rest_search.recalled(task, convex, law, angle, known), known[:0]
            if meter.spent or not np.max(pulls.values, initial=0.0) > 1 + _MISSING * gap:
                break
        if law is not None:
            meter.reach(_atoms(task, law, angle))
    assert end is not None
    if _relative(end) <= tolerance or meter.spent:
        return end
    return min((end, corrected(task, end.atoms, seed, tolerance, meter)), key=_relative)


def _law(task: Problem, found: Atoms) -> rest_step.Law | None:
    """Atoms as a law of unit neurons: |v| is the mass √(λ0/λ1)/γ0."""
    directions, masses = rest_gap.unit_neurons(found)
    if not len(directions):
        return None
    convex = rest_gap.convex_of(task)
    pulls = convex.signals(convex.features(directions), summed(task, errors(task, found)))
    norms = np.linalg.norm(pulls, axis=1)
    some = (norms > 0) & (masses > 0)
    if not some.any():
        return None
    length = masses * np.sqrt(task.limit.decays[0] / task.limit.decays[1]) / task.limit.richness
    return rest_step.Law((length[:, None] * directions)[some], (pulls / np.where(some, norms, 1.0)[:, None])[some])


def _relative(end: End) -> float:
    assert end.gap is not None
    return end.gap.relative


def _rank(end: End, tolerance: float) -> tuple[bool, bool, float]:
    """Ends by gap, of those that meet it by whether neurons are at rest."""
    met = _relative(end) <= tolerance
    return not met, met and end.relative > tolerance, end.relative if met else _relative(end)


def _atoms(task: Problem, law: rest_step.Law, angle: float = _CLOSED) -> Atoms:
    """A law as atoms, with corners of this angle, by default all but closed: those are what Newton's method leaves in the end, and what is read back with others begins with open ones."""
    limit, sizes = task.limit, np.linalg.norm(law.weights, axis=1)
    masses = limit.richness * sizes * np.sqrt(limit.decays[1] / limit.decays[0])
    count = len(masses)
    units = law.weights / np.maximum(sizes, np.finfo(np.float64).tiny)[:, None]
    return Atoms(
        (units * np.sqrt(masses * count)[:, None],), (np.full(count, 1 / count),), angle if task.model.kinked else 0.0
    )


def _ended(
    task: Problem,
    convex: rest_step.Convex,
    law: rest_step.Law,
    seed: int,
    rounds: int,
    goal: float,
    enough: float,
    meter: Meter,
    searches: int,
    steps: int,
) -> tuple[End, unit_search.Found]:
    """A law as atoms, with the corner of theirs all but closed, and what pulls hardest on them, as so many searches find it."""

    def report(decrement: float) -> bool:
        meter.used += 1
        meter.advance("closing corners", 1)
        return not meter.spent

    limit = task.limit
    law = rest_newton.thinned(convex, law, _CLOSED, 1e-3)
    for first, tailed in ((1e-4, True), (_CLOSED, False)):
        most = min(_STEPS if tailed else steps, meter.left)
        if meter.spent:
            break
        law = rest_newton.descend(
            convex, law, angles=(first, _CLOSED), goal=goal, steps=most, tailed=tailed, report=report
        ).law
    found = _atoms(task, law)
    value, (gradient,) = atomic.value_and_gradient(task.shape, found)
    scale = np.sqrt(limit.decays[0] / len(law.weights))
    relative = float(np.linalg.norm(gradient) / scale / (scale * np.linalg.norm(found.incoming[0])))
    return rest_gap.measured(task, convex, (found, value, relative), seed, rounds, enough, searches)
