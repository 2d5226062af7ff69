"""Moments by quadrature: tanh and functions that a user brings."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate

from adakern import activations
from adakern.activations import Numeric, PolarRule, SeriesRule
from adakern.precision import scope


def brute_force(function, a, b, c):
    """E[φ(u)φ(v)] by scipy's adaptive double integral over two independent normals."""
    low, tilt = c / np.sqrt(a), np.sqrt(b - c * c / a)

    def integrand(y, x):
        return function(np.sqrt(a) * x) * function(low * x + tilt * y) * np.exp(-(x * x + y * y) / 2) / (2 * np.pi)

    return integrate.dblquad(integrand, -8.5, 8.5, -8.5, 8.5, epsabs=1e-11, epsrel=1e-11)[0]


@functools.cache
def rule(name, largest):
    with scope("float64"):
        return activations.get(name).rule(np.array([0.2, largest]), "float64")


@pytest.mark.parametrize("a, b, c", [(1.0, 1.0, 0.6), (0.2, 3.0, -0.5)])
def test_tanh_against_a_double_integral(a, b, c):
    chosen = rule("tanh", 3.0)
    arguments = (jnp.asarray([a]), jnp.asarray([b]), jnp.asarray([[c]]))
    slope = brute_force(lambda h: 1 / np.cosh(h) ** 2, a, b, c)
    np.testing.assert_allclose(chosen.values(*arguments)[0, 0], brute_force(np.tanh, a, b, c), atol=1e-10)
    np.testing.assert_allclose(chosen.slopes(*arguments)[0, 0], slope, atol=1e-10)


def test_series_and_polar_agree_on_tanh():
    tanh = activations.get("tanh")
    chosen = rule("tanh", 3.0)
    assert isinstance(chosen, SeriesRule)
    variance = jnp.asarray([0.2, 1.0, 3.0])
    for kind in ("values", "slopes"):
        series, polar = jax.jit(getattr(chosen, kind)), jax.jit(getattr(PolarRule(tanh, 4), kind))
        for rho in (-1.0, -0.999999, -0.5, 0.0, 0.8, 1.0):
            block = rho * jnp.sqrt(variance[:, None] * variance[None, :])
            found = series(variance, variance, block)
            np.testing.assert_allclose(found, polar(variance, variance, block), atol=1e-10)
    np.testing.assert_allclose(chosen.own_values(variance), PolarRule(tanh, 4).own_values(variance), atol=1e-10)
    np.testing.assert_allclose(chosen.own_slopes(variance), PolarRule(tanh, 4).own_slopes(variance), atol=1e-10)


def test_leaky_relu_exactly():
    """leaky(h) = s h + (1-s) relu(h), so its moments follow from c, c/2 and the arc-cosine kernel."""
    slope = 0.1
    leaky = activations.get(lambda h: jnp.where(h > 0, h, slope * h))
    chosen = PolarRule(leaky, 2)
    a, b = jnp.asarray([0.2, 5.0]), jnp.asarray([0.7, 5.0, 1.0])
    relu = activations.get("relu")
    wide, tall = jnp.broadcast_to(a[:, None], (2, 3)), jnp.broadcast_to(b[None, :], (2, 3))
    values, slopes = jax.jit(chosen.values), jax.jit(chosen.slopes)
    for rho in (-1.0, -0.6, 0.0, 0.3, 0.9999, 1.0):
        c = rho * jnp.sqrt(wide * tall)
        value = slope * c + (1 - slope) ** 2 * relu.moment(wide, tall, c)
        np.testing.assert_allclose(values(a, b, c), value, rtol=1e-10, atol=1e-11)
        derivative = slope + (1 - slope) ** 2 * relu.slope_moment(wide, tall, c)
        np.testing.assert_allclose(slopes(a, b, c), derivative, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(
    "function, double",
    [(jax.nn.silu, lambda h: h / (1 + np.exp(-h))), (lambda h: jnp.cos(h) + 0.5 * h, lambda h: np.cos(h) + 0.5 * h)],
    ids=["silu", "lambda"],
)
def test_custom_functions_against_a_double_integral(function, double):
    custom = activations.get(function)
    assert not activations.is_builtin(custom)
    assert custom == activations.get(function) and hash(custom) == hash(activations.get(function))
    chosen = custom.rule(np.array([0.5, 2.0]), "float64")
    found = chosen.values(jnp.asarray([0.5]), jnp.asarray([2.0]), jnp.asarray([[-0.4]]))[0, 0]
    np.testing.assert_allclose(found, brute_force(double, 0.5, 2.0, -0.4), atol=1e-10)


@pytest.mark.parametrize("kind", ["mean", "mean_square"])
@pytest.mark.parametrize("name", ["tanh", "erf", "gelu"])
@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0])
def test_one_dimensional_means_stay_below_the_solver_noise(name, kind, spread):
    """Against a trapezoidal sum, which converges faster than any power for analytic functions.

    These means condition the particles on new points. By default a solution keeps 8 × 2048 draws, whose own noise is
    1/√16384 = 8e-3 of the scale: a bias ten times smaller does not show.
    """
    phi = activations.get(name)
    z = np.linspace(-9, 9, 3601)
    weight = np.exp(-z * z / 2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
    power = 1 if kind == "mean" else 2
    for centre in (-2.0, 0.3):
        values = np.asarray(phi(jnp.asarray(centre + spread * z)))
        expected, unit = np.sum(weight * values**power), np.sum(weight * values**2) ** (power / 2)
        found = getattr(phi, kind)(jnp.asarray([centre]), jnp.asarray([spread]))[0]
        assert abs(found - expected) < 8e-4 * unit


def test_means_of_a_kinked_function():
    """leaky(h) = h/10 + 9/10 relu(h), to the same tenth of the noise."""
    leaky = activations.get(lambda h: jnp.where(h > 0, h, 0.1 * h))
    centre = jnp.linspace(-1.0, 1.0, 9)
    exact = 0.1 * centre + 0.9 * activations.get("relu").mean(centre, jnp.ones(9))
    np.testing.assert_allclose(leaky.mean(centre, jnp.ones(9)), exact, atol=8e-4)


def test_float32_rule():
    with scope("float32"):
        chosen = activations.get("tanh").rule(np.array([0.2, 3.0]), "float32")
        arguments = (jnp.asarray([0.2, 3.0]), jnp.asarray([3.0]), jnp.asarray([[0.3], [3.0]]))
        single, slopes = chosen.values(*arguments), chosen.slopes(*arguments)
        assert single.dtype == slopes.dtype == np.float32
    wide = rule("tanh", 3.0)
    arguments = (jnp.asarray([0.2, 3.0]), jnp.asarray([3.0]), jnp.asarray([[0.3], [3.0]]))
    np.testing.assert_allclose(single, wide.values(*arguments), atol=5e-6)  # the rule's own tolerance is 2e-6
    np.testing.assert_allclose(slopes, wide.slopes(*arguments), atol=5e-6)


def test_zero_variances():
    chosen = activations.get("tanh").rule(np.zeros(3), "float64")
    zero = jnp.zeros(3)
    np.testing.assert_allclose(chosen.values(zero, zero, jnp.zeros((3, 3))), 0.0, atol=1e-30)
    np.testing.assert_allclose(chosen.slopes(zero, zero, jnp.zeros((3, 3))), 1.0, rtol=1e-12)


def test_rules_are_hashable():
    assert hash(rule("tanh", 3.0)) == hash(SeriesRule(activations.get("tanh"), rule("tanh", 3.0).terms))
    assert Numeric(jnp.tanh, "tanh") == Numeric(jnp.tanh, "tanh")
    assert activations.get(jnp.tanh) == activations.get("tanh") and activations.is_builtin(activations.get(jnp.tanh))
