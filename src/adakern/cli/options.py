"""Options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Quick = Annotated[bool, typer.Option("--quick", help="Small problems, for two cores.")]
Only = Annotated[list[str] | None, typer.Option(help="Only this case (repeat for several).")]
Setting = Annotated[str, typer.Option(help="Only settings whose name contains this.")]
Width = Annotated[int | None, typer.Option(min=2, help="Width of the networks.")]
Length = Annotated[float | None, typer.Option("--time", min=0, help="Theirs to train, in 1/decay.")]
Replicas = Annotated[int | None, typer.Option(min=2, help="dynamics: networks.")]
Cap = Annotated[float, typer.Option(min=1, help="Most seconds for what is raced against.")]
Runs = Annotated[Path | None, typer.Option(help="Keep trained networks in this folder, and take from it what it has.")]
Draw = Annotated[bool, typer.Option("--draw", help="Run nothing: tables and picture of --numbers.")]
Markdown = Annotated[Path | None, typer.Option(help="Also write the tables to this Markdown file.")]
Numbers = Annotated[
    Path | None, typer.Option(help="Keep the numbers in this .json file; what is run replaces what it holds.")
]
Picture = Annotated[Path | None, typer.Option(help="Also draw them into this .png, .svg or .pdf file.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
