r"""The kernels of every layer of a deep tanh network under its posterior: theory beside Langevin-sampled networks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adakern.figures import comparing, style
from adakern.figures.shape import Arrays, Data, Numbers, Part

TITLE = "A deep tanh network, layer by layer: aNBK beside Langevin networks"
PAPER = (
    "The aNBK's kernels of every layer resemble those of Langevin dynamics on P = 50 digits; alignments are 97, 81, 73 and 89 % from the first of four hidden layers to the last.",
    "The last layer's kernel aligns with the labels first: classes are most distinct there.",
    "What is left between theory and experiment is put down to the min–max solver, which converges badly in deep networks.",
)
PUBLISHED = (0.97, 0.81, 0.73, 0.89)
LEAST = 1e-7  # that kernels in float32 can lack in alignment


@dataclass(frozen=True)
class Settings:
    r"""Sizes. The caption speaks of five layers and lists four kernels: four hidden layers, five of weights. Its richness is not stated; 0.5 is our choice."""

    points: int = 50
    depth: int = 4
    richness: float = 0.5
    beta: float = 50.0
    decay: float = 1.0
    particles: int = 4096
    tolerance: float = 0.01
    solves: int = 2
    width: int = 4096
    networks: int = 4
    burn_in: float = 20.0
    time: float = 60.0
    least: float = 0.9998  # the alignment that is asked for


FULL = Settings()
QUICK = Settings(particles=1024, tolerance=0.05, width=512, networks=3, burn_in=6.0, time=16.0, least=0.999)


def parts(settings: Settings) -> Iterator[Part]:
    points = settings.points
    task = {"data": Data("mnist", points), "depth": settings.depth, "activation": "tanh", "keep": points}
    yield Part("lazy", comparing.lazy, task)
    problem = {**task, "richness": settings.richness, "beta": settings.beta, "decay": settings.decay}
    sizes = {name: getattr(settings, name) for name in ("particles", "tolerance", "solves")}
    yield Part("theory", comparing.bayesian, {**problem, **sizes})
    sizes = {name: getattr(settings, name) for name in ("width", "networks", "burn_in", "time")}
    yield Part("networks", comparing.sampled, {**problem, **sizes})


def draw(settings: Settings, numbers: Numbers) -> Figure:
    columns = settings.depth + 1
    figure = style.sheet(2.05 * columns + 0.8, 2.15 * 2 + 3.8, TITLE)
    grid = figure.add_gridspec(2, 1, height_ratios=(4.4, 3.2))
    axes = np.asarray(grid[0].subgridspec(2, columns).subplots(squeeze=False))
    lazy, theory, networks = (numbers[name] for name in ("lazy", "theory", "networks"))
    kernels = comparing.layered(lazy, theory, networks, f"{settings.points} digits", "aNBK")
    comparing.show(axes, kernels, lazy["y"], comparing.CLASSES["mnist"])
    cosines = comparing.aligned(theory, networks)
    below = np.asarray(grid[1].subgridspec(1, 3).subplots())
    _deficits(below[0], settings, cosines)
    _apart(below[1], settings, theory, networks)
    _labels(below[2], settings, lazy, theory, networks)
    return figure


def _layers(axes: Axes, settings: Settings) -> np.ndarray:
    layers = np.arange(1, settings.depth + 1)
    axes.set(xlabel=r"hidden layer $\ell$", xlim=(0.5, settings.depth + 0.5))
    axes.set_xticks(layers)
    return layers


def _deficits(axes: Axes, settings: Settings, cosines: np.ndarray) -> None:
    layers = _layers(axes, settings)
    if len(layers) == len(PUBLISHED):
        axes.plot(layers, 1 - np.array(PUBLISHED), "x", color=style.GREY, markersize=8, label="as published")
    missing = np.maximum(1 - cosines, LEAST)
    axes.plot(layers, missing, "o", color=style.VERMILION, label="here")
    axes.axhline(
        1 - settings.least, color=style.GREY, linestyle="--", linewidth=1, label=f"alignment {settings.least:g}"
    )
    axes.set(yscale="log", ylim=(min(1e-6, missing.min() / 2), 1))
    axes.set_ylabel("1 − alignment of theory and networks")
    held = "All" if (cosines >= settings.least).all() else "Not all"
    axes.set_title(f"{held} layers at {settings.least:g} or better")
    style.legend(axes, ncols=2)


def _apart(axes: Axes, settings: Settings, theory: Arrays, networks: Arrays) -> None:
    layers = _layers(axes, settings)
    off, joint = (100 * value for value in comparing.apart(theory, networks))
    axes.plot(layers, off, "o", color=style.VERMILION, label="difference")
    axes.plot(
        layers,
        joint,
        "_",
        color=style.GREY,
        markersize=22,
        markeredgewidth=2,
        label="standard errors of both",
    )
    axes.set(ylim=(0, 1.1 * max(off.max(), joint.max())), ylabel="theory − networks, in % of the kernel")
    axes.set_title("How far apart they are")
    style.legend(
        axes, f"networks of {settings.width} neurons; a finite\nwidth adds to the difference", handlelength=2.6
    )


def _labels(axes: Axes, settings: Settings, lazy: Arrays, theory: Arrays, networks: Arrays) -> None:
    layers = _layers(axes, settings)
    style.line(axes, layers, lazy["label"], style.BLUE, "lazy")
    style.band(axes, layers, theory["label"], theory["label_error"], style.VERMILION, "aNBK")
    words = f"{settings.networks} networks, ± 2 standard errors"
    style.points(axes, layers, networks["label"], networks["label_error"], style.VERMILION, words)
    axes.set(ylim=(0, 1.05), ylabel=r"alignment with labels, $\mathcal{A}(\Phi^\ell,yy^T)$")
    axes.set_title("The last layer aligns most")
    style.legend(axes, rf"richness $\gamma_0={settings.richness:g}$", loc="lower left")
