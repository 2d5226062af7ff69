"""What a user can get wrong, each with an error that names the argument; and what is awkward but legal."""

from __future__ import annotations

import numpy as np
import pytest

import adakern as ak
from adakern.finite import sampler
from adakern.finite import training as flows

X = np.random.default_rng(0).standard_normal((5, 7))
Y = np.sign(X[:, 0])
MLP = ak.MLP(1, "tanh")
KINDS = {"flow": ak.finite.gradient_flow, "langevin": ak.finite.langevin}


@pytest.fixture(autouse=True)
def no_work(request, monkeypatch):
    """Bad input is found before anything is trained."""
    if "refuses" not in request.node.name:
        return

    def work(*args, **kwargs):
        raise AssertionError("work was done")

    monkeypatch.setattr(flows, "_integrate", work)
    monkeypatch.setattr(flows, "_descend", work)
    monkeypatch.setattr(sampler, "advance", work)


def with_value(value):
    changed = X.copy()
    changed[2, 1] = value
    return changed


BOTH = {
    "X holds NaN": ({"X": with_value(np.nan)}, ValueError, "X must be finite, but it contains NaN"),
    "X holds infinity": ({"X": with_value(np.inf)}, ValueError, "X must be finite, but it contains infinity"),
    "X is 1-D": ({"X": X[:, 0]}, ValueError, r"X must be 2-D \(points, features\).*reshape"),
    "X has no points": ({"X": X[:0], "y": []}, ValueError, "X must have at least one point"),
    "X holds strings": ({"X": [["a"] * 7] * 5}, TypeError, "X must hold real numbers, but it holds strings"),
    "images for an MLP": ({"X": np.zeros((5, 4, 4, 1))}, ValueError, r"X must be 2-D \(points, features\)"),
    "vectors for a CNN": ({"network": ak.CNN(1)}, ValueError, r"X must be 4-D \(points, height, width, channels\)"),
    "window is too large": (
        {"network": ak.CNN(1, window=9), "X": np.zeros((5, 8, 8, 1))},
        ValueError,
        "window of layer 1 must fit into the image",
    ),
    "y is shorter": ({"y": Y[:4]}, ValueError, "y must have one row per point of X: X has 5, y has 4"),
    "y holds NaN": ({"y": [1, np.nan, 1, 1, 1]}, ValueError, "y must be finite, but it contains NaN"),
    "y is 3-D": ({"y": np.ones((5, 1, 1))}, ValueError, r"y must be 1-D \(points,\) or 2-D"),
    "network is a name": ({"network": "MLP"}, TypeError, "network must be an MLP or a CNN, but it is 'MLP'"),
    "network is a limit": ({"network": ak.NNGP(MLP)}, TypeError, "network must be an MLP or a CNN"),
    "decay is negative": ({"decay": -1.0}, ValueError, "decay must be (0 or greater|greater than 0), but it is -1"),
    "one decay is negative": ({"decay": (1.0, -1.0)}, ValueError, r"decay\[1\] must be"),
    "too many decays": ({"decay": (1.0, 1.0, 1.0)}, ValueError, r"decay must be one number or 2 of them .* it has 3"),
    "decay is NaN": ({"decay": np.nan}, ValueError, "decay must be finite"),
    "richness is zero": ({"richness": 0}, ValueError, "richness must be greater than 0, but it is 0"),
    "richness is a string": ({"richness": "1"}, TypeError, "richness must be a number, but it is '1'"),
    "width is zero": ({"width": 0}, ValueError, "width must be at least 1, but it is 0"),
    "width is a float": ({"width": 8.0}, TypeError, "width must be an integer, but it is 8.0"),
    "no replicas": ({"replicas": 0}, ValueError, "replicas must be at least 1, but it is 0"),
    "seed is negative": ({"seed": -1}, ValueError, "seed must be at least 0, but it is -1"),
    "time is zero": ({"time": 0.0}, ValueError, "time must be greater than 0, but it is 0"),
    "time is negative": ({"time": -1.0}, ValueError, "time must be greater than 0, but it is -1"),
    "time is infinite": ({"time": np.inf}, ValueError, "time must be finite, but it is inf"),
    "step is zero": ({"step": 0.0}, ValueError, "step must be greater than 0, but it is 0"),
    "tolerance is negative": ({"tolerance": -0.1}, ValueError, "tolerance must be"),
    "loss is unknown": ({"loss": "hinge"}, ValueError, "loss must be one of 'squared', 'logistic', 'softmax'"),
    "precision is unknown": ({"precision": "half"}, ValueError, "precision must be one of 'float32', 'float64'"),
    "matmul is unknown": ({"matmul": "low"}, ValueError, "matmul must be one of 'highest', 'high', 'default'"),
    "parameterization is unknown": (
        {"parameterization": "standard"},
        ValueError,
        "parameterization must be one of 'mean-field', 'ntk'",
    ),
    "logistic labels 0 and 1": (
        {"loss": "logistic", "y": [0, 1, 0, 1, 1]},
        ValueError,
        r"y must hold -1 and \+1 for the logistic loss, but it holds \[0. 1.\]",
    ),
    "softmax labels 1-D": ({"loss": "softmax"}, ValueError, r"y must be one-hot, \(points, classes\)"),
    "softmax labels not one-hot": (
        {"loss": "softmax", "y": np.ones((5, 3))},
        ValueError,
        "y must have rows that are one-hot",
    ),
    "softmax labels negative": (
        {"loss": "softmax", "y": [[2.0, -1.0]] * 5},
        ValueError,
        "y must have rows that are one-hot",
    ),
    "X_test has other features": (
        {"X_test": np.zeros((2, 6))},
        ValueError,
        r"X_test must have points of shape \(7,\) like the training inputs",
    ),
    "X_test holds NaN": ({"X_test": np.full((2, 7), np.nan)}, ValueError, "X_test must be finite"),
    "y_test alone": ({"y_test": [1.0]}, ValueError, "y_test must come with X_test"),
    "y_test is shorter": (
        {"X_test": X[:2], "y_test": [1.0]},
        ValueError,
        "y_test must have one row per point of X",
    ),
    "y_test has other outputs": (
        {"X_test": X[:2], "y_test": np.ones((2, 2))},
        ValueError,
        "y_test must have as many outputs as y",
    ),
    "y_test labels wrong": (
        {"loss": "logistic", "X_test": X[:2], "y_test": [0.0, 1.0]},
        ValueError,
        r"y_test must hold -1 and \+1",
    ),
}


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("kind", KINDS)
def test_refuses(kind, name):
    changed, error, message = BOTH[name]
    options = {"network": MLP, "X": X, "y": Y, "width": 8, **changed}
    if kind == "flow" and "step" in changed:
        options["method"] = "descent"
    with pytest.raises(error, match=message):
        KINDS[kind](options.pop("network"), options.pop("X"), options.pop("y"), **options)


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"decay": 0.0}, ValueError, "decay must be greater than 0, but it is 0"),
        ({"beta": 0.0}, ValueError, "beta must be greater than 0"),
        ({"beta": -1.0}, ValueError, "beta must be greater than 0"),
        ({"burn_in": 10.0}, ValueError, "burn_in must be less than time, 10, but it is 10"),
        ({"burn_in": 20.0}, ValueError, "burn_in must be less than time, 10, but it is 20"),
        ({"burn_in": -1.0}, ValueError, "burn_in must be 0 or greater"),
        ({"sampler": "hmc"}, ValueError, "sampler must be one of 'baoab', 'euler'"),
        ({"friction": 0.0}, ValueError, "friction must be greater than 0"),
        ({"snapshots": 0}, ValueError, "snapshots must be at least 1"),
        ({"tolerance": 0.0}, ValueError, "tolerance must be greater than 0"),
    ],
)
def test_langevin_refuses(options, error, message):
    with pytest.raises(error, match=message):
        ak.finite.langevin(MLP, X, Y, width=8, **options)


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"method": "adam"}, ValueError, "method must be one of 'ode', 'chebyshev', 'descent', 'momentum'"),
        ({"step": 0.1}, ValueError, "step has no meaning for method='ode'"),
        ({"accuracy": 0.0}, ValueError, "accuracy must be greater than 0"),
        ({"initial": "uniform"}, ValueError, "initial must be one of 'normal', 'laplace'"),
        ({"times": [1.0, 21.0]}, ValueError, "times must lie between 0 and time, 20, but they are 1 to 21"),
        ({"times": [-1.0]}, ValueError, "times must lie between 0 and time, 20, but they are -1 to -1"),
        ({"times": [np.nan]}, ValueError, "times must be finite"),
        ({"times": ["a"]}, TypeError, "times must hold real numbers"),
    ],
)
def test_flow_refuses(options, error, message):
    with pytest.raises(error, match=message):
        ak.finite.gradient_flow(MLP, X, Y, width=8, **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{"width": 10**7}, {"width": 1024, "replicas": 10**6}])
def test_refuses_what_does_not_fit(kind, options):
    with pytest.raises(ak.TooLargeError, match=r"network\(s\) of width .* needs about .* GiB of memory, but only"):
        KINDS[kind](ak.MLP(2, "tanh"), X, Y, **options)


def test_flow_refuses_too_many_moments():
    with pytest.raises(ak.TooLargeError, match="100001 moments kept"):
        ak.finite.gradient_flow(ak.MLP(2, "tanh"), X, Y, width=2048, times=np.linspace(0, 20, 10**5))


# Awkward but legal. Descent compiles in no time, and shares everything else with the flow.

AWKWARD = {
    "constant labels": (X, np.ones(5)),
    "labels of zero": (X, np.zeros(5)),
    "duplicated points": (X[[0, 0, 1, 1, 2]], Y[[0, 0, 1, 1, 2]]),
    "contradicting points": (X[[0, 0, 1, 1, 2]], Y),
    "zero inputs": (np.zeros((5, 7)), Y),
    "one point": (X[:1], Y[:1]),
    "one feature": (X[:, :1], Y),
    "one point, one feature": (X[:1, :1], Y[:1]),
    "integers": (np.arange(35).reshape(5, 7) % 3, [1, -1, 1, -1, 1]),
}


@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_data(name, tmp_path):
    X, y = AWKWARD[name]
    options = {"width": 8, "decay": 0.0, "time": 200.0, "method": "descent", "precision": "float64", "step": 0.1}
    run = ak.finite.gradient_flow(MLP, X, y, **options)
    assert run.converged and np.isfinite(run.kernel).all() and np.isfinite(run.fitted_errors).all()
    inputs = np.asarray(X, dtype=float)
    same = (inputs[:, None] == inputs[None]).all(axis=2)
    best = (
        same @ np.asarray(y) / same.sum(axis=1)
    )  # points with the same input have one output: the mean of their labels
    if name == "zero inputs":
        np.testing.assert_array_equal(run.fitted, 0)
    elif name in ("constant labels", "labels of zero", "duplicated points", "contradicting points", "one point"):
        np.testing.assert_allclose(run.fitted, best, atol=0.02)
    new = run.predict(inputs[:1] + 0.1)
    assert new.shape == (1,) and np.isfinite(new).all()
    assert run.tangent_kernel.shape == (len(y), len(y)) and np.isfinite(run.tangent_kernel).all()
    run.save(tmp_path / "run")
    np.testing.assert_array_equal(ak.load(tmp_path / "run").predict(inputs[:1] + 0.1), new)


@pytest.mark.parametrize("name", ["constant labels", "labels of zero", "duplicated points"])
def test_awkward_data_of_langevin(name, sample):
    X, y = AWKWARD[name]
    if name == "duplicated points":
        X = X + 1e-3 * np.random.default_rng(1).standard_normal(
            X.shape
        )  # of full rank: shapes that are compiled already
    run = sample(X=X, y=y)
    assert run.stats["temperature"] == pytest.approx(1, abs=0.1)
    assert np.isfinite(run.kernel).all() and np.all(run.fitted_errors > 0)
    if name == "labels of zero":
        assert np.all(np.abs(run.fitted) < 5 * run.fitted_errors)
    if name == "constant labels":
        assert np.all(run.fitted > 0.2)
    if name == "duplicated points":
        np.testing.assert_allclose(run.fitted[[0, 2]], run.fitted[[1, 3]], atol=0.02)


def test_langevin_of_zero_inputs(sample):
    """No signal at all: outputs and kernels of tanh are zero, and the prior is what is left at new points."""
    run = sample(X=np.zeros((5, 7)))
    np.testing.assert_array_equal(run.fitted, 0)
    np.testing.assert_array_equal(run.kernel, 0)
    assert np.isfinite(run.test_predictions).all() and np.all(run.test_errors > 0)
    assert run.converged, run.status


def test_a_flow_without_labels_stops_when_nothing_moves(flow):
    run = flow(y=np.zeros(5), decay=1.0, time=100.0, method="descent", step=0.05)
    assert run.stats["stationary"]


def test_zero_decay_is_legal_for_the_flow(flow):
    run = flow(decay=0.0, method="descent", step=0.02)
    np.testing.assert_array_equal(run.fades, 1.0)
    mixed = flow(decay=(0.0, 0.5), method="descent", step=0.02)
    assert mixed.settings.decays == (0.0, 0.5) and mixed.losses[-1] > run.losses[-1]


def test_a_single_new_point(flowed, sampled, points):
    one = points[2][:1]
    assert flowed.predict(one).shape == sampled.predict(one).shape == sampled.variance(one).shape == (1,)
    np.testing.assert_allclose(flowed.predict(one), flowed.predict(points[2])[:1], rtol=1e-5)
    np.testing.assert_allclose(sampled.predict(one), sampled.predict(points[2])[:1], rtol=1e-4)


def test_unstable_langevin_step(sample):
    """What failed before anything was averaged has nothing to return, whatever `throw`."""
    for throw in (True, False):
        with pytest.raises(
            ak.ConvergenceError, match="the dynamics is unstable at step 0.05; give a smaller step, or none"
        ):
            sample(beta=1e5, throw=throw)


@pytest.fixture
def failing(monkeypatch):
    """The sampler's 21st call, the fifth batch of the averages, goes wrong."""
    original, count = sampler.advance, iter(range(10**6))

    def advance(*args):
        state, means, trace = original(*args)
        bad = next(count) >= 20
        return state, means._replace(summaries=means.summaries * np.nan) if bad else means, trace

    monkeypatch.setattr(sampler, "advance", advance)


@pytest.mark.usefixtures("failing")
def test_langevin_that_fails_late(sample):
    """With throw=False a run that fails among its averages is returned with what it has."""
    run = sample()
    assert not run.converged and "unstable" in run.status and run.stats["batches"] == 4
    assert np.isfinite(run.kernel).all() and len(run.sample_times) == 1  # every fourth batch is kept
    assert len(run.test_losses) == len(run.test_times) == 4
    assert len(run.losses) == len(run.times)


@pytest.mark.usefixtures("failing")
def test_langevin_that_fails_late_is_an_error(sample):
    with pytest.raises(ak.ConvergenceError, match="did not converge: the dynamics is unstable"):
        sample(throw=True)


@pytest.mark.usefixtures("failing")
def test_langevin_that_fails_before_its_first_snapshot(sample):
    run = sample(snapshots=1)
    assert not run.converged and run.stats["batches"] == 4
