"""`adakern fit`: a data file in, a solution file out."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adakern.cli import data, options
from adakern.cli.describe import describe, labelled
from adakern.cli.failures import warn
from adakern.cli.output import check_target, print_json, print_pairs, show_progress
from adakern.errors import ConvergenceError

if TYPE_CHECKING:
    from adakern.limits import Limit

EXAMPLE = "adakern fit train.csv --limit nngp --depth 2 --out run.safetensors"


class LimitName(StrEnum):
    anbk = "anbk"
    antk = "antk"
    nngp = "nngp"
    nngpk = "nngpk"
    ntk = "ntk"
    vga = "vga"


_MEANINGFUL = {
    LimitName.anbk: ("richness", "beta", "loss"),
    LimitName.antk: ("richness", "loss"),
    LimitName.nngp: ("beta",),
    LimitName.nngpk: ("beta",),
    LimitName.ntk: ("ridge",),
    LimitName.vga: ("richness", "beta", "loss"),
}


def run(
    file: Annotated[Path, typer.Argument(metavar="DATA", help="A .csv file with a header row, or a .npz file.")],
    out: Annotated[Path, typer.Option(help="The solution file to write.")],
    target: options.Target = None,
    limit: Annotated[LimitName, typer.Option(case_sensitive=False, help="The limit to solve.")] = LimitName.anbk,
    depth: options.Depth = 1,
    activation: options.Activation = "relu",
    richness: Annotated[float | None, typer.Option(help="anbk, antk, vga: 0 is lazy; default 1.")] = None,
    beta: options.Beta = None,
    decay: options.Decay = "1",
    ridge: Annotated[float | None, typer.Option(help="ntk: added to the kernel's diagonal; default 0.")] = None,
    loss: options.Loss = None,
    solver: Annotated[
        str | None,
        typer.Option(
            help="anbk: particles, dual, linear, or minmax, as published; by default what is exact, else particles."
        ),
    ] = None,
    particles: options.Particles = None,
    tolerance: options.Tolerance = None,
    steps: options.Steps = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="anbk, antk: a file to write on the way, and to go on from if it exists.")
    ] = None,
    precision: options.FloatingPoint = options.Precision.float64,
    seed: options.Seed = 0,
    keep: Annotated[bool, typer.Option("--keep", help="Save an answer that did not converge, too.")] = False,
    as_json: options.Json = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Solve a limit on a data file and save the solution."""
    from adakern.solving import solve

    problem = build(limit, depth, activation, decay, {"richness": richness, "beta": beta, "ridge": ridge, "loss": loss})
    check_target(out, file)
    X, y = data.training(file, target)
    solution = solve(
        problem,
        X,
        y,
        seed=seed,
        precision=precision.value,
        particles=particles,
        tolerance=tolerance,
        steps=steps,
        solver=solver,
        checkpoint=checkpoint,
        progress=show_progress(no_progress),
        throw=False,
    )
    if not solution.converged:
        message = f"{problem.kind} did not converge: {solution.status}"
        if not keep:
            raise ConvergenceError(f"{message}; nothing was saved (--keep saves it as it is)")
        warn(message)
    names = data.columns(file, target)
    if names:
        solution = replace(solution, stats={**solution.stats, "columns": names})
    solution.save(out)
    facts = describe(solution, out)
    if as_json:
        print_json(facts)
    else:
        print_pairs(labelled(facts), "Solved")


def build(name: LimitName, depth: int, activation: str, decay: str, numbers: dict[str, Any]) -> Limit:
    """The limit that the options describe; one without a meaning for it is refused rather than ignored."""
    from adakern import limits
    from adakern.networks import MLP

    given = {key: value for key, value in numbers.items() if value is not None}
    for key in given:
        if key not in _MEANINGFUL[name]:
            raise ValueError(f"--{key} has no meaning for {name.value}; leave it out")
    kinds: dict[str, Any] = {kind.kind.lower(): kind for kind in limits.ALL}
    return kinds[name.value](MLP(depth, activation), decay=decays(decay), **given)  # type: ignore[arg-type]  # a name


def decays(text: str) -> float | tuple[float, ...]:
    """`1` is one number for all layers, `1,1,2` one for each."""
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"decay must be a number, or several with commas between them, but it is {text!r}") from None
    return values if len(values) > 1 else values[0]
