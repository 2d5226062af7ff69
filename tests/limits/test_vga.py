"""The variational Gaussian approximation as a limit: what it tends to, its audit, and its extension to new points."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import adakern as ak
from adakern.extension_vga import GaussianLawExtension
from adakern.limits.vga import VGA
from adakern.precision import scope
from adakern.solvers import gaussian

pytestmark = pytest.mark.long

CASES = {
    "relu": VGA(ak.MLP(depth=1, activation="relu"), richness=1.2, beta=30.0, decay=(0.8, 1.5)),
    "deep": VGA(ak.MLP(depth=2, activation="erf"), richness=1.0, beta=30.0, decay=(1.0, 0.7, 1.2)),
}


def run(limit, X, y, precision="float64"):
    columns = y if y.ndim == 2 else y[:, None]
    with scope(precision):
        answer = gaussian.solve(limit, X, columns, precision=precision)
        return answer, limit.residual(X, columns, answer)


@pytest.fixture(scope="module")
def found(data):
    memory: dict = {}

    def find(name):
        if name not in memory:
            memory[name] = run(CASES[name], data[0], data[1])
        return memory[name]

    return find


@pytest.mark.parametrize("name", list(CASES))
def test_the_equations_hold(found, name):
    answer, residual = found(name)
    assert answer.converged and residual < 1e-7
    assert all(not error.any() for error in answer.kernel_errors)


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize(
    "spoil",
    [
        lambda a: replace(a, kernels=tuple(1.1 * k for k in a.kernels), kernel=1.1 * a.kernel),
        lambda a: replace(a, duals=tuple(-d for d in a.duals)),
        lambda a: replace(a, duals=(1.1 * a.duals[0], *a.duals[1:])),
        lambda a: replace(a, draws=tuple(1.05 * d for d in a.draws)),
        lambda a: replace(a, draws=(np.eye(len(a.draws[0])), *a.draws[1:])),
        lambda a: replace(a, coefficients=1.1 * a.coefficients),
        lambda a: replace(a, fitted=a.fitted + 0.5),
        lambda a: replace(a, errors=-a.errors),
        lambda a: replace(a, kernels=tuple(np.nan * k for k in a.kernels)),
    ],
)
def test_the_audit_sees_a_spoilt_answer(found, data, name, spoil):
    answer, _ = found(name)
    with scope("float64"):
        assert CASES[name].residual(data[0], data[1][:, None], spoil(answer)) > 2e-3


@pytest.mark.parametrize("name", list(CASES))
def test_the_extension_meets_the_kernels_at_training_points(found, data, name):
    answer, _ = found(name)
    X, _, new = data
    with scope("float64"):
        extension = GaussianLawExtension(CASES[name], X, answer.draws, "float64")
        block, own = extension.blocks(np.concatenate([X, new])), extension.own(np.concatenate([X, new]))
    assert block.shape == (1, 17, 12) and extension.bytes_per_point() > 0
    np.testing.assert_allclose(block[0, :12], answer.kernel, atol=1e-7 * answer.kernel.max())
    np.testing.assert_allclose(own[:12], np.diag(answer.kernel), rtol=1e-6)
    # Beside the training kernel, new points' rows and variances make a kernel that is positive semi-definite.
    explained = np.einsum("ij,ji->i", block[0, 12:], np.linalg.solve(answer.kernel, block[0, 12:].T))
    assert (own[12:] > explained - 1e-9).all()
    assert (own[12:] > 0.01).all()


def test_new_points_of_a_linear_network(data):
    """A linear network's kernel is Φ⁰ + s Φ⁰vvᵀΦ⁰ for new points as well, with the s of the training points."""
    X, y, new = data
    limit = VGA(ak.MLP(depth=1, activation="linear"), richness=1.0, beta=20.0)
    answer, _ = run(limit, X, y)
    v = answer.coefficients[:, 0]
    phi = new @ X.T / 5
    with scope("float64"):
        block = GaussianLawExtension(limit, X, answer.draws, "float64").blocks(new)[0]
    scale = np.linalg.norm(answer.kernel - X @ X.T / 5) / np.linalg.norm(X @ X.T / 5 @ v) ** 2
    np.testing.assert_allclose(block, phi + scale * np.outer(phi @ v, X @ X.T / 5 @ v), rtol=1e-6)
    assert scale > 1e-2


def test_richness_zero_is_lazy_and_small_richness_nearly_so(data):
    X, y, _ = data
    network = ak.MLP(depth=2, activation="erf")
    lazy = ak.solve(ak.NNGPK(network, beta=30.0, decay=(1.0, 0.7, 1.2)), X, y)
    off = []
    for richness in (0.0, 0.02, 0.04):
        answer, residual = run(replace(CASES["deep"], richness=richness), X, y)
        assert answer.converged and residual < 1e-7
        off.append(np.linalg.norm(answer.kernel - lazy.kernel) / np.linalg.norm(lazy.kernel))
    assert off[0] < 1e-8
    assert off[2] / off[1] == pytest.approx(4.0, rel=0.1)  # the first correction is of order γ0²


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_other_losses(data, loss):
    X, y, _ = data
    limit = VGA(ak.MLP(depth=1, activation="erf"), richness=1.0, beta=5.0, loss=loss)
    targets = np.sign(y) if loss == "logistic" else np.eye(3)[np.digitize(y, (-0.5, 0.5))]
    answer, residual = run(limit, X, targets)
    assert answer.converged and residual < 1e-7
    assert np.linalg.norm(answer.draws[0].T @ answer.draws[0] - np.eye(5)) > 0.1
    right = answer.fitted[:, 0] * targets > 0 if loss == "logistic" else answer.fitted.argmax(1) == targets.argmax(1)
    assert right.mean() > 0.7


def test_several_outputs_and_single_precision(data):
    X, y, _ = data
    columns = np.stack([y, np.cos(X[:, 1])], axis=1)
    double, _ = run(CASES["relu"], X, columns)
    single, residual = run(CASES["relu"], X, columns, "float32")
    assert single.converged and residual < 1e-5
    assert {a.dtype.name for a in (*single.kernels, *single.duals, single.fitted)} == {"float32"}
    np.testing.assert_allclose(single.kernel, double.kernel, rtol=1e-5)
    with scope("float32"):
        block = GaussianLawExtension(CASES["relu"], X, single.draws, "float32").blocks(X)
    assert block.dtype == np.float32
    np.testing.assert_allclose(block[0], single.kernel, rtol=1e-5)


def test_permuting_points_and_the_sign_of_labels(found, data):
    X, y, _ = data
    answer, _ = found("relu")
    order = np.random.default_rng(1).permutation(12)
    other, _ = run(CASES["relu"], X[order], -y[order])
    np.testing.assert_allclose(other.kernel, answer.kernel[np.ix_(order, order)], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(other.fitted, -answer.fitted[order], rtol=1e-6)


@pytest.mark.long
@pytest.mark.slow
def test_its_free_energy_bounds_the_exact_one():
    rng = np.random.default_rng(3)
    X = rng.standard_normal((6, 3))
    y = np.sign(X[:, 0] * X[:, 1])
    network = ak.MLP(depth=1, activation="tanh")
    answer, _ = run(VGA(network, richness=1.5, beta=30.0), X, y)
    exact = ak.solve(ak.ANBK(network, richness=1.5, beta=30.0), X, y, tolerance=0.05)
    error = exact.stats["free_energy_error"]
    assert answer.stats["free_energy"] > exact.free_energy - 3 * error
    assert answer.stats["free_energy"] < exact.free_energy + 2.0  # a bound, not a number beside it


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"richness": -1.0}, "richness"),
        ({"beta": 0.0}, "beta"),
        ({"decay": (1.0, 1.0, 1.0)}, "decay"),
        ({"loss": "hinge"}, "loss"),
    ],
)
def test_bad_numbers_name_their_argument(arguments, message):
    with pytest.raises(ValueError, match=message):
        VGA(ak.MLP(depth=1), **arguments)


def test_a_network_is_needed_and_the_configuration_is_plain():
    with pytest.raises(TypeError, match="network"):
        VGA("relu")
    assert VGA(ak.MLP(depth=1), richness=2.0, decay=(1.0, 2.0)).config() == {
        "richness": 2.0,
        "beta": 50.0,
        "decay": (1.0, 2.0),
        "loss": "squared",
    }
