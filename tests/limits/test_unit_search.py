"""Unit neurons that pull hardest: against brute force, stationarity at kinks, awkward input."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy.optimize import lsq_linear

from adakern import activations
from adakern.limits import boxed, unit_search, unit_starts
from adakern.precision import scope

RELU, LINEAR = activations.get("relu"), activations.get("linear")


def climb(root, factor, count=48, activation=RELU, starts=None, precision="float64"):
    with scope(precision):
        first = unit_starts.default_starts(root, factor, count, jax.random.key(0)) if starts is None else starts
        return unit_search.search(activation, root, factor, first)


def pulls(root, factor, directions, activation=None):
    fields = directions @ root.T
    features = np.maximum(fields, 0) if activation is None else activation(fields)
    return np.linalg.norm(features @ factor, axis=-1)


def around_the_circle(root, factor, activation=None):
    """The maximum over the circle: a grid, then golden sections around its best points."""
    angles = np.linspace(0, 2 * np.pi, 20001)

    def value(angle):
        return pulls(root, factor, np.stack([np.cos(angle), np.sin(angle)], axis=-1), activation)

    heights = value(angles)
    best = 0.0
    for centre in angles[np.argsort(-heights)[:5]]:
        low, high = centre - 4e-4, centre + 4e-4
        for _ in range(60):
            left, right = high - 0.618 * (high - low), low + 0.618 * (high - low)
            low, high = (left, high) if value(left) < value(right) else (low, right)
        best = max(best, float(value(0.5 * (low + high))))
    return best


def pull_vectors(root, factor, found):
    """A^T(b ∘ φ'), which is value × u at a stationary point."""
    n = np.maximum(found.directions @ root.T, 0) @ factor
    b = n / np.linalg.norm(n, axis=1, keepdims=True) @ factor.T
    return (b * found.slopes) @ root


@pytest.mark.parametrize("seed", range(6))
def test_the_best_is_the_maximum_over_the_circle(seed):
    rng = np.random.default_rng(seed)
    root, factor = rng.normal(size=(30, 2)), rng.normal(size=(30, 1))
    found = climb(root, factor)
    assert found.values.max() == pytest.approx(around_the_circle(root, factor), rel=1e-8)
    np.testing.assert_allclose(found.values, pulls(root, factor, found.directions), rtol=1e-12)


@pytest.mark.parametrize("outputs", [3, 40])
def test_several_outputs(outputs):
    rng = np.random.default_rng(1)
    root, factor = rng.normal(size=(30, 2)), rng.normal(size=(30, outputs))
    found = climb(root, factor)
    assert found.values.max() == pytest.approx(around_the_circle(root, factor), rel=1e-8)
    assert found.error.max() < 1e-9


@pytest.mark.parametrize("outputs", [1, 2, 45])
def test_stationary_with_the_right_slopes(outputs):
    """45 outputs in 40 dimensions: eigenvectors are found by Lanczos iteration."""
    rng = np.random.default_rng(2)
    root, factor = rng.normal(size=(120, 40)), rng.normal(size=(120, outputs))
    found = climb(root, factor, 24)
    np.testing.assert_allclose(
        pull_vectors(root, factor, found), found.values[:, None] * found.directions, atol=1e-6 * found.values.max()
    )
    assert found.error.max() < 1e-8
    assert found.slopes.min() >= 0 and found.slopes.max() <= 1
    fields = found.directions @ root.T
    assert np.all(found.slopes[fields > 1e-7] == 1) and np.all(found.slopes[fields < -1e-7] == 0)


def test_the_naive_mask_misses():
    rng = np.random.default_rng(3)
    root, factor = rng.normal(size=(60, 10)), rng.normal(size=(60, 1))
    found = climb(root, factor, 24)
    between = (found.slopes > 1e-6) & (found.slopes < 1 - 1e-6)
    fields = found.directions @ root.T
    assert between.mean() > 0.02 and np.abs(fields[between]).max() < 1e-9
    naive = found._replace(slopes=(fields > 1e-7).astype(float))
    kinked = between.any(axis=1)
    wanted = found.values[:, None] * found.directions
    off = np.linalg.norm(pull_vectors(root, factor, naive) - wanted, axis=1) / found.values
    assert off[kinked].min() > 1e-3 and found.error.max() < 1e-9


def test_what_is_found_is_a_maximum():
    """No small step in any direction goes up; at kinks the pull falls like the step, not like its square."""
    rng = np.random.default_rng(4)
    root, factor = rng.normal(size=(60, 10)), rng.normal(size=(60, 2))
    found = climb(root, factor, 24)
    for size in (1e-2, 1e-4, 1e-6):
        steps = found.directions[:, None, :] + size * rng.normal(size=(24, 200, 10))
        around = pulls(root, factor, steps / np.linalg.norm(steps, axis=2, keepdims=True))
        # 1e-2 may leave a basin by chance, but does not from the best.
        checked = slice(None) if size < 1e-2 else np.argmax(found.values)
        assert np.all(around[checked] <= (found.values[:, None] * (1 + 1e-12))[checked])


def test_never_downhill():
    rng = np.random.default_rng(5)
    root, factor = rng.normal(size=(40, 12)), rng.normal(size=(40, 2))
    starts = rng.normal(size=(32, 12))
    starts /= np.linalg.norm(starts, axis=1, keepdims=True)
    found = climb(root, factor, starts=starts)
    assert np.all(found.values >= pulls(root, factor, starts) * (1 - 1e-12))
    again = climb(root, factor, starts=found.directions)
    np.testing.assert_allclose(again.values, found.values, rtol=1e-12)
    np.testing.assert_allclose(again.directions, found.directions, atol=1e-8)


def test_independent_points(rng):
    """A = I: the neuron has the features that one sign of Δ pulls at; the others sit on their kinks, at any slope."""
    factor = rng.normal(size=(12, 1))
    expected = max(np.linalg.norm(np.maximum(factor, 0)), np.linalg.norm(np.minimum(factor, 0)))
    assert climb(np.eye(12), factor).values.max() == pytest.approx(expected, rel=1e-12)


def test_one_point():
    found = climb(np.array([[2.0]]), np.array([[-3.0]]), 4)
    np.testing.assert_allclose(found.values, 6.0)
    np.testing.assert_allclose(found.directions, 1.0)
    np.testing.assert_allclose(found.slopes, 1.0)


def test_duplicated_points_share_a_kink():
    """Labels +1 and -2 at one input are the label -1, and have one slope."""
    rng = np.random.default_rng(6)
    root, factor = rng.normal(size=(20, 2)), rng.normal(size=(20, 1))
    twice = np.concatenate([root, root, 2 * root[:5]])
    parts = np.concatenate([factor + 5, np.full_like(factor, -5.0), np.zeros((5, 1))])
    starts = rng.normal(size=(32, 2))
    one, two = climb(root, factor, starts=starts), climb(twice, parts, starts=starts)
    np.testing.assert_allclose(two.values, one.values, rtol=1e-10)
    np.testing.assert_allclose(two.slopes, np.concatenate([one.slopes, one.slopes, one.slopes[:, :5]], 1), atol=1e-8)
    assert ((one.slopes > 0.01) & (one.slopes < 0.99)).any()


@pytest.mark.parametrize("which", ["factor", "root"])
def test_nothing_pulls(rng, which):
    root, factor = rng.normal(size=(6, 3)), rng.normal(size=(6, 2))
    found = climb(0 * root if which == "root" else root, 0 * factor if which == "factor" else factor, 8)
    assert np.all(found.values == 0) and np.all(found.error == 0)
    np.testing.assert_allclose(np.linalg.norm(found.directions, axis=1), 1)


def test_zero_points_and_dead_starts(rng):
    root, factor = np.concatenate([np.abs(rng.normal(size=(5, 3))), np.zeros((2, 3))]), np.ones((7, 1))
    found = climb(root, factor, starts=-np.ones((2, 3)))
    total = root.sum(axis=0)
    np.testing.assert_allclose(found.values, np.linalg.norm(total), rtol=1e-12)
    np.testing.assert_allclose(found.directions, np.tile(total / np.linalg.norm(total), (2, 1)), atol=1e-12)


def test_more_dimensions_than_points_and_scales():
    rng = np.random.default_rng(7)
    root, factor = rng.random((20, 300)), rng.normal(size=(20, 1))
    found = climb(root, factor, 16)
    assert found.error.max() < 1e-9
    big = climb(1e90 * root, 1e-60 * factor, 16)
    np.testing.assert_allclose(big.values, 1e30 * found.values, rtol=1e-9)


def test_linear_is_the_largest_singular_value(rng):
    root, factor = rng.normal(size=(9, 4)), rng.normal(size=(9, 2))
    found = climb(root, factor, 6, activation=LINEAR)
    np.testing.assert_allclose(found.values, np.linalg.norm(root.T @ factor, 2), rtol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(found.directions @ root.T @ factor, axis=1), found.values, rtol=1e-12)
    assert np.all(found.slopes == 1)


@pytest.mark.parametrize("low", [0.2, -1.0, 2.0])
def test_other_bends(low):
    """Leaky ReLU, the absolute value, and one that bends down."""
    rng = np.random.default_rng(8)

    def bent(h):
        return jax.numpy.where(h > 0, h, low * h)

    activation = activations.get(bent)
    root, factor = rng.normal(size=(30, 2)), rng.normal(size=(30, 1))
    found = climb(root, factor, activation=activation)
    expected = around_the_circle(root, factor, lambda h: np.where(h > 0, h, low * h))
    assert found.values.max() == pytest.approx(expected, rel=1e-8)
    assert found.error.max() < 1e-9
    assert found.slopes.min() >= min(low, 1) - 1e-12 and found.slopes.max() <= max(low, 1) + 1e-12


def test_only_degree_one():
    with pytest.raises(ValueError, match="homogeneous of degree one.*'tanh'"):
        climb(np.eye(2), np.ones((2, 1)), activation=activations.get("tanh"))


def test_single_precision():
    rng = np.random.default_rng(9)
    root, factor = rng.normal(size=(30, 2)), rng.normal(size=(30, 1))
    found = climb(root, factor, precision="float32")
    assert found.values.dtype == np.float32
    assert found.values.max() == pytest.approx(around_the_circle(root, factor), rel=1e-6)


def test_families_find_better_ones():
    """300 points in 50 dimensions with random labels: almost every start ends in a maximum of its own."""
    rng = np.random.default_rng(0)
    root, factor = rng.normal(size=(300, 50)) / np.sqrt(50), rng.normal(size=(300, 1))
    with scope("float64"):
        starts = unit_starts.default_starts(root, factor, 32, jax.random.key(1))
        first = unit_search.search(RELU, root, factor, starts)
        found = unit_search.hardest(RELU, root, factor, starts, jax.random.key(2))
    assert len(np.unique(np.round(first.values, 6))) > 25
    assert found.values[0] > first.values.max() * (1 + 1e-5)
    assert np.all(np.diff(found.values) <= 0) and found.error.max() < 1e-9
    assert found.values[0] == pytest.approx(10.2404, abs=0.02)  # the best ever found


def test_families_of_places():
    """As many dimensions as points, where any of them can be on or off: each family's best is no worse than the place, all are maxima, and four times as many random starts find none that is better."""
    rng = np.random.default_rng(3)
    root, factor = rng.normal(size=(80, 80)) / np.sqrt(80), rng.normal(size=(80, 1))
    with scope("float64"):
        places = unit_starts.default_starts(root, factor, 4, jax.random.key(1))
        settled = unit_search.families(RELU, root, factor, places, np.random.default_rng(0), rounds=0)
        found = unit_search.families(RELU, root, factor, places, np.random.default_rng(0), rounds=4)
        again = unit_search.families(RELU, root, factor, places, np.random.default_rng(0), rounds=4)
        others = climb(root, factor, starts=unit_starts.default_starts(root, factor, 4 * 68, jax.random.key(2)))
    assert len(settled.values) == 4 and len(found.values) == 4 * (1 + 4 * 4)
    np.testing.assert_array_equal(found.values[:4], settled.values)
    np.testing.assert_array_equal(found.values, again.values)
    assert found.error.max() < 1e-9
    np.testing.assert_allclose(found.values, pulls(root, factor, found.directions), rtol=1e-12)
    assert found.values.max() > settled.values.max() and found.values.max() > others.values.max() * (1 - 1e-12)


def test_known_neurons_count_and_other_families_are_elsewhere():
    rng = np.random.default_rng(5)
    root, factor = rng.normal(size=(40, 40)), rng.normal(size=(40, 1))
    with scope("float64"):
        starts = unit_starts.default_starts(root, factor, 24, jax.random.key(0))
        best = unit_search.hardest(RELU, root, factor, starts, jax.random.key(1)).directions[:1]
        found = unit_search.hardest(RELU, root, factor, starts[:2], jax.random.key(2), known=best)
        heads = unit_search.apart(climb(root, factor), best, 5)
    assert found.values[0] >= pulls(root, factor, best)[0] * (1 - 1e-12)
    assert 0 < len(heads) <= 5 and np.max(heads @ best.T) < 0.98
    assert np.max(np.triu(heads @ heads.T, 1)) < 0.98


def test_starts_are_unit_vectors_and_follow_the_key(rng):
    root, factor = rng.normal(size=(9, 4)), rng.normal(size=(9, 2))
    root[:4] = 0
    with scope("float64"):
        first, again, other = (unit_starts.default_starts(root, factor, 31, jax.random.key(k)) for k in (0, 0, 1))
    assert first.shape == (31, 4) and np.array_equal(first, again) and not np.array_equal(first, other)
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1)


@pytest.mark.parametrize("points, rank, shift", [(60, 2, 0.0), (60, 2, 3.0), (40, 40, 3.0), (30, 90, 0.0), (1, 1, 0.0)])
def test_box_problems(points, rank, shift):
    """Against scipy's, where rows depend on each other and where they do not, alike or not."""
    rng = np.random.default_rng(points + rank)
    rows = rng.normal(size=(points, rank)) + shift
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    top, target = np.abs(rng.normal(size=points)), rng.normal(size=rank) * np.sqrt(points)
    beta = boxed.box(rows, target, rng.random(points) * top, top)
    assert beta.min() >= 0 and np.all(beta <= top)
    downhill = rows @ (target - beta @ rows)
    np.testing.assert_allclose(np.clip(beta + downhill, 0, top), beta, atol=1e-12)
    expected = lsq_linear(rows.T, target, (0, top), tol=1e-14, method="bvls")
    assert np.sum((target - beta @ rows) ** 2) == pytest.approx(2 * expected.cost, abs=1e-12)


@pytest.mark.parametrize("kinks", [0, 3, 5])
def test_corners_of_few_dimensions(kinks):
    """Few dimensions and many rows: the remainder of scipy's, from any start; and β balances the rows that have their kink there."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        rows = rng.normal(size=(80, 5))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        top, target = np.abs(rng.normal(size=80)), 40 * rng.normal(size=5)
        beta = boxed.corner(rows, target, rng.normal(size=5), top, rng.permutation(80)[:kinks])
        assert beta is not None and beta.min() >= 0 and np.all(beta <= top)
        expected = target - lsq_linear(rows.T, target, (0, top), tol=1e-14, method="bvls").x @ rows
        np.testing.assert_allclose(target - beta @ rows, expected, atol=1e-10)
        assert np.count_nonzero((beta > 0) & (beta < top)) <= 5


def test_a_corner_where_nothing_remains_is_left_to_others(rng):
    rows = rng.normal(size=(80, 5))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    inside = 0.5 * np.ones(80) @ rows
    assert boxed.corner(rows, inside, inside, np.ones(80), np.zeros(0, int)) is None
    np.testing.assert_allclose(boxed.box(rows, inside, np.zeros(80), np.ones(80)) @ rows, inside, atol=1e-12)


def test_a_sweep_goes_downhill(rng):
    rows = rng.normal(size=(20, 3))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    top, target = np.ones(20), 4 * rng.normal(size=3)
    beta, remainder = boxed._sweep(rows, target, np.zeros(20), top, np.arange(20))
    np.testing.assert_allclose(remainder, target - beta @ rows, atol=1e-12)
    assert np.linalg.norm(remainder) < np.linalg.norm(target) and beta.min() >= 0 and beta.max() <= 1


def test_clarke_slopes_of_given_neurons():
    """Neurons at rest: from their fields alone, the slopes that the search ended with."""
    rng = np.random.default_rng(10)
    root, factor = rng.normal(size=(60, 10)), rng.normal(size=(60, 1))
    found = climb(root, factor, 16)
    fields = found.directions @ root.T
    n = np.maximum(fields, 0) @ factor
    weights, lengths = np.sign(n) * factor.T, rng.random((16, 1)) + 0.5
    near = np.abs(fields) < 1e-7
    with scope("float64"):
        slopes = unit_search.clarke(
            root, lengths * weights, lengths * found.values[:, None] * found.directions, fields, near, 0.5 * near
        )
        leaky = unit_search.clarke(
            root, weights, found.values[:, None] * found.directions, fields, near, 0.5 * near, ends=(2.0, 2.0)
        )
    np.testing.assert_allclose(slopes, found.slopes, atol=1e-8)
    assert near.sum() > 16 and np.all(leaky == 2.0)


def test_clarke_stays_in_the_box(rng):
    """What no slopes can reach is approached as far as they go."""
    root, weights = rng.normal(size=(8, 3)), rng.normal(size=(4, 8))
    targets, fields = 50 * rng.normal(size=(4, 3)), rng.normal(size=(4, 8))
    near = rng.random((4, 8)) < 0.6
    with scope("float64"):
        slopes = unit_search.clarke(root, weights, targets, fields, near, np.zeros((4, 8)))
    assert slopes.min() >= 0 and slopes.max() <= 1
    assert np.array_equal(slopes[~near], (fields > 0)[~near])
    for i in range(4):
        rest = targets[i] - (weights[i] * np.where(near[i], 0, slopes[i])) @ root
        some = near[i]
        expected = lsq_linear((weights[i, some, None] * root[some]).T, rest, (0, 1), method="bvls", tol=1e-14)
        np.testing.assert_allclose(
            np.linalg.norm(targets[i] - (weights[i] * slopes[i]) @ root), np.sqrt(2 * expected.cost), rtol=1e-10
        )
