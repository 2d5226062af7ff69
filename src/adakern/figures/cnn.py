r"""A CNN and an MLP with one hidden layer on the same images: test loss against the number of training images.

Trained as in the paper's notebooks: gradient flow with the loss *averaged* over patterns and decay $\lambda$ for a time $T$, which is the flow with the loss summed over $P$ patterns and decay $\lambda P$ for a time $T/P$. Images are the first of the data set; beside the published loss stands that of the theory on the images of the published program, which are others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adakern.figures import measuring, racing, style
from adakern.figures.shape import Arrays, Data, Numbers, Part

TITLE = "CNN against MLP: animals against vehicles, CIFAR-10 in colour"
PAPER = (
    "Test losses of trained networks of finite width, MLP and CNN, are those of the infinite networks, at every number of images.",
    "The CNN is better than the MLP of the same richness when there are many images.",
    "Published for the CNN with 1000 images at richness 1: a test loss of 0.461 and a train loss, half the mean square, of 0.188.",
)
PUBLISHED = (1.0, 1000, 0.461)  # richness, images, test loss of the CNN
THEIRS = "theory, CNN, images of the published program"
LOOKS = {"MLP": (style.BLUE, "o"), "CNN": (style.VERMILION, "s")}


@dataclass(frozen=True)
class Settings:
    """Sizes, and how long to train: decay and time are those of the loss averaged over patterns."""

    points: tuple[int, ...] = (50, 100, 200, 500, 1000)
    tests: int = 500
    richness: tuple[float, ...] = (0.3, 1.0)
    decay: float = 0.01
    time: float = 200.0
    neurons: int = 1024
    replicas: int = 4
    width: int = 1024
    networks: int = 4
    accuracy: float = 3e-4
    steps: float = 3e-4
    published: bool = True  # also the images of the published program, where its number of them is among `points`


FULL = Settings()
QUICK = Settings(
    points=(10, 20, 40),
    tests=200,
    neurons=128,
    replicas=6,
    width=128,
    networks=4,
    accuracy=1e-3,
    steps=1e-3,
    published=False,
)


def parts(settings: Settings) -> Iterator[Part]:
    theory = {"neurons": settings.neurons, "replicas": settings.replicas, "accuracy": settings.accuracy}
    for points in settings.points:
        for richness in settings.richness:
            for network in LOOKS:
                look = {
                    "network": network,
                    "data": Data("animate", points, settings.tests),
                    "richness": richness,
                    "decay": settings.decay * points,
                    "times": (settings.time / points,),
                }
                networks = {
                    "width": settings.width,
                    "replicas": settings.networks,
                    "accuracy": settings.steps,
                    "centred": False,
                }
                yield Part(_name("theory", network, points, richness), racing.theory, {**look, **theory})
                yield Part(_name("networks", network, points, richness), racing.networks, {**look, **networks})
    if _shown(settings):
        richness, points, _ = PUBLISHED
        look = {"network": "CNN", "data": Data("published", points, settings.tests), "richness": richness}
        length = {"decay": settings.decay * points, "times": (settings.time / points,)}
        yield Part(THEIRS, racing.theory, {**look, **length, **theory})


def _shown(settings: Settings) -> bool:
    return settings.published and PUBLISHED[0] in settings.richness and PUBLISHED[1] in settings.points


def _name(whose: str, network: str, points: int, richness: float) -> str:
    return f"{whose}, {network}, P {points}, richness {richness:g}"


def draw(settings: Settings, numbers: Numbers) -> Figure:
    figure, axes = style.panels(1, len(settings.richness), TITLE, size=(4.8, 3.9), level=True)
    for place, richness in zip(axes[0], settings.richness, strict=True):
        for network in LOOKS:
            _curve(place, settings, numbers, network, richness)
        if richness == PUBLISHED[0] and _shown(settings):
            theirs = numbers[THEIRS]
            style.star(place, *PUBLISHED[1:], style.BLACK, "published, CNN, other images", aside=-5.0)
            style.points(
                place,
                [PUBLISHED[1]],
                theirs["test"],
                theirs["test_error"],
                style.SKY,
                "CNN, theory on those images",
                "D",
            )
        place.set(xscale="log", xlabel="training images $P$", ylabel="test loss, mean of $(y-f)^2$")
        place.set_xticks(settings.points, [str(points) for points in settings.points])
        place.minorticks_off()
        place.set_title(rf"richness $\gamma_0$ = {richness:g}, decay {settings.decay:g}, time {settings.time:g}")
        style.legend(
            place,
            f"points: {settings.networks} networks of {settings.width} neurons or\nchannels, ± 2 standard errors\nz: theory − networks in joint standard errors",
        )
    return figure


def _curve(axes: Axes, settings: Settings, numbers: Numbers, network: str, richness: float) -> None:
    theory, networks = (
        _gather([numbers[_name(whose, network, points, richness)] for points in settings.points])
        for whose in ("theory", "networks")
    )
    colour, mark = LOOKS[network]
    z = measuring.rms(racing.scores(theory, networks, "test"))
    style.band(
        axes, settings.points, theory["test"], theory["test_error"], colour, f"{network}, theory (rms z {z:.1f})"
    )
    style.points(axes, settings.points, networks["test"], networks["test_error"], colour, f"{network}, networks", mark)


def _gather(found: list[Arrays]) -> Arrays:
    """One number per P."""
    return {name: np.array([one[name][-1] for one in found]) for name in found[0]}
