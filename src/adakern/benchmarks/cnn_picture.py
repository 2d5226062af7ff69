"""The picture of `adakern bench cnn`: drawing alone, from its stored numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from adakern.benchmarks.flow_picture import losses_over_time
from adakern.plot import ADAPTIVE, LAZY, NEUTRAL, spatial

_COLORS = (ADAPTIVE, LAZY, NEUTRAL)  # of richness, as over time
_FLOOR = 1e-7  # smaller deficits are drawn there
Rows = list[dict[str, Any]]


def draw(rows: dict[str, Rows]) -> Figure:
    """Losses over time for two numbers of points; alignments; test losses over the number of points; kernels between positions."""
    figure = Figure(figsize=(16, 9.5), layout="constrained")
    parts: Any = figure.subfigures(2, 1)
    top, bottom = parts
    held = {
        name: [row["series"] | {"measured": row["measured"]} for row in part if row["series"]]
        for name, part in rows.items()
    }
    first, second, third = top.subplots(1, 3)
    runs = [s for kind in ("test", "train") for s in held.get("dynamics", []) if s.get("kind") == kind]
    panels: dict[tuple[str, str], Rows] = {}
    for s in runs:
        panels.setdefault((s["kind"], _points(s["problem"])), []).append(s)
    for axes, part in zip((first, second), [*panels.values(), [], []], strict=False):
        _part(axes, "dynamics", part, _losses)
    kernels = [s for name in ("anbk", "antk") for s in held.get(name, []) if "layer" in s]
    _part(third, "anbk, antk", kernels, _alignments)
    left, right = bottom.subfigures(1, 2, width_ratios=(1, 2))
    _part(left.subplots(), "points", held.get("points", []), _growing)
    _spaces(right, [s for s in held.get("anbk", []) if "space" in s or "network_space" in s])
    return figure


def _part(axes: Any, name: str, series: Rows, part: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    if series:
        part(axes, series)
        return
    axes.text(0.5, 0.5, f"{name}: not run", ha="center", va="center", color=NEUTRAL, transform=axes.transAxes)
    axes.set_axis_off()


def _points(problem: str) -> str:
    """P of a problem's name."""
    return problem.split("P=")[1].split(",")[0]


def _losses(axes: Any, series: Rows) -> None:
    losses_over_time(axes, series, lambda problem: f"γ₀ = {problem.split('richness ')[1]}")
    kind, points = series[0]["kind"], _points(series[0]["problem"])
    axes.set_yscale("linear")
    axes.set(ylabel=f"{kind} loss ½⟨Δ²⟩", title=f"P = {points}: theory (lines), networks (dots), 2 errors")
    axes.legend(frameon=False)


def _alignments(axes: Any, series: Rows) -> None:
    labels: list[str] = []
    for s in series:
        label = f"{s['problem'].replace('richness ', 'γ₀ = ').replace('decay ', 'λ = ').replace('beta ', 'β = ')}, layer {s['layer']}"
        if label not in labels:
            labels.append(label)
        widest = s["width"] == max(o["width"] for o in series if o["problem"] == s["problem"])
        deficit = max(1 - s["measured"], _FLOOR)
        axes.plot(
            deficit,
            labels.index(label),
            "o",
            color=ADAPTIVE if widest else NEUTRAL,
            fillstyle="full" if widest else "none",
        )
    axes.plot([], [], "o", color=ADAPTIVE, label="widest network")
    axes.plot([], [], "o", color=NEUTRAL, fillstyle="none", label="narrower")
    axes.axvline(1e-3, color="black", linewidth=1, linestyle=":", label="10⁻³")
    axes.set_yticks(np.arange(len(labels)), [label.replace(", γ₀", ",\nγ₀") for label in labels], fontsize="small")
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xscale("log")
    axes.grid(axis="x", color="#D9DCE0", linewidth=0.6)
    axes.set(xlabel="1 − alignment", title="Kernels of theory and networks")
    axes.legend(frameon=False, fontsize="small")


def _growing(axes: Any, series: Rows) -> None:
    found = list(dict.fromkeys(s["richness"] for s in series))
    for color, richness in zip(_COLORS, found, strict=False):
        for which, style, mark in (("CNN", "-", "o"), ("MLP", "--", "s")):
            held = [s for s in series if (s["richness"], s["which"]) == (richness, which) and s["test"] is not None]
            places, values, errors = ([s[key] for s in held] for key in ("points", "test", "error"))
            label = f"{which}, γ₀ = {richness:g}"
            axes.errorbar(
                places, values, 2 * np.asarray(errors), fmt=f"{mark}{style}", color=color, markersize=4, label=label
            )
    axes.set_xscale("log")
    ticks = sorted({s["points"] for s in series})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set(xlabel="training images P", ylabel="test loss ⟨Δ²⟩", title="Decay 0.01, mean over patterns, time 200")
    axes.legend(frameon=False, fontsize="small", ncols=2)


def _spaces(figure: Any, series: Rows) -> None:
    """Kernels between positions of the first problem: lazy, learned, a network's; below, what one position has in common with the others."""
    chosen = [s for s in series if s["problem"] == series[0]["problem"]]
    if not chosen:
        _part(figure.subplots(), "anbk", [], None)
        return
    merged: dict[str, Any] = {}
    for s in chosen:
        merged |= s
    names = {"lazy_space": "random features (NNGPK)", "space": "learned (aNBK)", "network_space": "a sampled network"}
    present = [key for key in names if key in merged]
    kernels = {key: np.asarray(merged[key]) for key in present}
    least = min(float((k / np.sqrt(np.outer(np.diag(k), np.diag(k)))).min()) for k in kernels.values())
    rows, columns = merged["grid"]
    middle = (rows // 2) * columns + columns // 2
    places = figure.subplots(2, len(present), squeeze=False)
    for column, key in enumerate(present):
        spatial(places[0, column], kernels[key], least=least)
        image = spatial(places[1, column], kernels[key], position=middle, grid=(rows, columns), least=least)
        places[0, column].set_title(names[key])
    places[0, 0].set_ylabel("position × position")
    places[1, 0].set_ylabel("with the position marked")
    bar = figure.colorbar(image, ax=places.ravel().tolist(), shrink=0.8, aspect=30)
    bar.set_label("correlation of features")
    bar.outline.set_visible(False)
    figure.suptitle(f"Kernels between positions: {merged['problem']}")
