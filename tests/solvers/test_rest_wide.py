"""Many neurons downhill before Newton's method: close to the dual value, within the steps allowed, and where it is taken."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

import adakern as ak
from adakern.limits import unit_search, unit_starts
from adakern.precision import scope
from adakern.solvers import rest_gap, rest_task, rest_wide
from adakern.solvers.atoms import Atoms

RNG = np.random.default_rng(3)
IMAGES, LABELS = RNG.normal(size=(24, 4, 4, 1)), np.sign(RNG.normal(size=24))
CNN = ak.CNN(1, window=2, stride=1)  # 9 positions: 216 outputs of images and positions


def problem(network, X, y, loss="squared", decay=0.3):
    with scope("float64"):
        return rest_task.problem(ak.ANTK(network, 2.0, decay, loss=loss), X, y.reshape(len(X), -1), "float64", 1)


def descended(task, steps=4000):
    meter = rest_task.Meter(steps, lambda *_: None)
    return rest_wide.descended(task, 0, meter), meter


@pytest.mark.parametrize(("network", "loss"), [(CNN, "squared"), (ak.MLP(1), "squared"), (ak.MLP(1), "logistic")])
def test_its_value_is_close_to_the_dual_one(network, loss):
    """Weak duality bounds what is missing."""
    task = problem(network, IMAGES if network is CNN else IMAGES.reshape(len(IMAGES), -1), LABELS, loss)
    found, meter = descended(task)
    with scope("float64"):
        sharp = replace(found, angle=0.0)
        signal = rest_task.factor(task, rest_task.summed(task, rest_task.errors(task, sharp)))
        starts = unit_starts.default_starts(task.shape.root, signal, 64, jax.random.key(1))
        pulls = unit_search.search(task.limit.network.activation, task.shape.root, signal, starts, exact=False)
        price = np.sqrt(np.prod(task.limit.decays)) / task.limit.richness
        gap = rest_gap.certificate(task, sharp, float(pulls.values.max()) / price)
    assert 0 < gap.relative < 0.1
    assert found.angle == rest_wide.ANGLES[-1][0] and meter.used > 100


def test_steps_bound_it():
    _, meter = descended(problem(CNN, IMAGES, LABELS), steps=70)
    assert meter.used <= 75  # a line search may look a little farther


def wide(task):
    with scope("float64"):
        return rest_wide.serves(task, rest_gap.convex_of(task), 0)


def test_it_is_taken_where_points_are_many_and_readouts_are_quickly_solved_for():
    flat, onehot = IMAGES.reshape(24, -1), np.eye(10)[np.arange(24) % 10]
    assert wide(problem(CNN, IMAGES, LABELS))
    assert wide(problem(ak.MLP(1), flat, onehot))  # 240 outputs
    assert not wide(problem(ak.MLP(1), flat, LABELS))
    assert not wide(problem(ak.MLP(1), flat, onehot, "softmax"))
    assert not wide(problem(ak.MLP(1, activation="linear"), flat, onehot))


def test_close_to_the_threshold_outputs_are_small_and_not_zero():
    """There the value hardly knows whether there are neurons at all, and many of them would shrink without being sorted."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(210, 5))
    y = np.sign(X[:, 0] * X[:, 1] + 0.3 * rng.normal(size=210))
    edge = ak.collapse_threshold(ak.ANTK(ak.MLP(1), 1.0, 1.0), X, y)
    near = ak.solve(ak.ANTK(ak.MLP(1), 1.0001 * edge, 1.0), X, y, tolerance=1e-3)
    assert near.converged and near.stats["neurons"] == [1]
    assert np.linalg.norm(near.fitted) > 1e-4


def test_nothing_at_all_has_a_gap():
    """Neurons of length zero, as merging leaves them where everything dies."""
    task = problem(CNN, IMAGES, LABELS)
    nothing = Atoms((np.zeros((1, task.shape.root.shape[1])),), (np.ones(1),), 1e-5)
    with scope("float64"):
        end, _ = rest_gap.measured(task, rest_gap.convex_of(task), (nothing, 1.0, 0.0), 0, 0, 0.1, 1)
    assert end.gap.relative > 0.5


def test_a_cnn_begins_from_a_trained_network():
    """The neurons of a run, and nothing known yet of directions that are missing."""
    limit = ak.ANTK(ak.CNN(1, window=2), 2.0, 0.3)
    X, y = IMAGES[:4, :3, :3], LABELS[:4]
    run = ak.finite.gradient_flow(limit.network, X, y, richness=2.0, decay=0.3, width=16, time=5.0)
    warm, cold = (ak.solve(limit, X, y, init=init, tolerance=0.01) for init in (run, None))
    assert warm.converged
    assert warm.stats["objective"] == pytest.approx(cold.stats["objective"], rel=0.01)
