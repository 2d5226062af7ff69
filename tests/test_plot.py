"""Pictures show the numbers they are given, and leave no trace in matplotlib's global state."""

from __future__ import annotations

import sys

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure

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


def test_bars_end_at_the_losses():
    axes = Figure().subplots()
    plot.losses(axes, {"a": 0.2, "b": 0.1}, variances={"a": 0.05}, adaptive=("b",))
    ends = {}
    for bar in axes.patches:
        row = round(bar.get_y() + bar.get_height() / 2)
        ends[row] = max(ends.get(row, 0.0), bar.get_x() + bar.get_width())
    assert ends == pytest.approx({0: 0.2, 1: 0.1})


def test_portrait_touches_no_global_state(solutions):
    before = dict(mpl.rcParams)
    figure = plot.portrait(solutions, {"lazy": 0.2, "rich": 0.1}, lazy="lazy", adaptive="rich", title="Two")
    figure.canvas.draw()
    assert dict(mpl.rcParams) == before
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or not pyplot.get_fignums()
    titles = [axes.get_title() for part in figure.subfigs for axes in part.axes]
    assert "NNGPK: random features" in titles
