"""Climbs with rounded corners: what they find, and against climbs with sharp ones."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from adakern import activations, memory
from adakern.limits import rounded, settling, unit_search, unit_starts
from adakern.limits.sites import Pool
from adakern.precision import scope

RELU, LINEAR = activations.get("relu"), activations.get("linear")


def windows(seed, images=80, sites=4, rank=16):
    """Patches of images, correlated with each other, and errors that are mostly noise."""
    rng = np.random.default_rng(seed)
    spread = np.diag(1 / np.sqrt(1 + np.arange(rank)))
    root = rng.normal(size=(images * sites, rank)) @ spread
    return root, Pool(sites).factor(rng.normal(size=(images, 1)))


def funnelled(root, factor, starts, activation=RELU, **options):
    with scope("float64"):
        return unit_search.funnelled(activation, root, factor, starts, **options)


def starts(root, factor, count=64):
    return unit_starts.default_starts(root, factor, count, jax.random.key(0))


def pulls(root, factor, directions):
    return np.linalg.norm(np.maximum(directions @ root.T, 0.0) @ factor, axis=1)


@pytest.mark.parametrize("line", [0.0, 0.2])
def test_the_gradient_is_that_of_the_pull(line):
    root, factor = windows(0)
    task, _ = settling.reduce(root, factor, line, 1.0, np.dtype("float64"))
    pull = rounded._Pull(task.rows, task.factor, task.line, task.bend)
    rng = np.random.default_rng(1)
    u, step = settling.unit(rng.normal(size=(5, root.shape[1]))), 1e-5

    def look(v):
        return rounded._look(np, pull, v, 0.2)

    value, uphill = look(u)
    across = rng.normal(size=u.shape)
    across -= np.sum(across * u, axis=1, keepdims=True) * u
    slopes = (look(u + step * across)[0] - look(u - step * across)[0]) / (2 * step) / value
    np.testing.assert_allclose(slopes, np.sum(uphill * across, axis=1), rtol=1e-4, atol=1e-6)


def test_values_are_pulls_and_the_best_are_at_rest():
    root, factor = windows(1)
    found = funnelled(root, factor, starts(root, factor), settled=8)
    np.testing.assert_allclose(found.values, pulls(root, factor, found.directions), rtol=1e-10)
    rest = np.isfinite(found.error)
    assert 1 <= rest.sum() <= 8
    assert found.error[rest].max() < 1e-6
    assert found.values[rest].max() == found.values.max()
    np.testing.assert_allclose(np.linalg.norm(found.directions, axis=1), 1.0, rtol=1e-12)


def test_better_than_climbs_with_sharp_corners():
    """Errors that are noise, and nearly as many dimensions as points: very many maxima, and the same starts end higher."""
    ours, theirs = [], []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        root, factor = rng.normal(size=(200, 100)), rng.normal(size=(200, 1))
        first = starts(root, factor, 32)
        ours.append(funnelled(root, factor, first).values.max())
        with scope("float64"):
            theirs.append(unit_search.search(RELU, root, factor, first).values.max())
    gains = np.array(ours) / np.array(theirs) - 1
    assert gains.mean() > 5e-3
    assert gains.min() > 0


def test_around_the_circle():
    rng = np.random.default_rng(3)
    root, factor = rng.normal(size=(40, 2)), rng.normal(size=(40, 1))
    angles = np.linspace(0, 2 * np.pi, 20001)
    most = pulls(root, factor, np.stack([np.cos(angles), np.sin(angles)], axis=1)).max()
    best = funnelled(root, factor, starts(root, factor)).values.max()
    assert most <= best * (1 + 1e-12)
    assert best == pytest.approx(most, rel=1e-4)  # between two angles of the grid


def test_batches_do_not_matter(monkeypatch):
    root, factor = windows(2)
    task, _ = settling.reduce(root, factor, 0.0, 1.0, np.dtype("float64"))
    first = starts(root, factor, 10)
    whole = rounded.climb(task, first, rounded.WIDE)
    monkeypatch.setattr(rounded, "_BATCH", 3)
    np.testing.assert_allclose(rounded.climb(task, first, rounded.WIDE), whole, atol=1e-3)
    monkeypatch.setattr(memory, "DEFAULT_BUDGET", 1)  # one at a time
    assert rounded.climb(task, first, rounded.NARROW).shape == first.shape


@pytest.mark.parametrize("which", ["factor", "starts", "bend"])
def test_nothing_to_climb(which):
    root, factor = windows(4)
    first = starts(root, factor, 6)
    if which == "factor":
        assert not funnelled(root, 0 * factor, first).values.any()
    elif which == "starts":
        assert len(funnelled(root, factor, first[:0]).values) == 0
    else:  # linear: the largest singular value, whatever the start
        expected = np.linalg.norm(root.T @ factor, 2)
        np.testing.assert_allclose(funnelled(root, factor, first, LINEAR).values, expected, rtol=1e-10)


def test_points_far_from_order_one():
    root, factor = windows(5)
    first = starts(root, factor, 16)
    plain = funnelled(root, factor, first).values.max()
    scaled = funnelled(1e6 * root, 1e-9 * factor, first).values.max()
    assert scaled == pytest.approx(1e-3 * plain, rel=1e-6)


def test_large_problems_are_funnelled():
    assert not unit_search.large(np.zeros((100, 100)), np.zeros((100, 1)))
    assert unit_search.large(np.zeros((1000, 1000)), np.zeros((1000, 1)))
    assert unit_search.large(np.zeros((1600, 192)), np.zeros((1600, 16)))


@pytest.mark.parametrize("count", [5, 130])
def test_compiled_steps_are_the_same(count, monkeypatch):
    """To single precision along a few steps; a batch that is filled up, and one that is full."""
    root, factor = windows(2)
    task, _ = settling.reduce(root, factor, 0.0, 1.0, np.dtype("float64"))
    begin = settling.unit(starts(root, factor, count))
    monkeypatch.setattr(rounded, "_STEPS", 3)
    with scope("float64"):
        plain = rounded.climb(task, begin, rounded.NARROW, rounded.NARROW)
        monkeypatch.setattr(rounded, "_COMPILED", 0)
        compiled = rounded.climb(task, begin, rounded.NARROW, rounded.NARROW)
    assert compiled.shape == plain.shape == begin.shape
    np.testing.assert_allclose(compiled, plain, atol=2e-3)
    assert np.abs(plain - begin).max() > 0.01
