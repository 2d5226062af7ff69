r"""Kernels of theory and networks, layer by layer: how they are computed, what is kept of them, and how far two are apart.

A part returns, for each hidden layer: `kernels`, the mean over independent solves or networks; `errors`, its relative standard error, $|\mathrm{SE}|/|\Phi|$;
`label` and `label_error`, the alignment with the labels, $\mathcal A(\Phi^\ell,yy^\top)$.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes

import adakern as ak
from adakern.figures import measuring
from adakern.figures.shape import Arrays, Data, mlp
from adakern.plot.kernels import darkest

CLASSES = {"cifar10": ("airplane", "automobile"), "mnist": ("0", "1")}


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


class Panel(NamedTuple):
    """A kernel to draw, its title, and whether it is that of the inputs."""

    kernel: np.ndarray
    title: str
    inputs: bool = False


def layered(lazy: Arrays, theory: Arrays, networks: Arrays, images: str, name: str) -> list[list[Panel]]:
    """Two rows: inputs and the theory's layers; the last lazy layer and those of networks."""
    kernels = zip(theory["kernels"], networks["kernels"], aligned(theory, networks), strict=True)
    above = [Panel(lazy["inputs"], rf"{images}: inputs $\Phi^0$", True)]
    below = [Panel(lazy["kernels"][-1], rf"lazy $\Phi^{{{len(lazy['kernels'])}}}$")]
    for layer, (ours, theirs, cosine) in enumerate(kernels, start=1):
        above.append(Panel(ours, rf"{name}, $\Phi^{{{layer}}}$"))
        below.append(Panel(theirs, beside(cosine)))
    return [above, below]


def beside(cosine: float) -> str:
    """The title of networks' kernel, whose alignment is that with the theory's."""
    return f"networks,\nalignment {cosine:.5f}"


def show(axes: np.ndarray, panels: Sequence[Sequence[Panel]], y: np.ndarray, labels: tuple[str, ...]) -> None:
    """Rows of kernels as correlations, sorted by class, on one scale of colours with its bar on the left.

    The scale is that of the features: from 0 where none of their correlations is negative, and else from -1. Those of inputs may be below its end, which the bar then says.
    """
    features = [ak.plot.correlations(one.kernel) for row in panels for one in row if not one.inputs]
    least = darkest(*features)
    beyond = False
    for places, row in zip(axes, panels, strict=True):
        for place in places[len(row) :]:
            place.set_axis_off()
        for place, one in zip(places, row, strict=False):
            image = ak.plot.kernel(place, one.kernel, y=y, labels=labels if one.inputs else (), least=least)
            beyond = beyond or darkest(np.asarray(image.get_array())) < least
            place.set_title(one.title, fontsize=9)
            place.tick_params(labelsize=8)
    first = axes[0, 0]
    extend = "min" if beyond else "neither"
    bar = first.figure.colorbar(first.images[0], ax=axes[:, 0], location="left", aspect=30, extend=extend)
    ticks = np.linspace(least, 1.0, 5)
    bar.set_ticks(ticks, labels=[f"{value:g}".replace("-", "−") for value in ticks])
    bar.ax.tick_params(labelsize=9)
    bar.set_label("correlation of two points" + (" (inputs: also below 0)" if beyond else ""), fontsize=9)


def richness(axes: Axes, values: Sequence[float]) -> None:
    r"""A logarithmic axis of $\gamma_0$ with ticks where it was measured."""
    places = sorted(set(values))
    axes.set(xscale="log", xlabel=r"richness $\gamma_0$")
    axes.set_xticks(places, [f"{value:g}" for value in places])
    axes.set_xticks([], minor=True)
