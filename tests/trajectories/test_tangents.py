"""Regression with the tangent kernel of a moment of training."""

import numpy as np
import pytest

import adakern as ak
from adakern import inputs
from adakern.precision import scope
from adakern.trajectories import tangents

RNG = np.random.default_rng(5)
X, NEW = RNG.standard_normal((5, 8)), RNG.standard_normal((7, 8))
Y = np.array([1.0, -1.0, 1.0, -1.0, 1.0])


def follow(activation, times, **options):
    limit = ak.ANTK(ak.MLP(1, activation), richness=1.0, decay=0.0)
    return ak.dynamics(limit, X, Y, times, **({"neurons": 4096, "replicas": 6, "accuracy": 1e-4} | options))


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_at_the_start_it_is_the_ntk(activation):
    """New points have a part outside the span of five training points, which is averaged over."""
    f, error = follow(activation, [0.0]).tangent_regression(NEW)
    ntk = ak.solve(ak.NTK(ak.MLP(1, activation)), X, Y).predict(NEW)
    assert (np.abs(f - ntk) < 6 * error).all() and error.max() < 0.1


def test_it_meets_the_targets_and_slopes_are_those_of_the_trajectory():
    """In a rich network neurons slide along kinks: with slopes of 0 or 1 the kernel of 50 images was 0.7 % off."""
    way = follow("relu", [1.0, 6.0], neurons=512, replicas=2)
    np.testing.assert_allclose(way.tangent_regression(X, 1.0)[0], Y, atol=0.02)  # as new points they have sharp kinks
    rows = inputs.features(way.limit.network, X)
    with scope("float64"):
        found = tangents.neurons(
            way.limit.network.activation,
            rows,
            rows,
            way.weights[-1].astype(float),
            way.readouts[-1, ..., 0].astype(float),
            way.basis,
            way.stats["rounded_kink"],
        )
    own, cross = found.kernels()
    theirs = way.tangent_kernels[-1]
    assert np.linalg.norm(own - theirs) < 1e-4 * np.linalg.norm(theirs)
    assert np.linalg.norm(cross - theirs) < 0.02 * np.linalg.norm(theirs)


def test_points_given_twice():
    twice, y = np.concatenate([X, X[:1]]), np.append(Y, Y[0])
    limit = ak.ANTK(ak.MLP(1, "tanh"), richness=1.0, decay=0.0)
    way = ak.dynamics(limit, twice, y, [0.0], neurons=64, replicas=2, accuracy=1e-2)
    assert (np.abs(way.tangent_regression(twice)[0] - y) < 1e-6).all()


def test_what_has_no_such_kernel_is_refused():
    way = follow("tanh", [0.1], neurons=16, replicas=1, accuracy=1e-2)
    assert np.isnan(way.tangent_regression(NEW)[1]).all()
    with pytest.raises(ValueError, match="time must be one of the times"):
        way.tangent_regression(NEW, 0.2)
    with pytest.raises(ValueError, match="X must have"):
        way.tangent_regression(NEW[:, :3])
    bare = follow("tanh", [0.1], neurons=16, replicas=1, accuracy=1e-2, keep=False)
    with pytest.raises(ValueError, match="call dynamics with keep=True"):
        bare.tangent_regression(NEW)
    limit = ak.ANTK(ak.CNN(1, 2, 2), richness=1.0)
    images = ak.dynamics(limit, X[:, :4].reshape(5, 2, 2, 1), Y, [0.1], neurons=16, replicas=1, accuracy=1e-2)
    with pytest.raises(ValueError, match="an MLP with one hidden layer"):
        images.tangent_regression(X[:, :4].reshape(5, 2, 2, 1))
