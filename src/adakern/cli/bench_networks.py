"""`adakern bench networks`: Langevin steps of finite-width networks against their bare matrix products."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from adakern.cli.output import check_target, print_json, replacing

EXAMPLE = "adakern bench networks --width 256 --points 100 --steps 32 --repeat 2"

_HEADER = (
    "L",
    "products",
    "ratio",
    "reduced",
    "share",
    "steps/s",
    "ms",
    "bare",
    "bare r.",
    "TFLOP/s",
)


def run(
    width: Annotated[int, typer.Option(min=1, help="Width N.")] = 1024,
    points: Annotated[int, typer.Option(min=2, help="Training points P.")] = 300,
    features: Annotated[int, typer.Option(min=1, help="Features D.")] = 784,
    steps: Annotated[int, typer.Option(min=1, help="Steps per timing.")] = 64,
    repeat: Annotated[int, typer.Option(min=1, help="Timings; the best counts.")] = 5,
    tf32: Annotated[bool, typer.Option("--tf32", help="Also with the device's default (TF32) products.")] = False,
    markdown: Annotated[Path | None, typer.Option(help="Also write the table to this Markdown file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Time Langevin steps of MLPs with one and three hidden layers, and divide by their bare matrix products."""
    from adakern.benchmarks import networks, timing

    if markdown is not None:
        check_target(markdown)
    rows = []
    for case in networks.cases(
        width, points, features, steps, repeat, ("highest", "default") if tf32 else ("highest",)
    ):
        if sys.stderr.isatty():
            typer.echo(f"measuring {case.depth} hidden layer(s) ...", err=True)
        rows.append(networks.row(case))
    facts: dict[str, Any] = {"rows": rows, "machine": timing.machine()}
    if markdown is not None:
        with replacing(markdown) as temporary:
            temporary.write_text(_markdown(facts), encoding="utf-8")
    if as_json:
        print_json(facts)
        return
    _print(facts)
    if markdown is not None:
        typer.echo(f"Table: {markdown}")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    products = "float32" if row["matmul"] == "highest" else "default"
    ratios = (f"{row[name]:.2f}" for name in ("ratio", "ratio_reduced", "share"))
    rate = row["steps_per_second"]
    times = (f"{row[name]:.3g}" for name in ("step_ms", "bare_ms", "bare_reduced_ms", "tflops"))
    return str(row["depth"]), products, *ratios, f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}", *times


def _sizes(row: dict[str, Any]) -> str:
    return (
        f"width {row['width']}, {row['points']} points, {row['features']} features, float32, "
        f"{row['steps']} steps a timing, best of {row['repeat']}"
    )


_LEGEND = (
    "ratio = a step / its bare matrix products with inputs of all features; reduced = the same with the inputs in the coordinates of their span, as simulated; "
    "share = the step's rate of useful operations / that of the bare reduced products; ms, bare, bare r. = milliseconds of each"
)


def _print(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for column in _HEADER:
        table.add_column(column, justify="right", style="bold" if column == "ratio" else "")
    for row in facts["rows"]:
        table.add_row(*_cells(row))
    console = Console(highlight=False)
    console.print(f"Langevin steps: {_sizes(facts['rows'][0])}", soft_wrap=True)
    console.print(table)
    console.print(_LEGEND, soft_wrap=True)


def _markdown(facts: dict[str, Any]) -> str:
    host, first = facts["machine"], facts["rows"][0]
    sizes = " ".join(f"--{name} {first[name]}" for name in ("width", "points", "features", "steps", "repeat"))
    tf32 = " --tf32" if any(row["matmul"] != "highest" for row in facts["rows"]) else ""
    device = f"{host['device']}, " if host["backend"] != "cpu" else ""
    lines = [
        "# Langevin steps against their matrix products",
        "",
        f"`adakern bench networks {sizes}{tf32}`",
        "",
        f"{_sizes(first)[0].upper()}{_sizes(first)[1:]}.",
        "A step is one gradient of the whole training set, one kick and one drift of every weight; momenta are refreshed, and kernels and outputs measured, "
        "every sixteenth. All of it runs in one compiled loop. The bare products are those of the same gradient, in one compiled loop as well: "
        "**ratio** with inputs of all features, **reduced** with the inputs in the coordinates of their span (P < D), as the simulation uses them. "
        "**Share** is the rate of useful operations of a step over that of the bare reduced products; **ms**, **bare** and **bare r.** are the milliseconds of a step and of both kinds of bare products. "
        "Products are in full float32, or in the device's default format (TF32 on a GPU).",
        "",
        "| " + " | ".join(_HEADER) + " |",
        "|" + "|".join(" ---: " for _ in _HEADER) + "|",
        *("| " + " | ".join(_cells(row)) + " |" for row in facts["rows"]),
        "",
        f"Machine: {device}{host['cpu']}, {host['cores']} cores, {host['backend']} backend; "
        f"adakern {host['adakern']}, jax {host['jax']}, numpy {host['numpy']}, python {host['python']}.",
    ]
    return "\n".join(lines) + "\n"
