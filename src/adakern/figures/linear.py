r"""Deep linear networks on whitened data, $\Phi^0=I$, $|y|=1$: label overlaps $c_\ell=y^\top\Phi^\ell y$ by layer, richness and depth, and the kernels themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import adakern as ak
from adakern.figures import style
from adakern.figures.shape import Arrays, Numbers, Part, mlp

TITLE = "Deep linear networks on whitened data: what each layer knows of the labels"
PAPER = (
    "The overlaps of the layers' kernels with the labels grow exponentially with the layer, at a rate that depends on the richness.",
    "The last overlap has three regimes: 1 + L γ0², γ0^(2L/(L+1)) and L γ0²/ln(L γ0²).",
    "Learned kernels of finite networks, L = 8 and γ0 = 4, approach those of the theory as the width grows.",
    "On whitened data kernels grow in one direction alone, that of the labels: spikes of rank one.",
)

REGIMES: dict[str, tuple[str, Any]] = {  # colour and dashes
    "lazy": (style.ORANGE, (0, (0.8, 0.8))),
    "rich": (style.BLACK, (0, (2.5, 1.2))),
    "deep": (style.SKY, (0, (4, 1, 1, 1))),
}
_FORMS = {
    "lazy": r"$1+L\gamma_0^2$",
    "rich": r"$\gamma_0^{2L/(L+1)}$",
    "deep": r"$L\gamma_0^2/\ln(L\gamma_0^2)$",
}
_VALID = 0.3  # relative size of what a regime leaves out, up to which it is drawn


@dataclass(frozen=True)
class Settings:
    """Sizes, and where to look."""

    points: int = 10
    beta: float = 10.0
    depth: int = 8
    richness: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    depths: tuple[int, ...] = (1, 2, 4, 8)
    width: int = 1024
    example: float = 4.0
    widths: tuple[int, ...] = (128, 256, 512, 1024, 2048)
    layers: tuple[int, ...] = (2, 4, 6, 8)
    time: float = 40.0
    replicas: int = 2


FULL = Settings()
QUICK = Settings(
    points=6, richness=(0.5, 1.0, 4.0), depths=(1, 3, 8), width=128, widths=(32, 64, 128), time=30.0, replicas=2
)


def parts(settings: Settings) -> Iterator[Part]:
    grid = {"depths": settings.depths, "richness": settings.richness, "beta": settings.beta}
    yield Part("theory", theory, {**grid, "depth": settings.depth})
    yield Part("theory, kernels", kernels, {**_example(settings), "points": settings.points})
    pairs = [(depth, richness, settings.width) for depth in settings.depths for richness in settings.richness]
    pairs += [(settings.depth, richness, settings.width) for richness in settings.richness]
    pairs += [(settings.depth, settings.example, width) for width in settings.widths]
    for depth, richness, width in dict.fromkeys(pairs):
        task = {"depth": depth, "richness": richness, "beta": settings.beta, "points": settings.points}
        sizes = {"width": width, "time": settings.time, "replicas": settings.replicas}
        yield Part(_name(depth, richness, width), network, {**task, **sizes})


def _example(settings: Settings) -> dict[str, Any]:
    return {"depth": settings.depth, "richness": settings.example, "beta": settings.beta}


def _name(depth: int, richness: float, width: int) -> str:
    return f"network, L = {depth}, richness {richness:g}, N = {width}"


def whitened(points: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs with the kernel I, and labels of norm one, the first half negative."""
    signs = np.where(np.arange(points) < points // 2, -1.0, 1.0)
    return np.sqrt(points) * np.eye(points), signs / np.sqrt(points)


def theory(depth: int, depths: tuple[int, ...], richness: tuple[float, ...], beta: float) -> Arrays:
    """Overlaps by layer; last overlaps over a grid of richness for some depths, and over depths for some richness, with their asymptotic forms."""
    fine = np.geomspace(0.05, 30.0, 60)
    deep = np.unique(np.geomspace(1, 1000, 40).round().astype(int))
    result = {
        "layers": np.stack([ak.linear.overlaps(depth, value, beta) for value in richness]),
        "fine": fine,
        "deep": deep,
        "by_richness": np.array([[ak.linear.overlaps(each, value, beta)[-1] for value in fine] for each in depths]),
        "by_depth": np.array([[ak.linear.overlaps(int(each), value, beta)[-1] for each in deep] for value in richness]),
    }
    grids = {
        "by_richness": [[ak.linear.regimes(each, value, beta) for value in fine] for each in depths],
        "by_depth": [[ak.linear.regimes(int(each), value, beta) for each in deep] for value in richness],
    }
    for name, grid in grids.items():
        for index, regime in enumerate(REGIMES):
            forms = [[held[index] for held in row] for row in grid]
            values = [[form.value if _holds(form) else np.nan for form in row] for row in forms]
            result[f"{name}_{regime}"] = np.array(values)
    return result


def _holds(form: ak.linear.Regime) -> bool:
    """The deep form passes through the right value once, far from where it is one: its own logarithm must be large."""
    return form.correction < _VALID and (form.name != "deep" or form.value > 5)


def kernels(depth: int, richness: float, beta: float, points: int) -> Arrays:
    """The kernels of every layer of the infinite network."""
    X, y = whitened(points)
    return {"kernels": np.stack(ak.solve(ak.ANBK(mlp(depth, "linear"), richness=richness, beta=beta), X, y).kernels)}


def network(depth: int, richness: float, beta: float, points: int, width: int, time: float, replicas: int) -> Arrays:
    """Overlaps and kernels of a network of finite width, averaged over its posterior."""
    X, y = whitened(points)
    run = ak.finite.langevin(
        mlp(depth, "linear"),
        X,
        y,
        richness=richness,
        beta=beta,
        width=width,
        time=time,
        replicas=replicas,
        snapshots=1,
    )
    return {
        "overlaps": np.asarray(run.stats["label_overlap"]),
        "overlaps_error": np.asarray(run.stats["label_overlap_error"]),
        "kernels": np.stack(run.kernels),
    }


def draw(settings: Settings, numbers: Numbers) -> Figure:
    columns = len(settings.widths) + 1
    figure = style.sheet(11.7, 4.2 + 1.75 * len(settings.layers), TITLE)
    halves: Any = figure.subfigures(2, 1, height_ratios=(3.9, 1.75 * len(settings.layers)))
    top, bottom = halves
    places = top.subplots(1, 3)
    _layers(places[0], settings, numbers)
    _last(places[1], settings, numbers, "by_richness", settings.depths, "L = {:g}")
    places[1].set(xlabel=r"richness $\gamma_0$", ylabel="last overlap $c_L$")
    places[1].set_title("The last layer against richness")
    _last(places[2], settings, numbers, "by_depth", settings.richness, r"$\gamma_0={:g}$")
    places[2].set(xlabel="depth $L$", ylabel="last overlap $c_L$")
    places[2].set_title("The last layer against depth")
    _kernels(bottom, settings, numbers, columns)
    return figure


def _layers(axes: Axes, settings: Settings, numbers: Numbers) -> None:
    layers = np.arange(1, settings.depth + 1)
    for index, richness in enumerate(settings.richness):
        colour = style.CYCLE[index]
        label = rf"$\gamma_0={richness:g}$"
        style.line(axes, layers, numbers["theory"]["layers"][index], colour, label)
        held = numbers[_name(settings.depth, richness, settings.width)]
        mark = style.MARKS[index]
        style.points(axes, layers, held["overlaps"], held["overlaps_error"], colour, mark=mark)
    axes.set(yscale="log", xlabel=r"layer $\ell$", ylabel=r"label overlap $c_\ell=y^T\Phi^\ell y$")
    axes.set_title(f"Every layer, depth L = {settings.depth}")
    words = f"here and on the right: lines: theory,\npoints: networks of {settings.width} neurons,\n± 2 standard errors"
    style.legend(axes, words, loc="upper left")


def _last(axes: Axes, settings: Settings, numbers: Numbers, name: str, curves: Sequence[float], words: str) -> None:
    """Last overlaps along a grid, with the asymptotic forms where they hold, and networks."""
    theory = numbers["theory"]
    grid = theory["fine"] if name == "by_richness" else theory["deep"]
    for index, curve in enumerate(curves):
        colour = style.CYCLE[index]
        style.line(axes, grid, theory[name][index], colour, words.format(curve), linewidth=1.4)
        for regime in REGIMES:
            _form(axes, regime, grid, theory[f"{name}_{regime}"][index])
        others = settings.richness if name == "by_richness" else settings.depths
        pairs = [(curve, other) if name == "by_richness" else (other, curve) for other in others]
        held = [numbers[_name(int(depth), richness, settings.width)] for depth, richness in pairs]
        means, errors = ([one[key][-1] for one in held] for key in ("overlaps", "overlaps_error"))
        style.points(axes, others, means, errors, colour, mark=style.MARKS[index])
    for regime in REGIMES:
        if np.isfinite(theory[f"{name}_{regime}"]).any():
            _form(axes, regime, [], [], f"{regime}: {_FORMS[regime]}")
    axes.set(xscale="log", yscale="log")
    style.legend(axes, loc="upper left", handlelength=2.6)


def _form(axes: Axes, regime: str, x: Any, y: Any, label: str | None = None) -> None:
    """An asymptotic form: broad, and behind the curves, which it may run along."""
    colour, dashes = REGIMES[regime]
    style.line(axes, x, y, colour, label, linestyle=dashes, linewidth=2.5, zorder=1.5)


def _kernels(figure: Any, settings: Settings, numbers: Numbers, columns: int) -> None:
    """One row a layer, networks from narrow to wide and then the theory, each row on one scale of colours."""
    places = figure.subplots(len(settings.layers), columns, squeeze=False)
    figure.suptitle(
        rf"Kernels $\Phi^\ell$ between {settings.points} points, sorted by class, of networks and of the theory: L = {settings.depth}, $\gamma_0={settings.example:g}$",
        fontsize=11,
    )
    exact = numbers["theory, kernels"]["kernels"]
    held = [numbers[_name(settings.depth, settings.example, width)]["kernels"] for width in settings.widths]
    for row, layer in zip(places, settings.layers, strict=True):
        scale = float(np.abs(exact[layer - 1]).max())
        for place, stack in zip(row, (*held, exact), strict=True):
            image = place.imshow(stack[layer - 1], cmap="RdBu_r", vmin=-scale, vmax=scale, interpolation="nearest")
            place.set(xticks=[], yticks=[])
            place.spines[:].set_visible(False)
        row[0].set_ylabel(rf"layer $\ell={layer}$")
        bar = figure.colorbar(image, ax=list(row), shrink=0.9, aspect=12, pad=0.01)
        bar.outline.set_visible(False)
        bar.set_label(rf"$\Phi^{{{layer}}}_{{\mu\nu}}$")
    for place, words in zip(places[0], (*(f"{width} neurons" for width in settings.widths), "theory"), strict=True):
        place.set_title(words, fontsize=10)
