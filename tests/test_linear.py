"""Closed forms of linear networks, and the solver that takes them by itself."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize

import adakern as ak


def linear(depth, **numbers):
    return ak.ANBK(ak.MLP(depth, "linear"), **numbers)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    return rng.standard_normal((15, 25)), np.sign(rng.standard_normal(15))


@pytest.mark.parametrize("depth, richness, beta", [(1, 1.0, 50.0), (8, 4.0, 10.0), (3, 1e-3, 5.0), (16, 1e3, 1e4)])
def test_overlaps_solve_their_equation(depth, richness, beta):
    c = ak.linear.overlaps(depth, richness, beta)
    np.testing.assert_allclose(
        c, (1 + richness**2 * c[-1] / (1 / beta + c[-1]) ** 2) ** np.arange(1, depth + 1), rtol=1e-11
    )
    last = optimize.brentq(lambda x: (1 + richness**2 * x / (1 / beta + x) ** 2) ** depth - x, 1.0, 1e12)
    assert c[-1] == pytest.approx(last, rel=1e-9)


def test_overlaps_are_those_of_the_solver():
    X = 2 * np.linalg.qr(np.random.default_rng(1).normal(size=(4, 4)))[0]  # Φ⁰ = I
    y = np.array([0.5, 0.5, -0.5, 0.5])
    solution = ak.solve(linear(8, richness=4.0, beta=10.0), X, y)
    np.testing.assert_allclose([y @ k @ y for k in solution.kernels], ak.linear.overlaps(8, 4.0, 10.0), rtol=1e-12)


@pytest.mark.parametrize(
    "index, depth, richness", [(0, 4, 0.03), (0, 1, 0.05), (1, 1, 1e3), (1, 3, 1e4), (2, 10**9, 1.0)]
)
def test_regimes_hold_where_they_say(index, depth, richness):
    regime = ak.linear.regimes(depth, richness)[index]
    found = optimize.brentq(lambda x: depth * np.log1p(richness**2 / np.exp(x)) - x, 0.0, 60.0)
    assert regime.correction < 0.2
    assert abs(regime.value / np.exp(found) - 1) < 1.5 * regime.correction


def test_regimes_know_where_they_fail():
    lazy, rich, deep = ak.linear.regimes(2, 1.0)
    assert min(lazy.correction, rich.correction, deep.correction) > 0.4


def test_ultra_rich_limit(data):
    X, y = data
    targets = np.stack([y, np.roll(y, 2)], axis=1)
    for depth, labels in ((1, y), (3, y), (2, targets)):
        bar = ak.linear.ultra_rich(depth, X, labels, decay=np.linspace(0.5, 1.5, depth + 1))
        limit = linear(depth, richness=1e9, decay=np.linspace(0.5, 1.5, depth + 1))
        for layer, kernel in enumerate(ak.solve(limit, X, labels).kernels, start=1):
            scaled = kernel / 1e9 ** (2 * layer / (depth + 1))
            assert np.linalg.norm(scaled - bar[layer - 1]) < 1e-3 * np.linalg.norm(bar[layer - 1])


def test_ultra_rich_limit_of_as_many_outputs_as_points():
    """Yang et al.: the inverse input kernel is Φ̄⁻¹yyᵀΦ̄⁻¹."""
    rng = np.random.default_rng(2)
    X, y = rng.standard_normal((5, 9)), rng.standard_normal((5, 5))
    inverse = np.linalg.inv(ak.linear.ultra_rich(1, X, y)[0])
    np.testing.assert_allclose(inverse @ y @ y.T @ inverse, np.linalg.inv(X @ X.T / 9), rtol=1e-6)


def test_collapse_of_one_layer(data):
    X, y = data
    assert ak.linear.collapse(1, X, y, decay=(0.5, 2.0)) == pytest.approx(1 / np.sqrt(y @ X @ X.T @ y / 25))
    with pytest.raises(ValueError, match="one output"):
        ak.linear.collapse(1, X, np.stack([y, y], axis=1))


@pytest.mark.parametrize("precision, small", [("float64", 1e-9), ("float32", 1e-4)])
@pytest.mark.parametrize("depth", [1, 3])
def test_the_closed_form_is_chosen_and_exact(data, depth, precision, small):
    X, y = data
    limit = linear(depth, richness=2.0, decay=np.linspace(0.5, 1.5, depth + 1))
    solution = ak.solve(limit, X, y, precision=precision)
    assert solution.stats["solver"] == "linear" and solution.converged and solution.residual < small
    assert all(
        kernel.dtype == precision and not error.any()
        for kernel, error in zip(solution.kernels, solution.kernel_errors, strict=True)
    )
    f, std = solution.predict(X, return_std=True)
    np.testing.assert_allclose(f, solution.fitted, atol=100 * small)
    assert not std.any()
    np.testing.assert_allclose(solution.cross_kernel(X), solution.kernel, rtol=100 * small, atol=100 * small)
    values, weights = solution.density(depth, 3)
    assert weights @ values**2 == pytest.approx(solution.kernel[3, 3], rel=2e-3)


@pytest.mark.long
def test_it_agrees_with_particles(data):
    X, y = data
    limit = linear(2, richness=1.0, beta=5.0)
    exact = ak.solve(limit, X, y)
    sampled = ak.solve(limit, X, y, solver="particles", tolerance=0.02)
    assert sampled.stats["solver"] == "particles"
    for ours, theirs, error in zip(exact.kernels, sampled.kernels, sampled.kernel_errors, strict=True):
        assert np.linalg.norm(ours - theirs) < 3 * np.linalg.norm(error)
    assert np.abs(exact.fitted - sampled.fitted).max() < 0.02
    assert abs(exact.free_energy - sampled.free_energy) < 4 * sampled.stats["free_energy_error"] + 0.01


def test_new_points_follow_the_conditional_law(data):
    """Predictions against weights: f(x) = x·θ with θ from the ridge regression that the strength amounts to."""
    X, y = data
    solution = ak.solve(linear(3, richness=2.0, beta=20.0), X, y)
    r = (1 + solution.stats["strengths"][0]) ** 3
    theta = np.linalg.solve(X.T @ X / 25 + np.eye(25) / (20.0 * r), X.T @ y) / 25
    fresh = np.random.default_rng(5).standard_normal((7, 25))
    np.testing.assert_allclose(solution.predict(fresh), fresh @ theta, atol=1e-10)


def test_small_richness_is_lazy_and_zero_is_exactly(data):
    X, y = data
    lazy = ak.solve(ak.NNGPK(ak.MLP(2, "linear"), beta=50.0), X, y)
    for richness in (0.0, 1e-3):
        kernel = ak.solve(linear(2, richness=richness), X, y).kernel
        assert np.linalg.norm(kernel - lazy.kernel) <= 1e3 * richness**2 * np.linalg.norm(lazy.kernel)


def test_several_solutions_are_reported():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((12, 20)), np.sign(rng.standard_normal(12))
    found = [ak.solve(linear(4, richness=g, beta=2.0, decay=3.0), X, y) for g in np.linspace(0.4, 0.8, 9)]
    counts = [len(solution.stats["solutions"]) for solution in found]
    assert set(counts) == {1, 3}
    several = found[counts.index(3)]
    assert "least free energy of 3" in several.status and several.stats["all_solutions"]
    energies = [part["free_energy"] for part in several.stats["solutions"]]
    assert energies == sorted(energies) and several.free_energy == energies[0]


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_other_losses(data, loss):
    X, y = data
    labels = np.eye(3)[np.arange(15) % 3] if loss == "softmax" else y
    solution = ak.solve(linear(2, richness=1.0, beta=5.0, loss=loss), X, labels)
    assert solution.converged and solution.residual < 1e-9
    np.testing.assert_allclose(solution.predict(X), solution.fitted, atol=1e-8)


def test_awkward_data(data):
    X, y = data
    for inputs, labels in (
        (X[:1], y[:1]),  # one point
        (X, np.zeros(15)),
        (X, np.ones(15)),
        (np.concatenate([X, X]), np.concatenate([y, -y])),  # every point twice, with both labels
        (X[:, :3], y),  # fewer features than points
        (np.zeros((4, 2)), np.ones(4)),
    ):
        solution = ak.solve(linear(2, richness=3.0), inputs, labels)
        assert solution.converged and np.isfinite(solution.kernel).all()
        np.testing.assert_allclose(solution.predict(inputs), solution.fitted, atol=1e-8)


def test_a_solver_that_does_not_fit_is_refused(data):
    with pytest.raises(ValueError, match="solver='linear' is for linear networks"):
        ak.solve(ak.ANBK(ak.MLP(1, "tanh")), *data, solver="linear")
    with pytest.raises(ValueError, match="'linear' has none"):
        ak.solve(linear(2), *data, checkpoint="work.safetensors")


def test_large_problems_go_through_a_krylov_space(monkeypatch, data):
    from adakern.deep_linear import spectra

    rng = np.random.default_rng(4)
    X, y = rng.standard_normal((300, 400)), np.sign(rng.standard_normal(300))
    dense = ak.solve(linear(3, richness=1.0, beta=5.0), X, y)
    monkeypatch.setattr(spectra, "DENSE", 50)
    krylov = ak.solve(linear(3, richness=1.0, beta=5.0), X, y)
    assert krylov.stats["route"] == "krylov" and krylov.stats["rank"] < 300
    np.testing.assert_allclose(krylov.kernel, dense.kernel, atol=1e-9 * np.abs(dense.kernel).max())
    np.testing.assert_allclose(krylov.fitted, dense.fitted, atol=1e-9)


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("depth, richness, beta", [(2, 10.0, 50.0), (4, 100.0, 1e3), (3, 1000.0, 1e4)])
def test_labels_that_inputs_do_not_determine_stay_out_of_predictions(depth, richness, beta, precision):
    """D < P: v holds β times the part that no linear network fits, which must drop out at new points too."""
    rng = np.random.default_rng(0)
    X, y, fresh = rng.standard_normal((40, 5)), np.sign(rng.standard_normal(40)), rng.standard_normal((6, 5))
    solution = ak.solve(linear(depth, richness=richness, beta=beta), X, y, precision=precision)
    small = 1e-9 if precision == "float64" else 1e-5
    assert solution.residual < small
    weights = np.linalg.lstsq(X, np.asarray(solution.fitted, float), rcond=None)[0]
    np.testing.assert_allclose(solution.predict(fresh), fresh @ weights, atol=100 * small)


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_the_audit_sees_a_wrong_kernel_where_products_cancel(precision):
    from adakern.limits import Answer
    from adakern.precision import scope

    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((40, 5)), np.sign(rng.standard_normal(40))[:, None]
    limit = linear(2, richness=1000.0, beta=1e4)
    found = ak.solve(limit, X, y, precision=precision)
    names = ("kernels", "kernel", "coefficients", "fitted", "errors", "kernel_errors", "duals")
    parts = {name: getattr(found, name) for name in names}
    for change in (
        {"kernels": (1.5 * found.kernels[0], found.kernels[1])},
        {"duals": (1.5 * found.duals[0], found.duals[1])},
    ):
        with scope(precision):
            assert limit.residual(X, y, Answer(**{**parts, **change}, stats=dict(found.stats))) > 0.1


def test_each_output_can_be_rich_or_lazy():
    """Orthogonal points and outputs: the problem falls into two of one output each."""
    X = np.sqrt(2) * np.eye(2)
    single = [ak.solve(linear(4, richness=100.19, beta=0.002), X, y).free_energy for y in ([1.0, 0.0], [0.0, 0.9])]
    both = ak.solve(linear(4, richness=100.19, beta=0.002), X, np.diag([1.0, 0.9]))
    assert both.free_energy == pytest.approx(sum(single), rel=1e-6)
    assert len(both.stats["solutions"]) == 4 and "that were found" in both.status


@pytest.mark.parametrize("richness, expected", [(3.48385, 3), (11.46941, 3)])
def test_close_solutions_of_the_logistic_loss(richness, expected):
    solution = ak.solve(linear(5, richness=richness, beta=1.0, loss="logistic"), [[0.05]], [1.0])
    parts = sorted(solution.stats["solutions"], key=lambda part: part["strengths"][0])
    assert [part["stable"] for part in parts] == [True, False, True]
    assert not solution.stats["all_solutions"]


@pytest.mark.long
def test_rich_softmax():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((6, 8)), np.eye(3)[rng.integers(3, size=6)]
    solution = ak.solve(linear(2, richness=100.0, loss="softmax"), X, y)
    assert solution.residual < 1e-9


def test_empty_problems(data):
    X, y = data
    two = np.stack([y, y], axis=1)
    for inputs, labels, richness in ((np.zeros((4, 3)), np.ones((4, 2)), 1.0), (X, y, 1e-200), (X, two, 1e-170)):
        solution = ak.solve(linear(2, richness=richness), inputs, labels)
        assert solution.converged and np.isfinite(solution.kernel).all()
