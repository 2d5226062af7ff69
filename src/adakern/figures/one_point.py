r"""One point, $x=y=1$, and one hidden layer: its neurons' densities and moments over time, of theory and networks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import adakern as ak
from adakern.figures import measuring
from adakern.figures.shape import Arrays, mlp

X, Y = np.ones((1, 1)), np.ones(1)


def theory(
    activation: str,
    initial: str,
    richness: float,
    decay: float,
    times: tuple[float, ...],
    edges: tuple[float, ...],
    neurons: int,
) -> Arrays:
    """The infinite network over time."""
    limit = ak.ANTK(mlp(1, activation), richness=richness, decay=decay)
    # Kinks are rounded over 30 times the accuracy, and dying neurons come as close to theirs as exp(-decay * time).
    way = ak.dynamics(limit, X, Y, times, neurons=neurons, initial=initial, accuracy=1e-6)
    fields = [way.density(time, 1, 0)[0].reshape(way.stats["replicas"], -1) for time in times]
    return _measured(fields, edges) | {"outputs": way.fitted[:, 0], "outputs_error": way.fitted_errors[:, 0]}


def networks(
    activation: str,
    initial: str,
    richness: float,
    decay: float,
    times: tuple[float, ...],
    edges: tuple[float, ...],
    width: int,
    replicas: int,
) -> Arrays:
    """Networks of finite width over time."""
    run = ak.finite.gradient_flow(
        mlp(1, activation),
        X,
        Y,
        richness=richness,
        decay=decay,
        initial=initial,
        width=width,
        time=max(times),
        times=times,
        replicas=replicas,
        tolerance=0.0,
    )
    moments = [run.at(time) for time in times]
    outputs, errors = ([getattr(at, name)[0] for at in moments] for name in ("fitted", "fitted_errors"))
    fields = [at.density(1, 0)[0].reshape(replicas, -1) for at in moments]
    return _measured(fields, edges) | {"outputs": np.array(outputs), "outputs_error": np.array(errors)}


def _measured(fields: Sequence[np.ndarray], edges: tuple[float, ...]) -> dict[str, np.ndarray]:
    """Densities, second moments and excess kurtoses of fields (replicas, neurons) at each moment."""
    squares = np.stack([np.mean(h.astype(np.float64) ** 2, axis=1) for h in fields])
    fourths = np.stack([np.mean(h.astype(np.float64) ** 4, axis=1) for h in fields])
    second, second_error = measuring.over(squares, axis=1)
    kurtosis, kurtosis_error = measuring.over(fourths / squares**2 - 3, axis=1)
    held = measuring.densities([h.ravel() for h in fields], len(fields[0]), edges)
    return {
        **held,
        "second": second,
        "second_error": second_error,
        "kurtosis": kurtosis,
        "kurtosis_error": kurtosis_error,
    }
