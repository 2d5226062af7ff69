"""What an adaptive solution says about points: predictions at old and new ones, and the law of its fields."""

import jax
import numpy as np
import pytest

import adakern as ak

CASES = [(1, "tanh"), (1, "relu"), (1, jax.nn.silu), (2, "tanh")]


@pytest.fixture(scope="module", params=CASES, ids=["tanh", "relu", "silu", "two layers"])
def solution(request, find):
    return find(*request.param)


def test_at_the_training_points(solution):
    f, std = solution.predict(solution.X, return_std=True)
    assert (std > 0).all() and std.max() < 0.1
    assert np.sqrt(np.mean((f - solution.fitted) ** 2)) < 2 * np.sqrt(np.mean(std**2)) + 1e-3
    cross = solution.cross_kernel(solution.X)
    assert np.linalg.norm(cross - solution.kernel) / np.linalg.norm(solution.kernel) < 0.1


def test_at_new_points(solution):
    X = np.concatenate([solution.X[2:3], np.random.default_rng(0).normal(size=(9, 10)), 1e3 * solution.X[:2]])
    f, std = solution.predict(X, return_std=True)
    assert np.isfinite(f).all() and np.isfinite(std).all()
    np.testing.assert_allclose(f[0], solution.predict(solution.X)[2], rtol=1e-9)
    for budget in (1, 10**6):
        np.testing.assert_allclose(solution.predict(X, memory=budget), f, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(solution.cross_kernel(X, memory=1), solution.cross_kernel(X), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(solution.cross_kernel(X) @ solution.coefficients, f, rtol=1e-9, atol=1e-12)


def test_the_density_has_two_peaks_where_features_are_learnt(points):
    """One point, tanh: at large richness a Mexican hat, lazy one peak; symmetric both times."""
    X, y = np.array([[1.0, 1.0]]), np.array([1.0])
    rich = ak.solve(
        ak.ANBK(ak.MLP(1, "tanh"), richness=4.0, beta=10.0, loss="logistic"), X, y, particles=512, tolerance=0.02
    )
    lazy = ak.solve(ak.NNGPK(ak.MLP(1, "tanh"), beta=10.0), X, y)

    def heights(solution):
        values, weights = solution.density(1, 0)
        height, edges = np.histogram(values, np.linspace(-4.2, 4.2, 22), weights=weights)
        return height, (edges[1:] + edges[:-1]) / 2

    height, place = heights(rich)
    assert height[10] < 0.7 * height[place > 0].max() and height[10] < 0.7 * height[place < 0].max()
    flat, _ = heights(lazy)
    assert flat.argmax() == 10
    values, _ = rich.density(1, 0)
    independent = 512  # the snapshots follow each other
    assert abs(np.mean(values > 0) - 0.5) < 4 * 0.5 / np.sqrt(independent)
    assert abs(values.mean()) < 4 * values.std() / np.sqrt(independent)


def test_the_free_energy_is_of_the_adaptive_limit(points, find):
    for limit in (ak.NNGP(ak.MLP(1)), ak.NNGPK(ak.MLP(1)), ak.NTK(ak.MLP(1))):
        assert ak.solve(limit, *points).free_energy is None
    solution = find()
    assert solution.free_energy == solution.stats["free_energy"] > 0
    assert find(richness=0.02).free_energy < 0.05
