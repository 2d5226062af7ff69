"""Solutions of convolutional networks in the lazy limits: predictions, precision, files, memory, the audit, and awkward images."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

import adakern as ak
from adakern import extension_cnn, memory, networks, recursion_cnn
from adakern.limits import Answer, lazy_cnn
from adakern.precision import scope
from adakern.recursion_cnn import Convolution, Layers

RNG = np.random.default_rng(17)
X, Z = 0.7 * RNG.standard_normal((4, 4, 4, 2)), 0.7 * RNG.standard_normal((3, 4, 4, 2))
Y = RNG.standard_normal(4)
DECAY = (1.2, 4.0, 1.5)  # the second about as large as a window, so that fields stay of order one
each_readout = pytest.mark.parametrize("readout", networks.READOUTS)


def cnn(activation="relu", readout="flatten", padding="same", depth=2):
    windows, strides = ((3, 2), (2, 2))[:depth], ((1, 1), (2, 1))[:depth]
    return ak.CNN(depth, windows, strides, activation, padding=padding, readout=readout)


@pytest.fixture(scope="module")
def solved():
    """Solutions, each made once."""
    found: dict = {}

    def find(limit, precision="float64"):
        if (limit, precision) not in found:
            found[limit, precision] = ak.solve(limit, X, Y, precision=precision)
        return found[limit, precision]

    return find


# Predictions, precision, files


@pytest.mark.parametrize("kind", [ak.NNGPK, ak.NTK])
@pytest.mark.parametrize("activation, readout", [("relu", "flatten"), ("relu", "mean"), ("tanh", "mean")])
@pytest.mark.long
def test_training_points(kind, readout, activation, solved):
    sol = solved(kind(cnn(activation, readout), decay=DECAY))
    np.testing.assert_allclose(sol.predict(X), sol.fitted, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(sol.cross_kernel(X), sol.kernel, rtol=1e-10)
    if kind is ak.NTK:
        np.testing.assert_allclose(sol.fitted, Y, rtol=1e-8)


@each_readout
@pytest.mark.long
def test_batches(readout, solved):
    """A small budget gives the same, tile by tile; no points give none."""
    sol = solved(ak.NNGP(cnn(readout=readout), decay=DECAY))
    new = np.concatenate([Z, X[:2]])
    budget = 2.5 * sol._extension.bytes_per_point()
    np.testing.assert_allclose(sol.predict(new, memory=budget), sol.predict(new), rtol=1e-12)
    np.testing.assert_allclose(sol.variance(new, memory=1.0), sol.variance(new), rtol=1e-9, atol=1e-12)
    assert sol.predict(Z[:0]).shape == (0,)
    with pytest.raises(ValueError, match=r"X must have points of shape \(4, 4, 2\)"):
        sol.predict(Z[:, :3])


@each_readout
@pytest.mark.long
def test_tiles(readout, monkeypatch):
    """Tiles of two points, the last overlapping the one before, and training images one at a time."""
    limit = ak.NTK(cnn(readout=readout), decay=DECAY)
    images, y = np.concatenate([X, Z]), np.arange(7.0)
    whole = ak.solve(limit, images, y)
    pair = whole._extension._convolution.bytes_per_pair()
    monkeypatch.setattr(recursion_cnn, "_TILE_BYTES", 5 * pair)
    monkeypatch.setattr(extension_cnn, "_POINT_BYTES", 1)
    tiled = ak.solve(limit, images, y)
    np.testing.assert_allclose(tiled.kernel, whole.kernel, rtol=1e-13)
    np.testing.assert_allclose(tiled.predict(Z + 1), whole.predict(Z + 1), rtol=1e-9)
    np.testing.assert_allclose(tiled.kernels[0], whole.kernels[0], rtol=1e-13)


@pytest.mark.parametrize("activation, readout", [("relu", "flatten"), ("tanh", "mean")])
@pytest.mark.long
def test_float32(activation, readout, solved):
    limit = ak.NTK(cnn(activation, readout), ridge=0.1, decay=DECAY)
    double, single = solved(limit), solved(limit, "float32")
    assert single.kernel.dtype == single.predict(Z).dtype == single.kernels[0].dtype == np.float32
    np.testing.assert_allclose(single.kernel, double.kernel, rtol=3e-4)  # ReLU's slopes next to correlation one
    np.testing.assert_allclose(single.predict(Z), double.predict(Z), rtol=0, atol=2e-3)
    assert single.converged and single.residual < 1e-3


@pytest.mark.parametrize("kind", [ak.NNGP, ak.NTK])
@each_readout
@pytest.mark.long
def test_files(kind, readout, tmp_path, solved):
    sol = solved(kind(cnn(readout=readout), decay=DECAY))
    sol.save(tmp_path / "run.safetensors")
    for again in (ak.load(tmp_path / "run.safetensors"), pickle.loads(pickle.dumps(sol))):
        assert again.limit == sol.limit and len(again.kernels) == 2
        for ours, theirs in zip(again.kernels, sol.kernels, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(again.kernel, sol.kernel)
        np.testing.assert_array_equal(again.predict(Z), sol.predict(Z))
        assert (again.gradient_kernels is None) == (kind is ak.NNGP)
    assert (tmp_path / "run.safetensors").stat().st_size < 10_000


def test_inner_kernels_wait(solved, monkeypatch):
    """They are a tuple whose last entry is at hand and whose others are computed once, when they are asked for."""
    sol = ak.solve(ak.NNGPK(cnn()), X, Y)
    asked: list = []
    compute = Convolution.inner
    monkeypatch.setattr(Convolution, "inner", lambda *args: asked.append(args[2]) or compute(*args))
    assert isinstance(sol.kernels, tuple) and isinstance(sol.kernels, Layers) and len(sol.kernels) == 2
    assert sol.kernels[-1] is sol.kernels[1] and not asked
    assert sol.kernels[-1] is sol.kernel or np.array_equal(sol.kernels[-1], sol.kernel)
    assert sol.kernels[0].shape == (4, 16, 4, 16) and sol.kernels[0:1][0] is sol.kernels[0]
    assert [kernel.shape for kernel in sol.kernels] == [(4, 16, 4, 16), (4, 4)] and asked == [1]
    with pytest.raises(IndexError, match="out of range"):
        sol.kernels[2]
    with pytest.raises(ValueError, match="read-only"):
        sol.kernels[0][0] = 1.0


@pytest.mark.long
def test_densities(solved):
    """Gaussian, with the variance that the windows give each position."""
    sol = solved(ak.NNGPK(cnn(), decay=DECAY))
    kernel = sol.kernels[0]
    for position in (0, 5):
        values, weights = sol.density(2, 1, position)
        expected = sum(kernel[1, p, 1, p] for p in cnn().taps(X.shape)[1][position] if p >= 0) / DECAY[1]
        assert np.sum(weights * values**2) == pytest.approx(expected, rel=2e-3)  # quantiles have no tail
    with pytest.raises(ValueError, match="position must be at most 7, but it is 8"):
        sol.density(2, 1, 8)


# Size, audit, awkward input


def test_memory(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 2**20)
    big = np.zeros((1, 64, 64, 1))
    with pytest.raises(
        ak.TooLargeError, match=r"every pair of the 4096 positions .* use a larger stride, .* readout='flatten'"
    ):
        ak.solve(ak.NNGPK(ak.CNN(1, 3, padding="same", readout="mean")), big, [1.0])
    with pytest.raises(ak.TooLargeError, match="a kernel over 400 images needs about .* use fewer training points"):
        ak.solve(ak.NTK(ak.CNN(1, 2, 2)), np.zeros((400, 4, 4, 1)), np.zeros(400))


def test_memory_of_inner_kernels(monkeypatch):
    sol = ak.solve(ak.NNGPK(cnn()), X, Y)
    monkeypatch.setattr(memory, "available", lambda: 2**14)
    with pytest.raises(
        ak.TooLargeError, match=r"the kernel of layer 1 over all pairs of 4 x 16 positions .* larger stride"
    ):
        sol.kernels[0]
    assert sol.kernels[-1].shape == (4, 4)


@each_readout
def test_the_audit_sees_what_is_wrong(readout, solved):
    limit = ak.NTK(cnn(readout=readout), ridge=0.1, decay=DECAY)
    sol = solved(limit)
    columns = {name: np.array(getattr(sol, name))[:, None] for name in ("coefficients", "fitted", "errors")}
    answer = Answer(kernels=(sol.kernels[-1],), kernel=sol.kernel, kernel_errors=(np.zeros((4, 4)),), **columns)
    with scope("float64"):
        assert limit.residual(X, Y[:, None], answer) < 1e-10
        assert limit.residual(X, Y[:, None], replace(answer, kernels=(1.01 * sol.kernels[-1],))) > 1e-3
        kernel = 1.01 * sol.kernel  # with a readout that agrees with it
        alpha = np.linalg.solve(kernel + 0.1 * np.eye(4), Y[:, None])
        forged = replace(
            answer, kernel=kernel, coefficients=alpha, fitted=kernel @ alpha, errors=Y[:, None] - kernel @ alpha
        )
        assert limit.residual(X, Y[:, None], forged) > 1e-3
        network = cnn(readout=readout, padding="circular")  # what another padding would give
        assert replace(limit, network=network).residual(X, Y[:, None], answer) > 1e-3


@pytest.mark.long
def test_the_audit_of_many_positions(monkeypatch):
    """Beyond so many moments the activation's own rule serves, spot-checked by quadrature."""
    monkeypatch.setattr(lazy_cnn, "_MOST", 64)
    limit = ak.NTK(cnn("tanh", "mean"), decay=DECAY)
    sol = ak.solve(limit, X, Y)
    assert sol.residual < 1e-10
    monkeypatch.setattr(lazy_cnn, "_one_by_one", lambda rule, slopes, a, b, c: 0.99 * c)
    with pytest.raises(ak.ConvergenceError, match="the equations hold to"):
        ak.solve(limit, X, Y)


@pytest.mark.parametrize("kind", [ak.NNGP, ak.NTK])
@each_readout
@pytest.mark.long
def test_awkward_images(kind, readout):
    """One image, equal images, constant and empty ones."""
    limit = kind(cnn(readout=readout))
    one = ak.solve(limit, X[:1], Y[:1])
    assert one.converged and one.predict(X[:2]).shape == (2,)
    twice = ak.solve(limit, X[[0, 1, 0, 1]], [1.0, 2.0, 3.0, 2.0])
    assert twice.converged
    np.testing.assert_allclose(twice.fitted[:2], twice.fitted[2:], rtol=1e-9)
    if kind is ak.NTK:
        np.testing.assert_allclose(twice.fitted, [2.0, 2.0, 2.0, 2.0], rtol=1e-6)  # the mean of what is equal
    levels = np.array([0.0, 1.0, -2.0, 1.0])
    flat = ak.solve(limit, np.ones((4, 4, 4, 2)) * levels[:, None, None, None], Y)
    assert flat.converged and np.isfinite(flat.predict(Z)).all()
    np.testing.assert_allclose(flat.kernel[0], 0.0, atol=1e-15)
    np.testing.assert_allclose(flat.fitted[1], flat.fitted[3], rtol=1e-9)
    several = ak.solve(limit, X, np.stack([Y, 2 * Y], axis=1))
    assert several.predict(Z).shape == (3, 2)
