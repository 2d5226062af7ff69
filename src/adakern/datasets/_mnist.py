"""MNIST: handwritten digits of 28 x 28 grey pixels."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from adakern.datasets import bundled, idx
from adakern.datasets.labels import as_groups
from adakern.datasets.preprocessing import MNIST_MEAN, MNIST_STD, standardise
from adakern.datasets.source import DataSet, open_source

_MNIST = DataSet("MNIST", idx.LOOKED_FOR, idx.find, bundled.mnist)


def mnist(
    classes: Any = (0, 1),
    n_train: int = 50,
    n_test: int = 600,
    *,
    flat: bool = True,
    directory: str | os.PathLike[str] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Images of handwritten digits, with the paper's preprocessing (x/255 - 0.1307)/0.3081.

    Order: training images come in the original order of MNIST. Test images come in two blocks, each in original
    order: the first 300 of each class, then the rest. The same call gives the same images from every source.

    Args:
        classes: digits 0..9, or groups of them: `((0, 2, 4), (1, 3, 5))` tells 0, 2, 4 from 1, 3, 5.
        n_train: number of training images. The bundle holds the first 1000 of each digit.
        n_test: number of test images; may be 0. The bundle holds 300 of each digit, and 1000 of 0 and 1 together.
        flat: `(n, 784)` inputs if True, `(n, 28, 28, 1)` if False.
        directory: a directory with the official idx files (plain or .gz), itself or its MNIST/raw; by default the
            one that the environment variable ADAKERN_DATA names if it has them, otherwise the bundled images.

    Returns:
        `(X, y, X_test, y_test)`, float64. For two classes (or groups) y is `(n,)`: -1 for the first, +1 for the
        second. For more, y is `(n, len(classes))`: one-hot rows, 1 at the class and 0 elsewhere.
    """
    groups = as_groups(classes)
    images, y, test_images, y_test = open_source(_MNIST, directory).take(groups, n_train, n_test)
    X, X_test = (standardise(part, MNIST_MEAN, MNIST_STD, flat=flat) for part in (images, test_images))
    return X, y, X_test, y_test
