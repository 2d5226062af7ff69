"""Pictures show the numbers they are given, and leave no trace in matplotlib's global state."""

from __future__ import annotations

import sys

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch

import adakern as ak
from adakern import plot


@pytest.fixture(scope="module")
def solutions():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((6, 4))
    y = np.array([1.0, -1.0, 1.0, -1.0, -1.0, 1.0])
    net = ak.MLP()
    return {
        "lazy": ak.solve(ak.NNGPK(net), X, y),
        "rich": ak.solve(ak.ANBK(net, richness=0.5), X, y, particles=64, steps=400, throw=False),
    }


def test_kernel_is_sorted_by_class_and_normalised(solutions):
    solution = solutions["lazy"]
    axes = Figure().subplots()
    image = plot.kernel(axes, solution, labels=("minus", "plus"))
    order = [1, 3, 4, 0, 2, 5]
    size = np.sqrt(np.diag(solution.kernel))
    expected = (solution.kernel / np.outer(size, size))[np.ix_(order, order)]
    np.testing.assert_allclose(np.asarray(image.get_array()), expected)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["minus", "plus"]


def test_negative_correlations_have_colours_of_their_own(solutions):
    axes, kernel = Figure().subplots(), np.array([[1.0, -0.5], [-0.5, 1.0]])
    assert plot.kernel(axes, kernel.tolist()).get_clim() == (-1.0, 1.0)
    assert plot.kernel(axes, np.abs(kernel)).get_clim() == (0.0, 1.0)
    assert plot.kernel(axes, kernel, least=None).get_clim() == (-0.5, 1.0)
    with pytest.raises(ValueError, match="there are 2 classes and 1 names"):
        plot.kernel(axes, solutions["lazy"], labels=("one",))


def test_the_gap_of_an_antk_is_traced():
    """Newton's method tells the duality gap of every round, and descent of a deep network how far its weights are from rest; both end where the solution is."""
    rng = np.random.default_rng(2)
    X, y = rng.standard_normal((8, 4)), np.where(np.arange(8) % 2, 1.0, -1.0)
    ends = [
        ak.solve(ak.ANTK(ak.MLP(depth), richness=2.0, decay=0.3), X, y, particles=64, tolerance=1e-3)
        for depth in (1, 2)
    ]
    for end, what, last in zip(
        ends, ("duality gap", "relative gradient"), ("certificate", "relative_gradient"), strict=True
    ):
        axes = Figure().subplots()
        plot.trace(axes, end)
        steps, values = axes.get_lines()[0].get_data()
        assert axes.get_ylabel() == what and axes.get_yscale() == "log"
        assert len(values) > 1 and values[-1] < 1e-3 < values.max() and (np.diff(steps) >= 0).all()
        expected = end.stats.get(last, end.certificate)
        assert values[-1] == pytest.approx(expected, rel=1.0, abs=1e-6)


def test_a_law_of_few_neurons_is_shown_whole():
    """Two neurons with weights, as gradient flow with decay leaves them: both are inside the picture and of one mass."""
    rng = np.random.default_rng(2)
    X, y = rng.standard_normal((8, 4)), np.where(np.arange(8) % 2, 1.0, -1.0)
    end = ak.solve(ak.ANTK(ak.MLP(), richness=1.0, decay=1.0), X, y)
    assert len(end.draws[0]) < 20
    axes = Figure().subplots()
    plot.density(axes, end)
    bars = [bar for bar in axes.patches if bar.get_height() > 0]
    assert sum(bar.get_height() * bar.get_width() for bar in bars) == pytest.approx(1.0)
    assert min(bar.get_height() for bar in bars) > axes.get_ylim()[0]


def test_densities_have_mass_one(solutions):
    axes = Figure().subplots()
    plot.density(axes, solutions["lazy"], solutions["rich"], layer=1, point=2)
    (line,) = axes.get_lines()
    h, p = line.get_data()
    assert np.trapezoid(p, h) == pytest.approx(1.0, abs=1e-3)
    variance = solutions["lazy"].X[2] @ solutions["lazy"].X[2] / 4
    assert np.trapezoid(p * h**2, h) == pytest.approx(variance, rel=0.01)
    mass = sum(bar.get_height() * bar.get_width() for bar in axes.patches)
    assert mass == pytest.approx(1.0, abs=0.005)


@pytest.fixture(scope="module")
def run(solutions):
    of = solutions["lazy"]
    return ak.finite.gradient_flow(ak.MLP(), of.X, of.y, width=16, decay=0.5, time=1.0, replicas=2, seed=1)


@pytest.fixture(scope="module")
def trajectory(solutions):
    """Made up: two moments, the kernel of the second one that of the labels, and a known neuron or two."""
    of, rng = solutions["lazy"], np.random.default_rng(1)
    kernels = np.stack([of.kernel, np.outer(of.y, of.y)])
    fitted = np.stack([0 * of.y, of.y])
    loss = np.array([0.5, 0.1])
    return ak.Trajectory(
        limit=ak.ANTK(ak.MLP(), richness=2.0),
        X=of.X,
        y=of.y,
        times=np.array([0.0, 1.0]),
        train_loss=loss,
        train_loss_errors=0.1 * loss,
        test_loss=2 * loss,
        test_loss_errors=np.full(2, np.nan),
        fitted=fitted,
        fitted_errors=fitted,
        predictions=None,
        prediction_errors=None,
        kernels=kernels,
        kernel_errors=0 * kernels,
        gradient_kernels=None,
        tangent_kernels=None,
        weights=rng.standard_normal((2, 1, 500, 4)).astype(np.float32),
        readouts=np.ones((2, 1, 500, 1), np.float32),
        basis=None,
        converged=True,
        status="made up",
    )


def test_kernel_of_runs_trajectories_and_arrays(solutions, run, trajectory):
    axes, order = Figure().subplots(), [1, 3, 4, 0, 2, 5]
    sort = np.ix_(order, order)
    shown = np.asarray(plot.kernel(axes, run, layer=1, normalise=False).get_array())
    np.testing.assert_allclose(shown, run.kernels[0][sort])
    assert axes.get_title() == r"a network of 16 neurons, $\Phi^{1}$"
    np.testing.assert_allclose(np.asarray(plot.kernel(axes, trajectory).get_array()), np.outer(run.y, run.y)[sort])
    first = np.asarray(plot.kernel(axes, trajectory, time=0.0, normalise=False).get_array())
    np.testing.assert_allclose(first, solutions["lazy"].kernel[sort])
    image = plot.kernel(axes, solutions["lazy"].kernel, y=run.y, least=None)
    assert image.get_clim() == pytest.approx((np.asarray(image.get_array()).min(), 1.0))
    for wrong, match in [
        ({"layer": 2}, "layer must be between 1 and 1"),
        ({"time": 1.0}, "time has no meaning"),
        ({"y": [1.0]}, "one target for each of the 6"),
    ]:
        with pytest.raises(ValueError, match=match):
            plot.kernel(axes, solutions["lazy"], **wrong)
    with pytest.raises(ValueError, match=r"shape \(P, P\)"):
        plot.kernel(axes, np.ones((2, 3)))
    with pytest.raises(ValueError, match="the kernel must be finite, but it contains NaN"):
        plot.kernel(axes, np.full((2, 2), np.nan))


@pytest.mark.parametrize("draw", [plot.density, plot.alignment, plot.trace])
def test_what_is_drawn_is_a_solution(solutions, draw):
    for wrong, match in (([solutions["lazy"]], "not in a list.*but it is a list"), (3, "but it is an int")):
        with pytest.raises(TypeError, match=match):
            draw(Figure().subplots(), wrong)


def test_a_kernel_of_zeros_is_drawn_without_a_warning():
    shown = plot.kernel(Figure().subplots(), np.zeros((3, 3))).get_array()
    assert not np.asarray(shown).any()


def test_densities_of_networks_and_trajectories(solutions, run, trajectory):
    axes = Figure().subplots()
    plot.density(axes, solutions["lazy"], solutions["rich"], run, trajectory, point=2)
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert len(labels) == 4 and "a network of 16 neurons" in labels
    steps = [patch for patch in axes.patches if isinstance(patch, StepPatch)]
    for patch in steps:  # those of more than three laws are outlines
        values, edges, _ = patch.get_data()
        assert np.sum(values * np.diff(edges)) == pytest.approx(1.0, abs=0.05)
    assert len(steps) == 2
    two = Figure().subplots()
    plot.density(two, solutions["rich"], solutions["rich"])  # filled, one would hide the other
    assert sum(isinstance(patch, StepPatch) for patch in two.patches) == 2 == len(two.patches)
    with pytest.raises(ValueError, match="needs a solution"):
        plot.density(axes)


def test_alignment_is_drawn_over_layers_richness_and_time(solutions, run, trajectory):
    over, along, moments = Figure().subplots(1, 3)
    labels = np.outer(run.y, run.y)
    expected = [ak.alignment(of.kernel, labels) for of in (solutions["lazy"], solutions["rich"], run)]
    plot.alignment(over, solutions["lazy"], solutions["rich"], run)
    assert [line.get_ydata()[0] for line in over.get_lines()] == pytest.approx(expected)
    plot.alignment(along, solutions["rich"], solutions["lazy"], run, against="richness")
    theory, network = along.get_lines()
    np.testing.assert_allclose(theory.get_data(), [[0.0, 0.5], expected[:2]])  # sorted
    np.testing.assert_allclose(network.get_data(), [[1.0], expected[2:]])
    plot.alignment(moments, trajectory, against="time")
    (line,) = moments.get_lines()
    np.testing.assert_allclose(line.get_data(), [[0.0, 1.0], [expected[0], 1.0]])
    with pytest.raises(ValueError, match="against must be"):
        plot.alignment(over, run, against="depth")
    with pytest.raises(ValueError, match="needs trajectories"):
        plot.alignment(over, run, against="time")


def test_trace_of_particles_networks_and_trajectories(solutions, run, trajectory):
    energy, loss = Figure().subplots(1, 2)
    plot.trace(energy, solutions["rich"])
    recorded = np.array(solutions["rich"].stats["trace"])
    np.testing.assert_allclose(energy.get_lines()[0].get_xydata(), recorded)
    plot.trace(loss, run, trajectory)
    labels = [line.get_label() for line in loss.get_lines()]
    assert labels[0] == "a network of 16 neurons, training loss" and labels[2].endswith("test loss")
    np.testing.assert_allclose(loss.get_lines()[0].get_ydata(), run.losses)
    bands = [band.get_paths()[0].vertices for band in loss.collections]
    assert len(bands) == 2  # the test loss of one replica has no error
    assert bands[1][:, 1].max() == pytest.approx(0.6) and loss.get_yscale() == "log"
    with pytest.raises(ValueError, match="no trace to draw"):
        plot.trace(energy, solutions["lazy"])
    with pytest.raises(ValueError, match="do not belong on one axis"):
        plot.trace(energy, solutions["rich"], run)


def test_plot_is_there_without_importing_it():
    assert ak.plot.kernel is plot.kernel and "plot" in dir(ak)
    with pytest.raises(AttributeError, match="no attribute 'plots'"):
        _ = ak.plots


def test_bars_end_at_the_losses():
    axes = Figure().subplots()
    plot.losses(axes, {"a": 0.2, "b": 0.1}, variances={"a": 0.05}, adaptive=("b",))
    ends = {}
    for bar in axes.patches:
        row = round(bar.get_y() + bar.get_height() / 2)
        ends[row] = max(ends.get(row, 0.0), bar.get_x() + bar.get_width())
    assert ends == pytest.approx({0: 0.2, 1: 0.1})


def test_portrait_touches_no_global_state(solutions):
    before, pyplot = dict(mpl.rcParams), sys.modules.get("matplotlib.pyplot")
    numbers = pyplot.get_fignums() if pyplot else []  # other tests may have left some
    figure = plot.portrait(solutions, {"lazy": 0.2, "rich": 0.1}, lazy="lazy", adaptive="rich", title="Two")
    figure.canvas.draw()
    assert dict(mpl.rcParams) == before
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or pyplot.get_fignums() == numbers
    titles = [axes.get_title() for part in figure.subfigs for axes in part.axes]
    assert "NNGPK: random features" in titles
