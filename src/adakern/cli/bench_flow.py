"""`adakern bench flow`: gradient flow with weight decay, against closed forms, wide networks, certificates and other ways."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adakern.cli import sheets

EXAMPLE = "adakern bench flow --quick --only one-point"


def run(
    quick: Annotated[bool, typer.Option("--quick", help="Small problems, for two cores.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="Only this case (repeat for several).")] = None,
    setting: Annotated[str, typer.Option(help="Only settings whose name contains this.")] = "",
    width: Annotated[int | None, typer.Option(min=2, help="Width of the networks.")] = None,
    length: Annotated[float | None, typer.Option("--time", min=0, help="Theirs to train, in 1/decay.")] = None,
    replicas: Annotated[int | None, typer.Option(min=2, help="dynamics: networks.")] = None,
    cap: Annotated[float, typer.Option(min=1, help="Most seconds for what is raced against.")] = 120.0,
    runs: Annotated[
        Path | None, typer.Option(help="networks: keep them in this folder, and take from it what it has.")
    ] = None,
    draw: Annotated[bool, typer.Option("--draw", help="Run nothing: tables and picture of --numbers.")] = False,
    markdown: Annotated[Path | None, typer.Option(help="Also write the tables to this Markdown file.")] = None,
    numbers: Annotated[
        Path | None, typer.Option(help="Keep the numbers in this .json file; what is run replaces what it holds.")
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Also draw them into this .png, .svg or .pdf file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check where gradient flow with weight decay ends, and how it gets there; networks at full size want a GPU."""
    from adakern.benchmarks import flow, flow_picture
    from adakern.benchmarks.flow_rows import Options

    book = sheets.row_book("adakern bench flow", "Gradient flow with weight decay", flow.CASES, flow_picture.draw)
    asked = sheets.Request(quick, only, markdown, numbers, picture, as_json)
    sheets.run_book(book, asked, Options(quick, width, length or None, replicas, cap, runs), setting, draw)
