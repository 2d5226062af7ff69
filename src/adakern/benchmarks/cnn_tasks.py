"""What the checks of convolutional networks share: images, and networks for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from adakern import datasets
from adakern.benchmarks.flow_networks import Data
from adakern.benchmarks.flow_rows import Options
from adakern.networks import CNN, MLP

GROUPS = ((0, 1, 8, 9), (2, 3, 4, 5))  # inanimate, animate
QUICK = 16  # pixels a side, and windows of 4
SMALL = 6  # pixels a side, for two layers


def images(options: Options, points: int, tests: int | None = None) -> Data:
    """Animate against inanimate in colour: 32 x 32; quick, 16 x 16 and at most 40 of them."""
    size, most = (QUICK, min(points, 40)) if options.quick else (32, points)
    return datasets.cifar10(GROUPS, False, size, most, options.tests() if tests is None else tests, flat=False)


def flat(options: Options, points: int, tests: int) -> Data:
    """The same pictures as an MLP sees them: in colour, 3072 numbers."""
    size, most = (QUICK, min(points, 40)) if options.quick else (32, points)
    return datasets.cifar10(GROUPS, False, size, most, tests)


def small(points: int, tests: int = 1) -> Data:
    """The same pictures resized to 6 x 6, in colour."""
    return datasets.cifar10(GROUPS, False, SMALL, points, tests, flat=False)


def shallow(options: Options, activation: str = "relu") -> CNN:
    """The paper's: one hidden layer of 8 x 8 windows side by side."""
    side = QUICK // 4 if options.quick else 8
    return CNN(1, side, side, activation)  # type: ignore[arg-type]  # a name


def two_layers(activation: str = "tanh") -> CNN:
    """3 x 3 windows, then 2 x 2 ones with stride 2: 16 positions, then 4."""
    return CNN(2, ((3, 3), (2, 2)), ((1, 1), (2, 2)), activation)  # type: ignore[arg-type]


def architectures(options: Options, points: int, tests: int, published: bool = False) -> dict[str, tuple[Any, Data]]:
    """MLP and CNN, each with its inputs; `published`: those of the paper's program, which are at full size alone."""
    if published:
        X, y, X_test, y_test = datasets.animate(points, tests, published=True)
        as_rows = (X.reshape(points, -1), y, X_test.reshape(tests, -1), y_test)
        return {"MLP": (MLP(1), as_rows), "CNN": (shallow(options), (X, y, X_test, y_test))}
    return {
        "MLP": (MLP(1), flat(options, points, tests)),
        "CNN": (shallow(options), images(options, points, tests)),
    }


def scores(ours: Any, theirs: Any, *errors: Any) -> np.ndarray:
    """Differences over joint standard errors."""
    joint = np.sqrt(sum(np.square(np.asarray(error, np.float64)) for error in errors))
    return (np.asarray(ours, np.float64) - np.asarray(theirs, np.float64)) / joint
