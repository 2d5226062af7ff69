"""`adakern bench truth`: finite-width networks against closed forms, quadrature, lazy limits and other programs' networks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adakern.cli import sheets

EXAMPLE = "adakern bench truth --quick --only single-point"


def run(
    quick: Annotated[bool, typer.Option("--quick", help="Small networks: minutes on two cores.")] = False,
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
    """Check Langevin sampling and gradient flow against what is known without them; full size wants a GPU."""
    from adakern.benchmarks import picture as drawing
    from adakern.benchmarks import truth

    title = "Networks of finite width against what is known without them"
    sheet = sheets.Sheet("adakern bench truth", title, truth.CHECKS, drawing.truth)
    sheets.run(sheet, sheets.Request(quick, only, markdown, numbers, picture, as_json))
