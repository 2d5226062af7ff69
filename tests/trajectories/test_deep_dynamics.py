"""Training over time with several hidden layers: the lazy limit, one hidden layer, linear networks, wide networks, responses, the fixed point."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.linalg import expm

import adakern as ak
from adakern import precision, readings
from adakern.progress import Progress
from adakern.trajectories import deep_following, dynamics, running

TANH, LINEAR = ak.MLP(2, "tanh"), ak.MLP(2, "linear")
FEW = {"neurons": 512, "replicas": 2}
TIMES = [0.0, 0.5, 1.5]


@pytest.fixture(scope="module")
def points():
    rng = np.random.default_rng(3)
    X, X_test = rng.standard_normal((6, 4)), rng.standard_normal((3, 4))
    return X, np.sign(X[:, 0]), X_test, np.sign(X_test[:, 0])


@pytest.fixture(scope="module")
def followed(points):
    X, y, X_test, y_test = points
    return dynamics(
        ak.ANTK(TANH, richness=1.5, decay=0.1), X, y, TIMES, X_test=X_test, y_test=y_test, pairs=True, **FEW
    )


def through_deep_code(limit, data, times, **numbers):
    """Any depth, one included."""
    plain = {"initial": "normal", "seed": 0, "accuracy": 1e-3, "precision": "float64", "keep": True, "resolution": 1e-3}
    settings = deep_following.DeepSettings(times=tuple(times), **{**plain, **numbers})
    with precision.scope("float64"):
        return deep_following.Task(limit, running._read(limit, *data), settings, 2**30).run(None, Progress(), 0.0)


@pytest.mark.slow
def test_lazy_limit(points):
    r"""f(t) = K(x)K⁻¹(1 − exp(−Kt))y with the NTK; outputs do not inherit the noise 1/γ0 of the start."""
    X, y, X_test, _ = points
    times = [0.3, 2.0]
    found = dynamics(ak.ANTK(TANH, richness=0.01, decay=0.0), X, y, times, X_test=X_test, neurons=1024, replicas=6)
    lazy = ak.solve(ak.NTK(TANH), X, y)
    K, cross = lazy.kernel, lazy.cross_kernel(X_test)
    for index, time in enumerate(times):
        learned = np.linalg.solve(K, (np.eye(6) - expm(-K * time)) @ y)
        for values, errors, kernel in (
            (found.fitted, found.fitted_errors, K),
            (found.predictions, found.prediction_errors, cross),
        ):
            assert (np.abs(values[index] - kernel @ learned) < 5 * errors[index] + 1e-3).all()
            assert errors[index].max() < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_one_hidden_layer(points, activation):
    limit, times = ak.ANTK(ak.MLP(1, activation), richness=1.3, decay=(0.3, 0.1)), [0.5, 2.0]
    known = dynamics(limit, *points[:2], times, X_test=points[2], neurons=4096, replicas=4, accuracy=1e-4)
    found = through_deep_code(limit, points, times, neurons=2048, replicas=4)
    for name, error in (("train_loss", "train_loss_errors"), ("predictions", "prediction_errors")):
        joint = np.hypot(getattr(known, error), getattr(found, error))
        assert (np.abs(getattr(known, name) - getattr(found, name)) < 5 * joint + 1e-3).all()


def test_one_hidden_layer_linear(points):
    r"""Exact: with Φ = XXᵀ/D, weights w ∈ R^D and a per neuron, kernels close: d⟨ww⟩, d⟨wa⟩, d⟨aa⟩."""
    X, y = points[:2]
    rows, gamma, decays = X / 2, 1.3, np.array([0.3, 0.1])
    M = np.eye(5)  # ⟨(w, a)(w, a)ᵀ⟩
    step, count = 1e-3, 1500
    for _ in range(count):  # midpoint rule

        def generator(M):
            s = rows @ M[:4, 4] / gamma
            pull = gamma * rows.T @ (y - s)
            return np.block([[-decays[0] * np.eye(4), pull[:, None]], [pull[None, :], -decays[1:, None]]])

        A = generator(M)
        A = generator(M + step / 2 * (A @ M + M @ A.T))
        E = expm(step * A)
        M = E @ M @ E.T
    found = through_deep_code(
        ak.ANTK(ak.MLP(1, "linear"), richness=gamma, decay=decays), (X, y, None, None), [step * count],
        neurons=64, replicas=1, accuracy=1e-6,
    )  # fmt: skip
    np.testing.assert_allclose(found.fitted[0], rows @ M[:4, 4] / gamma, atol=2e-5)
    np.testing.assert_allclose(found.kernels[0, 0], rows @ M[:4, :4] @ rows.T, atol=5e-5)
    assert not found.fitted_errors.any()


@pytest.mark.slow
def test_linear_networks(points):
    """Exact: the fixed point of `solve`; finer steps change nothing; finite networks approach it as 1/N."""
    X, y, X_test, _ = points
    limit = ak.ANTK(LINEAR, richness=1.5, decay=(0.1, 0.2, 0.3))
    found = dynamics(limit, X, y, [0.5, 120.0], X_test=X_test, **FEW)
    rest = ak.solve(limit, X, y)
    np.testing.assert_allclose(found.fitted[-1], rest.fitted, atol=1e-5)
    np.testing.assert_allclose(found.predictions[-1], rest.predict(X_test), atol=1e-5)
    for ours, theirs in zip(found.kernels[-1], rest.kernels, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)
    finer = dynamics(limit, X, y, [0.5], accuracy=1e-6, **FEW)
    np.testing.assert_allclose(finer.fitted[0], found.fitted[0], atol=1e-4)
    np.testing.assert_allclose(finer.kernels[0], found.kernels[0], rtol=1e-3, atol=1e-3)
    values, _ = found.density(0.5, layer=2, point=1)
    assert np.mean(values**2) == pytest.approx(found.kernels[0, 1, 1, 1], rel=5 * np.sqrt(2 / len(values)))


PROBLEMS = [
    ("tanh", 2, 0.1),
    *((*each,) for each in product(("tanh", "relu"), (2, 3), (0.0, 0.1)) if each != ("tanh", 2, 0.1)),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("activation", "depth", "decay"),
    [pytest.param(*each, marks=[pytest.mark.long] if index else []) for index, each in enumerate(PROBLEMS)],
)
def test_wide_networks_and_responses(fixtures, activation, depth, decay):
    """Losses and kernels of networks of width 2048 and 8192, extrapolated; without responses they are missed."""
    held, some = np.load(fixtures / "deep_networks.npz"), slice(0, 7, 2)
    name, limit = f"L{depth}_{activation}_decay{decay:g}", ak.ANTK(ak.MLP(depth, activation), richness=1.0, decay=decay)
    losses, errors = held[f"{name}/losses"][some], held[f"{name}/losses_errors"][some]
    kernels, doubts = held[f"{name}/kernels"][some], held[f"{name}/kernels_errors"][some]
    given, numbers = (limit, held["X"], held["y"], held["times"][some]), {"neurons": 1024, "replicas": 4}
    if activation == "relu":
        numbers["neurons"] = 4096  # gradients that jump: many directions
    good, wrong = dynamics(*given, keep=False, **numbers), running.without_responses(*given, **numbers)
    z = (good.train_loss - losses) / np.hypot(errors, good.train_loss_errors)
    assert np.sqrt(np.mean(z**2)) < 3
    z = (good.kernels - kernels) / np.hypot(doubts, good.kernel_errors)
    assert np.sqrt(np.mean(z**2)) < 2
    z = (wrong.train_loss - losses) / np.hypot(errors, wrong.train_loss_errors)
    assert np.sqrt(np.mean(z**2)) > 10


def test_pairs_of_times_of_linear_networks(points, tmp_path):
    r"""Nearly lazy, h¹ gathers γ0 ∫ Φ⁰Δ g and a gathers γ0 ∫ Δ h²: A = Φ⁰Δ(s) and B = Δ(s). Processes that hardly move tell the integrals over s."""
    X, y = points[:2]
    times = np.linspace(0.0, 0.8, 9)
    limit = ak.ANTK(LINEAR, richness=0.03, decay=0.0)
    found = dynamics(limit, X, y, times, pairs=True, keep=False, neurons=192)
    np.testing.assert_allclose(np.stack([found.two_times(2, t, t) for t in times]), found.kernels[:, 1], atol=1e-12)
    both = found.two_time_gradients
    np.testing.assert_allclose(np.einsum("ttlpq->tlpq", both), found.gradient_kernels, atol=1e-12)
    np.testing.assert_allclose(both, both.transpose(1, 0, 2, 4, 3), atol=1e-12)
    assert not found.feature_response_errors.any()
    A, B = found.response_functions(1, cutoff=1e-6)
    assert A.shape == B.shape == (9, 9, 6, 6) and not A[np.triu_indices(9, 1)].any()
    step = np.full(9, 0.1)
    step[[0, -1]] = 0.05
    K = ak.solve(ak.NTK(LINEAR), X, y).kernel
    errors = np.linalg.lstsq(K, (np.eye(6) - expm(-0.8 * K)) @ y, rcond=1e-10)[0]  # their integral
    kernel = np.linalg.svd(K)[2][4:]  # what cannot be learned stays
    errors += 0.8 * kernel.T @ (kernel @ y)
    # Gradients of the readout are the same at all points, and six features have four dimensions: no more is known of A and B.
    known = X @ X.T / 4 @ errors
    np.testing.assert_allclose(np.tensordot(step, A[-1], 1).sum(axis=1), known, atol=2e-3)
    known = np.tile(errors @ X, (6, 1))
    np.testing.assert_allclose(np.tensordot(step, B[-1], 1) @ X, known, atol=2e-3)
    explained = 0.03 * np.einsum("s,spr,sqrn->qpn", step, A[-1], found.two_time_gradients[:, :, 1])
    np.testing.assert_allclose(explained, found.feature_responses[-1, :, 0], atol=1e-5)
    found.save(tmp_path / "way.safetensors")
    np.testing.assert_array_equal(ak.load(tmp_path / "way.safetensors").gradient_responses, found.gradient_responses)


@pytest.mark.slow
def test_pairs_of_times(followed):
    """What is not drawn yet is not responded to."""
    alone = replace(followed, two_time_kernels=None)  # from the fields
    for layer, time in ((1, 0.5), (2, 1.5)):
        np.testing.assert_allclose(followed.two_times(layer, 0.0, time), alone.two_times(layer, 0.0, time), atol=1e-4)
    assert np.abs(followed.feature_responses[0]).max() < 1e-6  # of the start, which knows no gradient
    assert (np.abs(followed.feature_responses[-1]) > 5 * followed.feature_response_errors[-1]).mean() > 0.5
    with pytest.raises(ValueError, match="layer must be at most 1"):
        followed.response_functions(2)
    with pytest.raises(ValueError, match="cutoff must be below 1"):
        followed.response_functions(1, cutoff=5.0)
    with pytest.raises(ValueError, match="pairs=True"):
        replace(followed, feature_responses=None).response_functions(1)


@pytest.mark.slow
@pytest.mark.long
def test_late_gradients_of_several_outputs_are_remembered(points):
    """They are weighted by errors, which become small: their directions are as new as ever."""
    X, y = points[:2]
    limit, Y = ak.ANTK(TANH, richness=1.5, decay=0.0), np.stack([y, np.sign(X[:, 1])], axis=1)
    usual, fine = (
        dynamics(limit, X, Y, [2.0, 16.0], neurons=1024, replicas=4, keep=False, resolution=share)
        for share in (1e-3, 1e-6)
    )
    assert fine.train_loss[-1] < 3e-3
    joint = np.hypot(usual.train_loss_errors, fine.train_loss_errors)
    assert (np.abs(usual.train_loss - fine.train_loss) < 4 * joint).all()


@pytest.mark.long
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_the_end_is_the_fixed_point(points, activation):
    X, y, X_test, _ = points
    limit = ak.ANTK(ak.MLP(2, activation), richness=1.5, decay=0.3)
    found = dynamics(limit, X, y, [400.0], X_test=X_test, keep=False)
    rest = ak.solve(limit, X, y)
    assert np.abs(found.fitted[-1] - rest.fitted).max() < 5 * found.fitted_errors.max() + 5e-3
    for ours, error, theirs in zip(found.kernels[-1], found.kernel_errors[-1], rest.kernels, strict=True):
        assert np.linalg.norm(ours - theirs) < 3 * np.linalg.norm(error) + 0.03 * np.linalg.norm(theirs)


@pytest.mark.slow
def test_what_comes_out(points, followed, tmp_path):
    assert followed.converged and followed.kernels.shape == (3, 2, 6, 6) == followed.gradient_kernels.shape
    assert followed.train_loss[0] == pytest.approx(0.5) and (np.diff(followed.train_loss) < 0).all()
    assert np.abs(followed.predictions[0]).max() < 1e-12 and np.abs(followed.fitted[0]).max() < 1e-12
    values, weights = followed.density(1.5, layer=2, point=0)
    assert len(values) == 1024 and weights.sum() == pytest.approx(1.0)
    same = followed.two_times(2, 1.5, 1.5)
    np.testing.assert_allclose(same, followed.kernels[-1, 1], atol=1e-4)
    assert np.linalg.norm(followed.two_times(1, 0.0, 1.5) - followed.kernels[0, 0]) > 0.01
    first = followed.X @ followed.X.T / 4
    tangent = first * followed.gradient_kernels[:, 0] + followed.kernels[:, 0] * followed.gradient_kernels[:, 1]
    np.testing.assert_allclose(followed.tangent_kernels, tangent + followed.kernels[:, 1])
    followed.save(tmp_path / "way.safetensors")
    again = ak.load(tmp_path / "way.safetensors")
    np.testing.assert_array_equal(again.fields, followed.fields)
    np.testing.assert_array_equal(again.kernels, followed.kernels)
    np.testing.assert_array_equal(readings.kernel(followed, 1, 0.5), followed.kernels[1, 0])
    np.testing.assert_array_equal(readings.kernel(followed), followed.kernels[-1, 1])


@pytest.mark.slow
def test_resume(points, followed, tmp_path, monkeypatch):
    X, y, X_test, y_test = points
    limit, path, count, plain = followed.limit, tmp_path / "c", 0, deep_following.Task._stretch

    def interrupted(self, now):
        nonlocal count
        count += 1
        if count > 14:
            raise KeyboardInterrupt
        return plain(self, now)

    with monkeypatch.context() as patch:
        patch.setattr(deep_following.Task, "_stretch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            dynamics(limit, X, y, TIMES, X_test=X_test, y_test=y_test, pairs=True, checkpoint=path, **FEW)
    assert path.exists()
    again = dynamics(limit, X, y, TIMES, X_test=X_test, y_test=y_test, pairs=True, checkpoint=path, **FEW)
    for name in ("train_loss", "predictions", "kernels", "gradient_kernels", "fields", "gradient_responses"):
        np.testing.assert_array_equal(getattr(again, name), getattr(followed, name), err_msg=name)
    assert not path.exists()


@pytest.mark.slow
def test_single_precision(points, followed):
    X, y, X_test, _ = points
    found = dynamics(followed.limit, X, y, TIMES, X_test=X_test, precision="float32", **FEW)
    joint = np.hypot(found.train_loss_errors, followed.train_loss_errors)
    assert (np.abs(found.train_loss - followed.train_loss) < 6 * joint + 5e-3).all()


@pytest.mark.slow
def test_awkward_data(points):
    """Equal points, whose fields are equal, and labels that are all the same."""
    equal = dynamics(
        ak.ANTK(TANH, richness=1.0, decay=0.0), points[0][[0, 1, 0]], np.ones(3), [1.0], neurons=128, replicas=2
    )
    np.testing.assert_allclose(equal.fitted[:, 0], equal.fitted[:, 2], atol=1e-9)


@pytest.mark.long
def test_outputs_and_losses(points):
    """One point; two outputs, of which one is the other's negative; inputs of zeros; labels by the logistic loss, and as two classes by softmax."""
    X, y = points[:2]
    limit = ak.ANTK(TANH, richness=1.0, decay=0.0)
    assert dynamics(limit, X[:1], y[:1], [1.0], neurons=128, replicas=2).converged
    both = dynamics(limit, X[:3], np.stack([y[:3], -y[:3]], axis=1), [1.0], neurons=512, replicas=4)
    assert both.fitted.shape == (1, 3, 2) and both.gradient_kernels is None
    assert (np.abs(both.fitted.sum(axis=2)) < 6 * both.fitted_errors.max() + 1e-3).all()
    assert not dynamics(limit, np.zeros((2, 3)), y[:2], [1.0], neurons=128, replicas=1).fitted.any()
    truth = ak.finite.gradient_flow(
        TANH, X, y, richness=1.0, decay=0.0, loss="logistic", width=1024, replicas=8, time=2.0, centred=True
    )
    logistic = dynamics(ak.ANTK(TANH, richness=1.0, decay=0.0, loss="logistic"), X, y, [2.0])
    joint = np.hypot(truth.fitted_errors, logistic.fitted_errors[0])
    assert (np.abs(logistic.fitted[0] - truth.fitted) < 5 * joint + 0.01).all()
    classes = np.stack([y > 0, y < 0], axis=1).astype(float)
    soft = dynamics(ak.ANTK(TANH, richness=1.0, decay=0.0, loss="softmax"), X, classes, [2.0])
    assert soft.converged and (np.argmax(soft.fitted[0], axis=1) == np.argmax(classes, axis=1)).all()


def test_bad_input(points):
    X, y = points[:2]
    limit = ak.ANTK(TANH)
    with pytest.raises(NotImplementedError, match="CNNs with one hidden layer"):
        dynamics(ak.ANTK(ak.CNN(2, 2)), np.zeros((2, 4, 4, 1)), y[:2], [1.0])
    with pytest.raises(ValueError, match="initial must be 'normal'"):
        dynamics(limit, X, y, [1.0], initial="laplace")
    with pytest.raises(ValueError, match="resolution must be below 1"):
        dynamics(limit, X, y, [1.0], resolution=2.0)
    with pytest.raises(ValueError, match="resolution has no meaning"):
        dynamics(ak.ANTK(ak.MLP(1, "tanh")), X, y, [1.0], resolution=1e-3)
    with pytest.raises(ValueError, match="pairs has no meaning"):
        dynamics(ak.ANTK(ak.MLP(1, "tanh")), X, y, [1.0], pairs=True)
    with pytest.raises(ValueError, match="pairs needs one output"):
        dynamics(limit, X, np.stack([y, y], axis=1), [1.0], pairs=True)
    with pytest.raises(ak.TooLargeError, match="pairs=False"):
        dynamics(limit, X, y, np.linspace(0, 1, 20_000), pairs=True)
    with pytest.raises(ValueError, match="neurons must be at least 192"):
        dynamics(limit, X, y, [1.0], neurons=64)
    with pytest.raises(ak.TooLargeError, match="2 layers of"):
        dynamics(limit, X, y, [1.0], neurons=2**20)


@pytest.mark.slow
def test_too_few_neurons_are_said_to_be(points):
    X, y = points[:2]
    limit = ak.ANTK(TANH, richness=3.0, decay=0.0)
    with pytest.raises(ak.ConvergenceError, match="use more neurons or a larger resolution") as caught:
        dynamics(limit, X, y, [0.0, 20.0], neurons=192, replicas=1, resolution=1e-9, pairs=True)
    reached = caught.value.result
    assert len(reached.times) == 1 and reached.two_time_kernels.shape == (1, 1, 2, 6, 6)
    np.testing.assert_allclose(reached.two_times(2, 0.0, 0.0), reached.kernels[0, 1], atol=1e-6)
