"""The audit's own sampling against exact laws, and what it says about exact and altered saddles."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, optimize, stats

from adakern import activations, inputs, losses
from adakern.limits.audit import audit
from adakern.limits.tempering import sample
from adakern.precision import scope

MANY = {"groups": 16, "particles": 256}  # sixteen groups: their standard error is known to a fifth


def drawn(name, root, dual, seed=0, precision="float64", **options):
    with scope(precision):
        root, dual = jnp.asarray(root), jnp.asarray(dual)
        return sample(activations.get(name), root, dual, jax.random.key(seed), **(MANY | options))


def agrees(value, error, exact, often=4.0):
    """In the Frobenius norm, within so many standard errors."""
    return np.linalg.norm(value - exact) < often * np.linalg.norm(error)


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_linear_laws_are_gaussian(precision):
    r"""$Z=\det(I+A^\top\hat\Phi A)^{-1/2}$, $\langle hh^\top\rangle=A(I+A^\top\hat\Phi A)^{-1}A^\top$."""
    rng = np.random.default_rng(1)
    root, factor = rng.normal(size=(4, 4)) / 2, rng.normal(size=(4, 4))
    dual = factor @ np.diag([-1.0, -0.3, 0.5, 2.0]) @ factor.T
    inner = root.T @ dual @ root
    dual *= 0.7 / -np.linalg.eigvalsh(inner)[0]  # the softest direction keeps 0.3 of its stiffness
    stiffness = np.eye(4) + root.T @ dual @ root
    second = root @ np.linalg.inv(stiffness) @ root.T
    law = drawn("linear", root, dual, precision=precision)
    assert law.epsilon.dtype == np.dtype(precision) and law.status == ""
    assert agrees(law.log_z, law.log_z_error, -0.5 * np.linalg.slogdet(stiffness)[1])
    assert agrees(law.moment, law.moment_error, second)
    assert agrees(law.second, law.second_error, second)
    assert agrees(law.response, law.response_error, root @ root.T - second)
    assert law.tilt[0] == pytest.approx(0.5 * np.sum(dual * second), abs=0.1)
    assert law.acceptance > 0.6


def exact_law(name, dual):
    """ln Z, the second moment of φ and the cumulative distribution of h ~ N(0, 1), tilted, by quadrature."""
    grid = np.linspace(-15, 15, 30001)
    with scope("float64"):
        features = np.asarray(activations.get(name)(jnp.asarray(grid)))
    weight = np.exp(-0.5 * grid**2 - 0.5 * dual * features**2) / np.sqrt(2 * np.pi)
    cumulative = integrate.cumulative_trapezoid(weight, grid, initial=0)
    moment = integrate.trapezoid(weight * features**2, grid) / cumulative[-1]
    return np.log(cumulative[-1]), moment, lambda h: np.interp(h, grid, cumulative / cumulative[-1])


@pytest.mark.parametrize(
    ("name", "dual"), [("tanh", -4.0), ("tanh", -25.0), ("tanh", 6.0), ("relu", -0.7), ("relu", 5.0)]
)
def test_one_point_has_the_exact_law(name, dual):
    """tanh at -25 is bimodal, with ten nats between the prior and the law."""
    log_z, moment, cdf = exact_law(name, dual)
    law = drawn(name, [[1.0]], [[dual]])
    assert agrees(law.log_z, law.log_z_error, log_z) and law.log_z_error < 0.05
    assert agrees(law.moment, law.moment_error, moment)
    # Particles share ancestors and a group's modes: count one in four as independent.
    values = law.epsilon.ravel()
    assert stats.kstest(values[::4], cdf).pvalue > 1e-3
    assert stats.kstest(values[::4], stats.norm.cdf).pvalue < 1e-6
    assert np.linalg.norm(1 - law.second - law.response) < 4 * (law.second_error + law.response_error)


@pytest.mark.long
def test_errors_cover():
    """Over seeds, ln Z scatters as its standard error says, around the truth."""
    log_z, moment, _ = exact_law("tanh", -25.0)
    laws = [drawn("tanh", [[1.0]], [[-25.0]], seed=seed) for seed in range(24)]
    pulls = np.array([(law.log_z - log_z) / law.log_z_error for law in laws])
    assert abs(pulls.mean()) < 4 / np.sqrt(24) and 0.6 < pulls.std() < 1.6
    pulls = np.array([(law.moment[0, 0] - moment) / law.moment_error[0, 0] for law in laws])
    assert abs(pulls.mean()) < 4 / np.sqrt(24) and 0.6 < pulls.std() < 1.6


@pytest.mark.parametrize(("name", "strength"), [("linear", -1.3), ("linear", -20.0), ("relu", -1.3)])
def test_laws_without_norm(name, strength):
    law = drawn(name, [[1.0]], [[strength]])
    assert law.log_z == np.inf and "cannot be normalised" in law.status


@pytest.mark.long
def test_many_points_do_not_cost_acceptance():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(200, 200))
    v = np.sign(X[:, 0])
    root = np.linalg.cholesky(X @ X.T / 200 + 0.1 * np.eye(200))
    law = drawn("tanh", root, -0.015 * np.outer(v, v), groups=4, particles=64)
    assert law.tilt[0] < -10 and law.status == ""
    assert law.acceptance > 0.5


class Saddle(NamedTuple):
    """An exact solution for a deep linear network on whitened data, |y| = 1."""

    arguments: tuple
    free_energy: float
    energy: float


def saddle(depth, richness, beta, decays, seed=0):
    r"""$c_\ell=(1+q)c_{\ell-1}/\lambda_{\ell-1}$ along y and $1/\lambda$ each layer across, with $q=-c_\ell\hat c_\ell$ the same at every layer,

    $q=\frac{\gamma_0^2}{\lambda_L}c_L/(1/\beta+c_L/\lambda_L)^2$. Every white law is Gaussian with variance 1+q along y: $F=\frac L2(q-\ln(1+q))+E$.
    """
    top, shrink = decays[-1], np.cumprod(1 / np.array(decays[:-1]))

    def excess(q):
        last = (1 + q) ** depth * shrink[-1]
        return richness**2 / top * last / (1 / beta + last / top) ** 2 - q

    q = optimize.brentq(excess, 0.0, 1e3, xtol=1e-14)
    along = (1 + q) ** np.arange(1, depth + 1) * shrink
    y = np.random.default_rng(seed).normal(size=4)
    y = (y / np.linalg.norm(y))[:, None]
    kernels = [other * np.eye(4) + (c - other) * y @ y.T for c, other in zip(along, shrink, strict=True)]
    v = y / (1 / beta + along[-1] / top)
    duals = [-(richness**2) / top * v @ v.T]
    for kernel, decay in zip(kernels[-2::-1], decays[-2:0:-1], strict=True):  # theory, section 3.3
        duals.insert(0, np.linalg.solve(np.eye(4) + duals[0] @ kernel / decay, duals[0] / decay))
    fitted = y - v / beta
    energy = 0.5 * richness**2 / (1 / beta + along[-1] / top)
    root = np.eye(4) / np.sqrt(decays[0])
    problem = (activations.get("linear"), decays, richness, beta, losses.get("squared"), root)
    arguments = (*problem, inputs.distinct(np.eye(4)), y, kernels, duals, fitted)
    return Saddle(arguments, 0.5 * depth * (q - np.log1p(q)) + energy, energy)


def audited(arguments, precision="float64", **options):
    with scope(precision):
        return audit(*arguments, **(MANY | options))


@pytest.mark.parametrize(
    ("depth", "decays", "precision"),
    [
        (1, (1.0, 1.0), "float64"),
        pytest.param(3, (1.0,) * 4, "float64", marks=pytest.mark.long),
        (3, (0.5, 2.0, 1.5, 0.7), "float64"),
        (2, (1.0, 0.5, 2.0), "float32"),
    ],
)
def test_exact_saddles_pass(depth, decays, precision):
    exact = saddle(depth, 2.0, 10.0, decays)
    report = audited(exact.arguments, precision)
    exactly = 1e-12 if precision == "float64" else 1e-5
    assert report.parts["readout"] < exactly and report.parts["top_dual"] < exactly
    assert len(report.parts["kernels"]) == depth and len(report.parts["duals"]) == depth - 1
    for name in ("kernels", "duals"):
        assert all(off < 4 * noise for off, noise in zip(report.parts[name], report.noise[name], strict=True))
        assert all(0 < noise < 0.05 for noise in report.noise[name])
    assert report.residual == max([*report.parts["kernels"], *report.parts["duals"]])
    assert agrees(report.free_energy, report.free_energy_error, exact.free_energy)
    assert report.status == "" and min(report.acceptance) > 0.6


def test_the_exact_free_energy():
    """At c_ℓ = (1 + γ0²c_L/(1/β + c_L)²)^ℓ, and with dF/dγ0² = E/γ0²: F is stationary in everything else."""
    exact, step = saddle(3, 2.0, 10.0, (1.0,) * 4), 1e-4
    y, kernels = exact.arguments[7], exact.arguments[8]
    first, last = (np.sum(y * (kernels[layer] @ y)) for layer in (0, 2))
    assert first == pytest.approx(1 + 4 * last / (0.1 + last) ** 2, rel=1e-12)
    above, below = (saddle(3, np.sqrt(4 + sign * step), 10.0, (1.0,) * 4).free_energy for sign in (1, -1))
    assert (above - below) / (2 * step) == pytest.approx(exact.energy / 4, rel=1e-7)


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_altered_kernels_and_duals_are_seen(layer):
    exact = saddle(3, 2.0, 10.0, (1.0,) * 4)
    *before, kernels, duals, fitted = exact.arguments
    changed = [1.2 * kernel if i == layer else kernel for i, kernel in enumerate(kernels)]
    report = audited((*before, changed, duals, fitted))
    assert report.parts["kernels"][layer] > max(0.1, 5 * report.noise["kernels"][layer])
    changed = [0.5 * dual if i == layer else dual for i, dual in enumerate(duals)]
    report = audited((*before, kernels, changed, fitted))
    assert report.parts["kernels"][layer] > max(0.1, 5 * report.noise["kernels"][layer])
    seen = report.parts["top_dual"] if layer == 2 else report.parts["duals"][layer]
    assert seen > 0.1
    report = audited((*before, kernels, duals, fitted + 0.01))
    assert report.parts["readout"] > 0.01 and report.parts["top_dual"] > 0.01


def test_equal_points_share_their_field():
    """Every point twice, at half the β, is the same problem."""
    exact = saddle(3, 2.0, 10.0, (1.0,) * 4)
    activation, decays, richness, beta, loss, root, _, y, kernels, duals, fitted = exact.arguments
    points = inputs.distinct(np.concatenate([np.eye(4), np.eye(4)]))
    twice = [np.concatenate([column, column]) for column in (y, fitted)]
    wide, spread = [points.expand(kernel) for kernel in kernels], [points.spread(dual) for dual in duals]
    problem = (activation, decays, richness, beta / 2, loss, root, points)
    report = audited((*problem, twice[0], wide, spread, twice[1]))
    single = audited(exact.arguments)
    assert report.parts["readout"] < 1e-12 and report.parts["top_dual"] < 1e-12
    assert report.parts["kernels"] == pytest.approx(single.parts["kernels"], rel=1e-5)
    assert report.parts["duals"] == pytest.approx(single.parts["duals"], rel=1e-5)
    assert report.free_energy == pytest.approx(single.free_energy, abs=1e-6)


def test_a_saddle_whose_law_has_no_norm():
    exact = saddle(3, 2.0, 10.0, (1.0,) * 4)
    *before, kernels, duals, fitted = exact.arguments
    report = audited((*before, kernels, [duals[0], 3 * duals[1], duals[2]], fitted))
    assert report.residual == np.inf and report.parts["kernels"][1] == np.inf
    assert report.status == "layer 2: its law cannot be normalised" and report.free_energy == -np.inf
    assert np.isfinite(report.parts["kernels"][0]) and np.isfinite(report.parts["kernels"][2])


def test_without_tilt_the_law_is_the_prior():
    """Richness zero: no duals, F = 0, and the sampled parts of the dual equation are exactly right."""
    exact = saddle(3, 2.0, 10.0, (1.0,) * 4)
    activation, decays, _, beta, loss, root, points, y, _, _, _ = exact.arguments
    kernels, duals = [np.eye(4)] * 3, [np.zeros((4, 4))] * 3
    report = audited((activation, decays, 0.0, beta, loss, root, points, y, kernels, duals, y / 1.1))
    assert report.free_energy == 0.0 and report.parts["duals"] == [0.0, 0.0]
    assert report.residual == max(report.parts["kernels"]) < 4 * max(report.noise["kernels"])
    assert report.stages == [1, 1, 1]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("factor", [-1.0, np.nan, 1e200])
def test_kernels_that_are_none(factor):
    """Not positive, not a number, not representable when squared: the equations do not hold, and that is all."""
    exact = saddle(3, 2.0, 10.0, (1.0,) * 4)
    *before, kernels, duals, fitted = exact.arguments
    report = audited((*before, [kernels[0], factor * kernels[1], kernels[2]], duals, fitted))
    assert report.residual == np.inf and "layer 3" in report.status
