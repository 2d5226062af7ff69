"""Neurons whose price falls: the same answer as from nothing, and where it is taken."""

from __future__ import annotations

import numpy as np
import pytest

import adakern as ak
from adakern.limits import unit_search
from adakern.precision import scope
from adakern.solvers import rest, rest_gap, rest_path, rest_search, rest_task


def kept(law, angle):
    return law.weights, angle


def problem(loss="squared", decay=0.01, points=24, dimension=8, outputs=1, network=None):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(points, dimension)), np.sign(rng.normal(size=(points, outputs)))
    limit = ak.ANTK(network or ak.MLP(1), richness=1.0, decay=decay, loss=loss)
    return limit, X, y


def task_of(*given, **options):
    with scope("float64"):
        limit, X, y = problem(*given, **options)
        return rest_task.problem(limit, X, y, "float64", 1)


def serves(task):
    with scope("float64"):
        return rest_path.serves(task, rest_gap.convex_of(task), 0)


@pytest.fixture
def large(monkeypatch):
    monkeypatch.setattr(unit_search, "_LARGE", 50.0)


def test_the_same_place_as_from_nothing(monkeypatch):
    limit, X, y = problem()
    plain = ak.solve(limit, X, y[:, 0], tolerance=1e-3)
    calls = []
    with monkeypatch.context() as patch:
        patch.setattr(unit_search, "_LARGE", 50.0)
        follow = rest_path.approached
        patch.setattr(rest_path, "approached", lambda *given: calls.append(1) or follow(*given))
        along = ak.solve(limit, X, y[:, 0], tolerance=1e-3)
    assert calls and along.converged and plain.converged
    assert along.certificate <= 1e-3
    # Both are above the least value by at most their gap.
    assert along.stats["objective"] == pytest.approx(plain.stats["objective"], rel=1e-3)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_it_arrives_at_the_price_asked_for(loss, monkeypatch):
    """From a higher one, down to it: neurons that fit better than nothing by far."""
    task, prices, search = task_of(loss), [], rest_search.pulls
    monkeypatch.setattr(rest_search, "pulls", lambda *given: prices.append(given[1].price) or search(*given))
    with scope("float64"):
        convex, told = rest_gap.convex_of(task), []
        meter = rest_task.Meter(10_000, lambda note, parts: told.append(note))
        law, angle, known = rest_path.approached(task, convex, 0, meter, kept)
        seen = list(prices)
        quiet = rest_task.Meter(10_000, lambda note, parts: None)
        again = rest_path.approached(task, convex, 0, quiet, kept).law
        outputs = convex.pool.rows(convex.features(law.weights)).T @ law.readouts
        value = convex.value(outputs) + convex.price * np.linalg.norm(law.weights, axis=1).sum()
    assert value < 0.2 * convex.value(convex.zero)
    np.testing.assert_array_equal(law.weights, again.weights)
    assert 0 < angle <= 0.03 and known.shape[1] == convex.root.shape[1]
    assert meter.used == len(told) > 0
    assert seen == sorted(seen, reverse=True) and seen[0] > 10 * convex.price
    assert seen[-1] == convex.price


@pytest.mark.usefixtures("large")
def test_steps_bound_it():
    task = task_of()
    with scope("float64"):
        meter = rest_task.Meter(3, lambda note, parts: None)
        law, _, _ = rest_path.approached(task, rest_gap.convex_of(task), 0, meter, kept)
    assert meter.used == 3 and len(law.weights)
    limit, X, y = problem()
    short = ak.solve(limit, X, y[:, 0], steps=5, throw=False)
    assert not short.converged and np.isfinite(short.fitted).all()


def test_where_it_is_taken(monkeypatch):
    assert not serves(task_of())  # few points
    monkeypatch.setattr(unit_search, "_LARGE", 50.0)
    assert serves(task_of())
    assert serves(task_of("logistic"))
    assert not serves(task_of(outputs=2))  # readouts of several outputs
    assert not serves(task_of(decay=30.0))  # few neurons
    assert not serves(task_of(network=ak.MLP(1, activation="linear")))


@pytest.mark.usefixtures("large")
def test_an_interrupted_path_is_not_gone_again(tmp_path, monkeypatch):
    """What Ctrl-C leaves in the middle of it is where the solve goes on, with open corners, to the same value."""
    monkeypatch.setattr(rest, "_starts", lambda *_: 1)
    limit, X, y = problem()
    options = {"tolerance": 1e-3, "checkpoint": tmp_path / "run.checkpoint"}
    whole, descend = ak.solve(limit, X, y[:, 0], tolerance=1e-3), rest_path.rest_newton.descend
    calls = []

    def stopping(*given, **named):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return descend(*given, **named)

    monkeypatch.setattr(rest_path.rest_newton, "descend", stopping)
    with pytest.raises(KeyboardInterrupt):
        ak.solve(limit, X, y[:, 0], **options)
    monkeypatch.setattr(rest_path.rest_newton, "descend", descend)
    monkeypatch.setattr(rest_path, "approached", None)  # is not called
    rested = ak.solve(limit, X, y[:, 0], **options)
    assert rested.converged
    assert rested.stats["objective"] == pytest.approx(whole.stats["objective"], rel=1e-3)
    assert rested.stats["steps"] < 4 * whole.stats["steps"]
