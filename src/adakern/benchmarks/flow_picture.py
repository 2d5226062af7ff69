"""The picture of `adakern bench flow`: drawing alone, from its stored numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from adakern.plot import ADAPTIVE, LAZY, NEUTRAL

_FLOOR = 1e-7  # smaller deficits and gaps are drawn there
_COLORS = (ADAPTIVE, LAZY, NEUTRAL, "black", "#7A5195", "#3B8E5A", "#C8A415")
Rows = list[dict[str, Any]]


def draw(rows: dict[str, Rows]) -> Figure:
    """The transition of one point; networks' alignments; gaps over seconds; the limit of zero temperature; losses over time; seconds."""
    figure = Figure(figsize=(16, 9.5), layout="constrained")
    axes = figure.subplots(2, 3)
    parts = (_transition, _alignments, _gaps, _cold, _losses, _speed)
    names = ("one-point", "networks", "certificate", "zero-temperature", "dynamics", "speed")
    for part, name, place in zip(parts, names, axes.flat, strict=True):
        held = [row for row in rows.get(name, []) if row["series"]]
        place.spines[["top", "right"]].set_visible(False)
        if held:
            part(place, held)
        else:
            place.text(0.5, 0.5, f"{name}: not run", ha="center", va="center", color=NEUTRAL, transform=place.transAxes)
            place.set_axis_off()
    return figure


def _problems(rows: Rows) -> dict[str, Rows]:
    """By problem, in order."""
    found: dict[str, Rows] = {}
    for row in rows:
        if "problem" in row["series"]:
            found.setdefault(row["series"]["problem"], []).append(row)
    return found


def _short(problem: str) -> str:
    """A problem's name for a legend."""
    return problem.replace("richness ", "γ₀ = ").replace("decay ", "λ = ")


def _transition(axes: Any, rows: Rows) -> None:
    grid = np.geomspace(0.4, 12, 400)
    axes.plot(grid, np.maximum(grid - 1, 0), color=NEUTRAL, label="⟨φ²⟩ = γ₀ − λ")
    axes.plot(grid, np.minimum(1 / grid, 1), color=NEUTRAL, linestyle="--", label="Δ = λ / γ₀")
    for activation, mark, color in (("linear", "o", LAZY), ("relu", "x", ADAPTIVE)):
        held = [row["series"] for row in rows if row["series"].get("activation") == activation]
        for key in ("size", "delta"):
            places = [s["richness"] for s in held]
            axes.plot(
                places,
                [s[key] for s in held],
                mark,
                color=color,
                fillstyle="none",
                markersize=8 if mark == "o" else 6,
                label=f"solved, {activation}" if key == "size" else None,
            )
    axes.set_xscale("log")
    axes.set_xticks([0.5, 1, 2, 5, 10], ["0.5", "1", "2", "5", "10"])
    axes.minorticks_off()
    axes.set_yscale("symlog", linthresh=1.0)
    axes.set_yticks([0, 0.5, 1, 3, 9], ["0", "0.5", "1", "3", "9"])
    axes.set(xlabel="richness γ₀", title="One point, λ = 1: dead up to γ₀ = λ")
    axes.legend(frameon=False, fontsize="small")


def _alignments(axes: Any, rows: Rows) -> None:
    problems = _problems([row for row in rows if "layer" in row["series"]])
    widths = sorted({row["series"]["width"] for part in problems.values() for row in part})
    labels: list[str] = []
    for problem, part in problems.items():
        layers = sorted({row["series"]["layer"] for row in part})
        for layer in layers:
            for row in part:
                if row["series"]["layer"] != layer:
                    continue
                color = ADAPTIVE if row["series"]["width"] == widths[-1] else NEUTRAL
                deficit = max(1 - row["measured"], _FLOOR)
                axes.plot(deficit, len(labels), "o", color=color, fillstyle="full" if color == ADAPTIVE else "none")
            labels.append(f"{_short(problem)}, layer {layer}")
    for width in widths:
        color = ADAPTIVE if width == widths[-1] else NEUTRAL
        axes.plot([], [], "o", color=color, fillstyle="full" if color == ADAPTIVE else "none", label=f"N = {width}")
    axes.axvline(5e-4, color="black", linewidth=1, label="bar")
    axes.set_yticks(np.arange(len(labels)), labels, fontsize="small")
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xscale("log")
    axes.grid(axis="x", color="#D9DCE0", linewidth=0.6)
    axes.set(xlabel="1 − alignment with trained networks", title="Kernels of theory and networks")
    axes.legend(frameon=False, fontsize="small")


def _gaps(axes: Any, rows: Rows) -> None:
    for color, (problem, part) in zip(_COLORS, _problems(rows).items(), strict=False):
        series = part[0]["series"]
        axes.plot(series["seconds"], np.maximum(series["gaps"], _FLOOR), "-", color=color, linewidth=1.2)
        seconds, gap = series["solver"]
        axes.plot(seconds, max(gap, _FLOOR), "*", markersize=11, color=color, label=_short(problem))
    axes.plot([], [], "-", color="black", linewidth=1.2, label="lines: plain flow; stars: solver")
    axes.axhline(1e-4, color="black", linewidth=0.8, linestyle=":")
    axes.set(xlabel="seconds", ylabel="duality gap / value", xscale="log", yscale="log")
    axes.set_title("Certificate, one hidden layer, ReLU")
    axes.set_xlim(left=axes.get_xlim()[0] / 100)  # room for the legend, away from the solver's stars
    axes.legend(frameon=False, fontsize="x-small", loc="lower left")


def _cold(axes: Any, rows: Rows) -> None:
    marks = iter("o^sv")
    lows: list[tuple[float, float]] = []
    for color, (problem, part) in zip(_COLORS, _problems(rows).items(), strict=False):
        places, sizes = [row["series"]["b"] for row in part], [row["measured"] for row in part]
        errors = [row["error"] or 0.0 for row in part]
        # An error bar down to nothing has no place on a logarithmic axis.
        below = [min(error, 0.9 * size) for error, size in zip(errors, sizes, strict=True)]
        axes.errorbar(
            places, sizes, [below, errors], fmt=f"{next(marks)}-", color=color, markersize=5, label=_short(problem)
        )
        lows.append((places[0], sizes[0]))
    first, top = lows[0][0], max(size for _, size in lows)
    far = max(row["series"]["b"] for row in rows if "b" in row["series"])
    axes.plot([first, far], [top, top * first / far], ":", color="black", label="∝ 1/b")
    axes.set(xlabel="b", ylabel="largest difference of outputs", xscale="log", yscale="log")
    axes.set_title("aNBK(β = b, decay = bλ) → aNTK(decay = λ)")
    axes.legend(frameon=False, fontsize="small")


def _losses(axes: Any, rows: Rows) -> None:
    """The test losses of ReLU."""
    held = [row["series"] for row in rows if row["series"].get("kind") == "test"]
    chosen = [s for s in held if "relu" in s["problem"]] or held
    losses_over_time(axes, chosen, lambda problem: _short(problem).removeprefix("L=1 "))
    axes.set_title("Dynamics: theory (lines), networks (dots), 2 errors")


def losses_over_time(axes: Any, chosen: Rows, label: Callable[[str], str]) -> None:
    """Losses of theory and networks, as `flow_networks.race` stores them, with two standard errors."""
    for index, series in enumerate(chosen):
        color, style = _COLORS[index % len(_COLORS)], "-"
        times, ours, doubt = (np.asarray(series[key]) for key in ("times", "theory", "theory_error"))
        axes.plot(times, ours, style, color=color, linewidth=1.2, label=label(series["problem"]))
        axes.fill_between(times, ours - 2 * doubt, ours + 2 * doubt, color=color, alpha=0.25, linewidth=0)
        axes.errorbar(
            times, series["network"], 2 * np.asarray(series["network_error"]), fmt="o", color=color, markersize=3
        )
    axes.set(xlabel="time", ylabel="test loss", xscale="log", yscale="log")
    axes.legend(frameon=False, fontsize="x-small", ncols=1)


def _speed(axes: Any, rows: Rows) -> None:
    held = [row["series"] for row in rows]
    places = np.arange(len(held))
    axes.barh(places - 0.19, [s["theory_s"] for s in held], height=0.36, color=ADAPTIVE, label="solver")
    axes.barh(places + 0.19, [s["network_s"] for s in held], height=0.36, color=NEUTRAL, label="network, trained")
    for place, s in zip(places, held, strict=True):
        text = f" {'> ' if s['bound'] else ''}{s['ratio']:.2g} ×"
        axes.text(max(s["network_s"], s["theory_s"]), place, text, va="center", fontsize="small")
    axes.set_yticks(places, [_short(s["problem"]) for s in held], fontsize="small")
    axes.set_ylim(len(held) - 0.4, -0.6)
    axes.set_xscale("log")
    times = [s[key] for s in held for key in ("network_s", "theory_s")]
    axes.set_xlim(10 ** np.floor(np.log10(min(times) / 2)), 6 * max(times))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set(xlabel="seconds, without compilation", title="Solver and network, one machine")
    axes.legend(frameon=False, fontsize="small")
