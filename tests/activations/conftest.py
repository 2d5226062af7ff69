"""Activations are called inside a precision scope; here it is float64 throughout unless a test says otherwise."""

from __future__ import annotations

import numpy as np
import pytest

from adakern.precision import scope

VARIANCES = np.array([0.01, 0.3, 1.0, 5.0, 30.0])
CORRELATIONS = np.array([-1, -1 + 1e-12, -1 + 1e-8, -0.9, -0.35, 0, 0.2, 0.7, 1 - 1e-8, 1 - 1e-12, 1.0])


@pytest.fixture(autouse=True)
def float64():
    with scope("float64"):
        yield


@pytest.fixture(scope="session")
def pairs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """a, b, c of every pair of `VARIANCES` at every one of `CORRELATIONS`."""
    a, b, rho = (part.ravel() for part in np.meshgrid(VARIANCES, VARIANCES, CORRELATIONS, indexing="ij"))
    return a, b, rho * np.sqrt(a * b)
