r"""Densities of preactivations: of gradient flow with weight decay and of the posterior against richness, of tanh with its two humps, and of four whitened points.

The posterior with ReLU is shown for digits, the paper's other task, and not for photographs. With 20 of those and $\gamma_0$ of 0.5, 0.7 or 3, large neurons are pulled as hard as their prior bears, few of them carry the kernel, and networks do not settle which (R-hat above 1.2 up to a Langevin time of 200).
At $\gamma_0=3$ and time 60, outputs of theory and networks then agree to 3e-4 and kernels align to 0.9991, but the tails of the densities differ several times over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import norm

import adakern as ak
from adakern.figures import measuring, style
from adakern.figures.shape import Arrays, Data, Numbers, Part, mlp

TITLE = "Neurons that learn are not Gaussian: densities of preactivations"
PAPER = (
    "Densities of preactivations leave the Gaussian of the lazy limit as the richness grows, for aNTK and for aNBK, and the theory gives them.",
    "With tanh they can become a Mexican hat, two humps with a valley between them.",
    "They are not Gaussian for four whitened points either, and the density of a wide network in the rich regime is that of the theory.",
)

_SETTLED = 1.2  # R-hat of the networks' largest neurons above which a legend says so
_FLOW, _BAYES, _TANH, _WHITE = "aNTK", "aNBK", "tanh", "whitened"


@dataclass(frozen=True)
class Settings:
    """Sizes, and where to look. Densities are those of the first training point."""

    train: int = 100
    digits: int = 50
    flow: tuple[float, ...] = (0.3, 1.0, 3.0)
    bayes: tuple[float, ...] = (0.3, 1.0, 2.0)
    humps: tuple[float, ...] = (0.3, 1.0, 3.0)
    white: float = 3.0
    beta: float = 50.0
    decay: float = 1.0
    rest: float = 6.0
    neurons: int = 2048
    particles: int = 8192
    width: int = 4096
    seeds: int = 4
    time: float = 480.0
    bins: int = 60


FULL = Settings()
QUICK = Settings(train=20, digits=20, neurons=2048, particles=4096, width=1024, seeds=4, time=120.0, rest=6.0, bins=40)


def parts(settings: Settings) -> Iterator[Part]:
    photographs, digits = Data("cifar10", settings.train), Data("mnist", settings.digits)
    flow = {"data": photographs, "decay": settings.decay, "time": settings.rest, "bins": settings.bins}
    sizes = {"width": settings.width, "seeds": settings.seeds}
    for richness in settings.flow:
        task = {**flow, "richness": richness}
        yield Part(_name(_FLOW, "theory", richness), dynamics, {**task, "neurons": settings.neurons})
        yield Part(_name(_FLOW, "networks", richness), trained, {**task, **sizes})
    cases: list[tuple[str, str, Data | None, float]] = [(_BAYES, "relu", digits, value) for value in settings.bayes]
    cases += [(_TANH, "tanh", digits, value) for value in settings.humps]
    cases += [(_WHITE, "relu", None, settings.white)]
    for kind, activation, data, richness in cases:
        posterior = {"activation": activation, "data": data, "richness": richness, "beta": settings.beta}
        look: dict[str, Any] = {**posterior, "bins": settings.bins}
        yield Part(_name(kind, "theory", richness), solved, {**look, "particles": settings.particles})
        yield Part(_name(kind, "networks", richness), sampled, {**look, **sizes, "time": settings.time})


def _name(kind: str, whose: str, richness: float) -> str:
    return f"{kind}, {whose}, richness {richness:g}"


def points(data: Data | None) -> tuple[np.ndarray, np.ndarray]:
    """Images, or four points whose kernel is the identity."""
    if data is not None:
        return data.load()[:2]
    return 2.0 * np.eye(4), np.array([1.0, -1.0, 1.0, -1.0])


def edges(X: np.ndarray, bins: int) -> np.ndarray:
    """Bins over six standard deviations of the first point's preactivation at the start, on either side, from zero to both."""
    reach = 6 * np.sqrt(np.mean(X[0] ** 2))
    return np.linspace(-reach, reach, bins + 1)


def dynamics(data: Data, richness: float, decay: float, time: float, bins: int, neurons: int) -> Arrays:
    """The infinite network after training, ReLU."""
    X, y = points(data)
    limit = ak.ANTK(mlp(1, "relu"), richness=richness, decay=decay)
    way = ak.dynamics(limit, X, y, (time,), neurons=neurons, accuracy=1e-4, precision="float32")
    return _law(way.density(time, 1, 0)[0], X, bins, way.stats["replicas"])


def trained(data: Data, richness: float, decay: float, time: float, bins: int, width: int, seeds: int) -> Arrays:
    """Networks of finite width after training, ReLU."""
    X, y = points(data)
    options: dict[str, Any] = {"richness": richness, "decay": decay, "width": width, "time": time, "replicas": seeds}
    run = ak.finite.gradient_flow(
        mlp(1, "relu"), X, y, centred=True, tolerance=0.0, accuracy=measuring.ACCURACY, **options
    )
    return _law(run.density(1, 0)[0], X, bins, seeds)


def solved(activation: str, data: Data | None, richness: float, beta: float, bins: int, particles: int) -> Arrays:
    """The posterior of the infinite network."""
    X, y = points(data)
    limit = ak.ANBK(mlp(1, activation), richness=richness, beta=beta)
    return _law(ak.solve(limit, X, y, particles=particles).density(1, 0)[0], X, bins, 8)


def sampled(
    activation: str,
    data: Data | None,
    richness: float,
    beta: float,
    bins: int,
    width: int,
    seeds: int,
    time: float,
) -> Arrays:
    """Networks of finite width under their posterior, a third of the time left out; `rhat`: whether halves and replicas agree which neurons are large, which settles last."""
    X, y = points(data)
    options: dict[str, Any] = {"richness": richness, "beta": beta, "width": width, "time": time, "burn_in": time / 3}
    run = ak.finite.langevin(mlp(1, activation), X, y, replicas=seeds, **options)
    values = run.density(1, 0)[0].reshape(-1, width)
    order = np.argsort(run.sample_replicas, kind="stable")
    return {**_law(values[order].ravel(), X, bins, seeds), "rhat": run.stats["split_rhat"]["concentration_1"]}


def _law(values: np.ndarray, X: np.ndarray, bins: int, groups: int) -> Arrays:
    """The density in bins, its standard error over groups of draws one after the other, and the bins; the standard deviation at the start."""
    places = edges(X, bins)
    heights, errors = measuring.histogram(values, places.tolist(), groups)
    return {"heights": heights, "errors": errors, "edges": places, "start": np.sqrt(np.mean(X[0] ** 2))}


def draw(settings: Settings, numbers: Numbers) -> Figure:
    figure, axes = style.panels(2, 2, TITLE)
    panels = (
        (axes[0, 0], _FLOW, settings.flow, f"aNTK: {settings.train} photographs, ReLU, decay {settings.decay:g}"),
        (axes[0, 1], _BAYES, settings.bayes, f"aNBK: {settings.digits} digits, ReLU"),
        (axes[1, 0], _TANH, settings.humps, f"aNBK: {settings.digits} digits, tanh"),
        (axes[1, 1], _WHITE, (settings.white,), "aNBK: four whitened points, ReLU"),
    )
    for place, kind, richness, title in panels:
        _panel(place, numbers, kind, richness, humps=kind == _TANH)
        place.set_title(title)
        style.legend(place, f"steps: theory; dots: networks of {settings.width} neurons,\n± 2 standard errors", ncols=2)
    return figure


def _panel(axes: Axes, numbers: Numbers, kind: str, richness: Sequence[float], humps: bool) -> None:
    """Tails show on a logarithmic axis, humps and valleys on a linear one."""
    for index, value in enumerate(richness):
        theory, networks = (numbers[_name(kind, whose, value)] for whose in ("theory", "networks"))
        middles, colour = style.middles(theory["edges"]), style.CYCLE[index]
        label = rf"$\gamma_0={value:g}$" + ("" if networks.get("rhat", 1.0) < _SETTLED else " (not settled)")
        style.line(axes, middles, theory["heights"], colour, label, drawstyle="steps-mid", linewidth=1.4)
        some = slice(index % 2, None, 2)
        style.points(axes, middles[some], networks["heights"][some], networks["errors"][some], colour, mark=".")
    spread, reach = float(theory["start"]), float(theory["edges"][-1])
    h = np.linspace(-reach, reach, 400)
    style.line(axes, h, norm.pdf(h / spread) / spread, style.BLACK, "lazy: a Gaussian", linestyle="--", linewidth=1.2)
    top = 2 * max(float(numbers[_name(kind, "theory", value)]["heights"].max()) for value in richness)
    axes.set(xlabel="preactivation $h$", ylabel="density $p(h)$", xlim=(-reach, reach))
    if humps:
        axes.set_ylim(bottom=0)
    else:
        axes.set(yscale="log", ylim=(1e-4, top))
