"""Conjugate kernels by integration by parts, against closed forms and against their definition with its inverse."""

import numpy as np
import pytest

from adakern import activations
from adakern.limits import sites
from adakern.precision import scope
from adakern.solvers import by_parts

KERNEL = np.array([[1.0, 0.5, 0.2], [0.5, 1.5, -0.3], [0.2, -0.3, 0.8]])
TOP = -0.3 * np.outer([1.0, -1.0, 0.5], [1.0, -1.0, 0.5])
DECAY = 1.5


def tilted(phi, count, seed):
    """White neurons of the law that the top dual makes, from many of the prior, and their covariance."""
    rng = np.random.default_rng(seed)
    root = np.linalg.cholesky(KERNEL / DECAY)
    white = rng.standard_normal((count, 3))
    h = white @ root.T
    weights = np.exp(-0.5 * np.einsum("ni,ij,nj->n", phi(h), TOP, phi(h)))
    weights /= weights.sum()
    places = np.searchsorted(np.cumsum(weights), (np.arange(count) + rng.random()) / count)
    return white[np.minimum(places, count - 1)], (h * weights[:, None]).T @ h


def found(name, sample, **changes):
    arguments = {"kernels": [KERNEL], "top": TOP, "draws": [sample], "decays": [DECAY]} | changes
    with scope("float64"):
        return by_parts.duals(activations.get(name), sites.POINTS, **arguments)


@pytest.mark.parametrize("name, phi", [("tanh", np.tanh), ("relu", lambda h: np.maximum(h, 0))])
def test_it_is_the_definition_without_its_inverse(name, phi):
    """(I − C⁻¹⟨hhᵀ⟩)C⁻¹/λ of as many draws, kinks included; twelve samples say how far it may be off."""
    inverse = np.linalg.inv(KERNEL / DECAY)
    pairs = [tilted(phi, 200_000, seed) for seed in range(12)]
    ours = np.stack([found(name, draws)[0] for draws, _ in pairs])
    defined = np.stack([(inverse - inverse @ second @ inverse) / DECAY for _, second in pairs])
    errors = np.hypot(ours.std(axis=0, ddof=1), defined.std(axis=0, ddof=1)) / np.sqrt(12)
    assert (np.abs(ours.mean(axis=0) - defined.mean(axis=0)) < 5 * errors).all()
    assert np.linalg.norm(errors) < 0.03 * np.linalg.norm(ours.mean(axis=0))


def test_linear_networks_layer_by_layer():
    """Exact Gaussian draws of two layers: each dual is that of the recursion of deep linear networks."""
    rng, middle = np.random.default_rng(3), KERNEL + 0.2 * np.eye(3)
    expected, draws, dual = [], [], TOP
    for kernel in (middle, KERNEL):
        root = np.linalg.cholesky(kernel / DECAY)
        spread = np.linalg.cholesky(np.linalg.inv(np.eye(3) + root.T @ dual @ root))
        draws.insert(0, rng.standard_normal((400_000, 3)) @ spread.T)
        dual = dual / DECAY @ np.linalg.inv(np.eye(3) + kernel / DECAY @ dual)
        expected.insert(0, dual)
    with scope("float64"):
        both = by_parts.duals(activations.get("linear"), sites.POINTS, [KERNEL, middle], TOP, draws, [DECAY, DECAY])
    for ours, exact in zip(both, expected, strict=True):
        assert np.linalg.norm(ours - exact) < 0.02 * np.linalg.norm(exact)


def test_nearly_singular_kernels_do_not_blow_up_noise():
    """A direction in which the kernel has next to nothing: by parts it is as firm as the others, and the derivative is kept where the kernel is firm."""
    thin = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]) + 1e-9 * np.eye(3)
    rng = np.random.default_rng(1)
    samples = [
        found("tanh", rng.standard_normal((4000, 3)), kernels=[thin], top=0.1 * TOP, decays=[1.0])[0] for _ in range(4)
    ]
    assert np.std(samples, axis=0).max() < 0.1 * np.abs(np.mean(samples, axis=0)).max()
    noise = 1e6 * np.outer([1.0, -1.0, 0.0], [1.0, -1.0, 0.0])  # what an inverse would have made of it
    known = samples[0] + 0.5 * np.eye(3)
    mixed = by_parts.joined(thin, known + noise, samples[0])
    assert mixed[2, 2] == pytest.approx(known[2, 2]) and np.abs(mixed).max() < 2


def test_one_hidden_layer_forms_nothing(monkeypatch):
    """Its only dual is the top one; over pairs of positions a matrix would be large."""
    monkeypatch.setattr(by_parts, "_unpooled", lambda *_: pytest.fail("formed"))
    assert found("relu", None, kernels=[], draws=[], decays=[]) == []


def test_no_data_no_dual():
    (dual,) = found("relu", np.random.default_rng(0).standard_normal((50, 3)), top=np.zeros((3, 3)))
    assert not dual.any()
