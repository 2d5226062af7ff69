"""The lazy limits of convolutional networks: against formulas, fully connected networks, wide random networks, and their symmetries."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import adakern as ak
from adakern import inputs, losses, networks
from adakern.finite import measure, model
from adakern.precision import scope

RNG = np.random.default_rng(17)
X, Z = 0.7 * RNG.standard_normal((4, 4, 4, 2)), 0.7 * RNG.standard_normal((3, 4, 4, 2))
Y = RNG.standard_normal(4)
DECAY = (1.2, 4.0, 1.5)  # the second about as large as a window, so that fields stay of order one
KINDS = (ak.NNGP, ak.NNGPK, ak.NTK)
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


def moments(name, covariance):
    """E[φφ] and E[φ'φ'] of every pair of rows: arc-cosine kernels, or Williams' for erf."""
    variance = np.diag(covariance)
    if name == "relu":
        scale = np.sqrt(np.outer(variance, variance))
        angle = np.arccos(np.clip(covariance / scale, -1, 1))
        np.fill_diagonal(angle, 0.0)
        values = scale * (np.sin(angle) + (math.pi - angle) * np.cos(angle)) / (2 * math.pi)
        return values, (math.pi - angle) / (2 * math.pi)
    wide = np.outer(1 + 2 * variance, 1 + 2 * variance)
    values = 2 / math.pi * np.arcsin(2 * covariance / np.sqrt(wide))
    return values, 4 / math.pi / np.sqrt(wide - 4 * covariance**2)


def by_hand(network, decay, images):
    """All kernels over all pairs of (point, position), entry by entry: Φ^1..Φ^L, G^1..G^L (P, S, P, S), and K."""
    points, taps = len(images), network.taps(images.shape)
    rows = inputs.features(network, images)
    seen = (rows @ rows.T).reshape(points, len(taps[0]), points, len(taps[0]))
    sees, kernels, slopes = [seen], [], []
    for layer in range(network.depth):
        if layer:
            seen = np.zeros((points, len(taps[layer]), points, len(taps[layer])))
            for a, b in np.ndindex(len(taps[layer]), len(taps[layer])):
                for p, q in zip(taps[layer][a], taps[layer][b], strict=True):
                    if p >= 0 and q >= 0:
                        seen[:, a, :, b] += kernels[-1][:, p, :, q]
            sees.append(seen)
        size = points * len(taps[layer])
        value, slope = moments(network.activation.name, seen.reshape(size, size) / decay[layer])
        kernels.append(value.reshape(seen.shape))
        slopes.append(slope.reshape(seen.shape) / decay[layer + 1])
    sites = len(taps[-1])
    readout = np.full((sites, sites), 1 / sites**2) if network.readout == "mean" else np.eye(sites)
    above = np.broadcast_to(readout[None, :, None, :], kernels[-1].shape)
    last = np.sum(above * kernels[-1], axis=(1, 3))
    total, gradients = last, []
    for layer in range(network.depth - 1, -1, -1):
        gradients.insert(0, above * slopes[layer])
        total = total + np.sum(gradients[0] * sees[layer], axis=(1, 3))
        if layer:
            above = np.zeros_like(kernels[layer - 1])
            for a, b in np.ndindex(len(taps[layer]), len(taps[layer])):
                for p, q in zip(taps[layer][a], taps[layer][b], strict=True):
                    if p >= 0 and q >= 0:
                        above[:, p, :, q] += gradients[0][:, a, :, b]
    return (*kernels[:-1], last), tuple(gradients), total


@pytest.mark.parametrize(
    "padding, activation, readout",
    [("valid", "erf", "flatten"), ("same", "relu", "flatten"), ("same", "relu", "mean"), ("circular", "erf", "mean")],
)
def test_against_loops(activation, padding, readout, solved):
    """Kernels, gradient kernels and the tangent kernel, between training images and with new ones."""
    network = cnn(activation, readout, padding)
    both = np.concatenate([X, Z])
    kernels, gradients, total = by_hand(network, DECAY, both)
    sol = solved(ak.NTK(network, decay=DECAY))
    np.testing.assert_allclose(sol.kernel, total[:4, :4], rtol=1e-7)  # the reference's arccos loses half the digits
    np.testing.assert_allclose(sol.cross_kernel(Z), total[4:, :4], rtol=1e-9)
    for found, expected in zip((*sol.kernels, *sol.gradient_kernels), (*kernels, *gradients), strict=True):
        part = expected[:4, :4] if expected.ndim == 2 else expected[:4, :, :4]
        np.testing.assert_allclose(found, part, rtol=1e-7, atol=1e-9)
    gp = solved(ak.NNGP(network, decay=DECAY))
    np.testing.assert_allclose(gp.kernel, kernels[-1][:4, :4], rtol=1e-9)
    np.testing.assert_allclose(gp.cross_kernel(Z), kernels[-1][4:, :4], rtol=1e-9)
    matrix = kernels[-1][:4, :4] + DECAY[-1] / 50 * np.eye(4)
    cross = kernels[-1][4:, :4]
    np.testing.assert_allclose(gp.predict(Z), cross @ np.linalg.solve(matrix, Y), rtol=1e-8)
    explained = np.einsum("qp,pq->q", cross, np.linalg.solve(matrix, cross.T))
    expected = (np.diag(kernels[-1])[4:] - explained) / DECAY[-1]
    np.testing.assert_allclose(gp.variance(Z), expected, rtol=1e-7)
    assert sol.residual < 1e-10 and gp.residual < 1e-10
    assert not any(error.any() for error in sol.kernel_errors)
    assert [error.shape for error in sol.kernel_errors] == [kernel.shape for kernel in sol.kernels]


def test_windows_side_by_side():
    """One hidden layer of ReLU whose windows do not overlap: a sum of arc-cosine kernels of patches."""
    images, y = RNG.standard_normal((5, 6, 4, 3)), RNG.standard_normal(5)
    sol = ak.solve(ak.NNGPK(ak.CNN(1, (3, 2), (3, 2)), beta=20.0, decay=2.0), images, y)
    kernel = np.zeros((5, 5))
    for row in (0, 3):
        for column in (0, 2):
            patch = images[:, row : row + 3, column : column + 2].reshape(5, -1)
            kernel += moments("relu", patch @ patch.T / 18 / 2)[0]
    np.testing.assert_allclose(sol.kernel, kernel, rtol=1e-8)
    np.testing.assert_allclose(sol.fitted, kernel @ np.linalg.solve(kernel + 0.1 * np.eye(5), y), rtol=1e-7)


@pytest.mark.parametrize(
    "kind, activation, readout",
    [
        *((kind, "relu", "flatten") for kind in KINDS),
        *((kind, "relu", "mean") for kind in KINDS),
        (ak.NTK, "tanh", "flatten"),
    ],
)
def test_a_window_of_the_whole_image_is_an_mlp(kind, activation, readout):
    network = ak.CNN(2, ((4, 4), (1, 1)), activation=activation, readout=readout)
    limit, other = (kind(net, decay=DECAY) for net in (network, ak.MLP(2, activation)))
    ours, theirs = ak.solve(limit, X, Y), ak.solve(other, X.reshape(4, -1), Y)
    np.testing.assert_allclose(ours.kernel, theirs.kernel, rtol=1e-11)
    np.testing.assert_allclose(ours.kernels[0][:, 0, :, 0], theirs.kernels[0], rtol=1e-11)
    np.testing.assert_allclose(ours.predict(Z), theirs.predict(Z.reshape(3, -1)), rtol=1e-9)
    if kind is ak.NNGP:
        np.testing.assert_allclose(ours.variance(Z), theirs.variance(Z.reshape(3, -1)), rtol=1e-8)
    if kind is ak.NTK:
        for mine, other in zip(ours.gradient_kernels, theirs.gradient_kernels, strict=True):
            np.testing.assert_allclose(mine[:, 0, :, 0], other, rtol=1e-11)


def scores(network, decay, images, width, seeds, theory=None):
    """(mean over random networks − theory) / its standard error, for Φ^L and the empirical tangent kernel."""
    net = model.build(network, images, losses.get("squared"), width, 1, "highest")
    rows = model.rows_of(network, images)
    shapes, gamma = net.shapes(rows.shape[1]), math.sqrt(width)
    sol = ak.solve(ak.NTK(network, decay=theory or decay), images, np.zeros(len(images)))
    with scope("float32"):
        arrays, scales = jnp.asarray(rows), jnp.asarray(net.scales(gamma))

        @jax.jit
        def one(key):
            keys = jax.random.split(key, len(shapes))
            draws = [
                jax.random.normal(k, shape) / math.sqrt(d) for k, shape, d in zip(keys, shapes, decay, strict=True)
            ]
            tangent = measure.tangents(net, tuple(draws), arrays, scales).tangent[:, 0, :, 0]
            return measure.kernels(net, tuple(draws), arrays, scales)[-1], tangent

        found = [one(jax.random.key(seed)) for seed in range(seeds)]
    result = []
    upper = np.triu_indices(len(images))
    for index, expected in enumerate((sol.kernels[-1], sol.kernel)):
        stack = np.stack([np.asarray(pair[index], np.float64) for pair in found])
        error = stack.std(axis=0, ddof=1) / math.sqrt(seeds)
        result.append(((stack.mean(axis=0) - expected) / error)[upper])
    return result


@pytest.mark.slow
@pytest.mark.parametrize(
    "activation, readout, padding",
    [
        ("relu", "flatten", "same"),
        pytest.param("relu", "mean", "circular", marks=pytest.mark.long),
        pytest.param("tanh", "flatten", "valid", marks=pytest.mark.long),
        ("tanh", "mean", "same"),
    ],
)
def test_wide_random_networks(activation, readout, padding):
    """Kernels and tangent kernels at initialisation, width 512, depth 2, decay per layer. A bias of 1/width is a fifth of the error."""
    network = cnn(activation, readout, padding)
    for z in scores(network, DECAY, X[:3], 512, 40):
        assert np.abs(z).max() < 4.0
        assert np.mean(z**2) < 5.0


@pytest.mark.slow
@pytest.mark.long
def test_scores_can_fail():
    """With a decay that is 4 % off, the theory is many standard errors away from the same networks."""
    network = cnn("relu", depth=1)
    good, _ = scores(network, (1.2, 0.8), X[:3], 512, 40)
    bad, _ = scores(network, (1.2, 0.8), X[:3], 512, 40, theory=(1.25, 0.8))
    assert np.abs(good).max() < 4 and np.abs(bad).max() > 6


# Symmetries


@pytest.mark.parametrize("kind", [ak.NNGPK, ak.NTK])
@each_readout
def test_permutations(kind, readout, solved):
    """Of channels: nothing changes. Of points: kernels are permuted."""
    limit = kind(cnn(readout=readout), decay=DECAY)
    sol, order = solved(limit), np.array([2, 0, 3, 1])
    np.testing.assert_allclose(ak.solve(limit, X[..., ::-1], Y).kernel, sol.kernel, rtol=1e-12)
    moved = ak.solve(limit, X[order], Y[order])
    np.testing.assert_allclose(moved.kernel, sol.kernel[np.ix_(order, order)], rtol=1e-12)
    np.testing.assert_allclose(moved.predict(Z), sol.predict(Z), rtol=1e-9)


def test_translations():
    """A circular network with a mean does not see them, image by image; with weights for each position it does."""
    shifts = [(0, 0), (1, 3), (2, 0), (3, 2)]
    moved = np.stack([np.roll(image, shift, axis=(0, 1)) for image, shift in zip(X, shifts, strict=True)])
    for readout in networks.READOUTS:
        limit = ak.NTK(ak.CNN(2, (3, 2), padding="circular", readout=readout))
        ours, theirs = (ak.solve(limit, images, Y) for images in (X, moved))
        same = ours.kernel if readout == "mean" else np.diag(ours.kernel)
        other = theirs.kernel if readout == "mean" else np.diag(theirs.kernel)
        np.testing.assert_allclose(other, same, rtol=1e-11)
        if readout == "flatten":
            assert np.abs(ours.kernel - theirs.kernel).max() > 0.01 * np.abs(ours.kernel).max()
        else:
            np.testing.assert_allclose(theirs.predict(np.roll(Z, (2, 1), axis=(1, 2))), ours.predict(Z), rtol=1e-9)


@pytest.mark.long
def test_zeros_around_the_image_break_the_symmetry():
    limit = ak.NNGPK(ak.CNN(1, 3, padding="same", readout="mean"))
    kernel, moved = (ak.solve(limit, images, Y).kernel for images in (X, np.roll(X, 1, axis=1)))
    assert np.abs(moved - kernel).max() > 0.03 * kernel.max()
