"""Equations of neurons at rest: against automatic differentiation of a network with those neurons."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adakern import precision
from adakern.limits import resting

RICHNESS, DECAYS = 1.4, (0.3, 0.5, 0.7, 0.9)
COUNTS, POINTS = (5, 4, 3), 6


@pytest.fixture(autouse=True)
def _float64():
    with precision.scope("float64"):
        yield


def neurons(seed=0):
    """Fields of any tanh neurons, and their layers."""
    rng = np.random.default_rng(seed)
    shares = [rng.uniform(0.5, 1.5, n) for n in COUNTS]
    fields = [rng.normal(size=(n, POINTS)) for n in COUNTS]
    layers = [
        resting.Neurons(w / w.sum(), np.tanh(h), 1 / np.cosh(h) ** 2) for w, h in zip(shares, fields, strict=True)
    ]
    return fields, layers


def differentiated(fields, layers, errors, channel=None):
    r"""$q^1..q^L$ as what $\Delta\cdot s$ (or the output at one point) gains from a field, weights of a layer being $\frac{\gamma_0}{\lambda}$ times what they gain it.

    A neuron of share $w$ has its derivative multiplied with $\gamma_0/w$; the weights above it are made from the derivatives already found.
    """
    readouts = RICHNESS / DECAYS[-1] * layers[-1].features @ errors  # (n, C)
    weights, found = {}, {}
    for layer in range(len(layers) - 1, -1, -1):

        def gained(h, start=layer):
            for index in range(start + 1, len(layers)):
                below = layers[index - 1]
                change = jnp.tanh(h) - below.features  # the rest of the field is as given
                h = fields[index] + weights[index] @ (np.sqrt(below.weights)[:, None] * change)
            s = jnp.matmul(jnp.tanh(h).T, layers[-1].weights[:, None] * readouts) / RICHNESS
            return jnp.sum(s * errors) if channel is None else jnp.sum(s[:, 0] * channel)

        scale = RICHNESS / layers[layer].weights[:, None]
        found[layer] = scale * np.asarray(jax.grad(gained)(jnp.asarray(fields[layer])))
        if layer > 0:
            whole = found[layer] if channel is None else None
            below = layers[layer - 1]
            if whole is None:
                whole = differentiated(fields, layers, errors)[layer]
            weights[layer] = RICHNESS / DECAYS[layer] * whole @ below.features.T * np.sqrt(below.weights)[None, :]
    return [found[layer] for layer in range(len(layers))]


@pytest.mark.parametrize("outputs", [1, 3])
def test_recursion_is_differentiation(outputs):
    fields, layers = neurons()
    errors = np.random.default_rng(1).normal(size=(POINTS, outputs))
    rest = resting.recursion(layers, errors, RICHNESS, DECAYS)
    expected = differentiated(fields, layers, errors)
    for layer, (found, q) in enumerate(zip(rest.fields, expected, strict=True)):
        np.testing.assert_allclose(found, q, rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(rest.coefficients[layer], RICHNESS / DECAYS[layer] * q, rtol=1e-11, atol=1e-13)
        pressure = sum(w * np.outer(row, row) for w, row in zip(layers[layer].weights, q, strict=True))
        if layer > 0:
            np.testing.assert_allclose(rest.pressures[layer - 1], pressure, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(rest.pressures[-1], errors @ errors.T)
    for found, layer in zip(rest.kernels, layers, strict=True):
        np.testing.assert_allclose(found, (layer.features.T * layer.weights) @ layer.features, atol=1e-14)


def test_gradients_are_those_of_the_output():
    """g: what the output at a point gains from the field at that point; q = Δ∘g."""
    fields, layers = neurons()
    errors = np.random.default_rng(1).normal(size=(POINTS, 1))
    found = resting.gradients(layers, errors[:, 0], RICHNESS, DECAYS)
    for point in (0, 4):
        expected = differentiated(fields, layers, errors, channel=np.eye(POINTS)[point])
        for g, column in zip(found, expected, strict=True):
            np.testing.assert_allclose(g[:, point], column[:, point], rtol=1e-11, atol=1e-13)
    rest = resting.recursion(layers, errors, RICHNESS, DECAYS)
    for g, q in zip(found, rest.fields, strict=True):
        np.testing.assert_allclose(g * errors.T, q, atol=1e-12)


def test_the_tangent_kernel_sums_over_layers():
    rng = np.random.default_rng(2)
    kernels = [rng.normal(size=(3, 3)) for _ in range(3)]
    gradients = [rng.normal(size=(3, 3)) for _ in range(2)]
    before = kernels[-1].copy()
    expected = kernels[0] * gradients[0] + kernels[1] * gradients[1] + kernels[2]
    np.testing.assert_allclose(resting.tangent(kernels, gradients), expected)
    np.testing.assert_array_equal(kernels[-1], before)
