"""Legends cover no data: they keep their place, move, or get room above the data."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from adakern.figures import style
from adakern.figures.room import covered

X = np.linspace(0, 1, 50)
HILL = np.exp(-20 * (X - 0.5) ** 2)
COVERED = {  # what may lie below a legend in the upper right corner of the unit square
    "a line between its points": lambda axes: axes.plot([0, 1], [0.94, 0.94]),
    "points": lambda axes: axes.plot([0.93], [0.94], "o"),
    "steps": lambda axes: axes.plot([0.1, 0.93, 1.0], [0.1, 0.94, 0.94], drawstyle="steps-post"),
    "an error bar": lambda axes: axes.errorbar([0.93], [0.2], [0.76], fmt="."),
    "a band": lambda axes: axes.fill_between([0, 1], 0.6, 1.0),
    "a filled region": lambda axes: axes.axhspan(0.5, 1.0),
    "scattered points": lambda axes: axes.scatter([0.93], [0.94]),
}


def drawn(draw, **options):
    """Axes after `draw`, with a legend of three lines."""
    with style.context():
        figure = style.sheet(4.0, 3.2, "title")
        axes = figure.subplots()
        draw(axes)
        for label in "abc":
            axes.plot([], [], label=label)
        style.legend(axes, "what it is about", **options)
        figure.canvas.draw()
    return axes


def corner(axes):
    """Where the legend is: the middle, in sizes of the axes."""
    box = axes.get_legend().get_window_extent().transformed(axes.transAxes.inverted())
    return (box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2


def square(axes):
    axes.set(xlim=(0, 1), ylim=(0, 1))


@pytest.mark.parametrize("what", list(COVERED))
def test_what_is_below_a_legend_is_seen(what):
    axes = Figure(layout="constrained").subplots()
    square(axes)
    axes.plot([], [], label="a")
    axes.legend(loc="upper right")
    axes.figure.canvas.draw()
    assert not covered(axes)
    COVERED[what](axes)
    square(axes)
    assert covered(axes)


def test_a_legend_stays_where_it_covers_nothing():
    axes = drawn(lambda axes: (axes.plot(X, X), square(axes)), loc="upper left")
    assert corner(axes)[0] < 0.5 < corner(axes)[1] and axes.get_ylim() == (0, 1)


def test_a_legend_moves_to_a_free_corner():
    axes = drawn(lambda axes: (axes.plot(X, X), square(axes)), loc="upper right")
    assert not covered(axes) and corner(axes)[0] < 0.5 < corner(axes)[1] and axes.get_ylim() == (0, 1)


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_room_is_made_above_the_data(scale):
    def draw(axes):
        axes.fill_between(X, 0.01, HILL + 0.3)
        axes.set(xlim=(0, 1), ylim=(0.01, 1.0), yscale=scale)

    axes = drawn(draw)
    low, high = axes.get_ylim()
    assert not covered(axes) and low == 0.01
    reached = axes.transAxes.inverted().transform(axes.transData.transform((0.5, 1.3)))[1]
    assert high > 1.3 and reached > 0.5  # and not more than it takes


def test_room_is_made_for_all_panels_of_one_scale():
    with style.context():
        figure, axes = style.panels(1, 2, "title", level=True)
        for place, top in zip(axes[0], (1.0, 2.0), strict=True):
            place.fill_between(X, 0, top * np.ones_like(X), label="all of it")
            style.legend(place)
        figure.canvas.draw()
    assert not any(covered(place) for place in axes[0])
    assert axes[0, 0].get_ylim() == axes[0, 1].get_ylim() and axes[0, 0].get_ylim()[1] > 2.0


def test_a_line_through_all_heights_may_go_behind_a_legend():
    axes = drawn(lambda axes: ([axes.axvline(x) for x in np.linspace(0, 1, 30)], square(axes)))
    assert axes.get_ylim() == (0, 1) and corner(axes)[0] > 0.5


def test_drawn_again_at_another_resolution_nothing_moves():
    axes = drawn(lambda axes: (axes.plot(X, HILL), axes.plot(X, 1 - HILL), square(axes)))
    held = corner(axes), axes.get_ylim()
    with style.context():
        axes.figure.set_dpi(160)
        axes.figure.canvas.draw()
    assert axes.get_ylim() == held[1] and corner(axes) == pytest.approx(held[0], abs=0.02)
