"""Time averages of a correlated series: their standard errors, and whether the series still drifts."""

from __future__ import annotations

from typing import Any

import numpy as np


def autocorrelation_time(series: np.ndarray) -> float:
    """Integrated autocorrelation time of scalar series, (length, columns), averaged over columns; at least 1.

    Geyer's initial positive sequence: sums of neighbouring autocorrelations are added until one is not positive.
    """
    return _summed(series)[0]


def _summed(series: np.ndarray) -> tuple[float, int]:
    """The autocorrelation time, and the largest lag that went into it."""
    length = len(series)
    centred = series - series.mean(axis=0)
    variance = np.mean(np.sum(centred**2, axis=0)) if series.size else 0.0
    if length < 4 or variance == 0:
        return 1.0, 0
    total, window = 1.0, 0
    for lag in range(1, length // 2, 2):
        pair = sum(np.mean(np.sum(centred[:-k] * centred[k:], axis=0)) / variance for k in (lag, lag + 1))
        if pair <= 0:
            break
        total += 2 * pair
        window = lag + 1
    return float(max(1.0, total)), window


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


def split_rhat(chains: np.ndarray) -> float:
    """Split-R̂ of scalar series, (chains, length): each is cut in two, and 1 says that all halves tell of the same law.

    Gelman et al., Bayesian Data Analysis, 3rd edition, section 11.4. A series that does not vary has R̂ = 1.
    """
    half = chains.shape[1] // 2
    if half < 2:
        return float("nan")
    pieces = np.concatenate([chains[:, :half], chains[:, -half:]])
    within = float(np.mean(pieces.var(axis=1, ddof=1)))
    between = half * float(pieces.mean(axis=1).var(ddof=1))
    if within == 0:
        return 1.0 if between == 0 else float("inf")
    return float(np.sqrt((half - 1) / half + between / (half * within)))


class Stream:
    """The mean of a series of arrays and its standard error.

    Of small arrays the whole series is kept, and every entry has an autocorrelation time of its own. Of large ones only sums are kept, and one
    time, read off a few random projections, serves all entries.
    """

    _WHOLE = 2**16  # entries
    _BUCKETS = 64

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.count = 0
        self._first = np.zeros(shape)  # sums of differences from the first array: no cancellation in the variance
        self._sum = np.zeros(shape)
        self._squares = np.zeros(shape)
        self._series: list[np.ndarray] = []  # differences of small arrays, flat, or projections of large ones

    @property
    def _whole(self) -> bool:
        return self._sum.size <= self._WHOLE

    def add(self, array: np.ndarray) -> None:
        if self.count == 0:
            self._first = np.array(array, dtype=np.float64)
        difference = array - self._first
        self._sum = self._sum + difference  # not in place: `copy` shares what it holds
        self._squares = self._squares + difference**2
        self._series = [*self._series, difference.ravel() if self._whole else self._project(difference)]
        self.count += 1

    def copy(self) -> Stream:
        """The stream as it is now; adding to one leaves the other alone."""
        other = Stream.__new__(Stream)
        other.__dict__.update(self.__dict__)
        return other

    def _project(self, array: np.ndarray) -> np.ndarray:
        """Sums of entries with random signs in a fixed number of random groups."""
        flat, rng = array.ravel(), np.random.default_rng(0)
        groups, signs = rng.integers(self._BUCKETS, size=len(flat)), rng.choice([-1.0, 1.0], size=len(flat))
        return np.bincount(groups, weights=signs * flat, minlength=self._BUCKETS)

    @property
    def mean(self) -> np.ndarray:
        return self._first + self._sum / max(1, self.count)

    @property
    def time(self) -> float:
        """Integrated autocorrelation time, in arrays, of all entries together."""
        return float(_corrected(*_summed(np.stack(self._series)), self.count)) if self.count else 1.0

    @property
    def variance(self) -> np.ndarray:
        """Of single arrays around the mean."""
        if self.count < 2:
            return np.full(self.shape, np.inf)
        centred = self._squares - self._sum**2 / self.count
        return np.maximum(centred, 0) / (self.count - 1)

    @property
    def error(self) -> np.ndarray:
        """Standard error of the mean."""
        time: float | np.ndarray = self.time
        if self._whole and self.count > 1:
            time = _each(np.stack(self._series)).reshape(self.shape)
        return np.sqrt(self.variance * time / max(1, self.count))

    @property
    def relative_error(self) -> float:
        """|standard error| / |mean| in the Frobenius norm."""
        scale, error = float(np.linalg.norm(self.mean)), float(np.linalg.norm(self.error))
        return error / scale if scale > 0 else error

    def state(self) -> dict[str, np.ndarray]:
        """Arrays from which `restore` continues, for a checkpoint."""
        series = np.stack(self._series) if self._series else np.zeros((0, 0))
        return {"first": self._first, "sum": self._sum, "squares": self._squares, "series": series}

    @classmethod
    def restore(cls, state: dict[str, np.ndarray]) -> Stream:
        stream = cls(state["sum"].shape)
        stream._first, stream._sum, stream._squares = (np.array(state[k]) for k in ("first", "sum", "squares"))
        stream._series = list(state["series"])
        stream.count = len(stream._series)
        return stream


def _corrected(time: Any, window: Any, length: int) -> Any:
    """An autocorrelation time with which the error of a short series is right on average.

    Taken around the series' own mean, every correlation comes out lower by time/length of the variance, and so does the variance itself: over a
    window of W lags on either side, the product of both, which is what an error needs, by the factor 1 - (2W + 1)/length.
    """
    return time / np.maximum(0.25, 1 - (2 * window + 1) / length)


def _each(series: np.ndarray) -> np.ndarray:
    """The corrected autocorrelation time of every column of (length, columns), by Geyer's initial positive sequence."""
    length, columns = series.shape
    centred = series - series.mean(axis=0)
    spectrum = np.fft.rfft(centred, n=2 * length, axis=0)
    products = np.fft.irfft(np.abs(spectrum) ** 2, n=2 * length, axis=0)[: length // 2 + 1]
    moving = products[0] > 0
    correlations = products / np.where(moving, products[0], 1.0)
    count = (len(correlations) - 1) // 2
    pairs = correlations[1 : 2 * count + 1].reshape(count, 2, columns).sum(axis=1)
    going = np.cumprod(pairs > 0, axis=0).astype(bool)
    time = np.maximum(1.0, 1 + 2 * np.sum(np.where(going, pairs, 0.0), axis=0))
    return np.where(moving, _corrected(time, 2 * going.sum(axis=0), length), 1.0)
