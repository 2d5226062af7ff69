"""Network descriptions: values, messages, and the geometry of convolutions."""

from __future__ import annotations

import dataclasses
import json

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import adakern as ak
from adakern import networks


@pytest.mark.parametrize(
    "make", [lambda: ak.MLP(3, "erf"), lambda: ak.CNN(2, window=(3, 2), stride=2, activation="tanh")]
)
def test_value_semantics(make):
    first, second = make(), make()
    assert first == second and hash(first) == hash(second)
    assert first != dataclasses.replace(first, activation="relu")
    for name in ("depth", "activation"):
        with pytest.raises(dataclasses.FrozenInstanceError, match=name):
            setattr(first, name, getattr(second, name))


def test_mlp_and_cnn_differ():
    assert ak.MLP(1) != ak.CNN(1)
    assert ak.MLP(1) != ak.MLP(2)
    assert isinstance(ak.MLP(), ak.Network) and isinstance(ak.CNN(), ak.Network)


def test_equal_callables_make_equal_networks():
    assert ak.MLP(1, jax.nn.silu) == ak.MLP(1, jax.nn.silu)
    assert ak.MLP(1, jax.nn.silu) != ak.MLP(1, jax.nn.elu)


@pytest.mark.parametrize(
    "depth, activation, expected", [(1, "relu", 2), (3, "linear", 4), (2, "tanh", None), (2, "gelu", None)]
)
def test_homogeneity(depth, activation, expected):
    assert ak.MLP(depth, activation).homogeneity == expected


@pytest.mark.parametrize(
    "make, kind, message",
    [
        (lambda: ak.MLP(0), ValueError, "depth must be at least 1, but it is 0"),
        (lambda: ak.MLP(-2), ValueError, "depth must be at least 1, but it is -2"),
        (lambda: ak.MLP(1.5), TypeError, "depth must be an integer, but it is 1.5"),
        (lambda: ak.MLP(True), TypeError, "depth must be an integer, but it is True"),
        (lambda: ak.MLP(1, "swish"), ValueError, "activation must be one of 'linear', .* or a callable"),
        (lambda: ak.CNN(1, window=0), ValueError, "window must be at least 1, but it is 0"),
        (lambda: ak.CNN(1, window=2.0), TypeError, "window must be an integer, but it is 2.0"),
        (lambda: ak.CNN(1, window="33"), TypeError, "window must be an integer, but it is '33'"),
        (lambda: ak.CNN(2, window=(3, 3, 3)), ValueError, r"window must be an integer, .* per layer \(2\)"),
        (
            lambda: ak.CNN(2, window=((3, 3, 3), 2)),
            ValueError,
            r"window\[0\] must be an integer or a \(height, width\) pair",
        ),
        (lambda: ak.CNN(1, stride=0), ValueError, "stride must be at least 1"),
        (lambda: ak.CNN(2, stride=((1, 2), -1)), ValueError, r"stride\[1\] must be at least 1"),
    ],
)
def test_refused(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


def test_windows_per_layer():
    assert ak.CNN(2, window=3, stride=2).window == ((3, 3), (3, 3))
    assert ak.CNN(2, window=(3, 2)).window == ((3, 2), (3, 2))  # two integers are one pair
    assert ak.CNN(2, window=(3, (2, 1))).window == ((3, 3), (2, 1))
    assert ak.CNN(3, window=(5, 3, 1)).window == ((5, 5), (3, 3), (1, 1))
    assert ak.CNN(2, window=[[3, 3], [2, 1]], stride=[[1, 1], [2, 2]]).stride == ((1, 1), (2, 2))


def test_grids():
    network = ak.CNN(2, window=((3, 3), (2, 2)), stride=((1, 1), (2, 2)))
    assert network.grids((12, 6, 6, 2)) == ((4, 4), (2, 2))
    assert network.sites((12, 6, 6, 2)) == (16, 4)
    assert ak.CNN(1, window=8, stride=8).sites((1, 32, 32, 3)) == (16,)
    assert ak.MLP(3).sites((10, 4)) == (1, 1, 1)
    assert (ak.MLP().input_ndim, ak.CNN().input_ndim) == (2, 4)


@given(
    size=st.tuples(st.integers(4, 12), st.integers(4, 12)),
    window=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 4), st.integers(1, 4)),
)
@settings(max_examples=50, deadline=None)
def test_positions_are_those_where_the_window_fits(size, window, stride):
    counted = tuple(
        sum(1 for start in range(0, side, step) if start + width <= side)
        for side, width, step in zip(size, window, stride, strict=True)
    )
    assert ak.CNN(1, window=window, stride=stride).grids((1, *size, 1)) == (counted,)


def test_a_window_must_fit():
    with pytest.raises(ValueError, match=r"window of layer 1 must fit into the image \(at most 4x5\), but it is 6x6"):
        ak.CNN(1, window=6).check_inputs((1, 4, 5, 3))
    with pytest.raises(ValueError, match=r"window of layer 2 must fit into the 2x2 positions that layer 1 leaves"):
        ak.CNN(2, window=3, stride=1).sites((1, 4, 4, 1))
    ak.CNN(1, window=(4, 5)).check_inputs((1, 4, 5, 3))


def test_inputs_must_have_the_right_number_of_axes():
    with pytest.raises(ValueError, match=r"X must be 2-D \(points, features\) for an MLP"):
        ak.MLP().check_inputs((3, 4, 4, 1))
    with pytest.raises(ValueError, match=r"X must be 4-D \(points, height, width, channels\) for a CNN"):
        ak.CNN().check_inputs((3, 16))


@pytest.mark.parametrize(
    "network",
    [ak.MLP(2, "erf"), ak.CNN(2, window=(3, (2, 1)), stride=((1, 2), 2), activation="gelu")],
    ids=["MLP", "CNN"],
)
def test_config_survives_json(network):
    assert networks.from_config(json.loads(json.dumps(network.config()))) == network


def test_config_with_a_function():
    network = ak.MLP(2, jax.nn.silu)
    assert networks.from_config(network.config(), jax.nn.silu) == network
    with pytest.raises(ValueError, match="network kind must be 'MLP' or 'CNN', but it is 'RNN'"):
        networks.from_config({"kind": "RNN", "depth": 1, "activation": "relu"})
