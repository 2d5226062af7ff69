"""The adaptive limit with other losses, several outputs and decays: exact cases first, then relations that must hold."""

import functools

import numpy as np
import pytest
from scipy import integrate, optimize

import adakern as ak

LABELS = {"logistic": np.array([1.0]), "softmax": np.array([[1.0, 0.0, 0.0]]), "squared": np.array([[0.8, -0.6]])}

LONG = pytest.mark.long
LOSSES = [
    pytest.param("logistic", marks=LONG),
    pytest.param("softmax", marks=LONG),
    pytest.param("squared", marks=LONG),
]


def readout(loss, kernel, beta):
    """v of one point by bisection: along y for squared and logistic; (v, -v/2, -v/2) for three classes. Returns v and |v|²."""
    if loss == "squared":
        v = LABELS[loss] / (1 / beta + kernel)
        return v, float(np.sum(v**2))
    if loss == "logistic":
        v = optimize.brentq(lambda v: v - beta / (1 + np.exp(kernel * v)), 0.0, beta)
        return np.array([v]), v**2
    v = optimize.brentq(lambda v: v - beta * (1 - 1 / (1 + 2 * np.exp(-1.5 * kernel * v))), 0.0, beta)
    return np.array([[v, -v / 2, -v / 2]]), 1.5 * v**2


def one_point(loss, richness, beta):
    """Exact aNBK of one point with Φ⁰ = 1, L = 1, tanh: Φ, v, and the density of h up to its norm."""

    def density(h, square):
        return np.exp(-(h**2) / 2 + 0.5 * richness**2 * square * np.tanh(h) ** 2)

    def second(kernel):
        square = readout(loss, kernel, beta)[1]
        norm = integrate.quad(density, -12, 12, args=(square,))[0]
        return integrate.quad(lambda h: np.tanh(h) ** 2 * density(h, square), -12, 12)[0] / norm

    kernel = optimize.brentq(lambda k: second(k) - k, 1e-3, 1.0)
    v, square = readout(loss, kernel, beta)
    return kernel, v, lambda h: density(h, square)


@pytest.fixture(scope="module")
def solved():
    """One point, Φ⁰ = 1: the solution for a loss, each solved once."""

    @functools.cache
    def solution(loss):
        limit = ak.ANBK(ak.MLP(1, "tanh"), richness=1.5, beta=10.0, loss=loss)
        return ak.solve(limit, [[1.0, 1.0]], LABELS[loss], particles=512, tolerance=0.01)

    return solution


@pytest.mark.parametrize("loss", LOSSES)
def test_one_point_is_exact(loss, solved):
    kernel, v, density = one_point(loss, 1.5, 10.0)
    solution = solved(loss)
    error = solution.kernel_errors[0][0, 0]
    assert error < 0.01 * kernel
    assert abs(solution.kernel[0, 0] - kernel) < 4 * error
    np.testing.assert_allclose(10.0 * solution.errors, v, rtol=0.05)
    # The free energy is E + KL, here with KL as an integral of q ln(q/p).
    s = kernel * v
    values = {
        "squared": lambda: 0.5 * np.sum((LABELS["squared"] - s) ** 2),
        "logistic": lambda: np.log1p(np.exp(-s[0])),
        "softmax": lambda: np.log(np.exp(s).sum()) - s[0, 0],
    }
    energy = 1.5**2 * (10.0 * values[loss]() + 0.5 * kernel * np.sum(v**2))
    norm = integrate.quad(density, -12, 12)[0]

    def gain(h):
        q = density(h) / norm
        return q * (np.log(q) + h**2 / 2 + 0.5 * np.log(2 * np.pi))

    free = energy + integrate.quad(gain, -12, 12)[0]
    assert solution.stats["free_energy_error"] < 0.02
    assert abs(solution.free_energy - free) < 4 * solution.stats["free_energy_error"] + 1e-3


@pytest.mark.parametrize("loss", LOSSES)
def test_the_parts_of_an_answer_fit_together(loss, solved):
    solution = solved(loss)
    v = 10.0 * np.atleast_2d(solution.errors)
    np.testing.assert_allclose(solution.duals[-1], -(1.5**2) * v @ v.T, rtol=1e-6)
    s = solution.kernel @ solution.coefficients
    link = {
        "squared": lambda s: s,
        "logistic": lambda s: np.tanh(s / 2),
        "softmax": lambda s: np.exp(s) / np.exp(s).sum(axis=1, keepdims=True),
    }[loss]
    np.testing.assert_allclose(solution.fitted, link(s), rtol=1e-6)
    f = solution.predict(np.random.default_rng(0).normal(size=(50, 2)) * 3)
    if loss == "logistic":
        assert f.shape == (50,) and (np.abs(f) < 1).all() and np.abs(f).max() > 0.1
    if loss == "softmax":
        assert f.shape == (50, 3) and (f > 0).all()
        np.testing.assert_allclose(f.sum(axis=1), 1.0, rtol=1e-9)


def test_the_density_has_two_peaks_where_features_are_learnt():
    """One point, tanh: at large richness a Mexican hat, lazy one peak; symmetric both times."""
    X, y = np.array([[1.0, 1.0]]), np.array([1.0])
    rich = ak.solve(
        ak.ANBK(ak.MLP(1, "tanh"), richness=4.0, beta=10.0, loss="logistic"), X, y, particles=512, tolerance=0.02
    )
    lazy = ak.solve(ak.NNGPK(ak.MLP(1, "tanh"), beta=10.0), X, y)

    def heights(solution):
        values, weights = solution.density(1, 0)
        height, edges = np.histogram(values, np.linspace(-4.2, 4.2, 22), weights=weights)
        return height, (edges[1:] + edges[:-1]) / 2

    height, place = heights(rich)
    assert height[10] < 0.7 * height[place > 0].max() and height[10] < 0.7 * height[place < 0].max()
    flat, _ = heights(lazy)
    assert flat.argmax() == 10
    values, _ = rich.density(1, 0)
    independent = 512  # the snapshots follow each other
    assert abs(np.mean(values > 0) - 0.5) < 4 * 0.5 / np.sqrt(independent)
    assert abs(values.mean()) < 4 * values.std() / np.sqrt(independent)


@LONG
def test_softmax_of_two_classes_is_logistic(find, points, apart):
    """Class margins: s_0 - s_1 sees a kernel twice as large, so that softmax at λ_L = 2, γ0 = √2·g is logistic at λ_L = 1, γ0 = g."""
    X, y = points
    logistic = find(loss="logistic")
    limit = ak.ANBK(ak.MLP(1, "tanh"), richness=1.0, loss="softmax", decay=(1.0, 2.0))
    onehot = np.column_stack([y > 0, y < 0]).astype(float)
    softmax, swapped = (
        ak.solve(limit, X, labels, particles=256, tolerance=0.03) for labels in (onehot, onehot[:, ::-1])
    )
    # dE/dΦ = -γ0²/(2λ) v vᵀ with v = (u, -u): twice the square over twice the decay.
    assert apart(logistic, softmax) < 2
    np.testing.assert_allclose(softmax.fitted[:, 0] - softmax.fitted[:, 1], logistic.fitted, atol=0.02)
    assert softmax.fitted.min() > 0 and (np.sign(logistic.fitted) == y).all()
    # Another order of the classes gives the same kernels, and the columns in that order.
    np.testing.assert_allclose(swapped.kernel, softmax.kernel, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(swapped.predict(X[:3] + 0.1)[:, ::-1], softmax.predict(X[:3] + 0.1), rtol=1e-6)
    v = 50.0 * softmax.errors
    np.testing.assert_allclose(softmax.duals[-1], -0.5 * v @ v.T, rtol=1e-6, atol=1e-9)


@LONG
def test_logistic_at_small_richness_is_lazy(find):
    rich, lazy = find(loss="logistic", richness=0.02), find(loss="logistic", richness=0.0)
    assert lazy.draws == () and lazy.converged and lazy.residual < 1e-8
    assert np.linalg.norm(rich.kernel - lazy.kernel) < 2 * np.linalg.norm(rich.kernel_errors[0])
    np.testing.assert_allclose(rich.fitted, lazy.fitted, atol=0.02)
    assert not any(dual.any() for dual in lazy.duals) and lazy.free_energy == 0.0


@LONG
def test_another_loss_is_a_warm_start(find, apart):
    assert apart(find(init=find(loss="logistic")), find(seed=100)) < 2


@LONG
def test_identical_outputs_add_up(find, points):
    """E of C equal columns is C times that of one: two columns at γ0 are one at √2 γ0, neuron by neuron."""
    one = find(richness=np.sqrt(2.0))
    limit = ak.ANBK(ak.MLP(1, "tanh"), richness=1.0)
    two = ak.solve(limit, points[0], np.column_stack([points[1]] * 2), particles=256, tolerance=0.03)
    np.testing.assert_allclose(two.kernel, one.kernel, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(two.fitted, np.column_stack([one.fitted] * 2), rtol=1e-5)


def test_bad_labels(points):
    X, y = points
    network = ak.MLP(1, "tanh")
    with pytest.raises(ValueError, match=r"y must hold -1 and \+1 for the logistic loss"):
        ak.solve(ak.ANBK(network, loss="logistic"), X, (y > 0).astype(float))
    with pytest.raises(ValueError, match="y must be one-hot, .* but it has shape"):
        ak.solve(ak.ANBK(network, loss="softmax"), X, y)
    with pytest.raises(ValueError, match="y must have rows that are one-hot"):
        ak.solve(ak.ANBK(network, loss="softmax"), X, np.column_stack([y, y]))


def linear_overlaps(decays, richness, beta):
    """c_1, c_2 of a linear network of two hidden layers along y and across it, whitened data, |y| = 1."""
    first, second, top = decays

    def below(c2):
        v = 1 / (1 / beta + c2 / top)
        d2 = -(richness**2) / top * v**2
        c1 = second * c2 / (1 - c2 * d2)  # from 1/c2 = λ_1/c1 + d2
        d1 = d2 / second / (1 + c1 * d2 / second)
        return c1, 1 - c1 * (first + d1)

    c2 = optimize.brentq(lambda c: below(c)[1], 1.01 / (first * second), 20.0)
    return [(below(c2)[0], 1 / first), (c2, 1 / (first * second))]


@LONG
def test_decays_of_a_deep_linear_network():
    rng = np.random.default_rng(0)
    X = 2 * np.linalg.qr(rng.normal(size=(4, 4)))[0]  # Φ⁰ = I
    y = rng.normal(size=4)
    y /= np.linalg.norm(y)
    across = np.eye(4) - np.outer(y, y)
    decays = (0.7, 1.5, 2.0)
    exact = linear_overlaps(decays, 2.0, 10.0)
    # The recursion of the theory, from the overlaps: p_ℓ is Gaussian of precision λ/c_{ℓ-1} + d_ℓ.
    limit = ak.ANBK(ak.MLP(2, "linear"), richness=2.0, beta=10.0, decay=decays)
    solution = ak.solve(limit, X, y, solver="particles", particles=2048, tolerance=0.01)
    for kernel, error, (along, off) in zip(solution.kernels, solution.kernel_errors, exact, strict=True):
        sigma = np.linalg.norm(error)
        assert along > 1.2 * off
        assert abs(y @ kernel @ y - along) < 4 * sigma
        assert abs(np.sum(across * kernel) / 3 - off) < 4 * sigma
    assert solution.residual < 0.05
