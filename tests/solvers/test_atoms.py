"""Weighted neurons: derivatives, and operations on neurons that must not change what they stand for."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from adakern import activations, losses, precision
from adakern.solvers import atoms as atomic
from adakern.solvers import curves, rest_model
from adakern.solvers.atoms import Atoms, Shape

POINTS, RANK = 6, 3
RICHNESS, DECAYS = 1.3, (0.4, 0.5, 0.6, 0.7)
ROOT = np.random.default_rng(0).normal(size=(POINTS, RANK))
Y = np.random.default_rng(1).normal(size=(POINTS, 2))


@pytest.fixture(autouse=True)
def _float64():
    with precision.scope("float64"):
        yield


def readout(decay, y=Y):
    """Squared loss in closed form: E = γ0²λ/2 yᵀ(Φ+λ)⁻¹y, V = γ0 Δ/√λ."""

    def energy(kernel):
        delta = decay * np.linalg.solve(kernel + decay * np.eye(len(y)), y)
        return RICHNESS**2 / 2 * float(np.sum(y * delta)), RICHNESS / np.sqrt(decay) * delta

    return energy


def shape(name, depth):
    activation = activations.get(name)
    decays = DECAYS[: depth + 1]
    return Shape(curves.of(activation), activation.degree == 1, ROOT, decays, readout(decays[-1]))


def some(counts, angle=0.0, seed=2):
    """Neurons of these numbers with unequal shares."""
    rng = np.random.default_rng(seed)
    sizes = (RANK, *counts)
    shares = [rng.uniform(0.5, 1.5, n) for n in counts]
    incoming = tuple(rng.normal(size=(n, m)) for n, m in zip(counts, sizes, strict=False))
    return Atoms(incoming, tuple(w / w.sum() for w in shares), angle)


def value(of, atoms):
    return atomic.value_and_gradient(of, atoms)[0]


@pytest.mark.parametrize("name, angle", [("tanh", 0.0), ("gelu", 0.0), ("linear", 0.0), ("relu", 0.7), ("relu", 0.0)])
def test_gradient(name, angle):
    """Against central differences along random directions, three layers."""
    of, at = shape(name, 3), some((5, 4, 3), angle)
    _, gradients = atomic.value_and_gradient(of, at)
    rng, step = np.random.default_rng(3), 1e-6
    for layer in range(3):
        for _ in range(4):
            way = rng.normal(size=at.incoming[layer].shape)
            moved = []
            for sign in (1, -1):
                incoming = list(at.incoming)
                incoming[layer] = incoming[layer] + sign * step * way
                moved.append(replace(at, incoming=tuple(incoming)))
            slope = (value(of, moved[0]) - value(of, moved[1])) / (2 * step)
            assert slope == pytest.approx(np.sum(gradients[layer] * way), rel=1e-6, abs=1e-9)


def test_a_rounded_corner_is_relu_away_from_it_and_keeps_homogeneity():
    fields = np.linspace(-2, 2, 41)[None, :]
    values, slopes, bend = atomic.corner(fields, np.full_like(fields, 0.5))
    away = np.abs(fields) >= 0.5
    np.testing.assert_array_equal(values[away], np.maximum(fields, 0)[away])
    np.testing.assert_array_equal(slopes[away], (fields > 0)[away])
    assert not bend[away].any() and np.all(np.diff(slopes[0]) >= 0)
    assert atomic.corner(np.zeros((1, 1)), np.full((1, 1), 0.5))[1][0, 0] == 0.5
    scaled = atomic.corner(3 * fields, np.full_like(fields, 1.5))
    np.testing.assert_allclose(scaled[0], 3 * values, atol=1e-15)
    np.testing.assert_allclose(scaled[1], slopes, atol=1e-15)
    sharp = atomic.corner(fields, np.zeros_like(fields))
    np.testing.assert_array_equal(sharp[0], np.maximum(fields, 0))


def split(of, atoms, layer, index, part):
    """One neuron as two that do the same: of a homogeneous activation with other lengths and shares, of others with other shares alone."""
    incoming, shares = list(atoms.incoming), list(atoms.shares)
    weight, share = incoming[layer][index], shares[layer][index]
    if of.homogeneous:
        first, second = 0.3 * share, 0.7 * share
        lengths = np.sqrt(part / 0.3), np.sqrt((1 - part) / 0.7)
    else:
        first, second, lengths = part * share, (1 - part) * share, (1.0, 1.0)
    incoming[layer] = np.concatenate([incoming[layer], lengths[1] * weight[None, :]])
    incoming[layer][index] = lengths[0] * weight
    shares[layer] = np.append(shares[layer], second)
    shares[layer][index] = first
    if layer + 1 < len(incoming):
        above = incoming[layer + 1]
        column = above[:, index : index + 1]
        incoming[layer + 1] = np.concatenate([above, np.sqrt(1 - part) * column], axis=1)
        incoming[layer + 1][:, index] = np.sqrt(part) * column[:, 0]
    return Atoms(tuple(incoming), tuple(shares), atoms.angle)


@pytest.mark.parametrize("name, angle", [("relu", 0.0), ("relu", 0.5), ("linear", 0.0), ("tanh", 0.0)])
def test_merging_what_was_split_changes_nothing(name, angle):
    of, at = shape(name, 3), some((4, 3, 3), angle)
    twice = split(of, split(of, split(of, at, 0, 1, 0.2), 1, 0, 0.6), 2, 2, 0.5)
    assert twice.counts == (5, 4, 4)
    assert value(of, twice) == pytest.approx(value(of, at), rel=1e-12)
    merged = atomic.merge(of, twice, 1e-6)
    assert merged.counts == (4, 3, 3) and merged.angle == angle
    assert value(of, merged) == pytest.approx(value(of, at), rel=1e-12)
    for layer in merged.shares:
        assert layer.sum() == pytest.approx(1, abs=1e-14)
    for ours, theirs in zip(atomic.layers(of, merged), atomic.layers(of, at), strict=True):
        np.testing.assert_allclose(ours.kernel, theirs.kernel, atol=1e-12)
    assert atomic.merge(of, at, 1e-6).counts == (4, 3, 3)  # nothing else is one


def test_merging_neurons_that_are_heard_differently_saves_weights():
    """Parallel neurons whose readers do not weigh them by their lengths: fields stay, and decay costs less."""
    of, at = shape("relu", 2), some((4, 3))
    at.incoming[0][3] = 2.5 * at.incoming[0][0]
    merged = atomic.merge(of, at, 1e-6)
    assert merged.counts == (3, 3)
    for ours, theirs in zip(atomic.layers(of, merged), atomic.layers(of, at), strict=True):
        np.testing.assert_allclose(ours.kernel, theirs.kernel, atol=1e-12)
    assert value(of, merged) < value(of, at) - 1e-3


def test_the_dead_go():
    of, at = shape("relu", 2), some((4, 3))
    at.incoming[0][2] = 0.0
    merged = atomic.merge(of, at, 1e-6)
    assert merged.counts == (3, 3)
    np.testing.assert_allclose(atomic.layers(of, merged)[1].kernel, atomic.layers(of, at)[1].kernel, atol=1e-12)
    nothing = replace(at, incoming=tuple(np.zeros_like(w) for w in at.incoming))
    merged = atomic.merge(of, nothing, 1e-6)
    assert merged.counts == (1, 1)
    assert value(of, merged) == pytest.approx(RICHNESS**2 / 2 * np.sum(Y**2), rel=1e-14)


def test_adding_neurons():
    """The kernel gains m φ(u)φ(u)ᵀ; F changes by mλ0/2 (1 - p²) to first order, p the pull in units of the decay."""
    of, at = shape("relu", 1), some((5,))
    new = np.random.default_rng(5).normal(size=(2, RANK))
    new /= np.linalg.norm(new, axis=1)[:, None]
    kernel = atomic.layers(of, at)[0].kernel
    phi = np.maximum(new @ ROOT.T, 0)
    more = atomic.add(at, 0, new, None, 0.6)
    assert more.counts == (7,) and more.shares[0].sum() == pytest.approx(1)
    np.testing.assert_allclose(atomic.layers(of, more)[0].kernel, kernel + 0.3 * phi.T @ phi, atol=1e-12)
    mass = 1e-6
    slope = (value(of, atomic.add(at, 0, new, None, mass)) - value(of, at)) / mass
    pulls = np.sum((phi @ of.energy(kernel)[1]) ** 2, axis=1) / DECAYS[0]
    assert slope == pytest.approx(DECAYS[0] / 2 * float(np.mean(1 - pulls)), rel=1e-4)


def test_adding_below_a_layer():
    """Readers that do not listen notice nothing; those that do have more field."""
    of, at = shape("relu", 2), some((5, 4))
    new = np.eye(RANK)[:2]
    deaf = atomic.add(at, 0, new, np.zeros((4, 2)), 0.5)
    np.testing.assert_allclose(atomic.fields(of, deaf)[1], atomic.fields(of, at)[1], atol=1e-12)
    assert value(of, deaf) == pytest.approx(value(of, at) + DECAYS[0] / 2 * 0.5, rel=1e-12)
    pulls = np.random.default_rng(6).normal(size=(4, 2))
    hearing = atomic.add(at, 0, new, pulls, 0.5)
    extra = pulls @ (np.sqrt(0.25) * np.maximum(new @ ROOT.T, 0))
    np.testing.assert_allclose(atomic.fields(of, hearing)[1], atomic.fields(of, at)[1] + extra, atol=1e-12)


@pytest.mark.parametrize("name, angle", [("relu", 0.1), ("tanh", 0.0)])
def test_condensing_keeps_fields_and_value(name, angle):
    """White particles and the atoms that they become are the same network: same fields, same F."""
    rng = np.random.default_rng(7)
    positions = tuple(rng.normal(size=(40, rank)) for rank in (RANK, POINTS))
    data = rest_model.Data(
        jnp.asarray(ROOT), jnp.arange(POINTS), jnp.asarray(Y), jnp.asarray(RICHNESS), jnp.asarray(DECAYS[:3])
    )
    model = rest_model.Model(activations.get(name), losses.get("squared"))
    white = tuple(jnp.asarray(p) for p in positions)
    _, roots = rest_model.climb(model, data, white, jnp.asarray(angle))
    features = [
        np.asarray(rest_model.features(model, p, a, jnp.asarray(angle))) for p, a in zip(white, roots, strict=True)
    ]
    fields = [np.asarray(p @ a.T) for p, a in zip(white, roots, strict=True)]
    of = shape(name, 2)
    made = atomic.condense(list(positions), features, fields, angle)
    assert made.angle == angle
    for ours, theirs in zip(atomic.fields(of, made), fields, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    for neurons, phi in zip(atomic.layers(of, made), features, strict=True):
        np.testing.assert_allclose(neurons.features, phi, atol=1e-5)
    expected = float(rest_model.objective(model, data, white, jnp.asarray(angle)))
    assert value(of, made) == pytest.approx(expected, rel=1e-5)
