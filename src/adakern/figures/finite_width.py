r"""What a finite width changes: networks in NTK parameterisation beside networks in mean-field parameterisation, over the width $N$.

In NTK parameterisation (lazy at infinite width, where it is the NNGP) the output has a variance of order one, and a finite width renormalises its kernel by a scale $Q(P/N)$ (Pacelli et al. 2023).
In mean-field parameterisation kernels learn at any width, and the variance of the output falls as $1/\gamma_0^2N$.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adakern.figures import loss, measuring, style
from adakern.figures.shape import Data, Numbers, Part

TITLE = "Finite width: airplanes against automobiles, CIFAR-10, one hidden layer of ReLU"
PAPER = (
    "In NTK parameterisation the predictor is not consistent across widths: the NNGP is approached only when N is much larger than P, and the theory of kernels renormalised by one scale describes the way there.",
    "In mean-field parameterisation finite-width effects are negligible: networks lie on the curves of the aNTK and of the aNBK.",
    "A finite width adds variance to the predictor, and so increases the test loss.",
)


@dataclass(frozen=True)
class Settings:
    """Sizes, and how long to sample and to train."""

    points: int = 100
    tests: int = 600
    widths: tuple[int, ...] = (32, 64, 128, 256, 512, 1024, 2048)
    richness: float = 0.3
    beta: float = 50.0
    decay: float = 1.0
    seeds: int = 4
    time: float = 60.0
    burn_in: float = 20.0
    flow: float = 200.0
    particles: int = 8192
    tolerance: float = 0.03
    solves: int = 3
    curve: tuple[int, ...] = tuple(int(width) for width in np.geomspace(16, 16384, 41).round())


FULL = Settings()
QUICK = Settings(
    points=30,
    tests=200,
    widths=(32, 128, 512),
    seeds=4,
    time=30.0,
    burn_in=8.0,
    flow=100.0,
    particles=2048,
    tolerance=0.05,
    curve=tuple(int(width) for width in np.geomspace(16, 2048, 15).round()),
)


def parts(settings: Settings) -> Iterator[Part]:
    data = {"data": Data("cifar10", settings.points, settings.tests)}
    bayes = {**data, "beta": settings.beta, "decay": settings.decay}
    rich, seeds = {"richness": settings.richness}, {"seeds": settings.seeds}
    solver = {"particles": settings.particles, "tolerance": settings.tolerance, "seeds": settings.solves}
    yield Part("lazy theories", loss.lazy, bayes)
    yield Part("renormalised", loss.renormalized, {**bayes, "widths": settings.curve})
    yield Part("renormalised, at the widths of networks", loss.renormalized, {**bayes, "widths": settings.widths})
    yield Part("aNTK", loss.antk, {**data, **rich, "decay": settings.decay})
    yield Part("aNBK", loss.anbk, {**bayes, **rich, **solver})
    drawn = {**bayes, "time": settings.time, "burn_in": settings.burn_in, **seeds}
    for width in settings.widths:
        ntk: dict[str, Any] = {"parameterization": "ntk", "richness": 1.0, "width": width}
        field: dict[str, Any] = {"parameterization": "mean-field", **rich, "width": width}
        end = {**data, "decay": settings.decay, "time": settings.flow, **seeds}
        yield Part(_name("NTK parameterisation, sampled", width), loss.sampled, {**drawn, **ntk})
        yield Part(_name("mean field, sampled", width), loss.sampled, {**drawn, **field})
        yield Part(_name("mean field, trained", width), loss.trained, {**end, **field})


def _name(whose: str, width: int) -> str:
    return f"{whose}, N {width}"


class Row(NamedTuple):
    """Networks, one of their losses, what they are compared with (a value at every width and its error), and how they look."""

    whose: str
    array: str
    theory: Any
    doubt: float
    colour: style.Colour
    mark: str
    words: str


def draw(settings: Settings, numbers: Numbers) -> Figure:
    figure, axes = style.panels(1, 2, TITLE, size=(5.2, 4.5), level=True)
    left, right = axes[0]
    lazy, curve = numbers["lazy theories"], numbers["renormalised"]
    nngpk = lazy["nngpk"].item()
    left.axhline(lazy["nngp"].item(), color=style.BLUE, label="NNGP, infinite width")
    left.axhline(nngpk, color=style.GREEN, linewidth=1.2, label="NNGPK, infinite width: its mean alone")
    style.line(left, settings.curve, curve["whole"], style.SKY, "renormalised NNGP (Pacelli et al.)", linestyle="--")
    own, sampled = numbers["renormalised, at the widths of networks"]["whole"], "NTK parameterisation, sampled"
    _networks(
        left, settings, numbers, Row(sampled, "whole", own, 0.0, style.BLUE, "o", "networks, against the dashed line")
    )
    _networks(left, settings, numbers, Row(sampled, "mean", nngpk, 0.0, style.GREEN, "s", "their mean output"))
    left.set_title(f"NTK parameterisation, {settings.points} images")
    ends = {name: (numbers[name]["mean"].item(), numbers[name]["mean_error"].item()) for name in ("aNTK", "aNBK")}
    for name, colour in (("aNBK", style.VERMILION), ("aNTK", style.ORANGE)):
        value, doubt = ends[name]
        right.axhline(value, color=colour, label=f"{name}, infinite width")
        right.axhspan(value - 2 * doubt, value + 2 * doubt, color=colour, alpha=0.2, linewidth=0)
    sampled, trained = "mean field, sampled", "mean field, trained"
    _networks(right, settings, numbers, Row(sampled, "whole", *ends["aNBK"], style.VERMILION, "v", "networks, sampled"))
    _networks(right, settings, numbers, Row(sampled, "mean", *ends["aNBK"], style.PURPLE, "^", "their mean output"))
    _networks(
        right, settings, numbers, Row(trained, "whole", *ends["aNTK"], style.ORANGE, "D", "networks, trained to rest")
    )
    right.set_title(rf"mean-field parameterisation, richness $\gamma_0$ = {settings.richness:g}")
    for place in (left, right):
        place.set(xscale="log", xlabel="width $N$", ylabel="test loss, mean of $(y-f)^2$")
        place.set_xlim(settings.widths[0] / 2, settings.widths[-1] * 2)
        place.set_xticks(settings.widths, [str(width) for width in settings.widths])
        place.minorticks_off()
        style.legend(
            place,
            f"points: {settings.seeds} networks each, ± 2 standard errors\nz: their distance from the line in standard errors",
        )
    return figure


def _networks(axes: Axes, settings: Settings, numbers: Numbers, row: Row) -> None:
    """Losses over widths, and how far off the farthest and the widest are."""
    found = [numbers[_name(row.whose, width)] for width in settings.widths]
    losses, errors = (np.array([one[name].item() for one in found]) for name in (row.array, f"{row.array}_error"))
    z = measuring.scores(losses, row.theory, errors, row.doubt)
    words = f"{row.words} (|z| at most {np.abs(z).max():.1f}, of the widest {abs(z[-1]):.1f})"
    style.points(axes, settings.widths, losses, errors, row.colour, words, row.mark)
