r"""One point, $x=y=1$, and a ReLU network with weight decay: the density of its neurons over time, and the transition at $\gamma_0=\lambda$.

Above it, neurons that start with $h>0$ and $h+a>0$ live and the others die. The survivors end at $h=a=\kappa s$ with $s=(h_0+a_0)/\sqrt2$ at the start, so that the law at rest is known:
$p(h)=\frac58\delta(h)+\frac1\kappa n(h/\kappa)N(h/\kappa)$ for $h>0$, $n$ and $N$ the normal density and its integral, $\kappa^2(\frac38+\frac1{4\pi})=\gamma_0-\lambda$.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import norm

import adakern as ak
from adakern.figures import one_point, style
from adakern.figures.one_point import X, Y
from adakern.figures.shape import Arrays, Numbers, Part, mlp

TITLE = "One point: densities over time, and the transition at richness = decay"
PAPER = (
    "Under gradient flow with weight decay the density of preactivations moves away from the Gaussian of the start.",
    "Feature learning kills the neurons with h < 0, for richness < decay in the paper's words, and the others end with ⟨h²⟩ = richness − decay and an error of decay/richness.",
    "On the other side everything collapses: the density at the end is a peak at zero, and nothing is learned.",
    "At infinite time the limits of small richness and of small decay do not commute.",
)


_HEIGHTS = (2e-4, 20.0)  # of densities


@dataclass(frozen=True)
class Settings:
    """Sizes, and where to look."""

    decay: float = 1.0
    alive: float = 3.0
    dead: float = 0.5
    times: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0, 6.0)
    scan: tuple[float, ...] = (0.25, 0.5, 0.75, 1.25, 1.5, 2.0, 3.0, 4.0)
    rest: float = 40.0
    neurons: int = 65536
    width: int = 16384
    replicas: int = 16
    edges: tuple[float, ...] = tuple(np.linspace(-4.0, 6.0, 81).round(6).tolist())


FULL = Settings()
QUICK = Settings(neurons=16384, width=4096, replicas=8, edges=tuple(np.linspace(-4.0, 6.0, 41).round(6).tolist()))


def parts(settings: Settings) -> Iterator[Part]:
    sizes = {"width": settings.width, "replicas": settings.replicas}
    for richness in (settings.alive, settings.dead):
        look = {
            "activation": "relu",
            "initial": "normal",
            "richness": richness,
            "decay": settings.decay,
            "times": settings.times,
            "edges": settings.edges,
        }
        theory = {**look, "neurons": settings.neurons}
        yield Part(f"densities of the theory, richness {richness:g}", one_point.theory, theory)
        yield Part(f"densities of networks, richness {richness:g}", one_point.networks, {**look, **sizes})
    ends = {"decay": settings.decay, "scan": settings.scan}
    yield Part("ends of the theory", rests, ends)
    yield Part("ends of networks", trained, {**ends, "time": settings.rest, **sizes})


def rests(decay: float, scan: tuple[float, ...]) -> Arrays:
    """Error and second moment where the infinite network rests."""
    ends = [ak.solve(ak.ANTK(mlp(1, "relu"), richness=value * decay, decay=decay), X, Y) for value in scan]
    return {
        "errors": np.array([end.errors[0] for end in ends]),
        "moments": np.array([end.kernels[0][0, 0] for end in ends]),
    }


def trained(decay: float, scan: tuple[float, ...], time: float, width: int, replicas: int) -> Arrays:
    """The same of networks of finite width."""
    found: dict[str, list[float]] = {"errors": [], "errors_error": [], "moments": [], "moments_error": []}
    for value in scan:
        run = ak.finite.gradient_flow(
            mlp(1, "relu"),
            X,
            Y,
            richness=value * decay,
            decay=decay,
            width=width,
            time=time,
            replicas=replicas,
            tolerance=1e-6,
        )
        found["errors"].append(1 - run.fitted[0])
        found["errors_error"].append(run.fitted_errors[0])
        found["moments"].append(run.kernel[0, 0])
        found["moments_error"].append(run.kernel_errors[0][0, 0])
    return {name: np.array(values) for name, values in found.items()}


def draw(settings: Settings, numbers: Numbers) -> Figure:
    figure, axes = style.panels(2, 2, TITLE)
    for place, richness, words in ((axes[0, 0], settings.alive, "lives"), (axes[0, 1], settings.dead, "dies")):
        _densities(place, settings, numbers, richness)
        place.set_title(f"richness {richness:g}, decay {settings.decay:g}: the network {words}")
    theory, networks = numbers["ends of the theory"], numbers["ends of networks"]
    scan, fine = np.array(settings.scan), np.linspace(0.02, max(settings.scan) * 1.05, 400)
    above = np.maximum(fine, 1.0)
    _ends(axes[1, 0], scan, fine, 1 / above, theory["errors"], networks["errors"], networks["errors_error"])
    axes[1, 0].set(ylabel=r"error at the end, $\Delta=y-f$", ylim=(0, 1.12))
    axes[1, 0].set_title(r"The error: $\lambda/\gamma_0$, or all of it")
    moments = settings.decay * (above - 1)
    _ends(axes[1, 1], scan, fine, moments, theory["moments"], networks["moments"], networks["moments_error"])
    axes[1, 1].set(ylabel=r"second moment at the end, $\langle\varphi(h)^2\rangle$")
    axes[1, 1].set_title(r"The features: $\gamma_0-\lambda$, or none")
    return figure


def _densities(axes: Axes, settings: Settings, numbers: Numbers, richness: float) -> None:
    theory, networks = (numbers[f"densities of {whose}, richness {richness:g}"] for whose in ("the theory", "networks"))
    style.densities(axes, settings.edges, settings.times, theory, networks)
    if richness > settings.decay:
        h = np.linspace(0, settings.edges[-1], 300)
        spread = np.sqrt((richness - settings.decay) / (3 / 8 + 1 / (4 * np.pi)))
        law = norm.pdf(h / spread) * norm.cdf(h / spread) / spread
        label = "at rest, survivors (3 in 8)"
        style.line(axes, h, law, style.BLUE, label, linestyle="--", zorder=4)
    else:
        style.line(axes, [0, 0], _HEIGHTS, style.BLUE, "at rest: all at zero", linestyle="--")
    axes.set(yscale="log", ylim=_HEIGHTS, xlabel="preactivation $h$", ylabel="density $p(h)$")
    style.legend(axes, f"lines: theory; dots: networks of {settings.width} neurons,\n± 2 standard errors", ncols=2)


def _ends(axes: Axes, scan: Any, fine: Any, exact: Any, theory: Any, mean: Any, error: Any) -> None:
    style.line(axes, fine, exact, style.GREY, "closed form")
    axes.plot(scan, theory, "+", color=style.VERMILION, markersize=11, markeredgewidth=1.8, label="solve(ANTK)")
    style.points(axes, scan, mean, error, style.BLUE, "networks,\n± 2 standard errors")
    axes.axvline(1, color=style.GREY, linewidth=0.8, linestyle=":", label=r"transition, $\gamma_0=\lambda$")
    axes.set(xlabel=r"richness over decay, $\gamma_0/\lambda$", xlim=(0, fine[-1]))
    style.legend(axes)
