"""Kernels between training points, sorted by class."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes

from adakern import checks, readings
from adakern.finite import Run
from adakern.plot.style import name
from adakern.readings import Subject
from adakern.solution import Solution
from adakern.trajectories import Trajectory

_ROUNDING = 1e-6  # below zero, of a correlation that is zero


def kernel(
    axes: Axes,
    of: Subject | np.ndarray,
    *,
    layer: int | None = None,
    time: float | None = None,
    y: Any = None,
    labels: tuple[str, ...] = (),
    least: float | Literal["auto"] | None = "auto",
    normalise: bool = True,
) -> Any:
    """Draw a kernel with the points sorted by class; returns the image, for a colour bar.

    Args:
        axes: where to draw.
        of: a solution, a run, a trajectory, or a kernel, (P, P), together with `y`.
        layer: hidden layer; by default the predictor's own kernel, of a run and a trajectory that of the last layer. The inner layers of a CNN are summed over positions.
        time: of a trajectory, by default its last.
        y: targets to sort by instead of those of the data.
        labels: names of the classes, in the order of their targets.
        least: value at the dark end of the colours, None for the least there is; by default 0, or -1 where a correlation is negative. The bright end is 1, or the largest there is where values are drawn.
        normalise: draw correlations; otherwise the values themselves.
    """
    if not isinstance(of, (Solution, Run, Trajectory)):
        of = checks.as_array("the kernel", of)
        if of.ndim != 2 or of.shape[0] != of.shape[1]:
            raise ValueError(
                f"a kernel must be a solution, a run, a trajectory or have shape (P, P), but this one has shape {of.shape}"
            )
        checks.finite("the kernel", of)
        matrix, targets = of, np.zeros(len(of)) if y is None else np.asarray(y)
    else:
        matrix, targets = readings.kernel(of, layer, time), of.y if y is None else np.asarray(y)
        axes.set_title(name(of) if layer is None else rf"{name(of)}, $\Phi^{{{layer}}}$")
    if len(targets) != len(matrix):
        raise ValueError(f"y must have one target for each of the {len(matrix)} points, but it has {len(targets)}")
    order = readings.by_class(targets)
    shown = (readings.correlations(matrix) if normalise else matrix)[np.ix_(order, order)]
    dark = darkest(shown) if least == "auto" else least
    dark = dark if normalise else None
    image = axes.imshow(
        shown,
        cmap="viridis",
        vmin=float(shown.min()) if dark is None else dark,
        vmax=1.0 if normalise else float(shown.max()),
        interpolation="nearest",
    )
    counts = np.unique(readings.classes(targets), return_counts=True)[1]
    edges = np.concatenate([[0], np.cumsum(counts)])
    for edge in edges[1:-1] - 0.5 if readings.discrete(targets) else ():
        axes.axhline(edge, color="white", linewidth=1.2)
        axes.axvline(edge, color="white", linewidth=1.2)
    readings.check_labels(labels, len(counts) if readings.discrete(targets) else 0)
    middles = (edges[:-1] + edges[1:] - 1) / 2
    axes.set_xticks(middles[: len(labels)], labels)
    axes.set_yticks(middles[: len(labels)], labels, rotation=90, va="center")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return image


def darkest(*shown: np.ndarray) -> float:
    """The dark end of one scale of colours for correlations: 0, or -1 where one of them is negative."""
    return -1.0 if min(float(each.min()) for each in shown) < -_ROUNDING else 0.0
