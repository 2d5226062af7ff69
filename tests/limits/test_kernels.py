"""Kernels of the lazy limits: another library's numbers, a slow recursion, and random networks of finite width."""

from __future__ import annotations

import numpy as np
import pytest
import reference
from scipy import stats

import adakern as ak

DECAYS = (0.5, 2.0, 0.8)  # of a network with two hidden layers


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("activation, tolerance", [("relu", 1e-8), ("erf", 1e-10)])
def test_numbers_of_neural_tangents(activation, depth, tolerance, fixtures):
    """float64 there too; its ReLU tangent kernel takes arccos of a rounded correlation, which costs half the digits."""
    with np.load(fixtures / "neural_tangents.npz") as file:
        X, nngp, ntk = file["X"], file[f"{activation}_depth{depth}_nngp"], file[f"{activation}_depth{depth}_ntk"]
    solution = ak.solve(ak.NTK(ak.MLP(depth, activation)), X, X[:, 0])
    np.testing.assert_allclose(solution.kernels[-1], nngp, rtol=1e-10, atol=1e-10 * np.abs(nngp).max())
    np.testing.assert_allclose(solution.kernel, ntk, rtol=tolerance, atol=tolerance * np.abs(ntk).max())


@pytest.mark.parametrize("activation", ["linear", "relu", "erf", "tanh", "sine", "gelu"])
def test_every_layer_against_a_slow_recursion(activation, data, solved):
    limit = ak.NTK(ak.MLP(2, activation), decay=DECAYS)
    solution = solved(limit)
    kernels, gradients, tangent = reference.kernels(data[0], activation, DECAYS)
    for found, expected in zip(solution.kernels, kernels, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-11 * expected.max())
    # arccos of a rounded correlation, in the reference, is good to half the digits at the diagonal.
    allowed = 1e-7 if activation == "relu" else 1e-11
    for found, expected in zip(solution.gradient_kernels, gradients, strict=True):
        np.testing.assert_allclose(found, expected, atol=allowed * expected.max())
    np.testing.assert_allclose(solution.kernel, tangent, atol=allowed * tangent.max())


@pytest.mark.parametrize("depth", [1, 3, 4])
def test_other_depths(depth, data, solved):
    decay = tuple(np.linspace(0.6, 1.5, depth + 1))
    solution = solved(ak.NTK(ak.MLP(depth, "erf"), decay=decay))
    kernels, gradients, tangent = reference.kernels(data[0], "erf", decay)
    assert len(solution.kernels) == len(solution.gradient_kernels) == len(solution.kernel_errors) == depth
    for found, expected in zip((*solution.kernels, *solution.gradient_kernels), (*kernels, *gradients), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-11 * expected.max())
    np.testing.assert_allclose(solution.kernel, tangent, atol=1e-11 * tangent.max())


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_random_networks_of_finite_width(activation, data, solved):
    """Mean over seeds of the feature and tangent kernels of networks of width 2000, within standard errors.

    The means themselves are off by O(1/width); 3/width of the scale is allowed for that on top.
    """
    X, width, seeds = data[0], 2000, 12
    phi, derivative = {
        "relu": (lambda h: np.maximum(h, 0.0), lambda h: (h > 0).astype(float)),
        "tanh": reference.FUNCTIONS["tanh"],
    }[activation]
    features, tangents = [], []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        w0, w1, w2 = (
            rng.standard_normal(shape) / np.sqrt(decay)
            for shape, decay in zip(((width, X.shape[1]), (width, width), (width,)), DECAYS, strict=True)
        )
        h1 = X @ w0.T / np.sqrt(X.shape[1])
        h2 = phi(h1) @ w1.T / np.sqrt(width)
        g2 = w2 * derivative(h2)
        g1 = derivative(h1) * (g2 @ w1) / np.sqrt(width)
        feature = phi(h2) @ phi(h2).T / width
        tangent = feature + (g2 @ g2.T / width) * (phi(h1) @ phi(h1).T / width)
        features.append(feature)
        tangents.append(tangent + (g1 @ g1.T / width) * (X @ X.T / X.shape[1]))
    solution = solved(ak.NTK(ak.MLP(2, activation), decay=DECAYS))
    for samples, exact in ((np.array(features), solution.kernels[-1]), (np.array(tangents), solution.kernel)):
        error = samples.std(axis=0, ddof=1) / np.sqrt(seeds)
        difference, bias = samples.mean(axis=0) - exact, 3 / width * exact.max()
        # Twelve seeds: Student's t with 11 degrees of freedom, and 78 entries of which none may fail by chance (0.1 % in all).
        largest = stats.t.ppf(1 - 0.001 / (2 * 78), seeds - 1)
        assert np.all(np.abs(difference) < largest * error + bias)
        # Together: the squared distance is the sum of squared standard errors on average.
        assert np.linalg.norm(difference) < 2 * np.linalg.norm(error) + 12 * bias


@pytest.mark.parametrize("kind", [ak.NNGPK, ak.NNGP])
def test_deep_linear_kernels_exactly(kind, data, solved):
    """φ(h) = h: Φ^ℓ = Φ⁰/(λ_0 … λ_{ℓ-1})."""
    X = data[0]
    solution = solved(kind(ak.MLP(2, "linear"), decay=DECAYS))
    np.testing.assert_allclose(solution.kernels[0], X @ X.T / 5 / 0.5, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(solution.kernels[1], X @ X.T / 5, rtol=1e-13, atol=1e-15)


def test_deep_linear_tangent_kernel(data, solved):
    """K = (L+1) Φ⁰ at unit decay."""
    np.testing.assert_allclose(
        solved(ak.NTK(ak.MLP(2, "linear"))).kernel, 3 * data[0] @ data[0].T / 5, rtol=1e-13, atol=1e-14
    )


@pytest.mark.parametrize("activation", ["relu", "tanh", "erf", "gelu", "sine"])
def test_kernels_are_positive_semidefinite(activation, solved):
    solution = solved(ak.NTK(ak.MLP(2, activation), decay=DECAYS))
    for kernel in (*solution.kernels, *solution.gradient_kernels, solution.kernel):
        np.testing.assert_array_equal(kernel, kernel.T)
        values = np.linalg.eigvalsh(kernel)
        assert values[0] > -1e-12 * values[-1]


def test_one_decay_is_the_same_for_every_layer(solved):
    one, each = ak.NNGPK(ak.MLP(2, "erf"), decay=0.7), ak.NNGPK(ak.MLP(2, "erf"), decay=(0.7, 0.7, 0.7))
    assert one.decays == each.decays == (0.7, 0.7, 0.7)
    np.testing.assert_array_equal(solved(one).kernel, solved(each).kernel)
    assert ak.NNGPK(ak.MLP(2, "erf"), decay=[0.7, 0.7, 0.7]) == each
    assert ak.NNGPK(ak.MLP(2, "erf"), decay=np.full(3, 0.7)) == each


def test_kernels_do_not_depend_on_units():
    """ReLU is homogeneous: Φ(cX) = c²Φ(X), for inputs in any unit that float64 can square."""
    X = np.random.default_rng(0).standard_normal((4, 3))
    y = np.ones(4)
    unit = ak.solve(ak.NNGPK(ak.MLP(1, "relu")), X, y)
    for scale in (1e-90, 1e-30, 1e30):
        other = ak.solve(ak.NNGPK(ak.MLP(1, "relu")), scale * X, y)
        np.testing.assert_allclose(other.kernel / scale**2, unit.kernel, rtol=1e-10)
