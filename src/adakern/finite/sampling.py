"""The work of `langevin`: burn-in, averages, checkpoints, and the run that comes out."""

from __future__ import annotations

import math
import time as clock
from dataclasses import dataclass
from os import PathLike

import jax
import jax.numpy as jnp
import numpy as np

from adakern import losses, memory
from adakern._version import __version__
from adakern.averages import Stream
from adakern.checkpoints import Checkpoint
from adakern.errors import ConvergenceError
from adakern.finite import coordinates, model, sampler, verdict
from adakern.finite.checkpoint import identity
from adakern.finite.inputs import Inputs
from adakern.finite.record import Record, Stride, pack, unpack
from adakern.finite.run import Run, Settings
from adakern.finite.sampler import Means, Problem, State
from adakern.networks import Network
from adakern.progress import Progress

# Step × frequency of the stiffest mode (BAOAB), step × its rate (Euler); both are stable below 2.
_REACH = {"baoab": 0.6, "euler": 0.2}
_DRAG = 20.0  # friction while the heat of the first descent is carried off
_REFRESH = 0.2  # friction × time between two refreshments of the momenta
_MOST_KICKS = 16  # steps between two measurements
_MOST_BLOCKS = 64  # measurements of one compiled call
_STRETCHES = 16  # of the burn-in
_BATCHES = 128  # of the averages: enough for an autocorrelation time to be read off their series
_COOLINGS = 64  # most stretches beyond the burn-in, if it ends with heat left
_WARM = 1.1  # kinetic temperature up to which the heat of the first descent counts as gone
_HOT = 1.5  # kinetic temperature of a stretch that was not followed stably, unless it came in hot
_RETRIES = 12
_LEAST = 2.0  # rescaled time of burn-in and averages below which a run cannot count as converged


@dataclass(frozen=True)
class Plan:
    """How to sample."""

    sampler: str
    time: float
    burn_in: float
    friction: float
    step: float | None
    snapshots: int
    tolerance: float


class Task:
    """One run: what it is about, its record, and how to go on."""

    def __init__(self, network: Network, data: Inputs, settings: Settings, plan: Plan) -> None:
        self.network, self.data, self.settings, self.plan = network, data, settings, plan
        self.net = model.build(
            network, data.X, losses.get(settings.loss), settings.width, data.y.shape[1], settings.matmul
        )
        rows = model.rows_of(network, data.X)
        self.coordinates = coordinates.of_rows(rows)
        shapes = self.net.shapes(self.coordinates.rank)
        self.kept = self._check_memory(shapes, len(rows))
        self.problem = self._problem(rows)
        self.mobility = self.problem.mobility if plan.sampler == "euler" else jnp.ones_like(self.problem.mobility)
        self.record = Record(sampler.start(shapes, settings.replicas, settings.seed, settings.precision))

    def _check_memory(self, shapes: tuple[tuple[int, int], ...], rows: int) -> int:
        """Refuse what cannot fit, and return how many weights can be kept."""
        item, copies = np.dtype(self.settings.precision).itemsize, self.settings.replicas
        weights = sum(a * b for a, b in shapes) * item * copies
        fields = 4 * self.net.depth * rows * self.net.width * item * copies
        tests = 4 * len(self.data.X_test) * self.net.positions[0] * self.net.width * item * copies
        sizes = [rows if i < self.net.depth - 1 else len(self.data.X) for i in range(self.net.depth)]
        kernels = sum(n * n for n in sizes) * (6 * 8 + (3 * item + 2 * 8) * copies)
        tests += 2 * 8 * len(self.data.X_test) * self.net.positions[0] ** 2
        memory.require(
            7 * weights + fields + tests + kernels,
            f"{copies} network(s) of width {self.net.width} on {len(self.data.X)} points",
            "a smaller width, fewer replicas or points",
        )
        return max(1, min(self.plan.snapshots, memory.DEFAULT_BUDGET // max(1, weights)))

    def _problem(self, rows: np.ndarray) -> Problem:
        s, net = self.settings, self.net
        scales = net.scales(s.gamma) / np.sqrt(s.decays)
        inside, _ = self.coordinates.split(rows)
        test_rows, root = np.zeros((0, self.coordinates.rank)), np.zeros((0, 1, 1))
        tests = self.data.X_test
        if len(tests):
            test_rows, outside = self.coordinates.split(model.rows_of(self.network, tests))
            if outside is not None:
                grouped = outside.reshape(len(tests), net.positions[0], -1) / math.sqrt(s.decays[0])
                root = _roots(grouped @ np.swapaxes(grouped, 1, 2))
        beta = s.beta if s.beta is not None else 1.0
        return Problem(
            rows=jnp.asarray(inside * scales[0]),
            y=jnp.asarray(self.data.y),
            scales=jnp.asarray(scales),
            strength=jnp.asarray(beta * s.gamma**2),
            mobility=jnp.asarray(s.decays),
            test_rows=jnp.asarray(test_rows * scales[0]),
            test_root=jnp.asarray(root),
            y_test=jnp.asarray(self.data.y_test),
        )

    def run(self, path: str | PathLike[str] | None, progress: Progress, begun: float) -> Run:
        checkpoint = Checkpoint(path, identity(self.network, self.settings, self.plan, self.data))
        earlier = checkpoint.load()
        if earlier is not None:
            self.record = unpack(*earlier, self.net.depth)
        with (
            checkpoint.guarding(lambda: pack(self.record)) as stretch,
            progress.task("Langevin", self.stretches + self.batches) as advance,
        ):
            advance(parts=min(self.record.stretch, self.stretches) + self.record.batch)
            while not self.record.failure and self.record.batch < self.batches:
                burning = self._burning(self.record)
                self.record = self._burn(self.record.copy()) if burning else self._average(self.record.copy())
                stretch()
                advance(note=self._note("burn-in" if burning else f"tau {self.record.time:.1f}"))
            run = self.result(clock.perf_counter() - begun)
        checkpoint.remove()
        return run

    def _burning(self, record: Record) -> bool:
        """Whether burn-in goes on: as long as it was meant to, and a while longer if heat is left."""
        if record.stretch < self.stretches:
            return True
        return bool(
            self.stretches and record.batch == 0 and record.heat > _WARM + self._chance and record.coolings < _COOLINGS
        )

    @property
    def _chance(self) -> float:
        """How far the kinetic temperature of one moment strays by chance."""
        return 3 * math.sqrt(2 / (self.freedom * self.settings.replicas))

    @property
    def stretches(self) -> int:
        """Of the burn-in; no more than there are steps, if the step was given."""
        return self._pieces(self.plan.burn_in, _STRETCHES)

    @property
    def batches(self) -> int:
        """Of the averages."""
        return self._pieces(self.plan.time - self.plan.burn_in, _BATCHES)

    def _pieces(self, duration: float, most: int) -> int:
        if duration == 0:
            return 0
        return most if self.plan.step is None else max(1, min(most, round(duration / self.plan.step)))

    def _note(self, phase: str) -> str:
        loss = float(np.mean(self.record.losses[-1])) / len(self.data.X) if self.record.losses else math.nan
        return f"{phase}, loss {loss:.4g}"

    def _stride(self, record: Record, duration: float) -> Stride:
        """A step for the stiffness of this state, and how to cover a duration with few different compiled calls."""
        step = self.plan.step
        if step is None:
            rate = float(sampler.stiffness(self.net, self.problem, record.state.weights, self.mobility))
            reach = _REACH[self.plan.sampler] * 0.5**record.retries
            step = reach / math.sqrt(rate) if self.plan.sampler == "baoab" else reach / rate
        if not (math.isfinite(step) and step > 0):
            return Stride(math.nan)
        between = _REFRESH / self.plan.friction if self.plan.sampler == "baoab" else _REFRESH
        needed = max(1, math.ceil(duration / step - 1e-9) if self.plan.step is None else round(duration / step))
        most = max(1, min(_MOST_KICKS, int(between / step)))
        groups = math.ceil(needed / most)
        blocks = 1 << max(0, min(groups // 4, _MOST_BLOCKS).bit_length() - 1)
        parts = math.ceil(groups / blocks)
        leap = math.ceil(needed / (blocks * parts))
        if self.plan.step is None:
            step = duration / (leap * blocks * parts)  # a little less, so that the stretch ends on time
        return Stride(step, leap, blocks, parts)

    def advance(self, state: State, stride: Stride, friction: float) -> tuple[State, Means, np.ndarray]:
        """One compiled call."""
        dtype = self.problem.y.dtype
        state, means, trace = sampler.advance(
            self.net,
            self.plan.sampler,
            stride.blocks,
            self.problem,
            state,
            jnp.asarray(stride.step, dtype),
            jnp.asarray(friction, dtype),
            jnp.asarray(stride.leap),
        )
        return state, means, np.asarray(trace, dtype=np.float64)

    def _go(self, record: Record, stride: Stride, friction: float, limit: float) -> Means | None:
        """Follow the dynamics for a stretch: the record moves on, and means over the stretch come out; None, and the record as it was, if it does not stay calm."""
        if not math.isfinite(stride.step):
            return None
        state, total, traces = record.state, None, []
        for _ in range(stride.parts):
            state, means, trace = self.advance(state, stride, friction)
            if not self._calm(means, limit):
                return None
            total = means if total is None else jax.tree.map(jnp.add, total, means)
            traces.append(trace)
        assert total is not None
        record.state = state
        record.heat = float(np.mean(total.summaries[:, 2])) / stride.parts
        record.steps += stride.steps
        record.follow(np.concatenate(traces), stride.step * stride.leap)
        return jax.tree.map(lambda part: part / stride.parts, total)

    def _calm(self, means: Means, limit: float) -> bool:
        """Whether everything is finite, and no hotter than the thermostat and chance allow."""
        summaries = np.asarray(means.summaries)
        if not np.isfinite(summaries).all():
            return False
        temperature, scatter = summaries[:, 2], math.sqrt(2 / self.freedom)
        return bool(
            temperature.mean() < limit + 8 * scatter / math.sqrt(len(temperature))
            and temperature.max() < limit + 20 * scatter
        )

    @property
    def freedom(self) -> int:
        """Weights of one replica."""
        return sum(math.prod(w.shape[1:]) for w in self.record.state.weights)

    def _burn(self, record: Record) -> Record:
        """One stretch of the burn-in, with a step for the stiffness of the moment; it is tried again with half of it if it does not stay calm."""
        # The first descent turns potential energy into heat, which is no fault of the step: drag carries it off, as long as there is any.
        # Not for long: drag holds back what is slow.
        hot = record.stretch == 0 or (record.heat > _WARM + self._chance and record.stretch < self.stretches // 4)
        while True:
            stride = self._stride(record, self.plan.burn_in / self.stretches)
            means = self._go(record, stride, _DRAG if hot else self.plan.friction, math.inf)
            if means is not None:
                record.coolings += record.stretch >= self.stretches
                record.stretch = min(record.stretch + 1, self.stretches)
                return record
            if self._give_up(record, stride):
                return record

    def _average(self, record: Record) -> Record:
        """One batch of the averages, all with one step. If it heats up, averaging starts again with half the step."""
        if record.batch == 0:
            record.stride = self._stride(record, (self.plan.time - self.plan.burn_in) / self.batches)
        # Heat of the first descent is no fault of the step, nor is what a hot start has left.
        limit = math.inf if record.time < 1 else max(_HOT, 1.2 * record.heat)
        means = self._go(record, record.stride, self.plan.friction, limit)
        if means is None:
            if not self._give_up(record, record.stride):
                record.forget_averages()
            return record
        record.batch += 1
        record.add(means)
        if record.batch * self.kept // self.batches > (record.batch - 1) * self.kept // self.batches:
            record.samples.append((record.time, self._weights(record)))
        return record

    def _weights(self, record: Record) -> list[np.ndarray]:
        """The weights of this moment, as they enter the network."""
        drawn = sampler.positions(record.state, record.stride.step, self.plan.sampler)
        roots = np.sqrt(self.settings.decays)
        return [np.asarray(w) / np.asarray(root, w.dtype) for w, root in zip(drawn, roots, strict=True)]

    def _too_short(self) -> str:
        """Features relax within a time of order one, whatever the number of steps: shorter runs tell of their start."""
        pace = 1.0 if self.plan.sampler == "baoab" else min(self.settings.decays)
        phases = {"burn_in": self.plan.burn_in, "the time after it": self.plan.time - self.plan.burn_in}
        short = [f"{name} is {value * pace:.3g}" for name, value in phases.items() if value * pace < _LEAST]
        if not short:
            return ""
        return f"features relax within a rescaled time of order 1, but {' and '.join(short)}; give {_LEAST:g} or more to each"

    def _give_up(self, record: Record, stride: Stride) -> bool:
        """Count a failed stretch; after too many, or with a step that was given, say so."""
        record.retries += 1
        if self.plan.step is not None:
            record.failure = f"the dynamics is unstable at step {self.plan.step:g}; give a smaller step, or none"
        elif record.retries > _RETRIES or not math.isfinite(stride.step):
            record.failure = (
                "the dynamics stays unstable however small the step; use precision='float64' or inputs of order one"
            )
        return bool(record.failure)

    def result(self, seconds: float) -> Run:
        record, s, net = self.record, self.settings, self.net
        if not record.streams:
            raise ConvergenceError(f"Langevin sampling failed before there was anything to average: {record.failure}")
        judged = verdict.judge(
            record.summaries,
            record.streams,
            {name: record.error(name) for name in record.streams},
            self.data,
            self.plan.tolerance,
            self._chance,
            record.failure or self._too_short(),
        )
        samples = record.samples or [(record.time, self._weights(record))]
        kernels = [record.streams[f"kernel.{i}"] for i in range(net.depth)]
        outputs, test = record.streams["outputs"], record.streams["test"]
        tests, summaries, dtype = len(self.data.X_test), np.stack(record.summaries), s.precision

        def like_y(array: np.ndarray) -> np.ndarray:
            array = array.astype(dtype)
            return array if self.data.several else array[..., 0]

        def spread(mean: Stream, squares: Stream, around: np.ndarray) -> np.ndarray:
            return like_y(np.sqrt(np.maximum(squares.mean - (mean.mean - around) ** 2, 0)))

        labelled = bool(tests) and self.data.labelled
        return Run(
            network=self.network,
            settings=s,
            X=self.data.X.copy(),
            y=self.data.targets.copy(),
            kernels=tuple(net.unfold(k.mean.astype(dtype), i + 1) for i, k in enumerate(kernels)),
            kernel_errors=tuple(net.unfold(record.error(f"kernel.{i}").astype(dtype), i + 1) for i in range(net.depth)),
            fitted=like_y(outputs.mean),
            fitted_errors=like_y(record.error("outputs")),
            spread=spread(outputs, record.streams["squares"], self.data.y),
            times=np.asarray(record.times),
            replica_losses=np.stack(record.losses) / len(self.data.X),
            test_times=np.asarray(record.batch_times) if labelled else None,
            test_losses=summaries[:, :, 1].mean(axis=1) / tests if labelled else None,
            test_predictions=like_y(test.mean) if tests else None,
            test_errors=like_y(record.error("test")) if tests else None,
            test_spread=spread(test, record.streams["test_squares"], self.data.y_test) if tests else None,
            weights=tuple(np.concatenate([weights[i] for _, weights in samples]) for i in range(net.depth + 1)),
            initial_weights=None,
            sample_times=np.repeat([moment for moment, _ in samples], s.replicas),
            sample_replicas=np.tile(np.arange(s.replicas), len(samples)),
            fades=np.ones(len(samples) * s.replicas),
            basis=self.coordinates.basis,
            converged=judged.converged,
            status=judged.status,
            stats={
                "sampler": self.plan.sampler,
                "steps": record.steps,
                "step": record.stride.step,
                "kicks_per_refresh": record.stride.leap,
                "batches": record.batch,
                "halvings": record.retries,
                "coolings": record.coolings,
                **judged.stats,
                "coordinates": self.coordinates.rank,
                "backend": jax.default_backend(),
                "seconds": seconds,
                "version": __version__,
            },
        )


def _roots(covariances: np.ndarray) -> np.ndarray:
    """A root of each of a stack of covariances."""
    values, vectors = np.linalg.eigh(covariances)
    return vectors * np.sqrt(np.maximum(values, 0))[:, None, :]
