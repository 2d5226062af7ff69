"""Newton's method on neurons of one hidden layer: its step against a dense one, stationarity, brute force, kinks, awkward input."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

import adakern as ak
from adakern.precision import scope
from adakern.solvers import atoms, rest_convex, rest_gap, rest_newton, rest_rounds, rest_step, rest_task


def convex(points=12, rank=7, outputs=1, price=0.3, seed=0):
    rng = np.random.default_rng(seed)
    root, y = rng.normal(size=(points, rank)), rng.normal(size=(points, outputs))
    return rest_step.Convex(
        root,
        root @ root.T,
        np.linalg.norm(root, axis=1),
        (0.0, 1.0),
        price,
        np.zeros((points, outputs)),
        lambda s: 0.5 * float(np.sum((y - s) ** 2)),
        lambda s: y - s,
        lambda s: np.broadcast_to(np.eye(outputs), (points, outputs, outputs)).copy(),
    )


def law(task, count=4, seed=1):
    rng = np.random.default_rng(seed)
    readouts = rng.normal(size=(count, task.zero.shape[1]))
    weights = rng.normal(size=(count, task.root.shape[1]))
    return rest_step.Law(weights, readouts / np.linalg.norm(readouts, axis=1, keepdims=True))


def problem(X, y, richness=1.0, decay=0.1, loss="squared"):
    limit = ak.ANTK(ak.MLP(1, "relu"), richness, decay, loss=loss)
    with scope("float64"):
        return rest_task.problem(limit, X, y, "float64", 1)


def solved(task, tolerance=1e-5, seed=0):
    meter = rest_task.Meter(4000, lambda *_: None)
    with scope("float64"):
        return rest_convex.newton(task, seed, tolerance, meter)


def test_the_step_is_that_of_the_whole_matrix():
    """Every point counts, blocks and Gauss-Newton term written out."""
    task, damping = convex(), 0.1
    here = law(task)
    at = rest_step.place(task, here, 0.8, 0.3)
    move, _, gain = rest_step.direction(task, here, at, damping)
    signs, delta = here.readouts[:, 0], task.error(at.outputs)[:, 0]
    units, rank = here.weights / at.sizes[:, None], task.root.shape[1]
    jacobians = [
        signs[k] * (at.slopes[k][:, None] * task.root + np.outer(at.growth[k], units[k])) for k in range(len(signs))
    ]
    jacobian = np.concatenate(jacobians, axis=1)
    matrix = jacobian.T @ jacobian
    gradient = -jacobian.T @ delta + task.price * units.ravel()
    for k in range(len(signs)):
        held = np.maximum(-signs[k] * delta * at.bend[k], 0.0)
        length = (1 + damping) * np.eye(rank) - np.outer(units[k], units[k])
        own = slice(k * rank, (k + 1) * rank)
        matrix[own, own] += task.price / at.sizes[k] * length + task.root.T @ (held[:, None] * task.root)
    np.testing.assert_allclose(move.ravel(), -np.linalg.solve(matrix, gradient), rtol=1e-6)
    assert gain == pytest.approx(-gradient @ move.ravel(), rel=1e-8)


@pytest.mark.parametrize("outputs", [1, 3])
def test_both_ways_to_a_step_agree(outputs, monkeypatch):
    task = convex(outputs=outputs)
    here = law(task)
    at = rest_step.place(task, here, 0.8, 0.3)
    written_out = rest_step.direction(task, here, at, 0.1)
    monkeypatch.setattr(rest_step, "_SMALL", 0)
    for one, other in zip(written_out, rest_step.direction(task, here, at, 0.1), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("tailed", [True, False])
def test_what_a_step_is_to_gain_is_the_slope_along_it(outputs, tailed):
    task = convex(outputs=outputs)
    here, floor = law(task), 0.3 if tailed else 0.0
    at = rest_step.place(task, here, 0.8, floor, tailed)
    move, turn, gain = rest_step.direction(task, here, at, 0.1)
    sides = [rest_step.place(task, rest_newton._moved(here, move, turn, e), 0.8, floor, tailed) for e in (1e-6, -1e-6)]
    assert gain > 0
    assert (sides[1].value - sides[0].value) / 2e-6 == pytest.approx(gain, rel=1e-5)


@pytest.mark.parametrize("outputs", [1, 2])
def test_stationary_and_quick(outputs):
    """Near the solution: gradients vanish to 1e-8 within sixty steps."""
    rng = np.random.default_rng(5)
    problem_ = problem(rng.normal(size=(8, 3)), rng.normal(size=(8, outputs)))
    with scope("float64"):
        task, begin = rest_gap.convex_of(problem_), rest_convex._law(problem_, solved(problem_, 1e-4).atoms)
        rest = rest_newton.descend(task, begin, angles=(1e-3, 1e-3), goal=1e-21, steps=60)
        floor = rest_newton._FLOOR * 1e-3 * float(np.linalg.norm(rest.law.weights, axis=1).mean())
        at = rest_step.place(task, rest.law, 1e-3, floor)
        pulls = rest.law.readouts @ task.error(at.outputs).T
    units = rest.law.weights / at.sizes[:, None]
    downhill = (pulls * at.slopes) @ task.root + (np.sum(pulls * at.growth, axis=1) - task.price)[:, None] * units
    assert np.abs(downhill).max() < 1e-8


def brute(task, count=24, seed=3):
    """The value of many neurons, downhill from random places."""
    X, y = task.shape.root, task.y
    limit = task.limit
    price = np.sqrt(limit.decays[0] * limit.decays[1]) / limit.richness
    rng, member = np.random.default_rng(seed), task.points.member
    shape = (count, X.shape[1]), (count, y.shape[1])

    def function(z):
        w, a = z[: count * X.shape[1]].reshape(shape[0]), z[count * X.shape[1] :].reshape(shape[1])
        h = w @ X.T
        error = (np.maximum(h, 0).T @ a)[member] - y
        over = task.points.add(error)
        value = 0.5 * np.sum(error**2) + 0.5 * price * np.sum(z**2)
        gw = ((a @ over.T) * (h > 0)) @ X + price * w
        return value, np.concatenate([gw.ravel(), (np.maximum(h, 0) @ over + price * a).ravel()])

    starts = [rng.normal(size=count * (X.shape[1] + y.shape[1])) * 0.5 for _ in range(4)]
    return min(minimize(function, z, jac=True, method="L-BFGS-B", options={"maxiter": 3000}).fun for z in starts)


@pytest.mark.parametrize("outputs", [1, 2])
def test_as_low_as_brute_force(outputs):
    rng = np.random.default_rng(5)
    task = problem(rng.normal(size=(8, 3)), rng.normal(size=(8, outputs)))
    end = solved(task)
    assert end.gap.relative < 1e-5
    assert end.objective == pytest.approx(end.gap.primal * task.limit.richness**2, rel=1e-5)
    lowest = brute(task)
    assert end.gap.primal <= lowest * (1 + 1e-5)
    assert end.gap.primal >= lowest * (1 - 1e-2)  # what brute force, which sticks at kinks, may miss
    assert end.relative < 1e-4


def test_points_in_a_corner_have_slopes_between():
    rng = np.random.default_rng(6)
    task = problem(rng.normal(size=(12, 3)), rng.normal(size=(12, 1)))
    end = solved(task)
    slopes = atoms.layers(task.shape, end.atoms)[0].slopes
    between = (slopes > 0.01) & (slopes < 0.99)
    assert between.any()
    assert end.gap.relative < 1e-5


def test_equal_points_count_twice():
    rng = np.random.default_rng(7)
    X, y = rng.normal(size=(6, 3)), rng.normal(size=(6, 1))
    twice = problem(np.concatenate([X, X[:2]]), np.concatenate([y, y[:2]]))
    end = solved(twice)
    assert end.gap.relative < 1e-5
    assert end.gap.primal <= brute(twice) * (1 + 1e-5)


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_other_losses(loss):
    rng = np.random.default_rng(8)
    X, label = rng.normal(size=(8, 3)), rng.integers(2, size=8)
    y = np.where(label, 1.0, -1.0)[:, None] if loss == "logistic" else np.eye(2)[label]
    assert solved(problem(X, y, loss=loss), 1e-5).gap.relative < 1e-5


def test_goes_on_from_atoms():
    rng = np.random.default_rng(9)
    task = problem(rng.normal(size=(8, 3)), rng.normal(size=(8, 1)))
    first = solved(task)
    meter = rest_task.Meter(4000, lambda *_: None)
    with scope("float64"):
        again = rest_convex.newton(task, 1, 1e-5, meter, first.atoms)
    assert again.gap.primal == pytest.approx(first.gap.primal, rel=1e-5)
    assert again.rounds <= first.rounds


def test_targets_nearly_met():
    """A price of 1e-3: errors are a small part of the value."""
    rng = np.random.default_rng(11)
    end = solved(problem(rng.normal(size=(8, 3)), rng.normal(size=(8, 1)), 10.0, 1e-2))
    assert end.gap.relative < 1e-5


def test_a_newcomer_beside_a_neuron_that_pulls_the_other_way_joins():
    task = convex(rank=2, seed=3)
    here = law(task, 1)
    u = here.weights[0] / np.linalg.norm(here.weights[0])
    fields = np.maximum(task.root @ u, 0.0)[:, None]
    assert rest_rounds.taken(task, here, u, fields * here.readouts[0], 0.01)
    assert not rest_rounds.taken(task, here, u, -fields * here.readouts[0], 0.01)
