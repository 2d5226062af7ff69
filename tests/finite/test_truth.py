"""Networks of finite width against what is known without them, at small size; `adakern bench truth` does the same at full size."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import adakern as ak
from adakern.benchmarks import truth


@pytest.fixture(scope="module")
def digits():
    return ak.datasets.mnist(n_train=50, n_test=40)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, net, richness",
    [
        ("mnist50_L1_relu_g1.0", ak.MLP(1, "relu"), 1.0),
        pytest.param("mnist50_L2_tanh_g0.5", ak.MLP(2, "tanh"), 0.5, marks=pytest.mark.long),
    ],
)
def test_kernels_of_another_programs_networks(fixtures, digits, name, net, richness):
    """Alignment above 0.999, and the difference within the joint error bars, at every layer."""
    X, y, *_ = digits
    saved = np.load(fixtures / "wide_networks.npz")
    run = ak.finite.langevin(net, X, y, richness=richness, beta=50.0, width=256, time=40.0, burn_in=10.0, seed=2)
    for layer, (theirs, doubt) in enumerate(zip(saved[f"{name}/Phi"], saved[f"{name}/rel"], strict=True)):
        ours, size = run.kernels[layer], np.linalg.norm(theirs)
        error = np.hypot(np.linalg.norm(run.kernel_errors[layer]) / size, doubt)
        assert ak.alignment(ours, theirs) > 0.999
        assert np.linalg.norm(ours - theirs) / size < 2 * error
    errors = np.maximum(run.fitted_errors, 1e-3)
    assert np.sqrt(np.mean(((run.fitted - saved[f"{name}/f"]) / errors) ** 2)) < 4


def test_flow_of_another_programs_network(fixtures, digits):
    X, y, *_ = digits
    saved = np.load(fixtures / "wide_networks.npz")
    run = ak.finite.gradient_flow(ak.MLP(1, "tanh"), X, y, richness=1.0, decay=1.0, width=512, time=60.0)
    theirs = saved["mnist50_flow_tanh_g1.0/Phi"][0]
    size = np.linalg.norm(theirs)
    assert np.linalg.norm(run.kernel - theirs) < 3 * np.linalg.norm(run.kernel_errors[0])
    assert np.linalg.norm(run.kernel_errors[0]) / size < 2e-3
    np.testing.assert_allclose(run.fitted, saved["mnist50_flow_tanh_g1.0/f"], atol=2e-3)


@pytest.mark.parametrize("depth", [1, pytest.param(3, marks=pytest.mark.long)])
def test_linear_networks_on_whitened_data(depth):
    """Label overlaps of every layer against the closed form of infinite width, which a width of 64 meets to 1/N."""
    X, y = 2 * np.eye(4), np.full(4, 0.5)
    run = ak.finite.langevin(
        ak.MLP(depth, "linear"), X, y, beta=10.0, width=64, time=70.0, burn_in=10.0, replicas=8, seed=1, snapshots=1
    )
    expected = truth.overlaps(depth, 1.0, 10.0)
    errors = np.asarray(run.stats["label_overlap_error"])
    bias = (0.6 if depth == 1 else 3.0) / 64  # at full size 0.3 ± 0.3, and 1.8, 2.7, 1.9 ± 0.5 by layer, over N
    assert np.all(np.abs(run.stats["label_overlap"] - expected) < 3 * errors + bias)
    assert np.all(errors < 0.02 * expected)


def test_overlaps_solve_their_equation():
    for depth, richness, beta in ((1, 0.1, 5.0), (3, 2.0, 50.0), (8, 4.0, 10.0)):
        c = truth.overlaps(depth, richness, beta)
        ratio = 1 + richness**2 * c[-1] / (1 / beta + c[-1]) ** 2
        np.testing.assert_allclose(c, ratio ** np.arange(1, depth + 1), rtol=1e-9)


@pytest.mark.parametrize("sampler", ["baoab", pytest.param("euler", marks=pytest.mark.long)])
def test_law_of_one_neuron(sampler):
    """The preactivation of a single neuron at a single point, against its density by quadrature."""
    run = ak.finite.langevin(
        ak.MLP(1, "tanh"),
        np.ones((1, 1)),
        np.ones(1),
        beta=5.0,
        width=1,
        time=25.0,
        burn_in=24.0,
        replicas=2000,
        sampler=sampler,
        snapshots=1,
        seed=3,
        throw=False,
    )
    h, mass = truth.one_neuron_law(np.tanh, 1.0, 5.0, 1.0)
    test = stats.kstest(run.density(1, 0)[0], lambda x: np.interp(x, h, mass))
    assert test.statistic < 1.95 / np.sqrt(2000)  # one sampler in a thousand would exceed it
    prior = stats.kstest(run.density(1, 0)[0], stats.norm.cdf)
    assert prior.statistic > 3 / np.sqrt(2000)  # and the law is not the prior's


@pytest.mark.long
@pytest.mark.parametrize("parameterization, richness", [("mean-field", 0.05), ("ntk", 1.0), ("ntk", 0.5)])
def test_lazy_limits(digits, parameterization, richness):
    """Small richness gives the predictor NNGPK; NTK parameterisation gives the mean and, over γ², the variance of NNGP."""
    X, y, X_test, _ = digits
    X, y = X[:12], y[:12]
    net = ak.MLP(1, "tanh")
    run = ak.finite.langevin(
        net,
        X,
        y,
        richness=richness,
        parameterization=parameterization,
        width=512,
        time=60.0,
        burn_in=10.0,
        replicas=4,
        X_test=X_test,
        snapshots=8,
    )
    exact = ak.solve(ak.NNGP(net, beta=50.0), X, y)
    z = (run.test_predictions - exact.predict(X_test)) / run.test_errors
    assert np.mean(z**2) < 2.5
    if parameterization == "ntk":
        ratio = richness**2 * run.test_spread**2 / exact.variance(X_test)
        assert abs(np.mean(ratio) - 1) < 0.08
        sampled = richness**2 * run.variance(X_test) / exact.variance(X_test)
        assert abs(np.mean(sampled) - 1) < 0.3  # 32 draws


@pytest.mark.long
def test_exact_mixture_of_a_linear_network_of_finite_width(digits):
    """Sixteen neurons, forty points: far from any limit, but for a linear network the posterior is a mixture of Gaussian processes."""
    X, y, X_test, y_test = digits
    X, y = X[:40], y[:40]
    limit = ak.NNGP(ak.MLP(1, "linear"), beta=20.0)
    expected = truth.mixture_loss(limit, X, y, X_test, y_test, 16)
    run = ak.finite.langevin(
        limit.network,
        X,
        y,
        parameterization="ntk",
        beta=20.0,
        width=16,
        time=80.0,
        burn_in=20.0,
        replicas=8,
        X_test=X_test,
        y_test=y_test,
        snapshots=1,
    )
    losses = 2 * run.test_losses
    error = losses.std(ddof=1) / np.sqrt(run.stats["independent_moments"])
    plain = ak.solve(limit, X, y)
    infinite = np.mean((plain.predict(X_test) - y_test) ** 2 + plain.variance(X_test))
    assert abs(losses.mean() - expected) < 4 * error
    assert abs(infinite - expected) > 8 * error  # the width matters
