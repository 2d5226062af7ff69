"""The picture of `adakern bench truth`: drawing alone, from its rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from adakern.benchmarks.truth import Row
from adakern.plot import ADAPTIVE, LAZY, NEUTRAL

_THIRD = "#009E73"
_FLOOR = 5e-4  # deviations below are drawn there


def truth(rows: dict[str, list[Row]]) -> Figure:
    """Four panels: overlaps and their deviation with width, kernels of references, and the test loss at finite width."""
    figure = Figure(figsize=(12.5, 7.6), layout="constrained")
    axes = figure.subplots(2, 2)
    _overlaps(axes[0, 0], rows.get("linear", []))
    _deviation(axes[0, 1], rows.get("linear", []))
    _references(axes[1, 0], rows.get("references", []))
    _renormalized(axes[1, 1], rows.get("renormalized", []))
    for panel in axes.ravel():
        panel.spines[["top", "right"]].set_visible(False)
    return figure


def _empty(axes: Any, what: str) -> None:
    axes.text(0.5, 0.5, f"{what}: not run", ha="center", va="center", color=NEUTRAL, transform=axes.transAxes)
    axes.set_axis_off()


def _series(rows: list[Row]) -> list[dict[str, Any]]:
    return [row.series for row in rows if "widths" in row.series]


def _overlaps(axes: Any, rows: list[Row]) -> None:
    series = _series(rows)
    if not series:
        return _empty(axes, "linear networks")
    deep = series[-1]
    widths, theory = deep["widths"], np.asarray(deep["theory"])
    layers = np.arange(1, len(theory) + 1)
    for i, color in ((0, NEUTRAL), (len(widths) - 1, ADAPTIVE)):
        shift = 0.05 * (-1 if i == 0 else 1)
        axes.errorbar(
            layers + shift,
            deep["means"][i],
            yerr=np.asarray(deep["errors"][i]),
            fmt="o",
            capsize=3,
            color=color,
            label=f"network, N = {widths[i]}",
        )
    axes.plot(layers, theory, color="black", linewidth=1.2, label="infinite width, closed form")
    axes.set(xlabel="layer", ylabel=r"label overlap $y^\top\Phi^\ell y/|y|^2$", xticks=layers)
    axes.set_title("Linear network, whitened data, three hidden layers")
    axes.legend(frameon=False)
    return None


def _deviation(axes: Any, rows: list[Row]) -> None:
    series = _series(rows)
    if not series:
        return _empty(axes, "linear networks")
    for part, color in zip(series, (LAZY, ADAPTIVE), strict=False):
        widths, depth = np.asarray(part["widths"], dtype=float), len(part["theory"])
        spread = np.asarray(part["spreads"])[:, -1]
        bias = np.abs(np.asarray(part["means"])[:, -1] - part["theory"][-1])
        error = np.asarray(part["errors"])[:, -1]
        axes.loglog(widths, spread, "o-", color=color, label=f"L = {depth}: fluctuation of the last overlap")
        down = np.minimum(error, bias - _FLOOR).clip(min=0)  # a logarithmic axis has no zero
        offset = 1.0 if depth == 1 else 1.06  # side by side
        axes.errorbar(
            offset * widths,
            np.maximum(bias, _FLOOR),
            yerr=np.stack([down, error]),
            fmt="s",
            capsize=3,
            color=color,
            fillstyle="none",
            label=f"L = {depth}: |mean - theory|",
        )
    guide = np.asarray([widths[0], widths[-1]])
    axes.loglog(guide, 0.6 * spread[0] * (guide / guide[0]) ** -0.5, ":", color=NEUTRAL, label=r"$N^{-1/2}$")
    axes.loglog(guide, 0.04 * (guide / guide[0]) ** -1.0, "--", color=NEUTRAL, label=r"$N^{-1}$")
    axes.set(xlabel="width N", ylabel="deviation", ylim=(_FLOOR / 30, None))
    axes.set_xticks(widths, [f"{width:g}" for width in widths])
    axes.minorticks_off()
    axes.set_title("Fluctuation and bias fall with width")
    axes.legend(frameon=False, fontsize="small", loc="lower left", ncols=2)
    return None


def _references(axes: Any, rows: list[Row]) -> None:
    parts = [row for row in rows if "relative difference" in row.setting]
    if not parts:
        return _empty(axes, "other programs' networks")
    places = np.arange(len(parts))
    axes.barh(
        places, [100 * row.measured for row in parts], color=ADAPTIVE, height=0.5, label="difference of the kernels"
    )
    joint = [100 * float(np.hypot(row.error, row.doubt)) for row in parts]
    axes.plot(joint, places, "k|", markersize=14, markeredgewidth=2, label="joint standard error")
    names = [
        row.setting.replace("mnist50_", "").replace(": relative difference of", "\n").replace("_", " ") for row in parts
    ]
    axes.set_yticks(places, names, fontsize="small")
    axes.invert_yaxis()
    axes.set(xlabel="per cent of the kernel's norm")
    axes.set_title("Kernels against other programs' wide networks, MNIST")
    axes.legend(frameon=False)
    return None


def _renormalized(axes: Any, rows: list[Row]) -> None:
    if not rows:
        return _empty(axes, "finite P/N")
    for activation, depth, color in (("linear", 1, NEUTRAL), ("erf", 1, LAZY), ("erf", 2, _THIRD)):
        parts = [r for r in rows if (r.series.get("activation"), r.series.get("depth")) == (activation, depth)]
        if not parts:
            continue
        widths, name = [row.series["width"] for row in parts], f"{activation}, L = {depth}"
        errors = [row.error for row in parts]
        axes.errorbar(
            widths, [r.measured for r in parts], yerr=errors, fmt="o", capsize=3, color=color, label=f"{name}: networks"
        )
        if activation == "linear":
            axes.plot(widths, [row.expected for row in parts], color="black", linewidth=1.0, label=f"{name}: exact")
        saddle = [row.series["saddle"] for row in parts]
        axes.plot(widths, saddle, color=color, linestyle="--", label=f"{name}: renormalised kernel")
        axes.axhline(parts[0].series["nngp"], color=color, linestyle=":", label=f"{name}: NNGP")
    axes.set_xscale("log", base=2)
    axes.set(xlabel="width N", ylabel="test loss, bias² + variance")
    axes.set_title("NTK parameterisation at finite width")
    axes.legend(frameon=False, fontsize="x-small", ncols=2)
    return None
