"""Newton's method on the two-layer dual against quadrature, against the particle solver, and against itself."""

from __future__ import annotations

import numpy as np
import pytest

import adakern as ak
from adakern.checkpoints import Checkpoint
from adakern.extension import ParticleExtension
from adakern.limits.certificate import certificate
from adakern.precision import scope
from adakern.progress import Progress
from adakern.solvers import newton_dual
from adakern.solvers.warm import Start

pytestmark = pytest.mark.long


def solve(limit, X, y, *, seed=0, precision="float64", particles=8192, tolerance=0.1, steps=60, budget=2**30):
    with scope(precision):
        return newton_dual.solve(
            limit,
            np.asarray(X, float),
            np.asarray(y, float).reshape(len(X), -1),
            seed=seed,
            precision=precision,
            particles=particles,
            tolerance=tolerance,
            steps=steps,
            budget=budget,
            init=Start(),
            checkpoint=Checkpoint(None, {}),
            progress=Progress(),
        )


def tanh(richness=0.5, beta=10.0, activation="tanh", **numbers):
    return ak.ANBK(ak.MLP(1, activation), richness=richness, beta=beta, **numbers)


def test_one_point_is_exact_and_errors_are_honest(one_point):
    """Over seeds, (estimate - truth)/error has a variance of about one, and its mean, the bias, is small."""
    exact = one_point(2.0, 10.0, 0.625)[0]
    answers = [solve(tanh(2.0), [[1.0, -0.5]], [1.0], seed=seed) for seed in range(12)]
    scores = np.array([(a.kernel[0, 0] - exact) / a.kernel_errors[0][0, 0] for a in answers])
    assert all(a.converged for a in answers)
    assert 0.5 < np.sqrt(np.mean(scores**2)) < 1.7
    assert abs(scores.mean()) < 4 / np.sqrt(12)
    v = np.array([a.coefficients[0, 0] for a in answers])
    assert abs(v.mean() - 1 / (0.1 + exact)) < 4 * v.std(ddof=1) / np.sqrt(12)


@pytest.mark.long
def test_agrees_with_particles(points, find, apart):
    X, y = points
    answer = solve(tanh(1.0), X, y)
    assert answer.converged and answer.stats["relative_error"] < 0.05
    assert apart(find(richness=1.0, beta=10.0), answer) < 2.0
    # And it sees the difference to the lazy kernel.
    assert apart(ak.solve(tanh(0.0), X, y), answer) > 10


@pytest.mark.parametrize("loss", ["squared", "logistic", "softmax"])
def test_every_loss_meets_its_equations(points, loss):
    """v is the readout of its kernel, and the kernel that of the law tilted by v, by an independent audit; the certificate agrees."""
    X, signs = points
    y = np.eye(3)[np.arange(8) % 3] if loss == "softmax" else signs
    limit = tanh(0.3, loss=loss)
    answer = solve(limit, X, y)
    assert answer.converged, answer.status
    columns = y.reshape(8, -1)
    with scope("float64"):
        residual, report = limit.audit(X, columns, answer)
    noise = report["audit"]["noise"]["kernels"][0]
    assert report["audit"]["parts"]["readout"] < 1e-8
    assert residual < 3 * noise + 3 * answer.stats["relative_error"]
    gap, error = certificate(limit, X, columns, answer.coefficients)
    wrong, _ = certificate(limit, X, columns, 0.5 * answer.coefficients)
    assert abs(gap) < 4 * error + 0.02 * wrong
    assert wrong > 10 * error


def test_deterministic_in_the_seed(points):
    first, again, other = (solve(tanh(1.0), *points, seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(first.kernel, again.kernel) and np.array_equal(first.draws[0], again.draws[0])
    assert not np.array_equal(first.kernel, other.kernel)


def test_draws_are_of_the_law(points):
    X, y = points
    limit = tanh(1.0)
    answer = solve(limit, X, y, particles=8192)
    draws = answer.draws[0]
    assert draws.shape == (8 * 1024, 8) and answer.stats["groups"] == 8 and answer.stats["snapshots"] == 1
    with scope("float64"):
        extension = ParticleExtension(limit, X, answer.kernels, answer.draws, 8, "float64")
        blocks = extension.blocks(X)
        features = np.asarray(extension._features[0])
    kernels = np.einsum("gnp,gnq->gpq", features, features) / 1024
    error = kernels.std(axis=0, ddof=1) / np.sqrt(8)
    joint = np.hypot(np.linalg.norm(error), np.linalg.norm(answer.kernel_errors[0]))
    assert np.linalg.norm(kernels.mean(axis=0) - answer.kernel) < 2 * joint
    assert blocks.shape == (8, 8, 8)
    assert np.linalg.norm(blocks.mean(axis=0) - answer.kernel) < 2 * joint


def test_few_steps_and_many_samples(points):
    answer = solve(tanh(0.3), *points, particles=1024, tolerance=0.02)
    assert answer.converged and answer.stats["samples"] > 1024
    assert answer.stats["relative_error"] <= 0.02 and answer.stats["steps"] <= 8
    assert answer.stats["ess"] > 0.5
    small = solve(tanh(0.3), *points, tolerance=1e-4, budget=2**20)
    assert not small.converged and "give more memory" in small.status


def test_large_richness_is_refused(points):
    """ReLU neurons that are pulled beyond their prior, and a tilt that leaves no sample effective."""
    X, y = points
    beyond = solve(tanh(5.0, 50.0, "relu"), X, y)
    assert not beyond.converged and 'use solver="particles"' in beyond.status
    steep = solve(tanh(8.0, 50.0), X, y)
    assert not steep.converged and 'use solver="particles"' in steep.status
    assert steep.stats["ess"] < newton_dual.EFFECTIVE


def test_promising(points):
    X, y = points
    with scope("float64"):
        assert newton_dual.promising(tanh(0.3), X, y[:, None])
        assert not newton_dual.promising(tanh(8.0, 50.0), X, y[:, None])
        assert not newton_dual.promising(tanh(5.0, 50.0, "relu"), X, y[:, None])
        assert not newton_dual.promising(ak.ANBK(ak.MLP(2, "tanh"), richness=0.1), X, y[:, None])


def test_a_pilot_without_moments_is_not_promising(points, monkeypatch):
    """A few samples of a law that tilts beyond them: numbers overflow."""
    X, y = points
    monkeypatch.setattr(newton_dual, "_virial", lambda *_: np.full((3, 3), np.nan))
    with scope("float64"):
        assert not newton_dual.promising(tanh(0.3), X, y[:, None])


def test_conjugate_gradients_agree_with_factors(points, monkeypatch):
    X, signs = points
    for loss, y in (("squared", signs), ("softmax", np.eye(3)[np.arange(8) % 3])):
        dense = solve(tanh(0.3, loss=loss), X, y)
        with monkeypatch.context() as patch:
            patch.setattr(newton_dual, "DENSE", 0)
            iterative = solve(tanh(0.3, loss=loss), X, y)
        assert iterative.kernel == pytest.approx(dense.kernel, rel=1e-5, abs=1e-7)


def test_awkward_input():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(6, 2))
    X[3] = X[1]
    y = rng.normal(size=(6, 2))
    y[3] = y[1] + 0.5
    answer = solve(tanh(0.5), X, y)
    assert answer.converged and np.array_equal(answer.kernel[3], answer.kernel[1])
    assert answer.draws[0].shape[1] == 2  # fewer features than points
    constant = solve(tanh(0.5), X, np.zeros(6))
    assert constant.converged and not constant.coefficients.any()
    single = solve(tanh(0.5), X, y, precision="float32")
    assert single.kernel.dtype == np.float32 and single.converged
    assert np.linalg.norm(single.kernel - answer.kernel) < 3 * np.linalg.norm(answer.kernel_errors[0])
    with pytest.raises(ValueError, match="one hidden layer"):
        solve(ak.ANBK(ak.MLP(2, "tanh")), X, y)
