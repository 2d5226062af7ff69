"""`adakern bench exact`: closed forms, perturbation theory, the dual and its certificate against what is sampled."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adakern.cli import sheets

EXAMPLE = "adakern bench exact --quick --only particles"


def run(
    quick: Annotated[bool, typer.Option("--quick", help="Small problems: minutes on two cores.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="Only this check (repeat for several).")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Also write the table to this Markdown file.")] = None,
    numbers: Annotated[
        Path | None, typer.Option(help="Keep the numbers in this .json file; checks that it holds are not run again.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Also draw the checks into this .png, .svg or .pdf file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check what is exact about the aNBK against networks and particles, and time it."""
    from adakern.benchmarks import exact, exact_picture

    title = "What is exact about the adaptive kernel, against what is sampled"
    sheet = sheets.Sheet("adakern bench exact", title, exact.CHECKS, exact_picture.draw)
    sheets.run(sheet, sheets.Request(quick, only, markdown, numbers, picture, as_json))
