"""What a figure is: the shape that every module of this package has, its computations and its data."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
from matplotlib.figure import Figure

import adakern as ak
from adakern import files

Arrays = Mapping[str, np.ndarray]
Numbers = Mapping[str, Arrays]  # by computation, then by name

S = TypeVar("S", contravariant=True)


class Module(Protocol[S]):
    """A figure's module.

    Attributes:
        TITLE: one line, what is shown.
        PAPER: what the paper claims about it, point by point, in our words.
        FULL, QUICK: settings, both of the module's own frozen dataclass of plain values.
    """

    TITLE: str
    PAPER: tuple[str, ...]
    FULL: Any
    QUICK: Any

    def parts(self, settings: S, /) -> Iterable[Part]:
        """The computations, in the order in which they run."""
        ...

    def draw(self, settings: S, numbers: Numbers, /) -> Figure:
        """The picture of what they gave; it computes nothing that takes time."""
        ...


@dataclass(frozen=True)
class Part:
    """A named computation. It is a pure function of its arguments, and what it returns is kept under a key made of them.

    Attributes:
        name: unique within the figure.
        compute: called with the arguments by name; returns arrays of numbers by name. What did not converge it raises.
        arguments: plain values, tuples of them, or `Data`. Give it what it needs and no more: a change of any other setting then leaves it in the cache.
    """

    name: str
    compute: Callable[..., Arrays]
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Data:
    """Images to load: known by their content.

    Attributes:
        source: "mnist", "cifar10" or "animate", functions of `adakern.datasets`; or "published", `animate` with the images of the published program.
        train, test: how many images.
        classes: other than the function's own.
    """

    source: str
    train: int
    test: int = 0
    classes: tuple[Any, ...] | None = None

    def load(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """`(X, y, X_test, y_test)`."""
        options: dict[str, Any] = {} if self.classes is None else {"classes": self.classes}
        if self.source == "published":
            return ak.datasets.animate(self.train, self.test, published=True)
        return getattr(ak.datasets, self.source)(n_train=self.train, n_test=self.test, **options)

    def identity(self) -> dict[str, Any]:
        """What tells these images from others, as JSON has it."""
        return {**asdict(self), "digest": _digest(self)}


@functools.cache
def _digest(data: Data) -> str:
    return files.digest(*data.load())


def mlp(depth: int, activation: str) -> ak.MLP:
    """An MLP whose activation is given by name."""
    return ak.MLP(depth, activation)  # type: ignore[arg-type]
