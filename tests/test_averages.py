"""Means of correlated series: errors that are right on average, and a stream that equals the whole array."""

from __future__ import annotations

import numpy as np
import pytest

from adakern import averages


def ar1(rng, length, correlation, shape):
    """Series of unit variance whose integrated autocorrelation time is (1 + ρ)/(1 − ρ)."""
    noise = rng.standard_normal((length, *shape))
    series = np.empty_like(noise)
    series[0] = noise[0]
    for t in range(1, length):
        series[t] = correlation * series[t - 1] + np.sqrt(1 - correlation**2) * noise[t]
    return series


def streamed(series):
    stream = averages.Stream(series.shape[1:])
    for array in series:
        stream.add(array)
    return stream


def test_stream_equals_the_whole_array(rng):
    series = 1e3 + ar1(rng, 50, 0.5, (4, 5))
    stream = streamed(series)
    assert stream.count == 50
    np.testing.assert_allclose(stream.mean, series.mean(axis=0), rtol=1e-14)
    np.testing.assert_allclose(stream.variance, series.var(axis=0, ddof=1), rtol=1e-9)
    # Few entries: the series itself is kept, and every entry has a time of its own.
    assert 1 < stream.time / averages.autocorrelation_time(series.reshape(50, -1)) < 1.5
    alone = [streamed(series[:, i, j]).error for i in range(4) for j in range(5)]
    np.testing.assert_allclose(stream.error.ravel(), alone, rtol=1e-9)
    ratio = np.linalg.norm(stream.error) / np.linalg.norm(stream.mean)
    assert stream.relative_error == pytest.approx(ratio, rel=1e-9)


def test_every_entry_has_its_own_autocorrelation():
    rng = np.random.default_rng(8)
    slow, fast = ar1(rng, 128, 0.9, (200,)), ar1(rng, 128, 0.0, (200,))
    both = streamed(np.concatenate([slow, fast], axis=1)).error
    assert np.mean(both[:200] ** 2) == pytest.approx(19 / 128, rel=0.4)
    assert np.mean(both[200:] ** 2) == pytest.approx(1 / 128, rel=0.4)


def test_stream_does_not_keep_the_arrays_it_is_given():
    array, stream = np.ones((2, 2)), averages.Stream((2, 2))
    stream.add(array)
    array[:] = 5
    stream.add(array)
    np.testing.assert_array_equal(stream.mean, np.full((2, 2), 3.0))


def test_stream_of_a_large_array_has_the_same_error(rng):
    """Beyond 64 entries the autocorrelation is read off random sums of them."""
    series = ar1(rng, 400, 0.8, (30, 30))
    stream = streamed(series)
    assert stream.time == pytest.approx(averages.autocorrelation_time(series.reshape(400, -1)), rel=0.2)
    assert 9 * 0.85 < stream.time < 9 * 1.15  # an infinite series has 9


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_errors_are_honest(correlation):
    """Over independent series, mean over error has variance one."""
    rng = np.random.default_rng(3)
    z = []
    for _ in range(120):
        stream = streamed(ar1(rng, 400, correlation, (6,)))
        z.append(stream.mean / stream.error)
    squares = np.square(z)
    # 720 independent z of variance about one: their mean square is uncertain by √(2/720) = 0.053; at ρ = 0.9 the
    # finite length (21 autocorrelation times) adds a bias of a tenth.
    assert abs(squares.mean() - 1) < 4 * np.sqrt(2 / squares.size) + (0.12 if correlation == 0.9 else 0)


@pytest.mark.parametrize("correlation", [0.3, 0.6, 0.8, 0.9])
def test_errors_of_short_series(correlation):
    """As many batches as a Langevin run has, and fluctuations that last 2 to 19 of them: the squared error is right on average, or up to a third too large."""
    rng = np.random.default_rng(4)
    means, errors = [], []
    for _ in range(200):
        stream = streamed(ar1(rng, 128, correlation, (8,)))
        means.append(stream.mean**2)
        errors.append(stream.error**2)
    uncertain = np.sqrt(2 / np.size(means))  # of the mean of 1600 squares
    assert 1 - 3 * uncertain < np.mean(errors) / np.mean(means) < 4 / 3 + 3 * uncertain


def test_state_and_restore(rng):
    series = rng.standard_normal((20, 9, 9))
    whole, half = streamed(series), streamed(series[:12])
    state = {name: array.copy() for name, array in half.state().items()}
    again = averages.Stream.restore(state)
    assert again.count == 12
    np.testing.assert_array_equal(again.error, half.error)
    for array in series[12:]:
        again.add(array)
        half.add(array)
    for name, array in whole.state().items():
        np.testing.assert_array_equal(again.state()[name], array)
    np.testing.assert_array_equal(again.error, whole.error)
    assert again.time == whole.time
    np.testing.assert_array_equal(state["sum"], streamed(series[:12]).state()["sum"])  # restoring copied


def test_streams_with_nothing_or_one():
    empty = averages.Stream((2,))
    assert empty.time == 1.0 and not empty.mean.any()
    one = streamed(np.ones((1, 2)))
    np.testing.assert_array_equal(one.mean, 1.0)
    assert np.isinf(one.error).all() and np.isinf(one.relative_error)
    constant = streamed(np.full((10, 2), 3.0))
    np.testing.assert_array_equal(constant.error, 0.0)


def test_split_rhat_of_independent_draws(rng):
    values = [averages.split_rhat(rng.standard_normal((4, 500))) for _ in range(50)]
    # Between-halves variance over its expectation is a χ² of 7 over 7: R̂ − 1 is about that minus one, over 2·250.
    assert abs(np.mean(values) - 1) < 2e-3 and max(values) < 1.01


@pytest.mark.parametrize("shift", [0.5, 1.0, 2.0])
def test_split_rhat_of_chains_that_disagree(rng, shift):
    chains = rng.standard_normal((2, 2000)) + shift * np.array([[0.0], [1.0]])
    # Four halves, means 0, 0, δ, δ of variance δ²/3.
    assert averages.split_rhat(chains) == pytest.approx(np.sqrt(1 + shift**2 / 3), rel=0.05)


def test_split_rhat_sees_a_drift_within_one_chain(rng):
    drifting = rng.standard_normal((1, 400)) + np.linspace(0, 4, 400)
    assert averages.split_rhat(drifting) > 1.5


def test_split_rhat_of_degenerate_series():
    assert averages.split_rhat(np.full((2, 10), 3.0)) == 1.0
    assert averages.split_rhat(np.array([[1.0] * 10, [2.0] * 10])) == np.inf
    assert np.isnan(averages.split_rhat(np.zeros((2, 3))))


def test_drifts(rng):
    steady = 5 + rng.standard_normal(400)
    assert not averages.drifts(steady)
    assert averages.drifts(steady + np.linspace(0, 2, 400))
    assert not averages.drifts(1000 * steady + 0 * np.linspace(0, 2, 400))
    assert not averages.drifts(1000 + 0.1 * steady + np.linspace(0, 2, 400))  # significant, but less than 2 %
    assert averages.drifts(np.array([1.0, np.nan, 1.0, 1.0]))
