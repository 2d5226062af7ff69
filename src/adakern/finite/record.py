"""What changes along a Langevin run: state, averages so far, and both in a checkpoint."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adakern.averages import Stream
from adakern.checkpoints import Content
from adakern.finite.checkpoint import Recorded
from adakern.finite.sampler import Means, State


@dataclass(frozen=True)
class Stride:
    """A stretch of the dynamics: `parts` compiled calls of `blocks` blocks of `leap` steps."""

    step: float
    leap: int = 1
    blocks: int = 1
    parts: int = 1

    @property
    def steps(self) -> int:
        return self.leap * self.blocks * self.parts


@dataclass
class Record(Recorded):
    """Everything that changes along a run."""

    state: State
    stride: Stride = field(default_factory=lambda: Stride(math.nan))  # of the averages
    time: float = 0.0
    steps: int = 0
    stretch: int = 0  # done of the burn-in
    coolings: int = 0  # stretches that were added to the burn-in
    heat: float = math.inf  # kinetic temperature of the last stretch
    batch: int = 0  # done of the averages
    retries: int = 0
    failure: str = ""
    times: list[float] = field(default_factory=list)
    batch_times: list[float] = field(default_factory=list)
    losses: list[np.ndarray] = field(default_factory=list)
    summaries: list[np.ndarray] = field(default_factory=list)
    samples: list[tuple[float, list[np.ndarray]]] = field(default_factory=list)
    streams: dict[str, Stream] = field(default_factory=dict)
    replicas: dict[str, np.ndarray] = field(default_factory=dict)  # sums over batches, of each replica

    def error(self, name: str) -> np.ndarray:
        """Standard error of a mean: from its series, or from the scatter of replicas where that is larger.

        A replica that stays in one of several wells has a quiet series. Few replicas tell their scatter for all entries together only.
        """
        error, sums = self.streams[name].error, self.replicas.get(name)
        if sums is None:
            return error
        between = np.asarray((sums / self.batch).std(axis=0, ddof=1) / math.sqrt(len(sums)))
        if len(sums) >= 4:
            return np.maximum(error, between)
        size = float(np.sum(error**2))
        return error * math.sqrt(max(1.0, float(np.sum(between**2)) / size)) if size > 0 else error

    def forget_averages(self) -> None:
        self.batch = 0
        self.streams, self.replicas, self.summaries, self.samples, self.batch_times = {}, {}, [], [], []

    def follow(self, trace: np.ndarray, spacing: float) -> None:
        """Losses after each block."""
        for loss in trace:
            self.time += spacing
            self.times.append(self.time)
            self.losses.append(loss)

    def add(self, means: Means) -> None:
        """A batch of the averages."""
        arrays = {f"kernel.{i}": kernel for i, kernel in enumerate(means.kernels)}
        arrays.update(outputs=means.outputs, squares=means.squares, test=means.test, test_squares=means.test_squares)
        # yᵀΦ^ℓy, by which feature learning is read off.
        overlaps, squares = (part[:, 4::3] for part in (means.summaries, means.summary_squares))
        arrays.update(overlaps=overlaps, overlap_squares=squares)
        for name, value in arrays.items():
            array = np.asarray(value, dtype=np.float64)
            mean = array.mean(axis=0)
            self.streams.setdefault(name, Stream(mean.shape)).add(mean)
            if len(array) > 1:
                self.replicas[name] = self.replicas[name] + array if name in self.replicas else array
        self.summaries.append(np.asarray(means.summaries, dtype=np.float64))
        self.batch_times.append(self.time)


_PLAIN = ("time", "steps", "stretch", "coolings", "heat", "batch", "retries", "failure")


def pack(record: Record) -> Content:
    """Everything that a later process needs to go on."""
    arrays: dict[str, np.ndarray] = {"key": np.asarray(jax.random.key_data(record.state.key))}
    for name in ("times", "batch_times", "losses", "summaries"):
        values = getattr(record, name)
        arrays[name] = np.stack(values) if values else np.zeros(0)
    for i, (w, m) in enumerate(zip(record.state.weights, record.state.momenta, strict=True)):
        arrays[f"weights.{i}"], arrays[f"momenta.{i}"] = np.asarray(w), np.asarray(m)
    for name, stream in record.streams.items():
        arrays.update({f"stream/{name}/{part}": array for part, array in stream.state().items()})
    for k, (_, weights) in enumerate(record.samples):
        arrays.update({f"sample/{k}/{i}": w for i, w in enumerate(weights)})
    arrays.update({f"replicas/{name}": sums for name, sums in record.replicas.items()})
    header = {name: getattr(record, name) for name in _PLAIN}
    header["heat"] = record.heat if math.isfinite(record.heat) else None
    stride = asdict(record.stride)
    return arrays, {
        **header,
        "stride": {k: v if math.isfinite(v) else None for k, v in stride.items()},
        "samples": [moment for moment, _ in record.samples],
    }


def unpack(arrays: dict[str, np.ndarray], header: dict[str, Any], depth: int) -> Record:
    """The record that `pack` wrote."""
    layers = range(depth + 1)
    key = jax.random.wrap_key_data(jnp.asarray(arrays["key"]), impl="rbg")
    weights, momenta = (tuple(jnp.asarray(arrays[f"{n}.{i}"]) for i in layers) for n in ("weights", "momenta"))
    stride: dict[str, Any] = {k: math.nan if v is None else v for k, v in header["stride"].items()}
    names = {name.split("/")[1] for name in arrays if name.startswith("stream/")}
    parts = ("first", "sum", "squares", "series")
    plain: dict[str, Any] = {name: header[name] for name in _PLAIN}
    plain["heat"] = math.inf if plain["heat"] is None else plain["heat"]
    lists: dict[str, Any] = {name: list(arrays[name]) for name in ("times", "batch_times", "losses", "summaries")}
    return Record(
        State(weights, momenta, key),
        Stride(**stride),
        **plain,
        **lists,
        samples=[(moment, [arrays[f"sample/{k}/{i}"] for i in layers]) for k, moment in enumerate(header["samples"])],
        streams={n: Stream.restore({part: arrays[f"stream/{n}/{part}"] for part in parts}) for n in sorted(names)},
        replicas={name.split("/")[1]: array for name, array in arrays.items() if name.startswith("replicas/")},
    )
