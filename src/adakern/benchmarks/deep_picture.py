"""The picture of `adakern bench deep-dynamics`: drawing alone, from its stored numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from adakern.plot import ADAPTIVE, LAZY, NEUTRAL


def draw(rows: dict[str, list[dict[str, Any]]]) -> Figure:
    """Losses over time: theory with and without responses, and networks; one panel a problem."""
    problems: dict[str, list[dict[str, Any]]] = {}
    for row in rows.get("networks", []):
        if row["series"]:
            problems.setdefault(row["series"]["problem"], []).append(row["series"])
    across = min(4, max(1, len(problems)))
    down = math.ceil(max(1, len(problems)) / across)
    figure = Figure(figsize=(4 * across, 3 * down), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for axes in panels[len(problems) :]:
        axes.set_axis_off()
    for axes, (title, series) in zip(panels, problems.items(), strict=False):
        for s in series:
            good = s["kind"] == "train"
            style: dict[str, Any] = {"color": ADAPTIVE} if good else {"color": LAZY, "linestyle": "--"}
            axes.plot(s["times"], s["theory"], label="theory" if good else "without responses", **style)
        bars = 2 * np.asarray(series[0]["network_error"])
        axes.errorbar(
            series[0]["times"], series[0]["network"], yerr=bars, fmt="o", ms=3, color=NEUTRAL, label="networks, N → ∞"
        )
        axes.set(xscale="log", xlabel="time", ylabel="training loss")
        axes.set_title(title, fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    if problems:
        panels[0].legend(frameon=False, fontsize=7)
    return figure
