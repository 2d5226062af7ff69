"""The richness below which a network dies."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import adakern as ak
from adakern import inputs, losses
from adakern.collapsing import collapse_threshold
from adakern.precision import scope

RELU = ak.MLP(1, "relu")


def on_the_circle(X, errors):
    angles = np.linspace(0, 2 * np.pi, 40_001)
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return max(
        np.linalg.norm(np.maximum(part @ X.T / np.sqrt(2), 0) @ errors, axis=1).max()
        for part in np.array_split(directions, 20)
    )


def objective(network, X, y, decays, loss, richness):
    r"""$\frac12(\lambda_0|\varepsilon|^2+\lambda_1|a|^2)+\gamma_0^2\mathcal L(\gamma_0^{-1}a\varphi(A\varepsilon))$ of one neuron, whose descent is the flow."""
    root = jnp.asarray(inputs.features(network, X))
    labels = jnp.asarray(y)

    def value(neuron, readout):
        s = network.activation(root @ neuron)[:, None] * readout[None, :] / richness
        fit = jnp.sum(losses.get(loss).value(labels, s))
        return 0.5 * (decays[0] * jnp.sum(neuron**2) + decays[1] * jnp.sum(readout**2)) + richness**2 * fit

    return jax.jit(value)


@pytest.mark.parametrize("activation", ["relu", "linear"])
@pytest.mark.parametrize("decay", [0.3, (0.1, 0.9)])
def test_one_point(activation, decay):
    assert collapse_threshold(ak.MLP(1, activation), [[1.0]], [1.0], decay=decay) == pytest.approx(0.3, rel=1e-12)


@pytest.mark.parametrize("loss", ["squared", "logistic", "softmax"])
def test_against_the_circle(loss):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(25, 2))
    y = {"squared": rng.normal(size=25), "logistic": np.sign(X[:, 0] * X[:, 1])}.get(loss)
    y = np.eye(3)[rng.integers(3, size=25)] if y is None else y
    columns = y if y.ndim == 2 else y[:, None]
    errors = {"squared": columns, "logistic": columns / 2, "softmax": columns - 1 / 3}[loss]
    limit = ak.ANTK(RELU, richness=7.0, decay=(0.5, 2.0), loss=loss)
    found = collapse_threshold(limit, X, y)
    grid = 1 / on_the_circle(X, errors)  # too high by up to the grid's spacing, at a kink
    assert grid * (1 - 1e-4) < found <= grid * (1 + 1e-12)
    assert collapse_threshold(RELU, X, y, decay=(0.5, 2.0), loss=loss, seed=3) == pytest.approx(found, rel=1e-9)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_a_small_neuron_grows_above_and_shrinks_below(loss):
    rng = np.random.default_rng(1)
    X, y, decays = rng.normal(size=(9, 4)), rng.choice([-1.0, 1.0], size=(9, 1)), (0.4, 1.7)
    edge = collapse_threshold(RELU, X, y, decay=decays, loss=loss)
    neurons, readouts = 0.05 * rng.normal(size=(40, 4)), 0.05 * rng.choice([-1.0, 1.0], size=(40, 1))
    with scope("float64"):
        for richness, grows in ((1.02 * edge, True), (0.98 * edge, False)):
            value = objective(RELU, X, y, decays, loss, richness)
            slope = jax.grad(value, argnums=(0, 1))

            def flow(neuron, readout, slope=slope):
                def step(_, state):
                    return tuple(part - 0.1 * up for part, up in zip(state, slope(*state), strict=True))

                return jax.lax.fori_loop(0, 300, step, (neuron, readout))

            ends = jax.jit(jax.vmap(flow))(jnp.asarray(neurons), jnp.asarray(readouts))
            gained = jax.vmap(value)(*ends) - value(jnp.zeros(4), jnp.zeros(1))
            assert (float(gained.min()) < -1e-9) == grows


def test_linear_networks():
    rng = np.random.default_rng(2)
    X, y = rng.normal(size=(8, 5)), rng.normal(size=8)
    for depth in (1, 2, 3):
        decay = tuple(np.linspace(0.5, 1.5, depth + 1))
        found = collapse_threshold(ak.MLP(depth, "linear"), X, y, decay=decay)
        assert found == pytest.approx(ak.linear.collapse(depth, X, y, decay), rel=1e-10)
    several = rng.normal(size=(8, 3))
    expected = 1 / np.linalg.norm(X.T @ several / np.sqrt(5), 2)
    assert collapse_threshold(ak.MLP(1, "linear"), X, several) == pytest.approx(expected, rel=1e-10)


def test_scaling_and_duplicates():
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(12, 5)), rng.normal(size=12)
    edge = collapse_threshold(RELU, X, y)
    assert collapse_threshold(RELU, 2 * X, 3 * y, decay=12.0) == pytest.approx(2 * edge, rel=1e-10)
    twice = collapse_threshold(RELU, np.concatenate([X, X]), np.concatenate([y + 1, -np.ones(12)]))
    assert twice == pytest.approx(edge, rel=1e-9)
    single = collapse_threshold(RELU, X, y, precision="float32")
    assert single == pytest.approx(edge, rel=1e-5) and isinstance(single, float)


@pytest.mark.parametrize("activation", ["relu", "linear"])
def test_nothing_to_learn(activation):
    network = ak.MLP(1, activation)
    assert collapse_threshold(network, np.ones((3, 2)), np.zeros(3)) == np.inf
    assert collapse_threshold(network, np.zeros((3, 2)), np.ones(3)) == np.inf
    assert collapse_threshold(ak.ANTK(network, decay=0.0), np.ones((3, 2)), np.ones(3)) == 0


@pytest.mark.parametrize(
    "limit, options, error, match",
    [
        (ak.MLP(2, "relu"), {}, ValueError, "one hidden layer, but it has 2.*zero predictor"),
        (ak.MLP(1, "tanh"), {}, ValueError, "degree one.*'tanh'"),
        (ak.MLP(2, "linear"), {"loss": "logistic"}, ValueError, "squared loss.*'logistic'"),
        (ak.ANTK(RELU), {"decay": 1.0}, ValueError, "decay is that of the ANTK"),
        (ak.ANTK(RELU), {"loss": "squared"}, ValueError, "loss is that of the ANTK"),
        (RELU, {"decay": 0.0}, ValueError, "decay must be greater than 0"),
        (RELU, {"decay": (1.0, 1.0, 1.0)}, ValueError, "2 of them"),
        (RELU, {"loss": "hinge"}, ValueError, "loss must be one of"),
        (RELU, {"starts": 0}, ValueError, "starts must be at least 1"),
        (RELU, {"seed": -1}, ValueError, "seed"),
        (RELU, {"precision": "half"}, ValueError, "precision"),
        ("relu", {}, TypeError, "an ANTK or a network"),
        (ak.CNN(1), {}, ValueError, "4-D"),
    ],
)
def test_bad_input(limit, options, error, match):
    with pytest.raises(error, match=match):
        collapse_threshold(limit, [[1.0, 2.0], [0.0, 1.0]], [1.0, -1.0], **options)


def test_bad_data():
    with pytest.raises(ValueError, match="y must hold -1 and \\+1"):
        collapse_threshold(RELU, [[1.0]], [0.5], loss="logistic")
    with pytest.raises(ValueError, match="one row per point"):
        collapse_threshold(RELU, [[1.0]], [0.5, 1.0])
    with pytest.raises(ValueError, match="there are 2"):
        collapse_threshold(ak.MLP(2, "linear"), [[1.0]], [[0.5, 1.0]])
