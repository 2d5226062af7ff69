"""A solution is evidence: complete, immutable, and honest about what it holds."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import numpy as np
import pytest

import adakern as ak

NETWORK = ak.MLP(2, "erf")
LIMITS = [ak.NNGP(NETWORK), ak.NNGPK(NETWORK), ak.NTK(NETWORK)]
each_limit = pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.kind)


def arrays(solution):
    for field in dataclasses.fields(solution):
        value = getattr(solution, field.name)
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, np.ndarray):
                yield field.name, item


@pytest.fixture(scope="module")
def adaptive(data):
    return ak.solve(ak.ANBK(ak.MLP(1, "erf")), data[0], data[1], particles=128, tolerance=0.3, throw=False)


@each_limit
def test_fields(limit, data, solved):
    solution = solved(limit)
    assert solution.limit == limit
    np.testing.assert_array_equal(solution.X, data[0])
    np.testing.assert_array_equal(solution.y, data[1])
    assert [kernel.shape for kernel in solution.kernels] == [(12, 12)] * 2
    assert [error.shape for error in solution.kernel_errors] == [(12, 12)] * 2
    assert not np.any(solution.kernel_errors)
    assert solution.fitted.shape == solution.errors.shape == solution.coefficients.shape == (12,)
    assert solution.draws == () and solution.duals is None and solution.certificate is None
    assert (solution.gradient_kernels is None) == (limit.kind != "NTK")
    if limit.kind == "NTK":
        assert [kernel.shape for kernel in solution.gradient_kernels] == [(12, 12)] * 2
        assert not np.allclose(solution.kernel, solution.kernels[-1])
    else:
        np.testing.assert_array_equal(solution.kernel, solution.kernels[-1])
    assert solution.converged is True and solution.status == "closed form"
    assert isinstance(solution.residual, float)
    assert all(array.dtype == np.float64 for _, array in arrays(solution))


@each_limit
def test_stats(limit, solved):
    stats = solved(limit).stats
    assert stats["precision"] == "float64" and stats["seed"] == 0 and stats["version"] == ak.__version__
    assert 0 < stats["seconds"] < 600
    assert stats["solver"] == "closed" and stats["linear_system"]["route"] == "cholesky"


def test_shapes_of_outputs(data):
    X, y, X_new = data
    for targets, trailing in ((y, ()), (y[:, None], (1,)), (np.stack([y, -y], axis=1), (2,))):
        solution = ak.solve(LIMITS[0], X, targets)
        for values in (solution.y, solution.fitted, solution.errors, solution.coefficients):
            assert values.shape == (12, *trailing)
        mean, spread = solution.predict(X_new, return_std=True)
        assert mean.shape == spread.shape == (5, *trailing)
        assert solution.variance(X_new).shape == (5,)
        assert solution.cross_kernel(X_new).shape == (5, 12)
        assert solution.predict(X_new[:1]).shape == (1, *trailing)


def test_attributes_are_frozen(solved):
    solution = solved(LIMITS[2])
    for field in dataclasses.fields(solution):
        with pytest.raises(dataclasses.FrozenInstanceError, match=field.name):
            setattr(solution, field.name, None)


@pytest.mark.parametrize("make", [lambda s: s, copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_arrays_are_read_only_also_in_copies(make, data, solved):
    solution = solved(LIMITS[2])
    solution.predict(data[2])  # what it caches must not be in the way
    other = make(solution)
    names = set()
    for name, array in arrays(other):
        names.add(name)
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    assert names >= {
        "X",
        "y",
        "kernels",
        "kernel",
        "kernel_errors",
        "gradient_kernels",
        "coefficients",
        "fitted",
        "errors",
    }
    np.testing.assert_array_equal(other.predict(data[2]), solution.predict(data[2]))


@pytest.mark.long
def test_copies_of_a_sampled_solution(data, adaptive):
    expected = adaptive.predict(data[2])
    for other in (copy.deepcopy(adaptive), pickle.loads(pickle.dumps(adaptive))):
        np.testing.assert_array_equal(other.predict(data[2]), expected)


def test_the_users_arrays_stay_theirs(data):
    X, y = data[0].copy(), data[1].copy()
    solution = ak.solve(LIMITS[1], X, y)
    assert X.flags.writeable and y.flags.writeable
    X[:], y[:] = 0, 0
    np.testing.assert_array_equal(solution.X, data[0])
    np.testing.assert_array_equal(solution.y, data[1])
    found = solution.predict(data[2])
    found[:] = 0  # what predict returns belongs to the caller
    assert np.any(solution.predict(data[2]))


@each_limit
def test_density_is_gaussian_with_the_variance_below(limit, data, solved):
    solution = solved(limit)
    variances = (np.sum(data[0] ** 2, axis=1) / 5, np.diag(solution.kernels[0]))
    for layer, variance in enumerate(variances, start=1):
        values, weights = solution.density(layer, 3)
        assert values.shape == weights.shape and weights.sum() == pytest.approx(1.0)
        assert np.sum(weights * values) == pytest.approx(0.0, abs=1e-12)
        # Equally likely quantiles miss a little of the tails: less than 1 % of the variance for 4096 of them.
        assert np.sum(weights * values**2) == pytest.approx(variance[3], rel=0.01)
        assert np.sum(weights * (values < np.sqrt(variance[3]))) == pytest.approx(0.8413447, abs=1 / len(values))


def test_density_divides_by_the_decay(data, solved):
    solution = solved(ak.NNGPK(NETWORK, decay=(4.0, 0.25, 1.0)))
    values, weights = solution.density(1, 0)
    assert np.sum(weights * values**2) == pytest.approx(np.sum(data[0][0] ** 2) / 5 / 4, rel=0.01)
    values, weights = solution.density(2, 0)
    assert np.sum(weights * values**2) == pytest.approx(solution.kernels[0][0, 0] / 0.25, rel=0.01)


@pytest.mark.parametrize(
    "layer, point, kind, message",
    [
        (0, 0, ValueError, "layer must be at least 1, but it is 0"),
        (3, 0, ValueError, "layer must be at most 2, the depth, but it is 3"),
        (1.0, 0, TypeError, "layer must be an integer, but it is 1.0"),
        (1, 12, ValueError, "point must be at most 11, but it is 12"),
        (1, -1, ValueError, "point must be at least 0, but it is -1"),
        (1, "a", TypeError, "point must be an integer, but it is 'a'"),
    ],
)
def test_density_refuses(layer, point, kind, message, solved):
    with pytest.raises(kind, match=message):
        solved(LIMITS[1]).density(layer, point)


@pytest.mark.parametrize("limit", LIMITS[1:], ids=lambda limit: limit.kind)
def test_variance_is_nngps_alone(limit, data, solved):
    with pytest.raises(ValueError, match=f"variance exists for NNGP only, and this is a solution of {limit.kind}"):
        solved(limit).variance(data[2])


@each_limit
def test_no_monte_carlo_error_in_closed_form(limit, data, solved):
    mean, spread = solved(limit).predict(data[2], return_std=True)
    np.testing.assert_array_equal(mean, solved(limit).predict(data[2]))
    np.testing.assert_array_equal(spread, 0.0)


def test_a_sampled_solution_has_errors(data, adaptive):
    assert np.all(adaptive.kernel_errors[0] > 0)
    mean, spread = adaptive.predict(data[2], return_std=True)
    assert mean.shape == spread.shape == (5,) and np.all(spread > 0)
    values, weights = adaptive.density(1, 2)
    assert len(values) == len(weights) == len(adaptive.draws[0])
    assert adaptive.stats["solver"] == "particles" and adaptive.stats["particles"] == 128


@pytest.mark.parametrize("name", ["predict", "cross_kernel", "variance"])
@pytest.mark.parametrize(
    "wrong, kind, message",
    [
        (np.zeros((3, 4)), ValueError, r"X must have points of shape \(5,\) like the training inputs"),
        (np.zeros(5), ValueError, r"X must be 2-D \(points, features\)"),
        (np.full((1, 5), np.nan), ValueError, "X must be finite, but it contains NaN"),
        ([["a"] * 5], TypeError, "X must hold real numbers, but it holds strings"),
    ],
)
def test_new_inputs_are_checked(name, wrong, kind, message, solved):
    with pytest.raises(kind, match=message):
        getattr(solved(LIMITS[0]), name)(wrong)


@pytest.mark.parametrize("budget, kind", [(0, ValueError), (-1, ValueError), ("1GB", TypeError)])
def test_the_memory_budget_is_checked(budget, kind, data, solved):
    with pytest.raises(kind, match="memory must be"):
        solved(LIMITS[0]).predict(data[2], memory=budget)


def test_repr(solved):
    text = repr(solved(LIMITS[2]))
    assert (
        text.startswith("Solution(NTK(network=MLP(depth=2") and "12 points" in text and "converged: closed form" in text
    )
    assert "NOT" not in text


def test_progress_goes_to_standard_error(data, capsys):
    ak.solve(LIMITS[1], data[0], data[1], progress=True)
    assert capsys.readouterr().out == ""
    ak.solve(LIMITS[1], data[0], data[1])
    assert capsys.readouterr() == ("", "")
