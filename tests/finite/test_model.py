"""The network itself: forward pass, gradient, kernels and tangent kernel against loops, finite differences and Jacobians."""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import adakern as ak
from adakern import losses
from adakern.finite import coordinates, measure, model
from adakern.precision import scope

RNG = np.random.default_rng(5)
WIDTH = 6
GAMMA = 0.7 * math.sqrt(WIDTH)
VECTORS = RNG.standard_normal((4, 3))
PICTURES = RNG.standard_normal((3, 6, 5, 2))
NETWORKS = {
    "MLP 1": (ak.MLP(1, "tanh"), VECTORS),
    "MLP 2": (ak.MLP(2, "erf"), VECTORS),
    "MLP 3": (ak.MLP(3, "tanh"), VECTORS),
    "CNN 1": (ak.CNN(1, window=(3, 2), stride=(1, 2), activation="tanh"), PICTURES),
    "CNN 2": (ak.CNN(2, window=((3, 2), (2, 1)), stride=((1, 1), (1, 2)), activation="tanh"), PICTURES),
    "CNN 3": (ak.CNN(3, window=((3, 2), (1, 2), (2, 1)), stride=((1, 1), (2, 1), (1, 2)), activation="erf"), PICTURES),
}
PHI = {"tanh": np.tanh, "erf": np.vectorize(math.erf)}
each = pytest.mark.parametrize("name", NETWORKS)


class Case:
    """A model with weights, its rows and its scales, in float64."""

    def __init__(self, name, outputs, loss="squared"):
        self.network, self.X = NETWORKS[name]
        self.net = model.build(self.network, self.X, losses.get(loss), WIDTH, outputs, "highest")
        self.rows = model.rows_of(self.network, self.X)
        shapes = self.net.shapes(self.rows.shape[1])
        self.weights = tuple(model.draw(np.random.default_rng(3), shapes))
        self.scales = self.net.scales(GAMMA)

    @property
    def arguments(self):
        return tuple(map(jnp.asarray, self.weights)), jnp.asarray(self.rows), jnp.asarray(self.scales)


def by_hand(case):
    """Fields, features and outputs position by position, tap by tap; features of layer ℓ as (points, height, width, N)."""
    network, X = case.network, case.X
    phi = PHI[network.activation.name]
    if isinstance(network, ak.MLP):
        windows = strides = ((1, 1),) * network.depth
        images = X[:, None, None, :]
    else:
        windows, strides, images = network.window, network.stride, X
    fields, features = [], []
    for layer, ((wh, ww), (sh, sw)) in enumerate(zip(windows, strides, strict=True)):
        points, height, width, channels = images.shape
        grid = (height - wh) // sh + 1, (width - ww) // sw + 1
        fan_in = wh * ww * channels if layer == 0 else WIDTH
        weight = case.weights[layer].reshape(wh, ww, channels, WIDTH)
        field = np.zeros((points, *grid, WIDTH))
        for mu, a, b, i, j in itertools.product(range(points), *map(range, grid), range(wh), range(ww)):
            field[mu, a, b] += images[mu, a * sh + i, b * sw + j] @ weight[i, j] / math.sqrt(fan_in)
        fields.append(field)
        images = phi(field)
        features.append(images)
    readout = case.weights[-1].reshape(*images.shape[1:], -1)
    s = np.zeros((len(X), readout.shape[-1]))
    for mu, a, b in itertools.product(*map(range, images.shape[:3])):
        s[mu] += images[mu, a, b] @ readout[a, b] / (GAMMA * math.sqrt(WIDTH))
    return s, fields, features


@each
def test_forward_pass(name):
    case = Case(name, 3)
    with scope("float64"):
        s, fields, features = case.net.forward(*case.arguments)
    expected, hs, phis = by_hand(case)
    np.testing.assert_allclose(s, expected, rtol=1e-12, atol=1e-14)
    for found, wanted in itertools.chain(zip(fields, hs, strict=True), zip(features, phis, strict=True)):
        np.testing.assert_allclose(found, wanted.reshape(-1, WIDTH), rtol=1e-12, atol=1e-14)


@each
def test_kernels(name):
    case = Case(name, 1)
    with scope("float64"):
        found = measure.kernels(case.net, *case.arguments)
    _, _, features = by_hand(case)
    for layer, (kernel, phi) in enumerate(zip(found, features, strict=True), start=1):
        P, S = len(phi), math.prod(phi.shape[1:3])
        expected = np.einsum("pan,qbn->paqb", *(phi.reshape(P, S, WIDTH),) * 2) / WIDTH
        public = case.net.unfold(np.asarray(kernel), layer)
        if layer == case.network.depth:
            np.testing.assert_allclose(public, np.einsum("paqa->pq", expected), rtol=1e-12)
        elif isinstance(case.network, ak.CNN):
            np.testing.assert_allclose(public, expected, rtol=1e-12)
        else:
            np.testing.assert_allclose(public, expected[:, 0, :, 0], rtol=1e-12)


@pytest.mark.parametrize(
    "name, loss",
    [("MLP 1", "squared"), ("MLP 2", "logistic"), ("MLP 3", "softmax"), ("CNN 2", "softmax"), ("CNN 3", "squared")],
)
def test_gradient(name, loss):
    case = Case(name, 3, loss)
    rng = np.random.default_rng(8)
    labels = {
        "squared": rng.standard_normal((len(case.X), 3)),
        "logistic": rng.choice([-1.0, 1.0], (len(case.X), 3)),
        "softmax": np.eye(3)[rng.integers(3, size=len(case.X))],
    }[loss]
    shift = 0.1 * rng.standard_normal(labels.shape)
    with scope("float64"):
        weights, rows, scales = case.arguments
        y, moved = jnp.asarray(labels), jnp.asarray(shift)

        @jax.jit
        def total(weights):
            return jnp.sum(case.net.loss.value(y, case.net.outputs_of(weights, rows, scales) - moved))

        found, s, _ = jax.jit(case.net.gradient)(weights, rows, y, scales, shift=moved)
        np.testing.assert_allclose(s, case.net.outputs_of(weights, rows, scales) - moved, rtol=1e-14)
        for g, expected in zip(found, jax.jit(jax.grad(total))(weights), strict=True):
            np.testing.assert_allclose(g, expected, rtol=1e-10, atol=1e-13)
        direction = [rng.standard_normal(w.shape) for w in weights]
        ends = [
            total(tuple(w + sign * 1e-5 * d for w, d in zip(weights, direction, strict=True))) for sign in (1.0, -1.0)
        ]
        slope = sum(float(jnp.sum(g * d)) for g, d in zip(found, direction, strict=True))
        assert slope == pytest.approx(float(ends[0] - ends[1]) / 2e-5, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize(
    "name, outputs", [("MLP 1", 3), ("MLP 2", 1), ("MLP 3", 3), ("CNN 1", 1), ("CNN 2", 3), ("CNN 3", 1)]
)
def test_tangent_kernel_is_the_jacobians(name, outputs):
    case = Case(name, outputs)
    with scope("float64"):
        weights, rows, scales = case.arguments
        found = measure.tangents(case.net, weights, rows, scales)
        jacobians = jax.jit(jax.jacobian(lambda w: case.net.outputs_of(w, rows, scales)))(weights)
    flat = np.concatenate([np.asarray(j).reshape(len(case.X) * outputs, -1) for j in jacobians], axis=1)
    expected = (GAMMA**2 * flat @ flat.T).reshape(len(case.X), outputs, len(case.X), outputs)
    np.testing.assert_allclose(found.tangent, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name, outputs", [("MLP 1", 3), ("MLP 3", 3), ("CNN 2", 3)])
def test_gradient_kernels(name, outputs):
    r"""$g^\ell=\gamma\sqrt N\,\partial s/\partial h^\ell$, by differentiating through what stands above each layer."""
    case = Case(name, outputs)
    with scope("float64"):
        weights, rows, scales = case.arguments
        found = measure.tangents(case.net, weights, rows, scales).gradient_kernels
        fields = case.net.forward(weights, rows, scales)[1]
        for layer, field in enumerate(fields):

            def above(h, layer=layer):
                features = case.net.activation(h)
                for upper in range(layer + 1, case.net.depth):
                    features = case.net.activation(case.net._layer(upper, features * scales[upper], weights[upper]))
                return features.reshape(-1, weights[-1].shape[0]) @ weights[-1] * scales[-1]

            slopes = np.asarray(jax.jit(jax.jacobian(above))(field))  # (P, C, rows, N): zero for another point's rows
            g = GAMMA * math.sqrt(WIDTH) * slopes.sum(axis=0)
            expected = np.einsum("cun,dvn->cduv", g, g) / WIDTH
            np.testing.assert_allclose(found[layer], expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_tangent_kernel_of_an_mlp_is_a_sum_of_products(depth):
    case = Case(f"MLP {depth}", 1)
    with scope("float64"):
        found = measure.tangents(case.net, *case.arguments)
        kernels = measure.kernels(case.net, *case.arguments)
    phis = [case.rows @ case.rows.T, *map(np.asarray, kernels)]
    gradients = [*(np.asarray(g)[0, 0] for g in found.gradient_kernels), np.ones_like(phis[0])]
    expected = sum(g * phi for g, phi in zip(gradients, phis, strict=True))
    np.testing.assert_allclose(np.asarray(found.tangent)[:, 0, :, 0], expected, rtol=1e-12)


def test_scatter_over_neurons():
    """The error of a kernel that neurons have as independent draws; at a CNN's last layer a neuron is a sum over positions."""
    for name in ("MLP 2", "CNN 2"):
        case = Case(name, 1)
        with scope("float64"):
            found = measure.neuron_scatter(case.net, *case.arguments)
        _, _, features = by_hand(case)
        for layer, (error, phi) in enumerate(zip(found, features, strict=True), start=1):
            places = phi.reshape(len(phi), -1, WIDTH)
            if layer == case.network.depth:
                each_neuron = np.einsum("pan,qan->npq", places, places)
            else:
                flat = places.reshape(-1, WIDTH)
                each_neuron = np.einsum("pn,qn->npq", flat, flat)
            expected = each_neuron.std(axis=0, ddof=1) / math.sqrt(WIDTH)
            np.testing.assert_allclose(error, expected, rtol=1e-7)


def test_contributions_of_neurons_add_up():
    case = Case("CNN 2", 3)
    with scope("float64"):
        parts = measure.contributions(case.net, *case.arguments, jnp.zeros((1, WIDTH)))
    np.testing.assert_allclose(np.asarray(parts).mean(axis=-1), by_hand(case)[0], rtol=1e-11)


# Coordinates


def wide_rows(points=4, size=9):
    return np.random.default_rng(2).standard_normal((points, size))


def test_reduced_coordinates_give_the_same_first_fields():
    rows, other = wide_rows(), np.random.default_rng(1).standard_normal((3, 9))
    weight = np.random.default_rng(4).standard_normal((9, 5))
    found = coordinates.of_rows(rows)
    assert found.rank == 4 and found.size == 9
    np.testing.assert_allclose(found.basis.T @ found.basis, np.eye(4), atol=1e-14)
    inside, outside = found.split(rows)
    np.testing.assert_allclose(inside @ found.project(weight), rows @ weight, rtol=1e-12)
    np.testing.assert_allclose(outside, 0, atol=1e-14)
    inside, outside = found.split(other)
    np.testing.assert_allclose(inside @ found.project(weight) + outside @ weight, other @ weight, rtol=1e-11)
    np.testing.assert_allclose(outside @ rows.T, 0, atol=1e-13)
    assert np.linalg.norm(outside) > 1


def test_coordinates_count_each_direction_once():
    rows = wide_rows()
    rows[2] = rows[0] - 3 * rows[1]
    found = coordinates.of_rows(rows)
    assert found.rank == 3
    np.testing.assert_allclose(found.split(rows)[1], 0, atol=1e-13)


def test_coordinates_of_zero_rows():
    found = coordinates.of_rows(np.zeros((3, 8)))
    assert found.rank == 1
    inside, outside = found.split(np.zeros((3, 8)))
    assert inside.shape == (3, 1) and not inside.any() and not outside.any()
    assert found.project(np.ones((8, 2))).shape == (1, 2)


def test_enough_points_need_no_coordinates():
    rows = wide_rows(9, 9)
    found = coordinates.of_rows(rows)
    assert found.basis is None and found.rank == found.size == 9
    inside, outside = found.split(rows)
    assert inside is rows and outside is None
    assert found.project(rows) is rows


@pytest.mark.parametrize("distribution, kurtosis", [("normal", 3.0), ("laplace", 6.0)])
def test_initial_weights_have_unit_variance(distribution, kurtosis):
    (values,) = model.draw(np.random.default_rng(6), ((400, 500),), distribution)
    count = values.size
    # Variances of the estimates: m4 − 1 and m8 − m4² over the count, with m8 = 105 (normal) and 8!/2⁴ = 2520 (Laplace).
    eighth = {"normal": 105.0, "laplace": 2520.0}[distribution]
    assert abs(values.mean()) < 4 / math.sqrt(count)
    assert abs((values**2).mean() - 1) < 4 * math.sqrt((kurtosis - 1) / count)
    assert abs((values**4).mean() - kurtosis) < 4 * math.sqrt((eighth - kurtosis**2) / count)


def test_scale():
    assert model.scale("mean-field", 0.5, 16) == 2.0
    assert model.scale("ntk", 0.5, 16) == 0.5
    with pytest.raises(ValueError, match="parameterization must be one of 'mean-field', 'ntk'"):
        model.scale("standard", 0.5, 16)
