r"""What the particle solver has measured so far: kernels, their errors, and the two biases.

The time average of the particles' kernels is improved in three ways, each by systems that saw the same noise:

* control variate: the lazy shadow has kernels $\Phi_s$ whose mean $\Phi_{lazy}$ is known, so $\Phi-\alpha(\Phi_s-\Phi_{lazy})$ has less noise;
* step: BAOAB's bias falls as $h^2$, so $\frac13(\Phi_{2h}-\Phi_h)$ is it and is taken out;
* particles: the bias of $B$ particles falls as $1/B$, so $(\Phi_{B/n}-\Phi_B)/(n-1)$ is it and is taken out.

Half of what is taken out, beyond its noise, counts as an error: a bias that does not fall as it should is not known better.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import numpy as np

from adakern.averages import Stream

LEAST = 10  # batches before an error is believed
LEAST_PROBES = 6
_MOST = 64  # batches that are kept; then neighbours are merged
_MOST_LARGE = 24  # the same where they take much memory
_LARGE = 2**27  # numbers
_SMALLEST_EIGENVALUE = 0.1  # of a corrected kernel, relative to the one before
_DOUBT = 0.5  # share of a correction that counts as its uncertainty
TAILS = 5.0  # × tolerance: change of a layer's tails that counts as drift
_MOVED = 4.0  # joint standard errors between early and late batches that count as drift


class Batch(NamedTuple):
    """Means over one unit of time: kernels and duals of the system, kernels of its shadow."""

    kernels: tuple[np.ndarray, ...]
    duals: tuple[np.ndarray, ...]
    lazy: tuple[np.ndarray, ...]
    tails: np.ndarray  # of every layer, see `dynamics.Mean`
    energy: np.ndarray
    temperature: np.ndarray


class Probe(NamedTuple):
    """Estimates of the two biases over one unit of time, (kernels, duals) each."""

    step: tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]
    particles: tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]
    shadow: tuple[
        np.ndarray, ...
    ]  # the particles' bias of the shadow's kernels, whose part the control variate has taken out already


class Estimate(NamedTuple):
    """A mean with its standard error, and what went into it."""

    mean: np.ndarray
    error: np.ndarray
    control: float  # α
    step: np.ndarray  # bias of the step, taken out
    particles: np.ndarray  # bias of a finite number of particles, taken out
    time: float  # autocorrelation time in batches


@dataclass(frozen=True)
class Tally:
    """Batches so far. `add` gives a new tally, so that an interrupt finds the old one whole."""

    lazy: tuple[np.ndarray, ...] | None  # the shadow's exact kernels, where they are known
    size: int  # rows of the largest kernel: distinct points, or their positions
    depth: int
    batches: tuple[Batch, ...] = ()
    probes: tuple[Probe, ...] = ()
    length: float = 1.0  # of one batch, in units of time
    pending: tuple[Batch, ...] = field(default=())
    probe_length: float = 1.0
    probe_pending: tuple[Probe, ...] = field(default=())

    def add(self, batch: Batch, probe: Probe | None = None) -> Tally:
        batches, pending, length = _collect(self.batches, self.pending, batch, self.length, self.most)
        new = replace(self, batches=batches, pending=pending, length=length)
        if probe is None:
            return new
        probes, left, length = _collect(self.probes, self.probe_pending, probe, self.probe_length, self.most)
        return replace(new, probes=probes, probe_pending=left, probe_length=length)

    @property
    def most(self) -> int:
        """Batches that are kept."""
        return _MOST if _MOST * 2 * self.depth * self.size**2 < _LARGE else _MOST_LARGE

    def empty(self) -> Tally:
        """None of the batches."""
        return Tally(self.lazy, self.size, self.depth)

    def late(self) -> Tally:
        """The later half of the batches, where the earlier still drifted; what was seen of the biases stays."""
        return replace(self, batches=self.batches[len(self.batches) // 2 :])

    @property
    def enough(self) -> bool:
        return len(self.batches) >= LEAST and len(self.probes) >= LEAST_PROBES

    def due(self) -> bool:
        """Whether it is worth looking at the errors now."""
        count = len(self.batches)
        return self.enough and not self.pending and (count < 2 * LEAST or count % 4 == 0)

    def kernel(self, layer: int) -> Estimate:
        r"""$\Phi^\ell$ over distinct points (of a CNN's inner layers over their positions), positive semi-definite."""
        series, control = self._controlled(layer)
        estimate = self._corrected(series, layer, 0, control)
        plain = np.mean([batch.kernels[layer] for batch in self.batches], axis=0)
        return estimate._replace(mean=_shifted(plain, estimate.mean - plain), control=control)

    def _controlled(self, layer: int) -> tuple[np.ndarray, float]:
        """The series of a kernel with its control variate, and α."""
        series = np.stack([batch.kernels[layer] for batch in self.batches])
        if self.lazy is None:
            return series, 0.0
        shadow = np.stack([batch.lazy[layer] for batch in self.batches]) - self.lazy[layer][None]
        control = _control(series, shadow)
        return series - control * shadow, control

    def scatters(self) -> list[np.ndarray]:
        """Centred series of everything that the top kernel is made of: batches, and the two corrections."""
        series, control = self._controlled(self.depth - 1)
        parts = [series, *(self._biases(self.depth - 1, 0, control) if self.probes else [])]
        return [part - part.mean(axis=0) for part in parts]

    def doubts(self, layer: int) -> np.ndarray:
        """What the two corrections of a kernel may be wrong by."""
        if not self.probes:
            return np.zeros((2, *self.batches[-1].kernels[layer].shape))
        return np.stack([_doubt(_stream(part)) for part in self._biases(layer, 0, self._controlled(layer)[1])])

    def dual(self, layer: int) -> Estimate:
        r"""$\hat\Phi^\ell$, $\ell<L$, over distinct points."""
        return self._corrected(np.stack([batch.duals[layer] for batch in self.batches]), layer, 1)

    def _biases(self, layer: int, which: int, control: float) -> list[np.ndarray]:
        """Series of the two biases; what the control variate took out with the shadow's own is not taken out twice."""
        step, particles = (np.stack([probe[index][which][layer] for probe in self.probes]) for index in (0, 1))
        if which == 0 and control:
            particles = particles - control * np.stack([probe.shadow[layer] for probe in self.probes])
        return [step, particles]

    def _corrected(self, series: np.ndarray, layer: int, which: int, control: float = 0.0) -> Estimate:
        stream = _stream(series)
        zero = np.zeros(series.shape[1:])
        mean, variance, biases = stream.mean, stream.error**2, [zero, zero]
        if self.probes:
            for index, part in enumerate(self._biases(layer, which, control)):
                bias = _stream(part)
                biases[index] = bias.mean
                mean = mean - bias.mean
                variance = variance + bias.error**2 + _doubt(bias) ** 2
        return Estimate(mean, np.sqrt(variance), 0.0, biases[0], biases[1], stream.time)

    def probe_error(self, layer: int) -> float:
        """Relative standard error that the corrections of a kernel carry."""
        scale = float(np.linalg.norm(self.batches[-1].kernels[layer]))
        control = self._controlled(layer)[1] if len(self.batches) > 1 else 0.0
        errors = [_stream(part).error for part in self._biases(layer, 0, control)]
        return float(np.sqrt(sum(np.sum(error**2) for error in errors))) / (scale or 1.0)

    def drifting(self, tolerance: float) -> bool:
        """Whether late batches differ from early ones: beyond chance, in energy and kernels by a quarter of the tolerance, in tails by five of it.

        At large richness kernels can stand still while the neurons that make them up sort themselves out: tails show that.
        """
        tests = [np.array([float(batch.energy) for batch in self.batches])]
        for layer in range(self.depth):
            series = np.stack([batch.kernels[layer].ravel() for batch in self.batches])
            direction = series.mean(axis=0)
            tests.append(series @ (direction / (np.linalg.norm(direction) or 1.0)))
        tails = np.array([batch.tails for batch in self.batches]).T
        return any(moves(values, 0.25 * tolerance) for values in tests) or any(
            moves(values, TAILS * tolerance) and _steady(values) for values in tails
        )

    @property
    def energies(self) -> np.ndarray:
        return np.array([float(batch.energy) for batch in self.batches])

    @property
    def temperature(self) -> float:
        return float(np.mean([batch.temperature for batch in self.batches]))


def moves(values: np.ndarray, allowed: float) -> bool:
    """Whether the later half of a series differs from the earlier one by more than chance and by more than this relative change."""
    half = len(values) // 2
    if not np.isfinite(values).all():
        return True
    early, late = _stream(values[:half]), _stream(values[half:])
    change = abs(float(late.mean - early.mean))
    return bool(change > _MOVED * np.hypot(early.error, late.error) and change > allowed * abs(values.mean()))


def _steady(values: np.ndarray) -> bool:
    """Whether thirds of a series rise or fall one after the other: slow fluctuations, which tails have, do not as a rule."""
    first, second, third = (part.mean() for part in np.array_split(values, 3))
    return bool((second - first) * (third - second) > 0)


def trends(values: np.ndarray, allowed: float) -> bool:
    """Whether a short series climbs or falls on a straight line by more than this relative change, and clearly beyond its scatter about the line."""
    if not np.isfinite(values).all():
        return True
    time = np.arange(len(values)) - (len(values) - 1) / 2
    slope = float(time @ values) / float(time @ time)
    rest = values - values.mean() - slope * time
    error = float(np.sqrt(rest @ rest / (len(values) - 2) / (time @ time)))
    change = abs(slope) * len(values)
    return bool(change > allowed * abs(values.mean()) and abs(slope) > _MOVED * error)


def relative(estimate: Estimate) -> float:
    """|standard error| / |mean| in the Frobenius norm."""
    scale, error = float(np.linalg.norm(estimate.mean)), float(np.linalg.norm(estimate.error))
    return error / scale if scale > 0 else error


def probe(main: Any, parts: Any, coarse: Any, lazy: Any, count: int) -> Probe:
    """The biases that three coupled means over the same stretch show; `count` is the number of parts."""

    def of(name: str) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
        trios = list(zip(getattr(main, name), getattr(parts, name), getattr(coarse, name), strict=True))
        return tuple((c - a) / 3 for a, _, c in trios), tuple((b - a) / (count - 1) for a, b, _ in trios)

    kernels, duals = of("kernels"), of("duals")
    shadow = tuple((part - whole) / (count - 1) for whole, part in zip(lazy.kernels, lazy.parts, strict=True))
    return Probe((kernels[0], duals[0]), (kernels[1], duals[1]), shadow)


def _control(series: np.ndarray, shadow: np.ndarray) -> float:
    """The α that leaves the least variance, one for all entries of a kernel."""
    moves = shadow - shadow.mean(axis=0)
    size = float(np.sum(moves**2))
    if len(series) < 4 or size == 0.0:
        return 0.0
    return float(np.clip(np.sum(moves * (series - series.mean(axis=0))) / size, 0.0, 1.5))


def error(series: np.ndarray) -> np.ndarray:
    """Standard error of the mean of a series of arrays, allowing for autocorrelation."""
    return _stream(series).error


def _stream(series: np.ndarray) -> Stream:
    stream = Stream(series.shape[1:])
    for array in series:
        stream.add(array)
    return stream


def _doubt(bias: Stream) -> np.ndarray:
    """What a correction may be wrong by, where the bias does not fall as it should: half of what it is beyond its noise."""
    size, noise = float(np.sum(bias.mean**2)), float(np.sum(bias.error**2))
    share = np.sqrt(max(0.0, 1 - noise / size)) if size > 0 else 0.0
    return _DOUBT * share * bias.mean


def _collect(kept: tuple[Any, ...], pending: tuple[Any, ...], new: Any, length: float, most: int) -> Any:
    """Means of `length` items each, with a new item: what is kept, what is pending, and the length, doubled when there are too many."""
    pending = (*pending, new)
    if len(pending) < length:
        return kept, pending, length
    kept = (*kept, _merge(pending))
    if len(kept) < most:
        return kept, (), length
    return tuple(_merge(kept[i : i + 2]) for i in range(0, len(kept) - 1, 2)), (), 2 * length


def _merge(items: tuple[Any, ...]) -> Any:
    if len(items) == 1:
        return items[0]
    return jax.tree.map(lambda *parts: np.mean(parts, axis=0), *items)


def _shifted(kernel: np.ndarray, change: np.ndarray) -> np.ndarray:
    """kernel + change where that is positive; where a noisy change would take a direction below a tenth of what it was, a tenth."""
    values, vectors = np.linalg.eigh(kernel)
    keep = values > len(kernel) * np.finfo(kernel.dtype).eps * max(values[-1], 0.0)
    root = vectors[:, keep] * np.sqrt(values[keep])[None, :]
    inverse = vectors[:, keep] / np.sqrt(values[keep])[None, :]
    stretch, turn = np.linalg.eigh(np.eye(keep.sum()) + inverse.T @ (change + change.T) @ inverse / 2)
    spread = root @ turn
    return (spread * np.maximum(stretch, _SMALLEST_EIGENVALUE)[None, :]) @ spread.T
