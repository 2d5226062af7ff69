r"""Kernels of theory and networks, layer by layer: how they are computed, what is kept of them, and how far two are apart.

A part returns, for each hidden layer: `kernels`, the mean over independent solves or networks; `errors`, its relative standard error, $|\mathrm{SE}|/|\Phi|$;
`label` and `label_error`, the alignment with the labels, $\mathcal A(\Phi^\ell,yy^\top)$.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

import adakern as ak
from adakern.figures import measuring
from adakern.figures.shape import Arrays, Data, mlp

CLASSES = {"cifar10": ("airplane", "automobile"), "mnist": ("0", "1")}
IMAGES = {"cifar10": "CIFAR-10", "mnist": "MNIST"}


def lazy(data: Data, depth: int, activation: str, keep: int) -> Arrays:
    """The labels, the Gram matrix of the inputs and the kernels before anything is learned."""
    X, y, *_ = data.load()
    start = ak.solve(ak.NNGPK(mlp(depth, activation)), X, y)
    inputs = (X @ X.T / X.shape[1])[:keep, :keep]
    return {"y": y[:keep], "inputs": inputs.astype(np.float32), **_layers([start.kernels], y, keep)}


def bayesian(
    data: Data,
    depth: int,
    activation: str,
    richness: float,
    beta: float,
    decay: float,
    keep: int,
    particles: int,
    tolerance: float,
    solves: int,
) -> Arrays:
    """The aNBK's kernels: the mean of independent solves."""
    X, y, *_ = data.load()
    limit = ak.ANBK(mlp(depth, activation), richness=richness, beta=beta, decay=decay)
    how: dict[str, Any] = {"solver": "particles", "particles": particles, "tolerance": tolerance, "steps": 100_000}
    return _layers([ak.solve(limit, X, y, seed=seed, **how).kernels for seed in range(solves)], y, keep)


def sampled(
    data: Data,
    depth: int,
    activation: str,
    richness: float,
    beta: float,
    decay: float,
    keep: int,
    width: int,
    networks: int,
    burn_in: float,
    time: float,
) -> Arrays:
    """The same of networks of finite width, sampled by Langevin dynamics for a time after the burn-in."""
    X, y, *_ = data.load()
    how: dict[str, Any] = {"width": width, "burn_in": burn_in, "time": burn_in + time, "snapshots": 1}
    runs = [
        ak.finite.langevin(
            mlp(depth, activation), X, y, richness=richness, beta=beta, decay=decay, seed=seed, **how
        ).kernels
        for seed in range(networks)
    ]
    return _layers(runs, y, keep)


def resting(data: Data, depth: int, activation: str, richness: float, decay: float, keep: int) -> Arrays:
    """The aNTK's kernels."""
    X, y, *_ = data.load()
    return _layers([ak.solve(ak.ANTK(mlp(depth, activation), richness=richness, decay=decay), X, y).kernels], y, keep)


def trained(
    data: Data,
    depth: int,
    activation: str,
    richness: float,
    decay: float,
    keep: int,
    width: int,
    networks: int,
    time: float,
) -> Arrays:
    """The same of networks of finite width, trained for a long time; `motion` is by how much they still move per unit of time, relative."""
    X, y, *_ = data.load()
    how: dict[str, Any] = {"width": width, "time": time / decay, "method": "momentum", "tolerance": 1e-6}
    runs = ak.finite.gradient_flow(
        mlp(depth, activation), X, y, richness=richness, decay=decay, replicas=networks, **how
    )
    kernels = [runs.replica(seed).kernels for seed in range(networks)]
    return {**_layers(kernels, y, keep), "motion": np.array([runs.stats["rate"]], dtype=np.float64)}


def apart(ours: Arrays, theirs: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """Relative Frobenius distance of the kernels, layer by layer, and what the standard errors of the two amount to."""
    pairs = list(zip(ours["kernels"], theirs["kernels"], strict=True))
    off = np.array([np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in pairs])
    return off, np.hypot(ours["errors"], theirs["errors"])


def aligned(ours: Arrays, theirs: Arrays) -> np.ndarray:
    """The cosine between the kernels, layer by layer."""
    pairs = zip(ours["kernels"].astype(np.float64), theirs["kernels"].astype(np.float64), strict=True)
    return np.array([ak.alignment(a, b) for a, b in pairs])


def _layers(samples: Sequence[Sequence[np.ndarray]], y: np.ndarray, keep: int) -> dict[str, np.ndarray]:
    """What is kept of kernels, (samples, layers): all of the numbers, and the kernels between the first `keep` points."""
    labels = np.outer(y, y)
    found: dict[str, list[Any]] = {"kernels": [], "errors": [], "label": [], "label_error": []}
    for layer in range(len(samples[0])):
        each = np.stack([np.asarray(kernels[layer], dtype=np.float64) for kernels in samples])
        mean, error = measuring.over(each)
        label, doubt = jackknife(each, labels)
        found["kernels"].append(mean[:keep, :keep].astype(np.float32))
        found["errors"].append(0.0 if len(each) == 1 else np.linalg.norm(error) / np.linalg.norm(mean))
        found["label"].append(label)
        found["label_error"].append(doubt)
    return {name: np.array(values) for name, values in found.items()}


def jackknife(kernels: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """The alignment of the mean of independent kernels with the labels, and its standard error; 0 for one, which is exact."""
    count, mean = len(kernels), kernels.mean(axis=0)
    value = ak.alignment(mean, labels)
    if count == 1:
        return value, 0.0
    left = [ak.alignment((count * mean - kernel) / (count - 1), labels) for kernel in kernels]
    return value, float(np.sqrt((count - 1) * np.var(left)))


def show(axes: Axes, kernel: np.ndarray, y: np.ndarray, title: str, labels: tuple[str, ...] = ()) -> None:
    """A kernel as correlations from -1 to 1, sorted by class."""
    ak.plot.kernel(axes, kernel, y=y, labels=labels, least=-1.0)
    axes.set_title(title, fontsize=8.5)
    axes.tick_params(labelsize=7.5)


def colours(axes: np.ndarray) -> None:
    """The colour bar of such kernels, left of a column of them."""
    first = axes[0]
    bar = first.figure.colorbar(first.images[0], ax=axes, location="left", shrink=min(1.0, 2.5 / len(axes)), aspect=30)
    bar.set_label(r"correlation of two points, $\Phi_{\mu\nu}/\sqrt{\Phi_{\mu\mu}\Phi_{\nu\nu}}$")


def richness(axes: Axes, values: Sequence[float]) -> None:
    r"""A logarithmic axis of $\gamma_0$ with ticks where it was measured."""
    places = sorted(set(values))
    axes.set(xscale="log", xlabel=r"richness $\gamma_0$")
    axes.set_xticks(places, [f"{value:g}" for value in places])
    axes.set_xticks([], minor=True)
