"""Training over time at infinite width: another integrator, closed forms, the lazy limit, wide networks, the fixed point."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.linalg import expm

import adakern as ak
from adakern.trajectories import dynamics
from adakern.trajectories.population import Start, span

ONE = np.array([[1.0]]), np.array([1.0])
RELU, TANH, LINEAR = ak.MLP(1, "relu"), ak.MLP(1, "tanh"), ak.MLP(1, "linear")
LONG = pytest.mark.long


@pytest.fixture(scope="module")
def points():
    rng = np.random.default_rng(3)
    X, X_test = rng.standard_normal((6, 4)), rng.standard_normal((3, 4))
    return X, np.sign(X[:, 0]), X_test, np.sign(X_test[:, 0])


@pytest.fixture(scope="module")
def decaying(points):
    """ReLU with decay, long enough that neurons slide along kinks."""
    X, y, X_test, y_test = points
    limit = ak.ANTK(RELU, richness=1.5, decay=(0.2, 0.1))
    times = [0.0, 0.2, 0.5, 1.0, 3.0, 10.0, 40.0, 160.0]
    return dynamics(limit, X, y, times, X_test=X_test, y_test=y_test, neurons=256, replicas=2)


def by_hand(phi, slope, X, Y, gamma, decays, w, a, times):
    """The flow of given neurons, written out and integrated by scipy: outputs at the training points."""
    rows, count = X / np.sqrt(X.shape[1]), len(w)

    def unpack(flat):
        return flat[: w.size].reshape(w.shape), flat[w.size :].reshape(a.shape)

    def right(_, flat):
        w, a = unpack(flat)
        h = w @ rows.T
        delta = Y - phi(h).T @ a / (count * gamma)
        dw = gamma * ((a @ delta.T) * slope(h)) @ rows - decays[0] * w
        return np.concatenate([dw.ravel(), (gamma * phi(h) @ delta - decays[1] * a).ravel()])

    flat = np.concatenate([w.ravel(), a.ravel()])
    found = solve_ivp(right, (0, times[-1]), flat, t_eval=times, rtol=1e-10, atol=1e-11, method="DOP853")
    return [unpack(state) for state in found.y.T]


@pytest.mark.parametrize("initial", ["normal", "laplace"])
def test_against_another_integrator(points, initial):
    X, _, X_test, _ = points
    Y = np.random.default_rng(1).standard_normal((6, 2))
    times, decays = [0.0, 0.5, 2.0], (0.3, 0.1)
    found = dynamics(
        ak.ANTK(TANH, richness=1.3, decay=decays),
        *(X, Y, times),
        X_test=X_test,
        neurons=8,
        replicas=2,
        seed=5,
        initial=initial,
        accuracy=1e-8,
    )
    every = []
    for replica in range(2):
        [(_, w, a)] = Start(initial, 5, 4, 2).drawn(replica, 4)
        states = by_hand(
            np.tanh,
            lambda h: 1 - np.tanh(h) ** 2,
            X,
            Y,
            1.3,
            decays,
            np.tile(w, (2, 1)),
            np.concatenate([a, -a]),
            times,
        )
        every.append([np.tanh(w @ np.vstack([X, X_test]).T / 2).T @ a / (8 * 1.3) for w, a in states])
    mean, error = np.mean(every, axis=0), np.abs(np.subtract(*every)) / 2
    np.testing.assert_allclose(found.fitted, mean[:, :6], atol=3e-6)
    np.testing.assert_allclose(found.predictions, mean[:, 6:], atol=3e-6)
    np.testing.assert_allclose(found.prediction_errors, error[:, 6:], atol=3e-6)
    losses = [[np.mean((Y - s[:6]) ** 2) for s in one] for one in every]  # two outputs: half the sum is the mean
    np.testing.assert_allclose(found.train_loss, np.mean(losses, axis=0), rtol=1e-4)
    assert np.abs(found.fitted[-1] - found.fitted[0]).max() > 0.3


@pytest.mark.parametrize("initial", ["normal", "laplace"])
def test_one_point_linear(initial):
    r"""Δ = λ/γ0 and ⟨h²⟩ = γ0 − λ; the law of h keeps the shape of the sum of w and a at the start."""
    limit = ak.ANTK(LINEAR, richness=2.0, decay=1.0)
    found = dynamics(limit, *ONE, [0.0, 60.0], neurons=1024, replicas=16, initial=initial)
    assert 1 - found.fitted[-1, 0] == pytest.approx(0.5, abs=1e-6)
    assert found.kernels[-1, 0, 0] == pytest.approx(1.0, abs=1e-6)
    shape = [kurtosis(found.weights[-1, k, :512, 0]) for k in range(16)]
    error = np.std(shape, ddof=1) / 4
    expected = 3.0 if initial == "normal" else 4.5
    assert np.mean(shape) == pytest.approx(expected, abs=4 * error + 0.05)  # 0.05: the bias of 512 draws
    assert error < 0.3


def kurtosis(values):
    centred = values.astype(np.float64) - values.mean()
    return np.mean(centred**4) / np.mean(centred**2) ** 2


def test_everything_dies_where_decay_is_stronger():
    found = dynamics(ak.ANTK(LINEAR, richness=0.5, decay=1.0), *ONE, [0.0, 1.0, 40.0], neurons=64, replicas=2)
    assert abs(found.fitted[-1, 0]) < 1e-6 and found.kernels[-1, 0, 0] < 1e-6
    assert found.fitted[1, 0] > 0.1  # it had learned something
    assert found.train_loss[1] < found.train_loss[-1] == pytest.approx(0.5, abs=1e-6)


@pytest.mark.long
def test_lazy_limit(points):
    r"""f(t) = K(x)K⁻¹(1 − exp(−Kt))y with the NTK, within standard errors; γ0² = 1e-4 is far below them."""
    X, y, X_test, _ = points
    times = [0.3, 1.0, 4.0]
    limit = ak.ANTK(RELU, richness=0.01, decay=0.0)
    found = dynamics(limit, X, y, times, X_test=X_test, neurons=2048, replicas=8, accuracy=1e-4)
    lazy = ak.solve(ak.NTK(RELU), X, y)
    K, cross = lazy.kernel, lazy.cross_kernel(X_test)
    for index, time in enumerate(times):
        learned = np.linalg.solve(K, (np.eye(6) - expm(-K * time)) @ y)
        for values, errors, kernel in (
            (found.fitted, found.fitted_errors, K),
            (found.predictions, found.prediction_errors, cross),
        ):
            off = values[index] - kernel @ learned
            assert (np.abs(off) < 5 * errors[index] + 1e-3).all()
            assert errors[index].max() < 0.03
    off = found.kernels[0] - ak.solve(ak.NNGPK(RELU), X, y).kernels[0]
    assert np.linalg.norm(off) < 3 * np.linalg.norm(found.kernel_errors[0]) < 0.5


@pytest.mark.parametrize("decay", [pytest.param(0.0, marks=pytest.mark.long), 0.3])
def test_wide_networks(points, decay):
    X, y, X_test, y_test = points
    times = [0.3, 1.0]
    test = {"X_test": X_test, "y_test": y_test}
    net = ak.finite.gradient_flow(
        RELU, X, y, decay=decay, width=1024, time=1.0, times=times, replicas=4, centred=True, tolerance=0.0, **test
    )
    found = dynamics(ak.ANTK(RELU, decay=decay), X, y, times, neurons=4096, replicas=4, accuracy=1e-4, **test)
    for index, time in enumerate(times):
        where = int(np.argmin(np.abs(net.times - time)))
        each = net.replica_losses[where]
        error = np.hypot(each.std(ddof=1) / 2, found.train_loss_errors[index])
        assert abs(each.mean() - found.train_loss[index]) < 5 * error + 1e-4
        assert abs(net.test_losses[where] - found.test_loss[index]) < 8 * found.test_loss_errors[index] + 1e-3
        then = net.at(time)
        spread = np.hypot(then.kernel_errors[0], found.kernel_errors[index])
        assert np.linalg.norm(then.kernel - found.kernels[index]) < 3 * np.linalg.norm(spread)
        f, std = then.predict(X_test, return_std=True)
        off = np.abs(f - found.predictions[index]) / np.hypot(std, found.prediction_errors[index])
        assert (off < 6).all()


def test_energy_never_rises(decaying):
    r"""γ0²𝓛 + λ0⟨|w|²⟩/2 + λ1⟨a²⟩/2; the part of w outside of the span only decays."""
    w, a = decaying.weights.astype(np.float64), decaying.readouts.astype(np.float64)
    parts = 0.1 * np.sum(w**2, axis=-1) + 0.05 * np.sum(a**2, axis=-1)
    energy = 1.5**2 * 6 * decaying.train_loss + parts.mean(axis=(1, 2))
    assert (np.diff(energy) < 1e-7).all() and energy[-1] < 0.8 * energy[0]


def test_the_end_is_the_fixed_point(decaying):
    r"""f = Φ¹Δ/λ1 = (Φ¹ + Φ⁰∘G¹)Δ/(λ0 + λ1), with the slope of sliding neurons at the kink, and a balance of layers."""
    X, f = decaying.X, decaying.fitted[-1]
    delta, inputs = decaying.y - f, X @ X.T / 4
    np.testing.assert_allclose(decaying.kernels[-1] @ delta / 0.1, f, atol=1e-3)
    tangent = decaying.kernels[-1] + inputs * decaying.gradient_kernels[-1]
    np.testing.assert_allclose(tangent @ delta / 0.3, f, atol=1e-3)
    h = np.stack([decaying.density(160.0, 1, mu)[0] for mu in range(6)])
    rows = np.linalg.norm(X / 2, axis=1)[:, None]
    assert 0.01 < np.mean(np.abs(h) < decaying.stats["rounded_kink"] * rows) < 0.5  # neurons do slide
    masked = (h > 0) * decaying.readouts[-1].ravel()  # a slope of nothing or all
    tangent = decaying.kernels[-1] + inputs * (masked @ masked.T / masked.shape[1])
    assert np.abs(tangent @ delta / 0.3 - f).max() > 5e-3


@pytest.mark.long
def test_rounding_of_kinks_is_within_the_accuracy(points, decaying):
    X, y = points[:2]
    times = decaying.times[:-1]
    fine = dynamics(decaying.limit, X, y, times, neurons=256, replicas=2, accuracy=1e-6)
    assert fine.stats["rounded_kink"] == pytest.approx(3e-5)
    np.testing.assert_allclose(decaying.train_loss[:-1], fine.train_loss, atol=1e-4)
    np.testing.assert_allclose(decaying.fitted[:-1], fine.fitted, atol=3e-4)
    scale = np.abs(fine.kernels).max()
    np.testing.assert_allclose(decaying.kernels[:-1], fine.kernels, atol=1e-3 * scale)


@pytest.mark.parametrize("initial", ["normal", "laplace"])
def test_the_output_at_the_start_is_zero(points, initial):
    X, y, X_test, _ = points
    found = dynamics(
        ak.ANTK(RELU), X[:2], y[:2], [0.0], X_test=X_test, neurons=64, replicas=2, initial=initial, memory=2000
    )
    assert found.stats["blocks"] > 1
    assert not found.fitted.any() and not found.predictions.any() and not found.prediction_errors.any()
    assert found.train_loss == pytest.approx([0.5], abs=0)


@pytest.mark.parametrize("initial", ["normal", "laplace"])
def test_directions_outside_of_the_data(initial):
    r"""Two training points in five dimensions: all five coordinates simulated, by adding points whose targets pull at nothing, is the same problem."""
    rng = np.random.default_rng(0)
    X, X_test = rng.standard_normal((2, 5)), rng.standard_normal((3, 5))
    y, times = np.array([1.0, -1.0]), [0.0, 1.0, 3.0]
    limit = ak.ANTK(TANH, richness=1.0, decay=0.2)
    found = dynamics(limit, X, y, times, X_test=X_test, neurons=2048, replicas=8, initial=initial, accuracy=1e-4)
    assert found.stats["coordinates"] == 2 and found.basis.shape == (5, 2)
    whole = []
    for replica in range(8):
        drawn = list(Start(initial, 0, 1024, 1).drawn(replica, 5))
        w, a = np.concatenate([w for _, w, _ in drawn]), np.concatenate([a for _, _, a in drawn])
        w, a = np.tile(w, (2, 1)), np.concatenate([a, -a])
        inside, outside = found.basis @ found.basis.T, np.eye(5) - found.basis @ found.basis.T
        for index, time in enumerate(times[1:], 1):
            now = found.weights[index, replica] @ found.basis.T + np.exp(-0.2 * time) * w @ outside
            s = found.readouts[index, replica].T @ np.tanh(now @ X_test.T / np.sqrt(5)) / 2048
            whole.append(s[0])
        np.testing.assert_allclose(w @ inside, found.weights[0, replica] @ found.basis.T, atol=1e-5)
    whole = np.reshape(whole, (8, 2, 3))
    mean, error = whole.mean(axis=0), whole.std(axis=0, ddof=1) / np.sqrt(8)
    if initial == "laplace":
        np.testing.assert_allclose(found.predictions[1:], mean, atol=1e-5)
    else:
        assert (np.abs(found.predictions[1:] - mean) < 5 * np.hypot(error, found.prediction_errors[1:])).all()
        assert (found.prediction_errors[1:] < 1.05 * error).mean() > 0.6  # an average that is done has less noise


def test_training_points_as_test_points(decaying, points):
    X, y = points[:2]
    found = dynamics(decaying.limit, X, y, [1.0, 3.0], X_test=X, neurons=256, replicas=2)
    np.testing.assert_allclose(found.predictions, found.fitted, atol=1e-12)
    np.testing.assert_allclose(found.fitted, decaying.fitted[3:5], atol=1e-4)  # other stops, the same flow


@pytest.mark.parametrize("loss", ["logistic", pytest.param("softmax", marks=pytest.mark.long)])
def test_other_losses_descend(points, loss):
    X, y, X_test, _ = points
    targets = y if loss == "logistic" else np.stack([y > 0, y < 0], axis=1).astype(float)
    found = dynamics(
        ak.ANTK(RELU, decay=0.0, loss=loss),
        X,
        targets,
        [0.0, 1.0, 20.0],
        X_test=X_test,
        neurons=64,
        replicas=2,
        accuracy=1e-4,
    )
    assert found.train_loss[0] == pytest.approx(np.log(2))
    assert (np.diff(found.train_loss) < 0).all() and found.train_loss[-1] < 0.05
    assert found.fitted.shape == (3, *targets.shape) and found.predictions.shape == (3, 3, *targets.shape[1:])
    if loss == "softmax":
        np.testing.assert_allclose(found.predictions.sum(axis=-1), 1)
        assert found.gradient_kernels is None
    else:
        assert (np.sign(found.fitted[-1]) == y).all() and np.abs(found.fitted).max() < 1


@pytest.mark.parametrize(
    "X, y",
    [
        (np.ones((3, 2)), np.array([1.0, 0.0, 0.5])),  # one point three times, with labels that disagree
        (np.zeros((2, 3)), np.array([1.0, -1.0])),  # nothing can be learned
        (np.arange(5.0)[:, None], np.ones(5)),  # fewer features than points; a constant
        (np.array([[1.0, 2.0, 3.0]]), np.array([[1.0, -1.0, 0.0]])),  # fewer points than features, three outputs
        (np.array([[0.3, -2.0]]), np.zeros(1)),  # nothing to learn
    ],
)
def test_awkward_data(X, y):
    found = dynamics(ak.ANTK(RELU, decay=0.1), X, y, [0.0, 2.0], neurons=32, replicas=2)
    assert found.converged and np.isfinite(found.fitted).all() and np.isfinite(found.kernels).all()
    assert found.fitted.shape == (2, *y.shape)
    if X.any() and y.any():
        assert found.train_loss[1] < found.train_loss[0]


def test_duplicates_count_twice():
    """A point with both labels is one with their mean, twice as strong."""
    X, y = np.array([[1.0, 0.5], [1.0, 0.5], [-1.0, 1.0]]), np.array([1.0, 0.0, -1.0])
    found = dynamics(ak.ANTK(RELU, decay=0.1), X, y, [0.5, 2.0], neurons=64, replicas=2)
    np.testing.assert_allclose(found.fitted[:, 0], found.fitted[:, 1], atol=1e-12)
    assert span(X).rank == 2


@LONG
def test_bias_falls_as_one_over_the_neurons(points):
    """Populations of 16 and 64 against one of 16384, with standard errors: the bias is four times smaller, give or take."""
    X, y = points[:2]
    limit, options = ak.ANTK(RELU, richness=1.0, decay=0.1), {"accuracy": 1e-4, "keep": False}
    truth = dynamics(limit, X, y, [2.0], neurons=16384, replicas=4, **options)
    bias, error = [], []
    for neurons, replicas in ((16, 1024), (64, 1024)):
        found = dynamics(limit, X, y, [2.0], neurons=neurons, replicas=replicas, **options)
        bias.append(found.train_loss[0] - truth.train_loss[0])
        error.append(np.hypot(found.train_loss_errors[0], truth.train_loss_errors[0]))
    assert bias[0] > 5 * error[0]
    assert abs(bias[1] - bias[0] / 4) < 4 * np.hypot(error[1], error[0] / 4) + 0.15 * bias[0]


@LONG
@pytest.mark.slow
def test_wide_networks_on_digits():
    X, y, X_test, y_test = ak.datasets.mnist(classes=(0, 1), n_train=50, n_test=100)
    test, times = {"X_test": X_test, "y_test": y_test}, [0.05, 0.5, 5.0, 20.0]
    net = ak.finite.gradient_flow(
        RELU, X, y, decay=1.0, width=4096, time=20.0, times=times, replicas=2, centred=True, tolerance=0.0, **test
    )
    found = dynamics(ak.ANTK(RELU, decay=1.0), X, y, times, **test)
    for index, time in enumerate(times):
        where = int(np.argmin(np.abs(net.times - time)))
        error = np.hypot(np.ptp(net.replica_losses[where]) / 2, found.train_loss_errors[index])
        assert abs(net.losses[where] - found.train_loss[index]) < 6 * error + 1e-4
        assert abs(net.test_losses[where] - found.test_loss[index]) < 0.02 * found.test_loss[index] + 1e-3
        assert ak.alignment(net.at(time).kernel, found.kernels[index]) > 0.999
