"""Finite width by renormalised scales: exact mixtures, brute force, symmetries, and what may be asked of it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize

import adakern as ak
from adakern import renormalization
from adakern.precision import scope
from adakern.progress import Progress
from adakern.renormalization import renormalize
from adakern.solvers import closed


@pytest.fixture(scope="module")
def small():
    rng = np.random.default_rng(3)
    X = rng.standard_normal((6, 4))
    return X, np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(6), rng.standard_normal((3, 4))


def nngp(depth=1, activation="linear", beta=10.0, decay=1.0):
    return ak.NNGP(ak.MLP(depth, activation), beta=beta, decay=decay)


def kernel_at(limit, X, scales):
    """K^R_L from the recursion of `solve`, without its audit."""
    decay = np.array(limit.decays)
    decay[1:] /= scales
    lazy = ak.NNGPK(limit.network, limit.beta, decay)
    with scope("float64"):
        answer = closed.solve(lazy, X, np.zeros((len(X), 1)), precision="float64", progress=Progress(False))
    return answer.kernel / decay[-1]


def evidence(kernel, y, beta):
    M = kernel + np.eye(len(y)) / beta
    return np.linalg.slogdet(M)[1] + y @ np.linalg.solve(M, y)


def posterior(X, y, beta, width):
    """Exact E[Q] and E[Q K (QK + 1/β)^{-1}] y of a linear network with one layer: a Gamma mixture, by quadrature."""
    values, vectors = np.linalg.eigh(X @ X.T / X.shape[1])
    along = vectors.T @ y
    Q = np.exp(np.linspace(-1, 1, 2001) * min(3.0, 12 / np.sqrt(width) + 0.5))[:, None]
    total = Q * values + 1 / beta
    log = width / 2 * (np.log(Q[:, 0]) - Q[:, 0]) - np.sum(np.log(total) + along**2 / total, axis=1) / 2
    weight = np.exp(log - log.max())  # in ln Q, so that Q^{N/2-1} dQ is Q^{N/2} d ln Q
    weight /= weight.sum()
    return weight @ Q[:, 0], vectors @ (weight @ (Q * values / total) * along)


def slope(x, errors):
    return np.polyfit(np.log(x), np.log(errors), 1)[0]


@pytest.mark.parametrize("depth, activation", [(1, "relu"), (3, "relu"), (2, "erf")])
def test_wide_networks_are_the_nngp_and_the_deviation_falls_as_one_over_the_width(small, depth, activation):
    X, y, _ = small
    widths = np.array([100, 1000, 10000, 100000])
    found = [renormalize(nngp(depth, activation), X, y, width=int(n)) for n in widths]
    deviations = np.array([np.abs(np.array(r.scales) - 1) for r in found])
    assert deviations[-1].max() < 1e-3
    for layer in range(depth):
        assert slope(widths, deviations[:, layer]) == pytest.approx(-1, abs=0.1)
    assert found[0].alpha == 0.06


def test_linear_network_agrees_with_the_exact_posterior_to_second_order_in_the_width(small):
    X, y, _ = small
    widths, scales, fits = np.array([50, 100, 200, 400]), [], []
    for width in widths:
        found = renormalize(nngp(), X, y, width=int(width))
        mean, fitted = posterior(X, y, 10.0, width)
        scales.append(abs(found.scales[0] - mean))
        fits.append(np.linalg.norm(ak.solve(found.limit, X, y).fitted - fitted))
        assert scales[-1] < 0.2 * abs(mean - 1)
    assert slope(widths, scales) == pytest.approx(-2, abs=0.25)
    assert slope(widths, fits) == pytest.approx(-1, abs=0.15)  # the mean over Q of a curved function of Q


def test_linear_network_in_the_proportional_limit():
    """P = N/2 orthogonal points: the scale stays away from one, and the saddle is off by O(1/N)."""
    points, errors = np.array([8, 16, 32]), []
    for P in points:
        X, y = np.sqrt(P) * np.eye(P), np.full(P, 2.0)
        found = renormalize(nngp(), X, y, width=2 * int(P))
        errors.append(abs(found.scales[0] - posterior(X, y, 10.0, 2 * P)[0]))
        root = optimize.brentq(lambda q: q - 1 + 0.5 * q * (1 / (0.1 + q) - 4 / (0.1 + q) ** 2), 0.5, 5)
        assert found.scales[0] == pytest.approx(root, rel=1e-9) and found.scales[0] > 1.5
    assert slope(points, errors) == pytest.approx(-1, abs=0.15)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("depth", [1, 2])
def test_brute_force(small, depth, activation):
    X, y, _ = small
    limit, width = nngp(depth, activation, decay=(0.5, 2.0, 1.5)[: depth + 1]), 3
    found = renormalize(limit, X, y, width=width)
    last = np.linspace(-2.5, 2.5, 101)
    first = np.linspace(-1.5, 1.5, 16) if depth == 2 else [0.0]
    action = np.empty((len(first), len(last)))
    for i, x in enumerate(first):
        kernel = kernel_at(limit, X, np.exp([x, 0.0][-depth:]))
        for j, z in enumerate(last):
            entropy = np.exp(z) - z + (np.exp(x) - x if depth == 2 else 0)
            action[i, j] = entropy + evidence(np.exp(z) * kernel, y, limit.beta) / width
    i, j = np.unravel_index(action.argmin(), action.shape)
    logs = np.log(found.scales)
    assert found.action <= action.min() + 1e-12 and found.action == pytest.approx(action.min(), rel=0.01)
    assert abs(logs[-1] - last[j]) <= 0.1 and np.abs(logs).max() > 0.03
    assert depth == 1 or abs(logs[0] - first[i]) <= 0.2
    at = np.sum(found.scales - logs) + evidence(kernel_at(limit, X, found.scales), y, limit.beta) / width
    assert found.action == pytest.approx(at, rel=1e-11)
    assert found.converged and found.residual < 1e-8


@pytest.mark.parametrize("depth", [2, 3])
def test_homogeneity_is_a_short_cut_and_nothing_else(small, depth, monkeypatch):
    X, y, _ = small
    X = np.vstack([X, X[:1], -X[1:2]])  # correlation one, and minus one
    limit, y = nngp(depth, "relu"), np.append(y, [0.1, 0.2])
    short = renormalize(limit, X, y, width=7)
    monkeypatch.setattr(renormalization._Problem, "powers", property(lambda self: None))
    long = renormalize(limit, X, y, width=7)
    np.testing.assert_allclose(short.scales, long.scales, rtol=1e-8)
    np.testing.assert_allclose(short.scales, short.scales[0], rtol=1e-10)
    assert short.action == pytest.approx(long.action, rel=1e-12)


def test_degree_two(small):
    X, y, _ = small
    square = ak.activations.Numeric(lambda h: h * h, "square", 2)
    found = renormalize(nngp(2, square, decay=2.0), X, y, width=4)
    first, last = found.scales
    assert found.residual < 1e-8 and first - 1 == pytest.approx(2 * (last - 1), rel=1e-8)


def test_powers(small):
    """K^R_L ∝ Π Q_ℓ^{k^{L-ℓ}}; a step (degree 0) hides the scales below it, and one layer needs no degree."""
    X, y, _ = small
    for depth, degree, powers in ((3, 2, [4, 2, 1]), (3, 0, [0, 0, 1]), (1, None, [1])):
        limit = nngp(depth, ak.activations.Numeric(lambda h: h, "custom", degree))
        assert renormalization._Problem(limit, X, y, 5, "float64").powers.tolist() == powers


def test_several_minima_and_the_lowest_is_kept():
    """A deep network with large targets: Q ≈ 1 fits nothing and is stable, and so is a large Q that fits."""
    X = np.array([[0.01]])
    for target, large in ((100.0, True), (9.0, False)):
        found = renormalize(nngp(4, beta=1.0), X, np.array([target]), width=10)
        x = np.linspace(-3, 4, 20001)
        size = 1e-4 * np.exp(4 * x)
        action = 4 * (np.exp(x) - x) + (np.log1p(size) + target**2 / (1 + size)) / 10
        assert found.action == pytest.approx(action.min(), abs=1e-6)
        assert (found.scales[0] > 5) == large
        assert "minim" in found.status
    assert "lowest of 2 minima" in renormalize(nngp(4, beta=1.0), X, np.array([60.0]), width=10).status


@pytest.mark.parametrize("depth, activation", [(2, "relu"), (2, "erf")])
def test_symmetries(small, depth, activation):
    X, y, _ = small
    limit = nngp(depth, activation)
    found = renormalize(limit, X, y, width=5)
    order = np.random.default_rng(0).permutation(len(X))
    rotation = np.linalg.qr(np.random.default_rng(1).standard_normal((4, 4)))[0]
    scaled = nngp(depth, activation, beta=10.0 / 9, decay=(4.0, 1.0, 1.0 / 9))
    for other in (
        renormalize(limit, X[order], y[order], width=5),
        renormalize(limit, X @ rotation, y, width=5),
        renormalize(limit, X, -y, width=5),
        renormalize(limit, X, y[:, None], width=5),
        renormalize(scaled, 2 * X, 3 * y, width=5),
    ):
        np.testing.assert_allclose(other.scales, found.scales, rtol=1e-8)
    shift = renormalize(scaled, 2 * X, 3 * y, width=5).action - found.action
    assert shift == pytest.approx(2 * len(y) * np.log(3) / 5, rel=1e-9)


def test_predictor_and_variance(small):
    X, y, X_new = small
    limit = nngp(1, "relu", beta=20.0, decay=(1.0, 2.0))
    found = renormalize(limit, X, y, width=4)
    solution, base = ak.solve(found.limit, X, y), ak.solve(limit, np.vstack([X, X_new]), np.zeros(9))
    (Q,), kernel = found.scales, base.kernel / 2.0
    inverse = np.linalg.inv(Q * kernel[:6, :6] + np.eye(6) / 20.0)
    cross = Q * kernel[6:, :6]
    np.testing.assert_allclose(solution.predict(X_new), cross @ inverse @ y, rtol=1e-9)
    variance = Q * np.diag(kernel)[6:] - np.einsum("ip,pq,iq->i", cross, inverse, cross)
    np.testing.assert_allclose(solution.variance(X_new), variance, rtol=1e-8)
    np.testing.assert_allclose(found.limit.decays, (1.0, 2.0 / Q), rtol=1e-14)
    assert abs(Q - 1) > 0.02


def test_kind_is_kept(small):
    X, y, _ = small
    mean = renormalize(ak.NNGPK(ak.MLP(2, "relu"), beta=10.0), X, y, width=9)
    assert isinstance(mean.limit, ak.NNGPK)
    assert mean.scales == renormalize(nngp(2, "relu"), X, y, width=9).scales


@pytest.mark.parametrize("beta", [1.0, 1e6])
@pytest.mark.parametrize("width", [1, 50, 10**6])
@pytest.mark.parametrize("depth, activation", [(1, "linear"), (3, "relu"), (2, "erf")])
def test_awkward_data(small, depth, activation, width, beta):
    X, y, _ = small
    limit = nngp(depth, activation, beta=beta)
    twice = np.vstack([X, X[:3], np.zeros((1, 4))])  # equal points with targets that differ, and a point at the origin
    assert renormalize(limit, twice, np.append(y, [1, -1, 0.5, 0.3]), width=width).residual < 1e-8
    nothing = renormalize(limit, X, 0 * y, width=width)
    assert nothing.residual < 1e-8 and max(nothing.scales) < 1
    assert renormalize(limit, X[:1], y[:1], width=width).residual < 1e-8
    assert renormalize(limit, 0 * X, y, width=width).scales == (1.0,) * depth


def test_float32(small):
    X, y, _ = small
    for limit in (nngp(2, "relu"), nngp(2, "erf")):
        single, double = (renormalize(limit, X, y, width=5, precision=p) for p in ("float32", "float64"))
        np.testing.assert_allclose(single.scales, double.scales, rtol=1e-3)


@pytest.mark.long
def test_failure_is_said(small):
    X, y, _ = small
    with pytest.raises(ak.ConvergenceError, match="quadrature cannot resolve the activation.*throw=False"):
        renormalize(nngp(1, "tanh"), 1e4 * X, y, width=5)
    assert not renormalize(nngp(1, "tanh"), 1e4 * X, y, width=5, throw=False).converged


def test_an_unfinished_descent_is_noticed(small, monkeypatch):
    X, y, _ = small
    monkeypatch.setattr(renormalization, "_descend", lambda slope, start, highest: (slope(start + 0.1)[0], start + 0.1))
    found = renormalize(nngp(2, "relu"), X, y, width=50, throw=False)
    assert not found.converged and found.residual > 1e-2 and "stationary to" in found.status
    with pytest.raises(ak.ConvergenceError, match="stationary to"):
        renormalize(nngp(2, "relu"), X, y, width=50)


X, Y = np.eye(3), np.ones(3)
NAN = np.array([1.0, np.nan, 1.0])
CASES = {
    "another limit": ((ak.NTK(ak.MLP(1)), X, Y), {}, TypeError, "limit must be NNGP or NNGPK"),
    "no limit": (("NNGP", X, Y), {}, TypeError, "limit must be NNGP or NNGPK"),
    "a CNN": ((ak.NNGP(ak.CNN(1)), X, Y), {}, NotImplementedError, "renormalize serves MLP networks"),
    "X with NaN": ((nngp(), X * NAN, Y), {}, ValueError, "X must be finite, but it contains NaN"),
    "X too large": ((nngp(), 1e200 * X, Y), {}, ValueError, "X must have squares that fit"),
    "X of one axis": ((nngp(), Y, Y), {}, ValueError, "X must be 2-D"),
    "y with NaN": ((nngp(), X, NAN), {}, ValueError, "y must be finite, but it contains NaN"),
    "y too large": ((nngp(), X, 1e200 * Y), {}, ValueError, "y must have squares that fit"),
    "y too short": ((nngp(), X, Y[:2]), {}, ValueError, "y must have one row per point of X"),
    "several outputs": ((nngp(), X, np.ones((3, 2))), {}, ValueError, "y must have one output, but it has 2.*matrix"),
    "no width": ((nngp(), X, Y), {"width": 0}, ValueError, "width must be at least 1"),
    "a width of parts": ((nngp(), X, Y), {"width": 2.5}, TypeError, "width must be an integer"),
    "precision": ((nngp(), X, Y), {"precision": "half"}, ValueError, "precision must be one of"),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input(name):
    arguments, options, error, message = CASES[name]
    with pytest.raises(error, match=message):
        renormalize(*arguments, **{"width": 5, **options})
