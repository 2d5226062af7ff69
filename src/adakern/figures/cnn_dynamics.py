r"""Training of a convolutional network with one hidden layer over time: losses of the infinite network and of networks, for three values of the richness and two numbers of images.

Windows of 8 × 8 pixels side by side, ReLU, one readout weight per position. The fastest rates grow with the number of images $P$, so times are counted in units of $1/P$.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adakern.figures import measuring, racing, style
from adakern.figures.shape import Data, Numbers, Part

TITLE = "Training of a CNN over time: animals against vehicles, CIFAR-10 in colour"
PAPER = (
    "The dynamics of the infinitely wide CNN are those of networks of finite width, at every richness.",
    "With few images (P = 100) there is a best time to stop at every richness: the test loss falls and then rises.",
    "Richer networks overfit sooner when there are few images.",
    "With more images (P = 1000) overfitting is less severe.",
)


@dataclass(frozen=True)
class Settings:
    """Sizes, and where to look: times in units of 1/P."""

    points: tuple[int, ...] = (100, 1000)
    tests: int = 500
    richness: tuple[float, ...] = (0.3, 1.0, 3.0)
    decay: float = 0.01
    times: tuple[float, ...] = tuple(np.geomspace(0.1, 100.0, 16).round(6).tolist())
    neurons: int = 1024
    replicas: int = 4
    width: int = 1024
    networks: int = 4
    accuracy: float = 3e-4
    steps: float = 1e-4


FULL = Settings()
QUICK = Settings(
    points=(20, 60),
    tests=100,
    times=tuple(np.geomspace(0.1, 30.0, 11).round(6).tolist()),
    neurons=128,
    replicas=8,
    width=128,
    networks=4,
    accuracy=1e-3,
    steps=1e-3,
)


def parts(settings: Settings) -> Iterator[Part]:
    for points in settings.points:
        for richness in settings.richness:
            look = {
                "network": "CNN",
                "data": Data("animate", points, settings.tests),
                "richness": richness,
                "decay": settings.decay,
                "times": tuple(time / points for time in settings.times),
            }
            theory = {"neurons": settings.neurons, "replicas": settings.replicas, "accuracy": settings.accuracy}
            networks = {
                "width": settings.width,
                "replicas": settings.networks,
                "accuracy": settings.steps,
                "centred": True,
            }
            yield Part(_name("theory", points, richness), racing.theory, {**look, **theory})
            yield Part(_name("networks", points, richness), racing.networks, {**look, **networks})


def _name(whose: str, points: int, richness: float) -> str:
    return f"{whose}, P {points}, richness {richness:g}"


def draw(settings: Settings, numbers: Numbers) -> Figure:
    figure, axes = style.panels(2, len(settings.points), TITLE, size=(4.6, 3.3), level=True)
    words = f"lines: theory; points: {settings.networks} networks of\n{settings.width} channels, ± 2 standard errors\nz: theory − networks in joint standard errors"
    for column, points in enumerate(settings.points):
        for row, kind in enumerate(("test", "train")):
            place: Axes = axes[row, column]
            for index, richness in enumerate(settings.richness):
                _curve(place, settings, numbers, kind, points, richness, index)
            place.set(xscale="log", xlabel="training time × number of images", ylabel=f"{kind} loss, mean of $(y-f)^2$")
            place.set_title(f"{points} images: {kind} loss")
            if kind == "test":
                _stars(place, settings, numbers, points)
                style.star(place, [], [], style.GREY, "best time to stop (theory)\nside by side: one for two")
            style.legend(place, words)
        axes[1, column].set_yscale("log")
    return figure


def _curve(
    axes: Axes, settings: Settings, numbers: Numbers, kind: str, points: int, richness: float, index: int
) -> None:
    theory, networks = (numbers[_name(whose, points, richness)] for whose in ("theory", "networks"))
    colour, mark = style.CYCLE[index], style.MARKS[index]
    z = measuring.rms(racing.scores(theory, networks, kind))
    label = rf"richness $\gamma_0$ = {richness:g} (rms z {z:.1f})"
    style.band(axes, settings.times, theory[kind], theory[f"{kind}_error"], colour)
    style.points(axes, settings.times, networks[kind], networks[f"{kind}_error"], colour, label, mark)


def _stars(axes: Axes, settings: Settings, numbers: Numbers, points: int) -> None:
    """The best times to stop, side by side where one is that of several; a loss that still falls at the end has none."""
    losses = [numbers[_name("theory", points, richness)]["test"] for richness in settings.richness]
    best = [int(np.argmin(loss)) for loss in losses]
    for index, (place, loss) in enumerate(zip(best, losses, strict=True)):
        if place == len(settings.times) - 1:
            continue
        aside = 10.0 * (best[:index].count(place) - (best.count(place) - 1) / 2)
        style.star(axes, settings.times[place], loss[place], style.CYCLE[index], aside=aside)
