"""Legends that cover nothing: the layout puts each where there is no data, and makes room above the data where there is no such place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cbook import STEP_LOOKUP_MAP
from matplotlib.collections import PathCollection
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.path import Path
from matplotlib.transforms import Bbox

_ABOVE = ("upper right", "upper left", "upper center")
_PLACES = (*_ABOVE[:2], "lower left", "lower right", _ABOVE[2], "lower center")
_NEAR = 0.01  # between a legend and data, at least, in sizes of the axes
_LEFT = 0.03  # the same where room is made
_ROUNDS = 4  # ticks change with the room, and the size of the axes with ticks


class Roomy(ConstrainedLayoutEngine):
    """Constrained layout in which no legend covers data. A legend keeps its place where that is free."""

    def execute(self, fig: Any) -> None:
        super().execute(fig)
        for _ in range(_ROUNDS):
            moved = [_clear(axes) for axes in fig.axes if axes.get_legend() is not None]
            if not any(moved):
                return
            super().execute(fig)


def covered(axes: Axes) -> bool:
    """Whether the legend covers a curve, a point, an error bar or an area; of lines through all heights, as `axvline` draws them, it may cover a piece."""
    return not _free([shape for shape in _shapes(axes) if not shape.endless], _box(axes))


class _Shape(NamedTuple):
    """What is drawn, in sizes of the axes; `endless` if its heights do not follow the limits of the axes."""

    corners: np.ndarray
    kind: Literal["points", "line", "area"]
    endless: bool


def _clear(axes: Axes) -> bool:
    """Whether the legend had to move, or the limits of the axes."""
    shapes, legend, before = list(_shapes(axes)), _legend(axes), _box(axes)
    if _free(shapes, _box(axes, _NEAR)):
        return False
    data = [shape for shape in shapes if not shape.endless]
    for wanted in (shapes, data):
        for place in _PLACES:
            legend.set_loc(place)
            if _free(wanted, _box(axes, _NEAR)):
                return not np.allclose(_box(axes).get_points(), before.get_points())
    factors = {}
    for place in _ABOVE:
        legend.set_loc(place)
        box = _box(axes, _LEFT)
        factors[place] = max(_highest(shape, box) for shape in data) / max(box.y0, 0.1)
    best = min(factors, key=lambda place: factors[place])
    legend.set_loc(best)
    scale = axes.yaxis.get_transform()
    low, high = scale.transform(np.array(axes.get_ylim()))
    top = scale.inverted().transform(np.array([low + max(1.0, factors[best]) * (high - low)]))
    axes.set_ylim(top=float(top[0]))
    return True


def _legend(axes: Axes) -> Any:
    legend = axes.get_legend()
    assert legend is not None
    return legend


def _box(axes: Axes, margin: float = 0.0) -> Bbox:
    """The legend, in sizes of the axes, and a margin around it."""
    return _legend(axes).get_window_extent().transformed(axes.transAxes.inverted()).padded(margin)


def _shapes(axes: Axes) -> Iterator[_Shape]:
    inverse = axes.transAxes.inverted()
    artists: tuple[Any, ...] = (*axes.lines, *axes.collections, *axes.patches)
    for artist in artists:
        if not artist.get_visible():
            continue
        transform = artist.get_transform()
        endless = not transform.contains_branch_seperately(axes.transData)[1]
        if isinstance(artist, PathCollection):
            places = artist.get_offset_transform().transform(artist.get_offsets())
            yield _Shape(inverse.transform(places), "points", False)
        elif isinstance(artist, Line2D):
            x, y = artist.get_data()
            step = STEP_LOOKUP_MAP[artist.get_drawstyle()]
            places = np.column_stack(step(np.asarray(x, float), np.asarray(y, float)))
            kind: Literal["points", "line"] = "points" if artist.get_linestyle() == "None" else "line"
            yield _Shape(inverse.transform(transform.transform(places)), kind, endless)
        else:
            paths = artist.get_paths() if hasattr(artist, "get_paths") else [artist.get_path()]
            filled = np.asarray(artist.get_facecolor()).size > 0
            for path in paths:
                for corners in transform.transform_path(path).to_polygons(closed_only=False):
                    yield _Shape(inverse.transform(corners), "area" if filled else "line", endless)


def _free(shapes: Sequence[_Shape], box: Bbox) -> bool:
    return not any(_meets(shape, box) for shape in shapes)


def _meets(shape: _Shape, box: Bbox) -> bool:
    if shape.kind == "points":
        x, y = shape.corners.T
        return bool(((x >= box.x0) & (x <= box.x1) & (y >= box.y0) & (y <= box.y1)).any())
    return len(shape.corners) > 0 and bool(Path(shape.corners).intersects_bbox(box, filled=shape.kind == "area"))


def _highest(shape: _Shape, box: Bbox) -> float:
    """How high it reaches between the sides of a box, 0 where it is not seen."""
    x, y = shape.corners.T
    if shape.kind == "points" or len(x) == 1:
        reached = y[(x >= box.x0) & (x <= box.x1)]
    else:
        step, rise = np.diff(x), np.diff(y)
        with np.errstate(divide="ignore", invalid="ignore"):
            ends = np.clip(np.stack([(side - x[:-1]) / step for side in (box.x0, box.x1)]), 0.0, 1.0)
        upright = step == 0
        ends[:, upright] = np.array([[0.0], [1.0]])
        seen = np.where(upright, (x[:-1] >= box.x0) & (x[:-1] <= box.x1), ends[0] != ends[1])
        reached = (y[:-1] + ends * rise)[:, seen]
    finite = reached[np.isfinite(reached)]
    return float(finite.max(initial=0.0))
