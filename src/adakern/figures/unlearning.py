"""Two layers, digits, with and without weight decay: a lazy network unlearns what it has learned, a rich one does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

import adakern as ak
from adakern.figures import measuring, style
from adakern.figures.shape import Arrays, Data, Numbers, Part, mlp

TITLE = "Weight decay makes a lazy network unlearn, and a rich one not"
PAPER = (
    "In lazy training weight decay makes a network unlearn: its output shrinks once its features have decayed.",
    "With a richness large enough beside the decay, the predictor at the end is not trivial; in NTK parameterisation it is zero.",
)

_LOOKS = {True: "-", False: "--"}


@dataclass(frozen=True)
class Settings:
    """Sizes, and where to look."""

    train: int = 50
    test: int = 600
    richness: tuple[float, ...] = (0.1, 1.0)
    decays: tuple[float, ...] = (0.0, 2.0)
    times: tuple[float, ...] = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.5, 5.0)
    neurons: int = 16384
    width: int = 16384
    seeds: int = 8


FULL = Settings()
QUICK = Settings(train=20, test=200, neurons=4096, width=4096, seeds=4)


def parts(settings: Settings) -> Iterator[Part]:
    data = Data("mnist", settings.train, settings.test)
    for richness in settings.richness:
        for decay in settings.decays:
            task = {"data": data, "richness": richness, "decay": decay, "times": settings.times}
            yield Part(_name("theory", richness, decay), theory, {**task, "neurons": settings.neurons})
            sizes = {"width": settings.width, "seeds": settings.seeds}
            yield Part(_name("networks", richness, decay), networks, {**task, **sizes})


def _name(whose: str, richness: float, decay: float) -> str:
    return f"{whose}, richness {richness:g}, decay {decay:g}"


def theory(data: Data, richness: float, decay: float, times: tuple[float, ...], neurons: int) -> Arrays:
    """The infinite network over time."""
    X, y, X_test, y_test = data.load()
    limit = ak.ANTK(mlp(1, "relu"), richness=richness, decay=decay)
    way = ak.dynamics(limit, X, y, times, X_test=X_test, y_test=y_test, neurons=neurons, accuracy=1e-4, keep=False)
    return measuring.trajectory(way)


def networks(data: Data, richness: float, decay: float, times: tuple[float, ...], width: int, seeds: int) -> Arrays:
    """Networks of finite width over time."""
    return measuring.in_time(mlp(1, "relu"), data, times, seeds, richness=richness, decay=decay, width=width)


def draw(settings: Settings, numbers: Numbers) -> Figure:
    figure, axes = style.panels(2, 2, TITLE)
    panels = {
        "train": ("Training loss", r"$\frac{1}{2}\langle(y-f)^2\rangle$, training images"),
        "test": ("Test loss", r"$\frac{1}{2}\langle(y-f)^2\rangle$, new images"),
        "size": ("How large the features are", r"$\mathrm{Tr}\,\Phi(t)\,/\,\mathrm{Tr}\,\Phi(0)$"),
        "alignment": ("How much they are about the labels", r"alignment with labels, $\mathcal{A}(\Phi(t),yy^T)$"),
    }
    for place, (name, (title, label)) in zip(axes.flat, panels.items(), strict=True):
        _curves(place, settings, numbers, name)
        place.set_title(title)
        place.set(xlabel="time $t$", ylabel=label)
    axes[1, 0].set_yscale("log")
    words = rf"richness $\gamma_0$, decay $\lambda$; lines: theory; points: networks of {settings.width} neurons, ± 2 standard errors"
    style.shared(figure, axes[0, 0], words)
    return figure


def _curves(axes: Axes, settings: Settings, numbers: Numbers, name: str) -> None:
    """One reading over time."""
    for index, richness in enumerate(settings.richness):
        for decay in settings.decays:
            held, network = (numbers[_name(whose, richness, decay)] for whose in ("theory", "networks"))
            colour = style.CYCLE[index]
            label = rf"$\gamma_0={richness:g}$, $\lambda={decay:g}$"
            look = _LOOKS[decay > 0]
            style.band(axes, settings.times, held[name], held[f"{name}_error"], colour, label, linestyle=look)
            mark = "o" if decay > 0 else "s"
            style.points(axes, settings.times, network[name], network[f"{name}_error"], colour, mark=mark)
    style.moments(axes, settings.times)
