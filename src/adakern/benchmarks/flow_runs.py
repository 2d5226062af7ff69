"""Trained networks as a comparison needs them: kernels, outputs and fields where they end. They can be kept in a folder, so that a machine with a GPU trains them and any other compares."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adakern import files, finite
from adakern.networks import Network

_KIND = "adakern-ended"


@dataclass(frozen=True)
class Ended:
    """Where a network of finite width has come to. `solve` starts from it as from a `Run`."""

    network: Network
    X: np.ndarray
    kernels: tuple[np.ndarray, ...]
    fitted: np.ndarray
    test_predictions: np.ndarray
    fields: tuple[np.ndarray, ...]  # of the hidden neurons at training points, (n, P·S) a layer
    facts: dict[str, Any]

    @property
    def converged(self) -> bool:
        return bool(self.facts["converged"])

    def density(self, layer: int, point: int, position: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Fields of a layer's neurons, counted from 1, and their shares."""
        sites = self.network.sites(self.X.shape)[layer - 1]
        values = self.fields[layer - 1][:, point * sites + position]
        return values, np.full(len(values), 1 / len(values))


def value(run: finite.Run) -> float:
    r"""$\gamma_0^2\sum_\mu\ell_\mu+\frac1{2N}\sum_\ell\lambda_\ell|W^\ell|^2$ at the end: what gradient flow lowers, per neuron."""
    s, seen = run.settings, len(run.X)
    norms = sum(
        decay * float(np.sum(np.square(w[-1], dtype=np.float64)))
        for decay, w in zip(s.decays, run.weights, strict=True)
    )
    return s.richness**2 * seen * float(run.losses[-1]) + norms / (2 * s.width)


def _of(run: finite.Run, neurons: bool) -> Ended:
    stats = run.stats
    facts = {
        "value": value(run),
        "rate": float(stats["rate"] or math.nan),
        "stationary": bool(stats["stationary"]),
        "how": f"{stats['method']}, {stats['steps']} steps to t = {run.times[-1]:g}, {stats['seconds']:.0f} s",
        "converged": run.converged,
        "status": run.status,
    }
    kept = _fields(run) if neurons else ()
    assert run.test_predictions is not None
    return Ended(run.network, run.X, run.kernels, run.fitted, run.test_predictions, kept, facts)


def _fields(run: finite.Run) -> tuple[np.ndarray, ...]:
    layers = enumerate(run.network.sites(run.X.shape), 1)
    columns = [
        [run.density(layer, p, a)[0] for p in range(len(run.X)) for a in range(sites)] for layer, sites in layers
    ]
    return tuple(np.stack(parts, axis=1).astype(np.float32) for parts in columns)


def ended(
    train: Callable[[], finite.Run], network: Network, X: np.ndarray, folder: Path | None, name: str, neurons: bool
) -> Ended:
    """The network that `train` gives, or the one that the folder has under this name. `neurons`: with its fields."""
    path = None if folder is None else folder / f"{name}.safetensors"
    if path is not None and path.exists():
        return _read(path, network, X)
    found = _of(train(), neurons)
    if path is not None:
        _keep(path, found)
    return found


def _keep(path: Path, found: Ended) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {"X": found.X, "fitted": found.fitted, "test_predictions": found.test_predictions}
    arrays |= {f"kernel.{i}": kernel for i, kernel in enumerate(found.kernels)}
    arrays |= {f"fields.{i}": fields for i, fields in enumerate(found.fields)}
    files.write(path, _KIND, arrays, found.facts)


def _read(path: Path, network: Network, X: np.ndarray) -> Ended:
    arrays, facts = files.read(path, _KIND)
    if not np.array_equal(arrays["X"], X):
        raise ValueError(f"{path} was trained on other points; give another folder")
    names = [[f"{part}.{i}" for i in range(network.depth)] for part in ("kernel", "fields")]
    kernels, fields = (tuple(arrays[key] for key in keys if key in arrays) for keys in names)
    return Ended(network, X, kernels, arrays["fitted"], arrays["test_predictions"], fields, facts)
