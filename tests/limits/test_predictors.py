"""What the lazy limits predict: textbook formulas, symmetries, and consistency of the solution with itself."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.kernel_ridge import KernelRidge

import adakern as ak

NETWORK = ak.MLP(2, "erf")
LIMITS = [ak.NNGP(NETWORK), ak.NNGPK(NETWORK), ak.NTK(NETWORK)]
each_limit = pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.kind)


def closeness(limit):
    """Relative size of rounding in predictions: the condition number of the linear system times machine epsilon, roomily."""
    return 1e-9 if isinstance(limit, ak.NTK) else 1e-10


@each_limit
def test_training_inputs(limit, data, solved):
    solution = solved(limit)
    np.testing.assert_allclose(solution.cross_kernel(data[0]), solution.kernel, atol=1e-12)
    np.testing.assert_allclose(solution.predict(data[0]), solution.fitted, atol=closeness(limit))
    np.testing.assert_allclose(solution.fitted + solution.errors, data[1], atol=1e-14)


@pytest.mark.parametrize("kind", [ak.NNGPK, ak.NTK])
def test_training_inputs_with_a_kink(kind, data, solved):
    """ReLU: the slope kernel of a point with itself is where rounding of a correlation costs half the digits."""
    solution = solved(kind(ak.MLP(2, "relu")))
    np.testing.assert_allclose(solution.cross_kernel(data[0]), solution.kernel, rtol=1e-7)
    np.testing.assert_allclose(solution.predict(data[0]), solution.fitted, atol=1e-6)


def test_ntk_interpolates(data, solved):
    np.testing.assert_allclose(solved(ak.NTK(NETWORK)).fitted, data[1], atol=1e-9)


@each_limit
def test_prediction_formula(limit, data, solved):
    """f(x) = k(x)ᵀ [K + shrinkage I]⁻¹ y by a direct inverse."""
    _, y, X_new = data
    solution = solved(limit)
    shrinkage = {"NNGP": 1 / 50, "NNGPK": 1 / 50, "NTK": 0.0}[limit.kind]
    expected = solution.cross_kernel(X_new) @ np.linalg.inv(solution.kernel + shrinkage * np.eye(12)) @ y
    np.testing.assert_allclose(solution.predict(X_new), expected, atol=closeness(limit))


def test_shrinkage_follows_the_last_decay(data, solved):
    limit = ak.NNGPK(NETWORK, beta=5.0, decay=(1.0, 2.0, 3.0))
    solution = solved(limit)
    np.testing.assert_allclose(
        solution.fitted, solution.kernel @ np.linalg.solve(solution.kernel + 3 / 5 * np.eye(12), data[1]), atol=1e-12
    )


def test_ridge(data, solved):
    solution = solved(ak.NTK(NETWORK, ridge=0.25))
    expected = solution.kernel @ np.linalg.solve(solution.kernel + 0.25 * np.eye(12), data[1])
    np.testing.assert_allclose(solution.fitted, expected, atol=1e-12)


def test_linear_network_is_ridge_regression(data, solved):
    X, y, X_new = data
    solution = solved(ak.NNGPK(ak.MLP(2, "linear"), beta=20.0))
    other = KernelRidge(alpha=1 / 20, kernel="linear").fit(X / np.sqrt(5), y)
    np.testing.assert_allclose(solution.predict(X_new), other.predict(X_new / np.sqrt(5)), rtol=1e-10, atol=1e-12)
    # and in weight space: (XᵀX/D + I/β)⁻¹
    weights = np.linalg.solve(X.T @ X / 5 + np.eye(5) / 20, X.T @ y / np.sqrt(5))
    np.testing.assert_allclose(solution.predict(X_new), X_new @ weights / np.sqrt(5), rtol=1e-10, atol=1e-12)


def test_linear_network_without_ridge_is_least_squares(data, solved):
    """Twelve points, five features: K is singular, and the limit ridge → 0 is the least-squares fit."""
    X, y, X_new = data
    solution = solved(ak.NTK(ak.MLP(2, "linear")))
    weights = np.linalg.lstsq(X, y, rcond=None)[0]
    np.testing.assert_allclose(solution.predict(X_new), X_new @ weights, rtol=1e-9, atol=1e-10)
    assert solution.stats["linear_system"]["rank"] == 5
    assert solution.residual < 1e-12


def test_nngp_mean_is_nngpk(data, solved):
    first, second = solved(ak.NNGP(NETWORK)), solved(ak.NNGPK(NETWORK))
    np.testing.assert_array_equal(first.predict(data[2]), second.predict(data[2]))
    np.testing.assert_array_equal(first.kernel, second.kernel)


def test_nngp_variance_formula(data, solved):
    X, _, X_new = data
    decay = (0.5, 2.0, 0.8)
    solution = solved(ak.NNGP(NETWORK, beta=5.0, decay=decay))
    everything = ak.solve(ak.NNGP(NETWORK, beta=5.0, decay=decay), np.concatenate([X, X_new]), np.zeros(17)).kernel
    cross, own = everything[12:, :12], np.diag(everything)[12:]
    inverse = np.linalg.inv(everything[:12, :12] + 0.8 / 5.0 * np.eye(12))
    expected = (own - np.einsum("qi,ij,qj->q", cross, inverse, cross)) / 0.8
    np.testing.assert_allclose(solution.variance(X_new), expected, rtol=1e-10)
    assert np.all(solution.variance(X_new) > 0)


def test_nngp_variance_at_training_points(data, solved):
    """There it is below the noise 1/β, and well below the prior's."""
    solution = solved(ak.NNGP(NETWORK))
    trained = solution.variance(data[0])
    assert np.all(trained >= 0) and np.all(trained < 1 / 50)
    assert np.all(trained < np.diag(solution.kernel))
    # Before any data it is the prior's: a noise that drowns the labels leaves Φ(x, x).
    noisy = ak.solve(ak.NNGP(NETWORK, beta=1e-9), data[0], data[1])
    np.testing.assert_allclose(noisy.variance(data[0]), np.diag(noisy.kernel), rtol=1e-8)


def test_nngp_variance_shrinks_with_data(data, solved):
    X, y, X_new = data
    fewer = ak.solve(ak.NNGP(NETWORK), X[:6], y[:6]).variance(X_new)
    assert np.all(solved(ak.NNGP(NETWORK)).variance(X_new) < fewer)


@pytest.mark.parametrize("limit", LIMITS[1:], ids=lambda limit: limit.kind)
def test_outputs_are_independent(limit, data, solved):
    X, y, X_new = data
    together = ak.solve(limit, X, np.stack([y, X[:, 1]], axis=1))
    assert together.fitted.shape == together.errors.shape == together.coefficients.shape == (12, 2)
    for output, alone in enumerate((solved(limit), ak.solve(limit, X, X[:, 1:2]))):
        values = alone.predict(X_new)
        assert values.shape == ((5,) if output == 0 else (5, 1))
        np.testing.assert_allclose(together.predict(X_new)[:, output], values.ravel(), atol=closeness(limit))


@each_limit
def test_permutation_equivariance(limit, data, solved):
    X, y, X_new = data
    order = np.random.default_rng(1).permutation(12)
    solution, shuffled = solved(limit), ak.solve(limit, X[order], y[order])
    np.testing.assert_allclose(shuffled.kernel, solution.kernel[np.ix_(order, order)], atol=1e-12)
    np.testing.assert_allclose(shuffled.fitted, solution.fitted[order], atol=closeness(limit))
    np.testing.assert_allclose(shuffled.predict(X_new), solution.predict(X_new), atol=closeness(limit))


@each_limit
def test_rotation_invariance(limit, data, solved):
    X, y, X_new = data
    rotation = np.linalg.qr(np.random.default_rng(2).standard_normal((5, 5)))[0]
    solution, turned = solved(limit), ak.solve(limit, X @ rotation, y)
    np.testing.assert_allclose(turned.kernel, solution.kernel, atol=1e-12)
    np.testing.assert_allclose(turned.predict(X_new @ rotation), solution.predict(X_new), atol=closeness(limit))


@each_limit
def test_label_symmetry_and_linearity(limit, data, solved):
    X, y, X_new = data
    solution, flipped = solved(limit), ak.solve(limit, X, -3 * y)
    np.testing.assert_array_equal(flipped.kernel, solution.kernel)
    np.testing.assert_allclose(flipped.predict(X_new), -3 * solution.predict(X_new), atol=3 * closeness(limit))


@each_limit
def test_batches_of_predictions(limit, data, solved):
    """A budget of one byte means one point at a time; 2000 bytes a few, with a last batch that overlaps the one before."""
    X_new = np.random.default_rng(3).standard_normal((7, 5))
    solution = solved(limit)
    whole = solution.predict(X_new)
    for budget in (1, 2500):
        np.testing.assert_allclose(solution.predict(X_new, memory=budget), whole, atol=closeness(limit))
        np.testing.assert_allclose(
            solution.cross_kernel(X_new, memory=budget), solution.cross_kernel(X_new), atol=1e-13
        )
    if isinstance(limit, ak.NNGP):
        np.testing.assert_allclose(solution.variance(X_new, memory=1), solution.variance(X_new), atol=1e-12)


def test_anbk_without_richness_is_nngpk(data, solved):
    lazy, adaptive = solved(ak.NNGPK(NETWORK)), solved(ak.ANBK(NETWORK, richness=0.0))
    np.testing.assert_array_equal(adaptive.predict(data[2]), lazy.predict(data[2]))
    assert len(adaptive.duals) == 2 and not np.any(adaptive.duals)
    assert adaptive.residual < 1e-12
