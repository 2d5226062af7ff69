"""Test losses, and lazy and adaptive predictors side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from adakern.finite import Run
from adakern.limits import ANBK, ANTK
from adakern.plot.densities import density
from adakern.plot.kernels import kernel
from adakern.plot.style import ADAPTIVE, LAZY, NEUTRAL, name, pale, unbox
from adakern.readings import correlations
from adakern.solution import Solution


def losses(
    axes: Axes,
    values: Mapping[str, float],
    *,
    variances: Mapping[str, float] | None = None,
    adaptive: tuple[str, ...] = (),
    others: tuple[str, ...] = (),
) -> None:
    """Draw test losses as horizontal bars, the first on top.

    Args:
        axes: where to draw.
        values: the losses by name.
        variances: the part of a loss that is variance, for those that have one; it is drawn paler.
        adaptive: the names in the adaptive colour.
        others: the names that are neither lazy nor adaptive limits, in grey.
    """
    names, totals = list(values), np.array(list(values.values()))
    spread = np.array([(variances or {}).get(label, 0.0) for label in names])
    colours = [ADAPTIVE if label in adaptive else NEUTRAL if label in others else LAZY for label in names]
    axes.barh(names, totals - spread, color=colours, height=0.66)
    bars = axes.barh(names, spread, left=totals - spread, color=[pale(colour) for colour in colours], height=0.66)
    axes.bar_label(bars, labels=[f"{value:.3f}" for value in totals], padding=5, color=NEUTRAL)
    for row in np.flatnonzero(spread).tolist():
        axes.text(totals[row] - spread[row] / 2, row, "variance", ha="center", va="center", fontsize="small")
    axes.invert_yaxis()
    axes.set_xlim(0, 1.16 * float(totals.max()))
    axes.set_xlabel(r"test loss $\langle\,(y-f)^2\,\rangle$")
    axes.tick_params(axis="y", length=0)
    unbox(axes)


def portrait(
    solutions: Mapping[str, Solution],
    test_losses: Mapping[str, float],
    *,
    lazy: str,
    adaptive: str,
    variances: Mapping[str, float] | None = None,
    labels: tuple[str, ...] = (),
    title: str = "",
    point: int | None = None,
    network: Run | None = None,
) -> Figure:
    """Lazy and adaptive predictors side by side: their kernels, a neuron's law, and the test losses.

    Args:
        solutions: by the name that the bars show.
        test_losses: of each of them.
        lazy, adaptive: names of the two that are compared closely.
        variances: the part of each test loss that is variance, where there is one.
        labels: names of the classes, in the order of their targets.
        title: above everything.
        point: the training point whose preactivation is shown; by default the one whose kernel entry grew the most.
        network: a network of finite width to compare with; losses that belong to no solution are its own.
    """
    first, second = solutions[lazy], solutions[adaptive]
    figure = Figure(
        figsize=(9.6, 8.2), dpi=150, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1), facecolor="white"
    )
    FigureCanvasAgg(figure)
    parts: Any = figure.subfigures(2, 1, height_ratios=(1.3, 1.0), hspace=0.03)
    top, bottom = parts
    _kernels(top, first, second, labels)
    if title:
        top.suptitle(title, fontsize=15, fontweight="bold")
    laws, bars = bottom.subplots(1, 2)
    if point is None:
        point = int(np.argmax(np.diag(second.kernels[0]) / np.diag(first.kernels[0])))
    density(laws, first, second, *(() if network is None else (network,)), layer=1, point=point)
    laws.set_title("The neurons' response to one training image")
    shown = tuple(key for key, solution in solutions.items() if isinstance(solution.limit, (ANBK, ANTK)))
    others = tuple(key for key in test_losses if key not in solutions)
    losses(bars, test_losses, variances=variances, adaptive=shown, others=others)
    bars.set_title("The loss on new images")
    return figure


def _kernels(figure: Any, lazy: Solution, adaptive: Solution, labels: tuple[str, ...]) -> None:
    """Two kernels on one scale of colours."""
    least = min(float(correlations(solution.kernel).min()) for solution in (lazy, adaptive))
    pair = figure.subplots(1, 2)
    for axes, solution, what in zip(pair, (lazy, adaptive), ("random features", "learned features"), strict=True):
        image = kernel(axes, solution, labels=labels, least=float(np.floor(10 * least) / 10))
        axes.set_title(f"{name(solution)}: {what}")
    bar = figure.colorbar(image, ax=list(pair), shrink=0.85, aspect=26, pad=0.03)
    bar.set_label(r"$\Phi_{\mu\nu}\,/\,(\Phi_{\mu\mu}\Phi_{\nu\nu})^{1/2}$")
    bar.outline.set_visible(False)
