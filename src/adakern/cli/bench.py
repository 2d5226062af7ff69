"""`adakern bench lazy`: the lazy limits against the matrix products they cannot avoid."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from adakern.cli.output import check_target, print_json, replacing

EXAMPLE = "adakern bench lazy --points 500 --new 500 --repeat 1"

_HEADER = ("limit", "activation", "ratio", "CPU ratio", "solve", "predict", "bare", "compile", "GiB")


def lazy(
    points: Annotated[int, typer.Option(min=2, help="Training points P.")] = 2000,
    new: Annotated[int, typer.Option(min=1, help="New points Q.")] = 2000,
    features: Annotated[int, typer.Option(min=1, help="Features D.")] = 784,
    depth: Annotated[int, typer.Option(min=1, help="Hidden layers.")] = 3,
    repeat: Annotated[int, typer.Option(min=1, help="Timings; the best counts.")] = 3,
    markdown: Annotated[Path | None, typer.Option(help="Also write the table to this Markdown file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Time NNGP and NTK, and divide by the bare matrix products; measure the peak memory of each."""
    from adakern.benchmarks import lazy as benchmarks
    from adakern.benchmarks import timing

    if markdown is not None:
        check_target(markdown)
    rows = []
    for case in benchmarks.cases(points=points, new=new, features=features, depth=depth, repeat=repeat):
        if sys.stderr.isatty():
            typer.echo(f"measuring {case.limit} with {case.activation} ...", err=True)
        rows.append(benchmarks.measure(case))
    peak = max(row["peak_bytes"] for row in rows)
    facts: dict[str, Any] = {
        "rows": rows,
        "peak_bytes": peak,
        "limit_bytes": benchmarks.MEMORY_LIMIT,
        "within_limit": peak <= benchmarks.MEMORY_LIMIT,
        "machine": timing.machine(),
    }
    if markdown is not None:
        with replacing(markdown) as temporary:
            temporary.write_text(_markdown(facts), encoding="utf-8")
    if as_json:
        print_json(facts)
    else:
        _print(facts)
        if markdown is not None:
            typer.echo(f"Table: {markdown}")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    seconds = (f"{row[name]:.2f}" for name in ("solve_s", "predict_s", "bare_s", "compile_s"))
    ratios = f"{row['ratio']:.1f}", f"{row['cpu_ratio']:.1f}"
    return row["limit"], row["activation"], *ratios, *seconds, f"{row['peak_bytes'] / 1024**3:.2f}"


def _sizes(row: dict[str, Any]) -> str:
    return (
        f"{row['points']} training points, {row['new']} new points, {row['features']} features, "
        f"depth {row['depth']}, float64, best of {row['repeat']}"
    )


def _verdict(facts: dict[str, Any]) -> str:
    state = "ok" if facts["within_limit"] else "OVER"
    return f"peak {facts['peak_bytes'] / 1024**3:.1f} GiB, limit {facts['limit_bytes'] / 1024**3:g} GiB: {state}"


def _print(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for index, column in enumerate(_HEADER):
        table.add_column(column, justify="left" if index < 2 else "right", style="bold" if column == "ratio" else "")
    for row in facts["rows"]:
        table.add_row(*_cells(row))
    console = Console(highlight=False)
    console.print(f"Lazy limits: {_sizes(facts['rows'][0])}", soft_wrap=True)
    console.print(table)
    console.print("ratio = (solve + predict) / bare matrix products and Cholesky factorisation, best seconds of each;")
    console.print("CPU ratio = the same in processor time, which a busy machine disturbs less")
    console.print(_verdict(facts))


def _markdown(facts: dict[str, Any]) -> str:
    host, first = facts["machine"], facts["rows"][0]
    sizes = " ".join(f"--{name} {first[name]}" for name in ("points", "new", "features", "depth", "repeat"))
    threads = f"OPENBLAS_NUM_THREADS={host['blas_threads']} " if host["blas_threads"] else ""
    lines = [
        "# The lazy limits against their matrix products",
        "",
        f"`{threads}adakern bench lazy {sizes}`",
        "",
        f"{_sizes(first)[0].upper()}{_sizes(first)[1:]}.",
        "**Ratio** is (solve + predict) divided by the bare work that no implementation avoids, timed with the same backend "
        "in the same process: X Xᵀ, X_new Xᵀ, one Cholesky factorisation of the kernel, and the product with the coefficients. "
        "**CPU ratio** is the same in processor time over all threads, which other programs on the machine disturb less: "
        "where the two differ much, the machine was busy. Columns solve to compile are seconds. "
        "Compilation, once per shape, is apart. Each row is a process of its own, and the peak is its resident memory, Python and JAX included.",
        "",
        "| " + " | ".join(_HEADER) + " |",
        "|" + "|".join(" --- " if index < 2 else " ---: " for index in range(len(_HEADER))) + "|",
        *("| " + " | ".join(_cells(row)) + " |" for row in facts["rows"]),
        "",
        f"Memory: {_verdict(facts)}.",
        "",
        f"Machine: {host['cpu']}, {host['cores']} cores, {host['backend']} backend; "
        f"adakern {host['adakern']}, jax {host['jax']}, numpy {host['numpy']}, python {host['python']}.",
    ]
    return "\n".join(lines) + "\n"
