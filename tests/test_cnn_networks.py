"""Padding and readout of convolutional networks: what windows see, the description's files, and the networks of finite width."""

from __future__ import annotations

import itertools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import adakern as ak
from adakern import inputs, losses, networks
from adakern.finite import measure, model
from adakern.precision import scope

RNG = np.random.default_rng(3)
PICTURES = RNG.standard_normal((3, 7, 9, 2))
WIDTH, GAMMA = 5, 1.7
each_padding = pytest.mark.parametrize("padding", networks.PADDINGS)
each_readout = pytest.mark.parametrize("readout", networks.READOUTS)


def network(padding, readout="flatten", depth=2):
    """Windows and strides that are odd and even, alike and not, in both directions."""
    windows, strides = ((3, 2), (2, 3), (2, 2)), ((1, 2), (2, 1), (1, 1))
    return ak.CNN(depth, windows[:depth], strides[:depth], "tanh", padding=padding, readout=readout)


def seen_by_hand(size, window, stride, padding):
    """Which indices each window sees along one axis, as the definitions say it; None outside."""
    if padding == "valid":
        starts = [start for start in range(0, size, stride) if start + window <= size]
        return [[start + b for b in range(window)] for start in starts]
    count = math.ceil(size / stride)
    if padding == "circular":
        return [[(a * stride - (window - 1) // 2 + b) % size for b in range(window)] for a in range(count)]
    total = max((count - 1) * stride + window - size, 0)
    places = [[a * stride - total // 2 + b for b in range(window)] for a in range(count)]
    return [[place if 0 <= place < size else None for place in row] for row in places]


@given(
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    window=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    stride=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    padding=st.sampled_from(networks.PADDINGS),
)
@settings(max_examples=120, deadline=None)
def test_taps(size, window, stride, padding):
    if padding == "valid":
        window = tuple(map(min, window, size))
    (taps,) = ak.CNN(1, window, stride, padding=padding).taps((1, *size, 1))
    rows, columns = (seen_by_hand(*axis, padding) for axis in zip(size, window, stride, strict=True))
    expected = [
        [-1 if i is None or j is None else i * size[1] + j for i, j in itertools.product(down, across)]
        for down, across in itertools.product(rows, columns)
    ]
    np.testing.assert_array_equal(taps, expected)
    assert ak.CNN(1, window, stride, padding=padding).grids((1, *size, 1)) == ((len(rows), len(columns)),)


@each_padding
def test_taps_are_a_convolution(padding):
    """Against jax's own, layer after layer; "same" is its "SAME"."""
    net, images = network(padding, depth=3), PICTURES
    for layer, taps in enumerate(net.taps(PICTURES.shape)):
        weight = RNG.standard_normal((*net.window[layer], images.shape[3], 4))
        if padding == "circular":
            (top, left), (down, right) = (((w - 1) // 2 for w in net.window[layer]), net.window[layer])
            wide = np.pad(images, ((0, 0), (top, down), (left, right), (0, 0)), mode="wrap")
        else:
            wide = images
        with scope("float64"):
            result = jax.lax.conv_general_dilated(
                jnp.asarray(wide),
                jnp.asarray(weight),
                net.stride[layer],
                "SAME" if padding == "same" else "VALID",
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
                precision="highest",
            )
        height, width = net.grids(PICTURES.shape)[layer]
        result = np.asarray(result)[:, :height, :width]
        flat = np.pad(images.reshape(len(images), -1, images.shape[3]), ((0, 0), (0, 1), (0, 0)))
        found = flat[:, taps].reshape(len(images), len(taps), -1) @ weight.reshape(-1, 4)
        np.testing.assert_allclose(found.reshape(result.shape), result, rtol=1e-11, atol=1e-12)
        images = result


def test_a_centred_window_of_three():
    (taps,) = ak.CNN(1, 3, padding="circular").taps((1, 4, 4, 1))
    np.testing.assert_array_equal(taps[0], [15, 12, 13, 3, 0, 1, 7, 4, 5])
    (taps,) = ak.CNN(1, 3, padding="same").taps((1, 4, 4, 1))
    np.testing.assert_array_equal(taps[0], [-1, -1, -1, -1, 0, 1, -1, 4, 5])
    (taps,) = ak.CNN(1, 2, padding="same").taps((1, 3, 3, 1))
    np.testing.assert_array_equal(taps[-1], [8, -1, -1, -1])  # more after than before


def test_a_window_larger_than_the_image():
    assert ak.CNN(1, 7, padding="same").sites((1, 3, 2, 1)) == (6,)
    (taps,) = ak.CNN(1, (1, 5), padding="circular").taps((1, 1, 3, 1))
    np.testing.assert_array_equal(taps[0], [1, 2, 0, 1, 2])  # some pixels twice, each time with a weight of its own
    with pytest.raises(ValueError, match="must fit into the image .* or padding='same'"):
        ak.CNN(1, 7).check_inputs((1, 3, 2, 1))


@pytest.mark.parametrize(
    "make, kind, message",
    [
        (lambda: ak.CNN(padding="zeros"), ValueError, "padding must be one of 'valid', 'same', 'circular', but it is"),
        (lambda: ak.CNN(padding=("same", "valid")), TypeError, "padding must be one of"),
        (lambda: ak.CNN(readout="sum"), ValueError, "readout must be one of 'flatten', 'mean', but it is 'sum'"),
        (lambda: ak.CNN(readout=None), TypeError, "readout must be one of"),
    ],
)
def test_refused(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


def test_descriptions_differ():
    assert len({network(p, r) for p in networks.PADDINGS for r in networks.READOUTS}) == 6
    assert "padding='circular'" in repr(network("circular")) and "readout='mean'" in repr(network("same", "mean"))


@each_padding
@each_readout
def test_config(padding, readout):
    net = network(padding, readout)
    assert networks.from_config(json.loads(json.dumps(net.config()))) == net


def test_config_written_before_there_was_padding():
    old = {"kind": "CNN", "depth": 1, "window": [[3, 2]], "stride": [[1, 1]], "activation": "relu"}
    assert networks.from_config(old) == ak.CNN(1, (3, 2))


@each_padding
def test_features_keep_their_scale(padding):
    """Zeros beyond the image do not count as a smaller fan-in."""
    net = ak.CNN(1, 3, padding=padding)
    rows = inputs.features(net, np.ones((1, 4, 4, 2)))
    expected = {"valid": [1.0], "same": [4 / 9, 6 / 9, 1.0], "circular": [1.0]}[padding]
    np.testing.assert_allclose(np.unique(np.round(np.sum(rows**2, axis=1), 12)), expected)
    np.testing.assert_allclose(rows, model.rows_of(net, np.ones((1, 4, 4, 2))))


# Finite width


class Case:
    def __init__(self, net, outputs=2):
        self.network = net
        self.net = model.build(net, PICTURES, losses.get("squared"), WIDTH, outputs, "highest")
        self.rows = model.rows_of(net, PICTURES)
        self.weights = model.draw(np.random.default_rng(3), self.net.shapes(self.rows.shape[1]))
        self.scales = self.net.scales(GAMMA)

    @property
    def arguments(self):
        return tuple(map(jnp.asarray, self.weights)), jnp.asarray(self.rows), jnp.asarray(self.scales)


def by_hand(case):
    """Outputs and features, position by position and tap by tap."""
    net, images, features = case.network, PICTURES, []
    for layer in range(net.depth):
        channels = images.shape[3]
        fan_in = math.prod(net.window[layer]) * channels if layer == 0 else WIDTH
        weight = case.weights[layer].reshape(*net.window[layer], channels, WIDTH)
        axes = zip(images.shape[1:3], net.window[layer], net.stride[layer], strict=True)
        rows, columns = (seen_by_hand(*axis, net.padding) for axis in axes)
        field = np.zeros((len(images), len(rows), len(columns), WIDTH))
        for (a, down), (b, across) in itertools.product(enumerate(rows), enumerate(columns)):
            for (i, row), (j, column) in itertools.product(enumerate(down), enumerate(across)):
                if row is not None and column is not None:
                    field[:, a, b] += images[:, row, column] @ weight[i, j] / math.sqrt(fan_in)
        images = np.tanh(field)
        features.append(images)
    if net.readout == "mean":
        s = images.mean(axis=(1, 2)) @ case.weights[-1]
    else:
        s = np.einsum("pabn,abnc->pc", images, case.weights[-1].reshape(*images.shape[1:], -1))
    return s / (GAMMA * math.sqrt(WIDTH)), features


def last_kernel(case, features, neurons=False):
    """Φ^L, of each neuron or of all together."""
    phi = features[-1].reshape(len(PICTURES), -1, WIDTH)
    if case.network.readout == "mean":
        parts = np.einsum("pn,qn->npq", phi.mean(axis=1), phi.mean(axis=1))
    else:
        parts = np.einsum("pan,qan->npq", phi, phi)
    return parts if neurons else parts.mean(axis=0)


@each_padding
@each_readout
def test_forward_pass_and_kernels(padding, readout):
    case = Case(network(padding, readout))
    with scope("float64"):
        s, _, features = case.net.forward(*case.arguments)
        kernels = measure.kernels(case.net, *case.arguments)
        scatter = measure.neuron_scatter(case.net, *case.arguments)
        parts = measure.contributions(case.net, *case.arguments, jnp.zeros((1, WIDTH)))
    expected, phis = by_hand(case)
    np.testing.assert_allclose(s, expected, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(np.asarray(parts).mean(axis=-1), expected, rtol=1e-11, atol=1e-13)
    for found, phi in zip(features, phis, strict=True):
        np.testing.assert_allclose(found, phi.reshape(-1, WIDTH), rtol=1e-11, atol=1e-13)
    flat = phis[0].reshape(-1, WIDTH)
    np.testing.assert_allclose(kernels[0], flat @ flat.T / WIDTH, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(kernels[1], last_kernel(case, phis), rtol=1e-11, atol=1e-13)
    each = last_kernel(case, phis, neurons=True)
    np.testing.assert_allclose(scatter[1], each.std(axis=0, ddof=1) / math.sqrt(WIDTH), rtol=1e-7)


@pytest.mark.parametrize("padding, readout", [("valid", "mean"), ("same", "flatten"), ("circular", "mean")])
@pytest.mark.long
def test_empirical_tangent_kernel(padding, readout):
    """Against the Jacobian with respect to all weights."""
    case = Case(network(padding, readout, depth=3), outputs=1)
    with scope("float64"):
        weights, rows, scales = case.arguments
        found = measure.tangents(case.net, weights, rows, scales).tangent
        jacobian = jax.jit(jax.jacrev(lambda w: case.net.outputs_of(w, rows, scales)[:, 0]))(weights)
    flat = np.concatenate([np.asarray(part).reshape(len(PICTURES), -1) for part in jacobian], axis=1)
    np.testing.assert_allclose(found[:, 0, :, 0], GAMMA**2 * flat @ flat.T, rtol=1e-10)


@pytest.mark.long
def test_runs(tmp_path):
    """From the description to a file and back."""
    X, y = RNG.standard_normal((3, 4, 4, 1)), np.array([1.0, -1.0, 0.5])
    net = ak.CNN(2, 2, activation="tanh", padding="circular", readout="mean")
    run = ak.finite.gradient_flow(net, X, y, width=16, time=0.5, decay=0.1, precision="float64")
    assert [kernel.shape for kernel in run.kernels] == [(3, 16, 3, 16), (3, 3)]
    assert run.weights[-1].shape == (1, 16, 1)
    np.testing.assert_allclose(run.predict(X), run.fitted, rtol=1e-10)
    shifted = np.roll(X, (1, 2), axis=(1, 2))
    np.testing.assert_allclose(run.predict(shifted), run.fitted, rtol=1e-10)  # a mean does not see where
    run.save(tmp_path / "run.safetensors")
    again = ak.load(tmp_path / "run.safetensors")
    assert again.network == net
    np.testing.assert_array_equal(again.predict(X), run.predict(X))
