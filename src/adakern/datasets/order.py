"""The order rule: which images come first, the same for the bundle and for the full official files.

Training images come in the original order of the data set. Test images come in two blocks, each in original
order: the first block holds the first 300 test images of each class, the second block the rest.

The bundle holds only the beginning of each class, and of some classes more than of others. Past the first image
that is missing from any requested class, the order can no longer be told, so what is held beyond it is not
available for those classes: a call gives the same images whichever source answers it, or it gives none.

The paper's published program for CNNs reads CIFAR-10 from TensorFlow Datasets, whose order is another one (`HASHED`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import md5

import numpy as np

CLASSES = 10
FIRST_TEST_BLOCK = 300
NEVER = int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class Split:
    """The training or the test half of a data set, as far as it is held.

    Of each class the first images are held, with no gaps: `absent_from[c]` is the original position of the first
    image of class c that is not held, or `NEVER` where the class is complete.
    """

    images: np.ndarray  # (n, height, width, channels) uint8
    labels: np.ndarray  # (n,) integers 0..9
    positions: np.ndarray  # (n,) increasing: where each image stands in the original data set
    absent_from: np.ndarray  # (10,)

    @classmethod
    def complete(cls, images: np.ndarray, labels: np.ndarray) -> Split:
        return cls(images, labels, np.arange(len(labels)), np.full(CLASSES, NEVER))


def ranks(labels: np.ndarray) -> np.ndarray:
    """How many earlier images have the same label, for each image."""
    rank = np.zeros(len(labels), dtype=np.int64)
    for label in range(CLASSES):
        rows = np.flatnonzero(labels == label)
        rank[rows] = np.arange(len(rows))
    return rank


def ordered_training_rows(split: Split, classes: Sequence[int]) -> np.ndarray:
    """Rows of the available training images of `classes`, in original order."""
    end = min(int(split.absent_from[c]) for c in classes)
    return np.flatnonzero(np.isin(split.labels, classes) & (split.positions < end))


def ordered_test_rows(split: Split, classes: Sequence[int], first_block: int = FIRST_TEST_BLOCK) -> np.ndarray:
    """Rows of the available test images of `classes`: the first 300 of each class, then the rest."""
    wanted = np.isin(split.labels, classes)
    first = ranks(split.labels) < first_block
    short = [c for c in classes if np.count_nonzero(split.labels == c) < first_block]
    end = min((int(split.absent_from[c]) for c in short), default=NEVER)
    rows = np.flatnonzero(wanted & first & (split.positions < end))
    if end < NEVER:  # the first block breaks off inside the bundle, so nothing can follow it
        return rows
    end = min(int(split.absent_from[c]) for c in classes)
    return np.concatenate([rows, np.flatnonzero(wanted & ~first & (split.positions < end))])


def hashed_rows(split: Split, classes: Sequence[int], salt: str) -> np.ndarray:
    """Rows of the images of `classes` in the order in which TensorFlow Datasets (CIFAR-10, 3.0.2) keeps a split: by the MD5 digest of its name, `salt`, and the position in the original data set."""
    rows = np.flatnonzero(np.isin(split.labels, classes))
    return np.array(
        sorted(rows, key=lambda row: md5(f"{salt}{split.positions[row]}".encode()).digest()), dtype=np.int64
    )


Rows = Callable[[Split, Sequence[int]], np.ndarray]


@dataclass(frozen=True)
class Order:
    """Which rows of the training and of the test half come first."""

    train: Rows
    test: Rows


ORIGINAL = Order(ordered_training_rows, ordered_test_rows)
HASHED = Order(partial(hashed_rows, salt="train"), partial(hashed_rows, salt="test"))
