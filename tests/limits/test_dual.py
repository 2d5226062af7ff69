"""The two-layer dual: derivatives, exact cases, weak duality, and the certificate of right and wrong claims."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, optimize

import adakern as ak
from adakern.limits.certificate import certificate
from adakern.limits.dual import Dual

SAMPLES = 2048


@pytest.fixture(scope="module")
def points():
    """Five points in four dimensions, the last a copy of the first, with targets for each loss and a v in each domain."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(5, 4))
    X[4] = X[0]
    one_hot = np.eye(3)[[0, 1, 2, 1, 0]]
    logits = rng.normal(size=(5, 3))
    soft = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    signs = np.array([1.0, -1.0, 1.0, -1.0, -1.0])
    beta = 3.0
    return {
        "squared": (X, rng.normal(size=(5, 2)), rng.normal(size=(5, 2))),
        "logistic": (X, signs, beta * signs * rng.uniform(0.1, 0.9, size=5)),
        "softmax": (X, one_hot, beta * (one_hot - soft)),
    }


def limit(loss="squared", activation="tanh", **numbers):
    return ak.ANBK(ak.MLP(1, activation), loss=loss, **({"richness": 0.8, "beta": 3.0, "decay": (1.3, 0.7)} | numbers))


@pytest.mark.parametrize("loss", ["squared", "logistic", "softmax"])
def test_derivatives_are_those_of_the_value(points, loss):
    X, y, v = points[loss]
    found = Dual(limit(loss), X, y, samples=SAMPLES)
    rng = np.random.default_rng(0)
    u, w = rng.normal(size=(2, *y.shape))
    if loss == "softmax":  # D is finite on rows that add up to 0
        u, w = (a - a.mean(axis=1, keepdims=True) for a in (u, w))
    h = 1e-4
    slope = (found.value(v + h * u) - found.value(v - h * u)) / (2 * h)
    assert np.sum(found.gradient(v) * u) == pytest.approx(slope, rel=1e-6)
    bend = -(found.gradient(v + h * u) - found.gradient(v - h * u)) / (2 * h)
    assert found.hessian_product(v, u) == pytest.approx(bend, rel=1e-5, abs=1e-6)
    # Symmetric and positive.
    assert np.sum(w * found.hessian_product(v, u)) == pytest.approx(np.sum(u * found.hessian_product(v, w)))
    assert np.sum(u * found.hessian_product(v, u)) > 0
    assert found.gradient(v).shape == y.shape and np.shape(found.value(v)) == ()


def test_the_gradient_is_that_of_the_kernel(points):
    X, y, v = points["squared"]
    problem = limit()
    found = Dual(problem, X, y, samples=SAMPLES)
    kernel = found.kernel(v)
    assert np.array_equal(kernel[4], kernel[0])
    expected = problem.richness**2 * (y - v / problem.beta - kernel @ v / 0.7)
    assert found.gradient(v) == pytest.approx(expected)


def test_linear_networks_have_a_determinant(points):
    r"""$\ln Z=-\frac12\ln\det(I-\frac{\gamma_0^2}{\lambda_1}v^\top Kv)$; errors from eight samples."""
    X, y, v = points["squared"]
    problem = limit(activation="linear")
    K = X @ X.T / 4 / 1.3
    v = v * np.sqrt(0.3 / np.linalg.eigvalsh(0.64 / 0.7 * v.T @ K @ v)[-1])
    inner = np.eye(2) - 0.64 / 0.7 * v.T @ K @ v
    exact = 0.64 * (np.sum(v * y) - np.sum(v**2) / 6) + 0.5 * np.linalg.slogdet(inner)[1]
    kernel = K + 0.64 / 0.7 * K @ v @ np.linalg.solve(inner, v.T @ K)
    duals = [Dual(problem, X, y, samples=4096, seed=seed) for seed in range(8)]
    values = np.array([found.value(v) for found in duals])
    kernels = np.array([found.kernel(v) for found in duals])
    error = values.std(ddof=1) / np.sqrt(8)
    assert abs(values.mean() - exact) < 4 * error
    assert error < 0.01 < abs(exact - 0.64 * (np.sum(v * y) - np.sum(v**2) / 6))  # the test sees ln Z
    assert np.linalg.norm(kernels.mean(axis=0) - kernel) < 4 * np.linalg.norm(kernels.std(axis=0, ddof=1)) / np.sqrt(8)


def test_small_tilts_have_no_noise(points):
    """The prior's kernel is exact, so that noise is of the second order in the tilt."""
    X, y, v = points["squared"]

    def scatter(richness):
        duals = [Dual(limit(richness=richness), X, y, samples=SAMPLES, seed=seed) for seed in range(4)]
        return np.std([found.value(v) for found in duals]), np.std([found.kernel(v) for found in duals], axis=0).max()

    (value, kernel), (smaller_value, smaller_kernel) = scatter(0.2), scatter(0.02)
    assert smaller_value < 1e-3 * value  # U² is 1e-4 of what it was
    assert smaller_kernel < 3e-2 * kernel
    assert Dual(limit(richness=0.02), X, y, samples=SAMPLES).ess(v) > 0.99


def one_point(richness, beta, v):
    """ln Z and <tanh²> of one point of unit variance."""

    def density(h):
        return np.exp(-0.5 * h**2 + 0.5 * richness**2 * v**2 * np.tanh(h) ** 2) / np.sqrt(2 * np.pi)

    Z = integrate.quad(density, -12, 12)[0]
    return np.log(Z), integrate.quad(lambda h: np.tanh(h) ** 2 * density(h), -12, 12)[0] / Z


def test_one_point_by_quadrature():
    problem = ak.ANBK(ak.MLP(1, "tanh"), richness=1.5, beta=10.0)
    log_z, kernel = one_point(1.5, 10.0, 0.9)
    duals = [Dual(problem, [[1.0]], [1.0], samples=4096, seed=seed) for seed in range(8)]
    values, kernels = np.array([(d.value([0.9]), d.kernel([0.9])[0, 0]) for d in duals]).T
    exact = 2.25 * (0.9 - 0.81 / 20) - log_z
    assert abs(values.mean() - exact) < 4 * values.std(ddof=1) / np.sqrt(8) < 0.01
    assert abs(kernels.mean() - kernel) < 4 * kernels.std(ddof=1) / np.sqrt(8) < 0.01


def test_weak_duality():
    """D(v) is below the free energy of every law: of laws tilted by another v, for one point, exactly known."""
    problem = ak.ANBK(ak.MLP(1, "tanh"), richness=1.5, beta=10.0)
    found = Dual(problem, [[1.0]], [1.0], samples=16384)
    bounds = np.array([found.value([v]) for v in np.linspace(-1, 3, 21)])

    def free_energy(v):
        log_z, kernel = one_point(1.5, 10.0, v)
        return 0.5 * 2.25 * v**2 * kernel - log_z + 0.5 * 2.25 / (0.1 + kernel)

    energies = np.array([free_energy(v) for v in np.linspace(0, 3, 16)])
    assert bounds.max() < energies.min() + 0.01
    assert bounds.max() > energies.min() - 0.05  # and there is no gap


def test_outside_the_domain(points):
    X, y, v = points["logistic"]
    found = Dual(limit("logistic"), X, y, samples=SAMPLES)
    assert found.value(-v) == -np.inf
    assert np.isfinite(found.value(v))


def test_precisions_agree_and_seeds_differ(points):
    X, y, v = points["squared"]
    double, single = (Dual(limit(), X, y, samples=SAMPLES, precision=p) for p in ("float64", "float32"))
    assert single.value(v) == pytest.approx(double.value(v), rel=1e-4)
    assert single.gradient(v).dtype == np.float32
    assert Dual(limit(), X, y, samples=SAMPLES).value(v) == double.value(v)
    assert Dual(limit(), X, y, samples=SAMPLES, seed=1).value(v) != double.value(v)


def test_bad_input(points):
    X, y, v = points["squared"]
    with pytest.raises(ValueError, match="one hidden layer"):
        Dual(ak.ANBK(ak.MLP(2, "tanh")), X, y)
    with pytest.raises(TypeError, match="limit must be an ANBK"):
        Dual(ak.NNGPK(ak.MLP(1, "tanh")), X, y)
    with pytest.raises(ValueError, match="samples must be at least 8"):
        Dual(limit(), X, y, samples=1)
    with pytest.raises(ValueError, match="one row per point"):
        Dual(limit(), X, y[:3])
    with pytest.raises(ValueError, match="y must hold -1 and"):
        Dual(limit("logistic"), X, y)
    with pytest.raises(ValueError, match="precision must be one of"):
        Dual(limit(), X, y, precision="float16")
    found = Dual(limit(), X, y, samples=64)
    with pytest.raises(ValueError, match="v must have the shape of y"):
        found.value(v[:, 0])
    with pytest.raises(ValueError, match="v must be finite"):
        found.gradient(np.nan * v)
    with pytest.raises(ValueError, match="v must have the shape of y"):
        certificate(limit(), X, y, v[:, 0])
    with pytest.raises(ValueError, match="groups must be at least 4"):
        certificate(limit(), X, y, v, groups=2)


def exact_readout(richness, beta):
    return optimize.brentq(lambda v: 1 - v / beta - one_point(richness, beta, v)[1] * v, 0.1, 20)


def test_certificate_of_one_point():
    problem = ak.ANBK(ak.MLP(1, "tanh"), richness=1.5, beta=10.0)
    v = exact_readout(1.5, 10.0)
    gap, error = certificate(problem, [[1.0]], [1.0], [v])
    assert abs(gap) < 3 * error < 0.01
    # A wrong v: the gap itself is known.
    wrong = 1.3 * v
    kernel = one_point(1.5, 10.0, wrong)[1]
    exact = 2.25 * (0.5 / (0.1 + kernel) - wrong + wrong**2 / 20 + 0.5 * wrong**2 * kernel)
    gap, error = certificate(problem, [[1.0]], [1.0], [wrong])
    assert abs(gap - exact) < 4 * error
    assert gap > 10 * error


def lazy_claim(problem, X, y):
    """The readout of the prior's kernel: right in the lazy limit only."""
    return ak.solve(ak.ANBK(problem.network, richness=0.0, beta=problem.beta, loss=problem.loss), X, y).coefficients


@pytest.mark.parametrize("loss", ["squared", "logistic", pytest.param("softmax", marks=pytest.mark.long)])
def test_certificate_tells_right_from_wrong(points, loss):
    X, y, _ = points[loss]
    problem = limit(loss, decay=1.0, richness=0.02)
    v = lazy_claim(problem, X, y)
    gap, error = certificate(problem, X, y, v)
    assert abs(gap) < 4 * error
    rich = limit(loss, decay=1.0, richness=2.0)
    gap, error = certificate(rich, X, y, v)
    assert gap > 5 * error


def test_certificate_of_a_law_that_is_none(points):
    X, y, v = points["squared"]
    assert certificate(limit(activation="relu"), X, y, 20 * v)[0] == np.inf
    # No output gives this v.
    X, y, v = points["logistic"]
    assert certificate(limit("logistic"), X, y, -v)[0] == np.inf
