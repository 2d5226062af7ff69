r"""The work of `dynamics` for several hidden layers: populations one after the other, each from time to time, with checkpoints, and the trajectory that comes out."""

from __future__ import annotations

import time as clock
from dataclasses import asdict, dataclass, field, replace
from os import PathLike
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adakern import files, inputs, losses, storage
from adakern import memory as memories
from adakern._version import __version__
from adakern.checkpoints import Checkpoint, Content
from adakern.errors import TooLargeError
from adakern.limits import ANTK
from adakern.progress import Progress
from adakern.trajectories import deep_buffers, deep_flow, kinks
from adakern.trajectories.deep_buffers import Population
from adakern.trajectories.following import Data, Settings, statistics
from adakern.trajectories.pairs import HISTORY, PAIRS, pairs
from adakern.trajectories.population import span
from adakern.trajectories.trajectory import ERRORS, RECORDED, SCALARS, Trajectory

_MOST_STEPS = 200_000
_FULL = (
    0.5  # of the neurons: most directions that may be known in a layer; the bias of a population grows with their share
)
_EXACT = {"float64": 1e-13, "float32": 1e-6}  # of the mean square: what counts as a direction of a linear network
_FORGIVEN = 10.0  # a step that missed by more than this for what it did not know is taken again, shorter


@dataclass(frozen=True)
class DeepSettings(Settings):
    """The numbers of a trajectory of several hidden layers."""

    resolution: float
    responses: bool = True
    pairs: bool = False  # of times


@dataclass
class Marched:
    """Everything that changes along a trajectory."""

    population: Population
    replica: int = 0
    time: float = 0.0
    draws: int = 0
    again: bool = False  # the step is being taken a second time
    missed: float = 0.0  # the largest error of a step for what it did not know, against the accuracy
    steps: int = 0  # of the replicas before
    repeated: int = 0  # those that were taken again, with what they had met
    directions: int = 0  # most that a layer's neurons were known in
    rows: list[list[dict[str, np.ndarray]]] = field(default_factory=lambda: [[]])  # of every replica and time
    failure: str = ""


class Task:
    """One trajectory. Made and run inside `precision.scope`."""

    def __init__(self, limit: ANTK, data: Data, settings: DeepSettings, budget: int) -> None:
        self.limit, self.data, self.settings, self.budget = limit, data, settings, budget
        network, s = limit.network, settings
        self.exact = network.activation.name == "linear"
        rows = inputs.features(network, data.X)
        self.span = span(rows)
        self.points, self.outputs = data.y.shape
        self.replicas = 1 if self.exact else s.replicas
        self._check_memory()
        self.flow = deep_flow.Flow(
            network.activation,
            losses.get(limit.loss),
            network.depth,
            self.outputs,
            kinks.jump(network.activation),
            self.exact,
            s.responses,
        )
        scale = float(np.sqrt(np.mean(data.y**2)))
        self.problem = deep_flow.Problem(
            rows=jnp.asarray(self.span.inside(rows)),
            y=jnp.asarray(data.y),
            richness=jnp.asarray(limit.richness),
            decays=jnp.asarray(limit.decays),
            accuracy=jnp.asarray(s.accuracy),
            scale=jnp.asarray(scale if scale > 0 else 1.0),
            least=jnp.asarray(_EXACT[s.precision] if self.exact else s.resolution),
            share=jnp.asarray(1.0 if self.exact else 1 / s.neurons),
        )
        tests = inputs.features(network, data.X_test)
        self.tests = self.span.inside(tests)
        self.spread = np.linalg.norm(self.span.outside(tests), axis=1)
        self.key = jax.random.key(s.seed)
        self.marched = Marched(self._population(0))

    def _key(self, replica: int, draws: int) -> jax.Array:
        """Of the draws of a replica, the start's being number 0: keys that are split must not be siblings of those that they are split from."""
        return jax.random.fold_in(jax.random.fold_in(self.key, replica), draws)

    def _check_memory(self) -> None:
        """Directions are at most half of the neurons, each known in two layers; arrays grow by factors of two, and a step has two copies of them."""
        s, depth = self.settings, self.limit.network.depth
        item = np.dtype(s.precision).itemsize
        if not self.exact and 16 * self.points > _FULL * s.neurons:
            raise ValueError(
                f"neurons must be at least {int(16 * self.points / _FULL)} for {self.points} points and several hidden layers, but it is {s.neurons}"
            )
        held = self._linear(self._rooms()[0]) if self.exact else 3 * depth * s.neurons**2
        kept = (
            len(s.times) * self.replicas * (4 * s.keep * depth * s.neurons * self.points + 16 * depth * self.points**2)
        )
        if s.pairs:  # fields of a population on its way, and products of populations that have arrived
            width = 8 * self.points * 8 if self.exact else 4 * s.neurons
            kept += len(s.times) * 4 * depth * self.points * width
            kept += 8 * 4 * depth * (self.replicas + 3) * (len(s.times) * self.points) ** 2
        memories.require(
            item * held + kept,
            f"{depth} layers of {s.neurons} neurons on {self.points} points, {len(s.times)} times",
            ", ".join(["fewer neurons or times", *["pairs=False"] * s.pairs, *["keep=False"] * s.keep]),
        )

    def _linear(self, room: tuple[int, int, int]) -> int:
        """Numbers of a linear network in this room, twice: rows of both sides of its matrices, and what was learned."""
        directions, _, width = room
        return 2 * self.limit.network.depth * (4 * directions * width + 5 * directions**2)

    def _population(self, replica: int) -> Population:
        """At the start, in small buffers."""
        s, depth, points = self.settings, self.limit.network.depth, self.points
        key, rank = self._key(replica, 0), self.problem.rows.shape[1]
        most, known, width = self._rooms()[0]
        bases = deep_flow.empty(depth, points, width, most, known, self.exact, s.precision)
        empty = deep_flow.State(
            jnp.zeros((rank, width), s.precision),
            (jnp.zeros((most, most), s.precision),) * (depth - 1),
            jnp.zeros((self.outputs, width), s.precision),
            jnp.ones(depth, s.precision),
        )
        bases, first = deep_flow.begin(self.flow, self.problem, bases, empty, key)
        return Population(bases, first, deep_flow.start(self.flow, self.problem, bases, first))

    def run(self, path: str | PathLike[str] | None, progress: Progress, begun: float) -> Trajectory:
        checkpoint = Checkpoint(path, self._identity())
        earlier = checkpoint.load()
        if earlier is not None:
            self.marched = _unpack(*earlier, self.marched.population)
        total = len(self.settings.times) * self.replicas
        with (
            checkpoint.guarding(lambda: _pack(self.marched)) as stretch,
            progress.task("dynamics", total) as advance,
        ):
            advance(parts=sum(map(len, self.marched.rows)))
            while not self._done():
                before = sum(map(len, self.marched.rows))
                self.marched = self._stretch(self.marched)
                stretch()
                if sum(map(len, self.marched.rows)) > before:
                    loss = float(self.marched.rows[-1][-1]["train_loss"])
                    advance(note=f"replica {len(self.marched.rows)}, t {self.marched.time:.3g}, loss {loss:.4g}")
            result = self.result(clock.perf_counter() - begun)
        checkpoint.remove()
        return result

    def _done(self) -> bool:
        now = self.marched
        return bool(now.failure) or (len(now.rows) == self.replicas and len(now.rows[-1]) == len(self.settings.times))

    def _identity(self) -> dict[str, Any]:
        d = self.data
        return {
            "limit": storage.limit_config(self.limit),
            "settings": asdict(self.settings),
            "data": files.digest(d.X, d.y, d.X_test, d.y_test),
            "version": __version__,
        }

    def _stretch(self, now: Marched) -> Marched:
        """A step of the population that is on its way, a look where it has arrived, or the next population."""
        times = self.settings.times
        if len(now.rows[-1]) == len(times):
            steps = now.steps + int(now.population.motion.steps)
            fresh = self._population(now.replica + 1)
            return replace(
                now, population=fresh, replica=now.replica + 1, time=0.0, draws=0, steps=steps, rows=[*now.rows, []]
            )
        target, motion = times[len(now.rows[-1])], now.population.motion
        if not motion.left > 0 and target > now.time:
            motion = motion._replace(left=jnp.asarray(target - now.time, motion.left.dtype))
            now = replace(now, population=now.population._replace(motion=motion))
        if motion.left > 0:
            now = self._step(now, target)
            motion = now.population.motion
        if now.failure or motion.left > 0:
            return now
        rows = [*now.rows[:-1], [*now.rows[-1], self._look(now.population)]]
        if self.settings.pairs and len(rows[-1]) == len(times):
            rows[-1] = self._paired(rows[-1])
        return replace(now, time=target, rows=rows)

    def _step(self, now: Marched, target: float) -> Marched:
        now, failure = self._with_room(now)
        before, time = now.population.motion, target - float(now.population.motion.left)
        if failure:
            return replace(now, failure=f"{failure} at t = {time:g}; use more neurons or a larger resolution")
        bases = now.population.bases
        after = deep_flow.attempt(self.flow, self.problem, bases, before)
        if bool(after.stuck) or int(after.steps) >= _MOST_STEPS:
            remedy = "precision='float64' or " if self.settings.precision == "float32" else ""
            what = "the integrator is stuck" if bool(after.stuck) else f"{_MOST_STEPS} steps were not enough"
            return replace(
                now, failure=f"{what} at t = {time:g}; use {remedy}a larger accuracy, or rescale X and y to order one"
            )
        if not after.left < before.left:
            return replace(now, population=now.population._replace(motion=after))
        draws = now.draws + 1
        key = self._key(now.replica, draws)
        bases, again, after, size = deep_flow.reveal(self.flow, self.problem, bases, before, after, key)
        missed = float(size)
        if missed > 1 and not now.again:  # what the step has met is known now
            motion = again
        elif missed > _FORGIVEN:
            motion = again._replace(step=0.25 * (before.left - after.left))
        else:
            motion = after._replace(step=after.step * min(1.0, max(0.3, 0.8 / max(missed, 1e-9) ** 0.5)))
        redo = motion.left > after.left
        return replace(
            now,
            population=Population(bases, now.population.first, motion),
            draws=draws,
            again=bool(redo) and missed <= _FORGIVEN,
            repeated=now.repeated + bool(redo),
            missed=now.missed if redo else max(now.missed, missed),
        )

    def _with_room(self, now: Marched) -> tuple[Marched, str]:
        """Buffers that the next sweep fits into, or why there are none."""
        bases, points = now.population.bases, self.points
        if not bases.weights:
            return now, ""
        used, room = deep_buffers.used(bases), deep_buffers.room(bases)
        now = replace(now, directions=max(now.directions, used.known))
        need = used.known + 4 * points  # features and gradients of both matrices that meet in a layer
        here = (*room, bases.far.shape[1])
        for rooms in self._rooms():
            wide = rooms[2] if self.exact else rooms[1]
            if used.directions + points <= rooms[0] and need <= wide and all(map(int.__le__, here, rooms)):
                break
        else:
            most = self._rooms()[-1]
            if used.directions + points > most[0] and not self.exact:
                return (
                    now,
                    f"features or gradients have taken {used.directions} directions, and {self.settings.neurons} neurons have room for {most[0] - points},",
                )
            return now, f"what is known of a layer takes {used.known} directions, too many for {here[2]} neurons,"
        if rooms != here:
            if self.exact and (failure := self._no_memory(rooms)):
                return now, failure
            now = replace(now, population=deep_buffers.widened(now.population, *rooms))
        return now, ""

    def _no_memory(self, rooms: tuple[int, int, int]) -> str:
        """Why there is none for this room, or nothing."""
        needed = np.dtype(self.settings.precision).itemsize * self._linear(rooms)
        try:
            memories.require(needed, "", "")
        except TooLargeError:
            return f"directions want {needed / memories.GIB:.1f} GiB of memory, which are not free,"
        return ""

    def _rooms(self) -> list[tuple[int, int, int]]:
        """Rooms to choose from, the smallest first: for directions of a matrix, for all that is known of a layer, and width. Each is compiled for, so that they are few."""
        points, neurons = self.points, self.settings.neurons
        if self.exact:
            sizes = [max(32, 4 * points) * 4**power for power in range(5)]
            return [(size, 0, 4 * size) for size in sizes]
        last = int(_FULL * neurons)
        known = [min(last, max(share, 16 * points)) for share in (neurons // 8, neurons // 4)] + [last]
        return [(count // 2, count, neurons) for count in sorted(set(known))]

    def _look(self, population: Population) -> dict[str, np.ndarray]:
        """What is recorded of a population at a time."""
        data, loss, s = self.data, self.flow.loss, self.settings
        bases, state = population.bases, population.motion.state
        seen = deep_flow.look(self.flow, self.problem, bases, state)
        row = {
            "train_loss": jnp.mean(loss.value(self.problem.y, seen.outputs)),
            "fitted": self._like_y(loss.link(seen.outputs)),
            "kernels": seen.kernels,
        }
        if self.outputs == 1:
            row["gradient_kernels"] = seen.gradient_kernels
        if len(data.X_test):
            outputs = self._predict(population)
            row["predictions"] = self._like_y(loss.link(outputs))
            if data.labelled:
                row["test_loss"] = jnp.mean(loss.value(jnp.asarray(data.y_test), outputs))
        found = {name: np.asarray(value, np.float64) for name, value in row.items()}
        if s.keep:
            fields = np.asarray(seen.fields, np.float64)
            if self.exact:  # coordinates in Gaussians: neurons are drawn
                fields = np.stack([each @ self._drawn(i, fields.shape[-1]) for i, each in enumerate(fields)])
            found["fields"] = fields.swapaxes(1, 2).astype(np.float32)
        if s.pairs:
            kind = np.float64 if self.exact else np.float32
            history = seen.features, seen.gradients, seen.forward, seen.backward
            found.update({name: np.asarray(rows, kind) for name, rows in zip(HISTORY, history, strict=True)})
        return found

    def _paired(self, rows: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
        """The rows of a population that has arrived, with all its pairs of times in the place of its history."""
        found = pairs(rows, float(self.problem.share))
        plain = [{name: value for name, value in row.items() if name not in HISTORY} for row in rows]
        for index, row in enumerate(plain):
            row.update({name: value[index] for name, value in found.items()})
        return plain

    def _cut(self, rows: list[dict[str, np.ndarray]], reached: int) -> list[dict[str, np.ndarray]]:
        """Its first rows, with their own pairs of times, whether or not it has arrived."""
        rows = rows[:reached]
        if HISTORY[0] in rows[0]:
            return self._paired(rows)
        return [{name: value[:reached] if name in PAIRS else value for name, value in row.items()} for row in rows]

    def _drawn(self, layer: int, width: int) -> np.ndarray:
        return np.random.default_rng([self.settings.seed, layer]).standard_normal((width, self.settings.neurons))

    def _predict(self, population: Population) -> jax.Array:
        """Outputs at the test points, less those of the start, which are zero at infinite width; in batches that fit the budget."""
        bases, first, motion = population
        width = bases.far.shape[1]
        each = 8 * width * np.dtype(self.settings.precision).itemsize
        size = memories.rows_per_batch(each, self.budget, len(self.tests))
        parts = []
        for begin in range(0, len(self.tests), size):
            here = slice(begin, begin + size)
            given = jnp.asarray(self.tests[here]), jnp.asarray(self.spread[here])
            now, then = (
                deep_flow.predict(self.flow, self.problem, bases, state, *given) for state in (motion.state, first)
            )
            parts.append(now if self.exact else now - then)
        return jnp.concatenate(parts)

    def _like_y(self, values: Any) -> Any:
        return values[..., 0] if self.data.single else values

    def result(self, seconds: float) -> Trajectory:
        now, s, d = self.marched, self.settings, self.data
        reached = min(map(len, now.rows))
        arrays = self._arrays(reached)
        return Trajectory(
            limit=self.limit,
            X=d.X.copy(),
            y=self._like_y(d.y).copy(),
            times=np.asarray(s.times[:reached]),
            **arrays,
            basis=None,
            converged=not now.failure,
            status=now.failure or f"reached t = {now.time:g} in {now.steps + int(now.population.motion.steps)} steps",
            stats={
                "method": "coordinates" if self.exact else "populations",
                "steps": now.steps + int(now.population.motion.steps),
                "repeated": now.repeated,
                "directions": now.directions,
                "missed": now.missed,
                "fastest_rate": float(now.population.motion.rate),
                "coordinates": self.span.rank,
                **{name: value for name, value in asdict(s).items() if name not in ("times", "keep")},
                "replicas": self.replicas,
                "backend": jax.default_backend(),
                "seconds": seconds,
                "version": __version__,
            },
        )

    def _arrays(self, reached: int) -> dict[str, Any]:
        """Means over populations and their errors, at the times that all of them reached."""
        rows = self.marched.rows
        if not reached:  # for the shapes
            rows = [[self._look(self.marched.population)]]
        if self.settings.pairs:
            rows = [self._cut(one, max(reached, 1)) for one in rows]
        names = rows[0][0]
        arrays: dict[str, Any] = dict.fromkeys(RECORDED)
        for name in names:
            each = np.stack([np.stack([row[name] for row in one[: max(reached, 1)]]) for one in rows])[:, :reached]
            if name in ERRORS:
                arrays.update(statistics(name, each))
                if self.exact:
                    arrays[ERRORS[name]] = np.zeros(each.shape[1:])
            else:
                arrays[name] = np.moveaxis(each, 0, 2) if name == "fields" else each.mean(axis=0)
        if arrays["gradient_kernels"] is not None:
            arrays["tangent_kernels"] = self._tangent(arrays["kernels"], arrays["gradient_kernels"])
        return arrays

    def _tangent(self, kernels: np.ndarray, gradients: np.ndarray) -> np.ndarray:
        r"""$K=\sum_\ell G^{\ell+1}\circ\Phi^\ell$."""
        inside = np.asarray(self.problem.rows, np.float64)
        first = (inside @ inside.T)[None] * gradients[:, 0]
        return first + np.sum(kernels[:, :-1] * gradients[:, 1:], axis=1) + kernels[:, -1]


def _pack(now: Marched) -> Content:
    """Everything that a later process needs to go on."""
    arrays = deep_buffers.pack(now.population)
    for replica, rows in enumerate(now.rows):
        for index, row in enumerate(rows):
            arrays.update({f"row/{replica}/{index}/{name}": array for name, array in row.items()})
    header = {name: value for name, value in now.__dict__.items() if name not in ("population", "rows")}
    return arrays, {**header, "rows": [len(rows) for rows in now.rows]}


def _unpack(arrays: dict[str, np.ndarray], header: dict[str, Any], like: Population) -> Marched:
    """What `_pack` wrote."""
    rows: list[list[dict[str, np.ndarray]]] = [[{} for _ in range(count)] for count in header["rows"]]
    for key, array in arrays.items():
        if key.startswith("row/"):
            _, replica, index, name = key.split("/")
            rows[int(replica)][int(index)][name] = array.reshape(()) if name in SCALARS else array
    return Marched(deep_buffers.unpack(arrays, like), **{**header, "rows": rows})
