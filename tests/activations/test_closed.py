"""Closed forms against quadrature, against textbook formulas, and against calculus."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats

from adakern import activations, quadrature
from adakern.activations import Numeric, SeriesRule
from adakern.precision import scope

CLOSED = ("linear", "relu", "erf", "sine", "gelu")
FUNCTIONS = {
    "linear": lambda h: h,
    "relu": jax.nn.relu,
    "erf": jax.lax.erf,
    "sine": jnp.sin,
    "gelu": lambda h: h * jax.scipy.stats.norm.cdf(h),
}
FINE = 6  # a polar level at which neighbouring levels agree to rounding for all of these

polar = functools.partial(jax.jit, static_argnums=(0, 1))(quadrature.polar)


def scale(moment, a, b):
    """sqrt(E[φ(u)²] E[φ(v)²]): what an error is measured against."""
    return np.sqrt(np.asarray(moment(a, a, a)) * np.asarray(moment(b, b, b)))


@pytest.mark.parametrize("name", CLOSED)
def test_moments_match_polar_quadrature(name, pairs):
    phi, (a, b, c) = activations.get(name), tuple(map(jnp.asarray, pairs))
    for moment, function in ((phi.moment, phi), (phi.slope_moment, phi.derivative)):
        error = np.abs(np.asarray(moment(a, b, c)) - np.asarray(polar(function, FINE, a, b, c)))
        assert np.max(error / scale(moment, a, b)) < 1e-9


@pytest.mark.parametrize(
    "name, largest",
    [("linear", 5.0), ("relu", 5.0), ("erf", 0.3), ("erf", 5.0), ("sine", 5.0), ("gelu", 0.3), ("gelu", 5.0)],
)
def test_moments_match_the_rule_that_quadrature_picks(name, largest, pairs):
    chosen = [v[(pairs[0] <= largest) & (pairs[1] <= largest)] for v in pairs]
    phi, wrapped = activations.get(name), Numeric(FUNCTIONS[name], name)
    rule = wrapped.rule(np.unique(chosen[0]), "float64")
    a, b, c = map(jnp.asarray, chosen)
    for moment, block, own in (
        (phi.moment, rule.values, rule.own_values),
        (phi.slope_moment, rule.slopes, rule.own_slopes),
    ):
        # The diagonal of a block of all chosen pairs holds the pairs themselves; one row per pair keeps it small.
        picked = jax.jit(jax.vmap(lambda a, b, c, block=block: block(a[None], b[None], c[None, None])[0, 0]))(a, b, c)
        unit = scale(moment, a, b)
        assert np.max(np.abs(np.asarray(picked) - np.asarray(moment(a, b, c))) / unit) < 1e-9
        assert np.max(np.abs(np.asarray(own(a)) / np.asarray(moment(a, a, a)) - 1)) < 1e-9


def test_both_kinds_of_rule_get_picked():
    smooth = Numeric(jax.lax.erf, "erf").rule(np.array([0.3]), "float64")
    kinked = Numeric(jax.nn.relu, "relu").rule(np.array([0.3]), "float64")
    assert isinstance(smooth, SeriesRule)
    assert type(kinked).__name__ == "PolarRule"


@pytest.mark.parametrize("name", CLOSED)
def test_price_theorem(name):
    """∂E[φ(u)φ(v)]/∂c = E[φ'(u)φ'(v)]: the two closed forms belong to each other."""
    phi = activations.get(name)
    a, b = jnp.asarray([0.01, 0.5, 1.0, 4.0, 30.0]), jnp.asarray([0.7, 0.5, 2.0, 0.1, 30.0])
    for rho in (-0.9, -0.3, 0.1, 0.8, 0.999):
        c = rho * jnp.sqrt(a * b)
        slope = jax.vmap(jax.grad(phi.moment, argnums=2))(a, b, c)
        # Rounding of 1 - rho² = 2e-3 costs three digits of sixteen.
        np.testing.assert_allclose(slope, phi.slope_moment(a, b, c), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", ["linear", "relu", "erf", "sine"])
def test_moment_grows_with_correlation(name, pairs):
    """Where E[φ'φ'] ≥ 0 at every correlation (GELU's is not), E[φφ] is monotone."""
    phi = activations.get(name)
    for a in (0.01, 1.0, 30.0):
        for b in (0.3, 30.0):
            rho = jnp.linspace(-1.0, 1.0, 201)
            ones = jnp.ones_like(rho)
            values = np.asarray(phi.moment(a * ones, b * ones, rho * np.sqrt(a * b)))
            assert np.all(np.diff(values) >= -4 * np.finfo(float).eps * np.abs(values).max())
            assert values[-1] > values[0]


def test_relu_is_exact_at_perfect_correlation():
    a = jnp.asarray([1e-12, 0.01, 1.0, 7.3, 30.0, 1e12])
    relu = activations.get("relu")
    np.testing.assert_array_max_ulp(np.asarray(relu.moment(a, a, a)), np.asarray(a / 2), maxulp=1)
    np.testing.assert_array_equal(relu.slope_moment(a, a, a), 0.5)
    np.testing.assert_array_equal(relu.moment(a, a, -a), 0.0)
    np.testing.assert_array_equal(relu.slope_moment(a, a, -a), 0.0)


@pytest.mark.parametrize("name", CLOSED)
def test_rounding_beyond_perfect_correlation_stays_finite(name):
    a = jnp.asarray([0.01, 1.0, 30.0])
    phi = activations.get(name)
    for sign in (-1, 1):
        beyond = sign * a * (1 + 4e-16)
        for moment in (phi.moment, phi.slope_moment):
            change = np.abs(np.asarray(moment(a, a, beyond)) - np.asarray(moment(a, a, sign * a)))
            # c moves by two units of rounding of a, and so may every sum in which c stands.
            assert np.all(change <= 4 * np.finfo(float).eps * (1 + np.asarray(a)))


@pytest.mark.parametrize("name", CLOSED)
def test_a_zero_variance_is_finite(name):
    zero, one = jnp.zeros(2), jnp.asarray([0.0, 1.0])
    phi = activations.get(name)
    np.testing.assert_allclose(phi.moment(zero, one, zero), 0.0, atol=1e-300)  # φ(0) = 0 for all of them
    assert np.isfinite(phi.slope_moment(zero, one, zero)).all()


def test_textbook_formulas(pairs):
    """Arc-cosine and arc-sine forms, well away from ±1 where they are accurate."""
    keep = np.abs(pairs[2]) < 0.95 * np.sqrt(pairs[0] * pairs[1])
    a, b, c = (v[keep] for v in pairs)
    theta = np.arccos(c / np.sqrt(a * b))
    references = {
        ("relu", "moment"): np.sqrt(a * b) * (np.sin(theta) + (np.pi - theta) * np.cos(theta)) / (2 * np.pi),
        ("relu", "slope_moment"): 0.25 + np.arcsin(c / np.sqrt(a * b)) / (2 * np.pi),
        ("erf", "moment"): 2 / np.pi * np.arcsin(2 * c / np.sqrt((1 + 2 * a) * (1 + 2 * b))),
        ("erf", "slope_moment"): 4 / np.pi / np.sqrt((1 + 2 * a) * (1 + 2 * b) - 4 * c**2),
    }
    for (name, kind), expected in references.items():
        found = getattr(activations.get(name), kind)(*map(jnp.asarray, (a, b, c)))
        np.testing.assert_allclose(found, expected, rtol=2e-14, atol=1e-16)


@pytest.mark.parametrize("name", [*CLOSED, "tanh"])
def test_derivative(name):
    phi = activations.get(name)
    h = jnp.asarray([-3.0, -0.4, 1e-3, 0.9, 5.0])
    np.testing.assert_allclose(phi.derivative(h), jax.vmap(jax.grad(phi))(h), rtol=1e-14, atol=1e-16)
    step = 1e-6  # central differences: error step² times the third derivative, and rounding over step
    np.testing.assert_allclose(phi.derivative(h), (phi(h + step) - phi(h - step)) / (2 * step), atol=1e-9)


CENTRES, SPREADS = (-2.0, -0.1, 0.0, 1.3), (0.0, 0.2, 1.0, 3.0)


def line_integral(function, centre, spread, kink=None):
    """E[f(centre + spread·z)] by adaptive quadrature, cut at the kink."""
    if spread == 0:
        return float(function(centre))
    points = sorted({-9.0, 0.0, 9.0} | ({np.clip(-centre / spread, -9, 9)} if kink else set()))
    return sum(
        integrate.quad(lambda z: function(centre + spread * z) * stats.norm.pdf(z), low, high, epsabs=1e-13, limit=200)[
            0
        ]
        for low, high in itertools.pairwise(points)
    )


@pytest.mark.parametrize("kind", ["mean", "mean_square"])
@pytest.mark.parametrize("name", ["linear", "relu", "sine"])
def test_one_dimensional_moments(name, kind):
    function = {"linear": lambda h: h, "relu": lambda h: max(h, 0.0), "sine": np.sin}[name]
    powered = function if kind == "mean" else (lambda h: function(h) ** 2)
    for centre in CENTRES:
        for spread in SPREADS:
            found = getattr(activations.get(name), kind)(jnp.asarray([centre]), jnp.asarray([spread]))
            expected = line_integral(powered, centre, spread, kink=name == "relu")
            np.testing.assert_allclose(found[0], expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", ["erf", "gelu"])
def test_one_dimensional_means(name):
    function = {"erf": special.erf, "gelu": lambda h: h * special.ndtr(h)}[name]
    for centre in CENTRES:
        for spread in SPREADS:
            found = activations.get(name).mean(jnp.asarray([centre]), jnp.asarray([spread]))
            np.testing.assert_allclose(found[0], line_integral(function, centre, spread), rtol=1e-11, atol=1e-12)


def test_homogeneity_degrees():
    h = jnp.linspace(-3, 3, 13)
    for name in activations.NAMES:
        phi = activations.get(name)
        scales = np.allclose(phi(2.5 * h), 2.5 * phi(h), rtol=1e-12)
        assert phi.degree == (1 if scales else None), name


@pytest.mark.parametrize("name", CLOSED)
def test_float32_within_its_rounding(name, pairs):
    """Away from |ρ| = 1, where rounding of c costs half the digits, a few units of 6e-8 relative to the scale."""
    keep = np.abs(pairs[2]) <= 0.95 * np.sqrt(pairs[0] * pairs[1])
    a, b, c = (v[keep] for v in pairs)
    phi = activations.get(name)
    for kind in ("moment", "slope_moment"):
        moment = getattr(phi, kind)
        exact, unit = np.asarray(moment(*map(jnp.asarray, (a, b, c)))), scale(moment, *map(jnp.asarray, (a, b)))
        with scope("float32"):
            single = moment(*(jnp.asarray(v) for v in (a, b, c)))
            assert single.dtype == np.float32
        # exp(|c| - (a+b)/2) turns an absolute rounding error of its exponent, 30 × 6e-8, into a relative one.
        allowed = 40 * np.finfo(np.float32).eps if name == "sine" else 8 * np.finfo(np.float32).eps
        assert np.max(np.abs(np.asarray(single) - exact) / unit) < allowed
