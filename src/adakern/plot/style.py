"""Colours that every eye tells apart, names for legends, and axes without a box."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from adakern.finite import Run
from adakern.limits import ANBK, ANTK, VGA
from adakern.readings import Subject
from adakern.trajectories import Trajectory

LAZY, ADAPTIVE, NEUTRAL = "#0072B2", "#D55E00", "#5F6670"  # Okabe and Ito's blue and vermilion: told apart by every eye
CYCLE = (ADAPTIVE, LAZY, "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # the rest of theirs, in the order of use
_GRID = "#D9DCE0"


def name(of: Subject) -> str:
    """What a solution's predictor, a network or a trajectory is called in a legend."""
    if isinstance(of, Run):
        return f"a network of {of.settings.width} neurons"
    if isinstance(of, Trajectory):
        return rf"training, $\gamma_0={of.limit.richness:g}$"
    limit = of.limit
    if isinstance(limit, (ANBK, ANTK, VGA)):
        return rf"{limit.kind}, $\gamma_0={limit.richness:g}$"
    return limit.kind


def pale(colour: str) -> tuple[float, ...]:
    return tuple(0.4 * part + 0.6 for part in to_rgb(colour))


def shade(share: float) -> tuple[float, ...]:
    """Between the lazy colour (0) and the adaptive one (1)."""
    return tuple((1 - share) * a + share * b for a, b in zip(to_rgb(LAZY), to_rgb(ADAPTIVE), strict=True))


def unbox(axes: Axes) -> None:
    """No box, a faint grid behind the data."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(NEUTRAL)
    axes.set_axisbelow(True)
    axes.grid(axis="x", color=_GRID, linewidth=0.7)
