"""The particle solver against exact cases, against wide networks, and against itself."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import optimize, stats

import adakern as ak
from adakern import averages
from adakern.limits import Answer
from adakern.precision import scope

FIXTURES = Path(__file__).parents[1] / "fixtures"


def whitened(points, seed=0):
    """Inputs with Φ⁰ = I, and a target of norm one."""
    rng = np.random.default_rng(seed)
    y = rng.normal(size=points)
    return np.sqrt(points) * np.linalg.qr(rng.normal(size=(points, points)))[0], y / np.linalg.norm(y)


def overlap(depth, richness, beta):
    """c_L of a deep linear network on whitened data: c = (1 + γ0² c / (1/β + c)²)^L."""
    return optimize.brentq(lambda c: (1 + richness**2 * c / (1 / beta + c) ** 2) ** depth - c, 1.0, 1e6)


@pytest.mark.parametrize(
    "depth",
    [pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long)],
)
def test_deep_linear_overlaps(depth):
    X, y = whitened(4)
    last = overlap(depth, 2.0, 10.0)
    growth = 1 + 4.0 * last / (0.1 + last) ** 2
    limit = ak.ANBK(ak.MLP(depth, "linear"), richness=2.0, beta=10.0)
    runs = [ak.solve(limit, X, y, solver="particles", seed=seed, particles=2048, tolerance=0.02) for seed in range(4)]
    for layer in range(depth):
        measured = np.array([y @ run.kernels[layer] @ y for run in runs])
        error = measured.std(ddof=1) / 2
        assert abs(measured.mean() - growth ** (layer + 1)) < 4 * error + 0.005 * growth ** (layer + 1)


@pytest.mark.long
def test_one_point_has_the_exact_law(one_point):
    X = np.array([[1.0, -0.5]])
    variance = float(X[0] @ X[0] / 2)
    exact, cdf = one_point(2.0, 10.0, variance)
    solution = ak.solve(ak.ANBK(ak.MLP(1, "tanh"), richness=2.0, beta=10.0), X, [1.0], particles=4096, tolerance=0.005)
    kernel, error = solution.kernel[0, 0], solution.kernel_errors[0][0, 0]
    assert abs(kernel - exact) < 4 * error
    values, weights = solution.density(1, 0)
    assert weights.sum() == pytest.approx(1.0)
    # Snapshots follow each other in time: count one in four as independent.
    assert stats.kstest(values[::4], cdf).pvalue > 1e-3
    # And the test sees the difference to the lazy law.
    assert stats.kstest(values[::4], stats.norm(scale=np.sqrt(variance)).cdf).pvalue < 1e-6


def test_richness_zero_is_exactly_lazy():
    X, y, X_test, _ = ak.datasets.mnist(n_train=20, n_test=50)
    rich = ak.solve(ak.ANBK(ak.MLP(2, "tanh"), richness=0.0, beta=5.0, decay=2.0), X, y)
    lazy = ak.solve(ak.NNGPK(ak.MLP(2, "tanh"), beta=5.0, decay=2.0), X, y)
    np.testing.assert_array_equal(rich.predict(X_test), lazy.predict(X_test))
    assert all(not dual.any() for dual in rich.duals)


def test_small_richness_is_lazy_within_its_error(find, points, rng):
    rich = find(richness=0.01)
    lazy = ak.solve(ak.NNGPK(ak.MLP(1, "tanh")), *points)
    size = np.linalg.norm(lazy.kernel)
    assert np.linalg.norm(rich.kernel - lazy.kernel) / size < 3 * np.linalg.norm(rich.kernel_errors[0]) / size
    X_new = rng.normal(size=(50, 10))
    f, std = rich.predict(X_new, return_std=True)
    assert np.mean(np.abs(f - lazy.predict(X_new)) < 4 * std + 1e-3) > 0.95


@pytest.mark.parametrize(
    ("name", "depth", "activation", "richness"),
    [
        ("mnist50_L1_relu_g1.0", 1, "relu", 1.0),
        pytest.param(
            "mnist50_L2_tanh_g0.5",
            2,
            "tanh",
            0.5,
            marks=pytest.mark.long,
        ),
    ],
)
def test_wide_networks(name, depth, activation, richness):
    """Langevin-sampled networks of width 16384 and 4096: kernels at every layer, outputs, new points."""
    X, y, X_test, _ = ak.datasets.mnist(n_train=50, n_test=600)
    with np.load(FIXTURES / "wide_networks.npz") as file:
        kernels, fitted, new, spread = (file[f"{name}/{key}"] for key in ("Phi", "f", "ft", "rel"))
    solution = ak.solve(ak.ANBK(ak.MLP(depth, activation), richness=richness), X, y, tolerance=0.01)
    for layer in range(depth):
        size = np.linalg.norm(kernels[layer])
        joint = np.hypot(np.linalg.norm(solution.kernel_errors[layer]) / size, spread[layer])
        assert np.linalg.norm(solution.kernels[layer] - kernels[layer]) / size < 2 * joint
        assert ak.alignment(solution.kernels[layer], kernels[layer]) > 0.9998
    assert np.abs(solution.fitted - fitted).max() < 0.005
    assert np.sqrt(np.mean((solution.predict(X_test) - new) ** 2)) < 0.015
    f, std = solution.predict(X, return_std=True)
    assert np.abs(f - solution.fitted).max() < 0.01 and (std > 0).all()
    # The audit's neurons are its own, and its frozen tilt answers more strongly than the kernels are off.
    assert solution.residual < 0.15


def test_label_sign_symmetry_and_seeds(find, points):
    X, y = points
    first, again, other = find(), find(fresh=True), find(seed=4)
    mirrored = ak.solve(ak.ANBK(ak.MLP(1, "tanh")), X, -y, particles=256, tolerance=0.03)
    np.testing.assert_array_equal(first.kernel, again.kernel)
    np.testing.assert_allclose(mirrored.fitted, -first.fitted, rtol=1e-9)
    assert np.abs(first.kernel - other.kernel).max() > 1e-4


@pytest.mark.long
def test_duplicated_points_share_their_field(points, rng):
    X, y = points
    doubled, labels = np.concatenate([X, X[:3]]), np.concatenate([y, y[:3]])
    solution = ak.solve(ak.ANBK(ak.MLP(2, "relu")), doubled, labels, particles=512, tolerance=0.1)
    np.testing.assert_array_equal(solution.kernel[8:], solution.kernel[:3])
    assert np.isfinite(solution.predict(rng.normal(size=(5, 10)))).all() and solution.residual < 0.2
    assert solution.density(2, 10)[0].tolist() == solution.density(2, 2)[0].tolist()


@pytest.mark.long
def test_the_residual_sees_a_wrong_answer():
    """The audit samples afresh: its own noise, in the stats, is all that a right answer shows, and the solver's neurons do not count."""
    X, y, _, _ = ak.datasets.mnist(n_train=12, n_test=1)
    limit = ak.ANBK(ak.MLP(1, "tanh"), richness=2.0)
    rich = ak.solve(limit, X, y, tolerance=0.02)
    lazier = ak.ANBK(ak.MLP(1, "tanh"), richness=1.0)
    noise = max(rich.stats["audit"]["noise"]["kernels"])
    assert 0 < noise < 0.02
    assert rich.residual < 0.02 + 4 * noise
    answer = Answer(
        kernels=rich.kernels,
        kernel=rich.kernel,
        coefficients=rich.coefficients[:, None],
        fitted=rich.fitted[:, None],
        errors=rich.errors[:, None],
        kernel_errors=rich.kernel_errors,
        duals=rich.duals,
        draws=rich.draws,
    )
    with scope("float64"):
        assert limit.residual(X, y[:, None], answer) == pytest.approx(rich.residual)
        assert lazier.residual(X, y[:, None], answer) > 0.5  # the duals belong to another richness
        untilted = replace(answer, draws=(np.random.default_rng(0).normal(size=rich.draws[0].shape),))
        assert limit.residual(X, y[:, None], untilted) == pytest.approx(rich.residual)
        # Kernel and readout of the prior, which fit together, with the duals of the answer.
        lazy = ak.solve(ak.NNGPK(limit.network), X, y)
        prior = {"kernels": lazy.kernels, "kernel": lazy.kernel, "coefficients": lazy.coefficients[:, None]}
        assert limit.residual(X, y[:, None], replace(answer, **prior)) > 0.1


def test_an_impossible_tolerance(find):
    recorded = find(tolerance=1e-6, steps=60, throw=False)
    assert not recorded.converged and "NOT converged" in repr(recorded)
    with pytest.raises(ak.ConvergenceError, match="give more steps"):  # where the audit fails too
        find(tolerance=1e-6, steps=60)


@pytest.mark.long
def test_several_outputs_and_float32_and_files(tmp_path):
    X, y, X_test, _ = ak.datasets.mnist(n_train=12, n_test=30)
    limit = ak.ANBK(ak.MLP(2, "gelu"), richness=0.5, decay=(1.0, 0.5, 2.0))
    targets = np.column_stack([y, -y, 0 * y])
    solution = ak.solve(limit, X, targets, particles=512, tolerance=0.1, precision="float32")
    f = solution.predict(X_test)
    assert f.shape == (30, 3) and f.dtype == np.float32
    np.testing.assert_allclose(f[:, 1], -f[:, 0], atol=1e-5)
    np.testing.assert_allclose(f[:, 2], 0, atol=1e-6)
    solution.save(tmp_path / "run.safetensors")
    loaded = ak.load(tmp_path / "run.safetensors")
    np.testing.assert_array_equal(loaded.predict(X_test), f)
    assert loaded.limit == limit


@pytest.mark.long
def test_float32_agrees_with_float64_within_error_bars(find):
    double, single = find(2), find(2, precision="float32")
    for a, b, e, g in zip(double.kernels, single.kernels, double.kernel_errors, single.kernel_errors, strict=True):
        assert np.linalg.norm(a - b) < 3 * np.hypot(np.linalg.norm(e), np.linalg.norm(g))
    # What is added to the diagonal before a layer's root is taken, relative to its mean.
    assert 0 < double.stats["jitter"] < single.stats["jitter"] < 1e-3


def test_standard_errors_of_a_correlated_series():
    """An AR(1) series with known autocorrelation time: the error bars cover, and white ones would not."""
    rng = np.random.default_rng(0)
    length, repeats, rho = 400, 200, 0.8
    noise = rng.normal(size=(repeats, length, 1))
    series = np.zeros_like(noise)
    series[:, 0] = noise[:, 0] / np.sqrt(1 - rho**2)
    for t in range(1, length):
        series[:, t] = rho * series[:, t - 1] + noise[:, t]
    ratios = np.array([abs(s.mean()) / averages.standard_error(s)[0] for s in series])
    naive = np.array([abs(s.mean()) / (s.std(ddof=1) / np.sqrt(length)) for s in series])
    assert 0.88 < np.mean(ratios < 2) < 1.0
    assert np.mean(naive < 2) < 0.7


def test_drift_is_seen_and_noise_is_not():
    rng = np.random.default_rng(1)
    assert averages.drifts(np.linspace(2.0, 1.0, 8) + 0.01 * rng.normal(size=8))
    assert not any(averages.drifts(1.0 + 0.05 * rng.normal(size=8)) for _ in range(50))
    assert averages.drifts(np.array([1.0] * 7 + [np.nan]))
