"""Fixed points of gradient flow in linear networks: stationarity, thresholds, and weights that a network really ends with."""

from __future__ import annotations

import numpy as np
import pytest

import adakern as ak
from adakern.deep_linear import flow, spectra

RNG = np.random.default_rng(3)
ROWS = RNG.standard_normal((10, 14)) / np.sqrt(14)
Y = RNG.standard_normal((10, 1))


def rests(depth, richness, decay=1.0, y=Y):
    return flow.solve(flow.Problem(depth, richness, decay, y), spectra.dense(ROWS, y))


def objective(weights, decays, richness, y):
    """Loss and decay of a network of width one a layer: product of its weights, one output."""
    first, rest = weights[: ROWS.shape[1]], weights[ROWS.shape[1] :]
    outputs = ROWS @ first * np.prod(rest) / richness
    norms = np.concatenate([[first @ first], rest**2])
    return 0.5 * np.sum((y[:, 0] - outputs) ** 2) + 0.5 * np.sum(decays * norms) / richness**2


@pytest.mark.parametrize("depth, richness", [(1, 1.0), (2, 1.5), (3, 3.0)])
def test_it_is_the_minimum_over_weights(depth, richness):
    """One neuron a layer has the same optimum: the map of one output has rank one."""
    from scipy import optimize

    decays = np.linspace(0.5, 1.2, depth + 1)
    mean = float(np.exp(np.log(decays).mean()))
    found = rests(depth, richness, mean)
    alive = next(rest for rest in found.found if rest.stable)
    starts = [np.concatenate([0.5 * RNG.standard_normal(14), np.full(depth, 1.5)]) for _ in range(6)]
    ends = [
        optimize.minimize(objective, s, (decays, richness, Y), method="BFGS", options={"gtol": 1e-9}) for s in starts
    ]
    best = min(ends, key=lambda end: end.fun)
    assert best.fun == pytest.approx(min(alive.objective, found.dead.objective), rel=1e-8)
    outputs = ROWS @ best.x[:14] * np.prod(best.x[14:]) / richness
    np.testing.assert_allclose(outputs, alive.outputs[:, 0], atol=1e-4)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_collapse_is_where_the_last_fixed_point_goes(depth):
    threshold = flow.collapse(spectra.dense(ROWS, Y), depth, 0.7)
    assert not rests(depth, 0.999 * threshold, 0.7).found
    above = rests(depth, 1.001 * threshold, 0.7).found
    assert len(above) == (1 if depth == 1 else 2)
    assert sum(rest.stable for rest in above) == 1


def test_one_point_follows_the_transition():
    """x = y = 1, L = 1: <h²> = γ0 - λ above the threshold, nothing below."""
    for richness in (0.4, 0.9, 2.0):
        solution = ak.solve(ak.ANTK(ak.MLP(1, "linear"), richness=richness, decay=0.5), [[1.0]], [1.0])
        assert solution.kernel_errors[0].max() == 0
        assert solution.kernels[0][0, 0] == pytest.approx(max(richness - 0.5, 0.0), abs=1e-12)
        assert solution.errors[0] == pytest.approx(min(0.5 / richness, 1.0))
        assert ("everything dies" in solution.status) == (richness < 0.5)


def test_directions_die_one_by_one():
    """Whitened inputs and orthogonal outputs decouple: each output has its own threshold."""
    rows = np.eye(6)
    y = np.zeros((6, 2))
    y[0, 0], y[1, 1] = 2.0, 0.5
    found = flow.solve(flow.Problem(1, 1.0, 1.0, y), spectra.dense(rows, y)).found[0]
    alone = flow.solve(flow.Problem(1, 1.0, 1.0, y[:, :1]), spectra.dense(rows, y[:, :1])).found[0]
    assert found.strengths[-1] == pytest.approx(alone.strengths[0], rel=1e-7)
    assert found.strengths[0] == 0.0
    assert not flow.solve(flow.Problem(1, 1.0, 1.0, y), spectra.dense(rows, y)).dead.stable  # convex: one of the two
    assert flow.collapse(spectra.dense(rows, y), 1, 1.0) == pytest.approx(0.5)


@pytest.mark.parametrize("depth, richness", [(2, 2.0)])
@pytest.mark.long
def test_a_wide_network_ends_there(depth, richness):
    """Gradient flow of a finite linear network, whose fixed point does not depend on its width."""
    X = np.sqrt(14) * ROWS
    decay = (0.3, 0.5, 0.4)[: depth + 1]
    theory = ak.solve(ak.ANTK(ak.MLP(depth, "linear"), richness=richness, decay=decay), X, Y[:, 0])
    run = ak.finite.gradient_flow(
        ak.MLP(depth, "linear"),
        X,
        Y[:, 0],
        richness=richness,
        decay=decay,
        width=64,
        time=80.0,
        precision="float64",
        throw=False,
    )
    np.testing.assert_allclose(run.fitted, theory.fitted, atol=2e-3)
    for ours, theirs in zip(theory.kernels, run.kernels, strict=True):
        assert np.linalg.norm(ours - theirs) < 5e-3 * np.linalg.norm(ours)
    fresh = np.random.default_rng(0).standard_normal((5, 14))
    np.testing.assert_allclose(run.predict(fresh), theory.predict(fresh), atol=3e-3)


def test_the_tangent_kernel_predicts(tmp_path):
    X = np.sqrt(14) * ROWS
    decay = (0.3, 0.5, 0.4)
    solution = ak.solve(ak.ANTK(ak.MLP(2, "linear"), richness=2.0, decay=decay), X, Y[:, 0])
    ridge = np.linalg.solve(solution.kernel + sum(decay) * np.eye(10), Y[:, 0])
    np.testing.assert_allclose(solution.kernel @ ridge, solution.fitted, atol=1e-10)
    np.testing.assert_allclose(solution.predict(X), solution.fitted, atol=1e-10)
    np.testing.assert_allclose(solution.cross_kernel(X), solution.kernel, atol=1e-10)
    assert len(solution.gradient_kernels) == 2 and solution.residual < 1e-12
    solution.save(tmp_path / "a.safetensors")
    again = ak.load(tmp_path / "a.safetensors")
    np.testing.assert_array_equal(again.predict(X), solution.predict(X))


def test_awkward_data():
    limit = ak.ANTK(ak.MLP(2, "linear"), richness=2.0)
    X = np.random.default_rng(0).standard_normal((4, 3))
    assert not ak.solve(limit, X, np.zeros(4)).fitted.any()
    assert not ak.solve(limit, np.zeros((4, 3)), np.ones(4)).fitted.any()
    twice = ak.solve(limit, np.concatenate([X, X]), np.ones(8))
    np.testing.assert_allclose(twice.fitted[:4], twice.fitted[4:])
    two = ak.solve(limit, X, np.random.default_rng(1).standard_normal((4, 2)))
    np.testing.assert_allclose(two.predict(X), two.fitted, atol=1e-8)
    assert two.residual < 1e-9
    dead = ak.solve(ak.ANTK(ak.MLP(1, "linear"), richness=0.0), X, np.ones(4))
    assert not dead.predict(X).any()
    bent = ak.solve(ak.ANTK(ak.MLP(1, "relu"), richness=0.0), X, np.ones(4))  # other activations take another way
    assert bent.stats["solver"] == "descent" and dead.stats["solver"] == "linear"
    assert not bent.predict(X).any()
    with pytest.raises(ValueError, match="particles has no meaning"):
        ak.solve(limit, X, np.ones(4), particles=100)
