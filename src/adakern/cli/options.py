"""Options that several commands take."""

from __future__ import annotations

from enum import StrEnum
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
Runs = Annotated[
    Path | None,
    typer.Option(help="Keep trained networks and interrupted solves in this folder, and go on from what it has."),
]
Draw = Annotated[bool, typer.Option("--draw", help="Run nothing: tables and picture of --numbers.")]
Markdown = Annotated[Path | None, typer.Option(help="Also write the tables to this Markdown file.")]
Numbers = Annotated[
    Path | None, typer.Option(help="Keep the numbers in this .json file; what is run replaces what it holds.")
]
Picture = Annotated[Path | None, typer.Option(help="Also draw them into this .png, .svg or .pdf file.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="No progress bar.")]


class Precision(StrEnum):
    float64 = "float64"
    float32 = "float32"


# Of a limit, its solver and its data:
Target = Annotated[
    list[str] | None, typer.Option(help="Target column (repeat for several); by default 'y' or 'target'.")
]
Depth = Annotated[int, typer.Option(help="Hidden layers.")]
Activation = Annotated[str, typer.Option(help="linear, relu, erf, tanh, gelu or sine.")]
Beta = Annotated[float | None, typer.Option(help="Inverse temperature, not for ntk and antk; default 50.")]
Decay = Annotated[str, typer.Option(help="Prior precision, or weight decay: a number, or depth + 1 of them, as 1,1,2.")]
Loss = Annotated[
    str | None, typer.Option(help="anbk, antk, vga: squared, logistic (targets -1/+1) or softmax; default squared.")
]
Particles = Annotated[
    int | None,
    typer.Option(
        help="Neurons per layer. anbk: default 2048, or 8 per point if that is more; antk: to start from, in two halves, default 2048."
    ),
]
Tolerance = Annotated[
    float | None,
    typer.Option(
        help="anbk: relative error of kernels and outputs, default 0.02; antk: duality gap, or relative violation of stationarity, default 1e-4; vga: the latter, 1e-8."
    ),
]
Steps = Annotated[
    int | None,
    typer.Option(help="Most gradient evaluations, anbk: default 20000, antk: 40000; vga: most Newton steps."),
]
FloatingPoint = Annotated[Precision, typer.Option(help="Floating-point precision.")]
Seed = Annotated[int, typer.Option(help="Of every random number.")]
