"""First order in richness²: against exact recursions, integrals over one and two points, and itself by other routes."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize
from scipy.special import expit, roots_legendre

import adakern as ak
from adakern import perturbation
from adakern.activations import Numeric
from adakern.activations.numeric import PolarRule
from adakern.perturbing import four_point as quartic
from adakern.perturbing import response as linear_response
from adakern.precision import scope

RICHNESS = (0.2, 0.1, 0.05, 0.025)


def anbk(depth=1, activation="tanh", richness=1.0, beta=2.0, decay=1.0, loss="squared"):
    return ak.ANBK(ak.MLP(depth, activation), richness, beta, decay, loss)


def points(count, features, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, features)), rng.standard_normal(count)


def remainders(exact, zeroth, first):
    """(exact - zeroth - g² first) / g⁴ for each g."""
    return np.stack([(exact(g) - zeroth - g**2 * first) / g**4 for g in RICHNESS])


def assert_second_order(exact, zeroth, first):
    """The remainder over g⁴ settles, as g², on something that is not zero."""
    rest = remainders(exact, zeroth, first)
    steps = [np.abs(step).max() for step in np.diff(rest, axis=0)]
    size = np.abs(rest[-1]).max()
    assert size > 1e-4 * np.abs(first).max() > 0
    assert steps[-1] < 0.02 * size
    assert steps[1] < 0.35 * steps[0]  # a quarter; the last step meets rounding
    assert steps[2] < 0.35 * steps[1] + 1e-14 / RICHNESS[-1] ** 4


def assert_diverges(exact, zeroth, first):
    rest = [np.abs(part).max() for part in remainders(exact, zeroth, first)]
    assert all(later > 2.5 * earlier for earlier, later in itertools.pairwise(rest))


# ---------------------------------------------------------------------------------------------------------------------
# Exact answers


def deep_linear(limit, X, y, g):
    """Φ¹..Φ^L of a linear network with one output and squared loss: one scalar equation, at its smallest root."""
    decays, depth = np.array(limit.decays), limit.network.depth
    gram, total = X @ X.T / X.shape[1], decays.prod()

    def readout(t):
        return np.linalg.solve(np.eye(len(y)) / limit.beta + (1 + t) ** depth * gram / total, y)

    def excess(t):
        v = readout(t)
        return g**2 * (1 + t) ** depth * v @ gram @ v / total - t

    t = optimize.brentq(excess, 0.0, 1.0, xtol=1e-16, rtol=1e-15)
    along = gram @ readout(t)
    rises = [g**2 / total * (1 + t) ** depth * ((1 + t) ** n - 1) / t for n in range(1, depth + 1)]
    return [(gram + rise * np.outer(along, along)) / decays[:n].prod() for n, rise in enumerate(rises, start=1)]


def white(covariance):
    """Fields of N(0, C) and weights, for one or two points, kinks at the origin cut out."""
    root = np.linalg.cholesky(covariance)
    if len(covariance) == 1:
        x, w = roots_legendre(200)
        z, w = 6 * (x + 1), 6 * w * np.exp(-18 * (x + 1) ** 2) / np.sqrt(2 * np.pi)
        return np.concatenate([z, -z])[:, None] @ root.T, np.concatenate([w, w])
    nodes, w = quartic.sectors(root, 24, 72)
    return nodes @ root.T, w


FUNCTIONS = {"tanh": np.tanh, "relu": lambda h: np.maximum(h, 0.0), "sine": np.sin}


def readout(limit, kernel, y):
    decay = limit.decays[-1]
    if limit.loss == "squared":
        return np.linalg.solve(np.eye(len(y)) / limit.beta + kernel / decay, y)

    def excess(v):  # logistic, one point
        return limit.beta * y[0] * expit(-y[0] * kernel[0, 0] * v / decay) - v

    return np.array([optimize.brentq(excess, -limit.beta, limit.beta, xtol=1e-16, rtol=1e-15)])


def saddle(limit, X, y, g):
    """Φ¹..Φ^L and s for one or two points: the saddle equations iterated, which converges as powers of g²."""
    decays, phi = limit.decays, FUNCTIONS[limit.network.activation.name]
    kernels = [X @ X.T / X.shape[1]]

    def law(below, decay, dual):
        h, w = white(below / decay)
        features = phi(h)
        w = w * np.exp(-np.einsum("ni,ij,nj->n", features, dual, features) / 2)
        return h, features, w / w.sum()

    depth, zero = limit.network.depth, np.zeros((len(y), len(y)))
    for layer in range(depth):
        _, features, w = law(kernels[-1], decays[layer], zero)
        kernels.append((features * w[:, None]).T @ features)
    for _ in range(40):
        before = kernels[1:]
        v = readout(limit, kernels[-1], y)
        duals = [-(g**2) / decays[-1] * np.outer(v, v)]
        for layer in range(depth - 1, 0, -1):
            h, _, w = law(kernels[layer], decays[layer], duals[0])
            inverse = np.linalg.inv(kernels[layer])
            duals.insert(0, inverse - decays[layer] * inverse @ ((h * w[:, None]).T @ h) @ inverse)
        for layer in range(depth):
            _, features, w = law(kernels[layer], decays[layer], duals[layer])
            kernels[layer + 1] = (features * w[:, None]).T @ features
        if max(np.abs(a - b).max() for a, b in zip(before, kernels[1:], strict=True)) < 1e-15:
            break
    return kernels[1:], kernels[-1] @ readout(limit, kernels[-1], y) / decays[-1]


@pytest.mark.parametrize(
    "depth, decay", [(1, 1.0), (1, (2.0, 0.5)), (2, (0.7, 1.5, 1.2)), (4, (1.3, 0.8, 1.0, 1.4, 0.9))]
)
def test_deep_linear_networks_are_right_to_second_order(depth, decay):
    X, y = points(5, 3)
    limit = anbk(depth, "linear", decay=decay)
    result = perturbation(limit, X, y)
    assert result.methods == ("closed form",) * depth
    assert all((error == 0).all() for error in result.errors)
    for layer in range(depth):
        exact = lambda g, layer=layer: deep_linear(limit, X, y, g)[layer]  # noqa: E731
        assert_second_order(exact, result.lazy[layer], result.first[layer])
        assert_diverges(exact, result.lazy[layer], -result.first[layer])
        if layer:  # the change of the layer below counts
            alone = result.first[layer] - result.first[layer - 1] / limit.decays[layer]
            assert_diverges(exact, result.lazy[layer], alone)


@pytest.mark.parametrize(
    "depth, activation, decay, loss, count",
    [
        (1, "tanh", (0.8, 1.3), "squared", 1),
        (2, "tanh", (0.8, 1.3, 0.6), "squared", 1),
        (2, "relu", (0.8, 1.3, 0.9), "squared", 1),
        (2, "tanh", (0.8, 1.3, 0.6), "logistic", 1),
        (1, "relu", (0.8, 1.3), "squared", 2),
        (2, "relu", (0.8, 1.3, 0.9), "squared", 2),
        (3, "sine", (0.8, 1.3, 0.6, 1.1), "squared", 2),
    ],
)
def test_integrals_over_one_and_two_points_are_right_to_second_order(depth, activation, decay, loss, count):
    X, y = np.array([[1.1, 0.4], [-0.3, 0.9]])[:count], np.array([1.0, -0.6])[:count]
    limit = anbk(depth, activation, decay=decay, loss=loss)
    result = perturbation(limit, X, y)
    assert result.methods == ("quadrature",) * depth
    found = {g: saddle(limit, X, y, g) for g in RICHNESS}
    for layer in range(depth):
        exact = lambda g, layer=layer: found[g][0][layer]  # noqa: E731
        np.testing.assert_allclose(result.lazy[layer], saddle(limit, X, y, 0.0)[0][layer], rtol=1e-10, atol=1e-12)
        assert_second_order(exact, result.lazy[layer], result.first[layer])
    assert_second_order(lambda g: found[g][1], result.outputs, result.first_outputs)


def sine_four_point(covariance, dual):
    """Σ_κρ dual_κρ E[sin sin sin sin]: products of sines are sums of exponentials."""
    size = len(covariance)
    result = np.zeros((size, size))
    for m, n, k, r in itertools.product(range(size), repeat=4):
        C = covariance[np.ix_([m, n, k, r], [m, n, k, r])]
        signs = np.array(list(itertools.product([1, -1], repeat=4)))
        terms = signs.prod(axis=1) * np.exp(-np.einsum("si,ij,sj->s", signs, C, signs) / 2)
        result[m, n] += dual[k, r] * terms.sum() / 16
    return result


@pytest.mark.parametrize("count, features, method", [(4, 3, "quadrature"), (4, 6, "quadrature"), (4, 6, "sampled")])
def test_sines_have_a_closed_form(count, features, method, monkeypatch):
    X, y = points(count, features, seed=2)
    if method == "sampled":
        monkeypatch.setattr(quartic, "attempts", lambda law: iter(()))
    result = perturbation(anbk(1, "sine", decay=(1.5, 0.7)), X, y, samples=1 << 13)
    covariance, dual, lazy = X @ X.T / features / 1.5, result.duals[0], result.lazy[0]
    exact = -(sine_four_point(covariance, dual) - lazy * np.sum(dual * lazy)) / 2
    off = np.abs(result.first[0] - exact)
    if method == "sampled":
        assert result.methods == ("quasi Monte Carlo",)
        assert 0.3 < np.sqrt(np.mean((off / result.errors[0]) ** 2)) < 2.0
        assert np.linalg.norm(off) < 0.05 * np.linalg.norm(exact)
    else:
        assert result.methods == ("quadrature",)
        assert np.all(off <= result.errors[0] + 1e-11)
        assert result.errors[0].max() < 1e-4 * np.abs(exact).max()
        assert off.max() < 1e-6 * np.abs(exact).max()


# ---------------------------------------------------------------------------------------------------------------------
# One route against another


@pytest.mark.parametrize("activation, count, features, depth", [("tanh", 3, 6, 2), ("relu", 6, 2, 1)])
def test_quasi_monte_carlo_agrees_with_quadrature_within_its_errors(activation, count, features, depth, monkeypatch):
    X, y = points(count, features, seed=4)
    limit = anbk(depth, activation)
    exact = perturbation(limit, X, y)
    assert exact.methods == ("quadrature",) * depth
    monkeypatch.setattr(quartic, "attempts", lambda law: iter(()))
    runs = [perturbation(limit, X, y, samples=1 << 10, seed=seed) for seed in range(12)]
    for layer in range(depth):
        assert runs[0].methods[layer] == "quasi Monte Carlo"
        z = [(run.first[layer] - exact.first[layer]) / run.errors[layer] for run in runs]
        assert 0.6 < np.sqrt(np.mean(np.square(z))) < 1.6
        assert np.abs(np.mean(z, axis=0)).max() < 4 * 1.2 / np.sqrt(len(runs))  # no bias; Student's t with 15 degrees
    again = perturbation(limit, X, y, samples=1 << 10, seed=3)
    np.testing.assert_array_equal(again.first[-1], runs[3].first[-1])


def test_more_samples_bring_smaller_errors():
    X, y = points(12, 20)
    few, many = (perturbation(anbk(1, "relu"), X, y, samples=n) for n in (1 << 10, 1 << 16))
    assert few.methods == many.methods == ("quasi Monte Carlo",)
    assert np.linalg.norm(many.errors[0]) < np.linalg.norm(few.errors[0]) / 6


@pytest.mark.parametrize("activation", ["tanh", "erf", "gelu", "sine", "relu"])
def test_the_response_is_the_derivative_of_the_recursion(activation, rng):
    activation = ak.MLP(1, activation).activation
    X = rng.standard_normal((5, 7))
    X[1] *= np.linalg.norm(X[0]) / np.linalg.norm(X[1])  # equal variances
    A = rng.standard_normal((5, 5))
    field, change, dual = X @ X.T / 7, A + A.T, np.cov(A)
    field[1, 1] = field[0, 0]
    with scope("float64"):
        rule = activation.rule(2 * np.diagonal(field), "float64")

        @jax.jit
        def moments(C):
            variance = jnp.diagonal(C)
            return rule.values(variance, variance, C), rule.own_values(variance)

        def kernel(C):
            values, own = (np.array(part) for part in moments(C))
            np.fill_diagonal(values, own)
            return values

        response = linear_response.response(activation, field, kernel(field))
    step = 1e-4

    def difference(h):
        with scope("float64"):
            return (kernel(field + h * change) - kernel(field - h * change)) / (2 * h)

    np.testing.assert_allclose(
        response.push(change), (4 * difference(step) - difference(2 * step)) / 3, rtol=1e-7, atol=1e-8
    )
    assert np.vdot(dual, response.push(change)) == pytest.approx(np.vdot(response.pull(dual), change), rel=1e-12)
    np.testing.assert_allclose(response.push(np.stack([change, dual]))[1], response.push(dual))


def test_mixed_moments_by_rays_know_the_kink(rng):
    """E[uφ'(u)φ(v)] is E[φφ] for ReLU, also for collinear points."""
    X = rng.standard_normal((5, 7))
    X[1], X[2] = -X[0], 2 * X[0]
    relu = ak.MLP(1, "relu").activation
    with scope("float64"):
        C, variance = jnp.asarray(X @ X.T / 7), jnp.asarray(np.diagonal(X @ X.T / 7))
        numeric = Numeric(relu, "rays")
        found = linear_response.mixed(PolarRule(numeric, 1), numeric, variance, C)
        np.testing.assert_allclose(
            found, relu.moment(variance[:, None] + 0 * C, variance[None, :] + 0 * C, C), rtol=1e-7, atol=1e-9
        )


def test_duplicated_points_are_the_limit_of_close_ones():
    X, y = points(3, 5, seed=6)
    twice, near = X.copy(), X.copy()
    twice[2], near[2] = X[0], X[0] + 1e-6 * X[1]
    limit = anbk(2, "tanh")
    same, close = perturbation(limit, twice, y), perturbation(limit, near, y)
    for layer in range(2):
        size = np.abs(close.first[layer]).max()
        np.testing.assert_allclose(same.first[layer], close.first[layer], atol=2e-5 * size)
        np.testing.assert_array_equal(same.first[layer][0], same.first[layer][2])
        np.testing.assert_allclose(
            np.sum(same.duals[layer] * same.lazy[layer]), np.sum(close.duals[layer] * close.lazy[layer]), rtol=1e-5
        )
    np.testing.assert_allclose(same.first_outputs, close.first_outputs, atol=1e-5 * np.abs(close.first_outputs).max())


@pytest.mark.parametrize("activation", ["linear", "relu"])
def test_outputs_add_up(activation):
    X, y = points(3, 2, seed=8)
    Y = np.stack([y, np.cos(3 * y)], axis=1)
    limit = anbk(1, activation)
    both = perturbation(limit, X, Y)
    parts = [perturbation(limit, X, column) for column in Y.T]
    np.testing.assert_allclose(both.first[0], parts[0].first[0] + parts[1].first[0], rtol=1e-9)
    assert both.fitted.shape == (3, 2) and parts[0].fitted.shape == (3,)


@pytest.mark.long
@pytest.mark.slow
def test_softmax_with_two_classes_is_logistic():
    """Two softmax outputs differ by s; each class has half the prior variance of one logistic output's difference."""
    X, _ = points(3, 2, seed=9)
    y = np.array([1.0, -1.0, 1.0])
    one_hot = np.stack([y > 0, y < 0], axis=1).astype(float)
    logistic = perturbation(anbk(1, "relu", decay=(1.0, 0.5), loss="logistic"), X, y)
    softmax = perturbation(anbk(1, "relu", decay=(1.0, 1.0), loss="softmax"), X, one_hot)
    # v = ±w for the classes, s = 2Φw/λ: the logistic problem with half the decay
    np.testing.assert_allclose(softmax.first[0], logistic.first[0], rtol=1e-8)
    np.testing.assert_allclose(softmax.fitted[:, 0] - softmax.fitted[:, 1], logistic.fitted, rtol=1e-8)


# ---------------------------------------------------------------------------------------------------------------------
# What may be asked of it


def test_the_result_scales_with_richness_alone():
    X, y = points(3, 2)
    low, high = (perturbation(anbk(2, "linear", richness=g), X, y) for g in (0.0, 0.3))
    np.testing.assert_array_equal(low.first[1], high.first[1])
    np.testing.assert_array_equal(low.kernel, low.lazy[-1])
    np.testing.assert_allclose(high.kernel, high.lazy[1] + 0.09 * high.first[1])
    np.testing.assert_allclose(high.fitted, high.outputs + 0.09 * high.first_outputs)
    assert low.sizes == (0.0, 0.0) and 0 < high.sizes[0] < high.sizes[1]
    assert "\n" not in repr(high) and f"{high.sizes[1]:.2g}" in repr(high)
    with pytest.raises(ValueError, match="read-only"):
        high.first[0][0, 0] = 1.0


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("X", [np.zeros((2, 1)), np.array([[1.0], [-1.0], [2.0], [0.0]])], ids=["zeros", "collinear"])
def test_degenerate_inputs(activation, X):
    y = np.linspace(-1, 1, len(X))
    result = perturbation(anbk(2, activation), X, y, samples=1 << 10)
    for arrays in (result.lazy, result.first, result.errors, result.duals):
        assert all(np.isfinite(array).all() for array in arrays)
    assert np.isfinite(result.fitted).all()


def test_targets_of_zero_change_nothing():
    X, _ = points(12, 20)
    result = perturbation(anbk(1, "relu"), X, np.zeros(12), samples=1 << 10)
    assert not result.first[0].any() and not result.fitted.any()


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"limit": ak.NNGPK(ak.MLP(1, "relu"))}, TypeError, "limit must be an ANBK"),
        ({"limit": ak.ANBK(ak.CNN())}, NotImplementedError, "MLP"),
        ({"X": [1.0, 2.0]}, ValueError, "X must be 2-D"),
        ({"X": [[1.0], [np.nan]]}, ValueError, "X must be finite"),
        ({"y": [1.0]}, ValueError, "y must have one row per point"),
        ({"limit": anbk(loss="logistic"), "y": [1.0, 0.5]}, ValueError, r"y must hold -1 and \+1"),
        ({"y": [1e200, 1.0]}, ValueError, "y must have squares"),
        ({"samples": 8}, ValueError, "samples must be at least 32"),
        ({"seed": -1}, ValueError, "seed must be at least 0"),
        ({"X": np.zeros((300_000, 1)), "y": np.zeros(300_000)}, ak.TooLargeError, "300000 points"),
        ({"X": [[1e6], [2e6]]}, ak.ConvergenceError, "rescale X"),
        ({"X": [[1.0], [2.0]], "limit": anbk(2, "erf", decay=(1, 1e-4, 1))}, ak.ConvergenceError, "rescale X"),
    ],
)
def test_bad_input(change, error, message):
    arguments = {"limit": anbk(), "X": [[1.0], [2.0]], "y": [1.0, -1.0], **change}
    with pytest.raises(error, match=message):
        perturbation(**arguments)
