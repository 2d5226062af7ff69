"""The best masses of given neurons: against another solver of the same problem, its optimality, and its own bound of what is missing."""

from __future__ import annotations

import numpy as np
import pytest

import adakern as ak
from adakern.precision import scope
from adakern.solvers import corrective, interior, rest_task

DECAY = 0.2


def problem(positions=1, points=12, count=40, seed=0):
    """Features of random neurons, E and its curvature, squared loss; two of the points are equal."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(points, 3))
    X[-1] = X[0]
    limit = ak.ANTK(ak.MLP(1), richness=1.5, decay=DECAY)
    with scope("float64"):
        task = rest_task.problem(limit, X, rng.normal(size=(points, 1)), "float64", 1)
    features = np.maximum(rng.normal(size=(count * positions, 3)) @ X[task.points.first].T, 0)
    return task, features, rest_task.squared_curvature(limit, task.points)


def solved(task, features, curvature, start, tolerance=1e-10):
    with scope("float64"):
        return interior.best(features, start, DECAY, task.shape.energy, curvature, tolerance)


@pytest.mark.parametrize("positions", [1, 3])
def test_another_solver_finds_the_same_value(positions):
    task, features, curvature = problem(positions)
    best = solved(task, features, curvature, np.ones(40))
    with scope("float64"):
        _, value, pull, _ = corrective.master(features, np.ones(40), DECAY, task.shape.energy, curvature)
    assert best.value == pytest.approx(value, rel=1e-8)
    np.testing.assert_allclose(best.pull, pull, atol=1e-4)


def test_the_end_is_optimal():
    task, features, curvature = problem()
    best = solved(task, features, curvature, np.ones(40))
    assert best.masses.min() > 0 and best.gap <= 1e-10
    assert best.slopes.min() > -1e-8
    assert np.abs(best.slopes * best.masses).max() < 1e-8
    assert (best.masses > 1e-4 * best.masses.max()).sum() < 40  # not all are needed


def test_the_gap_bounds_what_is_missing():
    task, features, curvature = problem(seed=1)
    least = solved(task, features, curvature, np.ones(40)).value
    for tolerance in (0.3, 1e-2, 1e-4):
        rough = solved(task, features, curvature, np.ones(40), tolerance)
        assert 0 <= rough.value - least <= rough.gap * rough.value + 1e-12
        assert rough.gap <= tolerance


@pytest.mark.parametrize("start", [np.zeros(40), np.full(40, 1e6), np.r_[1.0, np.zeros(39)]])
def test_the_start_does_not_matter(start):
    task, features, curvature = problem()
    usual, other = (solved(task, features, curvature, begin) for begin in (np.ones(40), start))
    assert other.value == pytest.approx(usual.value, rel=1e-8)


def test_neurons_that_are_the_same():
    """Masses are arbitrary between them; kernels are not."""
    task, features, curvature = problem()
    once, twice = (solved(task, part, curvature, np.ones(len(part))) for part in (features, np.repeat(features, 2, 0)))
    assert twice.value == pytest.approx(once.value, rel=1e-8)
    np.testing.assert_allclose(twice.masses.reshape(-1, 2).sum(axis=1), once.masses, atol=1e-3 * once.masses.max())


def test_neurons_that_pull_nothing_go():
    task, features, curvature = problem()
    features[7] = 0.0
    best = solved(task, features, curvature, np.ones(40))
    assert best.masses[7] < 1e-6 * best.masses.max()
