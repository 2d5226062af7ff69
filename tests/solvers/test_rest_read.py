"""Errors with readouts solved for: those of the outputs at rest, and a better dual point before."""

from __future__ import annotations

import numpy as np
import pytest

import adakern as ak
from adakern.precision import scope
from adakern.solvers import rest_convex, rest_gap, rest_read, rest_rounds, rest_step, rest_task

RNG = np.random.default_rng(5)
NETWORKS = {"MLP": (ak.MLP(1), (6,)), "CNN": (ak.CNN(1, window=2, stride=1), (3, 3, 1))}


def at_rest(kind, loss="squared", decay=0.1):
    """A problem with two equal images, and the law that solves it."""
    network, shape = NETWORKS[kind]
    X, y = RNG.normal(size=(10, *shape)), np.sign(RNG.normal(size=10))
    X[3], y[3] = X[7], 0.0 if loss == "squared" else y[7]
    limit = ak.ANTK(network, richness=1.0, decay=decay, loss=loss)
    with scope("float64"):
        task = rest_task.problem(limit, X, y[:, None], "float64", 1)
        end = rest_convex.newton(task, 0, 1e-4, rest_task.Meter(20_000, lambda *_: None))
        return task, rest_gap.convex_of(task), rest_convex._law(task, end.atoms)


@pytest.mark.parametrize(("kind", "loss"), [("MLP", "squared"), ("CNN", "squared"), ("MLP", "logistic")])
def test_at_rest_they_are_those_of_the_outputs(kind, loss):
    task, convex, law = at_rest(kind, loss)
    with scope("float64"):
        found = rest_read.errors(task, convex, law, 0.0)
        known = convex.error(rest_step.place(convex, law).outputs)
    assert found.summed == pytest.approx(known, abs=0.01 * np.abs(known).max())
    assert found.summed == pytest.approx(task.points.add(found.each))


@pytest.mark.parametrize("kind", ["MLP", "CNN"])
def test_cheap_neurons_that_are_too_long_leave_the_same_errors_and_a_small_gap(kind):
    """Outputs off by a percent are off by many times their errors: as a dual point these are worth nothing."""
    task, convex, law = at_rest(kind, decay=0.01)
    with scope("float64"):
        longer = rest_step.Law(1.01 * law.weights, law.readouts)
        ours, rest = (rest_read.errors(task, convex, one, 0.0).summed for one in (longer, law))
        theirs = convex.error(rest_step.place(convex, longer).outputs)
        gap, _ = rest_rounds.gap_of(task, convex, longer, 0.0, 1.0)
    scale = np.linalg.norm(rest)
    assert np.linalg.norm(ours - rest) < 0.03 * scale < np.linalg.norm(theirs - rest)
    assert gap < 0.1


def test_neurons_that_cost_next_to_nothing_leave_the_errors_of_their_outputs():
    """Rounding has made the matrix indefinite: one dimension, many points."""
    x = RNG.normal(size=(30, 1))
    limit = ak.ANTK(ak.MLP(1), richness=1.0, decay=1e-16)
    with scope("float64"):
        task = rest_task.problem(limit, x, np.sign(RNG.normal(size=(30, 1))), "float64", 1)
        convex = rest_gap.convex_of(task)
        law = rest_step.Law(1e3 * np.sign(RNG.normal(size=(4, 1))), np.ones((4, 1)))
        found = rest_read.errors(task, convex, law, 0.0)
        known = convex.error(rest_step.place(convex, law).outputs)
    assert np.isfinite(found.summed).all() and found.summed == pytest.approx(known)
