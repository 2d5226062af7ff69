"""`adakern sweep`: one data file, several values of the richness, a folder of solutions."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from adakern.cli import data, fit, options
from adakern.cli.failures import warn
from adakern.cli.output import check_folder, print_json, show_progress
from adakern.errors import ConvergenceError

if TYPE_CHECKING:
    import numpy as np

    from adakern.limits import Limit
    from adakern.solution import Solution

_DEFAULT = "0,0.25,0.5,1,2"
EXAMPLE = "adakern sweep train.csv --richness 0,0.5,1,2 --out sweep"


class Adaptive(StrEnum):
    anbk = "anbk"
    antk = "antk"
    vga = "vga"


def run(
    file: Annotated[Path, typer.Argument(metavar="DATA", help="A .csv file with a header row, or a .npz file.")],
    out: Annotated[
        Path,
        typer.Option(help="The folder of solutions, one file for each richness; what it has of this sweep is kept."),
    ],
    richness: Annotated[
        list[str] | None,
        typer.Option(help="Values with commas between them; 0 is lazy; default 0,0.25,0.5,1,2."),
    ] = None,
    target: options.Target = None,
    limit: Annotated[Adaptive, typer.Option(case_sensitive=False, help="The limit to solve.")] = Adaptive.anbk,
    depth: options.Depth = 1,
    activation: options.Activation = "relu",
    beta: options.Beta = None,
    decay: options.Decay = "1",
    loss: options.Loss = None,
    particles: options.Particles = None,
    tolerance: options.Tolerance = None,
    steps: options.Steps = None,
    test: Annotated[Path | None, typer.Option(help="New points with targets, .csv or .npz, for test losses.")] = None,
    precision: options.FloatingPoint = options.Precision.float64,
    seed: options.Seed = 0,
    keep: Annotated[bool, typer.Option("--keep", help="Save answers that did not converge, too.")] = False,
    as_json: options.Json = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Solve an adaptive limit on a data file for several values of the richness, from lazy to rich, and save each solution."""
    numbers = {"beta": beta, "loss": loss}
    name = fit.LimitName(limit.value)
    problems = [
        fit.build(name, depth, activation, decay, {**numbers, "richness": value})
        for value in values(",".join(richness or [_DEFAULT]))
    ]
    check_folder(out)
    X, y = data.training(file, target)
    asked = {"particles": particles, "tolerance": tolerance, "steps": steps}
    sought = _Sought(X, y, {"seed": seed, "precision": precision.value}, asked)
    paths = [out / f"{_word(problem.config()['richness'])}.safetensors" for problem in problems]
    names = data.columns(file, target)
    new = None if test is None else _new(test, target, X, y, names)
    for problem, path in zip(problems, paths, strict=True):
        _held(problem, path, sought)  # what is of something else is refused before work starts
    rows: list[dict[str, Any]] = []
    before: Solution | None = None
    for problem, path in zip(problems, paths, strict=True):
        found = _held(problem, path, sought)
        solution = found
        if solution is None:
            solution = _solved(problem, sought, before, keep, show_progress(no_progress))
            extra = {"asked": asked, **({"columns": names} if names else {})}
            solution = replace(solution, stats={**solution.stats, **extra})
            out.mkdir(parents=True, exist_ok=True)
            solution.save(path)
        before = solution if problem.kind == "ANBK" else None
        rows.append(_row(solution, path, found is not None, new))
    if as_json:
        print_json({"folder": str(out), "limit": problems[0].kind, "solutions": rows})
    else:
        _print(rows, out)


def values(text: str) -> list[float]:
    """`0,0.5,1` in rising order, each once."""
    try:
        found = [float(part) + 0.0 for part in text.split(",")]  # zero has no sign
    except ValueError:
        raise ValueError(f"richness must be numbers with commas between them, but it is {text!r}") from None
    if len(set(found)) < len(found):
        raise ValueError(f"richness must have every value once, but it is {text!r}")
    return sorted(found)


def _word(richness: float) -> str:
    """With every digit that tells it from others."""
    return repr(float(richness)).removesuffix(".0")


class _Sought(NamedTuple):
    """Data, what a solution says of itself, and what the solver was asked for."""

    X: np.ndarray
    y: np.ndarray
    settings: dict[str, Any]
    asked: dict[str, Any]


def _held(problem: Limit, path: Path, sought: _Sought) -> Solution | None:
    """What an earlier run saved; something else under that name is not overwritten."""
    import numpy as np

    from adakern.loading import load
    from adakern.solution import Solution

    if not path.exists():
        return None
    if not path.is_file():
        raise IsADirectoryError(f"a solution is to be saved as {path}, but that is a folder")
    found = load(path)
    if not (
        isinstance(found, Solution)
        and found.limit == problem
        and np.array_equal(found.X, sought.X)
        and np.array_equal(found.y, sought.y)
        and all(found.stats.get(name) == value for name, value in sought.settings.items())
        and found.stats.get("asked", sought.asked) == sought.asked
    ):
        raise FileExistsError(
            f"{path} is not of this sweep (its data, numbers, seed, particles, tolerance or steps differ); name another folder"
        )
    return found if found.converged else None


def _solved(problem: Limit, sought: _Sought, before: Solution | None, keep: bool, progress: bool) -> Solution:
    """From the neurons of the richness before, where there are any."""
    from adakern.solving import solve

    closed = problem.kind == "ANBK" and problem.config()["richness"] == 0
    start = None if before is None or before.limit.config()["richness"] == 0 else before
    how: dict[str, Any] = {**sought.settings, **({} if closed else sought.asked), "progress": progress}
    solution = solve(problem, sought.X, sought.y, throw=False, init=start, **how)
    if not solution.converged:
        message = f"richness {_word(problem.config()['richness'])} did not converge: {solution.status}"
        if not keep:
            raise ConvergenceError(f"{message}; richer ones were not tried (--keep saves it as it is and goes on)")
        warn(message)
    return solution


def _new(
    path: Path, target: list[str] | None, X: np.ndarray, y: np.ndarray, names: dict[str, list[str]]
) -> tuple[np.ndarray, np.ndarray]:
    new, known = data.matching(path, target, int(X[0].size), names)
    if known is None:
        raise ValueError(f"{path} has no targets that are numbers, and without them there are no test losses")
    if known.size * len(X) != y.size * len(new):
        raise ValueError(f"{path} must have {y.size // len(X)} targets a point, but it has {known.size // len(new)}")
    return new, known.reshape(len(new), *y.shape[1:])


def _row(solution: Solution, path: Path, kept: bool, new: tuple[np.ndarray, np.ndarray] | None) -> dict[str, Any]:
    from adakern.metrics import alignment, mean_squared_error

    y = solution.y.reshape(len(solution.X), -1)
    return {
        "richness": solution.limit.config()["richness"],
        "train_loss": mean_squared_error(solution.y, solution.fitted),
        "test_loss": None if new is None else mean_squared_error(new[1], solution.predict(new[0])),
        "alignment": float(alignment(solution.kernels[-1], y @ y.T))
        if y.any() and solution.kernels[-1].any()
        else None,
        "residual": solution.residual,
        "certificate": solution.certificate,
        "converged": solution.converged,
        "status": solution.status,
        "seconds": solution.stats.get("seconds"),
        "kept": kept,
        "file": str(path),
    }


def _print(rows: list[dict[str, Any]], out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    tested = any(row["test_loss"] is not None for row in rows)
    table = Table()
    for column in ("richness", "train loss", *(["test loss"] if tested else []), "label alignment", "seconds"):
        table.add_column(column, justify="right")
    table.add_column("status", overflow="fold")
    for row in rows:
        losses = [row["train_loss"], *([row["test_loss"]] if tested else [])]
        aligned = "–" if row["alignment"] is None else f"{row['alignment']:.3f}"
        seconds = "kept" if row["kept"] else f"{row['seconds']:.1f}"
        status = row["status"] if row["converged"] else f"NOT converged: {row['status']}"
        table.add_row(_word(row["richness"]), *(f"{loss:.4g}" for loss in losses), aligned, seconds, status)
    console = Console(highlight=False)
    console.print(table)
    count = "one solution" if len(rows) == 1 else f"{len(rows)} solutions"
    console.print(f"{count} in {out}; a page of them: adakern report {out}", markup=False)
