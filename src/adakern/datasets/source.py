"""Where the images come from: a directory the user names, one that ADAKERN_DATA names, or the bundle."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adakern import checks
from adakern.datasets.labels import Groups, as_targets
from adakern.datasets.order import ORIGINAL, Order, Split

VARIABLE = "ADAKERN_DATA"


@dataclass(frozen=True)
class DataSet:
    """A data set the package knows: how to find the official files, and the bundled beginning of it."""

    name: str
    looked_for: str
    find: Callable[[Path], tuple[Split, Split] | None]
    bundled: Callable[[], tuple[Split, Split]]
    order: Order = ORIGINAL


@dataclass(frozen=True)
class Source:
    train: Split
    test: Split
    words: str  # what it is, for messages
    more: str  # how to get more images, for messages
    order: Order

    def take(self, groups: Groups, n_train: Any, n_test: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The first images of the order rule and their targets: `(images, y, test_images, y_test)`, bytes and floats."""
        n_train, n_test = checks.integer("n_train", n_train, 1), checks.integer("n_test", n_test, 0)
        classes = [member for group in groups for member in group]
        rows = self._first("n_train", "training", self.order.train(self.train, classes), n_train, classes)
        later = self._first("n_test", "test", self.order.test(self.test, classes), n_test, classes)
        return (
            self.train.images[rows],
            as_targets(self.train.labels[rows], groups),
            self.test.images[later],
            as_targets(self.test.labels[later], groups),
        )

    def _first(self, argument: str, kind: str, rows: np.ndarray, n: int, classes: list[int]) -> np.ndarray:
        if n > len(rows):
            raise ValueError(
                f"{argument} must be at most {len(rows)}, the number of {kind} images of the classes "
                f"{', '.join(map(str, classes))} that {self.words} can give in order, but it is {n}{self.more}"
            )
        return rows[:n]


def open_source(data_set: DataSet, directory: str | os.PathLike[str] | None) -> Source:
    """Open the official files in `directory`; without it those in ADAKERN_DATA; without those the bundle."""
    if directory is not None:
        if not isinstance(directory, (str, os.PathLike)):
            raise TypeError(f"directory must be a path or None, but it is {directory!r}")
        found = data_set.find(Path(directory))
        if found is None:
            state = "has no complete" if Path(directory).is_dir() else "does not exist, so it has no"
            raise FileNotFoundError(
                f"directory {os.fspath(directory)!r} {state} {data_set.name}: looked for {data_set.looked_for}"
            )
        return Source(*found, f"{data_set.name} in {os.fspath(directory)}", "", data_set.order)
    named = os.environ.get(VARIABLE)
    note = ""
    if named:
        found = data_set.find(Path(named))
        if found is not None:
            return Source(*found, f"{data_set.name} in {named}", "", data_set.order)
        note = f" ({VARIABLE} names {named!r}, which has no complete {data_set.name})"
    more = f"; supply the full set by directory= or the environment variable {VARIABLE}{note}"
    return Source(*data_set.bundled(), f"the bundled {data_set.name}", more, data_set.order)
