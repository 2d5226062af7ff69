"""Kernels between positions: against the kernels over (image, position) they are taken from, in theory and in networks, and how they are drawn."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

import adakern as ak
from adakern import plot, space

RNG = np.random.default_rng(3)
X, Y = 0.7 * RNG.standard_normal((4, 4, 4, 2)), np.array([1.0, -1.0, 1.0, -1.0])
X[3] = X[1]  # twice the same image
DECAY = (1.2, 4.0, 1.5)


def cnn(readout="flatten", activation="relu"):
    return ak.CNN(2, ((3, 2), (2, 2)), ((1, 1), (2, 1)), activation, padding="same", readout=readout)


@pytest.fixture(scope="module")
def lazy():
    return ak.solve(ak.NNGPK(cnn(), decay=DECAY), X, Y)


def test_inner_layers_are_diagonal_blocks(lazy):
    expected = np.mean([lazy.kernels[0][p, :, p] for p in range(4)], axis=0)
    np.testing.assert_allclose(lazy.spatial(1), expected, rtol=1e-9)
    np.testing.assert_allclose(lazy.spatial(1, point=2), lazy.kernels[0][2, :, 2], rtol=1e-9)
    np.testing.assert_allclose(space.of_kernel(lazy.kernels[0]), expected, rtol=1e-12)


def test_the_last_layer_is_what_the_readout_pools(lazy):
    assert lazy.spatial(2).shape == (8, 8)
    assert np.trace(lazy.spatial(2)) == pytest.approx(np.trace(lazy.kernel) / 4, rel=1e-9)
    pooled = ak.solve(ak.NNGPK(cnn("mean"), decay=DECAY), X, Y)
    assert pooled.spatial(2).mean() == pytest.approx(np.trace(pooled.kernel) / 4, rel=1e-9)


def test_neurons_count_by_their_shares_and_points_as_often_as_they_appear():
    features = RNG.standard_normal((3, 2 * 5))  # two distinct points
    shares, counts = np.array([0.5, 0.3, 0.2]), np.array([1, 3])
    expected = np.zeros((5, 5))
    for neuron, share in enumerate(shares):
        for point, count in enumerate(counts):
            row = features[neuron, 5 * point : 5 * point + 5]
            expected += share * count / 4 * np.outer(row, row)
    np.testing.assert_allclose(space.of_features(features, 5, counts, shares), expected, rtol=1e-12)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"layer": 3}, "layer must be at most 2"),
        ({"layer": 0}, "layer must be"),
        ({"point": 4}, "point must be at most 3"),
    ],
)
def test_bad_arguments(lazy, arguments, message):
    with pytest.raises(ValueError, match=message):
        lazy.spatial(**arguments)


def test_an_mlp_has_no_positions():
    sol = ak.solve(ak.NNGPK(ak.MLP(1)), X.reshape(4, -1), Y)
    with pytest.raises(ValueError, match="spatial exists for CNNs"):
        sol.spatial()


def test_networks_of_finite_width():
    """With a weight for every position, the last kernel is the trace over positions."""
    run = ak.finite.gradient_flow(ak.CNN(1, 2, 2), X, Y, width=8, time=0.1)
    found = plot.between_positions(run, 1)
    assert found.shape == (4, 4)
    assert np.trace(found) == pytest.approx(np.trace(run.kernel) / 4, rel=1e-4)
    deep = ak.finite.gradient_flow(ak.CNN(2, 2, (2, 1)), X, Y, width=8, time=0.1)
    np.testing.assert_allclose(
        plot.between_positions(deep, 1)[0, 0], np.mean([deep.kernels[0][p, 0, p, 0] for p in range(4)]), rtol=1e-5
    )
    assert np.trace(plot.between_positions(deep, 2)) == pytest.approx(np.trace(deep.kernel) / 4, rel=1e-4)
    for layer, message in ((3, "layer must be at most 2"), (0, "layer must be at least 1"), (-1, "at least 1")):
        with pytest.raises(ValueError, match=message):
            plot.between_positions(deep, layer)
    with pytest.raises(TypeError, match="of a solution or a run"):
        plot.between_positions("nothing")


@pytest.mark.long
@pytest.mark.slow
def test_learned_kernels():
    """Draws of the aNBK give its kernel to within their scatter, the neurons of the aNTK exactly; images that appear twice count twice."""
    rich = ak.solve(ak.ANBK(ak.CNN(1, 2, 2), richness=1.0, beta=10.0), X, Y)
    trace = np.trace(rich.spatial())
    assert trace == pytest.approx(np.trace(rich.kernel) / 4, rel=5 / np.sqrt(len(rich.draws[0])))
    pooled = ak.solve(ak.ANBK(ak.CNN(1, 2, 2, readout="mean"), richness=1.0, beta=10.0), X, Y)
    # The mean over pairs of positions, off the diagonal too, is what a mean readout makes of them.
    wanted = pytest.approx(np.trace(pooled.kernel) / 4, rel=5 / np.sqrt(len(pooled.draws[0])))
    assert pooled.spatial().mean() == wanted
    own = np.mean([rich.spatial(point=p) for p in range(4)], axis=0)
    np.testing.assert_allclose(rich.spatial(), own, rtol=1e-9)
    rest = ak.solve(ak.ANTK(ak.CNN(1, 2, 2), richness=2.0, decay=0.1), X, Y, throw=False)
    assert np.trace(rest.spatial()) == pytest.approx(np.trace(rest.kernels[0]) / 4, rel=1e-8)


def test_drawing(lazy):
    kernel = lazy.spatial(2)
    size = np.sqrt(np.diag(kernel))
    expected = kernel / np.outer(size, size)
    left, right = Figure().subplots(1, 2)
    np.testing.assert_allclose(np.asarray(plot.spatial(left, lazy, layer=2).get_array()), expected)
    image = plot.spatial(right, lazy, layer=2, position=5)  # two rows of four
    np.testing.assert_allclose(np.asarray(image.get_array()), expected[5].reshape(2, 4))
    (mark,) = right.get_lines()
    assert (mark.get_xdata()[0], mark.get_ydata()[0]) == (1, 1)
    np.testing.assert_allclose(
        np.asarray(plot.spatial(right, kernel, position=5, grid=(2, 4)).get_array()), expected[5].reshape(2, 4)
    )


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"position": 8}, "position must be between 0 and 7"),
        ({"position": 1}, "grid must be given: 8 positions"),
        ({"position": 1, "grid": (3, 2)}, "grid must have 8 positions"),
    ],
)
def test_what_cannot_be_drawn(arguments, message):
    with pytest.raises(ValueError, match=message):
        plot.spatial(Figure().subplots(), np.eye(8), **arguments)
    with pytest.raises(TypeError, match="position must be an integer"):
        plot.spatial(Figure().subplots(), np.eye(8), position=1.5)
