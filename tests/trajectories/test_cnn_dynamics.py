"""Training over time of convolutional networks: another integrator, the MLP, wide networks, symmetries, the fixed point, files."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import solve_ivp

import adakern as ak
from adakern import inputs
from adakern.cli.describe import describe_trajectory
from adakern.trajectories import dynamics, following, load
from adakern.trajectories.population import Start

READOUTS = pytest.mark.parametrize("readout", ["flatten", "mean"])
TIMES = [0.0, 0.45, 0.5, 0.55, 2.0, 6.0]
DECAYS = (0.2, 0.1)
FIELDS = ("times", "train_loss", "train_loss_errors", "test_loss", "test_loss_errors", "fitted", "fitted_errors")
FIELDS += ("predictions", "prediction_errors", "kernels", "kernel_errors", "tangent_kernels", "weights", "readouts")


def circular(readout, activation="relu"):
    return ak.CNN(1, 3, 1, activation, padding="circular", readout=readout)


@pytest.fixture(scope="module")
def images():
    """Labels that do not depend on where things are: whether two channels agree."""
    rng = np.random.default_rng(7)
    X = rng.standard_normal((7, 3, 4, 2))
    y = np.sign(np.einsum("nijc,nijd->ncd", X, X)[:, 0, 1])
    assert 1 < np.sum(y[:4] > 0) < 4
    return X[:4], y[:4], X[4:], y[4:]


def follow(readout, images, times=TIMES, **changed):
    X, y, X_test, y_test = images
    limit = changed.pop("limit", ak.ANTK(circular(readout), richness=2.0, decay=DECAYS))
    options = {"X_test": X_test, "y_test": y_test, "neurons": 1024, "replicas": 4, "accuracy": 1e-4, **changed}
    return dynamics(limit, X, y, times, **options)


@pytest.fixture(scope="module")
def found(images):
    """For either readout; shapes are those of `test_wide_networks`, so that they are compiled once."""
    return {readout: follow(readout, images) for readout in ("flatten", "mean")}


@pytest.mark.long
def test_a_window_of_the_whole_image_is_an_mlp():
    rng = np.random.default_rng(2)
    X, X_test = rng.standard_normal((4, 2, 3, 1)), rng.standard_normal((3, 2, 3, 1))
    y, times, options = np.array([1.0, -1.0, 1.0, 0.5]), [0.0, 0.5, 2.0], {"neurons": 32, "replicas": 2}
    plain = dynamics(ak.ANTK(ak.MLP(1), decay=0.1), X.reshape(4, 6), y, times, X_test=X_test.reshape(3, 6), **options)
    whole = dynamics(ak.ANTK(ak.CNN(1, (2, 3)), decay=0.1), X, y, times, X_test=X_test, **options)
    for name in ("train_loss", "fitted", "predictions", "kernels", "tangent_kernels", "weights", "readouts"):
        np.testing.assert_allclose(getattr(whole, name), getattr(plain, name), atol=1e-6, err_msg=name)
    assert whole.gradient_kernels is None and np.abs(np.diff(plain.fitted, axis=0)).max() > 0.1


def by_hand(rows, Y, gamma, decays, pooled, w, a, times):
    """The flow of given neurons, tanh(w·patch) with readouts (neurons, positions or one, outputs), written out and integrated by scipy."""
    count, sites = len(w), rows.shape[1]

    def unpack(flat):
        return flat[: w.size].reshape(w.shape), flat[w.size :].reshape(a.shape)

    def right(_, flat):
        w, a = unpack(flat)
        dw, da, s = -decays[0] * w, -decays[1] * a, np.zeros_like(Y)
        values = [[np.tanh(w @ rows[mu, q]) for q in range(sites)] for mu in range(len(Y))]
        for mu in range(len(Y)):
            s[mu] = read(values[mu], a, pooled) / (count * gamma)
        for mu, delta in enumerate(Y - s):
            for q in range(sites):
                part = 1 / sites if pooled else 1.0
                weight = a[:, 0 if pooled else q]
                dw += gamma * part * ((weight @ delta) * (1 - values[mu][q] ** 2))[:, None] * rows[mu, q]
                da[:, 0 if pooled else q] += gamma * part * np.outer(values[mu][q], delta)
        return np.concatenate([dw.ravel(), da.ravel()])

    flat = np.concatenate([w.ravel(), a.ravel()])
    found = solve_ivp(right, (0, times[-1]), flat, t_eval=times, rtol=1e-10, atol=1e-11, method="DOP853")
    return [unpack(state) for state in found.y.T]


def read(values, a, pooled):
    """Outputs of one image, summed over neurons."""
    if pooled:
        return np.mean(values, axis=0) @ a[:, 0]
    return sum(value @ a[:, q] for q, value in enumerate(values))


@pytest.mark.parametrize("readout, blocks", [("flatten", 1), ("mean", 2)])
@pytest.mark.long
def test_one_image_against_another_integrator(readout, blocks):
    """Two outputs, Laplace weights, a patch of which training sees four directions out of eight, and neurons in blocks."""
    rng = np.random.default_rng(1)
    X, X_test, Y = rng.standard_normal((1, 3, 3, 2)), rng.standard_normal((2, 3, 3, 2)), np.array([[1.0, -0.5]])
    network, times = ak.CNN(1, 2, 1, "tanh", readout=readout), [0.0, 0.5, 2.0]
    limit, pooled = ak.ANTK(network, richness=1.3, decay=(0.3, 0.1)), readout == "mean"
    options = {"neurons": 8, "replicas": 2, "seed": 5, "initial": "laplace", "accuracy": 1e-8}
    options["memory"] = 6 * 2 * 8 * 4 * 8 / blocks  # bytes of temporary fields
    found = dynamics(limit, X, Y, times, X_test=X_test, **options)
    patches = inputs.features(network, np.concatenate([X, X_test])).reshape(3, 4, 8)
    each = (1, 2) if pooled else (4, 2)
    every = []
    for replica in range(2):
        [(_, w, a)] = Start("laplace", 5, 4, int(np.prod(each))).drawn(replica, 8)
        w, a = np.tile(w, (2, 1)), np.concatenate([a, -a]).reshape(8, *each)
        states = by_hand(patches[:1], Y, 1.3, (0.3, 0.1), pooled, w, a, times)
        every.append(
            [[read(np.tanh(rows @ w.T), a, pooled) / (8 * 1.3) for rows in patches] for w, a in states]
        )  # times, images, outputs
    mean = np.mean(every, axis=0)
    np.testing.assert_allclose(found.fitted, mean[:, :1], atol=3e-6)
    np.testing.assert_allclose(found.predictions, mean[:, 1:], atol=3e-6)
    assert found.stats["blocks"] == blocks
    assert found.stats["coordinates"] == 4 and found.basis.shape == (8, 4) and found.stats["positions"] == 4
    assert found.readouts.shape == (3, 2, 8, 2) if pooled else found.readouts.shape == (3, 2, 8, 4, 2)
    assert found.tangent_kernels is None and np.abs(found.fitted[-1] - found.fitted[0]).max() > 0.1
    h = np.stack([found.density(2.0, 1, 0, q)[0] for q in range(4)])
    seen = np.tanh(h).mean(axis=0, keepdims=True) if pooled else np.tanh(h)
    assert found.kernels[-1, 0, 0] == pytest.approx(np.mean(np.sum(seen**2, axis=0)), rel=1e-5)


@READOUTS
def test_wide_networks(images, readout):
    X, y, X_test, y_test = images
    test, times = {"X_test": X_test, "y_test": y_test}, [0.3, 1.0]
    for decay in (0.0, 0.3):
        net = ak.finite.gradient_flow(
            circular(readout),
            *(X, y),
            decay=decay,
            width=512,
            time=1.0,
            times=times,
            replicas=4,
            centred=True,
            tolerance=0.0,
            accuracy=1e-4,
            **test,
        )
        limit = ak.ANTK(circular(readout), decay=decay)
        found = dynamics(limit, X, y, times, neurons=1024, replicas=4, accuracy=1e-4, **test)
        for index, time in enumerate(times):
            where = int(np.argmin(np.abs(net.times - time)))
            each = net.replica_losses[where]
            error = np.hypot(each.std(ddof=1) / 2, found.train_loss_errors[index])
            assert abs(each.mean() - found.train_loss[index]) < 5 * error + 1e-4
            then = net.at(time)
            kernel_error = np.hypot(then.kernel_errors[0], found.kernel_errors[index])
            assert np.linalg.norm(then.kernel - found.kernels[index]) < 3 * np.linalg.norm(kernel_error)
            f, std = then.predict(X_test, return_std=True)
            off = np.abs(f - found.predictions[index]) / np.hypot(std, found.prediction_errors[index])
            assert (off < 6).all()
            error = np.hypot(np.mean(np.abs(f - y_test) * std), found.test_loss_errors[index])
            assert abs(net.test_losses[where] - found.test_loss[index]) < 5 * error + 1e-3


@READOUTS
def test_energy_never_rises(found, readout):
    t = found[readout]
    w, a = (
        np.sum(x.astype(np.float64).reshape(6, 4096, -1) ** 2, axis=-1).mean(axis=1) for x in (t.weights, t.readouts)
    )
    energy = 4 * 4 * t.train_loss + DECAYS[0] / 2 * w + DECAYS[1] / 2 * a
    assert (np.diff(energy) < 1e-6).all() and energy[-1] < 0.8 * energy[0]


@READOUTS
def test_the_tangent_kernel_moves_outputs(found, readout):
    r"""ds/dt = KΔ − (λ0 + λ1)s for an activation of degree one."""
    t = found[readout]
    rate, delta = (t.fitted[3] - t.fitted[1]) / 0.1, t.y - t.fitted[2]
    expected = t.tangent_kernels[2] @ delta - sum(DECAYS) * t.fitted[2]
    np.testing.assert_allclose(rate, expected, atol=0.02 * np.abs(rate).max())
    assert np.abs(t.kernels[2] @ delta - sum(DECAYS) * t.fitted[2] - rate).max() > 0.2 * np.abs(rate).max()


def test_the_tangent_kernel_at_the_start_is_the_ntk(found, images):
    lazy = ak.solve(ak.NTK(circular("mean")), *images[:2]).kernel
    assert np.linalg.norm(found["mean"].tangent_kernels[0] - lazy) < 0.05 * np.linalg.norm(lazy)


@pytest.mark.parametrize("readout, initial", [("flatten", "laplace"), ("mean", "normal")])
@pytest.mark.long
def test_the_output_at_the_start_is_zero(images, readout, initial):
    """In blocks of neurons, with patches that training does not span."""
    X, y, X_test, y_test = images
    limit = ak.ANTK(ak.CNN(1, (3, 3), readout=readout))
    data = X[:1], y[:1], X_test, y_test
    start = follow(readout, data, [0.0], limit=limit, initial=initial, neurons=32, replicas=2, memory=4000)
    assert start.stats["blocks"] > 1 and start.basis is not None
    assert not start.fitted.any() and not start.predictions.any() and not start.prediction_errors.any()
    assert start.train_loss == pytest.approx([0.5], abs=0)
    rows = inputs.features(limit.network, X[:1]) @ start.basis
    h, a = start.weights[0] @ rows.T, start.readouts[0].reshape(2, 32, -1)
    share = 0.5 if readout == "mean" else 1.0  # two positions
    gradient = share * ((h > 0) * a) @ rows
    features = np.maximum(h, 0).mean(axis=-1, keepdims=True) if readout == "mean" else np.maximum(h, 0)
    tangent = np.sum(features**2, axis=-1).mean() + np.sum(gradient**2, axis=-1).mean()
    assert start.tangent_kernels[0, 0, 0] == pytest.approx(tangent, rel=1e-4)


@READOUTS
@pytest.mark.long
def test_channels_may_change_places(found, images, readout, monkeypatch):
    """With filters whose channels change places alike, nothing changes."""
    plain = Start.drawn
    order = np.arange(18).reshape(9, 2)[:, ::-1].ravel()

    def swapped(self, replica, size):
        return ((here, w[:, order], a) for here, w, a in plain(self, replica, size))

    monkeypatch.setattr(Start, "drawn", swapped)
    X, y, X_test, y_test = images
    again = follow(readout, (X[..., ::-1], y, X_test[..., ::-1], y_test), TIMES[:3])
    np.testing.assert_allclose(again.fitted, found[readout].fitted[:3], atol=1e-3)
    np.testing.assert_allclose(again.predictions, found[readout].predictions[:3], atol=2e-3)


@READOUTS
@pytest.mark.long
def test_images_may_change_places(found, images, readout):
    """The same filters see the same images in another order."""
    X, y, X_test, y_test = images
    order, other = [2, 0, 3, 1], [1, 2, 0]
    again = follow(readout, (X[order], y[order], X_test[other], y_test[other]), TIMES[:3])
    np.testing.assert_allclose(again.fitted, found[readout].fitted[:3, order], atol=1e-3)
    np.testing.assert_allclose(again.predictions, found[readout].predictions[:3, other], atol=2e-3)
    kernels = found[readout].kernels[:3][:, order][:, :, order]
    np.testing.assert_allclose(again.kernels, kernels, rtol=1e-2, atol=1e-3)


@pytest.mark.long
def test_a_mean_over_a_circle_does_not_see_where_things_are(found, images):
    X, y, X_test, y_test = images
    moved = np.stack([np.roll(x, (k, 2 * k + 1), axis=(0, 1)) for k, x in enumerate(X)])
    moved_test = np.roll(X_test, (1, 3), axis=(1, 2))
    again = follow("mean", (moved, y, moved_test, y_test), TIMES[:3])
    np.testing.assert_allclose(again.fitted, found["mean"].fitted[:3], atol=1e-3)
    np.testing.assert_allclose(again.predictions, found["mean"].predictions[:3], atol=2e-3)
    np.testing.assert_allclose(again.fitted[1], found["mean"].fitted[1], atol=3e-4)
    elsewhere = follow("flatten", (X, y, moved_test, y_test), TIMES[:3])
    assert np.abs(elsewhere.predictions[-1] - found["flatten"].predictions[2]).max() > 0.1


@READOUTS
@pytest.mark.long
def test_a_black_image_stays_black(images, readout):
    X, y, X_test, y_test = images
    dark = np.concatenate([np.zeros_like(X[:1]), X[1:]])
    t = follow(readout, (dark, y, X_test, y_test), TIMES[:3])
    assert not t.fitted[:, 0].any() and not t.kernels[:, 0].any() and not t.tangent_kernels[:, 0].any()
    assert t.train_loss[-1] < t.train_loss[0]


@READOUTS
def test_save_and_load(found, readout, tmp_path):
    path, t = tmp_path / "trajectory.safetensors", found[readout]
    t.save(path)
    again = load(path)
    assert again.limit == t.limit and again.stats == t.stats and again.gradient_kernels is None
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(again, name), getattr(t, name), err_msg=name)
    for mine, theirs in zip(again.density(2.0, 1, 1, 5), t.density(2.0, 1, 1, 5), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    with pytest.raises(ValueError, match="position must be at most 11"):
        t.density(2.0, 1, 1, 12)
    facts = describe_trajectory(again, path)
    assert facts["network"]["kind"] == "CNN" and facts["network"]["readout"] == readout and facts["features"] == 24


@pytest.mark.long
def test_a_run_goes_on_from_its_checkpoint(found, images, tmp_path, monkeypatch):
    path = tmp_path / "checkpoint"
    plain, count = following.Task._stretch, 0

    def interrupted(self, now):
        nonlocal count
        count += 1
        if count > 3:
            raise KeyboardInterrupt
        return plain(self, now)

    with monkeypatch.context() as patch:
        patch.setattr(following.Task, "_stretch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            follow("flatten", images, checkpoint=path)
    assert path.exists()
    again = follow("flatten", images, checkpoint=path)
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(again, name), getattr(found["flatten"], name), err_msg=name)


def test_bad_input(images):
    X, y = images[:2]
    limit = ak.ANTK(circular("flatten"))
    with pytest.raises(NotImplementedError, match="one hidden layer"):
        dynamics(ak.ANTK(ak.CNN(2, 2)), X, y, [1.0])
    with pytest.raises(ValueError, match="X must be 4-D"):
        dynamics(limit, X.reshape(4, -1), y, [1.0])
    with pytest.raises(ValueError, match="window of layer 1 must fit"):
        dynamics(ak.ANTK(ak.CNN(1, 5)), X, y, [1.0])
    with pytest.raises(ValueError, match="X_test must have points of shape"):
        dynamics(limit, X, y, [1.0], X_test=X[:, :2])
    with pytest.raises(ak.TooLargeError, match="12 positions"):
        dynamics(limit, X, y, [1.0], neurons=2**36)
