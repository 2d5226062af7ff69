"""One hidden layer of a homogeneous activation: convex over laws of unit neurons, solved to a duality gap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import cho_factor, cho_solve

from adakern import inputs, losses
from adakern.limits import flow_gap, unit_search
from adakern.limits.antk import ANTK
from adakern.precision import scope
from adakern.solvers import atoms as atomic
from adakern.solvers import corrective
from adakern.solvers.atoms import Atoms
from adakern.solvers.rest_settle import CLOSE, settle
from adakern.solvers.rest_task import End, Meter, Problem, errors, summed

_AIM = 0.01  # of the tolerance, for the duality gap: outputs differ by the root of it
_EXTRA = 1  # turns taken for that when the tolerance is met
_OUTER = 6  # turns of conditional gradients and descent
_CORRECTIONS = 10  # rounds of conditional gradients in the first turn; twice as many in each one after it
_TIGHTEN = (
    (1e-3, 10.0, 400),
    (1e-4, 3.0, 400),
    (1e-5, 0.5, 1500),
)  # angle, relative gradient over the tolerance, evaluations
_SEEDS = 256  # random starts of a search


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


def corrected(task: Problem, found: Atoms, seed: int, tolerance: float, meter: Meter) -> End:
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
            found = atomic.merge(task.shape, found, CLOSE[1])
            angle = angle if task.model.kinked else 0.0
            found, value, relative = settle(task, replace(found, angle=angle), goal * tolerance, meter, patience)
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
