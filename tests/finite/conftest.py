"""Small data and runs that the tests of finite-width networks share: compiling costs far more than running."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import adakern as ak


@pytest.fixture(scope="session")
def points():
    """X (5, 7), y (5,), three new points and their labels. Fewer points than features: first-layer weights are projected."""
    rng = np.random.default_rng(11)
    X, X_new = rng.standard_normal((5, 7)), rng.standard_normal((3, 7))
    return X, np.sin(2 * X[:, 0]), X_new, np.sin(2 * X_new[:, 0])


@pytest.fixture(scope="session")
def flow(points):
    """Gradient flow of one small network; options can be changed without compiling anew."""
    X, y, _, _ = points
    options = {"width": 24, "decay": 0.1, "time": 2.0, "precision": "float64"}

    @functools.wraps(ak.finite.gradient_flow)
    def run(network=ak.MLP(1, "tanh"), X=X, y=y, **changed):  # noqa: B008
        return ak.finite.gradient_flow(network, X, y, **{**options, **changed})

    return run


@pytest.fixture(scope="session")
def sample(points):
    """Langevin sampling of one small network. Step and times make burn-in and averages share what is compiled: blocks of two."""
    X, y, X_new, y_new = points
    options = {
        "width": 48,
        "beta": 10.0,
        "time": 9.4,
        "burn_in": 9.4 / 3,
        "step": 0.05,
        "precision": "float64",
        "throw": False,
        "X_test": X_new,
        "y_test": y_new,
    }

    @functools.wraps(ak.finite.langevin)
    def run(network=ak.MLP(1, "tanh"), X=X, y=y, **changed):  # noqa: B008
        return ak.finite.langevin(network, X, y, **{**options, **changed})

    return run


@pytest.fixture(scope="session")
def flowed(flow, points):
    return flow(times=[0.0, 0.5], X_test=points[2], y_test=points[3])


@pytest.fixture(scope="session")
def sampled(sample):
    return sample()


@pytest.fixture(scope="session")
def images():
    """Images (4, 5, 4, 2), targets (4, 3) and three new images, for a CNN of two layers with oblong windows."""
    rng = np.random.default_rng(12)
    X, X_new = rng.standard_normal((4, 5, 4, 2)), rng.standard_normal((3, 5, 4, 2))
    return X, rng.standard_normal((4, 3)), X_new


@pytest.fixture(scope="session")
def cnn():
    return ak.CNN(2, window=((3, 2), (2, 1)), stride=((1, 1), (1, 2)), activation="tanh")
