"""The picture of `adakern bench exact`: drawing alone, from its stored numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from adakern.benchmarks.truth import Row
from adakern.plot import ADAPTIVE, LAZY, NEUTRAL

_MARKS = {"linear": "o", "relu": "s", "tanh": "^"}
_SHADES = {1: 1.0, 2: 0.65, 4: 0.35}


def draw(rows: dict[str, list[Row]]) -> Figure:
    """Overlaps of networks on the closed form; what first order leaves over; the certificate as a solver goes on; what a Gaussian law costs."""
    figure = Figure(figsize=(11, 8), layout="constrained")
    axes = figure.subplots(2, 2)
    _overlaps(axes[0, 0], rows.get("networks", []))
    _orders(axes[0, 1], rows.get("orders", []))
    _certificate(axes[1, 0], rows.get("certificate", []))
    _gaussian(axes[1, 1], rows.get("gaussian", []))
    for part in axes.flat:
        part.spines[["top", "right"]].set_visible(False)
    return figure


def _empty(axes: Any, what: str) -> None:
    axes.text(0.5, 0.5, f"{what}: not run", ha="center", va="center", color=NEUTRAL, transform=axes.transAxes)
    axes.set_axis_off()


def _plain_ticks(axes: Any, x: tuple[float, ...] = (), y: tuple[float, ...] = ()) -> None:
    """Few round numbers on a logarithmic axis."""
    for axis, places in ((axes.xaxis, x), (axes.yaxis, y)):
        if places:
            axis.set_major_locator(FixedLocator(places))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_locator(NullLocator())


def _overlaps(axes: Any, rows: list[Row]) -> None:
    held = [row for row in rows if "width" in row.series]
    if not held:
        return _empty(axes, "networks")
    widths = sorted({row.series["width"] for row in held})
    exact = {row.series["layer"]: row.expected for row in held}
    layers = sorted(exact)
    axes.plot(layers, [exact[layer] for layer in layers], color=ADAPTIVE, label="closed form")
    for width, mark in zip(widths, ("x", "+"), strict=False):
        part = [row for row in held if row.series["width"] == width]
        axes.errorbar(
            [row.series["layer"] for row in part],
            [row.measured for row in part],
            [3 * row.error for row in part],
            fmt=mark,
            color=LAZY if mark == "x" else "black",
            label=f"network, N = {width} (3 standard errors)",
        )
    axes.set(xlabel="layer", ylabel="label overlap", yscale="log")
    _plain_ticks(axes, y=(2, 5, 10, 20, 30))
    axes.set_title("Linear, L = 8, richness 4, beta 10")
    axes.legend(frameon=False, fontsize="small")
    return None


def _orders(axes: Any, rows: list[Row]) -> None:
    held = [row for row in rows if "problem" in row.series]
    if not held:
        return _empty(axes, "orders")
    for problem in dict.fromkeys(row.series["problem"] for row in held):
        part = [row for row in held if row.series["problem"] == problem and row.measured > 2 * row.error]
        activation, depth = problem.split(", L=")
        color = {"linear": NEUTRAL, "relu": ADAPTIVE, "tanh": LAZY}[activation]
        axes.errorbar(
            [row.series["richness"] for row in part],
            [row.measured for row in part],
            [row.error for row in part],
            fmt=f"{_MARKS[activation]}-",
            color=color,
            alpha=_SHADES[int(depth)],
            markersize=4,
            label=problem,
        )
    axes.set(xlabel="richness", ylabel="|rest| / (richness⁴ |lazy|)", xscale="log", yscale="log")
    _plain_ticks(axes, x=(0.025, 0.05, 0.1, 0.2, 0.4))
    axes.set_ylim(1, None)
    axes.set_title("What is left after first order")
    axes.legend(frameon=False, fontsize="x-small", ncols=2)
    return None


def _certificate(axes: Any, rows: list[Row]) -> None:
    held = [row for row in rows if "gradients" in row.series]
    if not held:
        return _empty(axes, "certificate")
    places, values = [row.series["gradients"] for row in held], [row.measured for row in held]
    axes.errorbar(
        places, np.maximum(values, 1e-5), [row.error for row in held], fmt="o-", color=ADAPTIVE, label="particles"
    )
    for row, style in zip([row for row in rows if "lazy" in row.setting], ("--",), strict=False):
        axes.axhline(row.measured, color=LAZY, linestyle=style, label="the lazy answer")
    axes.set(xlabel="gradients", ylabel="certificate (nats)", xscale="log", yscale="log")
    _plain_ticks(axes, x=(20, 50, 100, 200, 400))
    axes.set_title("Primal minus dual, tanh, richness 1")
    axes.legend(frameon=False, fontsize="small")
    return None


def _gaussian(axes: Any, rows: list[Row]) -> None:
    held = [row for row in rows if row.setting.endswith("kernel off")]
    if not held:
        return _empty(axes, "gaussian")
    places = np.arange(len(held))
    axes.barh(places, [100 * row.measured for row in held], color=LAZY, xerr=[100 * row.error for row in held])
    axes.set_yticks(places, [row.setting.removesuffix(": kernel off") for row in held], fontsize="small")
    axes.invert_yaxis()
    axes.set(xlabel="kernel of the best Gaussian law off by (%)")
    axes.set_title("What non-Gaussianity is worth")
    return None
