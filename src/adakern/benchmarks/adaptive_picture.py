"""The picture of `adakern bench adaptive`: drawing alone, from its stored numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from adakern.plot import ADAPTIVE, LAZY, NEUTRAL

_FLOOR = 1e-7  # smaller deficits are drawn there


def draw(compared: dict[str, list[dict[str, Any]]], races: list[dict[str, Any]]) -> Figure:
    """Left, by case: how far from 1 the alignment with networks is, against the bar; right: how many times longer the others take."""
    lines = sum(len(rows) for rows in compared.values())
    figure = Figure(figsize=(13, max(4.0, 1.6 + 0.26 * lines)), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _deficits(left, compared)
    _races(right, races)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _empty(axes: Any, what: str) -> None:
    axes.text(0.5, 0.5, f"{what}: not run", ha="center", va="center", color=NEUTRAL, transform=axes.transAxes)
    axes.set_axis_off()


def _deficits(axes: Any, compared: dict[str, list[dict[str, Any]]]) -> None:
    rows = [row for part in compared.values() for row in part]
    if not rows:
        return _empty(axes, "networks")
    places = np.arange(len(rows))
    deficits = [max(1 - row["alignment"], _FLOOR) for row in rows]
    chance = [max(row["joint"] ** 2 / 2, _FLOOR) for row in rows]
    bars = [1 - row["least"] for row in rows]
    axes.plot(deficits, places, "o", color=ADAPTIVE, label="particle solver")
    axes.plot(chance, places, "|", color=NEUTRAL, markersize=9, label="what the error bars amount to")
    axes.plot(bars, places, "|", color="black", markersize=13, markeredgewidth=2, label="bar")
    known = [(1 - row["published"], place) for row, place in zip(rows, places, strict=True) if row["published"]]
    if known:
        axes.plot(*zip(*known, strict=True), "s", color=LAZY, fillstyle="none", label="published solver")
    names = [f"{case}: {row['setting']}, layer {row['layer']}" for case, part in compared.items() for row in part]
    axes.set_yticks(places, names, fontsize="small")
    axes.set_ylim(len(rows) - 0.3, -0.7)
    axes.set_xscale("log")
    axes.set(xlabel="1 − alignment with a Langevin-sampled network")
    axes.set_title("Kernels of theory and networks")
    axes.grid(axis="x", color="#D9DCE0", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.figure.legend(frameon=False, fontsize="small", loc="outside lower left", ncols=4)
    return None


def _races(axes: Any, races: list[dict[str, Any]]) -> None:
    if not races:
        return _empty(axes, "speed")
    places = np.arange(len(races))
    ratios = [race["ratio"] for race in races]
    colors = [LAZY if "published" in race["setting"] else NEUTRAL for race in races]
    axes.barh(places, np.asarray(ratios) - 1, left=1.0, height=0.45, color=colors)
    for place, race in zip(places, races, strict=True):
        sign = ">" if race["bound"] else ("~" if "extrapolated" in race["note"] else "")
        text = f" {sign} {race['ratio']:.3g}  ({_seconds(race['other_s'])} / {_seconds(race['theory_s'])})"
        axes.text(max(race["ratio"], 1.0), place, text, va="center", fontsize="small")
    axes.set_xscale("log")
    axes.set_xlim(min(0.5, *ratios), 200 * max(1.0, *ratios))
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks(places, [_wrapped(race["setting"]) for race in races], fontsize="small")
    axes.set_ylim(len(races) - 0.4, -0.6)
    axes.set(xlabel="its seconds / the particle solver's")
    axes.set_title("Speed on one machine")
    return None


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 100 else f"{value:.3g} s"


def _wrapped(text: str) -> str:
    problem, _, rival = text.partition(": ")
    return f"{problem}\n{rival.replace(', alignment', chr(10) + 'alignment')}"
