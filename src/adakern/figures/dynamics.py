"""Two layers, ReLU, with weight decay, on photographs: losses over training, and the densities of preactivations and of readout weights at its end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

import adakern as ak
from adakern.figures import measuring, style
from adakern.figures.shape import Arrays, Data, Numbers, Part, mlp

TITLE = "Training with weight decay: airplane or automobile, two layers"
PAPER = (
    "The theory follows the training and test losses of wide networks over time, at every richness.",
    "At equal decay, richer networks reach lower training and test errors; a lazy one cannot interpolate.",
    "Richer networks learn faster.",
    "There is a best richness for the test loss at this number of images (P = 200).",
    "The densities of preactivations and of pregradients, Gaussian at the start, are far from it at the end, and the theory gives them.",
)


@dataclass(frozen=True)
class Settings:
    """Sizes, and where to look."""

    train: int = 200
    test: int = 1000
    richness: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0)
    decay: float = 1.0
    times: tuple[float, ...] = (0.0, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5, 5.0)
    neurons: int = 1024
    width: int = 1024
    seeds: int = 4
    edges: tuple[float, ...] = tuple(np.linspace(-6.0, 6.0, 61).round(6).tolist())


FULL = Settings()
QUICK = Settings(
    train=40,
    test=300,
    richness=(0.2, 1.0, 3.0),
    times=(0.0, 0.01, 0.03, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0),
    neurons=1024,
    width=2048,
    seeds=4,
    edges=tuple(np.linspace(-6.0, 6.0, 41).round(6).tolist()),
)


def parts(settings: Settings) -> Iterator[Part]:
    data = Data("cifar10", settings.train, settings.test)
    for richness in settings.richness:
        look = {"times": settings.times, "edges": settings.edges}
        task = {"data": data, "richness": richness, "decay": settings.decay, **look}
        yield Part(f"theory, richness {richness:g}", theory, {**task, "neurons": settings.neurons})
        sizes = {"width": settings.width, "seeds": settings.seeds}
        yield Part(f"networks, richness {richness:g}", networks, {**task, **sizes})


def theory(
    data: Data, richness: float, decay: float, times: tuple[float, ...], edges: tuple[float, ...], neurons: int
) -> Arrays:
    """The infinite network over time."""
    X, y, X_test, y_test = data.load()
    limit = ak.ANTK(mlp(1, "relu"), richness=richness, decay=decay)
    options: dict[str, Any] = {"neurons": neurons, "accuracy": 1e-4, "precision": "float32"}
    way = ak.dynamics(limit, X, y, times, X_test=X_test, y_test=y_test, **options)
    return measuring.trajectory(way, edges)


def networks(
    data: Data,
    richness: float,
    decay: float,
    times: tuple[float, ...],
    edges: tuple[float, ...],
    width: int,
    seeds: int,
) -> Arrays:
    """Networks of finite width over time."""
    options = {"richness": richness, "decay": decay, "width": width}
    return measuring.in_time(mlp(1, "relu"), data, times, seeds, edges, **options)


def draw(settings: Settings, numbers: Numbers) -> Figure:
    figure, axes = style.panels(2, 2, TITLE)
    for place, name, images in ((axes[0, 0], "train", "training"), (axes[0, 1], "test", "new")):
        _losses(place, settings, numbers, name)
        place.set(xlabel="time $t$", ylabel=rf"$\frac{{1}}{{2}}\langle(y-f)^2\rangle$, {images} images")
        place.set_title(f"Loss, {images} images")
    for place, name, what, symbol, label in (
        (axes[1, 0], "field", "Preactivations", "p(h)", "preactivation $h$ of an image"),
        (axes[1, 1], "readout", "Readout weights", "p(z)", "pregradient signal $z$, the readout weight"),
    ):
        _laws(place, settings, numbers, name)
        place.set(xlabel=label, ylabel=f"density ${symbol}$", yscale="log", ylim=(3e-4, 10))
        place.set_title(f"{what} at the end, t = {settings.times[-1]:g}")
    words = rf"richness $\gamma_0$; lines and steps: theory; points: networks of {settings.width} neurons, ± 2 standard errors"
    style.shared(figure, axes[0, 0], words)
    return figure


def _losses(axes: Axes, settings: Settings, numbers: Numbers, name: str) -> None:
    for index, richness in enumerate(settings.richness):
        held, network = (numbers[f"{whose}, richness {richness:g}"] for whose in ("theory", "networks"))
        colour, label = style.CYCLE[index], rf"$\gamma_0={richness:g}$"
        style.band(axes, settings.times, held[name], held[f"{name}_error"], colour, label)
        style.points(axes, settings.times, network[name], network[f"{name}_error"], colour, mark=style.MARKS[index])
    style.moments(axes, settings.times)
    if name == "train":
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(NullFormatter())


def _laws(axes: Axes, settings: Settings, numbers: Numbers, name: str) -> None:
    middles = style.middles(np.array(settings.edges))
    for index, richness in enumerate(settings.richness):
        held, network = (numbers[f"{whose}, richness {richness:g}"] for whose in ("theory", "networks"))
        colour, label = style.CYCLE[index], rf"$\gamma_0={richness:g}$"
        style.line(axes, middles, held[name], colour, label, drawstyle="steps-mid", linewidth=1.4)
        some = slice(index % 2, None, 2)
        style.points(axes, middles[some], network[name][some], network[f"{name}_error"][some], colour, mark=".")
