"""The edges of the aNTK's solver: thresholds, budgets of work, scales of the data, tolerances below rounding, and what its status says of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import adakern as ak
from adakern.limits import Answer
from adakern.solvers import rest_flow
from adakern.solving import _judge

RNG = np.random.default_rng(5)
X = RNG.normal(size=(10, 4))
Y = np.sign(X[:, 0] * X[:, 1])
RELU = ak.ANTK(ak.MLP(1, "relu"), richness=2.0, decay=0.3)
FEW = np.random.default_rng(0).standard_normal((6, 3))
LABELS = np.sign(np.random.default_rng(1).standard_normal(6))
DEEP = ak.ANTK(ak.MLP(2, "relu"), richness=3.0, decay=0.3)


@pytest.fixture(scope="module")
def relu():
    return ak.solve(RELU, X, Y)


@pytest.fixture(scope="module")
def deep():
    return ak.solve(DEEP, FEW, LABELS, particles=32)


@pytest.mark.parametrize("above", [1e-9, 3e-6, 1e-3])
def test_just_above_the_threshold(above):
    """Convex: one place to rest, whatever rounding makes of the value of its two starts."""
    threshold = ak.collapse_threshold(RELU, X, Y)
    solution = ak.solve(replace(RELU, richness=threshold * (1 + above)), X, Y)
    assert solution.converged and "start" not in solution.status
    assert solution.certificate < 1e-10
    alive = above == 1e-3
    assert ("dies" in solution.status) <= (above < 1e-5) and solution.fitted.any() >= alive
    assert solution.stats.get("starts_that_died", 0) == 0


def test_steps_bound_both_starts():
    """When the steps are used up no second start begins."""
    with pytest.raises(ak.ConvergenceError, match="duality gap.*give more steps") as caught:
        ak.solve(RELU, X, Y, steps=1)
    kept = caught.value.result
    assert kept.stats["steps"] == 1 and len(kept.stats["starts"]) == 1
    assert not kept.converged and kept.certificate > 1e-4


def test_dead_is_not_said_of_what_is_on_its_way():
    solution = ak.solve(replace(DEEP, richness=1.0), FEW, LABELS, particles=32, steps=1, throw=False)
    assert not solution.converged and "more steps" in solution.status and "dies" not in solution.status


def test_one_start_knows_no_error(relu, tmp_path):
    again = ak.solve(RELU, X, Y, init=relu)
    assert np.isnan(again.kernel_errors[0]).all()
    assert np.isfinite(relu.kernel_errors[0]).all()
    again.save(tmp_path / "a.safetensors")
    assert np.isnan(ak.load(tmp_path / "a.safetensors").kernel_errors[0]).all()


def test_the_status_has_the_gap_of_the_certificate(relu):
    assert f"duality gap {relu.certificate:.1e} of the value" == relu.status
    own = (relu.stats["primal"] - relu.stats["dual"]) / relu.stats["primal"]
    assert relu.certificate >= own


def test_a_tolerance_below_rounding_ends_no_worse(relu):
    with pytest.raises(
        ak.ConvergenceError, match="best that was found, and rounding stops it.*larger tolerance"
    ) as caught:
        ak.solve(RELU, X, Y, tolerance=1e-14)
    finest = caught.value.result
    assert finest.certificate <= 1.1 * relu.certificate
    assert f"the duality gap is {finest.certificate:.2g} of the value" in finest.status


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_advice_fits_the_call(dtype):
    """Another precision is no advice to who has it."""
    answer = Answer(
        (), np.eye(2), Y[:2], Y[:2], Y[:2], kernel_errors=(), stats={"solver": "descent", "tolerance": 1e-4}
    )
    said = [
        _judge(answer, 1.0, {"audit": {"doubt": doubt}, **gap}, dtype)
        for doubt, gap in ((0.1, {}), (None, {}), (0.0, {"certificate": 0.1}))
    ]
    assert not any(one.converged for one in said)
    assert [("float64" in one.status) for one in said] == [dtype == "float32"] * 3


def test_scaled_inputs_of_relu(deep):
    r"""Outputs are linear in $c$ for $X\to cX$: with $(c\gamma_0,c^2\lambda)$ the cost is $c^2$ times as high, and the flow goes the same way in $1/c^2$ of the time."""
    for c in (1e-4, 1e4):
        scaled = replace(DEEP, richness=3.0 * c, decay=0.3 * c**2)
        other = ak.solve(scaled, c * FEW, LABELS, particles=32)
        np.testing.assert_allclose(other.fitted, deep.fitted, atol=1e-3)
        assert other.stats["objective"] == pytest.approx(c**2 * deep.stats["objective"], rel=1e-5)
        np.testing.assert_allclose(
            other.kernels[-1], c**2 * deep.kernels[-1], atol=2e-3 * c**2 * deep.kernels[-1].max()
        )


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_scaled_targets(deep, activation):
    r"""Squared loss: $cy$ at $\gamma_0/c$ is $y$ at $\gamma_0$, whatever the activation."""
    limit = replace(DEEP, network=ak.MLP(2, activation))
    one = deep if activation == "relu" else ak.solve(limit, FEW, LABELS, particles=32)
    for c in (1e-4, 1e4):
        other = ak.solve(replace(limit, richness=3.0 / c), FEW, c * LABELS, particles=32)
        np.testing.assert_allclose(other.fitted / c, one.fitted, atol=1e-3)
        assert other.stats["objective"] == pytest.approx(one.stats["objective"], rel=1e-5)


@pytest.mark.long
def test_targets_too_strong_for_the_flow():
    """Reached from a smaller richness, and said so. There, inputs times c are richness times √c, to any place that is at rest."""
    strong = ak.solve(DEEP, FEW, 1e3 * LABELS, particles=32)
    assert strong.converged and strong.stats["raised"] and "too stiff to be followed" in strong.status
    np.testing.assert_allclose(strong.fitted, 1e3 * LABELS, rtol=1e-3)
    large = ak.solve(replace(DEEP, richness=30.0), 1e4 * FEW, LABELS, particles=32, init=strong)
    assert large.converged
    assert large.stats["objective"] == pytest.approx(strong.stats["objective"] / 1e4, rel=1e-4)


def test_inputs_too_large_for_tanh():
    limit = ak.ANTK(ak.MLP(2, "tanh"), richness=3.0, decay=0.3)
    solution = ak.solve(limit, 1e4 * FEW, LABELS, particles=32, steps=1500, throw=False)
    assert solution.converged or "inputs of order one" in solution.status
    assert np.isfinite(solution.fitted).all()


def test_a_flow_that_leaps_is_taken_back(monkeypatch):
    """Steps a thousand times too long end at infinity; shorter ones do not."""
    limit = ak.ANTK(ak.MLP(1, "tanh"), richness=3.0, decay=0.3)
    calm = ak.solve(limit, FEW, LABELS, particles=32)
    monkeypatch.setattr(rest_flow, "_STABLE", 200.0)
    wild = ak.solve(limit, FEW, LABELS, particles=32)
    assert wild.converged and "died" not in wild.status
    assert wild.stats["objective"] == pytest.approx(calm.stats["objective"], rel=0.05)


@pytest.mark.parametrize("above", [1e-4, 3e-3])
def test_outputs_grow_from_the_threshold(above):
    """In proportion to the distance from it, although the value gains as its square only."""
    rng = np.random.default_rng(0)
    points, labels = rng.normal(size=(12, 4)), np.sign(rng.normal(size=12))
    limit = ak.ANTK(ak.MLP(1), decay=0.1)
    edge = ak.collapse_threshold(limit, points, labels)
    solution = ak.solve(replace(limit, richness=edge * (1 + above)), points, labels)
    assert np.abs(solution.fitted).max() / above == pytest.approx(0.874, rel=0.01)
    assert solution.certificate < above**2 and solution.residual < 1e-4


def test_from_what_has_died():
    dead = ak.solve(replace(RELU, decay=100.0), X, Y)
    assert not np.any(dead.fitted)
    alive = ak.solve(RELU, X, Y, init=dead)
    assert alive.converged and alive.certificate < 1e-4
