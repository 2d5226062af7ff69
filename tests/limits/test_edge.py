"""How close a law is to the edge of what can be normalised."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adakern import activations
from adakern.limits.edge import pull
from adakern.precision import scope


def largest(activation, root, dual, draws=None, precision="float64"):
    with scope(precision):
        arrays = [jnp.asarray(array, precision) for array in (root, dual)]
        own = np.zeros((0, root.shape[1])) if draws is None else draws
        return pull(activations.get(activation), *arrays, own, jax.random.key(0))


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_linear_is_an_eigenvalue(rng, precision):
    root, v = rng.normal(size=(9, 6)), rng.normal(size=(9, 2))
    dual = -v @ v.T
    expected = np.linalg.eigvalsh(-root.T @ dual @ root)[-1]
    assert largest("linear", root, dual, precision=precision) == pytest.approx(expected, rel=1e-4)


def test_relu_of_independent_points(rng):
    """A = I: the best direction has the features that one sign of v pulls at, s = max(|v₊|², |v₋|²)."""
    v = rng.normal(size=12)
    expected = max(np.sum(np.maximum(v, 0) ** 2), np.sum(np.minimum(v, 0) ** 2))
    assert largest("relu", np.eye(12), -np.outer(v, v)) == pytest.approx(expected, rel=1e-3)


def test_what_is_linear_far_out_only(rng):
    v = rng.normal(size=5)
    dual = -np.outer(v, v)
    assert largest("gelu", np.eye(5), dual) == pytest.approx(largest("relu", np.eye(5), dual), rel=1e-3)
    assert largest("tanh", np.eye(5), dual) < 1e-6


def test_draws_show_the_way():
    """One direction in 300, which random starts do not find at once, is found from a draw that lies near it."""
    rng = np.random.default_rng(0)
    v = np.abs(rng.normal(size=300))
    draw = 30 * np.maximum(v, 0)[None] + rng.normal(size=(1, 300))
    expected = np.sum(v**2)
    assert largest("relu", np.eye(300), -np.outer(v, v), draw) == pytest.approx(expected, rel=1e-3)
