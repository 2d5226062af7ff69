"""The images that travel inside the package, read when first asked for."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from adakern.datasets import codec
from adakern.datasets.order import Split


@cache
def mnist() -> tuple[Split, Split]:
    """The bundled training and test images of MNIST, `(n, 28, 28, 1)`."""
    with _open("mnist.npz") as stream, np.load(stream, allow_pickle=False) as arrays:
        return _split(arrays, "train", arrays["train_x"][..., None]), _split(
            arrays, "test", arrays["test_x"][..., None]
        )


@cache
def cifar10() -> tuple[Split, Split]:
    """The bundled training and test images of CIFAR-10, `(n, 32, 32, 3)`."""
    return _photographs("cifar10.npz")


@cache
def cifar10_published() -> tuple[Split, Split]:
    """Those training and test images of CIFAR-10 with which the paper's published program compares CNN and MLP."""
    return _photographs("cifar10_published.npz")


def _photographs(name: str) -> tuple[Split, Split]:
    with _open(name) as stream, np.load(stream, allow_pickle=False) as arrays:
        train, test = (codec.decode(arrays[f"{part}_differences"]) for part in ("train", "test"))
        return _split(arrays, "train", train), _split(arrays, "test", test)


def _open(name: str) -> Any:
    return files("adakern.datasets").joinpath("data", name).open("rb")


def _split(arrays: Any, part: str, images: np.ndarray) -> Split:
    images.flags.writeable = False  # shared by every later call
    return Split(images, arrays[f"{part}_y"], arrays[f"{part}_idx"], arrays[f"{part}_absent_from"])
