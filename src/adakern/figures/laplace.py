r"""One point, $x=y=1$, and a linear network with weight decay, from Laplace and from Gaussian weights: the density at rest remembers the start.

$h+a$ grows and $h-a$ decays, the same for all neurons, so that $h$ ends at $\sqrt{\gamma_0-\lambda}\,s$ with $s=(h_0+a_0)/\sqrt2$: Gaussian from Gaussian weights, and of density
$\frac12(1+2|s|)e^{-2|s|}$, of excess kurtosis $\frac32$, from Laplace weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import norm

from adakern.figures import one_point, style
from adakern.figures.shape import Numbers, Part

TITLE = "One point, a linear network: its density remembers the start"
PAPER = (
    "The fixed point of gradient flow with weight decay sets the second moment, ⟨h²⟩ = richness − decay, and the error, decay/richness, from whatever weights training starts.",
    "It does not set the density: from Laplace weights a linear network with one point ends with a density that is not Gaussian.",
)

STARTS = {"laplace": "Laplace", "normal": "Gaussian"}
KURTOSIS = {"laplace": 1.5, "normal": 0.0}  # in excess, at rest
COLOURS = {"laplace": style.VERMILION, "normal": style.BLUE}
LOOKS = {"laplace": ("s", "-"), "normal": ("o", "--")}  # marks and dashes, seen where one curve lies on the other


@dataclass(frozen=True)
class Settings:
    """Sizes, and where to look."""

    richness: float = 3.0
    decay: float = 1.0
    shown: tuple[float, ...] = (0.0, 0.2, 0.5, 4.0)
    times: tuple[float, ...] = (0.0, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
    neurons: int = 131072
    width: int = 16384
    replicas: int = 16
    edges: tuple[float, ...] = tuple(np.linspace(-8.0, 8.0, 81).round(6).tolist())


FULL = Settings()
QUICK = Settings(neurons=65536, width=4096, replicas=16, edges=tuple(np.linspace(-8.0, 8.0, 41).round(6).tolist()))


def parts(settings: Settings) -> Iterator[Part]:
    for initial, words in STARTS.items():
        look = {
            "activation": "linear",
            "initial": initial,
            "richness": settings.richness,
            "decay": settings.decay,
            "times": settings.times,
            "edges": settings.edges,
        }
        sizes = {"width": settings.width, "replicas": settings.replicas}
        yield Part(f"theory from {words} weights", one_point.theory, {**look, "neurons": settings.neurons})
        yield Part(f"networks from {words} weights", one_point.networks, {**look, **sizes})


def draw(settings: Settings, numbers: Numbers) -> Figure:
    figure, axes = style.panels(2, 2, TITLE)
    spread = np.sqrt(settings.richness - settings.decay)
    h = np.linspace(settings.edges[0], settings.edges[-1], 400)
    laws = {"normal": norm.pdf(h / spread) / spread, "laplace": _laplace(h / spread) / spread}
    for place, (initial, words) in zip(axes[0], STARTS.items(), strict=True):
        _densities(place, settings, numbers, words)
        style.line(place, h, laws[initial], style.BLUE, "at rest, exactly", linestyle="--")
        if initial != "normal":
            style.line(place, h, laws["normal"], style.GREY, "a Gaussian of this variance", linestyle=":")
        place.set(yscale="log", ylim=(1e-4, 1), xlabel="preactivation $h$", ylabel="density $p(h)$")
        place.set_title(f"{words} weights at the start")
        style.legend(place, f"steps: theory; dots: networks of {settings.width} neurons,\n± 2 standard errors", ncols=2)
    _moments(axes[1, 0], settings, numbers, "second")
    axes[1, 0].axhline(
        settings.richness - settings.decay,
        color=style.GREY,
        linestyle=":",
        label=r"richness − decay, $\gamma_0-\lambda$",
    )
    axes[1, 0].set(ylabel=r"second moment $\langle h^2\rangle$")
    axes[1, 0].set_title("The second moment forgets the start")
    _moments(axes[1, 1], settings, numbers, "kurtosis")
    for initial, value in KURTOSIS.items():
        label = "at rest, exactly" if initial == "laplace" else None
        axes[1, 1].axhline(value, color=style.GREY, linestyle=":", label=label)
    axes[1, 1].set(ylabel=r"excess kurtosis $\langle h^4\rangle/\langle h^2\rangle^2-3$")
    axes[1, 1].set_title("The shape does not")
    for place in axes[1]:
        style.legend(place, "lines: theory\npoints: networks, ± 2 standard errors")
    return figure


def _laplace(s: np.ndarray) -> np.ndarray:
    """The density of the sum of two Laplace variables, of variance one."""
    result: np.ndarray = 0.5 * (1 + 2 * np.abs(s)) * np.exp(-2 * np.abs(s))
    return result


def _densities(axes: Axes, settings: Settings, numbers: Numbers, words: str) -> None:
    chosen = [settings.times.index(time) for time in settings.shown]
    theory, networks = (
        {name: numbers[f"{whose} from {words} weights"][name][chosen] for name in ("heights", "errors")}
        for whose in ("theory", "networks")
    )
    style.densities(axes, settings.edges, settings.shown, theory, networks)


def _moments(axes: Axes, settings: Settings, numbers: Numbers, name: str) -> None:
    for initial, words in STARTS.items():
        theory, networks = (numbers[f"{whose} from {words} weights"] for whose in ("theory", "networks"))
        colour, label = COLOURS[initial], f"{words} weights"
        mark, dashes = LOOKS[initial]
        style.band(axes, settings.times, theory[name], theory[f"{name}_error"], colour, label, linestyle=dashes)
        style.points(axes, settings.times, networks[name], networks[f"{name}_error"], colour, mark=mark)
    axes.set(xlabel="time $t$")
