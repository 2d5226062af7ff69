"""What the positions of a CNN have in common."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes

from adakern import checks, inputs, space
from adakern.finite import Run
from adakern.networks import CNN
from adakern.readings import correlations
from adakern.solution import Solution


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
    if isinstance(of, np.ndarray) and (of.ndim != 2 or of.shape[0] != of.shape[1]):
        raise ValueError(f"a kernel between positions must have shape (S, S), but this one has shape {of.shape}")
    shown = correlations(of if isinstance(of, np.ndarray) else between_positions(of, layer))
    sites = len(shown)
    if position is not None:
        if checks.integer("position", position, least=0) >= sites:
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
    if not isinstance(of, Run):
        raise TypeError(f"a kernel between positions is of a solution or a run, but this is a {type(of).__name__}")
    if not isinstance(of.network, CNN):
        raise ValueError("a kernel between positions exists for CNNs, and this network is an MLP")
    if checks.integer("layer", layer, least=1) > of.network.depth:
        raise ValueError(f"layer must be at most {of.network.depth}, the depth, but it is {layer}")
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
