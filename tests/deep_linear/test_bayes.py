"""The reduced saddle against the recursion it sums up, its own objective, and a brute search for solutions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize

from adakern import losses, precision
from adakern.deep_linear import bayes, minimising, spectra

RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((12, 7)) / np.sqrt(7)  # fewer features than points
FULL = RNG.standard_normal((12, 20)) / np.sqrt(20)
SIGNS = np.sign(RNG.standard_normal((12, 1)))


@pytest.fixture(autouse=True)
def exact():
    with precision.scope("float64"):
        yield


def solve(depth, richness, beta, y=SIGNS, rows=FULL, loss="squared", scale=1.0):
    problem = bayes.Problem(depth, richness, beta, losses.get(loss), y)
    return problem, bayes.solve(problem, spectra.dense(rows, y).scaled(1 / scale))


@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("rows", [ROWS, FULL], ids=["D<P", "D>P"])
@pytest.mark.parametrize("richness", [0.5, 30.0])
def test_the_recursion_of_every_layer_holds(rows, richness, loss):
    """The saddle equations as theory writes them, P×P, without the matrix T."""
    decays, beta = (0.7, 1.5, 2.0, 0.9), 5.0
    problem, saddles = solve(3, richness, beta, rows=rows, loss=loss, scale=np.prod(decays))
    best, kernels, duals = saddles.found[0], [rows @ rows.T], []
    for layer in range(1, 4):
        weights = richness**2 / np.prod(decays) * best.feature_weights(3, layer)
        image = np.prod(decays) * best.image(3)
        kernels.append((kernels[0] + image @ weights @ image.T) / np.prod(decays[:layer]))
        share = richness**2 / np.prod(decays[layer:]) * best.dual_weights(3, layer)
        duals.append(-best.v @ share @ best.v.T)
    error = np.asarray(problem.loss.error(SIGNS, kernels[3] @ best.v / decays[3]))
    np.testing.assert_allclose(best.v, beta * error, atol=1e-8)
    np.testing.assert_allclose(duals[2], -(richness**2) / decays[3] * best.v @ best.v.T, rtol=1e-9, atol=1e-12)
    for layer in range(3):  # multiplied out: where inputs do not determine the labels, v is large outside of their span
        K, kernel = kernels[layer] / decays[layer], kernels[layer + 1]
        terms = (kernel, K @ duals[layer] @ kernel, K)
        rounding = 1e-14 * np.linalg.norm(K) * np.linalg.norm(duals[layer]) * np.linalg.norm(kernel)
        assert np.linalg.norm(terms[0] + terms[1] - terms[2]) < 1e-11 * max(map(np.linalg.norm, terms)) + rounding
    for layer in range(2):
        K, dual = kernels[layer + 1] / decays[layer + 1], duals[layer + 1] / decays[layer + 1]
        terms = (duals[layer], duals[layer] @ K @ duals[layer + 1], dual)
        rounding = 1e-14 * np.linalg.norm(K) * np.linalg.norm(duals[layer]) * np.linalg.norm(duals[layer + 1])
        assert np.linalg.norm(terms[0] + terms[1] - terms[2]) < 1e-11 * max(map(np.linalg.norm, terms)) + rounding


def brute(depth, richness, beta, y, rows, scale):
    """Sign changes on a fine grid of ln t."""
    k, u = np.linalg.eigh(rows @ rows.T / scale)
    target = (u.T @ y)[:, 0]

    def excess(x):
        t = np.exp(x)
        r = (1 + t) ** depth
        return richness**2 * np.sum(k * r * target**2 / (1 / beta + k * r) ** 2) - t

    grid = np.linspace(-12, 8, 20001)
    values = np.array([excess(x) for x in grid])
    places = np.flatnonzero(values[:-1] * values[1:] < 0)
    return [np.exp(optimize.brentq(excess, grid[i], grid[i + 1], xtol=1e-14)) for i in places]


@pytest.mark.parametrize("richness", [0.4, 0.55, 0.6, 0.65, 0.8])
def test_every_solution_is_found(richness):
    """Deep, hot and strongly decayed: one solution, then three, then one."""
    expected = brute(4, richness, 2.0, SIGNS, FULL, 3.0**5)
    _, saddles = solve(4, richness, 2.0, scale=3.0**5)
    found = sorted(float(part.strengths[0]) for part in saddles.found)
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    assert saddles.complete
    if len(found) == 3:
        by_size = sorted(saddles.found, key=lambda part: float(part.strengths[0]))
        assert [part.stable for part in by_size] == [True, False, True]


def test_a_deep_hot_network_has_several_solutions():
    counts = [len(solve(4, g, 2.0, scale=3.0**5)[1].found) for g in np.linspace(0.4, 0.8, 9)]
    assert set(counts) == {1, 3}


@pytest.mark.parametrize("richness", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("depth", [1, 3, 16])
def test_stationary_from_lazy_to_ultra_rich(depth, richness):
    _, saddles = solve(depth, richness, 50.0)
    best, kernel = saddles.found[0], FULL @ FULL.T
    t = float(best.strengths[0])
    outputs = kernel @ best.v * (1 + t) ** depth
    assert np.linalg.norm(SIGNS - outputs - best.v / 50.0) < 1e-11 * np.linalg.norm(SIGNS)
    assert richness**2 * float((best.v * outputs).sum()) == pytest.approx(t, rel=1e-10)


@pytest.mark.parametrize("loss", ["squared", "logistic", "softmax"])
def test_several_outputs_and_losses(loss):
    """Stationarity in the outputs' own matrix, and below every neighbour."""
    y = np.eye(3)[RNG.integers(3, size=12)] if loss == "softmax" else np.sign(RNG.standard_normal((12, 3)))
    problem, saddles = solve(2, 1.0, 10.0, y=y, loss=loss)
    best, kernel = saddles.found[0], FULL @ FULL.T
    T = best.of(lambda t: t)
    outputs = kernel @ best.v @ np.linalg.matrix_power(np.eye(3) + T, 2)
    np.testing.assert_allclose(outputs, best.outputs, atol=1e-9)
    np.testing.assert_allclose(10.0 * np.asarray(problem.loss.error(y, outputs)), best.v, atol=1e-8)
    np.testing.assert_allclose(best.v.T @ outputs, T, atol=1e-8)


def test_outputs_that_are_copies_share_one_direction():
    """Two equal outputs are one output √2 times as large."""
    _, double = solve(2, 1.0, 10.0, y=np.concatenate([SIGNS, SIGNS], axis=1))
    _, single = solve(2, 1.0, 10.0, y=np.sqrt(2) * SIGNS)
    assert double.found[0].strengths[-1] == pytest.approx(single.found[0].strengths[0], rel=1e-8)
    assert abs(double.found[0].strengths[0]) < 1e-8
    assert double.found[0].free_energy == pytest.approx(single.found[0].free_energy, rel=1e-9)


def test_descent_finds_both_minima_of_several_outputs():
    y = np.concatenate([SIGNS, np.zeros_like(SIGNS)], axis=1)
    richness = next(g for g in np.linspace(0.4, 0.8, 41) if len(solve(4, g, 2.0, scale=3.0**5)[1].found) == 3)
    richness += 0.02  # away from where two of them meet
    _, several = solve(4, richness, 2.0, y=y, scale=3.0**5)
    _, single = solve(4, richness, 2.0, scale=3.0**5)
    stable = [part.free_energy for part in single.found if part.stable]
    assert len(stable) == 2
    np.testing.assert_allclose([part.free_energy for part in several.found], stable, rtol=1e-8)


def test_gradient_and_curvature_of_the_objective():
    y = RNG.standard_normal((12, 3))
    spectrum = spectra.dense(FULL, y)
    for loss in ("squared", "logistic"):
        work = minimising._Work(losses.get(loss), np.sign(y), 3.0, spectrum, minimising.Penalty(3, 0.8))
        z, d = RNG.standard_normal((2, len(spectrum.values), 3))
        if loss == "squared":
            work.spectrum = spectra.dense(FULL, np.sign(y))
        step = 1e-5
        slope = (work.value(z + step * d) - work.value(z - step * d)) / (2 * step)
        assert slope == pytest.approx(float(np.sum(work.gradient(z) * d)), rel=1e-6)
        bend = (work.gradient(z + step * d) - work.gradient(z - step * d)) / (2 * step)
        np.testing.assert_allclose(work.hessian(z)(d), bend, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("depth", [1, 2, 16])
def test_strength_inverts_its_power(depth):
    t = np.concatenate([[0.0], 10.0 ** np.arange(-12, 8.0)])
    np.testing.assert_allclose(minimising.strength(t * (1 + t) ** depth, depth), t, rtol=1e-12)


def test_krylov_space_holds_what_the_readout_needs():
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((60, 80)) / np.sqrt(80)
    for y in (rng.standard_normal((60, 1)), rng.standard_normal((60, 2)), np.ones((60, 2))):
        krylov = spectra.Krylov(rows @ rows.T, y)
        krylov.grow(60)
        part, whole = krylov.spectrum(), spectra.dense(rows, y)
        for shift in (1e-2, 1.0):
            ours = part.vectors @ (part.targets / (shift + part.values[:, None])) + part.rest / shift
            full = whole.vectors @ (whole.targets / (shift + whole.values[:, None])) + whole.rest / shift
            np.testing.assert_allclose(ours, full, rtol=1e-8, atol=1e-8)
