"""The Newton solver of the variational Gaussian approximation: exact cases, derivatives, awkward input."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import norm

import adakern as ak
from adakern import losses, quadrature
from adakern.limits.vga import VGA, covariance_kernel, moments
from adakern.precision import scope
from adakern.solvers import gaussian


def run(limit, X, y, precision="float64", **options):
    with scope(precision):
        return gaussian.solve(limit, X, y if y.ndim == 2 else y[:, None], precision=precision, **options)


def linear_truth(X, y, depth, richness, beta, decays):
    """Kernels and free energy of a deep linear network with one output: everything hangs on one number t."""
    phi0 = X @ X.T / X.shape[1]
    K = phi0 / np.prod(decays)

    def at(t):
        return np.linalg.solve(np.eye(len(y)) / beta + (1 + t) ** depth * K, y)

    def gap(t):
        v = at(t)
        return richness**2 * (1 + t) ** depth * v @ K @ v - t

    t = brentq(gap, 1e-12, 1e6, xtol=1e-14, rtol=1e-14)
    v = at(t)
    kernels = []
    for layer in range(1, depth + 1):
        scale = richness**2 / np.prod(decays) * (1 + t) ** depth * ((1 + t) ** layer - 1) / t
        kernels.append((phi0 + scale * np.outer(phi0 @ v, phi0 @ v)) / np.prod(decays[:layer]))
    loss = 0.5 * np.sum((v / beta) ** 2)
    return kernels, depth / 2 * (t - np.log1p(t)) + beta * richness**2 * loss + t / 2


@pytest.mark.parametrize(
    "depth, decay",
    [
        (1, (0.7, 1.4)),
        pytest.param(2, (1.0, 0.5, 2.0), marks=pytest.mark.long),
        pytest.param(3, (1.0,) * 4, marks=pytest.mark.long),
    ],
)
def test_a_linear_network_is_exact(data, depth, decay):
    X, y, _ = data
    answer = run(VGA(ak.MLP(depth=depth, activation="linear"), richness=1.3, beta=20.0, decay=decay), X, y)
    kernels, free = linear_truth(X, y, depth, 1.3, 20.0, decay)
    assert answer.converged
    for found, truth in zip(answer.kernels, kernels, strict=True):
        np.testing.assert_allclose(found, truth, atol=1e-6 * np.abs(truth).max())
    assert answer.stats["free_energy"] == pytest.approx(free, rel=1e-6)


@pytest.mark.long
def test_one_point_is_a_search_over_one_variance():
    """F(c) = ½(c - 1 - ln c) + E(M(cκ)), minimised by scipy with a quadrature of its own."""
    X, y, beta, richness = np.array([[1.1, -0.4]]), np.array([0.9]), 30.0, 2.0
    kappa = float(np.sum(X**2)) / 2

    def kernel(c):
        return 2 * quad(lambda z: np.tanh(np.sqrt(c * kappa) * z) ** 2 * norm.pdf(z), 0, 12, epsabs=1e-13)[0]

    def free(log_c):
        c = np.exp(log_c)
        return 0.5 * (c - 1 - log_c) + 0.5 * richness**2 * y[0] ** 2 / (1 / beta + kernel(c))

    best = minimize_scalar(free, bounds=(-3, 6), method="bounded", options={"xatol": 1e-10})
    answer = run(VGA(ak.MLP(depth=1, activation="tanh"), richness=richness, beta=beta), X, y)
    assert float(answer.draws[0][0, 0] ** 2) == pytest.approx(np.exp(best.x), rel=1e-5)
    assert answer.stats["free_energy"] == pytest.approx(best.fun, abs=1e-9)
    assert answer.kernels[0][0, 0] == pytest.approx(kernel(np.exp(best.x)), rel=1e-5)


def test_the_gradient_of_the_free_energy(data):
    """And the curvature, against finite differences along a curve of laws, away from the prior, through two layers."""
    X, y, _ = data
    relu = ak.activations.get("relu")
    with scope("float64"):
        root = jnp.asarray(X / np.sqrt(X.shape[1]))
        numbers = (jnp.asarray(0.8), jnp.asarray(20.0), jnp.asarray([1.0, 0.7, 1.2]))
        points = gaussian.Data(root, jnp.arange(12), jnp.asarray(y)[:, None], *numbers)
        form = gaussian.Form(relu, (relu.rule(np.ones(1), "float64"),) * 2, losses.get("squared"))
        rng = np.random.default_rng(0)
        factors = tuple(jnp.asarray(np.eye(r) + 0.2 * rng.standard_normal((r, r))) for r in (5, 12))
        way = tuple(jnp.asarray(rng.standard_normal((r, r)) / r) for r in (5, 12))

        @jax.jit
        def model(t):
            return gaussian._change(form, points, factors, tuple(t * s for s in way))

        def free(t):
            turns = [gaussian._turn(t * s) for s in way]
            moved = tuple(w @ jnp.linalg.cholesky(turn) for w, turn in zip(factors, turns, strict=True))
            return float(gaussian._value(form, points, moved))

        slope, bend = float(jax.jit(jax.grad(model))(0.0)), float(jax.jit(jax.grad(jax.grad(model)))(0.0))
        low, middle, high = (free(t) for t in (-1e-3, 0.0, 1e-3))
    assert slope == pytest.approx((high - low) / 2e-3, rel=1e-5)
    assert bend == pytest.approx((high - 2 * middle + low) / 1e-6, rel=1e-4)


@pytest.mark.parametrize("activation", ["relu", "erf", "tanh"])
def test_moments_have_derivatives_where_points_are_collinear_or_zero(activation):
    phi = ak.activations.get(activation)
    points = np.array([[1.0, 0.5], [2.0, 1.0], [-1.0, -0.5], [0.0, 0.0], [0.3, -1.0]])
    with scope("float64"):
        sigma = jnp.asarray(points @ points.T)
        rule = phi.rule(np.diag(sigma), "float64")
        np.testing.assert_allclose(moments(phi, rule, sigma), covariance_kernel(rule, sigma), atol=1e-10)

        def total(t):
            return jnp.sum(moments(phi, rule, (1 + t) * sigma))

        slope, bend = (float(f(0.0)) for f in (jax.jit(jax.grad(total)), jax.jit(jax.grad(jax.grad(total)))))
        assert slope == pytest.approx(float(total(1e-5) - total(-1e-5)) / 2e-5, rel=1e-6)
        assert bend == pytest.approx(float(total(1e-3) - 2 * total(0.0) + total(-1e-3)) / 1e-6, rel=1e-4, abs=1e-6)


def test_moments_by_polar_quadrature_have_derivatives():
    """A kinked function of a user's, which no Hermite series resolves, against ReLU's closed form."""
    leaky = ak.activations.Numeric(lambda h: jnp.maximum(h, 0.0), "kinked")
    relu = ak.activations.get("relu")
    with scope("float64"):
        sigma = jnp.asarray([[1.0, 0.4], [0.4, 2.0]])
        rule = leaky.rule(np.array([1.0, 2.0]), "float64")
        assert type(rule).__name__ == "PolarRule"
        mine = jax.jit(jax.grad(lambda s: jnp.sum(moments(leaky, rule, s) ** 2)))(sigma)
        closed = relu.rule(np.array([1.0]), "float64")
        theirs = jax.jit(jax.grad(lambda s: jnp.sum(moments(relu, closed, s) ** 2)))(sigma)
        np.testing.assert_allclose(mine, theirs, rtol=1e-8)
    assert quadrature.LEVELS[rule.level][0] < 100


@pytest.mark.long
def test_duplicated_points_count_once_in_the_law(data):
    """Two labels on one point are one label with half the noise, their mean; squared loss, up to a constant of F."""
    X, y, _ = data
    doubled, labels = np.concatenate([X, X]), np.concatenate([y + 0.3, y - 0.3])
    limit = VGA(ak.MLP(depth=1, activation="relu"), richness=0.7, beta=10.0)
    answer = run(limit, doubled, labels)
    single = run(VGA(limit.network, richness=0.7, beta=20.0), X, y)
    assert answer.converged and answer.draws[0].shape == (5, 5)
    np.testing.assert_allclose(answer.kernels[0], np.tile(single.kernels[0], (2, 2)), rtol=1e-6)
    constant = 10.0 * 0.7**2 * 0.5 * 0.3**2 * 24
    assert answer.stats["free_energy"] == pytest.approx(single.stats["free_energy"] + constant, rel=1e-8)


def test_zero_labels_leave_the_prior(data):
    X, y, _ = data
    answer = run(VGA(ak.MLP(depth=1, activation="relu"), richness=2.0), X, 0 * y)
    assert answer.converged and answer.stats["steps"] == 0 and answer.stats["free_energy"] == pytest.approx(0.0)
    np.testing.assert_allclose(answer.draws[0], np.eye(5))


def test_too_few_steps_are_said_to_be(data):
    X, y, _ = data
    answer = run(VGA(ak.MLP(depth=1, activation="relu"), richness=2.0), X, y, steps=2)
    assert not answer.converged and answer.stats["steps"] == 2 and "give more steps" in answer.status


def test_fields_too_large_for_quadrature_are_said_to_be():
    X = 200.0 * np.array([[1.0, 0.2], [0.3, 1.0]])
    answer = run(VGA(ak.MLP(depth=1, activation="tanh"), richness=0.0), X, np.ones(2))
    assert not answer.converged and "cannot resolve" in answer.status
