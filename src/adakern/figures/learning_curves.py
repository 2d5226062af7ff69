r"""Test loss against the number of training images: five kernel machines, each beside networks of finite width.

Airplanes against automobiles, one hidden layer of ReLU. NNGP and NNGPK are lazy Bayesian networks, with and without the variance of the output; the NTK is a lazy network trained by gradient flow; the aNBK and the aNTK are
the same two with features learned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from adakern.figures import loss, measuring, style
from adakern.figures.shape import Data, Numbers, Part

TITLE = "Learning curves: airplanes against automobiles, CIFAR-10, one hidden layer of ReLU"
PAPER = (
    "Networks of width 5000 have the test losses of the infinite networks, at every number of images.",
    "There is a gap between the lazy and the adaptive predictors: those that learn features are better.",
    "With few images, learning features can overfit, and lazy learning is better in a small window.",
    "The NNGP is worse than the NNGPK: it has the same mean, and the variance of its random weights on top.",
)
_NARROW = ", a quarter of the width"
_LAZY = 0.1  # richness in NTK parameterisation of networks that stand for the NTK: their features stay where they are


class Curve(NamedTuple):
    """A theory, `array` of a computation, and the networks that go with it."""

    name: str
    colour: style.Colour
    theory: tuple[str, str]
    networks: tuple[str, str]


CURVES = (
    Curve("NNGP", style.BLUE, ("lazy theories", "nngp"), ("lazy sampled networks", "whole")),
    Curve("NNGPK", style.GREEN, ("lazy theories", "nngpk"), ("lazy sampled networks", "mean")),
    Curve("NTK", style.PURPLE, ("lazy theories", "ntk"), ("lazy trained networks", "mean")),
    Curve("aNTK", style.ORANGE, ("aNTK", "mean"), ("rich trained networks", "mean")),
    Curve("aNBK", style.VERMILION, ("aNBK", "mean"), ("rich sampled networks", "mean")),
)


@dataclass(frozen=True)
class Settings:
    """Sizes, and how long to sample and to train. What a finite width changes in lazy networks is of the order of P/N: they are wider. Each has networks of a quarter of its width beside it."""

    points: tuple[int, ...] = (20, 50, 100, 200)
    tests: int = 600
    richness: float = 0.3
    beta: float = 50.0
    decay: float = 1.0
    width: int = 4096
    lazy: int = 8192
    seeds: int = 4
    time: float = 25.0
    burn_in: float = 8.0
    flow: float = 3200.0
    fit: float = 500.0
    particles: int = 8192
    tolerance: float = 0.05
    solves: int = 3


FULL = Settings()
QUICK = Settings(
    points=(20, 60),
    tests=300,
    width=1024,
    lazy=2048,
    seeds=4,
    time=12.0,
    burn_in=4.0,
    flow=100.0,
    fit=200.0,
    particles=2048,
)


def parts(settings: Settings) -> Iterator[Part]:
    for points in settings.points:
        data = {"data": Data("cifar10", points, settings.tests)}
        bayes = {**data, "beta": settings.beta, "decay": settings.decay}
        rich, seeds = {"richness": settings.richness}, {"seeds": settings.seeds}
        solver = {"particles": settings.particles, "tolerance": settings.tolerance, "seeds": settings.solves}
        yield Part(_name("lazy theories", points), loss.lazy, bayes)
        yield Part(_name("aNTK", points), loss.antk, {**data, **rich, "decay": settings.decay})
        yield Part(_name("aNBK", points), loss.anbk, {**bayes, **rich, **solver})
        drawn = {**bayes, "time": settings.time, "burn_in": settings.burn_in, **seeds}
        lazy = {"parameterization": "ntk", "richness": 1.0, "width": settings.lazy}
        field = {"parameterization": "mean-field", **rich, "width": settings.width}
        fit = {**data, **lazy, "richness": _LAZY, "decay": 0.0, "time": settings.fit, **seeds}
        end = {**data, **field, "decay": settings.decay, "time": settings.flow, **seeds}
        kinds: tuple[tuple[str, Any, dict[str, Any]], ...] = (
            ("lazy sampled networks", loss.sampled, {**drawn, **lazy}),
            ("rich sampled networks", loss.sampled, {**drawn, **field}),
            ("lazy trained networks", loss.trained, fit),
            ("rich trained networks", loss.trained, end),
        )
        for name, compute, arguments in kinds:
            yield Part(_name(name, points), compute, arguments)
            yield Part(_name(f"{name}{_NARROW}", points), compute, {**arguments, "width": arguments["width"] // 4})


def _name(whose: str, points: int) -> str:
    return f"{whose}, P {points}"


def draw(settings: Settings, numbers: Numbers) -> Figure:
    figure, axes = style.panels(1, 2, TITLE, size=(5.4, 4.4))
    place, beside = axes[0]
    beside.axhline(0, color=style.GREY, linewidth=0.8)
    for index, curve in enumerate(CURVES):
        (ours, doubt), (theirs, error, own) = _theory(settings, numbers, curve), _networks(settings, numbers, curve)
        mark = style.MARKS[index]
        style.band(place, settings.points, ours, doubt, curve.colour, curve.name)
        style.points(place, settings.points, theirs, error, curve.colour, mark=mark)
        style.line(place, settings.points, theirs, curve.colour, linestyle="--", linewidth=1.0)
        z, bare = (float(np.abs(measuring.scores(theirs, ours, doubt, e)).max()) for e in (error, own))
        shift = 1 + 0.05 * (index - (len(CURVES) - 1) / 2)  # side by side
        label = f"{curve.name}: |z| at most {z:.1f} (seeds alone: {bare:.1f})"
        style.points(
            beside, np.array(settings.points) * shift, theirs - ours, np.hypot(doubt, error), curve.colour, label, mark
        )
    for axis in (place, beside):
        axis.set(xscale="log", xlabel="training images $P$")
        axis.set_xticks(settings.points, [str(points) for points in settings.points])
        axis.minorticks_off()
    place.set(ylabel="test loss, mean of $(y-f)^2$")
    place.set_title(
        rf"richness $\gamma_0$ = {settings.richness:g} where adaptive, $\beta$ = {settings.beta:g}, decay $\lambda$ = {settings.decay:g}"
    )
    words = f"{settings.seeds} networks of {settings.width}\n(adaptive) and {settings.lazy} neurons (lazy), ± 2 standard errors"
    style.legend(place, f"lines: theory; points, dashed: {words}")
    reach = 1.05 * max(abs(limit) for limit in beside.get_ylim())
    beside.set(ylabel="test loss, networks − theory", ylim=(-reach, reach))
    beside.set_title("Theory within the error bars?")
    style.legend(
        beside,
        "bars: 2 standard errors, of seeds and of the finite width\nz: networks − theory in standard errors",
    )
    return figure


def _theory(settings: Settings, numbers: Numbers, curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    """A loss and its error at every P."""
    part, array = curve.theory
    found = [numbers[_name(part, points)] for points in settings.points]
    return np.array([one[array].item() for one in found]), np.array([one[f"{array}_error"].item() for one in found])


def _networks(settings: Settings, numbers: Numbers, curve: Curve) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same, and the error over seeds alone."""
    part, array = curve.networks
    found = [[numbers[_name(f"{part}{which}", points)] for which in ("", _NARROW)] for points in settings.points]
    values, errors = np.array([loss.wide(wide, narrow, array) for wide, narrow in found]).T
    return values, errors, np.array([wide[f"{array}_error"].item() for wide, _ in found])
