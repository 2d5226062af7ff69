r"""How feature learning goes through a deep ReLU network: the alignment of every layer's kernel with the labels, against the richness."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adakern.figures import comparing, measuring, style
from adakern.figures.shape import Arrays, Data, Numbers, Part

TITLE = "A deep ReLU network: label alignment, layer by layer"
PAPER = (
    "Alignments of the kernels with the labels grow with the richness at every layer of a Bayesian ReLU network with L = 5 on P = 1000 images of CIFAR-10.",
    "The last layer aligns first as the richness grows, the others follow one after the other.",
    "The theory's kernels are those of the networks (there the solver was started from the networks' own kernels, with noise).",
)


@dataclass(frozen=True)
class Settings:
    """Sizes. `keep` points are enough to show kernels by."""

    points: int = 300
    depth: int = 5
    scan: tuple[float, ...] = (0.05, 0.15, 0.3)
    beta: float = 50.0
    decay: float = 1.0
    particles: int = 4096
    tolerance: float = 0.05
    solves: int = 2
    width: int = 2048
    networks: int = 3
    burn_in: float = 8.0
    time: float = 16.0
    keep: int = 100


FULL = Settings()
QUICK = Settings(
    points=20,
    scan=(0.1, 0.4, 1.5),
    particles=1024,
    width=256,
    networks=3,
    burn_in=6.0,
    time=12.0,
    keep=20,
)


def parts(settings: Settings) -> Iterator[Part]:
    task = {"data": Data("cifar10", settings.points), "depth": settings.depth, "activation": "relu"}
    task["keep"] = settings.keep
    yield Part("lazy", comparing.lazy, task)
    for richness in settings.scan:
        problem = {**task, "richness": richness, "beta": settings.beta, "decay": settings.decay}
        sizes = {name: getattr(settings, name) for name in ("particles", "tolerance", "solves")}
        yield Part(f"theory, richness {richness:g}", comparing.bayesian, {**problem, **sizes})
        sizes = {name: getattr(settings, name) for name in ("width", "networks", "burn_in", "time")}
        yield Part(f"networks, richness {richness:g}", comparing.sampled, {**problem, **sizes})


def draw(settings: Settings, numbers: Numbers) -> Figure:
    columns = settings.depth + 1
    figure = style.sheet(1.9 * columns + 0.8, 2.0 * 2 + 4.3, TITLE)
    grid = figure.add_gridspec(2, 1, height_ratios=(4.0, 4.0))
    above = np.asarray(grid[0].subgridspec(1, 2).subplots())
    theory, networks = (
        [numbers[f"{whose}, richness {value:g}"] for value in settings.scan] for whose in ("theory", "networks")
    )
    _labels(above[0], settings, numbers["lazy"], theory, networks)
    _apart(above[1], settings, theory, networks)
    axes = np.asarray(grid[1].subgridspec(2, columns).subplots(squeeze=False))
    name = rf"aNBK, $\gamma_0={settings.scan[-1]:g}$"
    kernels = comparing.layered(numbers["lazy"], theory[-1], networks[-1], "photographs", name)
    comparing.show(axes, kernels, numbers["lazy"]["y"], comparing.CLASSES["cifar10"])
    return figure


def _labels(axes: Axes, settings: Settings, lazy: Arrays, theory: list[Arrays], networks: list[Arrays]) -> None:
    scores = []
    for layer, colour in zip(range(settings.depth), style.CYCLE * settings.depth, strict=False):
        ours, error, theirs, doubt = (
            np.array([one[key][layer] for one in whose])
            for whose in (theory, networks)
            for key in ("label", "label_error")
        )
        label = rf"$\ell={layer + 1}$"
        style.band(axes, settings.scan, ours, error, colour, label)
        style.points(axes, settings.scan, theirs, doubt, colour, mark=style.MARKS[layer % len(style.MARKS)])
        axes.axhline(lazy["label"][layer], color=colour, linestyle=":", linewidth=1)
        scores.append(measuring.scores(ours, theirs, error, doubt))
    comparing.richness(axes, settings.scan)
    axes.set(ylim=(0, None), ylabel=r"alignment with labels, $\mathcal{A}(\Phi^\ell,yy^T)$")
    axes.set_title(f"How much each layer is about the labels, {settings.points} images")
    words = (
        f"lines: aNBK (dotted: lazy)\npoints: {settings.networks} networks of {settings.width} neurons, ± 2 standard errors\n"
        f"theory − networks: {measuring.rms(scores):.1f} joint standard errors (rms)"
    )
    style.legend(axes, words, loc="upper left", ncols=2)


def _apart(axes: Axes, settings: Settings, theory: list[Arrays], networks: list[Arrays]) -> None:
    off, joint = (
        100 * np.array(values)
        for values in zip(*(comparing.apart(*pair) for pair in zip(theory, networks, strict=True)), strict=True)
    )
    for layer, colour in zip(range(settings.depth), style.CYCLE * settings.depth, strict=False):
        mark = style.MARKS[layer % len(style.MARKS)]
        axes.plot(settings.scan, off[:, layer], mark, color=colour, label=rf"$\ell={layer + 1}$")
        axes.plot(settings.scan, joint[:, layer], "_", color=colour, markersize=18, markeredgewidth=2)
    comparing.richness(axes, settings.scan)
    axes.set(ylim=(0, 1.1 * max(off.max(), joint.max())), ylabel="theory − networks, in % of the kernel")
    axes.set_title("How far apart kernels are")
    style.legend(axes, "marks: difference; bars: what the\nstandard errors of both explain", ncols=2)
