"""The user's own data: .npz files of arrays and .csv files with a header row."""

from __future__ import annotations

import csv
import math
import os
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adakern import checks
from adakern.errors import FileFormatError

_TARGET_NAMES = ("y", "target")

Target = str | Sequence[str] | bool | None


def load_table(
    path: str | os.PathLike[str], *, target: Target = None, features: Sequence[str] | None = None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Read inputs X and targets y from the user's own file.

    Args:
        path: a `.npz` file with an array `X` `(points, features)` or `(points, height, width, channels)` and, if
            there are targets, an array `y`; or a `.csv` file, comma-separated, whose first row names the columns.
        target: what the targets are called. In a `.csv` file the name of a column, or a list of names; by default
            the column `y` or `target`. In a `.npz` file the name of the array, by default `y`, if there is one.
            False: there are none to read (a column or array `y` or `target` is left out).
        features: `.csv` only: the columns that make X, in this order; by default all but the targets. Columns that are neither are left out, and without
            a `target` a column `y` or `target` that is no feature is the target, if there is one.

    Returns:
        `(X, y)`: X float64; y float64 `(points,)`, or `(points, outputs)` for a list of columns; an array of str
        where the targets are words (class labels); None where there are none.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path must be a path to a .npz or .csv file, but it is {path!r}")
    file = Path(path)
    if file.suffix.lower() not in (".npz", ".csv"):
        raise ValueError(f"path must name a .npz or a .csv file, but it is {str(file)!r}")
    if not file.exists():
        raise FileNotFoundError(f"path must name an existing file, but there is no {str(file)!r}")
    if not file.is_file():
        raise ValueError(f"path must name a file, but {str(file)!r} is none")
    _check_target(target)
    return _load_npz(file, target) if file.suffix.lower() == ".npz" else _load_csv(file, target, features)


def _check_target(target: Target) -> None:
    if target is None or target is False or isinstance(target, str):
        return
    if not isinstance(target, (list, tuple)) or not all(isinstance(name, str) for name in target):
        raise TypeError(f"target must be a name, a list of names, None or False, but it is {target!r}")
    if not target or len(set(target)) < len(target):
        raise ValueError(f"target must list one or more different names, but it is {target!r}")


def _load_npz(file: Path, target: Target) -> tuple[np.ndarray, np.ndarray | None]:
    arrays = _read_npz(file)
    if "X" not in arrays:
        raise ValueError(f"{file} must hold an array 'X', but it holds {_listing(arrays)}")
    X = checks.inputs(f"X in {file}", arrays["X"], ndim=4 if arrays["X"].ndim == 4 else 2)
    if target is False or (target is None and "y" not in arrays):
        return X, None
    name = "y" if target is None else target
    if not isinstance(name, str):
        raise TypeError(f"target must be the name of one array for a .npz file, but it is {target!r}")
    if name not in arrays or name == "X":
        raise ValueError(f"target must name an array of {file} other than 'X' ({_listing(arrays)}), but it is {name!r}")
    y = arrays[name]
    if y.dtype.kind != "U":
        return X, checks.targets(f"{name} in {file}", y, len(X))
    if y.shape != (len(X),):
        raise ValueError(f"{name} in {file} must have one label per point, shape ({len(X)},), but it has {y.shape}")
    return X, y


def _read_npz(file: Path) -> dict[str, np.ndarray]:
    try:
        loaded: Any = np.load(file, allow_pickle=False)
        if isinstance(loaded, np.lib.npyio.NpzFile):
            with loaded:
                return {name: np.asarray(loaded[name]) for name in loaded.files}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, KeyError, NotImplementedError) as error:
        raise FileFormatError(f"{file} is truncated or no .npz file of plain arrays: {error}") from error
    raise FileFormatError(f"{file} is no .npz file: it holds a single array, as a .npy file does")


def column_names(path: str | os.PathLike[str], target: Target = None) -> tuple[list[str], list[str]] | None:
    """Names of the feature and the target columns that `load_table` reads from a `.csv` file; None for other files."""
    file = Path(path)
    if file.suffix.lower() != ".csv":
        return None
    header, _, _ = _read_csv(file)
    chosen, dropped = _target_columns(file, header, target)
    names = [name for i, name in enumerate(header) if i not in chosen and i not in dropped]
    return names, [header[i] for i in chosen]


def _load_csv(
    file: Path, target: Target, features: Sequence[str] | None = None
) -> tuple[np.ndarray, np.ndarray | None]:
    header, rows, lines = _read_csv(file)
    if features is None:
        chosen, dropped = _target_columns(file, header, target)
        columns = [i for i in range(len(header)) if i not in chosen and i not in dropped]
    else:
        missing = [name for name in features if name not in header]
        if missing:
            raise ValueError(
                f"{file} must have the feature columns {_listing(features)}, but it lacks {_listing(missing)}"
            )
        columns = [header.index(name) for name in features]
        usual = [name for name in _TARGET_NAMES if name in header and name not in features]
        default: Target = usual[0] if len(usual) == 1 else False
        chosen, _ = _target_columns(file, header, default if target is None else target)
    if not columns:
        raise ValueError(f"{file} must have at least one column besides the targets, but it has {_listing(header)}")
    X = _numbers(file, header, rows, lines, columns)
    if not chosen:
        return X, None
    y = _targets(file, header, rows, lines, chosen)
    return X, y[:, 0] if target is None or isinstance(target, str) else y


def _read_csv(file: Path) -> tuple[list[str], list[list[str]], list[int]]:
    """The column names, the cells of each data row, and the line on which each of those rows ends."""
    rows, lines = [], []
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, strict=True)
            for row in reader:
                if any(cell.strip() for cell in row) or len(row) > 1:
                    rows.append([cell.strip() for cell in row])
                    lines.append(reader.line_num)
    except (csv.Error, UnicodeDecodeError) as error:
        raise FileFormatError(f"{file} is no .csv file in UTF-8: {error}") from error
    if not rows:
        raise FileFormatError(f"{file} is empty; a .csv file needs a header row and at least one row of data")
    header, rows, lines = rows[0], rows[1:], lines[1:]
    _check_header(file, header)
    if not rows:
        raise ValueError(f"{file} must have at least one row of data after the header row, but it has none")
    for number, (row, line) in enumerate(zip(rows, lines, strict=True), start=1):
        if len(row) != len(header):
            raise ValueError(
                f"{file} must have {len(header)} cells in every row like its header, "
                f"but row {number} (line {line}) has {len(row)}"
            )
    return header, rows, lines


def _check_header(file: Path, header: list[str]) -> None:
    if len(header) == 1 and any(mark in header[0] for mark in ";\t"):
        raise ValueError(f"{file} must have its columns separated by commas, but its first line is {header[0]!r}")
    if all(_number(name) is not None for name in header) and not all(name.isdigit() for name in header):
        raise ValueError(f"{file} must begin with a header row naming the columns, but its first row holds numbers")
    for name in header:
        if not name:
            raise ValueError(f"{file} must name every column in its first row, but one name is empty")
        if header.count(name) > 1:
            raise ValueError(f"{file} must name its columns differently, but {name!r} stands there twice")


def _target_columns(file: Path, header: list[str], target: Target) -> tuple[list[int], list[int]]:
    """Which columns are targets, and which are to be left out."""
    usual = [header.index(name) for name in _TARGET_NAMES if name in header]
    if target is False:
        return [], usual
    if target is None:
        if len(usual) != 1:
            found = "both 'y' and 'target'" if usual else "neither 'y' nor 'target'"
            raise ValueError(
                f"target must name the target column of {file} (or be False for none), because it has {found}; "
                f"its columns are {_listing(header)}"
            )
        return usual, []
    names = [target] if isinstance(target, str) else list(target)  # type: ignore[arg-type]  # no bool is left
    for name in names:
        if name not in header:
            raise ValueError(f"target must name columns of {file}, which are {_listing(header)}, but it is {name!r}")
    return [header.index(name) for name in names], []


def _numbers(file: Path, header: list[str], rows: list[list[str]], lines: list[int], columns: list[int]) -> np.ndarray:
    """The cells of `columns` as finite numbers; an error names the first cell that is none."""
    result = np.empty((len(rows), len(columns)))
    for i, row in enumerate(rows):
        for k, column in enumerate(columns):
            value = _number(row[column])
            if value is None or not math.isfinite(value):
                state = "is missing" if _is_missing(row[column]) else f"is {row[column]!r}"
                raise ValueError(
                    f"{file} must hold a finite number in row {i + 1} (line {lines[i]}), "
                    f"column {header[column]!r}, but it {state}"
                )
            result[i, k] = value
    return result


def _targets(file: Path, header: list[str], rows: list[list[str]], lines: list[int], columns: list[int]) -> np.ndarray:
    """Numbers, or words where no cell is a number: numbers among words are more likely a slip than labels."""
    if any(_number(row[column]) is not None for row in rows for column in columns):
        return _numbers(file, header, rows, lines, columns)
    for i, row in enumerate(rows):
        for column in columns:
            if not row[column]:
                raise ValueError(
                    f"{file} must hold a target in row {i + 1} (line {lines[i]}), column {header[column]!r}, "
                    "but it is missing"
                )
    return np.array([[row[column] for column in columns] for row in rows], dtype=str)


def _number(cell: str) -> float | None:
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None


def _is_missing(cell: str) -> bool:
    return cell.lower() in ("", "nan", "na", "n/a", "null", "none")


def _listing(names: Any) -> str:
    names = list(names)
    shown = ", ".join(repr(name) for name in names[:20])
    return f"{shown} and {len(names) - 20} more" if len(names) > 20 else shown or "nothing"
