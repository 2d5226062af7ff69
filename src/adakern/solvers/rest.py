r"""Where gradient flow with weight decay ends: neurons condense into few, and these are settled.

One hidden layer of a homogeneous activation is convex over laws of unit neurons, and `rest_convex` solves it from nothing. All others:

1. *Sorting.* A network follows the flow itself (`rest_flow`), which decides how many neurons rest where; convex problems that Newton's method does not take begin with white particles, downhill on $F$
   (see `rest_model`).
2. *Atoms.* At rest neurons have nothing left of their initial values: those that point the same way are one (`atoms`). Descent goes on with few weighted neurons, the angle over which ReLU's corner is
   rounded off falling to nearly nothing; where in the corner a pair of neuron and point ends up is the subgradient that stationarity asks for.
3. *Births* (homogeneous activations): could a neuron that is not there lower $F$? A search over unit neurons of every layer says so; the strongest are added, and 2 begins again.

Two independent starts end in the same place, or the solution says that they do not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adakern import losses, memory
from adakern.checkpoints import Checkpoint
from adakern.limits import resting, sites, unit_search, unit_starts
from adakern.limits.antk import ANTK
from adakern.limits.base import Answer
from adakern.precision import scope
from adakern.progress import Progress
from adakern.solvers import atoms as atomic
from adakern.solvers import rest_births, rest_convex
from adakern.solvers.atoms import Atoms
from adakern.solvers.rest_flow import followed
from adakern.solvers.rest_journal import Journal
from adakern.solvers.rest_settle import ANGLES, LOOSE, STAGE, settle, sharpen
from adakern.solvers.rest_start import from_fields, white
from adakern.solvers.rest_task import End, Meter, Problem, energy_of, errors, factor, problem, summed

TOLERANCE = 1e-4
STEPS = 40000
PARTICLES = 2048  # of both starts together
_SEEDS = 256  # random starts of a search
_BOTH = 200  # outputs of training points and positions up to which a convex problem is solved from two starts, for error bars
_HARDER = (2.0, 4.0, 16.0, 64.0)  # richness, times the one asked for, at which life is looked for
_FINEST = 1e-6  # tolerance that rounding, and corners that are all but closed, allow for certain
_FARTHER = 3  # times the work done until then, to spend beyond it
_STRONG = 30.0  # richness times the size of targets from which a flow that cannot be followed is gone around
_MILD = 10.0  # the same, where the way around it begins
_CUT = 0.01  # of its time: one that has come no farther has not sorted its neurons
_RISE = 10.0  # of richness, from one place to rest to the next
_LARGE = 20.0  # size of inputs


def solve(
    limit: ANTK,
    X: np.ndarray,
    y: np.ndarray,
    *,
    seed: int,
    precision: str,
    particles: int,
    tolerance: float,
    steps: int,
    budget: int,
    init: list[tuple[np.ndarray, np.ndarray]],
    checkpoint: Checkpoint,
    progress: Progress,
) -> Answer:
    """Solve the aNTK; `y` has shape (points, outputs)."""
    count = max(1, particles // 2)
    size = np.dtype(precision).itemsize
    rows = _check_memory(limit, X, y, count)
    chunks = _chunks(count, 12 * size * rows, budget)
    task = problem(limit, X, np.asarray(y, np.float64), precision, chunks)
    nothing = float(limit.richness**2 * np.sum(_values(limit, task.y, np.zeros_like(task.y))))
    with progress.task("aNTK", total=steps) as advance:
        meter = Meter(steps, advance)
        if _dies(task, seed):
            why = "richness is below the threshold of ak.collapse_threshold"
            if limit.richness == 0 or not task.shape.root.any():
                why = "richness is 0" if limit.richness == 0 else "all inputs are 0"
            return _dead(task, tolerance, nothing, meter, f"everything dies: {why}")
        journal = Journal(checkpoint, meter, tolerance)
        given = from_fields(task, init) if init else None
        followed_to: dict[int, int] = {}
        with journal.kept():
            for start in range(len(journal.ends), _starts(task, init)):
                if start and meter.spent:
                    break
                meter.begin(start)
                journal.end(_one(task, seed, start, count, given, tolerance, meter, journal))
                followed_to[start] = meter.used
        ends = list(journal.ends)
        traces = {id(ends[start]): meter.way[start].trace(ends[start], used) for start, used in followed_to.items()}
        living = [end for end in ends if _alive(end, nothing, task.convex)]
        if living and task.convex:
            living = ends  # there is one place to rest, and these are it to rounding
        lost = len(ends) - len(living)
        if not living and not task.convex:
            living = _revived(task, seed, count, tolerance, nothing, meter)
    if not living and meter.spent and not all(end.good(tolerance) for end in ends):
        living = ends  # above the zero predictor, but still on their way
    if not living:
        why = "everything dies: no network was found whose value is below that of the zero predictor"
        if task.convex:
            why = (
                "everything dies, as far as can be told: richness is just above the threshold of ak.collapse_threshold"
            )
        return _dead(task, tolerance, nothing, meter, why)
    return _answer(task, living, lost, tolerance, nothing, meter, precision, traces)


def _check_memory(limit: ANTK, X: np.ndarray, y: np.ndarray, count: int) -> int:
    """Refuse what does not fit; the most fields that a neuron has."""
    where, depth = sites.of(limit.network, X.shape), limit.network.depth
    fields, kernels = where.fields(len(X), depth), where.sizes(len(X), depth)
    needed = 8 * 4 * len(X) ** 2 + 2 * 8 * sum(rows**2 for rows in kernels) + 48 * 8 * count * sum(fields)
    if depth == 1:  # of the pull on unit neurons
        needed += 4 * 8 * fields[0] * y.shape[1] * (1 if where.pool.mean else where.pool.sites)
    places = "" if where.network is None else f" at {max(where.counts)} positions"
    memory.require(
        needed,
        f"{count} neurons in {depth} layers over {len(X)} points{places}",
        "fewer particles, fewer training points",
    )
    return max(fields)


def _starts(task: Problem, init: list[tuple[np.ndarray, np.ndarray]]) -> int:
    large = task.convex and len(task.shape.root) * task.y.shape[1] > _BOTH
    return 1 if init or large else 2


def _one(
    task: Problem,
    seed: int,
    start: int,
    count: int,
    given: Atoms | None,
    tolerance: float,
    meter: Meter,
    journal: Journal,
) -> End:
    """One start, or what a checkpoint has of it, to rest."""
    found = given if journal.atoms is None else journal.atoms
    if task.convex and rest_convex.fits(task):
        with scope("float64"):
            return _by_newton(task, seed + 1000 * start, tolerance, meter, found)
    # Where neurons may rest in several places the flow says how many go where.
    begin, raised = 0 if found is None and task.convex else len(ANGLES) - 1, journal.raised
    if found is None and task.convex:
        found = white(task, seed, start, count, meter)
    elif found is None:
        least = _CUT if _strength(task) > _STRONG else 0.0
        found, share = followed(task, seed, start, count, least, meter, journal)
        raised = share < least and not meter.spent
        if raised:
            found = _raised(task, seed, start, count, meter)
            journal.came_raised()
    meter.reach(found)
    return _end(task, found, begin, seed, tolerance, meter)._replace(raised=raised)


def _by_newton(task: Problem, seed: int, tolerance: float, meter: Meter, found: Atoms | None) -> End:
    """To the duality gap asked for; beyond what rounding allows, going on may lose what was gained, and the better end counts."""
    before = meter.used
    end = rest_convex.newton(task, seed, max(tolerance, _FINEST), meter, found)
    if end.good(tolerance) or tolerance >= _FINEST or meter.spent:
        return end
    most = min(meter.most, meter.used + _FARTHER * (meter.used - before))
    farther = replace(meter, most=most)
    again = rest_convex.newton(task, seed, tolerance, farther, end.atoms)
    meter.used = farther.used
    return min((end, again), key=lambda one: one.violation)


def _strength(task: Problem) -> float:
    r"""$\gamma_0$ times the size of the targets: of the squared loss $(y,\gamma_0)$ and $(cy,\gamma_0/c)$ are the same flow."""
    return task.limit.richness * float(np.sqrt(np.mean(task.y**2)))


def _raised(task: Problem, seed: int, start: int, count: int, meter: Meter) -> Atoms:
    """From where the flow of a smaller richness ends to the one asked for, from one place to rest to the next: strong targets make the flow too stiff to be followed."""
    richness, times = task.limit.richness, _strength(task) / _MILD
    levels = np.geomspace(richness / times, richness, 1 + int(np.ceil(np.log(times) / np.log(_RISE))))
    found, _ = followed(_at(task, float(levels[0])), seed, start, count, 0.0, meter, None)
    for level in levels[:-1]:
        found = _end(_at(task, float(level)), found, len(ANGLES) - 1, seed, STAGE, meter).atoms
    return found


def _end(task: Problem, found: Atoms, begin: int, seed: int, tolerance: float, meter: Meter) -> End:
    """From condensed particles to rest."""
    found, value = sharpen(task, found, begin, meter)
    if task.convex:
        with scope("float64"):
            return rest_convex.corrected(task, found, seed, tolerance, meter)
    return rest_births.settled(task, found, value, seed, tolerance, meter)


def _chunks(count: int, row: int, budget: int) -> int:
    """Parts of equal length, as few as fit the budget."""
    for chunks in range(1, count + 1):
        if count % chunks == 0 and count // chunks * row <= budget:
            return chunks
    return count


def _values(limit: ANTK, y: np.ndarray, s: np.ndarray) -> np.ndarray:
    with scope("float64"):
        return np.asarray(losses.get(limit.loss).value(jnp.asarray(y), jnp.asarray(s)))


def _dies(task: Problem, seed: int) -> bool:
    """Exactly, where it is known exactly: richness 0, and one hidden layer of a homogeneous activation."""
    limit = task.limit
    if limit.richness == 0 or not task.shape.root.any():
        return True
    if limit.network.depth > 1 or not task.shape.homogeneous:
        return False
    price = np.sqrt(limit.decays[0] * limit.decays[1]) / limit.richness
    with scope("float64"):
        delta = np.asarray(losses.get(limit.loss).error(jnp.asarray(task.y), jnp.zeros(task.y.shape)))
        signal = factor(task, summed(task, delta))
        key = jax.random.key(seed)
        root = task.shape.root
        count = _SEEDS if task.shape.where.network is None else min(_SEEDS, unit_starts.images_starts(root, signal))
        starts = np.asarray(unit_starts.default_starts(jnp.asarray(root), jnp.asarray(signal), count, key))
        found = unit_search.sought(limit.network.activation, root, signal, starts)
        if np.max(found.values) > price:
            return False
        longer = unit_search.hardest(limit.network.activation, root, signal, starts, key)  # as the threshold is found
    return bool(np.max(longer.values) <= price)


def _alive(end: End, nothing: float, convex: bool) -> bool:
    """Below the zero predictor: of a convex problem, where a longer search has found life, by anything at all."""
    return end.objective < nothing * (1.0 if convex else 1 - 1e-9)


def _revived(task: Problem, seed: int, count: int, tolerance: float, nothing: float, meter: Meter) -> list[End]:
    """Networks that live at a larger richness, brought back to the one asked for."""
    richness = task.limit.richness
    for times in _HARDER:
        if meter.spent:
            return []
        richer = _at(task, richness * times)
        found = white(richer, seed, 2, count, meter)
        found, value, _ = settle(richer, found, LOOSE, meter)
        if value >= nothing * times**2 * (1 - 1e-6):
            continue
        levels = np.geomspace(richness * times, richness, 1 + int(np.ceil(np.log2(times) * 2)))[1:]
        for level in levels:
            found, value, _ = settle(_at(task, float(level)), found, STAGE, meter)
        end = _end(task, found, 0, seed, tolerance, meter)
        if _alive(end, nothing, task.convex):
            return [end]
    return []


def _at(task: Problem, richness: float) -> Problem:
    """The same problem at another richness."""
    limit = replace(task.limit, richness=richness)
    energy = energy_of(losses.get(limit.loss), limit, task.points, task.y)
    white = task.white._replace(richness=jnp.asarray(richness, task.white.root.dtype))
    return task._replace(limit=limit, shape=replace(task.shape, energy=energy), white=white)


def _answer(
    task: Problem,
    living: list[End],
    lost: int,
    tolerance: float,
    nothing: float,
    meter: Meter,
    precision: str,
    traces: dict[int, tuple[str, list[list[float]]]],
) -> Answer:
    limit, points, where = task.limit, task.points, task.shape.where
    depth = limit.network.depth
    best = _best(living, tolerance, _sampled(task))
    layers = atomic.layers(task.shape, best.atoms)
    delta = errors(task, best.atoms)
    over = summed(task, delta)
    kernels = [neurons.kernel for neurons in layers]
    others = [[n.kernel for n in atomic.layers(task.shape, end.atoms)] for end in living if end is not best]
    spread = [
        np.abs(kernel - others[0][i]) / np.sqrt(2) if others else np.full_like(kernel, np.nan)
        for i, kernel in enumerate(kernels)
    ]
    s = (kernels[-1] @ over / limit.decays[-1])[points.member]
    single = task.y.shape[1] == 1
    gradient_kernels: tuple[np.ndarray, ...] | None = None
    kernel, coefficients = points.expand(kernels[-1]), delta / limit.decays[-1]
    if single and where.network is not None:
        if task.shape.homogeneous:
            whole = resting.summed_tangent(layers, task.shape.root, over[:, 0], limit.richness, limit.decays, where)
            kernel, coefficients = points.expand(whole), delta / sum(limit.decays)
    elif single:
        fields = resting.gradients(layers, over[:, 0], limit.richness, limit.decays)
        grams = [resting.gram(n.weights, g) for n, g in zip(layers, fields, strict=True)]
        gradient_kernels = tuple(points.expand(gram).astype(precision) for gram in grams)
        if task.shape.homogeneous:
            whole = resting.tangent([task.shape.root @ task.shape.root.T, *kernels], grams)
            kernel, coefficients = points.expand(whole), delta / sum(limit.decays)
    with scope("float64"):
        fitted = np.asarray(losses.get(limit.loss).link(jnp.asarray(s)))
    status, converged = _status(task, best, living, lost, tolerance, meter)
    gap = best.gap
    stats: dict[str, Any] = {
        "solver": "descent",
        "tolerance": tolerance,
        "objective": best.objective,
        "zero_objective": nothing,
        "steps": meter.used,
        "neurons": list(best.atoms.counts),
        "relative_gradient": best.relative,
        "births": best.rounds,
        "starts": [{"objective": end.objective, "neurons": list(end.atoms.counts)} for end in living],
        "starts_that_died": lost,
        "raised": best.raised,
        "scales": _scales(task),
    }
    if id(best) in traces:  # not of a start that a checkpoint had already ended
        stats["trace_of"], stats["trace"] = traces[id(best)]
    if task.shape.homogeneous:
        stats["excess"] = best.excess
    if gap is not None:
        stats["primal"], stats["dual"] = gap.primal, gap.dual

    def expand(layer: int, kernel: np.ndarray) -> np.ndarray:
        return where.over(points, layer, depth).expand(kernel)

    return Answer(
        kernels=tuple(expand(i, k).astype(precision) for i, k in enumerate(kernels)),
        kernel=kernel.astype(precision),
        coefficients=coefficients.astype(precision),
        fitted=fitted.astype(precision),
        errors=delta.astype(precision),
        kernel_errors=tuple(expand(i, k).astype(precision) for i, k in enumerate(spread)),
        gradient_kernels=gradient_kernels,
        draws=tuple(field.astype(precision) for field in atomic.fields(task.shape, best.atoms)),
        slopes=tuple(n.slopes.astype(precision) for n in layers),
        shares=tuple(n.weights.astype(precision) for n in layers),
        converged=converged,
        status=status,
        stats=stats,
    )


def _best(living: list[End], tolerance: float, alike: bool) -> End:
    """The least gap; or the lowest, at rest rather than on its way where values are the same; or the first, where starts are samples of one flow."""
    if all(end.gap is not None for end in living):
        return min(living, key=lambda end: end.violation)
    if alike:  # starts differ by which neurons they drew, and the lower value is no better than the other
        return min(living, key=lambda end: not end.good(tolerance))
    lowest = min(end.objective for end in living)
    same = [end for end in living if end.objective - lowest <= tolerance * abs(lowest)]
    return min(same, key=lambda end: (not end.good(tolerance), end.objective))


def _sampled(task: Problem) -> bool:
    """One hidden layer that is not homogeneous: neurons do not meet, and a start is a sample of where they rest."""
    return task.limit.network.depth == 1 and not task.shape.homogeneous


def _status(task: Problem, best: End, living: list[End], lost: int, tolerance: float, meter: Meter) -> tuple[str, bool]:
    """What there is to say; the duality gap, where there is one, is said by who audits it."""
    if not best.good(tolerance):
        advice = _advice(task, tolerance, meter)
        if best.gap is not None:
            return advice, False
        return f"weights differ from what their forces make them by {best.relative:.2g}; {advice}", False
    remarks = [] if best.gap is not None else [f"stationary to {best.relative:.1e}"]
    values = [end.objective for end in living]
    apart = (max(values) - min(values)) / abs(min(values))
    if not all(end.good(tolerance) for end in living):
        remarks.append("one of two starts has not come to rest, and kernel_errors has what it is off by")
    elif apart > 10 * tolerance:
        listing = f"values {values[0]:.6g} and {values[1]:.6g}"
        remarks.append(
            f"two starts differ by the neurons they drew ({listing}; kernel_errors says by how much); more particles bring them together"
            if _sampled(task)
            else f"two starts end in different places ({listing}; the lower is returned)"
        )
    if lost:
        remarks.append("a start died: which of the two gradient flow ends in depends on its start")
    if best.raised:
        remarks.append(
            "the flow is too stiff to be followed at this richness: reached from the end of one at a smaller richness"
        )
    return "; ".join(remarks), True


def _advice(task: Problem, tolerance: float, meter: Meter) -> str:
    """What to change where nothing has come to rest."""
    if tolerance < _FINEST and not meter.spent:
        return "this is the best that was found, and rounding stops it there; give a larger tolerance"
    return "give " + " or ".join(["more steps" if meter.spent else "a larger tolerance", *_scales(task)])


def _scales(task: Problem) -> list[str]:
    """What to give instead of data that make the flow stiff."""
    words, size = [], float(np.sqrt(np.mean(np.sum(task.shape.root**2, axis=1))))
    if size > _LARGE:
        words.append(f"inputs of order one (their size is {size:.2g})")
    if _strength(task) > _STRONG:
        words.append(f"a smaller richness or smaller targets (their product is {_strength(task):.2g})")
    return words


def _dead(task: Problem, tolerance: float, nothing: float, meter: Meter, status: str) -> Answer:
    """The zero predictor."""
    limit, total = task.limit, len(task.y)
    distinct, depth = len(task.points.first), limit.network.depth
    where, zero = task.shape.where, np.zeros((total, total), dtype=str(task.white.root.dtype))
    zeros = tuple(np.zeros(where.over(task.points, layer, depth).shape, zero.dtype) for layer in range(depth))
    fields = where.fields(distinct, depth)
    with scope("float64"):
        loss, s = losses.get(limit.loss), jnp.zeros(task.y.shape)
        delta, fitted = np.asarray(loss.error(jnp.asarray(task.y), s)), np.asarray(loss.link(s))
    slope = float(np.asarray(limit.network.activation.derivative(jnp.zeros(()))))
    single = task.y.shape[1] == 1
    stats: dict[str, Any] = {
        "solver": "descent",
        "tolerance": tolerance,
        "objective": nothing,
        "zero_objective": nothing,
        "steps": meter.used,
        "neurons": [0] * depth,
        "collapsed": True,
    }
    scale = sum(limit.decays) if single and task.shape.homogeneous else limit.decays[-1]
    return Answer(
        kernels=zeros,
        kernel=zero,
        coefficients=(delta / scale).astype(zero.dtype),
        fitted=fitted.astype(zero.dtype),
        errors=delta.astype(zero.dtype),
        kernel_errors=zeros,
        gradient_kernels=zeros if single and where.network is None else None,
        draws=tuple(np.zeros((1, size), zero.dtype) for size in fields),
        slopes=tuple(np.full((1, size), slope, zero.dtype) for size in fields),
        shares=(np.ones(1, zero.dtype),) * depth,
        status=status,
        stats=stats,
    )
