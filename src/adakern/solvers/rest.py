r"""Where gradient flow with weight decay ends: white particles go downhill, condense into few neurons, and these are settled to rounding.

1. *White particles* from the network's initial law follow $F$ (see `rest_model`) by quasi-Newton steps until they have sorted themselves. ReLU's corner is rounded off over an angle that is still wide.
2. *Atoms.* At rest neurons have nothing left of their initial values: particles that point the same way are one (`atoms`). Descent goes on with few weighted neurons, the corner's angle falling step by
   step to nearly nothing; where in the corner a pair of neuron and point ends up is the subgradient that stationarity asks for.
3. *Births* (homogeneous activations): could a neuron that is not there lower $F$? A search over unit neurons of every layer says so; the strongest are added, and 2 begins again. With one hidden layer,
   where the problem is convex over laws, that search gives the duality gap.

Two independent starts end in the same place, or the solution says that they do not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import cho_factor, cho_solve

from adakern import inputs, losses, memory
from adakern.limits import flow_gap, readout, resting, unit_search
from adakern.limits.antk import ANTK
from adakern.limits.base import Answer
from adakern.precision import scope
from adakern.progress import Progress
from adakern.solvers import atoms as atomic
from adakern.solvers import corrective, curves, rest_model
from adakern.solvers.atoms import Atoms, Shape
from adakern.solvers.descending import descend

TOLERANCE = 1e-4
STEPS = 40000
PARTICLES = 2048  # of both starts together

_ANGLES = (0.1, 0.03, 0.01, 3e-3, 1e-3)
_LAST = 3e-4  # when no neuron is missing any more
_PATIENCE, _MORE_PATIENCE = 400, 3000  # evaluations of one angle, and of the last
_AGAIN = (
    4  # index of the angle from which descent begins again after births: what is born may stand close to what is there
)
_LOOSE = 1e-2  # relative gradient at which white particles have sorted themselves
_STAGE = 1e-3  # and at which an angle is done with
_FINE = 0.5  # of the tolerance, at the last angle
_CLOSE = (
    0.01,
    1e-3,
    0.1,
)  # distance within which unit neurons are one: at most, at least, and over the angle of the corner
_ROUNDS = 30  # of births
_AIM = 0.01  # of the tolerance, for the duality gap: outputs differ by the root of it
_EXTRA = 1  # turns taken for that when the tolerance is met
_OUTER = 6  # turns of conditional gradients and descent
_CORRECTIONS = 10  # rounds of conditional gradients in the first turn; twice as many in each one after it
_TIGHTEN = (
    (1e-3, 10.0, 400),
    (1e-4, 3.0, 400),
    (1e-5, 0.5, 1500),
)  # angle, relative gradient over the tolerance, evaluations
_BORN = 24  # neurons born in a layer at once
_APART = 3e-3  # distance between two of them
_SEEDS = 256  # random starts of a search
_MASS = 0.02  # of a layer, that the newborn get
_EXCESS = 1e-5  # pull on an absent neuron, beyond its decay, at which a deep network tries to do with it
_GAIN = 1e-6  # of the objective, for which it is worth trying again
_HARDER = (2.0, 4.0, 16.0, 64.0)  # richness, times the one asked for, at which life is looked for


class Problem(NamedTuple):
    """The data of a problem, over distinct points where not said otherwise."""

    limit: ANTK
    shape: Shape
    white: rest_model.Data
    model: rest_model.Model
    points: inputs.Distinct
    y: np.ndarray  # of all points

    @property
    def convex(self) -> bool:
        """One hidden layer of a homogeneous activation: convex over laws of unit neurons."""
        return self.limit.network.depth == 1 and self.shape.homogeneous


@dataclass
class Meter:
    """Evaluations used, and who is told about them."""

    most: int
    advance: Callable[..., None]
    used: int = 0

    @property
    def left(self) -> int:
        return max(1, self.most - self.used)

    @property
    def spent(self) -> bool:
        return self.used >= self.most

    def report(self, value: float, relative: float) -> None:
        self.advance(f"stationary to {relative:.1e}", 1)


class End(NamedTuple):
    """Where one start ended."""

    atoms: Atoms
    objective: float
    relative: float
    excess: float  # the strongest pull on an absent neuron over its decay, minus one
    gap: flow_gap.Gap | None
    rounds: int


def problem(limit: ANTK, X: np.ndarray, y: np.ndarray, precision: str, chunks: int) -> Problem:
    """Checked data as the descent takes them."""
    points = inputs.distinct(X)
    with scope("float64"):
        root, _ = inputs.root(limit.network, X[points.first], 1.0)
        fine = np.asarray(root, np.float64)
    loss = losses.get(limit.loss)
    white = rest_model.Data(
        jnp.asarray(fine, precision),
        jnp.asarray(points.member),
        jnp.asarray(y, precision),
        jnp.asarray(limit.richness, precision),
        jnp.asarray(limit.decays, precision),
    )
    shape = Shape(
        curves.of(limit.network.activation),
        limit.network.activation.degree == 1,
        fine,
        limit.decays,
        _energy(loss, limit, points, y),
    )
    return Problem(limit, shape, white, rest_model.Model(limit.network.activation, loss, chunks), points, y)


def _energy(loss: losses.Loss, limit: ANTK, points: inputs.Distinct, y: np.ndarray) -> atomic.Energy:
    """E of the last kernel over distinct points, in float64, and V with dE/dΦ = -½VVᵀ."""
    member, belongs = points.member, np.eye(len(points.first))[points.member]
    scale = limit.richness / np.sqrt(limit.decays[-1])

    def energy(kernel: np.ndarray) -> tuple[float, np.ndarray]:
        with scope("float64"):
            whole = jnp.asarray(kernel[np.ix_(member, member)] if len(member) > len(kernel) else kernel)
            value, v = _read(loss, whole, jnp.asarray(y), limit.richness, limit.decays[-1])
            return float(value), scale * belongs.T @ np.asarray(v)

    return energy


def _curvature(limit: ANTK, points: inputs.Distinct) -> Callable[[np.ndarray], np.ndarray] | None:
    r"""Squared loss: $R$ with $dV=-R\,d\Phi\,V$ over distinct points, $(\Phi^L+\lambda_L)^{-1}$ with equal points added up."""
    if limit.loss != "squared":
        return None
    counts = np.bincount(points.member).astype(np.float64)

    def curvature(kernel: np.ndarray) -> np.ndarray:
        matrix = kernel + np.diag(limit.decays[-1] / counts)  # what adding up equal points leaves
        inverse: np.ndarray = cho_solve(cho_factor(matrix, lower=True), np.eye(len(kernel)))
        return inverse

    return curvature


def _read(loss: losses.Loss, kernel: Any, y: Any, richness: float, decay: float) -> Any:
    return _compiled(loss, kernel, y, jnp.asarray(richness, kernel.dtype), jnp.asarray(decay, kernel.dtype))


def _envelope(loss: losses.Loss, kernel: Any, y: Any, richness: Any, decay: Any) -> Any:
    return readout.energy_and_readout(loss, kernel, y, richness, 1.0, decay)


_compiled = jax.jit(_envelope, static_argnums=0)


# ---------------------------------------------------------------------------------------------------------------------
# 1. White particles


def _white(task: Problem, seed: int, start: int, count: int, meter: Meter) -> Atoms:
    """Particles from the network's initial law, downhill until they have sorted themselves, condensed."""
    white = task.white
    ranks = [white.root.shape[1]] + [white.root.shape[0]] * (task.limit.network.depth - 1)
    rng = np.random.default_rng([seed, start])
    first = [rng.standard_normal((count, rank)) for rank in ranks]
    scales = [np.sqrt(decay / count) for decay in task.limit.decays[:-1]]
    cuts = np.cumsum([part.size for part in first])[:-1]
    angle = jnp.asarray(_ANGLES[0], white.root.dtype)

    def positions(z: np.ndarray) -> rest_model.Layers:
        parts = zip(np.split(z, cuts), scales, ranks, strict=True)
        return tuple(jnp.asarray((part / scale).reshape(count, rank), white.root.dtype) for part, scale, rank in parts)

    def function(z: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradients = rest_model.value_and_gradient(task.model, white, positions(z), angle)
        flat = [np.asarray(part, np.float64).ravel() / scale for part, scale in zip(gradients, scales, strict=True)]
        return float(value), np.concatenate(flat)

    z = np.concatenate([(part * scale).ravel() for part, scale in zip(first, scales, strict=True)])
    end = descend(function, z, tolerance=_LOOSE, evaluations=meter.left, report=meter.report)
    meter.used += end.evaluations
    return _condensed(task, positions(end.x))


def _condensed(task: Problem, positions: rest_model.Layers) -> Atoms:
    angle = jnp.asarray(_ANGLES[0], task.white.root.dtype)
    _, roots = rest_model.climb(task.model, task.white, positions, angle)
    features, fields = [], []
    for epsilon, root in zip(positions, roots, strict=True):
        features.append(np.asarray(rest_model.features(task.model, epsilon, root, angle), np.float64))
        fields.append(np.asarray(jnp.matmul(epsilon, root.T, precision="highest"), np.float64))
    made = atomic.condense([np.asarray(p, np.float64) for p in positions], features, fields, _ANGLES[0])
    return atomic.merge(task.shape, made, _CLOSE[0])


def _from_fields(task: Problem, fields: list[np.ndarray]) -> Atoms:
    """Neurons given by their fields at all points, with the shortest weights that make them."""
    own = [field[:, task.points.first] for field in fields]
    features = [task.shape.curve(field, np.zeros_like(field))[0] for field in own]
    first = own[0] @ np.linalg.pinv(task.shape.root).T
    return atomic.merge(task.shape, atomic.condense([first, *own[1:]], features, own, 0.0), _CLOSE[1])


# ---------------------------------------------------------------------------------------------------------------------
# 2. Atoms


def _settle(
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


def _sharpen(task: Problem, found: Atoms, begin: int, meter: Meter) -> tuple[Atoms, float]:
    """Descent while the corner closes, merged after every angle; and the objective at the last of them."""
    value = np.inf
    for angle in _ANGLES[begin:] if task.model.kinked else (0.0,):
        found, value, _ = _settle(task, replace(found, angle=angle), _STAGE, meter)
        found = atomic.merge(task.shape, found, min(max(_CLOSE[2] * angle, _CLOSE[1]), _CLOSE[0]))
    return found, value


def _polish(task: Problem, found: Atoms, tolerance: float, meter: Meter) -> tuple[Atoms, float, float]:
    """Descent to a fraction of the tolerance, the corner closed further."""
    sharp = replace(found, angle=_LAST if task.model.kinked else 0.0)
    return _settle(task, sharp, _FINE * tolerance, meter, _MORE_PATIENCE)


# ---------------------------------------------------------------------------------------------------------------------
# 3. Births


def errors(task: Problem, found: Atoms) -> np.ndarray:
    """Δ at all points."""
    top = np.sqrt(found.shares[-1])[:, None] * atomic.layers(task.shape, found)[-1].features
    kernel = (top.T @ top)[np.ix_(task.points.member, task.points.member)]
    with scope("float64"):
        loss = losses.get(task.limit.loss)
        return np.asarray(
            _read(loss, jnp.asarray(kernel), jnp.asarray(task.y), task.limit.richness, task.limit.decays[-1])[1]
        )


def summed(task: Problem, delta: np.ndarray) -> np.ndarray:
    """Δ summed over equal points."""
    return task.points.add(delta)


def _search(task: Problem, found: Atoms, seed: int) -> tuple[list[unit_search.Found], list[np.ndarray]]:
    """Local maxima of the pull on unit neurons of every layer, in units of the decay that they would pay, and what the layers above them want."""
    limit, found = task.limit, replace(found, angle=0.0)
    layers = atomic.layers(task.shape, found)
    delta = summed(task, errors(task, found))
    rest = resting.recursion(layers, delta, limit.richness, limit.decays)
    below = [task.shape.root] + [(np.sqrt(n.weights)[:, None] * n.features).T for n in layers[:-1]]
    above = [(np.sqrt(n.weights)[:, None] * q).T for n, q in zip(layers[1:], rest.fields[1:], strict=True)] + [delta]
    results = []
    for layer, (root, factor) in enumerate(zip(below, above, strict=True)):
        unit = found.incoming[layer] / np.maximum(np.linalg.norm(found.incoming[layer], axis=1), 1e-300)[:, None]
        with scope("float64"):
            key = jax.random.key(seed * 1000 + layer)
            starts = unit_search.default_starts(jnp.asarray(root), jnp.asarray(factor), _SEEDS, key)
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
            below = (
                task.shape.root
                if layer == 0
                else (
                    np.sqrt(found.shares[layer - 1])[:, None] * atomic.layers(task.shape, found)[layer - 1].features
                ).T
            )
            values_new = np.maximum(new @ below.T, 0.0) if task.model.kinked else new @ below.T
            pulls = wanted[layer] @ (np.sqrt(mass / len(chosen)) * values_new).T
            newborn = len(found.shares[layer + 1]) - len(pulls)  # of the layer above, which take nothing in yet
            pulls = np.concatenate([pulls, np.zeros((newborn, len(chosen)))])
        found = atomic.add(found, layer, new, pulls, mass)
    return found


def _end(task: Problem, found: Atoms, begin: int, seed: int, tolerance: float, meter: Meter) -> End:
    """From condensed particles to rest."""
    found, value = _sharpen(task, found, begin, meter)
    if task.convex:
        with scope("float64"):
            return _corrected(task, found, seed, tolerance, meter)
    number = 0
    for number in range(_ROUNDS if task.shape.homogeneous else 0):
        results, wanted = _search(task, found, seed + number)
        excess = max(float(np.max(result.values)) - 1 for result in results)
        if meter.spent or excess <= _EXCESS:
            break
        tried, lower = _sharpen(task, _born(task, found, results, wanted, 0.3 * min(_EXCESS, excess)), _AGAIN, meter)
        gained = value - lower
        if gained > 0:
            found, value = tried, lower
        if gained < _GAIN * abs(value):
            break  # it dies again: the pull on it is that of a corner, which gives way
    found, value, relative = _polish(task, found, tolerance, meter)
    excess = 0.0
    if task.shape.homogeneous:
        excess = max(float(np.max(result.values)) - 1 for result in _search(task, found, seed + number)[0])
    return End(found, value, relative, excess, None, number)


def _corrected(task: Problem, found: Atoms, seed: int, tolerance: float, meter: Meter) -> End:
    """One hidden layer, homogeneous: from condensed particles to the duality gap asked for, and beyond it while that is quick."""
    limit, root = task.limit, task.shape.root
    price = float(np.sqrt(limit.decays[0] * limit.decays[1])) / limit.richness
    scale = limit.richness / np.sqrt(limit.decays[1])  # V over Δ

    def phi(fields: np.ndarray) -> np.ndarray:
        return task.shape.curve(fields, np.zeros_like(fields))[0]

    def find(pull: np.ndarray, starts: np.ndarray, far: bool) -> unit_search.Found:
        factor = pull / scale
        result = unit_search.search(limit.network.activation, root, factor, starts)
        if far:
            key = jax.random.key(seed + meter.used)
            others = unit_search.default_starts(root, factor, _SEEDS, key)
            more = unit_search.hardest(limit.network.activation, root, factor, np.concatenate([others, starts]), key)
            result = unit_search.Found(*(np.concatenate(both) for both in zip(result, more, strict=True)))
        return result._replace(values=np.asarray(result.values) / price)

    def measure(features: np.ndarray, masses: np.ndarray, pull: np.ndarray, pulls: unit_search.Found) -> float:
        rows = np.sqrt(masses)[:, None] * features
        delta = pull / scale
        s = (rows.T @ (rows @ delta) / limit.decays[1])[task.points.member]
        norm = float(np.sum(np.sqrt(masses) * np.linalg.norm(rows @ delta, axis=1))) / limit.decays[1]
        signal = np.asarray(losses.get(limit.loss).error(jnp.asarray(task.y), jnp.asarray(s)))
        largest = float(np.max(pulls.values)) * price
        return flow_gap.measured(losses.get(limit.loss), task.y, s, signal, norm, price, largest).relative

    def report(gap: float, count: int) -> bool:
        meter.used += 1
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
            _curvature(limit, task.points),
            find,
            measure,
            _unit_neurons(found),
            aim=_AIM * tolerance,
            rounds=_CORRECTIONS * 2 ** min(number - 1, 2),
            report=report,
        )
        count = len(law.masses)
        incoming = law.directions * np.sqrt(law.masses * count)[:, None]
        found = Atoms((incoming,), (np.full(count, 1 / count),), 0.0)
        value = relative = np.inf
        for angle, goal, patience in _TIGHTEN:
            found = atomic.merge(task.shape, found, _CLOSE[1])
            angle = angle if task.model.kinked else 0.0
            found, value, relative = _settle(task, replace(found, angle=angle), goal * tolerance, meter, patience)
        sharp = replace(found, angle=0.0)
        pulls = find(scale * summed(task, errors(task, sharp)), _unit_neurons(sharp)[0], True)
        excess = float(np.max(pulls.values)) - 1
        gap = certificate(task, sharp, excess + 1)
        if best is None or gap.relative <= least:
            best, least = End(found, value, relative, excess, gap, number), gap.relative
        if least <= (_AIM if number <= _EXTRA else 1.0) * tolerance or meter.spent:
            break
    assert best is not None
    return best._replace(rounds=number)


def _unit_neurons(found: Atoms) -> tuple[np.ndarray, np.ndarray]:
    """Directions and masses of the neurons of the first layer."""
    lengths = np.linalg.norm(found.incoming[0], axis=1)
    alive = lengths > 0
    return found.incoming[0][alive] / lengths[alive][:, None], found.shares[0][alive] * lengths[alive] ** 2


def certificate(task: Problem, found: Atoms, largest: float) -> flow_gap.Gap:
    r"""One hidden layer: the duality gap; `largest` is the strongest pull on a unit neuron, in units of its decay."""
    limit = task.limit
    neurons = atomic.layers(task.shape, found)[0]
    delta = errors(task, found)
    price = float(np.sqrt(limit.decays[0] * limit.decays[1])) / limit.richness
    readouts = limit.richness / limit.decays[1] * neurons.features @ summed(task, delta)
    lengths = np.linalg.norm(found.incoming[0], axis=1) * np.linalg.norm(readouts, axis=1)
    s = (neurons.kernel @ summed(task, delta) / limit.decays[1])[task.points.member]
    norm = float(np.sum(neurons.weights * lengths)) / limit.richness
    with scope("float64"):
        return flow_gap.measured(losses.get(limit.loss), task.y, s, delta, norm, price, largest * price)


# ---------------------------------------------------------------------------------------------------------------------
# All of it


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
    init: list[np.ndarray],
    progress: Progress,
) -> Answer:
    """Solve the aNTK of an MLP; `y` has shape (points, outputs)."""
    count = max(1, particles // 2)
    size = np.dtype(precision).itemsize
    memory.require(
        8 * (4 + 2 * limit.network.depth) * len(X) ** 2 + 48 * 8 * count * len(X) * limit.network.depth,
        f"{count} neurons in {limit.network.depth} layers over {len(X)} points",
        "fewer particles, fewer training points",
    )
    chunks = _chunks(count, 12 * size * len(X), budget)
    task = problem(limit, X, np.asarray(y, np.float64), precision, chunks)
    nothing = float(limit.richness**2 * np.sum(_values(limit, task.y, np.zeros_like(task.y))))
    with progress.task("aNTK", total=steps) as advance:
        meter = Meter(steps, advance)
        if _dies(task, seed):
            return _dead(
                task,
                tolerance,
                nothing,
                meter,
                "everything dies: richness is below the threshold of ak.collapse_threshold",
            )
        starts = [_from_fields(task, init)] if init else [_white(task, seed, start, count, meter) for start in range(2)]
        begin = len(_ANGLES) - 1 if init else 0
        ends = [_end(task, start, begin, seed, tolerance, meter) for start in starts]
        living = [end for end in ends if _alive(end, nothing)]
        if not living and limit.richness > 0:
            living = _revived(task, seed, count, tolerance, nothing, meter)
    if not living:
        return _dead(
            task,
            tolerance,
            nothing,
            meter,
            "everything dies: no network was found whose value is below that of the zero predictor",
        )
    return _answer(
        task, living, len(ends) - len([e for e in ends if _alive(e, nothing)]), tolerance, nothing, meter, precision
    )


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
    with scope("float64"):
        delta = np.asarray(losses.get(limit.loss).error(jnp.asarray(task.y), jnp.zeros(task.y.shape)))
        factor = summed(task, delta)
        key = jax.random.key(seed)
        starts = unit_search.default_starts(jnp.asarray(task.shape.root), jnp.asarray(factor), _SEEDS, key)
        found = unit_search.search(limit.network.activation, task.shape.root, factor, np.asarray(starts))
    price = np.sqrt(limit.decays[0] * limit.decays[1]) / limit.richness
    return bool(np.max(found.values) <= price)


def _alive(end: End, nothing: float) -> bool:
    return end.objective < nothing * (1 - 1e-9)


def _revived(task: Problem, seed: int, count: int, tolerance: float, nothing: float, meter: Meter) -> list[End]:
    """Networks that live at a larger richness, brought back to the one asked for."""
    richness = task.limit.richness
    for factor in _HARDER:
        if meter.spent:
            return []
        richer = _at(task, richness * factor)
        found = _white(richer, seed, 2, count, meter)
        found, value, _ = _settle(richer, found, _LOOSE, meter)
        if value >= nothing * factor**2 * (1 - 1e-6):
            continue
        levels = np.geomspace(richness * factor, richness, 1 + int(np.ceil(np.log2(factor) * 2)))[1:]
        for level in levels:
            found, value, _ = _settle(_at(task, float(level)), found, _STAGE, meter)
        end = _end(task, found, 0, seed, tolerance, meter)
        if _alive(end, nothing):
            return [end]
    return []


def _at(task: Problem, richness: float) -> Problem:
    """The same problem at another richness."""
    limit = replace(task.limit, richness=richness)
    energy = _energy(losses.get(limit.loss), limit, task.points, task.y)
    white = task.white._replace(richness=jnp.asarray(richness, task.white.root.dtype))
    return task._replace(limit=limit, shape=replace(task.shape, energy=energy), white=white)


def _answer(
    task: Problem, living: list[End], lost: int, tolerance: float, nothing: float, meter: Meter, precision: str
) -> Answer:
    limit, points = task.limit, task.points
    best = min(living, key=lambda end: end.objective)
    layers = atomic.layers(task.shape, best.atoms)
    delta = errors(task, best.atoms)
    over = summed(task, delta)
    kernels = [neurons.kernel for neurons in layers]
    others = [[n.kernel for n in atomic.layers(task.shape, end.atoms)] for end in living if end is not best]
    spread = [
        np.abs(kernel - others[0][i]) / np.sqrt(2) if others else np.zeros_like(kernel)
        for i, kernel in enumerate(kernels)
    ]
    s = (kernels[-1] @ over / limit.decays[-1])[points.member]
    single = task.y.shape[1] == 1
    gradient_kernels: tuple[np.ndarray, ...] | None = None
    kernel, coefficients = points.expand(kernels[-1]), delta / limit.decays[-1]
    if single:
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
    }
    if task.shape.homogeneous:
        stats["excess"] = best.excess
    if gap is not None:
        stats["primal"], stats["dual"] = gap.primal, gap.dual
    return Answer(
        kernels=tuple(points.expand(k).astype(precision) for k in kernels),
        kernel=kernel.astype(precision),
        coefficients=coefficients.astype(precision),
        fitted=fitted.astype(precision),
        errors=delta.astype(precision),
        kernel_errors=tuple(points.expand(k).astype(precision) for k in spread),
        gradient_kernels=gradient_kernels,
        draws=tuple(field.astype(precision) for field in atomic.fields(task.shape, best.atoms)),
        slopes=tuple(n.slopes.astype(precision) for n in layers),
        shares=tuple(n.weights.astype(precision) for n in layers),
        converged=converged,
        status=status,
        stats=stats,
    )


def _status(task: Problem, best: End, living: list[End], lost: int, tolerance: float, meter: Meter) -> tuple[str, bool]:
    remarks = []
    values = [end.objective for end in living]
    apart = (max(values) - min(values)) / abs(min(values))
    if apart > 10 * tolerance:
        remarks.append(
            f"two starts end in different places (values {values[0]:.6g} and {values[1]:.6g}; the lower is returned)"
        )
    if lost:
        remarks.append("a start died: which of the two gradient flow ends in depends on its start")
    if best.gap is not None:
        if best.gap.relative > tolerance:
            advice = "give more steps" if meter.spent else "give a larger tolerance"
            return f"the duality gap is {best.gap.relative:.2g} of the value; {advice}", False
        text = f"duality gap {best.gap.relative:.1e} of the value"
    elif best.relative > tolerance:
        return (
            f"weights differ from what their forces make them by {best.relative:.2g}; give more steps or a larger tolerance",
            False,
        )
    else:
        text = f"stationary to {best.relative:.1e}"
    return "; ".join([text, *remarks]), True


def _dead(task: Problem, tolerance: float, nothing: float, meter: Meter, status: str) -> Answer:
    """The zero predictor."""
    limit, total = task.limit, len(task.y)
    distinct, depth = len(task.points.first), limit.network.depth
    zero = np.zeros((total, total), dtype=str(task.white.root.dtype))
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
        kernels=(zero,) * depth,
        kernel=zero,
        coefficients=(delta / scale).astype(zero.dtype),
        fitted=fitted.astype(zero.dtype),
        errors=delta.astype(zero.dtype),
        kernel_errors=(zero,) * depth,
        gradient_kernels=(zero,) * depth if single else None,
        draws=(np.zeros((1, distinct), zero.dtype),) * depth,
        slopes=(np.full((1, distinct), slope, zero.dtype),) * depth,
        shares=(np.ones(1, zero.dtype),) * depth,
        status=status,
        stats=stats,
    )
