"""Φ⁰ and patches against naive loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import adakern as ak
from adakern import inputs


def naive_patches(X, window, stride):
    (wh, ww), (sh, sw) = window, stride
    points = []
    for image in X:
        found = []
        for top in range(0, image.shape[0] - wh + 1, sh):
            for left in range(0, image.shape[1] - ww + 1, sw):
                found.append(image[top : top + wh, left : left + ww, :].ravel())
        points.append(found)
    return np.array(points)


@pytest.mark.parametrize("window, stride", [((3, 3), (1, 1)), ((2, 3), (2, 1)), ((4, 2), (3, 2)), ((6, 5), (1, 1))])
def test_patches(window, stride, rng):
    X = rng.standard_normal((3, 6, 5, 2))
    (taps,) = ak.CNN(1, window, stride).taps(X.shape)
    np.testing.assert_array_equal(inputs.patches(X, taps), naive_patches(X, window, stride))


def test_input_kernel_of_an_mlp(rng):
    X, Z = rng.standard_normal((4, 7)), rng.standard_normal((3, 7))
    np.testing.assert_allclose(inputs.input_kernel(ak.MLP(2), X), X @ X.T / 7, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(inputs.input_kernel(ak.MLP(2), X, Z), X @ Z.T / 7, rtol=1e-13, atol=1e-15)


def test_input_kernel_of_a_cnn(rng):
    """Φ⁰_{μa,νb} is the inner product of two patches over the fan-in: pixels of the window times channels."""
    network = ak.CNN(1, window=(2, 3), stride=(2, 1))
    X, Z = rng.standard_normal((3, 6, 5, 2)), rng.standard_normal((2, 6, 5, 2))
    a, b = (naive_patches(v, (2, 3), (2, 1)) for v in (X, Z))
    expected = np.zeros((3, 9, 2, 9))
    for mu, s, nu, t in np.ndindex(expected.shape):
        expected[mu, s, nu, t] = sum(x * z for x, z in zip(a[mu, s], b[nu, t], strict=True)) / (2 * 3 * 2)
    np.testing.assert_allclose(inputs.input_kernel(network, X, Z), expected, rtol=1e-13, atol=1e-14)
    own = inputs.input_kernel(network, X)
    assert own.shape == (3, 9, 3, 9)
    np.testing.assert_allclose(own, own.transpose(2, 3, 0, 1), rtol=1e-14, atol=1e-15)


def test_a_window_of_the_whole_image_is_an_mlp(rng):
    X = rng.standard_normal((4, 3, 2, 2))
    whole = inputs.input_kernel(ak.CNN(1, window=(3, 2)), X)
    np.testing.assert_allclose(whole[:, 0, :, 0], inputs.input_kernel(ak.MLP(1), X.reshape(4, -1)), rtol=1e-13)


def test_features_are_rows_of_a_root(rng):
    X = rng.standard_normal((4, 5, 5, 1))
    network = ak.CNN(1, window=3, stride=2)
    rows = inputs.features(network, X)
    assert rows.shape == (4 * 4, 9)
    np.testing.assert_allclose((rows @ rows.T).reshape(4, 4, 4, 4), inputs.input_kernel(network, X), rtol=1e-13)
    with pytest.raises(ValueError, match="window of layer 1 must fit into the image"):
        inputs.features(ak.CNN(1, window=7), X)


def test_distinct_points():
    X = np.array([[3.0, 0], [1, 1], [3, 0], [0, 0], [1, 1], [-0.0, 0]])
    found = inputs.distinct(X)
    np.testing.assert_array_equal(found.first, [0, 1, 3])
    np.testing.assert_array_equal(found.member, [0, 1, 0, 2, 1, 2])


@given(X=hnp.arrays(np.float64, (6, 2), elements=st.integers(0, 1).map(float)))
@settings(max_examples=30, deadline=None)
def test_distinct_points_rebuild_the_set(X):
    found = inputs.distinct(X)
    np.testing.assert_array_equal(X[found.first][found.member], X)
    assert len(np.unique(X, axis=0)) == len(found.first)
    kernel = X @ X.T
    np.testing.assert_array_equal(found.expand(found.pick(kernel)), kernel)
    dual = np.random.default_rng(0).standard_normal((len(found.first),) * 2)
    np.testing.assert_allclose(found.collapse(found.spread(dual)), dual, rtol=1e-13)
    # A dual acts on kernels alike before and after: Tr(dual · kernel) is the same over all points and over distinct ones.
    np.testing.assert_allclose(np.sum(found.spread(dual) * kernel), np.sum(dual * found.pick(kernel)), atol=1e-12)
