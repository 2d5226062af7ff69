r"""Pictures of solutions. Every function draws into an `Axes` or returns a `Figure`; none touches pyplot's global state."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from adakern import inputs, space
from adakern.finite import Run
from adakern.limits import ANBK, ANTK
from adakern.networks import CNN
from adakern.solution import Solution

LAZY, ADAPTIVE, NEUTRAL = "#0072B2", "#D55E00", "#5F6670"  # Okabe and Ito's blue and vermilion: told apart by every eye
_GRID = "#D9DCE0"


def name(solution: Solution) -> str:
    """What a solution's predictor is called in a legend."""
    limit = solution.limit
    return rf"{limit.kind}, $\gamma_0={limit.richness:g}$" if isinstance(limit, ANBK) else limit.kind


def by_class(y: np.ndarray) -> np.ndarray:
    """The order of the training points that puts each class together and keeps the points' own order within."""
    return np.argsort(y if y.ndim == 1 else np.argmax(y, axis=1), kind="stable")


def correlations(kernel: np.ndarray) -> np.ndarray:
    r"""$\Phi_{\mu\nu}/\sqrt{\Phi_{\mu\mu}\Phi_{\nu\nu}}$: how alike the network finds two points, whatever their size."""
    size = np.sqrt(np.diag(kernel))
    return kernel / (size[:, None] * size[None, :])


def kernel(axes: Axes, solution: Solution, *, labels: tuple[str, ...] = (), least: float = 0.0) -> Any:
    """Draw the predictor's kernel, as correlations with the points sorted by class; returns the image, for a colour bar.

    Args:
        axes: where to draw.
        solution: whose kernel.
        labels: names of the classes, in the order of their targets.
        least: correlation at the dark end of the colours; the bright end is 1.
    """
    order = by_class(solution.y)
    image = axes.imshow(
        correlations(solution.kernel)[np.ix_(order, order)],
        cmap="viridis",
        vmin=least,
        vmax=1.0,
        interpolation="nearest",
    )
    keys = solution.y if solution.y.ndim == 1 else np.argmax(solution.y, axis=1)
    counts = np.unique(keys, return_counts=True)[1]
    edges = np.concatenate([[0], np.cumsum(counts)])
    for edge in edges[1:-1] - 0.5:
        axes.axhline(edge, color="white", linewidth=1.2)
        axes.axvline(edge, color="white", linewidth=1.2)
    shown = labels if len(labels) == len(counts) else ()
    middles = (edges[:-1] + edges[1:] - 1) / 2
    axes.set_xticks(middles[: len(shown)], shown)
    axes.set_yticks(middles[: len(shown)], shown, rotation=90, va="center")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(name(solution))
    return image


def spatial(
    axes: Axes,
    of: Solution | Run | np.ndarray,
    *,
    layer: int = 1,
    position: int | None = None,
    grid: tuple[int, int] | None = None,
    least: float | None = None,
) -> Any:
    """Draw what the features of a CNN's positions have in common, as correlations; returns the image, for a colour bar.

    Args:
        axes: where to draw.
        of: a solution or a run of a CNN, or its kernel between positions, (S, S), as `Solution.spatial` gives it.
        layer: hidden layer of a solution or a run.
        position: draw the correlations with this position alone, counted row by row, where they stand in the image; by default all of them, as a matrix.
        grid: rows and columns of positions, for a kernel that is no square of them.
        least: correlation at the dark end of the colours, by default the least that is drawn; the bright end is 1.
    """
    shown = correlations(of if isinstance(of, np.ndarray) else between_positions(of, layer))
    sites = len(shown)
    if position is not None:
        if not 0 <= position < sites:
            raise ValueError(f"position must be between 0 and {sites - 1}, but it is {position}")
        shape = _grid(of, layer, sites) if grid is None else grid
        if shape[0] * shape[1] != sites:
            raise ValueError(f"grid must have {sites} positions, but it is {shape[0]} x {shape[1]}")
        shown = shown[position].reshape(shape)
        axes.plot(position % shape[1], position // shape[1], "+", color="black", markersize=9)
    low = float(shown.min()) if least is None else least
    image = axes.imshow(shown, cmap="viridis", vmin=low, vmax=1.0, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    return image


def between_positions(of: Solution | Run, layer: int = 1) -> np.ndarray:
    r"""$\frac1P\sum_\mu\Phi^\ell_{\mu a,\mu a'}$ of a solution (`Solution.spatial`) or of the weights that a run kept, (S, S)."""
    if isinstance(of, Solution):
        return of.spatial(layer)
    if not isinstance(of.network, CNN):
        raise ValueError("a kernel between positions exists for CNNs, and this network is an MLP")
    if layer < of.network.depth:
        return space.of_kernel(of.kernels[layer - 1])
    sites, points = of.network.sites(of.X.shape)[layer - 1], len(of.X)
    if layer > 1:
        fields = [of.density(layer, point, position)[0] for point in range(points) for position in range(sites)]
        neurons = [np.stack(fields, axis=1)]
    else:  # at once: the first layer's weights are all there is between images and fields
        rows = inputs.features(of.network, of.X)
        inside = (rows if of.basis is None else rows @ of.basis).astype(of.weights[0].dtype)
        last = of.sample_times == of.sample_times.max()
        kept = of.weights[0] if of.settings.kind == "langevin" else of.weights[0][last]
        neurons = [(inside @ weights).T for weights in kept]
    features = (np.asarray(of.network.activation(jnp.asarray(h))) for h in neurons)
    return np.mean([space.of_features(part, sites, np.ones(points)) for part in features], axis=0)


def _grid(of: Solution | Run | np.ndarray, layer: int, sites: int) -> tuple[int, int]:
    """Rows and columns of positions."""
    network = of.limit.network if isinstance(of, Solution) else of.network if isinstance(of, Run) else None
    if isinstance(network, CNN) and not isinstance(of, np.ndarray):
        return network.grids(of.X.shape)[layer - 1]
    side = math.isqrt(sites)
    if side * side != sites:
        raise ValueError(f"grid must be given: {sites} positions are no square")
    return side, side


def density(
    axes: Axes, lazy: Solution, adaptive: Solution, *, layer: int = 1, point: int = 0, network: Run | None = None
) -> None:
    r"""Draw the law of the preactivation $h^\ell_\mu$: the Gaussian of the lazy solution, what the adaptive one made of it, and what a network of finite width has."""
    values, weights = lazy.density(layer, point)
    spread = float(np.sqrt(np.sum(weights * values**2)))
    drawn, drawn_weights = adaptive.density(layer, point)
    low, high = (float(end) for end in np.quantile(drawn, (0.001, 0.999)))
    low, high = min(-4.5 * spread, low), max(4.5 * spread, high)
    bins = np.linspace(low, high, 49)
    width = bins[1] - bins[0]
    axes.hist(
        drawn,
        bins=bins.tolist(),
        weights=drawn_weights / width,
        color=ADAPTIVE,
        alpha=0.8,
        label=name(adaptive),
    )
    if network is not None:
        sampled, sampled_weights = network.density(layer, point)
        heights, _ = np.histogram(sampled, bins=bins, weights=sampled_weights / width)
        middles = (bins[:-1] + bins[1:]) / 2
        seen = heights > 0
        label = f"a network of {network.settings.width} neurons"
        axes.plot(middles[seen], heights[seen], "o", color="black", markersize=3.2, label=label)
    h = np.linspace(low, high, 400)
    gaussian = np.exp(-0.5 * (h / spread) ** 2) / (spread * np.sqrt(2 * np.pi))
    axes.plot(h, gaussian, color=LAZY, linewidth=2.2, label=f"{name(lazy)}, a Gaussian")
    axes.set_yscale("log")
    axes.set_ylim(0.5 / (len(drawn) * width), 3 * float(gaussian.max()))
    axes.set_xlim(low, high)
    axes.set_xlabel(rf"preactivation $h^{{{layer}}}_\mu$")
    axes.set_ylabel(r"density $p(h)$")
    axes.legend(frameon=False, loc="upper right", handlelength=1.2)
    _open(axes)


def losses(
    axes: Axes,
    values: Mapping[str, float],
    *,
    variances: Mapping[str, float] | None = None,
    adaptive: tuple[str, ...] = (),
    others: tuple[str, ...] = (),
) -> None:
    """Draw test losses as horizontal bars, the first on top.

    Args:
        axes: where to draw.
        values: the losses by name.
        variances: the part of a loss that is variance, for those that have one; it is drawn paler.
        adaptive: the names in the adaptive colour.
        others: the names that are neither lazy nor adaptive limits, in grey.
    """
    names, totals = list(values), np.array(list(values.values()))
    spread = np.array([(variances or {}).get(label, 0.0) for label in names])
    colours = [ADAPTIVE if label in adaptive else NEUTRAL if label in others else LAZY for label in names]
    axes.barh(names, totals - spread, color=colours, height=0.66)
    bars = axes.barh(names, spread, left=totals - spread, color=[_pale(colour) for colour in colours], height=0.66)
    axes.bar_label(bars, labels=[f"{value:.3f}" for value in totals], padding=5, color=NEUTRAL)
    for row in np.flatnonzero(spread).tolist():
        axes.text(totals[row] - spread[row] / 2, row, "variance", ha="center", va="center", fontsize="small")
    axes.invert_yaxis()
    axes.set_xlim(0, 1.16 * float(totals.max()))
    axes.set_xlabel(r"test loss $\langle\,(y-f)^2\,\rangle$")
    axes.tick_params(axis="y", length=0)
    _open(axes)


def portrait(
    solutions: Mapping[str, Solution],
    test_losses: Mapping[str, float],
    *,
    lazy: str,
    adaptive: str,
    variances: Mapping[str, float] | None = None,
    labels: tuple[str, ...] = (),
    title: str = "",
    point: int | None = None,
    network: Run | None = None,
) -> Figure:
    """Lazy and adaptive predictors side by side: their kernels, a neuron's law, and the test losses.

    Args:
        solutions: by the name that the bars show.
        test_losses: of each of them.
        lazy, adaptive: names of the two that are compared closely.
        variances: the part of each test loss that is variance, where there is one.
        labels: names of the classes, in the order of their targets.
        title: above everything.
        point: the training point whose preactivation is shown; by default the one whose kernel entry grew the most.
        network: a network of finite width to compare with; losses that belong to no solution are its own.
    """
    first, second = solutions[lazy], solutions[adaptive]
    figure = Figure(
        figsize=(9.6, 8.2), dpi=150, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1), facecolor="white"
    )
    FigureCanvasAgg(figure)
    parts: Any = figure.subfigures(2, 1, height_ratios=(1.3, 1.0), hspace=0.03)
    top, bottom = parts
    _kernels(top, first, second, labels)
    if title:
        top.suptitle(title, fontsize=15, fontweight="bold")
    laws, bars = bottom.subplots(1, 2)
    if point is None:
        point = int(np.argmax(np.diag(second.kernels[0]) / np.diag(first.kernels[0])))
    density(laws, first, second, layer=1, point=point, network=network)
    laws.set_title("The neurons' response to one training image")
    shown = tuple(key for key, solution in solutions.items() if isinstance(solution.limit, (ANBK, ANTK)))
    others = tuple(key for key in test_losses if key not in solutions)
    losses(bars, test_losses, variances=variances, adaptive=shown, others=others)
    bars.set_title("The loss on new images")
    return figure


def _kernels(figure: Any, lazy: Solution, adaptive: Solution, labels: tuple[str, ...]) -> None:
    """Two kernels on one scale of colours."""
    least = min(float(correlations(solution.kernel).min()) for solution in (lazy, adaptive))
    pair = figure.subplots(1, 2)
    for axes, solution, what in zip(pair, (lazy, adaptive), ("random features", "learned features"), strict=True):
        image = kernel(axes, solution, labels=labels, least=float(np.floor(10 * least) / 10))
        axes.set_title(f"{name(solution)}: {what}")
    bar = figure.colorbar(image, ax=list(pair), shrink=0.85, aspect=26, pad=0.03)
    bar.set_label(r"$\Phi_{\mu\nu}\,/\,(\Phi_{\mu\mu}\Phi_{\nu\nu})^{1/2}$")
    bar.outline.set_visible(False)


def _pale(colour: str) -> tuple[float, ...]:
    return tuple(0.4 * part + 0.6 for part in to_rgb(colour))


def _open(axes: Axes) -> None:
    """No box, a faint grid behind the data."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(NEUTRAL)
    axes.set_axisbelow(True)
    axes.grid(axis="x", color=_GRID, linewidth=0.7)
