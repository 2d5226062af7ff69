"""`adakern sweep`: one data file, several values of the richness, a folder of solutions."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adakern.cli import data, fit, options
from adakern.cli.failures import warn
from adakern.cli.output import print_json, show_progress
from adakern.errors import ConvergenceError

if TYPE_CHECKING:
    import numpy as np

    from adakern.limits import Limit
    from adakern.solution import Solution

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
    richness: Annotated[str, typer.Option(help="Values with commas between them; 0 is lazy.")] = "0,0.25,0.5,1,2",
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
    problems = [fit.build(name, depth, activation, decay, {**numbers, "richness": value}) for value in values(richness)]
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"--out must name a folder, but {out} is a file")
    X, y = data.training(file, target)
    settings = {"seed": seed, "precision": precision.value}
    how = {"particles": particles, "tolerance": tolerance, "steps": steps, "progress": show_progress(no_progress)}
    paths = [out / f"{problem.config()['richness']:g}.safetensors" for problem in problems]
    held = [_held(*pair, X, y, settings) for pair in zip(problems, paths, strict=True)]  # refused before work starts
    names = data.columns(file, target)
    new = None if test is None else _new(test, target, int(X[0].size), names)
    rows: list[dict[str, Any]] = []
    before: Solution | None = None
    for problem, path, found in zip(problems, paths, held, strict=True):
        solution = found if found is not None else _solved(problem, X, y, before, {**settings, **how}, keep)
        if found is None:
            out.mkdir(parents=True, exist_ok=True)
            if names:
                solution = replace(solution, stats={**solution.stats, "columns": names})
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
        found = [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"richness must be numbers with commas between them, but it is {text!r}") from None
    if len(set(found)) < len(found):
        raise ValueError(f"richness must have every value once, but it is {text!r}")
    return sorted(found)


def _held(problem: Limit, path: Path, X: np.ndarray, y: np.ndarray, settings: dict[str, Any]) -> Solution | None:
    """What an earlier run saved; something else under that name is not overwritten."""
    import numpy as np

    from adakern.loading import load
    from adakern.solution import Solution

    if not path.exists():
        return None
    found = load(path)
    same = (
        isinstance(found, Solution)
        and found.limit == problem
        and np.array_equal(found.X, X)
        and np.array_equal(found.y, y)
        and all(found.stats.get(name) == value for name, value in settings.items())
    )
    if not same:
        raise FileExistsError(f"{path} is not of this sweep (its data, numbers or seed differ); name another folder")
    assert isinstance(found, Solution)
    return found if found.converged else None


def _solved(
    problem: Limit, X: np.ndarray, y: np.ndarray, before: Solution | None, how: dict[str, Any], keep: bool
) -> Solution:
    """From the neurons of the richness before, where there are any."""
    from adakern.solving import solve

    closed = problem.kind == "ANBK" and problem.config()["richness"] == 0
    given = {name: value for name, value in how.items() if not (closed and name in ("particles", "tolerance", "steps"))}
    start = None if before is None or before.limit.config()["richness"] == 0 else before
    solution = solve(problem, X, y, throw=False, init=start, **given)
    if not solution.converged:
        message = f"richness {problem.config()['richness']:g} did not converge: {solution.status}"
        if not keep:
            raise ConvergenceError(f"{message}; what is done is in the folder (--keep saves this one as it is)")
        warn(message)
    return solution


def _new(
    path: Path, target: list[str] | None, features: int, names: dict[str, list[str]]
) -> tuple[np.ndarray, np.ndarray]:
    X, y = data.matching(path, target, features, names)
    if y is None:
        raise ValueError(f"{path} has no targets, and without them there are no test losses")
    return X, y


def _row(solution: Solution, path: Path, kept: bool, new: tuple[np.ndarray, np.ndarray] | None) -> dict[str, Any]:
    from adakern.metrics import alignment, mean_squared_error

    y = solution.y.reshape(len(solution.X), -1)
    return {
        "richness": solution.limit.config()["richness"],
        "train_loss": mean_squared_error(solution.y, solution.fitted),
        "test_loss": None if new is None else mean_squared_error(new[1], solution.predict(new[0])),
        "alignment": float(alignment(solution.kernels[-1], y @ y.T)) if solution.kernels[-1].any() else None,
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
        table.add_row(f"{row['richness']:g}", *(f"{loss:.4g}" for loss in losses), aligned, seconds, status)
    console = Console(highlight=False)
    console.print(table)
    console.print(f"{len(rows)} solutions in {out}; a page of them: adakern report {out}", markup=False)
