"""The law of a preactivation."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from adakern import readings
from adakern.finite import Run
from adakern.limits import VGA
from adakern.plot.style import ADAPTIVE, CYCLE, LAZY, name, unbox
from adakern.readings import Subject
from adakern.solution import Solution
from adakern.trajectories import Trajectory

_BINS = 48
_MANY = 1000  # values of which the outermost may lie outside the picture


def density(
    axes: Axes,
    *of: Subject,
    layer: int = 1,
    point: int = 0,
    position: int = 0,
    time: float | None = None,
    log: bool = True,
) -> None:
    r"""Draw the law of the preactivation $h^\ell_\mu$ of each of several solutions, runs and trajectories on one axis.

    Gaussian laws (of lazy limits, linear networks and VGA) are lines, a sampled one among at most three is a filled histogram and others are outlines, networks of finite width dots, trajectories steps.

    Args:
        axes: where to draw.
        of: whose laws.
        layer: hidden layer.
        point: training point.
        position: of a CNN, counted row by row.
        time: of trajectories, by default their last.
        log: densities on a logarithmic axis.
    """
    if not of:
        raise ValueError("density needs a solution, a run or a trajectory to draw")
    readings.check(*of)
    laws = [_law(one, layer, point, position, time) for one in of]
    low, high = _range(of, laws)
    edges = np.linspace(low, high, _BINS + 1)
    top, least = 0.0, np.inf
    colours = _colours(of)
    sampled = sum(isinstance(one, Solution) and not gaussian(one) for one in of)
    alone = sampled == 1 and len(of) <= 3  # filled bars would cover others
    for one, (values, weights), colour in zip(of, laws, colours, strict=True):
        label = name(one)
        if gaussian(one):
            h = np.linspace(low, high, 400)
            spread = _spread(values, weights)
            if spread == 0.0:  # nothing is left of the fields
                axes.axvline(0.0, color=colour, linewidth=2.2, label=f"{label}, all at 0")
                continue
            curve = np.exp(-0.5 * (h / spread) ** 2) / (spread * np.sqrt(2 * np.pi))
            axes.plot(h, curve, color=colour, linewidth=2.2, label=f"{label}, a Gaussian", zorder=3)
            top = max(top, float(curve.max()))
            continue
        heights = np.histogram(values, bins=edges, weights=weights)[0] / np.diff(edges)
        top = max(top, float(heights.max()))
        least = min(least, 0.5 / (len(values) * (edges[1] - edges[0])), 0.5 * float(heights[heights > 0].min()))
        _draw(axes, one, edges, heights, colour, label, alone)
    if log:
        axes.set_yscale("log")
        room = 2 * 2.5 ** len(of)  # for the legend
        axes.set_ylim(least if np.isfinite(least) else 1e-4 * top, room * top if top > 0 else 1.0)
    axes.set_xlim(low, high)
    axes.set_xlabel(rf"preactivation $h^{{{layer}}}_\mu$")
    axes.set_ylabel(r"density $p(h)$")
    axes.legend(frameon=False, loc="upper right", handlelength=1.2)
    unbox(axes)


def gaussian(of: Subject) -> bool:
    """Whether the laws of a solution's fields are Gaussian."""
    return isinstance(of, Solution) and (isinstance(of.limit, VGA) or not of.draws)


def _law(of: Subject, layer: int, point: int, position: int, time: float | None) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(of, Trajectory):
        return of.density(readings.last(of) if time is None else time, layer, point, position)
    return of.density(layer, point, position)


def _spread(values: np.ndarray, weights: np.ndarray) -> float:
    return float(np.sqrt(np.sum(weights * values**2)))


def _range(of: tuple[Subject, ...], laws: list[tuple[np.ndarray, np.ndarray]]) -> tuple[float, float]:
    ends = [0.0, 0.0]
    for one, (values, weights) in zip(of, laws, strict=True):
        if gaussian(one):
            reach = 4.5 * _spread(values, weights)
            ends += [-reach, reach]
        else:
            few = len(values) <= _MANY  # as the neurons of an ANTK at rest, which are all shown
            lowest, highest = np.quantile(values, (0.0, 1.0) if few else (0.001, 0.999)).tolist()
            margin = 0.04 * (highest - lowest) if few else 0.0
            ends += [lowest - margin, highest + margin]
    low, high = min(ends), max(ends)
    return (low, high) if high > low else (-1.0, 1.0)


def _colours(of: tuple[Subject, ...]) -> list[str]:
    """The lazy colour for the first Gaussian, the adaptive one for the first sampled law, black for the first network, and others for others."""
    found: list[str] = []
    for one in of:
        preferred = LAZY if gaussian(one) else "black" if isinstance(one, Run) else ADAPTIVE
        others = [c for c in CYCLE if c not in (LAZY, ADAPTIVE)]
        found.append(next((c for c in (preferred, *others, *CYCLE) if c not in found), CYCLE[len(found) % len(CYCLE)]))
    return found


def _draw(
    axes: Axes, one: Subject, edges: np.ndarray, heights: np.ndarray, colour: str, label: str, alone: bool
) -> Any:
    if isinstance(one, Run):
        middles, seen = (edges[:-1] + edges[1:]) / 2, heights > 0
        return axes.plot(middles[seen], heights[seen], "o", color=colour, markersize=3.2, label=label, zorder=2.5)
    if isinstance(one, Trajectory) or not alone:
        return axes.stairs(heights, edges, color=colour, linewidth=1.8, label=label)
    return axes.bar(edges[:-1], heights, np.diff(edges), align="edge", color=colour, alpha=0.8, label=label)
