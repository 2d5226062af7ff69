"""Losses: error signals, conjugates and links belong to their values."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adakern import losses
from adakern.precision import scope


@pytest.fixture(autouse=True)
def float64():
    with scope("float64"):
        yield


def problem(name, rng):
    s = rng.standard_normal((6, 3)) * 2
    y = {
        "squared": rng.standard_normal((6, 3)),
        "logistic": np.sign(rng.standard_normal((6, 3))),
        "softmax": np.eye(3)[rng.integers(3, size=6)],
    }[name]
    return jnp.asarray(y), jnp.asarray(s)


@pytest.mark.parametrize("name", losses.NAMES)
def test_error_is_minus_the_gradient(name, rng):
    loss, (y, s) = losses.get(name), problem(name, rng)
    gradient = jax.grad(lambda s: jnp.sum(loss.value(y, s)))(s)
    np.testing.assert_allclose(loss.error(y, s), -gradient, rtol=1e-13, atol=1e-15)
    assert loss.value(y, s).shape == (6,)


@pytest.mark.parametrize("name", losses.NAMES)
def test_fenchel_young(name, rng):
    """ℓ*(p) + ℓ(s) ≥ s·p, with equality at p = ∂ℓ/∂s: this is what makes a conjugate."""
    loss, (y, s) = losses.get(name), problem(name, rng)
    p = -loss.error(y, s)
    np.testing.assert_allclose(loss.conjugate(y, p), jnp.sum(s * p, axis=1) - loss.value(y, s), rtol=1e-11, atol=1e-12)
    elsewhere = s + jnp.asarray(rng.standard_normal((6, 3)))
    gap = loss.conjugate(y, p) + loss.value(y, elsewhere) - jnp.sum(elsewhere * p, axis=1)
    assert np.all(np.asarray(gap) > 0)


def test_values():
    y, s = jnp.asarray([[1.0], [-1.0]]), jnp.asarray([[0.5], [0.5]])
    np.testing.assert_allclose(losses.get("squared").value(y, s), [0.125, 1.125])
    np.testing.assert_allclose(losses.get("logistic").value(y, s), np.log1p(np.exp([-0.5, 0.5])))
    both, zero = jnp.asarray([[1.0, 0.0]]), jnp.zeros((1, 2))
    np.testing.assert_allclose(losses.get("softmax").value(both, zero), np.log(2))


@pytest.mark.parametrize("name, outside", [("logistic", 0.5), ("logistic", -1.5)])
def test_logistic_conjugate_is_infinite_outside(name, outside):
    y = jnp.ones((1, 1))
    assert losses.get(name).conjugate(y, jnp.full((1, 1), outside))[0] == np.inf
    assert losses.get(name).conjugate(y, jnp.zeros((1, 1)))[0] == 0.0  # the ends count as inside
    assert losses.get(name).conjugate(y, -jnp.ones((1, 1)))[0] == 0.0


def test_softmax_conjugate_is_infinite_outside():
    y = jnp.asarray([[1.0, 0.0]])
    assert losses.get("softmax").conjugate(y, jnp.asarray([[0.2, 0.2]]))[0] == np.inf
    assert losses.get("softmax").conjugate(y, jnp.asarray([[0.5, -0.5]]))[0] == np.inf
    np.testing.assert_allclose(losses.get("softmax").conjugate(y, jnp.asarray([[-0.5, 0.5]])), -np.log(2))


def test_extreme_outputs_stay_finite():
    s, y = jnp.asarray([[800.0], [-800.0]]), jnp.asarray([[-1.0], [-1.0]])
    np.testing.assert_allclose(losses.get("logistic").value(y, s), [800.0, 0.0], atol=1e-300)
    np.testing.assert_allclose(losses.get("logistic").error(y, s), [[-1.0], [0.0]], atol=1e-300)
    wide = jnp.asarray([[800.0, -800.0]])
    np.testing.assert_allclose(losses.get("softmax").value(jnp.asarray([[0.0, 1.0]]), wide), [1600.0])


def test_links(rng):
    s = jnp.asarray(rng.standard_normal((6, 3)))
    np.testing.assert_array_equal(losses.get("squared").link(s), s)
    np.testing.assert_allclose(
        losses.get("logistic").link(s), 2 / (1 + np.exp(-np.asarray(s))) - 1, rtol=1e-13, atol=1e-15
    )
    np.testing.assert_allclose(np.sum(losses.get("softmax").link(s), axis=1), 1.0)


@pytest.mark.parametrize("name", losses.NAMES)
def test_the_error_is_target_minus_mean(name, rng):
    """For these canonical links Δ = y − f (halved for labels ±1)."""
    loss, (y, s) = losses.get(name), problem(name, rng)
    factor = 0.5 if name == "logistic" else 1.0
    np.testing.assert_allclose(loss.error(y, s), factor * (y - loss.link(s)), rtol=1e-11, atol=1e-13)


def test_unknown_names():
    with pytest.raises(ValueError, match="loss must be one of 'squared', 'logistic', 'softmax', but it is 'hinge'"):
        losses.get("hinge")
    with pytest.raises(TypeError, match="loss must be one of 'squared', 'logistic', 'softmax', but it is 2"):
        losses.get(2)
