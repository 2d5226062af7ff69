"""What the checks of gradient flow with weight decay share: sizes, rows, data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from adakern import datasets
from adakern.limits import ANTK
from adakern.networks import MLP


@dataclass(frozen=True)
class Options:
    """Sizes; what is None depends on the setting and on `quick`."""

    quick: bool = False
    width: int | None = None  # of the networks
    time: float | None = None  # of the networks, in units of 1/decay
    replicas: int | None = None
    cap: float = 120.0  # seconds for what is raced against
    runs: Path | None = None  # folder of trained networks, and of solves that were interrupted

    def tests(self) -> int:
        return 100 if self.quick else 600

    def checkpoint(self, name: str) -> Path | None:
        """Where a solve that may be interrupted keeps what it has done, if a folder was given."""
        if self.runs is None:
            return None
        self.runs.mkdir(parents=True, exist_ok=True)
        return self.runs / f"{name}.checkpoint.safetensors"


@dataclass(frozen=True)
class Row:
    """One number. `ok` is None where the row informs and is not judged by its `bar`."""

    setting: str
    measured: float
    bar: str = ""
    ok: bool | None = None
    error: float | None = None
    note: str = ""
    series: dict[str, Any] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        return asdict(self)


Setting = Callable[[Options], Iterator[Row]]


@dataclass(frozen=True)
class Case:
    """Settings that make one table."""

    about: str
    settings: dict[str, Setting]


def below(setting: str, measured: float, bar: float, **rest: Any) -> Row:
    """A row that must not exceed its bar."""
    return Row(setting, float(measured), f"≤ {bar:.3g}", bool(measured <= bar), **rest)


def mlp(depth: int, activation: str) -> MLP:
    return MLP(depth, activation)  # type: ignore[arg-type]  # a name


def antk(depth: int, activation: str, richness: float, decay: float) -> ANTK:
    return ANTK(mlp(depth, activation), richness=richness, decay=decay)


def name(depth: int, activation: str, richness: float, decay: float) -> str:
    return f"L={depth} {activation}, richness {richness:g}, decay {decay:g}"


def mnist(points: int, tests: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    return datasets.mnist(n_train=points, n_test=tests)


def cifar(points: int, tests: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    return datasets.cifar10(n_train=points, n_test=tests)


def rms(values: Any) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def apart(a: Any, b: Any) -> float:
    """Largest difference."""
    return float(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).max())


def relative(a: Any, b: Any) -> float:
    """Frobenius distance relative to the second."""
    b = np.asarray(b, np.float64)
    return float(np.linalg.norm(np.asarray(a, np.float64) - b) / max(float(np.linalg.norm(b)), 1e-300))
