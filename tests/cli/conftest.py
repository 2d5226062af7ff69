"""A small problem as files, and a way to run the program."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from typer.testing import CliRunner

from adakern.cli import app


class Problem(NamedTuple):
    folder: Path
    X: np.ndarray
    y: np.ndarray
    X_new: np.ndarray
    y_new: np.ndarray


def write_csv(path: Path, X: np.ndarray, **columns: np.ndarray) -> Path:
    """Columns a, b, ... of X and then the named ones, with every digit."""
    table = np.column_stack([X, *columns.values()]).tolist()
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow([*"abcdefgh"[: X.shape[1]], *columns])
        writer.writerows(table)
    return path


@pytest.fixture
def problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Problem:
    """train and test, each as .csv and .npz, in the folder that the test runs in."""
    rng = np.random.default_rng(3)
    X, X_new = rng.standard_normal((8, 3)), rng.standard_normal((5, 3))
    y, y_new = np.sign(X[:, 0]), np.sign(X_new[:, 0])
    write_csv(tmp_path / "train.csv", X, y=y)
    write_csv(tmp_path / "test.csv", X_new, y=y_new)
    np.savez(tmp_path / "train.npz", X=X, y=y)
    np.savez(tmp_path / "test.npz", X=X_new, y=y_new)
    monkeypatch.chdir(tmp_path)
    return Problem(tmp_path, X, y, X_new, y_new)


@pytest.fixture
def adakern() -> Callable[..., Any]:
    """Run a command line such as "fit train.csv --out run.safetensors" and return typer's result."""
    return lambda line: CliRunner().invoke(app, line.split())


@pytest.fixture
def adakern_json(adakern: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """The same with --json, for commands that succeed: the object it printed, which must be all of standard output."""

    def run(line: str) -> dict[str, Any]:
        result = adakern(f"{line} --json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout, parse_constant=_no_constant)

    return run


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")
