"""Descent to rest from a network's run and from another solution: the start changes the way, not where one hidden layer ends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import adakern as ak

RNG = np.random.default_rng(8)
X = RNG.normal(size=(6, 3))
Y = np.sign(X[:, 0] * X[:, 1])
LIMIT = ak.ANTK(ak.MLP(1, "relu"), richness=2.0, decay=0.3)
OPTIONS = {"particles": 64, "tolerance": 1e-5}


def solve(limit=LIMIT, inputs=X, y=Y, **options):
    return ak.solve(limit, inputs, y, **{**OPTIONS, **options})


def bound(solution):
    """Outputs differ from the optimum's by at most √(2 gap), since the squared loss is strongly convex."""
    gap = (max(solution.certificate, 0.0) + solution.residual) * solution.stats["value"]
    return float(np.sqrt(2 * gap))


@pytest.fixture(scope="module")
def cold():
    return solve()


@pytest.fixture(scope="module")
def run():
    """A network that is still on its way."""
    options = {"richness": 2.0, "decay": 0.3, "width": 64, "time": 0.5, "precision": "float64", "throw": False}
    return ak.finite.gradient_flow(LIMIT.network, X, Y, **options)


def ends_there(warm, cold):
    assert warm.converged and abs(warm.certificate) <= OPTIONS["tolerance"]
    assert np.linalg.norm(warm.fitted - cold.fitted) <= bound(warm) + bound(cold) < 0.05
    np.testing.assert_allclose(warm.kernels[0], cold.kernels[0], atol=0.01 * np.abs(cold.kernels[0]).max())
    assert warm.stats["steps"] < cold.stats["steps"]  # one start, and not from noise


def test_from_a_network(cold, run):
    assert np.linalg.norm(run.fitted - cold.fitted) > 0.05  # or there would be no way to go
    ends_there(solve(init=run), cold)


def test_from_another_decay(cold):
    neighbour = solve(replace(LIMIT, decay=(0.5, 0.2)))
    assert np.linalg.norm(neighbour.fitted - cold.fitted) > 0.01
    ends_there(solve(init=neighbour), cold)


@pytest.mark.long
def test_from_fewer_points(cold):
    """A solution has fields at inputs that it has not seen; neurons that they lack are found."""
    ends_there(solve(init=solve(inputs=X[:4], y=Y[:4])), cold)


def test_what_cannot_be_started_from(cold, run):
    with pytest.raises(TypeError, match="init must be a Solution of an ANTK by descent, or the Run"):
        solve(init=ak.solve(ak.NNGPK(LIMIT.network), X, Y))
    with pytest.raises(TypeError, match="init must be a Solution of an ANTK by descent, or the Run"):
        solve(init=[np.eye(6)])
    with pytest.raises(ValueError, match="init must have 2 hidden layers like the limit's network, but it has 1"):
        solve(replace(LIMIT, network=ak.MLP(2, "relu")), init=run)
    with pytest.raises(ValueError, match=r"init must have inputs of shape \(2,\) like X, but they have \(3,\)"):
        solve(inputs=X[:, :2], init=cold)
    with pytest.raises(ValueError, match="init must have been trained on X"):
        solve(inputs=X + 1.0, init=run)


def test_neurons_of_another_solution_keep_their_shares():
    """Of tanh some are many and some are few: with equal shares they would rest elsewhere."""
    rng = np.random.default_rng(1)
    points, labels = rng.normal(size=(6, 3)), np.sign(rng.normal(size=6))
    limit = ak.ANTK(ak.MLP(1, "tanh"), richness=1.0, decay=0.1)
    first = ak.solve(limit, points, labels, particles=256)
    again = ak.solve(limit, points, labels, init=first)
    assert first.shares is not None and first.shares[0].max() > 2 * first.shares[0].min()
    assert again.stats["objective"] == pytest.approx(first.stats["objective"], rel=1e-5)
    np.testing.assert_allclose(again.fitted, first.fitted, atol=1e-3)


@pytest.mark.long
def test_tanh_ends_where_its_dynamics_does():
    rng = np.random.default_rng(1)
    points, labels = rng.normal(size=(6, 3)), np.sign(rng.normal(size=6))
    limit = ak.ANTK(ak.MLP(1, "tanh"), richness=1.0, decay=0.1)
    ends = np.stack([ak.solve(limit, points, labels, seed=seed).fitted for seed in range(4)])
    flow = ak.dynamics(limit, points, labels, [2000.0], neurons=1024, replicas=4)
    error = np.hypot(ends.std(axis=0, ddof=1) / 2, flow.fitted_errors[-1])
    assert np.abs((ends.mean(axis=0) - flow.fitted[-1]) / error).max() < 6  # of four each, error bars are rough
    assert np.abs(ends.mean(axis=0) - flow.fitted[-1]).max() < 0.01


def test_from_a_stronger_fit():
    """Less decay, or more points: errors so small that no neuron is pulled as hard as it costs."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(5, 3))
    y = np.sign(rng.normal(size=5))
    net = ak.MLP(1, "relu")
    strong = ak.solve(ak.ANTK(net, decay=0.01), X, y)
    for some, decay in ((slice(None), 0.1), (slice(3), 0.01)):
        limit = ak.ANTK(net, decay=decay)
        warm, cold = (ak.solve(limit, X[some], y[some], init=init) for init in (strong, None))
        assert np.abs(warm.fitted - cold.fitted).max() < 1e-5
