"""Very many unit neurons with their best masses: the same place as by Newton's method, where it is taken, and what interrupts it."""

from __future__ import annotations

import numpy as np
import pytest

import adakern as ak
from adakern.limits import unit_search
from adakern.precision import scope
from adakern.solvers import rest_columns, rest_gap, rest_task

RNG = np.random.default_rng(3)
IMAGES, LABELS = RNG.normal(size=(24, 4, 4, 1)), np.sign(RNG.normal(size=24))
NET = ak.CNN(1, window=2, stride=1)  # 9 positions: 216 rows of 4 dimensions
LIMIT = ak.ANTK(NET, 2.0, 0.1)


def task_of(limit=LIMIT, X=IMAGES, y=LABELS):
    with scope("float64"):
        return rest_task.problem(limit, X, y.reshape(len(X), -1), "float64", 1)


def serves(task):
    with scope("float64"):
        return rest_columns.serves(task, rest_gap.convex_of(task), 0)


@pytest.fixture
def large(monkeypatch, plain):  # which is solved before
    monkeypatch.setattr(unit_search, "_LARGE", 1e3)


@pytest.fixture(scope="module")
def plain():
    """By Newton's method from what went downhill before."""
    return ak.solve(LIMIT, IMAGES, LABELS, tolerance=1e-3)


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4])
def test_the_same_place_as_by_newtons_method(plain, tolerance, monkeypatch):
    calls, begun = [], rest_columns.begun
    monkeypatch.setattr(unit_search, "_LARGE", 1e3)
    monkeypatch.setattr(rest_columns, "begun", lambda *given: calls.append(1) or begun(*given))
    along = ak.solve(LIMIT, IMAGES, LABELS, tolerance=tolerance)
    assert calls and plain.converged and along.converged
    assert along.certificate <= tolerance
    # Both are above the least value by at most their gap.
    assert along.stats["objective"] == pytest.approx(plain.stats["objective"], rel=tolerance + 1e-3)


def test_the_same_seed_gives_the_same_answer(large):
    first, again = (ak.solve(LIMIT, IMAGES, LABELS, tolerance=1e-2, seed=4) for _ in range(2))
    np.testing.assert_array_equal(first.kernel, again.kernel)


def test_equal_images_count_each(large):
    """Twice the same image with different targets is one image with their mean, at twice the weight."""
    X, y = np.concatenate([IMAGES, IMAGES[:2]]), np.concatenate([LABELS, -LABELS[:2]])
    found = ak.solve(LIMIT, X, y, tolerance=1e-2)
    assert found.converged
    np.testing.assert_allclose(found.fitted[:2], found.fitted[-2:], rtol=1e-10)
    np.testing.assert_allclose(found.errors, y - found.fitted, atol=1e-8)


def test_where_it_is_taken(monkeypatch):
    assert not serves(task_of())  # few images
    monkeypatch.setattr(unit_search, "_LARGE", 1e3)
    assert serves(task_of())
    assert not serves(task_of(ak.ANTK(NET, 2.0, 0.1, loss="logistic")))
    assert not serves(task_of(ak.ANTK(ak.CNN(1, window=4), 2.0, 0.1)))  # as many dimensions as a point has
    assert not serves(task_of(ak.ANTK(ak.CNN(1, window=2, activation="linear"), 2.0, 0.1)))
    assert not serves(task_of(ak.ANTK(NET, 2.0, 100.0)))  # few neurons


def test_steps_bound_it(large):
    short = ak.solve(LIMIT, IMAGES, LABELS, tolerance=1e-4, steps=340, throw=False)
    assert not short.converged and np.isfinite(short.fitted).all()
    assert short.stats["steps"] < 420  # a round, or a line search, may look a little farther


def test_an_interrupted_solve_goes_on_from_its_columns(plain, large, tmp_path, monkeypatch):
    options, sought = {"tolerance": 1e-4, "checkpoint": tmp_path / "run.checkpoint"}, rest_columns._sought
    monkeypatch.setattr(rest_columns, "MANY", 2)
    calls, descended = [], rest_columns.rest_wide.descended

    def stopping(*given):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return sought(*given)

    monkeypatch.setattr(rest_columns, "_sought", stopping)
    with pytest.raises(KeyboardInterrupt):
        ak.solve(LIMIT, IMAGES, LABELS, **options)
    monkeypatch.setattr(rest_columns, "_sought", sought)
    monkeypatch.setattr(rest_columns.rest_wide, "descended", None)  # is not called
    rested = ak.solve(LIMIT, IMAGES, LABELS, **options)
    monkeypatch.setattr(rest_columns.rest_wide, "descended", descended)
    assert rested.converged
    assert rested.stats["objective"] == pytest.approx(plain.stats["objective"], rel=2e-3)


def test_joining_keeps_each_once():
    units = np.eye(3)[:2]
    new = np.array([[1.0, 1e-6, 0.0], [0.0, 0.0, 1.0], [0.0, 1e-6, 1.0]])
    both = rest_columns._joined(rest_columns.Columns(units, np.array([1.0, 3.0])), new, 1e-9)
    np.testing.assert_array_equal(both.units, np.eye(3))
    np.testing.assert_allclose(both.masses, [1.0, 3.0, 2e-3])
