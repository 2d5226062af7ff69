"""What an adaptive solution says about points, old and new ones."""

import jax
import numpy as np
import pytest

import adakern as ak

LONG = pytest.mark.long
CASES = [
    (1, "tanh"),
    pytest.param((1, "relu"), marks=LONG),
    pytest.param((1, jax.nn.silu), marks=LONG),
    pytest.param((2, "tanh"), marks=LONG),
]


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


@pytest.mark.long
def test_the_free_energy_is_of_the_adaptive_limit(points, find):
    for limit in (ak.NNGP(ak.MLP(1)), ak.NNGPK(ak.MLP(1)), ak.NTK(ak.MLP(1))):
        assert ak.solve(limit, *points).free_energy is None
    solution = find()
    assert solution.free_energy == solution.stats["free_energy"] > 0
    assert find(richness=0.02).free_energy < 0.05
