"""The commands wired into one program."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from adakern._version import __version__
from adakern.cli import (
    bench,
    bench_adaptive,
    bench_cnn,
    bench_deep_dynamics,
    bench_exact,
    bench_flow,
    bench_networks,
    bench_truth,
    demo,
    figure,
    fit,
    info,
    predict,
    report,
    sweep,
)
from adakern.cli.failures import FAILED, INTERRUPTED, one_line
from adakern.cli.output import print_json

# Command-line mistakes; some versions of typer carry their own copy of click, so it is found through what both export.
_Misuse: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")

app = typer.Typer(
    name="adakern",
    help="Infinitely wide neural networks that learn features, as kernel machines.",
    epilog="Example: adakern demo",
    add_completion=False,
    pretty_exceptions_enable=False,  # a bug keeps Python's own traceback
)
for module, name in (
    (demo, "demo"),
    (fit, "fit"),
    (predict, "predict"),
    (sweep, "sweep"),
    (info, "info"),
    (figure, "figure"),
    (report, "report"),
):
    app.command(name, epilog=f"Example: {module.EXAMPLE}")(one_line(module.run))

benches = typer.Typer(help="Time the library on this machine, and check it.", no_args_is_help=True)
benches.command("lazy", epilog=f"Example: {bench.EXAMPLE}")(one_line(bench.lazy))
for module, name in (
    (bench_networks, "networks"),
    (bench_truth, "truth"),
    (bench_adaptive, "adaptive"),
    (bench_exact, "exact"),
    (bench_flow, "flow"),
    (bench_cnn, "cnn"),
    (bench_deep_dynamics, "deep-dynamics"),
):
    benches.command(name, epilog=f"Example: {module.EXAMPLE}")(one_line(module.run))
app.add_typer(benches, name="bench", epilog=f"Example: {bench.EXAMPLE}")


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"adakern {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """The program `adakern`: a misspelt option ends it with one line as well, like every other mistake."""
    try:
        code = app(standalone_mode=False)
    except KeyboardInterrupt:  # outside every command: while the arguments are read
        sys.exit(INTERRUPTED)
    except _Misuse as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(error.format_message())
            sys.exit(0)
        message = f"{' '.join(error.format_message().split())} (see adakern --help)"
        typer.echo(f"adakern: {message}", err=True)
        if "--json" in sys.argv:
            print_json({"error": message})
        sys.exit(FAILED)
    if (
        code == INTERRUPTED
    ):  # work may still be under way in the compiled code's threads, and must not outlive its interpreter
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)
