"""One small problem for all tests of the particle solver: shapes are shared, so that JAX compiles few."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, optimize

import adakern as ak


@pytest.fixture(scope="session")
def points():
    """Eight inputs of ten features, and labels that no linear function gives."""
    X = np.random.default_rng(5).normal(size=(8, 10))
    return X, np.sign(X[:, 0] * X[:, 1])


@pytest.fixture(scope="session")
def find(points):
    """Solutions of an ANBK on `points`, each solved once however many tests of a worker look at it."""
    found: dict = {}

    def find(depth=1, activation="tanh", *, seed=0, particles=256, tolerance=0.03, fresh=False, **problem):
        names = ("steps", "memory", "init", "checkpoint", "throw", "precision")
        options = {name: problem.pop(name) for name in names if name in problem}
        limit = ak.ANBK(ak.MLP(depth, activation), **problem)
        key = (limit, seed, particles, tolerance)
        if options or fresh:
            return ak.solve(
                limit, *points, solver="particles", seed=seed, particles=particles, tolerance=tolerance, **options
            )
        if key not in found:
            found[key] = ak.solve(
                limit, *points, solver="particles", seed=seed, particles=particles, tolerance=tolerance
            )
        return found[key]

    return find


@pytest.fixture(scope="session")
def apart():
    """How many joint standard errors two answers' kernels are apart, as whole matrices; about 1 if both are right."""

    def apart(first, second, order=slice(None)):
        distances = []
        for a, b, e, g in zip(first.kernels, second.kernels, first.kernel_errors, second.kernel_errors, strict=True):
            joint = np.hypot(np.linalg.norm(e), np.linalg.norm(g))
            distances.append(np.linalg.norm(a - b[order][:, order]) / joint)
        return max(distances)

    return apart


@pytest.fixture(scope="session")
def one_point():
    """Exact aNBK of one point, L = 1, tanh: Φ by a scalar fixed point, and the distribution of h by quadrature."""

    def exact(richness, beta, variance, target=1.0):
        def density(h, v):
            return np.exp(-(h**2) / (2 * variance) + 0.5 * richness**2 * v**2 * np.tanh(h) ** 2)

        def second(v):
            norm = integrate.quad(density, -12, 12, args=(v,))[0]
            return integrate.quad(lambda h: np.tanh(h) ** 2 * density(h, v), -12, 12)[0] / norm

        kernel = optimize.brentq(lambda k: second(target / (1 / beta + k)) - k, 1e-3, 1.0)
        v = target / (1 / beta + kernel)
        grid = np.linspace(-12, 12, 4001)
        cumulative = integrate.cumulative_trapezoid(density(grid, v), grid, initial=0)
        return kernel, lambda h: np.interp(h, grid, cumulative / cumulative[-1])

    return exact
