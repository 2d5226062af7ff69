"""Time averages of a correlated series: their standard errors, and whether the series still drifts."""

from __future__ import annotations

import numpy as np


def autocorrelation_time(series: np.ndarray) -> float:
    """Integrated autocorrelation time of scalar series, (length, columns), averaged over columns; at least 1.

    Geyer's initial positive sequence: sums of neighbouring autocorrelations are added until one is not positive.
    """
    length = len(series)
    centred = series - series.mean(axis=0)
    variance = np.mean(np.sum(centred**2, axis=0))
    if length < 4 or variance == 0:
        return 1.0
    total = 1.0
    for lag in range(1, length // 2, 2):
        pair = sum(np.mean(np.sum(centred[:-k] * centred[k:], axis=0)) / variance for k in (lag, lag + 1))
        if pair <= 0:
            break
        total += 2 * pair
    return float(max(1.0, total))


def standard_error(series: np.ndarray) -> np.ndarray:
    """Standard error of the mean over axis 0, entry by entry, allowing for autocorrelation."""
    length = len(series)
    flat = series.reshape(length, -1)
    time = autocorrelation_time(_summaries(flat))
    spread = flat.std(axis=0, ddof=1) if length > 1 else np.full(flat.shape[1], np.inf)
    return (spread * np.sqrt(time / length)).reshape(series.shape[1:])


def relative_error(series: np.ndarray) -> float:
    """|standard error| / |mean| in the Frobenius norm."""
    scale = float(np.linalg.norm(series.mean(axis=0)))
    error = float(np.linalg.norm(standard_error(series)))
    return error / scale if scale > 0 else error


def drifts(values: np.ndarray) -> bool:
    """Whether the second half of a scalar series differs from the first by more than chance and by more than 2 %."""
    half = len(values) // 2
    first, second = values[:half], values[half:]
    if not np.isfinite(values).all():
        return True
    scatter = np.sqrt(first.var(ddof=1) / half + second.var(ddof=1) / len(second))
    change = abs(second.mean() - first.mean())
    return bool(change > 3 * scatter and change > 0.02 * abs(values.mean()))


def _summaries(flat: np.ndarray, most: int = 64) -> np.ndarray:
    """A few fixed random projections and the first entries: enough to see the slowest fluctuation of a kernel."""
    if flat.shape[1] <= most:
        return flat
    return flat @ np.random.default_rng(0).standard_normal((flat.shape[1], most))
