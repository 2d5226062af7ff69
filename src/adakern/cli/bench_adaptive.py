"""`adakern bench adaptive`: the aNBK solver against Langevin-sampled wide networks, closed forms and limits, and its speed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from adakern.cli import sheets

EXAMPLE = "adakern bench adaptive --quick --only two-layer"

_HEADERS = {
    "networks": (
        "setting",
        "P",
        "N",
        "layer",
        "alignment",
        "difference",
        "outputs",
        "test rms",
        "theory s",
        "network s",
        "bar",
        "holds?",
    ),
    "known": ("setting", "measured", "error", "expected", "sigmas", "holds?"),
    "range": ("setting", "seconds", "gradients", "step", "error", "residual", "holds?", "says"),
    "speed": ("setting", "first s", "solver s", "solver reached", "other s", "other reached", "ratio", "note"),
}
_WIDE = ("P", "N", "theory s", "network s", "bar", "first s", "solver reached", "other reached")  # for the page alone
_TEXT = ("setting", "bar", "holds?", "solver reached", "other reached", "note", "says")  # columns aligned to the left
_LEGEND = (
    "Alignment is the cosine between the kernels of theory and network, layer by layer; difference their relative Frobenius distance ± the joint standard error of the two; "
    "outputs the largest difference at the training points; test rms that of the predictions at 600 test points ± what the standard errors of the two amount to. "
    "Seconds of theory and of network include compilation, those of the table of speeds do not (but `first s` does). Theory is in float64, networks in float32."
)


def run(
    quick: Annotated[bool, typer.Option("--quick", help="Small networks, for two cores.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="Only this case (repeat for several).")] = None,
    setting: Annotated[str, typer.Option(help="Only settings whose name contains this.")] = "",
    width: Annotated[int | None, typer.Option(min=1, help="Width of the networks.")] = None,
    length: Annotated[float | None, typer.Option("--time", min=2, help="Their time after burn-in.")] = None,
    replicas: Annotated[int | None, typer.Option(min=1, help="Networks side by side.")] = None,
    tolerance: Annotated[float | None, typer.Option(min=1e-4, help="Of the solver.")] = None,
    cap: Annotated[float, typer.Option(min=1, help="speed: most seconds for a network.")] = 600.0,
    budget: Annotated[float, typer.Option(min=1, help="speed: seconds for the published algorithm.")] = 120.0,
    draw: Annotated[bool, typer.Option("--draw", help="Run nothing: tables and picture of --numbers.")] = False,
    markdown: Annotated[Path | None, typer.Option(help="Also write the tables to this Markdown file.")] = None,
    numbers: Annotated[
        Path | None, typer.Option(help="Keep the numbers in this .json file; what is run replaces what it holds.")
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Also draw them into this .png, .svg or .pdf file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check the aNBK solver against sampled networks, closed forms and limits, and time it; full size wants a GPU."""
    from adakern.benchmarks import adaptive

    book = sheets.Book(
        "adakern bench adaptive",
        "The adaptive kernel against wide networks",
        _LEGEND,
        "These are quick runs, of small networks: judged by their error bars alone, which do not hold what a finite width changes, of order 1/N.",
        "alignment deficits and speed ratios",
        adaptive.CASES,
        lambda case: _HEADERS[adaptive.CASES[case].table],
        lambda case, row: _cells(row, adaptive.CASES[case].table),
        _draw,
        _TEXT,
        _WIDE,
    )
    options = adaptive.Options(quick, width, length, replicas, tolerance, cap, budget)
    sheets.run_book(book, sheets.Request(quick, only, markdown, numbers, picture, as_json), options, setting, draw)


def _draw(rows: dict[str, list[dict[str, Any]]]) -> Any:
    from adakern.benchmarks import adaptive, adaptive_picture

    tables = {name: adaptive.CASES[name].table for name in rows}
    compared = {name: held for name, held in rows.items() if tables[name] == "networks"}
    races = [row for name, held in rows.items() if tables[name] == "speed" for row in held]
    return adaptive_picture.draw(compared, races)


def _cells(row: dict[str, Any], table: str) -> tuple[str, ...]:
    holds = {True: "yes", False: "NO", None: ""}[row["ok"]]
    if table == "known":
        known, error = row["expected"] is not None, row["error"]
        sigmas = f"{row['sigmas']:.1f}" if known and row["sigmas"] is not None else ""
        expected = f"{row['expected']:.5g}" if known else ""
        return row["setting"], f"{row['measured']:.5g}", f"{error:.2g}", expected, sigmas, holds
    if table == "range":
        numbers = (row["step"], row["error"], row["residual"])
        told = ("" if value is None else f"{value:.2g}" for value in numbers)
        return row["setting"], f"{row['seconds']:.0f}", str(row["gradients"]), *told, holds, row["said"]
    if table == "speed":
        ratio = ("> " if row["bound"] else "") + f"{row['ratio']:.3g}"
        seconds = (
            f"{row[name]:.0f}" if row[name] >= 100 else f"{row[name]:.3g}"
            for name in ("first_s", "theory_s", "other_s")
        )
        first, theory, other = seconds
        return row["setting"], first, theory, row["theory"], other, row["other"], ratio, row["note"]
    aligned = f"{row['alignment']:.5f}" + (f" (published {row['published']:g})" if row["published"] else "")
    test = "" if row["test"] is None else f"{row['test']:.2g} ± {row['test_error']:.2g}"
    return (
        row["setting"] + (f" ({row['note']})" if row["note"] else ""),
        str(row["points"]),
        str(row["width"]),
        str(row["layer"]),
        aligned,
        f"{100 * row['difference']:.2f} ± {100 * row['joint']:.2f} %",
        "" if row["outputs"] is None else f"{row['outputs']:.2g}",
        test,
        f"{row['theory_s']:.0f}",
        f"{row['network_s']:.0f}",
        row["bar"],
        holds,
    )
