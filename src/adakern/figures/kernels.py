r"""What feature learning does to the kernel $\Phi^1$ of one hidden layer: theory beside trained networks, from lazy to rich.

Points are sorted by class and drawn as correlations, $\Phi_{\mu\nu}/\sqrt{\Phi_{\mu\mu}\Phi_{\nu\nu}}$; numbers compare the kernels themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adakern.figures import comparing, style
from adakern.figures.comparing import Panel
from adakern.figures.shape import Data, Numbers, Part

TITLE = "Learned kernels of one hidden layer, sorted by class: theory beside networks"
PAPER = (
    "The feature kernels of both adaptive theories, aNTK and aNBK, closely match those of trained networks (CIFAR-10, P = 100).",
    "They change with the richness: points of one class come together in feature space, more so the richer the network is.",
    "The same holds for the aNBK of a tanh network and Langevin dynamics on P = 50 digits 0 and 1, beside the Gram matrix of the inputs.",
)

NAMES = {"ANBK": "aNBK", "ANTK": "aNTK"}
KINDS = {"cifar10": "photographs", "mnist": "digits"}
ACTIVATIONS = {"relu": "ReLU", "tanh": "tanh"}
Case = tuple[str, str, int, str, tuple[float, ...]]


@dataclass(frozen=True)
class Settings:
    """Sizes. A case is a theory, a source of images, how many, an activation and richnesses."""

    cases: tuple[Case, ...] = (
        ("ANBK", "cifar10", 100, "relu", (0.1, 0.3, 0.5)),
        ("ANTK", "cifar10", 100, "relu", (0.1, 0.3, 1.0)),
        ("ANBK", "mnist", 50, "tanh", (0.1, 0.5, 2.0)),
    )
    beta: float = 50.0
    decay: float = 1.0
    particles: int = 8192
    tolerance: float = 0.05
    solves: int = 2
    width: int = 8192
    networks: int = 3
    burn_in: float = 10.0
    time: float = 20.0
    flow: float = 400.0


FULL = Settings()
QUICK = Settings(
    cases=(
        ("ANBK", "cifar10", 30, "relu", (0.1, 0.2, 0.5)),
        ("ANTK", "cifar10", 30, "relu", (0.2, 0.3, 0.5)),
        ("ANBK", "mnist", 30, "tanh", (0.1, 0.5, 2.0)),
    ),
    particles=4096,
    width=1024,
    networks=3,
    burn_in=8.0,
    time=16.0,
    flow=200.0,
)


def parts(settings: Settings) -> Iterator[Part]:
    for kind, source, points, activation, scan in settings.cases:
        task = {"data": Data(source, points), "depth": 1, "activation": activation, "keep": points}
        yield Part(_lazy(kind, source), comparing.lazy, task)
        for richness in scan:
            problem = {**task, "richness": richness, "decay": settings.decay}
            theory, networks = (_name(whose, kind, source, richness) for whose in ("theory", "networks"))
            sizes = {"width": settings.width, "networks": settings.networks}
            if kind == "ANTK":
                yield Part(theory, comparing.resting, problem)
                yield Part(networks, comparing.trained, {**problem, **sizes, "time": settings.flow})
                continue
            problem["beta"] = settings.beta
            solver = {name: getattr(settings, name) for name in ("particles", "tolerance", "solves")}
            yield Part(theory, comparing.bayesian, {**problem, **solver})
            times = {"burn_in": settings.burn_in, "time": settings.time}
            yield Part(networks, comparing.sampled, {**problem, **sizes, **times})


def _name(whose: str, kind: str, source: str, richness: float) -> str:
    return f"{whose}, {kind}, {source}, richness {richness:g}"


def _lazy(kind: str, source: str) -> str:
    return f"lazy, {kind}, {source}"


def draw(settings: Settings, numbers: Numbers) -> Figure:
    columns, cases = 1 + max(len(case[-1]) for case in settings.cases), len(settings.cases)
    figure = style.sheet(1.8 * (columns + 2) + 0.5, 3.95 * cases + 0.45, TITLE)
    halves = figure.add_gridspec(1, 2, width_ratios=(columns, 2))
    left, right = halves[0].subgridspec(cases, 1), halves[1].subgridspec(2, 1)
    for index, case in enumerate(settings.cases):
        _case(np.asarray(left[index].subgridspec(2, columns).subplots(squeeze=False)), case, numbers)
    above, below = np.asarray(right.subplots())
    _labels(above, settings, numbers)
    _apart(below, settings, numbers)
    return figure


def _case(axes: np.ndarray, case: Case, numbers: Numbers) -> None:
    kind, source, points, activation, scan = case
    start = numbers[_lazy(kind, source)]
    above = [Panel(start["inputs"], rf"{points} {KINDS[source]}: inputs $\Phi^0$", True)]
    below = [Panel(start["kernels"][0], rf"lazy $\Phi^1$, {ACTIVATIONS[activation]}")]
    for richness in scan:
        theory, networks = (numbers[_name(whose, kind, source, richness)] for whose in ("theory", "networks"))
        above.append(Panel(theory["kernels"][0], rf"{NAMES[kind]}, $\gamma_0={richness:g}$"))
        below.append(Panel(networks["kernels"][0], comparing.beside(comparing.aligned(theory, networks)[0])))
    comparing.show(axes, [above, below], start["y"], comparing.CLASSES[source])


def _curves(settings: Settings, numbers: Numbers) -> Iterator[tuple[str, Any, str, str, list[Any], list[Any]]]:
    """Words, richnesses, colour and mark of each case, and its theory and networks."""
    for (kind, source, _, activation, scan), colour, mark in zip(
        settings.cases, style.CYCLE, style.MARKS, strict=False
    ):
        theory, networks = (
            [numbers[_name(whose, kind, source, value)] for value in scan] for whose in ("theory", "networks")
        )
        words = f"{NAMES[kind]}, {KINDS[source]}, {ACTIVATIONS[activation]}"
        yield words, np.array(scan), colour, mark, theory, networks


def _labels(axes: Axes, settings: Settings, numbers: Numbers) -> None:
    for index, ((kind, source, *_), (label, scan, colour, mark, theory, networks)) in enumerate(
        zip(settings.cases, _curves(settings, numbers), strict=True)
    ):
        values, errors = ([one[key][0] for one in theory] for key in ("label", "label_error"))
        style.band(axes, scan, values, errors, colour, label)
        start = numbers[_lazy(kind, source)]["label"][0]
        axes.axhline(start, color=colour, linewidth=1.2, linestyle=(3 * index, (1, 5)))  # equal ones are all seen
        values, errors = ([one[key][0] for one in networks] for key in ("label", "label_error"))
        style.points(axes, scan, values, errors, colour, mark=mark)
    axes.set(ylabel=r"alignment with labels, $\mathcal{A}(\Phi^1,yy^T)$", ylim=(0, 1.05))
    comparing.richness(axes, _scan(settings))
    axes.set_title("Classes come together")
    words = f"lines: theory (dotted: lazy)\npoints: {settings.networks} networks of {settings.width}\nneurons, ± 2 standard errors"
    style.legend(axes, words)


def _apart(axes: Axes, settings: Settings, numbers: Numbers) -> None:
    for label, scan, colour, mark, theory, networks in _curves(settings, numbers):
        pairs = [comparing.apart(*pair) for pair in zip(theory, networks, strict=True)]
        off, joint = (100 * np.array([pair[index][0] for pair in pairs]) for index in (0, 1))
        axes.plot(scan, off, mark, color=colour, label=label)
        axes.plot(scan, joint, "_", color=colour, markersize=18, markeredgewidth=2)
    axes.set(ylabel="theory − networks, in % of the kernel", ylim=(0, 1.05 * axes.get_ylim()[1]))
    comparing.richness(axes, _scan(settings))
    axes.set_title("How far apart they are")
    moving = [held["motion"].max() for held in numbers.values() if "motion" in held]
    words = "marks: difference; bars: what the\nstandard errors of both explain"
    if moving:
        words += f"\n(aNTK: networks still move by up to\n{100 * max(moving):.2g} % per unit of time)"
    style.legend(axes, words)


def _scan(settings: Settings) -> list[float]:
    return [value for case in settings.cases for value in case[-1]]
