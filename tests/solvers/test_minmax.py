"""The published min-max algorithm: right where the tilt is small and its rates are large enough, and honest where they are not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, optimize

import adakern as ak
from adakern.precision import scope
from adakern.progress import Progress
from adakern.solvers import minmax


def run(limit, X, y, seed=0, precision="float64", **options):
    """The solver with settings for small problems: the published ones would take hours. Shapes are shared, so that JAX compiles few."""
    settings = {"samples": 2000, "inner": 10, "outer": 600, "rates": (0.1, 0.5), "tolerance": 5e-3, **options}
    with scope(precision):
        return minmax.solve(
            limit, X, np.reshape(y, (len(X), -1)), seed=seed, precision=precision, progress=Progress(), **settings
        )


def whitened(points):
    """Inputs with Φ⁰ = I, and a target of norm one."""
    rng = np.random.default_rng(0)
    y = rng.normal(size=points)
    return np.sqrt(points) * np.linalg.qr(rng.normal(size=(points, points)))[0], y / np.linalg.norm(y)


def five_points():
    """Four random points, and the first once more."""
    X = np.random.default_rng(3).normal(size=(4, 12))
    return np.concatenate([X, X[:1]]), np.array([1.0, -1.0, 1.0, -1.0, 1.0])


def overlaps(depth, richness, beta):
    """c_1..c_L of a deep linear network on whitened data: c_ℓ = (1 + γ0² c_L / (1/β + c_L)²)^ℓ."""

    def growth(c):
        return 1 + richness**2 * c / (1 / beta + c) ** 2

    last = optimize.brentq(lambda c: growth(c) ** depth - c, 1.0, 1e6)
    return [growth(last) ** layer for layer in range(1, depth + 1)]


def one_point(richness, beta):
    """Exact Φ of one point with Φ⁰ = 1, L = 1, tanh, target 1: the density of h by quadrature, Φ by a scalar fixed point."""

    def density(h, v):
        return np.exp(-(h**2) / 2 + 0.5 * richness**2 * v**2 * np.tanh(h) ** 2)

    def second(kernel):
        v = 1 / (1 / beta + kernel)
        norm = integrate.quad(density, -12, 12, args=(v,))[0]
        return integrate.quad(lambda h: np.tanh(h) ** 2 * density(h, v), -12, 12)[0] / norm

    return optimize.brentq(lambda kernel: second(kernel) - kernel, 1e-3, 1.0)


def test_one_point_is_exact():
    exact = one_point(1.0, 5.0)
    answer = run(ak.ANBK(ak.MLP(1, "tanh"), richness=1.0, beta=5.0), np.array([[1.0]]), [1.0])
    assert answer.converged, answer.status
    error = answer.kernel_errors[0][0, 0]
    assert abs(answer.kernel[0, 0] - exact) < 4 * error
    assert abs(one_point(0.0, 5.0) - exact) > 10 * error  # and the lazy kernel is not the answer
    v = 1 / (0.2 + answer.kernel[0, 0])
    assert answer.coefficients[0, 0] == pytest.approx(v)
    assert answer.fitted[0, 0] == pytest.approx(answer.kernel[0, 0] * v)
    assert answer.errors[0, 0] == pytest.approx(v / 5.0)
    assert answer.duals[0][0, 0] == pytest.approx(-(v**2), rel=0.05)


@pytest.mark.long
def test_small_richness_stays_at_the_lazy_kernels():
    X, y = five_points()
    lazy = ak.solve(ak.NNGPK(ak.MLP(2, "tanh"), beta=5.0, decay=(1.0, 2.0, 0.5)), X, y)
    limit = ak.ANBK(ak.MLP(2, "tanh"), richness=0.01, beta=5.0, decay=(1.0, 2.0, 0.5))
    answer = run(limit, X, y, samples=4000, outer=60, rates=(0.01, 0.5), tolerance=0.0)
    for kernel, exact, error in zip(answer.kernels, lazy.kernels, answer.kernel_errors, strict=True):
        np.testing.assert_array_equal(kernel, kernel.T)
        assert np.linalg.norm(kernel - exact) < 3 * np.linalg.norm(error)
    assert min(answer.stats["ess_fresh"]) > 3900 and not answer.converged


@pytest.mark.long
def test_deep_linear_overlaps():
    X, y = whitened(3)
    limit = ak.ANBK(ak.MLP(2, "linear"), richness=0.6, beta=10.0)
    runs = [run(limit, X, y, seed=seed, rates=(0.5, 1.0)) for seed in range(3)]
    for layer, exact in enumerate(overlaps(2, 0.6, 10.0)):
        measured = np.array([y @ answer.kernels[layer] @ y for answer in runs])
        # The seeds' scatter, and what the tolerance leaves.
        assert abs(measured.mean() - exact) < 4 * measured.std(ddof=1) / np.sqrt(3) + 0.01 * exact
        assert exact > 1.2
    assert all(answer.converged for answer in runs)


def exact_linear(depth, richness, beta):
    """A problem, its exact kernels and its exact duals: whitened data, deep linear."""
    X, y = whitened(3)
    scales = overlaps(depth, richness, beta)
    along = np.outer(y, y)
    kernels = [np.eye(3) + (c - 1) * along for c in scales]
    duals = [-(richness**2) / (1 / beta + scales[-1]) ** 2 * along]
    for kernel in reversed(kernels[:-1]):
        duals.insert(0, duals[0] @ np.linalg.inv(np.eye(3) + kernel @ duals[0]))
    numbers = (jnp.asarray(richness), jnp.asarray(beta), jnp.ones(depth + 1))
    data = minmax.Data(jnp.asarray(X) / np.sqrt(3), jnp.arange(3), jnp.asarray(y)[:, None], *numbers)
    return data, tuple(map(jnp.asarray, kernels)), tuple(map(jnp.asarray, duals))


def test_the_action_is_stationary_at_the_solution_only():
    activation = ak.MLP(2, "linear").activation

    @jax.jit
    def slopes(data, kernels, duals, key):
        batch = minmax.noise(data, 2, 4000, key)
        return jax.grad(minmax.action, argnums=(2, 3))(activation, data, kernels, duals, batch)

    def significance(data, kernels, duals):
        """The largest entry of either gradient in its own standard errors, over independent batches."""
        found = [slopes(data, kernels, duals, key) for key in jax.random.split(jax.random.key(0), 24)]
        worst = 0.0
        for entries in zip(*(jax.tree.leaves(one) for one in found), strict=True):
            values = np.stack(entries)
            error = values.std(axis=0, ddof=1) / np.sqrt(len(values)) + 1e-12
            worst = max(worst, float(np.max(np.abs(values.mean(axis=0)) / error)))
        return worst

    with scope("float64"):
        data, kernels, duals = exact_linear(2, 0.6, 10.0)
        assert significance(data, kernels, duals) < 4.5
        assert significance(data, (1.05 * kernels[0], kernels[1]), duals) > 8
        assert significance(data, kernels, (duals[0], 0.9 * duals[1])) > 8


def test_a_strong_tilt_warns_and_is_not_converged():
    """Even from the exact kernels: the prior's samples hardly reach where the neurons are."""
    X, y = whitened(3)
    start = tuple(np.eye(3) + (c - 1) * np.outer(y, y) for c in overlaps(2, 20.0, 10.0))
    limit = ak.ANBK(ak.MLP(2, "linear"), richness=20.0, beta=10.0)
    with pytest.warns(RuntimeWarning, match="effective sample size .* meaningless; use solver="):
        answer = run(limit, X, y, start=start, outer=40, rates=(0.0, 0.1), tolerance=1e9)
    assert not answer.converged and "effective sample size" in answer.status
    assert answer.stats["warnings"] and min(answer.stats["ess_fresh"]) < 100
    assert answer.stats["weight_share"] > 0.01


def test_leaving_the_cone_is_said():
    X, y = whitened(3)
    answer = run(ak.ANBK(ak.MLP(2, "linear"), richness=1.0), X, y, rates=(50.0, 0.5))
    assert not answer.converged and "left the cone of positive matrices; use solver=" in answer.status
    assert all(np.isfinite(kernel).all() for kernel in answer.kernels)


def test_the_clock_and_the_watch_end_it():
    X, y = whitened(3)
    limit, seen = ak.ANBK(ak.MLP(2, "linear"), richness=0.6, beta=10.0), []

    def watch(step, seconds, kernels):
        seen.append((step, seconds, kernels))
        return len(seen) == 2

    answer = run(limit, X, y, watch=watch, tolerance=0.0, outer=10**6)
    assert not answer.converged and "ended by watch" in answer.status
    assert answer.stats["steps"] == seen[-1][0] > seen[0][0] and seen[-1][1] > seen[0][1]
    np.testing.assert_array_equal(seen[-1][2][-1], answer.kernel)
    capped = run(limit, X, y, seconds=0.5, tolerance=0.0, outer=10**6)
    assert not capped.converged and "seconds were over" in capped.status and capped.stats["steps"] < 10**6


@pytest.mark.long
def test_the_seed_decides():
    X, y = whitened(3)
    limit = ak.ANBK(ak.MLP(2, "linear"), richness=0.6, beta=10.0)
    first, again, other = (run(limit, X, y, seed=seed, outer=50, tolerance=0.0) for seed in (0, 0, 1))
    for name in ("kernels", "duals", "draws"):
        for a, b, c in zip(*(getattr(answer, name) for answer in (first, again, other)), strict=True):
            np.testing.assert_array_equal(a, b)
            assert np.abs(a - c).max() > 1e-4


@pytest.mark.long
def test_a_start_and_equal_points_and_predictions():
    X, y = five_points()
    limit = ak.ANBK(ak.MLP(2, "tanh"), richness=0.5, beta=2.0)
    options = {"samples": 4000, "tolerance": 0.02}
    guess = run(limit, X, y, outer=1, rates=(0.0, 0.0), **options).kernels
    given = tuple(1.1 * kernel for kernel in guess)
    still = run(limit, X, y, start=given, outer=1, rates=(0.0, 0.0), **options)
    for kernel, expected in zip(still.kernels, given, strict=True):
        np.testing.assert_allclose(kernel, expected, atol=1e-12)
    answer = run(limit, X, y, start=given, rates=(0.05, 2.0), **options)
    np.testing.assert_array_equal(answer.kernel[4], answer.kernel[0])
    with scope("float64"):
        assert answer.converged and limit.residual(X, y[:, None], answer) < 0.1
        groups = answer.stats["groups"]
        extension = ak.extension.ParticleExtension(limit, X, answer.kernels, answer.draws, groups, "float64")
        blocks = extension.blocks(X) @ answer.coefficients
    error = blocks.std(axis=0, ddof=1) / np.sqrt(groups)
    assert (np.abs(blocks.mean(axis=0) - answer.fitted) < 5 * error + 0.01).all()
    with pytest.raises(ValueError, match="start must hold 2 kernels"):
        run(limit, X, y, start=given[:1])


def test_other_losses_say_so():
    with pytest.raises(NotImplementedError, match="for the squared loss, not for 'logistic'"):
        run(ak.ANBK(ak.MLP(1), loss="logistic"), np.array([[1.0], [2.0]]), [1.0, -1.0])
