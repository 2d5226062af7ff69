"""What a solve of the aNTK is about: its data, its readout, and a meter of the work done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import cho_factor, cho_solve

from adakern import inputs, losses
from adakern.limits import flow_gap, readout, sites
from adakern.limits.antk import ANTK
from adakern.precision import scope
from adakern.solvers import atoms as atomic
from adakern.solvers import curves, rest_model
from adakern.solvers.atoms import Atoms, Shape


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


class Way(NamedTuple):
    """How one start converged: (evaluations, value) each."""

    gaps: list[tuple[float, float]]
    motions: list[tuple[float, float]]  # relative gradients

    def trace(self, end: End, used: int) -> tuple[str, list[list[float]]]:
        """What there is to draw, with where it ended, at most 200 points of it."""
        certified = end.gap is not None and len(self.gaps) > 0
        points = self.gaps if certified else self.motions
        last = end.gap.relative if certified and end.gap is not None else end.relative
        thin = points[:: max(1, -(-len(points) // 199))]
        found = [list(point) for point in [*thin, (float(used), last)] if np.isfinite(point[1])]
        return ("duality gap" if certified else "relative gradient"), found if len(found) > 1 else []


@dataclass
class Meter:
    """Evaluations used, and who is told about them."""

    most: int
    advance: Callable[..., None]
    used: int = 0
    reach: Callable[[Atoms], None] = lambda atoms: None  # is told where the descent has come to
    way: list[Way] = field(default_factory=list)  # of every start, as far as this call followed it

    @property
    def left(self) -> int:
        return max(1, self.most - self.used)

    @property
    def spent(self) -> bool:
        return self.used >= self.most

    def begin(self, start: int) -> None:
        """What is told from now on is of this start."""
        self.way += [Way([], []) for _ in range(len(self.way), start + 1)]

    def report(self, value: float, relative: float) -> None:
        self.advance(f"stationary to {relative:.1e}", 1)
        if self.way:
            motions = self.way[-1].motions
            # A descent says how many evaluations it took when it has ended.
            motions.append((max(float(self.used), motions[-1][0] if motions else 0.0) + 1.0, relative))

    def gap(self, gap: float) -> None:
        """The duality gap, as a search has found it."""
        if self.way:
            self.way[-1].gaps.append((float(self.used), gap))


class End(NamedTuple):
    """Where one start ended."""

    atoms: Atoms
    objective: float
    relative: float
    excess: float  # the strongest pull on an absent neuron over its decay, minus one
    gap: flow_gap.Gap | None
    rounds: int
    raised: bool = False  # reached from a smaller richness, not by the flow

    @property
    def violation(self) -> float:
        """The duality gap, or where there is none what weights differ from what their forces make them."""
        return self.relative if self.gap is None else self.gap.relative

    def good(self, tolerance: float) -> bool:
        """Whether it has come to rest."""
        return self.violation <= tolerance


def problem(limit: ANTK, X: np.ndarray, y: np.ndarray, precision: str, chunks: int) -> Problem:
    """Checked data as the descent takes them."""
    points = inputs.distinct(X)
    where = sites.of(limit.network, X.shape)
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
        energy_of(loss, limit, points, y),
        where,
    )
    return Problem(limit, shape, white, rest_model.Model(limit.network.activation, loss, chunks, where), points, y)


def energy_of(loss: losses.Loss, limit: ANTK, points: inputs.Distinct, y: np.ndarray) -> atomic.Energy:
    """E of the last kernel over distinct points, in float64, and V with dE/dΦ = -½VVᵀ."""
    member, belongs = points.member, np.eye(len(points.first))[points.member]
    scale = limit.richness / np.sqrt(limit.decays[-1])

    def energy(kernel: np.ndarray) -> tuple[float, np.ndarray]:
        with scope("float64"):
            whole = jnp.asarray(kernel[np.ix_(member, member)] if len(member) > len(kernel) else kernel)
            value, v = read(loss, whole, jnp.asarray(y), limit.richness, limit.decays[-1])
            return float(value), scale * belongs.T @ np.asarray(v)

    return energy


def squared_curvature(limit: ANTK, points: inputs.Distinct) -> Callable[[np.ndarray], np.ndarray] | None:
    r"""Squared loss: $R$ with $dV=-R\,d\Phi\,V$ over distinct points, $(\Phi^L+\lambda_L)^{-1}$ with equal points added up."""
    if limit.loss != "squared":
        return None
    counts = np.bincount(points.member).astype(np.float64)

    def curvature(kernel: np.ndarray) -> np.ndarray:
        matrix = kernel + np.diag(limit.decays[-1] / counts)  # what adding up equal points leaves
        inverse: np.ndarray = cho_solve(cho_factor(matrix, lower=True), np.eye(len(kernel)))
        return inverse

    return curvature


def read(loss: losses.Loss, kernel: Any, y: Any, richness: float, decay: float) -> Any:
    return _compiled(loss, kernel, y, jnp.asarray(richness, kernel.dtype), jnp.asarray(decay, kernel.dtype))


def _envelope(loss: losses.Loss, kernel: Any, y: Any, richness: Any, decay: Any) -> Any:
    return readout.energy_and_readout(loss, kernel, y, richness, 1.0, decay)


_compiled = jax.jit(_envelope, static_argnums=0)


def errors(task: Problem, found: Atoms) -> np.ndarray:
    """Δ at all points."""
    kernel = task.points.expand(atomic.layers(task.shape, found)[-1].kernel)
    with scope("float64"):
        loss = losses.get(task.limit.loss)
        return np.asarray(
            read(loss, jnp.asarray(kernel), jnp.asarray(task.y), task.limit.richness, task.limit.decays[-1])[1]
        )


def factor(task: Problem, delta: np.ndarray) -> np.ndarray:
    """Δ over distinct points as `unit_search` takes it, over (point, position) at the last layer."""
    return task.shape.where.pool.factor(delta)


def summed(task: Problem, delta: np.ndarray) -> np.ndarray:
    """Δ summed over equal points."""
    return task.points.add(delta)
