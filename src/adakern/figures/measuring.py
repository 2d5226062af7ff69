"""What several figures measure: means over replicas with their standard errors, and densities in bins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import adakern as ak
from adakern.figures.shape import Arrays, Data

ACCURACY = 1e-4  # of the integrator of networks: those of different seeds differ by more


def over(replicas: np.ndarray, axis: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Mean over independent replicas and its standard error; NaN with one."""
    values, count = np.asarray(replicas, dtype=np.float64), np.shape(replicas)[axis]
    if count < 2:
        return values.mean(axis=axis), np.full(values.mean(axis=axis).shape, np.nan)
    return values.mean(axis=axis), values.std(axis=axis, ddof=1) / np.sqrt(count)


def histogram(values: np.ndarray, edges: Sequence[float], groups: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """The density of equally likely draws in bins, and its standard error over as many groups of them, one after the other.

    Draws outside of the bins count as well: the density integrates to what lies inside.
    """
    width = np.diff(edges)
    heights = [
        np.histogram(group, bins=np.asarray(edges))[0] / group.size / width for group in np.split(values, groups)
    ]
    return over(np.stack(heights))


def densities(values: Sequence[np.ndarray], groups: int, edges: Sequence[float]) -> dict[str, np.ndarray]:
    """`heights` and `errors`, (moments, bins), of draws at several moments."""
    pairs = [histogram(np.asarray(draws), edges, groups) for draws in values]
    return {"heights": np.stack([pair[0] for pair in pairs]), "errors": np.stack([pair[1] for pair in pairs])}


def in_time(
    network: ak.MLP | ak.CNN,
    data: Data,
    times: Sequence[float],
    seeds: int,
    edges: Sequence[float] | None = None,
    accuracy: float = ACCURACY,
    **options: Any,
) -> Arrays:
    """Networks trained by gradient flow from several seeds, at each of `times`: means over seeds and their standard errors.

    `train`, `test`: losses; `size`: the trace of the last kernel over that at the start; `alignment`: of that kernel with the labels; each with `_error`. With
    `edges`, `field` and `readout`: densities at the last of `times` of the preactivation of the first image and of the readout weights. The output of the start is subtracted: at infinite width it is zero.

    Args:
        network: the architecture.
        data: images, some of them for tests.
        times: from 0 on.
        seeds: how many networks.
        edges: of the bins of densities.
        accuracy: of the integrator.
        options: of `adakern.finite.gradient_flow`: richness, decay, width, and whatever else.
    """
    X, y, X_test, y_test = data.load()
    labels, found = np.outer(y, y), []
    runs = ak.finite.gradient_flow(
        network,
        X,
        y,
        time=max(times),
        times=times,
        replicas=seeds,
        centred=True,
        tolerance=0.0,
        accuracy=accuracy,
        **options,
    )
    for seed in range(seeds):
        run = runs.replica(seed)
        moments = [run.at(time) for time in times]
        traces = np.array([np.trace(at.kernel) for at in moments])
        held = {} if edges is None else _laws(moments[-1].density(1, 0)[0], moments[-1].weights[-1], edges)
        found.append(
            {
                **held,
                "train": [np.mean((y - at.fitted) ** 2) / 2 for at in moments],
                "test": [np.mean((y_test - at.predict(X_test)) ** 2) / 2 for at in moments],
                "size": traces / traces[0],
                "alignment": [ak.alignment(at.kernel, labels) for at in moments],
            }
        )
    result: dict[str, np.ndarray] = {}
    for name in found[0]:
        result[name], result[f"{name}_error"] = over(np.array([one[name] for one in found]))
    return result


def _laws(fields: np.ndarray, readouts: np.ndarray, edges: Sequence[float]) -> dict[str, np.ndarray]:
    return {"field": histogram(fields.ravel(), edges)[0], "readout": histogram(readouts.ravel(), edges)[0]}


def trajectory(way: ak.Trajectory, edges: Sequence[float] | None = None) -> Arrays:
    """The same of the infinite network that `adakern.dynamics` followed; an error that is not known is NaN."""
    labels, unknown = np.outer(way.y, way.y), np.full(len(way.times), np.nan)
    traces = np.array([np.trace(kernel) for kernel in way.kernels])
    assert way.test_loss is not None and way.test_loss_errors is not None
    held: dict[str, np.ndarray] = {}
    if edges is not None:
        assert way.readouts is not None
        held = _laws(way.density(float(way.times[-1]), 1, 0)[0], way.readouts[-1], edges)
    return {
        **held,
        "train": way.train_loss,
        "train_error": way.train_loss_errors,
        "test": way.test_loss,
        "test_error": way.test_loss_errors,
        "size": traces / traces[0],
        "size_error": unknown,
        "alignment": np.array([ak.alignment(kernel, labels) for kernel in way.kernels]),
        "alignment_error": unknown,
    }


def scores(ours: Any, theirs: Any, *errors: Any) -> np.ndarray:
    """Differences over joint standard errors."""
    joint = np.sqrt(sum((np.square(np.asarray(error, np.float64)) for error in errors), np.zeros(())))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray((np.asarray(ours, np.float64) - np.asarray(theirs, np.float64)) / joint)


def rms(values: Any) -> float:
    return float(np.sqrt(np.mean(np.square(values))))
