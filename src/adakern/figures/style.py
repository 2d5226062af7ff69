"""How figures look: colours, sizes, and the few things that most of them draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.transforms import offset_copy

from adakern.figures.room import Roomy
from adakern.plot import ADAPTIVE, LAZY, NEUTRAL

# Okabe and Ito's colours, told apart by every eye.
BLUE, VERMILION, GREY = LAZY, ADAPTIVE, NEUTRAL
ORANGE, SKY, GREEN, PURPLE, BLACK = "#E69F00", "#56B4E9", "#009E73", "#CC79A7", "#000000"
CYCLE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
MARKS = ("o", "s", "^", "D", "v", "P")

Colour = str | tuple[float, ...]

_SETTINGS = {
    "font.size": 10.0,
    "axes.titlesize": 11.0,
    "axes.labelsize": 10.0,
    "legend.fontsize": 8.5,
    "legend.edgecolor": "none",
    "legend.framealpha": 1.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": NEUTRAL,
    "axes.grid": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "errorbar.capsize": 2.0,
    "savefig.dpi": 160,
    "svg.hashsalt": "adakern",  # the same numbers give the same file
    "svg.fonttype": "path",
}
_PANEL = (3.9, 3.2)  # inches
_LEGEND: dict[str, Any] = {"title_fontsize": "small", "handlelength": 1.6, "alignment": "left"}


def context() -> Any:
    """Matplotlib's settings while a figure is drawn and saved."""
    return matplotlib.rc_context(_SETTINGS)  # type: ignore[arg-type]


def sheet(width: float, height: float, title: str) -> Figure:
    """An empty figure of a size in inches, whose legends cover no data."""
    figure = Figure(figsize=(width, height), layout=Roomy(), facecolor="white")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=12.5, fontweight="bold")
    return figure


def panels(
    rows: int, columns: int, title: str, *, size: tuple[float, float] = _PANEL, level: bool = False
) -> tuple[Figure, np.ndarray]:
    """A figure and its axes, (rows, columns), each of a size in inches; `level` if those of a row have one scale of heights."""
    figure = sheet(size[0] * columns, size[1] * rows + 0.45, title)
    axes = np.asarray(figure.subplots(rows, columns, squeeze=False))
    for row in axes if level else ():
        for place in row[1:]:
            place.sharey(row[0])
    return figure, axes


def line(axes: Axes, x: Any, y: Any, colour: Colour, label: str | None = None, **options: Any) -> None:
    """A theory's curve."""
    axes.plot(x, y, color=colour, label=label, **options)


def band(axes: Axes, x: Any, y: Any, error: Any, colour: Colour, label: str | None = None, **options: Any) -> None:
    """A theory's curve, with two of its own standard errors as a pale band."""
    y, error = np.asarray(y), np.nan_to_num(np.asarray(error))
    line(axes, x, y, colour, label, **options)
    axes.fill_between(x, y - 2 * error, y + 2 * error, color=colour, alpha=0.2, linewidth=0)


def points(axes: Axes, x: Any, y: Any, error: Any, colour: Colour, label: str | None = None, mark: str = "o") -> None:
    """Networks: points with two standard errors, open so that the theory's line shows through."""
    axes.errorbar(
        x, y, 2 * np.asarray(error), fmt=mark, color=colour, mfc="white", mec=colour, elinewidth=1.2, label=label
    )


def densities(
    axes: Axes,
    edges: Sequence[float],
    times: Sequence[float],
    theory: Mapping[str, np.ndarray],
    networks: Mapping[str, np.ndarray],
    colour: str = VERMILION,
) -> None:
    """Densities in bins, dark to pale over time: steps of the theory, dots of networks."""
    places = middles(np.array(edges))
    for index, shade in enumerate(shades(colour, len(times))):
        line(
            axes,
            places,
            theory["heights"][index],
            shade,
            f"t = {times[index]:g}",
            drawstyle="steps-mid",
            linewidth=1.4,
        )
        some = slice(index % 2, None, 2)  # neighbouring bins say the same
        points(axes, places[some], networks["heights"][index, some], networks["errors"][index, some], shade, mark=".")


def star(axes: Axes, x: Any, y: Any, colour: Colour, label: str | None = None, aside: float = 0.0) -> None:
    """A place to look at; `aside`: so many points to its right."""
    (drawn,) = axes.plot(x, y, "*", color=colour, markersize=12, markeredgecolor="white", label=label, zorder=5)
    if aside:  # only now, so that the axes have made room for the place itself
        drawn.set_transform(offset_copy(axes.transData, cast(Figure, axes.figure), aside, units="points"))


def moments(axes: Axes, times: Sequence[float]) -> None:
    """An axis of times from 0 on: linear up to the first moment after it, and logarithmic from there, with space for marks at both ends."""
    axes.set_xscale("symlog", linthresh=times[1])
    axes.set_xlim(-0.06 * times[1], times[-1] * 1.12)


def middles(edges: np.ndarray) -> np.ndarray:
    return (edges[1:] + edges[:-1]) / 2


def shades(colour: str, count: int) -> list[Colour]:
    """From dark to the colour to pale: earlier to later, or weaker to stronger."""
    own: np.ndarray = np.array(to_rgb(colour))
    dark = 0.25 * own
    pale = 0.45 * own + 0.55
    places = np.linspace(0, 2, count) if count > 1 else np.ones(1)
    return [tuple(dark + t * (own - dark) if t < 1 else own + (t - 1) * (pale - own)) for t in places]


def legend(axes: Axes, title: str | None = None, **options: Any) -> None:
    """A legend, in the upper right unless `loc` says otherwise; the layout moves it where it would cover data."""
    made = axes.legend(title=title, **{"loc": "upper right", **_LEGEND, **options})
    made.set_in_layout(False)  # it is inside, and no panel grows narrower for it


def shared(figure: Figure, axes: Axes, title: str | None = None, **options: Any) -> None:
    """One legend below all panels, which look alike: that of one of them."""
    handles, labels = axes.get_legend_handles_labels()
    where = {"loc": "outside lower center", "ncols": len(labels), "columnspacing": 2.5}
    figure.legend(handles, labels, title=title, **{**where, **_LEGEND, **options})
