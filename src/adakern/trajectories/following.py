r"""The work of `dynamics`: the flow between the times that were asked for, what is recorded at each, checkpoints, and the trajectory that comes out."""

from __future__ import annotations

import math
import time as clock
from dataclasses import asdict, dataclass, field, replace
from os import PathLike
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from adakern import files, inputs, losses, storage
from adakern import memory as memories
from adakern._version import __version__
from adakern.chebyshev import Motion
from adakern.checkpoints import Checkpoint, Content
from adakern.limits import ANTK
from adakern.networks import CNN
from adakern.progress import Progress
from adakern.trajectories import kinks, two_layer
from adakern.trajectories.population import Neurons, Start, span
from adakern.trajectories.trajectory import ERRORS, RECORDED, SCALARS, Trajectory

_CALL = 64  # most steps of one compiled call; fewer where they take long
_SECONDS = 1.0, 4.0  # that a call may take: shorter ones are made longer, longer ones shorter
_LEG = 100  # steps ahead that time is counted in the precision of the weights
_MOST_STEPS = 1_000_000
_TINY = 1e-30  # the same where there is no input, and no field either
_TEMPORARY = 6  # arrays of neurons × points × positions that a step holds at once
_STATES = 9  # copies of all neurons, likewise


@dataclass(frozen=True)
class Data:
    """Training and test data; targets as columns."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    single: bool
    labelled: bool


@dataclass(frozen=True)
class Settings:
    """The numbers of a trajectory."""

    neurons: int
    replicas: int
    initial: str
    seed: int
    accuracy: float
    precision: str
    keep: bool
    times: tuple[float, ...]


@dataclass
class Progressed:
    """Everything that changes along a trajectory."""

    motion: Motion
    time: float = 0.0  # of the last stop
    stop: float = 0.0  # the next one
    rows: list[dict[str, np.ndarray]] = field(default_factory=list)  # one per time that was reached
    failure: str = ""


class Task:
    """One trajectory: what it is about, how far it is, and how to go on. Made and run inside `precision.scope`."""

    def __init__(self, limit: ANTK, data: Data, settings: Settings, budget: int) -> None:
        self.limit, self.data, self.settings, self.budget = limit, data, settings, budget
        network = limit.network
        self.positions = network.sites(data.X.shape)[0]
        rows = inputs.features(network, data.X)
        self.span = span(rows)
        convolutional = isinstance(network, CNN)
        pooled = isinstance(network, CNN) and network.readout == "mean"
        self.readouts = 1 if pooled else self.positions, data.y.shape[1]
        self._check_memory()
        points, activation = len(data.X), network.activation
        self.flow = two_layer.Flow(
            activation,
            losses.get(limit.loss),
            kinks.jump(activation),
            self._blocks(points * self.positions),
            convolutional,
            pooled,
        )
        # A look at a CNN holds a gradient of every neuron at every point as well.
        self.looking = replace(
            self.flow, blocks=self._blocks(points * (self.positions + self.span.rank * convolutional))
        )
        self.start = Start(settings.initial, settings.seed, settings.neurons // 2, math.prod(self.readouts))
        inside = self._placed(self.span.inside(rows))
        lengths = np.linalg.norm(inside, axis=-1)
        band = np.where(lengths > 0, kinks.BAND * settings.accuracy * lengths, _TINY)
        scale = float(np.sqrt(np.mean(data.y**2)))
        self.problem = two_layer.Problem(
            rows=jnp.asarray(inside),
            y=jnp.asarray(data.y),
            band=jnp.asarray(band)[None, None, None],
            richness=jnp.asarray(limit.richness),
            decays=jnp.asarray(limit.decays),
            accuracy=jnp.asarray(settings.accuracy),
            scale=jnp.asarray(scale if scale > 0 else 1.0),
        )
        self.tests, self.spread = self._test_rows(rows.shape[1])
        self.count = 4
        self._far: dict[tuple[int, int], Array] = {}
        w, a = self.start.neurons(self.span, settings.replicas, settings.precision)
        first = Neurons(jnp.asarray(w), jnp.asarray(a.reshape(*a.shape[:3], *self.readouts)))
        self.progressed = Progressed(two_layer.begin(self.flow, self.problem, first))

    def _placed(self, rows: np.ndarray) -> np.ndarray:
        """Rows of points and their positions as positions × points × coordinates."""
        return np.ascontiguousarray(rows.reshape(-1, self.positions, rows.shape[1]).swapaxes(0, 1))

    def _test_rows(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Of all test points, some at a time: coordinates in the span, (positions, points, rank), and lengths outside of it, (positions, points)."""
        X, width = self.data.X_test, self.positions * size
        batch = memories.rows_per_batch(4 * 8 * width, self.budget, len(X))
        inside, spread = np.empty((self.positions, len(X), self.span.rank)), np.empty((self.positions, len(X)))
        for begin in range(0, len(X), batch):
            here = slice(begin, begin + batch)
            rows = inputs.features(self.limit.network, X[here])
            inside[:, here] = self._placed(self.span.inside(rows))
            spread[:, here] = np.linalg.norm(self._placed(self.span.outside(rows)), axis=-1)
        return inside, spread

    def _blocks(self, fields: int) -> int:
        """Into how many equal blocks neurons are taken apart, so that a step fits the budget, with so many numbers per neuron."""
        s = self.settings
        item, pairs = np.dtype(s.precision).itemsize, s.neurons // 2
        needed = -(-_TEMPORARY * s.replicas * s.neurons * fields * item // self.budget)
        return next(count for count in range(1, pairs + 1) if pairs % count == 0 and count >= min(needed, pairs))

    def _check_memory(self) -> None:
        s, points, tests = self.settings, len(self.data.X), len(self.data.X_test)
        item, rank = np.dtype(s.precision).itemsize, self.span.rank
        count = s.replicas * s.neurons * (rank + math.prod(self.readouts))
        kept = len(s.times) * (4 * count * s.keep + 4 * 8 * points**2)
        kernels = 2 * s.replicas * points**2 * item
        rows = (points + tests) * self.positions * (rank + 1) * item
        # No less than the fields of one pair of neurons, or of all at one test point.
        step = _TEMPORARY * s.replicas * item * self.positions * max(2 * points, s.neurons * (tests > 0))
        places = f" with {self.positions} positions" if self.positions > 1 else ""
        memories.require(
            _STATES * item * count + kept + kernels + rows + step,
            f"{s.replicas} replica(s) of {s.neurons} neurons on {points} points{places}, {len(s.times)} times",
            "fewer neurons, replicas, points or times, keep=False" + (", a larger stride" if places else ""),
        )

    def run(self, path: str | PathLike[str] | None, progress: Progress, begun: float) -> Trajectory:
        checkpoint = Checkpoint(path, self._identity())
        earlier = checkpoint.load()
        if earlier is not None:
            self.progressed = _unpack(*earlier, self.progressed.motion)
        times = self.settings.times
        with (
            checkpoint.guarding(lambda: _pack(self.progressed)) as stretch,
            progress.task("dynamics", len(times)) as advance,
        ):
            advance(parts=len(self.progressed.rows))
            while len(self.progressed.rows) < len(times) and not self.progressed.failure:
                before = len(self.progressed.rows)
                self.progressed = self._stretch(self.progressed)
                stretch()
                if len(self.progressed.rows) > before:
                    loss = float(np.mean(self.progressed.rows[-1]["train_loss"]))
                    advance(note=f"t {self.progressed.time:.3g}, loss {loss:.4g}")
            result = self.result(clock.perf_counter() - begun)
        checkpoint.remove()
        return result

    def _identity(self) -> dict[str, Any]:
        d = self.data
        return {
            "limit": storage.limit_config(self.limit),
            "settings": asdict(self.settings),
            "data": files.digest(d.X, d.y, d.X_test, d.y_test),
            "version": __version__,
        }

    def _stretch(self, now: Progressed) -> Progressed:
        """Some steps towards the next time, and a look around when it is reached."""
        target, motion, stop = self.settings.times[len(now.rows)], now.motion, now.stop
        if not motion.left > 0 and target > now.time:  # a new leg
            reach = _LEG * float(motion.step)
            stop = target if target - now.time <= 2 * reach else now.time + reach
            motion = motion._replace(left=jnp.asarray(stop - now.time, motion.left.dtype))
        if motion.left > 0:
            motion = self._advance(motion)
        if bool(motion.stuck) or int(motion.steps) >= _MOST_STEPS:
            return replace(now, motion=motion, failure=self._failure(stop - float(motion.left), motion))
        if motion.left > 0:
            return replace(now, motion=motion, stop=stop)
        rows = [*now.rows, self._look(motion.state, target)] if stop == target else now.rows
        return replace(now, motion=motion, time=stop, stop=stop, rows=rows)

    def _advance(self, motion: Motion) -> Motion:
        """Some steps, so many that checkpoints are not kept waiting. How many does not change where they lead."""
        begun = clock.perf_counter()
        motion = jax.block_until_ready(
            two_layer.advance(self.flow, self.problem, motion, jnp.asarray(self.count, jnp.int32))
        )
        seconds = clock.perf_counter() - begun
        if seconds > _SECONDS[1]:
            self.count = max(1, self.count // 4)
        elif seconds < _SECONDS[0]:
            self.count = min(_CALL, 2 * self.count)
        return motion

    def _failure(self, time: float, motion: Motion) -> str:
        if bool(motion.stuck):
            remedy = "precision='float64' or " if self.settings.precision == "float32" else ""
            return f"the integrator is stuck at t = {time:g}; use {remedy}a larger accuracy, or rescale X and y to order one"
        return f"{_MOST_STEPS} steps led to t = {time:g} only; use a larger accuracy, or rescale X and y to order one"

    def _look(self, neurons: Neurons, time: float) -> dict[str, np.ndarray]:
        """What a trajectory records at a time: means over replicas and their errors."""
        data, loss, s = self.data, self.flow.loss, self.settings
        seen = two_layer.look(self.looking, self.problem, neurons)
        row = statistics("train_loss", jnp.mean(loss.value(self.problem.y[None], seen.outputs), axis=-1))
        row.update(statistics("fitted", self._like_y(loss.link(seen.outputs))))
        row.update(statistics("kernels", seen.kernels))
        if data.y.shape[1] == 1:
            row["tangent_kernels"] = row["kernels"] + self._first_layer(seen, row)
        if len(data.X_test):
            outputs = self._predict(neurons, time)
            row.update(statistics("predictions", self._like_y(loss.link(outputs))))
            if data.labelled:
                values = loss.value(jnp.asarray(data.y_test)[None], outputs)
                row.update(statistics("test_loss", jnp.mean(values, axis=-1)))
        if s.keep:
            each = self.readouts[1:] if self.readouts[0] == 1 else self.readouts
            for name, array, shape in (("weights", neurons.w, (self.span.rank,)), ("readouts", neurons.a, each)):
                row[name] = np.asarray(array, np.float32).reshape(s.replicas, s.neurons, *shape)
        return row

    def _first_layer(self, seen: two_layer.Record, row: dict[str, np.ndarray]) -> np.ndarray:
        r"""$\Phi^0\circ G^1$, the first layer's part of the tangent kernel, with $G^1$ recorded on the way; of a CNN the same summed over positions, without."""
        if self.flow.convolutional:
            return np.asarray(seen.first_layer, np.float64).mean(axis=0)
        row["gradient_kernels"] = np.asarray(seen.gradient_kernels, np.float64).mean(axis=0)
        inside = np.asarray(self.problem.rows[0], np.float64)
        return (inside @ inside.T) * row["gradient_kernels"]

    def _like_y(self, values: Any) -> Any:
        return values[..., 0] if self.data.single else values

    def _predict(self, neurons: Neurons, time: float) -> Array:
        """Outputs at the test points, in batches of them that fit the budget: (replicas, points, outputs)."""
        s, fade = self.settings, float(np.exp(-self.limit.decays[0] * time))
        item = np.dtype(s.precision).itemsize
        each, count = _TEMPORARY * s.replicas * s.neurons * self.positions * item, len(self.data.X_test)
        size = memories.rows_per_batch(each, self.budget, count)
        parts = []
        for begin in range(0, count, size):
            here = slice(begin, begin + size)
            rows = jnp.asarray(self.tests[:, here])
            if s.initial == "normal" or not self.spread[:, here].any():
                spread = jnp.asarray(fade * self.spread[:, here])
                parts.append(two_layer.predict(self.flow, self.problem, neurons, rows, spread))
            else:
                far = fade * self._far_fields(here)
                parts.append(two_layer.predict_drawn(self.flow, self.problem, neurons, rows, far))
        return jnp.concatenate(parts, axis=1)

    def _far_fields(self, here: slice) -> Array:
        """What weights outside of the span add to fields at the start; kept if all of it fits the budget, else drawn again."""
        key, s = (here.start, here.stop), self.settings
        if key in self._far:
            return self._far[key]
        X = self.data.X_test
        outside = self._placed(self.span.outside(inputs.features(self.limit.network, X[here])))
        rows = outside.reshape(-1, outside.shape[-1])
        fields = [self.start.far(self.span, rows, replica) for replica in range(s.replicas)]
        far = jnp.asarray(np.stack(fields), s.precision).reshape(s.replicas, -1, *outside.shape[:2])
        if far.dtype.itemsize * s.replicas * s.neurons // 2 * len(X) * self.positions <= self.budget:
            self._far[key] = far
        return far

    def result(self, seconds: float) -> Trajectory:
        now, s, d, motion = self.progressed, self.settings, self.data, self.progressed.motion
        reached = len(now.rows)
        rows = now.rows or [self._look(motion.state, now.time)]  # for its shapes
        arrays: dict[str, Any] = {name: np.stack([row[name] for row in rows])[:reached] for name in rows[0]}
        for name in RECORDED:
            arrays.setdefault(name, None)
        return Trajectory(
            limit=self.limit,
            X=d.X.copy(),
            y=self._like_y(d.y).copy(),
            times=np.asarray(s.times[:reached]),
            **arrays,
            basis=self.span.basis,
            converged=not now.failure,
            status=now.failure or f"reached t = {now.time:g} in {int(motion.steps)} steps",
            stats={
                "steps": int(motion.steps),
                "rejected": int(motion.rejected),
                "evaluations": int(motion.evaluations),
                "step": float(motion.step),
                "stages": int(motion.stages),
                "fastest_rate": float(motion.rate),
                "coordinates": self.span.rank,
                "positions": self.positions,
                "blocks": self.flow.blocks,
                "rounded_kink": kinks.BAND * s.accuracy if self.flow.jump else 0.0,
                **{name: value for name, value in asdict(s).items() if name not in ("times", "keep")},
                "backend": jax.default_backend(),
                "seconds": seconds,
                "version": __version__,
            },
        )


def statistics(name: str, values: Any) -> dict[str, np.ndarray]:
    """The mean over replicas and its standard error, under their names."""
    each = np.asarray(values, np.float64)
    count = len(each)
    error = each.std(axis=0, ddof=1) / np.sqrt(count) if count > 1 else np.full(each.shape[1:], np.nan)
    return {name: each.mean(axis=0), ERRORS[name]: np.asarray(error)}


def _pack(now: Progressed) -> Content:
    """Everything that a later process needs to go on."""
    leaves = jax.tree.leaves(now.motion)
    arrays = {f"motion.{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
    for index, row in enumerate(now.rows):
        arrays.update({f"row/{index}/{name}": np.asarray(array) for name, array in row.items()})
    return arrays, {"time": now.time, "stop": now.stop, "rows": len(now.rows), "failure": now.failure}


def _unpack(arrays: dict[str, np.ndarray], header: dict[str, Any], like: Motion) -> Progressed:
    """What `_pack` wrote, with a motion of the same structure."""
    leaves, structure = jax.tree.flatten(like)
    packed = [jnp.asarray(arrays[f"motion.{i}"]).reshape(leaf.shape) for i, leaf in enumerate(leaves)]
    motion = jax.tree.unflatten(structure, packed)  # a file gives scalars back as arrays of one
    rows: list[dict[str, np.ndarray]] = [{} for _ in range(header["rows"])]
    for key, array in arrays.items():
        if key.startswith("row/"):
            _, index, name = key.split("/")
            rows[int(index)][name] = array.reshape(()) if name in SCALARS else array
    return Progressed(motion, header["time"], header["stop"], rows, header["failure"])
