"""`adakern predict`: a solution and new data in, predictions out."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adakern.cli import data
from adakern.cli.output import check_target, print_json, print_pairs, replacing

if TYPE_CHECKING:
    import numpy as np

EXAMPLE = "adakern predict run.safetensors test.csv --out predictions.csv"


def run(
    solution: Annotated[Path, typer.Argument(help="A file that 'adakern fit' wrote.")],
    file: Annotated[Path, typer.Argument(metavar="DATA", help="New points, .csv or .npz.")],
    out: Annotated[Path, typer.Option(help="The .csv or .npz file of predictions to write.")],
    target: Annotated[
        list[str] | None, typer.Option(help="Target column to compare with (repeat for several), if any.")
    ] = None,
    std: Annotated[bool, typer.Option("--std", help="Add the Monte-Carlo standard error of f.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Predict new points with a saved solution; an NNGP adds its variance."""
    from adakern.limits import NNGP
    from adakern.solution import load

    if out.suffix.lower() not in (".csv", ".npz"):
        raise ValueError(f"--out must name a .csv or a .npz file, but it is {str(out)!r}")
    check_target(out, solution, file)
    solved = load(solution)
    X, y = data.new(file, target, solved)
    columns: dict[str, np.ndarray] = {}
    if std:
        columns["f"], columns["std"] = solved.predict(X, return_std=True)
    else:
        columns["f"] = solved.predict(X)
    if isinstance(solved.limit, NNGP):
        columns["variance"] = solved.variance(X)
    facts = {"file": str(out), "points": len(X), "limit": solved.limit.kind, **_scores(file, y, columns)}
    _write(out, columns)
    if as_json:
        print_json(facts)
    else:
        print_pairs({name: value for name, value in facts.items() if value is not None}, "Predicted")


def _scores(file: Path, y: np.ndarray | None, columns: dict[str, np.ndarray]) -> dict[str, float | None]:
    """The test loss (bias² + variance for an NNGP) if there are targets, the accuracy if they are -1 and 1."""
    import numpy as np

    from adakern.metrics import mean_squared_error

    if y is None:
        return {"test_loss": None, "accuracy": None}
    f = columns["f"]
    if y.size != f.size:
        outputs = [1 if values.ndim == 1 else values.shape[1] for values in (f, y)]
        raise ValueError(f"{file} must have the solution's {outputs[0]} outputs as targets, but it has {outputs[1]}")
    y = y.reshape(f.shape)
    signs = f.size == len(f) and np.isin(y, (-1.0, 1.0)).all()
    return {
        "test_loss": mean_squared_error(y, f, columns.get("variance", 0.0)),
        "accuracy": float(np.mean(np.sign(f) == y)) if signs else None,
    }


def _write(path: Path, columns: dict[str, np.ndarray]) -> None:
    import numpy as np

    with replacing(path) as temporary:
        if path.suffix.lower() == ".npz":
            with temporary.open("wb") as stream:
                np.savez(stream, allow_pickle=False, **columns)  # type: ignore[arg-type]  # names of arrays
            return
        table = np.column_stack(list(columns.values()))
        header = [name for key, values in columns.items() for name in _names(key, values)]
        with temporary.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(header)
            writer.writerows(table.tolist())  # Python writes every digit that matters


def _names(key: str, values: np.ndarray) -> list[str]:
    return [key] if values.ndim == 1 else [f"{key}{i}" for i in range(values.shape[1])]
