"""The quadrature rules on integrals that are known exactly."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adakern import quadrature
from adakern.precision import scope


@pytest.fixture(autouse=True)
def float64():
    with scope("float64"):
        yield


A, B = np.array([1.0, 0.3, 4.0]), np.array([1.0, 2.0, 4.0])


@pytest.mark.parametrize("rho", [-1.0, -0.5, 0.0, 0.99, 1.0])
def test_polar_on_monomials(rho):
    """Isserlis: E[uv] = c, E[u²v²] = ab + 2c², E[u³v³] = 9abc + 6c³."""
    c = rho * np.sqrt(A * B)
    for power, expected in ((1, c), (2, A * B + 2 * c**2), (3, 9 * A * B * c + 6 * c**3)):
        found = quadrature.polar(lambda h, power=power: h**power, 2, *map(jnp.asarray, (A, B, c)))
        # The tail beyond radius 9 weighs 9^6 e^{-40.5} = 1e-12 for the highest power, times (ab)^{3/2} = 64.
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-10)


def test_polar_converges_exponentially():
    """Each level gains a fixed factor of nodes: the error of a smooth integrand falls to rounding within three of them."""
    exact = (2 / np.pi) * np.arcsin(2 * 4.0 * 0.5 / (1 + 2 * 4.0))
    errors = [
        abs(float(quadrature.polar(jax.lax.erf, level, *(jnp.asarray([v]) for v in (4.0, 4.0, 2.0)))[0]) - exact)
        for level in (0, 1, 2, 4)
    ]
    assert errors[1] < errors[0] / 10
    assert errors[-1] < 1e-14


def test_correlation_angle_is_exact_for_duplicates():
    a = jnp.asarray([1e-30, 0.1, 1 / 3, 7.7, 1e30])
    theta, m, s = quadrature.correlation_angle(a, a, a)
    np.testing.assert_array_equal(theta, 0.0)
    np.testing.assert_array_equal(m, a)
    np.testing.assert_array_equal(s, 0.0)
    theta, _, _ = quadrature.correlation_angle(a, a, -a)
    np.testing.assert_array_equal(theta, np.pi)
    theta, _, _ = quadrature.correlation_angle(jnp.zeros(1), jnp.ones(1), jnp.zeros(1))
    assert theta[0] == np.pi / 2


@given(scale=st.floats(-200, 200), rho=st.floats(-1, 1))
@settings(max_examples=40, deadline=None)
def test_correlation_angle_does_not_depend_on_scale(scale, rho):
    """Inputs in other units: neither overflow nor underflow of a·b may turn up within the range of float64."""
    with scope("float64"):
        unit, size = jnp.ones(1), jnp.full(1, 10.0**scale)
        expected, _, _ = quadrature.correlation_angle(unit, unit, rho * unit)
        found, _, _ = quadrature.correlation_angle(size, size, rho * size)
        np.testing.assert_allclose(found, expected, atol=1e-7)  # half the digits, where rho is next to one


def test_hermite_coefficients_of_polynomials():
    """u = √a z: φ = u has α_1 = √a; φ = u² has α_0 = a, α_2 = √2 a."""
    variance = jnp.asarray([0.5, 3.0])
    first = np.zeros((2, 16))
    first[:, 1] = np.sqrt(variance)
    second = np.zeros((2, 16))
    second[:, 0], second[:, 2] = variance, np.sqrt(2) * np.asarray(variance)
    np.testing.assert_allclose(quadrature.coefficients(lambda u: u, 16, variance), first, atol=1e-12)
    np.testing.assert_allclose(quadrature.coefficients(lambda u: u * u, 16, variance), second, atol=1e-12)


def test_parseval():
    variance = jnp.asarray([0.5, 3.0])
    total = quadrature.line_mean(lambda u: jnp.sin(u) ** 2, variance)
    np.testing.assert_allclose(total, (1 - np.exp(-2 * np.asarray(variance))) / 2, rtol=1e-12)
    kept = jnp.sum(quadrature.coefficients(jnp.sin, 64, variance) ** 2, axis=1)
    np.testing.assert_allclose(kept, total, rtol=1e-12)


def test_series_is_a_power_series():
    alpha, beta = jnp.asarray([[1.0, 2.0, 3.0]]), jnp.asarray([[1.0, 1.0, 0.5], [0.0, 1.0, -1.0]])
    rho = jnp.asarray([[0.5, -0.25]])
    expected = [[1 + 2 * 0.5 + 1.5 * 0.25, 2 * -0.25 - 3 * 0.0625]]
    np.testing.assert_allclose(quadrature.series(alpha, beta, rho), expected, rtol=1e-15)


def test_shifted_mean_on_polynomials():
    """E[(m+σz)^4] = m⁴ + 6m²σ² + 3σ⁴; the pieces are cut off at seven deviations, beyond which 1e-9 is left of z⁴."""
    m, s = jnp.asarray([0.0, 1.5, -2.0]), jnp.asarray([1.0, 0.0, 0.5])
    found = quadrature.shifted_mean(lambda h: h**4, m, s)
    np.testing.assert_allclose(found, m**4 + 6 * m**2 * s**2 + 3 * s**4, rtol=1e-8)


def test_legendre_on_an_interval():
    nodes, weights = quadrature.legendre(12, -1.0, 3.0)
    np.testing.assert_allclose(np.sum(weights * nodes**5), (3.0**6 - 1) / 6, rtol=1e-13)
