"""Data files as the commands read them, with errors that name the options."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from adakern.solution import Solution

_USUAL = ("y", "target")  # columns that are targets without being named


def training(path: Path, target: list[str] | None) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and numeric targets."""
    from adakern.datasets import load_table

    X, y = load_table(path, target=_chosen(target))
    if y is None:
        raise ValueError(f"{path} has no targets; save them as an array 'y', or name their array with --target")
    if y.dtype.kind == "U":
        raise ValueError(
            f"the targets of {path} must be numbers, but they are words such as {str(y.flat[0])!r}; "
            "encode them as numbers, for two classes -1 and 1, for more one column of 0 and 1 per class"
        )
    return X, y


def columns(path: Path, target: list[str] | None) -> dict[str, list[str]]:
    """The names of a table's columns, for the solution to remember; none where the file has none."""
    from adakern.datasets.tables import column_names

    names = column_names(path, _chosen(target))
    return {} if names is None else {"features": names[0], "targets": names[1]}


def new(path: Path, target: list[str] | None, solution: Solution) -> tuple[np.ndarray, np.ndarray | None]:
    """Inputs in the order of the solution's columns, and targets if there are any; words are no targets to compare with."""
    return matching(path, target, int(solution.X[0].size), solution.stats.get("columns"))


def matching(
    path: Path, target: list[str] | None, features: int, named: dict[str, list[str]] | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """The same of so many features, whose columns and targets had these names if any."""
    from adakern.datasets import load_table

    chosen = _chosen(target)
    if named and path.suffix.lower() == ".csv":
        known = [name for name in named["targets"] if _has(path, [name])]
        fallback = _chosen(known) if len(known) == len(named["targets"]) else None
        X, y = load_table(path, target=chosen or fallback, features=named["features"])
    else:
        X, y = load_table(path, target=False if chosen is None and not _has(path, _USUAL) else chosen)
    if X[0].size != features:
        hint = "" if target else "; name the columns that are targets with --target"
        raise ValueError(f"{path} must have the solution's {features} features, but it has {X[0].size}{hint}")
    return X, None if y is None or y.dtype.kind == "U" else y


def _chosen(target: list[str] | None) -> str | list[str] | None:
    if not target:
        return None
    return target[0] if len(target) == 1 else target


def _has(path: Path, names: Iterable[str]) -> bool:
    """Whether a table has a column of one of these names; what is wrong with the file is for `load_table` to say."""
    if path.suffix.lower() != ".csv" or not path.is_file():
        return True
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            header = next(csv.reader(stream), [])
    except (csv.Error, UnicodeDecodeError):
        return True
    return any(name.strip() in names for name in header)
