"""The paper's figures, one module each: settings, named computations, a drawing function.

`NAMES` lists them in the order in which `adakern figure all` makes them; `get` imports one.
"""

from __future__ import annotations

import importlib
from typing import Any, cast

from adakern.figures.shape import Module

NAMES = (
    "single-point",
    "laplace",
    "unlearning",
    "linear",
    "densities",
    "dynamics",
    "cnn-dynamics",
    "cnn",
    "kernels",
    "predictors",
    "deep",
    "alignment",
    "learning-curves",
    "finite-width",
)

__all__ = ["NAMES", "get"]


def get(name: str) -> Module[Any]:
    """The module of a figure."""
    if name not in NAMES:
        raise ValueError(f"NAME must be one of {', '.join(NAMES)}, but it is {name!r}")
    return cast("Module[Any]", importlib.import_module(f"adakern.figures.{name.replace('-', '_')}"))
