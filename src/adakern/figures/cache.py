"""What computations gave, kept by content: the same figure, computation, arguments, data, code and version are not computed twice."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adakern import files
from adakern._version import __version__
from adakern.errors import FileFormatError
from adakern.figures.shape import Arrays, Data, Part

FORMAT = "adakern-figure-part"


def folder() -> Path:
    """Where numbers are kept unless another folder is named."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "adakern" / "figures"


@dataclass(frozen=True)
class Kept:
    """The numbers of a computation, the seconds that it took when it ran, and whether that was earlier."""

    arrays: Arrays
    seconds: float
    cached: bool


@dataclass(frozen=True)
class Cache:
    """A folder of one file per computation. Files appear whole or not at all, so that what an interrupted run has finished is there for the next.

    Attributes:
        folder: made when something is kept.
        fresh: compute everything again.
    """

    folder: Path
    fresh: bool = False

    def path(self, figure: str, part: Part) -> Path:
        text = json.dumps(_identity(figure, part), sort_keys=True)
        return self.folder / figure / f"{_slug(part.name)}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.safetensors"

    def find(self, figure: str, part: Part) -> Kept | None:
        """What an earlier run kept, if it is whole."""
        try:
            arrays, header = files.read(self.path(figure, part), FORMAT)
        except (FileNotFoundError, FileFormatError):
            return None
        for name in header.get("scalars", ()):  # files have no arrays without an axis
            arrays[name] = arrays[name].reshape(())
        return Kept(arrays, float(header["seconds"]), True)

    def get(self, figure: str, part: Part) -> Kept:
        """The numbers of a computation, which runs if they are not there."""
        found = None if self.fresh else self.find(figure, part)
        if found is not None:
            return found
        begun = time.perf_counter()
        arrays = {name: _numeric(part, name, value) for name, value in part.compute(**part.arguments).items()}
        seconds = time.perf_counter() - begun
        path = self.path(figure, part)
        path.parent.mkdir(parents=True, exist_ok=True)
        scalars = [name for name, array in arrays.items() if not array.ndim]
        header = {"seconds": seconds, "scalars": scalars, "identity": _identity(figure, part)}
        files.write(path, FORMAT, arrays, header)
        return Kept(arrays, seconds, False)


def _identity(figure: str, part: Part) -> dict[str, Any]:
    return {
        "figure": figure,
        "part": part.name,
        "arguments": {name: _plain(value) for name, value in part.arguments.items()},
        "source": hashlib.sha256(inspect.getsource(part.compute).encode()).hexdigest(),
        "version": __version__,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Data):
        return value.identity()
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"arguments of a computation must be plain values or Data, but one is {value!r}")


def _numeric(part: Part, name: str, value: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{part.name} must return numbers, but {name!r} has type {array.dtype}")
    return array


def _slug(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in ".-" else "-" for letter in name)


def check(parts: Iterable[Part]) -> list[Part]:
    """The parts as a list, refused where two have one name."""
    held = list(parts)
    names = [part.name for part in held]
    if len(set(names)) < len(names):
        raise ValueError(f"computations of a figure must have different names, but they are {', '.join(names)}")
    return held
