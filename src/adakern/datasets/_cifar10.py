"""CIFAR-10: photographs of 32 x 32 colour pixels."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from adakern import checks
from adakern.datasets import batches, bundled
from adakern.datasets.labels import as_groups
from adakern.datasets.order import HASHED
from adakern.datasets.preprocessing import (
    CIFAR10_GREY_MEAN,
    CIFAR10_GREY_STD,
    CIFAR10_MEAN,
    CIFAR10_PIXELS,
    CIFAR10_STD,
    resize,
    standardise,
    to_grey,
)
from adakern.datasets.source import DataSet, open_source

INANIMATE = (0, 1, 8, 9)  # airplane, automobile, ship, truck
ANIMATE = (2, 3, 4, 5)  # bird, cat, deer, dog

_CIFAR10 = DataSet("CIFAR-10", batches.LOOKED_FOR, batches.find, bundled.cifar10)
_PUBLISHED = DataSet("CIFAR-10", batches.LOOKED_FOR, batches.find, bundled.cifar10_published, HASHED)


def cifar10(
    classes: Any = (0, 1),
    grey: bool = True,
    size: int = 28,
    n_train: int = 300,
    n_test: int = 600,
    *,
    flat: bool = True,
    directory: str | os.PathLike[str] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Photographs of airplanes (0), automobiles (1), birds, cats, deer, dogs, frogs, horses, ships, trucks (9).

    Order: training images come in the original order of CIFAR-10. Test images come in two blocks, each in original
    order: the first 300 of each class, then the rest. The same call gives the same images from every source.

    Args:
        classes: class numbers 0..9, or groups of them: `((0, 1, 8, 9), (2, 3, 4, 5))`.
        grey: if True, resized and then turned grey as by torchvision's Resize and Grayscale on Pillow images, and
            standardised by (x/255 - 0.4799)/0.2396, the paper's preprocessing. If False, in colour, each channel
            standardised by its mean (0.4914, 0.4822, 0.4465) and standard deviation (0.2470, 0.2435, 0.2616) over
            the training set.
        size: height and width of the images given back; the originals have 32.
        n_train: number of training images. The bundle gives 1000 of classes 0 and 1, and of any other choice those
            among the first 1265 images of the data set.
        n_test: number of test images; may be 0. The bundle gives 1000 of classes 0 and 1, and of any other choice
            those among the first 637.
        flat: `(n, features)` inputs if True, `(n, size, size, channels)` if False. Features run over rows, then
            columns, then channels.
        directory: a directory with cifar-10-batches-py or cifar-10-batches-bin (or that folder itself); by default
            the one that the environment variable ADAKERN_DATA names if it has them, otherwise the bundled images.

    Returns:
        `(X, y, X_test, y_test)`, float64. For two classes (or groups) y is `(n,)`: -1 for the first, +1 for the
        second. For more, y is `(n, len(classes))`: one-hot rows, 1 at the class and 0 elsewhere.
    """
    groups = as_groups(classes)
    size = checks.integer("size", size, 1)
    images, y, test_images, y_test = open_source(_CIFAR10, directory).take(groups, n_train, n_test)
    X, X_test = (_prepare(part, grey, size, flat) for part in (images, test_images))
    return X, y, X_test, y_test


def animate(
    n_train: int = 1000,
    n_test: int = 500,
    *,
    flat: bool = False,
    published: bool = False,
    directory: str | os.PathLike[str] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The paper's task for convolutional networks: birds, cats, deer and dogs (+1) or vehicles (-1), in colour.

    `cifar10` with classes `((0, 1, 8, 9), (2, 3, 4, 5))`, `grey=False` and `size=32`, in the order stated there;
    inputs `(n, 32, 32, 3)`, or `(n, 3072)` if `flat`. The bundle gives 1000 training and 500 test images.

    If `published`, the images of the paper's published program, as it prepares them: in the order in which
    TensorFlow Datasets keeps CIFAR-10 (by a hash of their numbers), less one mean over all pixels and colours of the
    half (training or test), divided by one standard deviation. The bundle gives its 1000 and 500.
    """
    if not published:
        return cifar10(
            (INANIMATE, ANIMATE), grey=False, size=32, n_train=n_train, n_test=n_test, flat=flat, directory=directory
        )
    groups = as_groups((INANIMATE, ANIMATE))
    images, y, test_images, y_test = open_source(_PUBLISHED, directory).take(groups, n_train, n_test)
    halves = zip((images, test_images), CIFAR10_PIXELS, strict=True)
    X, X_test = (standardise(part, mean / 255, std / 255, flat=flat) for part, (mean, std) in halves)
    return X, y, X_test, y_test


def _prepare(images: np.ndarray, grey: bool, size: int, flat: bool) -> np.ndarray:
    images = resize(images, size)
    if grey:
        return standardise(to_grey(images), CIFAR10_GREY_MEAN, CIFAR10_GREY_STD, flat=flat)
    return standardise(images, CIFAR10_MEAN, CIFAR10_STD, flat=flat)
