"""The work of `gradient_flow`: the flow between moments, records, checkpoints, and the run that comes out."""

from __future__ import annotations

import functools
import math
import time as clock
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from adakern import chebyshev, losses, memory, momentum
from adakern._version import __version__
from adakern.checkpoints import Checkpoint, Content
from adakern.finite import coordinates, measure, model, sampler
from adakern.finite.checkpoint import Recorded, identity
from adakern.finite.inputs import Inputs
from adakern.finite.model import Model, Weights
from adakern.finite.run import Run, Settings, first_weights, snapshot
from adakern.momentum import Rolling
from adakern.networks import Network
from adakern.progress import Progress

METHODS = {"ode": 1e-5, "chebyshev": 1e-3, "descent": 0.0, "momentum": 0.0}  # and the error allowed in a step
STEPPED = ("descent", "momentum")  # those that take a step
_RECORDS = 64  # moments at which the loss is recorded
# Step × fastest rate: explicit third order is stable below 2.5, and a stable step lets stiff modes die out instead of chattering.
_REACH = 2.0
_DESCENT = 0.2  # the same for gradient descent, stable below 2, until it is looked at again
_MOST_STEPS = 2**24  # between two moments


@dataclass(frozen=True)
class Plan:
    """How to train."""

    method: str
    step: float | None
    accuracy: float
    tolerance: float
    time: float
    times: tuple[float, ...]

    @property
    def grid(self) -> np.ndarray:
        """Moments to stop at: dense early, where the loss falls, and all that were asked for."""
        records = self.time * (np.arange(_RECORDS + 1) / _RECORDS) ** 2
        close = [t for t in records if not any(abs(t - m) < 1e-9 * self.time for m in self.times)]
        return np.asarray(sorted({*close, *self.times}))


class Problem(NamedTuple):
    rows: Array
    y: Array
    scales: Array
    strength: Array  # γ²
    decays: Array
    shift: Array  # (replicas, points, outputs): outputs at the start if centred, else zero


def _velocity(net: Model, problem: Problem, weights: Weights) -> Weights:
    def one(weights: Weights, shift: Array) -> Weights:
        gradient = net.gradient(weights, problem.rows, problem.y, problem.scales, shift=shift)[0]
        return tuple(
            -problem.strength * g - rate * w for g, w, rate in zip(gradient, weights, problem.decays, strict=True)
        )

    return sampler.over_replicas(one, weights, problem.shift)


@functools.partial(jax.jit, static_argnames=("net", "accuracy"))
def _integrate(
    net: Model, accuracy: float, problem: Problem, weights: Weights, span: Array, largest: Array
) -> tuple[Weights, Array, Array]:
    """The flow over a span of time by an adaptive Runge-Kutta pair (Bogacki & Shampine); steps taken, and whether it succeeded."""
    import diffrax  # here, so that importing adakern does not take its half second

    term = diffrax.ODETerm(lambda t, weights, problem: _velocity(net, problem, weights))
    dtype = weights[0].dtype
    solution = diffrax.diffeqsolve(
        term,
        diffrax.Bosh3(),
        t0=jnp.zeros((), dtype),
        t1=span,
        dt0=jnp.minimum(largest / 4, span),
        y0=weights,
        args=problem,
        stepsize_controller=diffrax.PIDController(rtol=accuracy, atol=accuracy, dtmax=largest),
        max_steps=_MOST_STEPS,
        adjoint=diffrax.ForwardMode(),  # nothing differentiates through the flow: keep no history
        throw=False,
    )
    final = tuple(w[0] for w in solution.ys)
    return final, solution.stats["num_steps"], solution.result == diffrax.RESULTS.successful


@functools.partial(jax.jit, static_argnames=("net", "accuracy"))
def _glide(
    net: Model, accuracy: float, problem: Problem, weights: Weights, span: Array
) -> tuple[Weights, Array, Array, Array]:
    """The flow over a span of time by stabilised steps (`chebyshev`); steps and evaluations, and whether it succeeded."""
    velocity = functools.partial(_velocity, net, problem)
    inspect = chebyshev.of_layers(accuracy)
    motion = chebyshev.start(velocity, inspect, weights)._replace(left=span)
    motion = chebyshev.advance(velocity, inspect, motion, jnp.asarray(_MOST_STEPS))
    return motion.state, motion.steps, motion.evaluations, motion.left <= 0


@functools.partial(jax.jit, static_argnames=("net",))
def _descend(net: Model, problem: Problem, weights: Weights, step: Array, count: Array) -> Weights:
    def one(_: Any, weights: Weights) -> Weights:
        return tuple(w + step * v for w, v in zip(weights, _velocity(net, problem, weights), strict=True))

    return jax.lax.fori_loop(0, count, one, weights)


@functools.partial(jax.jit, static_argnames=("net",))
def _roll(net: Model, problem: Problem, rolling: Rolling, step: Array, end: Array) -> Rolling:
    return momentum.advance(
        functools.partial(_velocity, net, problem), rolling, step, end, jnp.asarray(_MOST_STEPS, jnp.int32)
    )


@functools.partial(jax.jit, static_argnames=("net",))
def _look(net: Model, problem: Problem, weights: Weights) -> tuple[Array, tuple[Array, ...]]:
    """Outputs of every replica and kernels averaged over them."""

    def one(weights: Weights, shift: Array) -> tuple[Array, tuple[Array, ...]]:
        s, _, features = net.forward(weights, problem.rows, problem.scales)
        return s - shift, net.kernels(features)

    s, kernels = sampler.over_replicas(one, weights, problem.shift)
    return s, tuple(k.mean(axis=0) for k in kernels)


@dataclass
class Record(Recorded):
    """Everything that changes along a run."""

    weights: Weights
    drift: Weights = ()  # how fast they move, where they have momentum
    index: int = -1  # of the last moment recorded
    steps: int = 0
    evaluations: int = 0  # of the gradient
    step: float = 0.0
    fade: float = 1.0  # what weight decay has left of first-layer weights that no training point sees
    rate: float = math.inf  # at which kernels and outputs move
    stationary: bool = False
    failure: str = ""
    losses: list[np.ndarray] = field(default_factory=list)
    test_losses: list[np.ndarray] = field(default_factory=list)
    samples: list[tuple[float, float, list[np.ndarray]]] = field(default_factory=list)  # time, fade, weights
    sizes: list[float] = field(default_factory=list)  # of the kernels at the start
    outputs: np.ndarray = field(default_factory=lambda: np.zeros(0))
    kernels: tuple[np.ndarray, ...] = ()


class Task:
    """One run: what it is about, its record, and how to go on."""

    def __init__(self, network: Network, data: Inputs, settings: Settings, plan: Plan) -> None:
        self.network, self.data, self.settings, self.plan = network, data, settings, plan
        self.net = model.build(
            network, data.X, losses.get(settings.loss), settings.width, data.y.shape[1], settings.matmul
        )
        rows = model.rows_of(network, data.X)
        self.coordinates = coordinates.of_rows(rows)
        self._check_memory(rows)
        self.first = self._start(rows.shape[1])
        self.problem = self._problem(rows)
        self.test_rows, self.test_far, self.test_shift = self._tests()
        self.grid = plan.grid
        self.record = self._look(Record(self.first))

    def _check_memory(self, rows: np.ndarray) -> None:
        item, copies = np.dtype(self.settings.precision).itemsize, self.settings.replicas
        weights = sum(a * b for a, b in self.net.shapes(self.coordinates.rank)) * item * copies
        drawn = 2 * 8 * self.coordinates.size * self.net.width * copies
        tests = 6 * len(self.data.X_test) * self.net.positions[0] * self.net.width * item * copies
        fields = 4 * self.net.depth * len(rows) * self.net.width * item * copies
        sizes = [len(rows) if i < self.net.depth - 1 else len(self.data.X) for i in range(self.net.depth)]
        kernels = sum(n * n for n in sizes) * (3 * item * copies + 2 * 8)
        kept = weights * (len(self.plan.times) + 2)
        memory.require(
            8 * weights + drawn + tests + fields + kernels + kept,
            f"{copies} network(s) of width {self.net.width} on {len(self.data.X)} points, {len(self.plan.times) + 1} moments kept,",
            "a smaller width, fewer replicas, times or points",
        )

    def _start(self, size: int) -> Weights:
        drawn = []
        for replica in range(self.settings.replicas):
            rng = np.random.default_rng([self.settings.seed, 0, replica])
            first, *rest = model.draw(rng, self.net.shapes(size), self.settings.initial)
            drawn.append([self.coordinates.project(first), *rest])
        return tuple(
            jnp.asarray(np.stack([weights[i] for weights in drawn]), self.settings.precision)
            for i in range(self.net.depth + 1)
        )

    def _problem(self, rows: np.ndarray) -> Problem:
        s, net = self.settings, self.net
        inside, _ = self.coordinates.split(rows)
        shape = (s.replicas, *self.data.y.shape)
        problem = Problem(
            rows=jnp.asarray(inside),
            y=jnp.asarray(self.data.y),
            scales=jnp.asarray(net.scales(s.gamma)),
            strength=jnp.asarray(s.gamma**2),
            decays=jnp.asarray(s.decays),
            shift=jnp.zeros(shape, s.precision),
        )
        return problem._replace(shift=_look(net, problem, self.first)[0]) if s.centred else problem

    def _tests(self) -> tuple[Array, Array, Array]:
        """Test rows inside the span, fields that the initial weights give outside of it, and outputs at the start (if centred)."""
        s, net = self.settings, self.net
        shift = jnp.zeros((s.replicas, len(self.data.X_test), net.outputs), s.precision)
        if not len(self.data.X_test):
            return jnp.zeros((0, 0)), jnp.zeros((0, 0, 0)), shift
        inside, outside = self.coordinates.split(model.rows_of(self.network, self.data.X_test))
        far = np.zeros((s.replicas, 1, net.width))
        if outside is not None:
            size = self.coordinates.size
            far = np.stack([outside @ first_weights(net, s, size, replica) for replica in range(s.replicas)])
        rows, fields = jnp.asarray(inside), jnp.asarray(far)
        return rows, fields, self._test_outputs(self.first, rows, fields, shift, 1.0) if s.centred else shift

    def _test_outputs(self, weights: Weights, rows: Array, far: Array, shift: Array, fade: float) -> Array:
        parts = [
            measure.outputs(
                self.net, tuple(w[r] for w in weights), rows, self.problem.scales, jnp.asarray(fade) * far[r]
            )
            for r in range(self.settings.replicas)
        ]
        return jnp.stack(parts) - shift

    def run(self, path: str | PathLike[str] | None, progress: Progress, begun: float) -> Run:
        checkpoint = Checkpoint(path, identity(self.network, self.settings, self.plan, self.data))
        earlier = checkpoint.load()
        if earlier is not None:
            self.record = _unpack(*earlier, self.net.depth)
        last = len(self.grid) - 1
        with (
            checkpoint.guarding(lambda: _pack(self.record)) as stretch,
            progress.task("gradient flow", last) as advance,
        ):
            advance(parts=self.record.index)
            while self.record.index < last and not (self.record.failure or self.record.stationary):
                self.record = self._stretch(self.record.copy())
                stretch()
                time = self.grid[self.record.index]
                advance(note=f"t {time:.3g}, loss {np.mean(self.record.losses[-1]):.4g}")
            run = self.result(clock.perf_counter() - begun)
        checkpoint.remove()
        return run

    def _stretch(self, record: Record) -> Record:
        """Train to the next moment of the grid."""
        moved = self._descend(record) if self.plan.method in STEPPED else self._flow(record)
        if all(bool(jnp.isfinite(w).all()) for w in record.weights) and moved:
            return self._look(record)
        failed = self.record.copy()  # a failed run ends at its last sound moment
        failed.failure = (
            f"gradient descent is unstable at step {record.step:g}; give a smaller step"
            if self.plan.method in STEPPED
            else f"the integrator failed after t = {self.grid[failed.index]:g}; use precision='float64' or another accuracy"
        )
        return failed

    def _flow(self, record: Record) -> bool:
        """The flow to the next moment; whether it could be followed."""
        span = float(self.grid[record.index + 1] - self.grid[record.index])
        dtype = self.problem.y.dtype
        length, accuracy = jnp.asarray(span, dtype), self.plan.accuracy
        if self.plan.method == "chebyshev":
            weights, steps, evaluations, fine = _glide(self.net, accuracy, self.problem, record.weights, length)
        else:
            largest = jnp.asarray(_REACH / self._fastest(record.weights), dtype)
            weights, steps, fine = _integrate(self.net, accuracy, self.problem, record.weights, length, largest)
            evaluations = 3 * steps
        record.weights = weights
        record.steps += int(steps)
        record.evaluations += int(evaluations)
        record.step = span / max(1, int(steps))
        record.fade *= math.exp(-self.settings.decays[0] * span)
        return bool(fine)

    def _descend(self, record: Record) -> bool:
        """Gradient descent to the step nearest to the next moment, or to that moment with momentum."""
        dtype, rate = self.problem.y.dtype, self.settings.decays[0]
        if self.plan.step is None:  # rates grow with the features
            record.step = _DESCENT / self._fastest(record.weights)
        elif record.index == 0:
            record.step = self.plan.step
        if record.index == 0:
            record.drift = tuple(map(jnp.zeros_like, record.weights)) if self.plan.method == "momentum" else ()
        now, end = (float(t) for t in self.grid[record.index : record.index + 2])
        step = jnp.asarray(record.step, dtype)
        if self.plan.method == "momentum":
            rolling = Rolling(record.weights, record.drift, jnp.asarray(now, dtype), jnp.zeros((), jnp.int32))
            rolling = _roll(self.net, self.problem, rolling, step, jnp.asarray(end, dtype))
            record.weights, record.drift = rolling.state, rolling.drift
            count, fade = int(rolling.steps), math.exp(-rate * (end - now))
        else:
            if self.plan.step is None:
                count = math.ceil((end - now) / record.step)
                record.step = (end - now) / count
                step = jnp.asarray(record.step, dtype)
            else:
                count = max(0, round(end / record.step) - record.steps)
            record.weights = _descend(self.net, self.problem, record.weights, step, jnp.asarray(count))
            fade = (1 - record.step * rate) ** count
        record.steps += count
        record.evaluations += count
        record.fade *= fade
        # Descent that is unstable can stay finite for long, and then find a place far away.
        s = _look(self.net, self.problem, record.weights)[0]
        silent = jnp.zeros_like(self.problem.y)
        start = max(float(record.losses[0].max()), float(jnp.mean(self.net.loss.value(self.problem.y, silent))))
        return float(jnp.max(jnp.mean(self.net.loss.value(self.problem.y[None], s), axis=-1))) <= 100 * start + 1e-3

    def _fastest(self, weights: Weights) -> float:
        """The fastest rate of the linearised flow at these weights."""
        layers = jnp.ones(self.net.depth + 1, self.problem.y.dtype)
        rows, y, scales, strength = self.problem[:4]
        empty = jnp.zeros((0, 1, 1))
        problem = sampler.Problem(rows, y, scales, strength, layers, empty, empty, empty)
        fastest = sampler.stiffness(self.net, problem, weights, layers)
        return float(fastest) - 1.0 + max(*self.settings.decays, 1e-3)

    def _look(self, record: Record) -> Record:
        """Record the losses at the next moment, and how fast kernels and outputs move; keep the weights if they were asked for."""
        before, record.index = record.index, record.index + 1
        time, net = float(self.grid[record.index]), self.net
        s, kernels = _look(net, self.problem, record.weights)
        record.losses.append(np.asarray(jnp.mean(net.loss.value(self.problem.y[None], s), axis=-1), dtype=np.float64))
        if len(self.data.X_test):
            outputs = self._test_outputs(record.weights, self.test_rows, self.test_far, self.test_shift, record.fade)
            labels = jnp.asarray(self.data.y_test)[None]
            record.test_losses.append(np.asarray(jnp.mean(net.loss.value(labels, outputs), axis=-1), dtype=np.float64))
        now = np.asarray(s, dtype=np.float64), tuple(np.asarray(k, dtype=np.float64) for k in kernels)
        if before < 0:
            record.sizes = [float(np.linalg.norm(k)) for k in now[1]]
        elif record.steps > self.record.steps:
            record.rate = self._motion(record, *now, time - float(self.grid[before]))
        record.outputs, record.kernels = now
        past = not self.plan.times or time >= self.plan.times[-1]
        # What is left to go is the rate over that at which the flow forgets.
        slowest = min((decay for decay in self.settings.decays if decay > 0), default=1.0)
        limit = self.plan.tolerance * min(1.0, slowest)
        resolved = before >= 0 and np.finfo(self.settings.precision).eps < limit * (time - float(self.grid[before]))
        record.stationary = bool(record.rate < limit and resolved and past)
        last = record.index == len(self.grid) - 1
        if last or record.stationary or any(abs(time - m) < 1e-9 * self.plan.time for m in self.plan.times):
            record.samples.append((time, record.fade, [np.asarray(w) for w in record.weights]))
        return record

    def _motion(self, record: Record, outputs: np.ndarray, kernels: tuple[np.ndarray, ...], span: float) -> float:
        """Largest relative change of a kernel or of the outputs per unit of time. A kernel that dies counts against a hundredth of its first size."""
        rates = [
            float(np.linalg.norm(new - old)) / max(float(np.linalg.norm(new)), 0.01 * size, np.finfo(float).tiny)
            for new, old, size in zip(kernels, record.kernels, record.sizes, strict=True)
        ]
        scale = float(np.abs(self.data.y).max()) or 1.0
        rates.append(float(np.sqrt(np.mean((outputs - record.outputs) ** 2))) / scale)
        outside = self.settings.decays[0] * record.fade if self.coordinates.basis is not None else 0.0
        return float(max(*(rate / span for rate in rates), outside))

    def result(self, seconds: float) -> Run:
        record, s, replicas = self.record, self.settings, self.settings.replicas
        time, samples = float(self.grid[record.index]), record.samples
        if not samples or samples[-1][0] != time:  # a failed run
            samples = [*samples, (time, record.fade, [np.asarray(w) for w in record.weights])]
        where = f"kernels and outputs move by {record.rate:.2g} per unit of time"
        status = record.failure or (
            f"stationary at t = {time:g}: {where}" if record.stationary else f"reached t = {time:g}, where {where}"
        )
        labelled = bool(len(self.data.X_test)) and self.data.labelled
        times = self.grid[: record.index + 1]
        base = Run(
            network=self.network,
            settings=s,
            X=self.data.X.copy(),
            y=self.data.targets.copy(),
            kernels=(),
            kernel_errors=(),
            fitted=np.zeros(0),
            fitted_errors=np.zeros(0),
            spread=None,
            times=times.copy(),
            replica_losses=np.stack(record.losses),
            test_times=times.copy() if labelled else None,
            test_losses=np.stack(record.test_losses).mean(axis=1) if labelled else None,
            test_predictions=None,
            test_errors=None,
            test_spread=None,
            weights=tuple(np.concatenate([w[i] for _, _, w in samples]) for i in range(self.net.depth + 1)),
            initial_weights=tuple(np.asarray(w) for w in self.first) if s.centred else None,
            sample_times=np.repeat([time for time, _, _ in samples], replicas),
            sample_replicas=np.tile(np.arange(replicas), len(samples)),
            fades=np.repeat([fade for _, fade, _ in samples], replicas),
            basis=self.coordinates.basis,
            converged=not record.failure,
            status=status,
            stats={
                "method": self.plan.method,
                "steps": record.steps,
                "evaluations": record.evaluations,
                "step": record.step,
                "stationary": record.stationary,
                "rate": record.rate if math.isfinite(record.rate) else None,
                "coordinates": self.coordinates.rank,
                "backend": jax.default_backend(),
                "seconds": seconds,
                "version": __version__,
            },
        )
        return _finished(base, self.data)


_PLAIN = ("index", "steps", "evaluations", "step", "fade", "stationary", "failure", "sizes")


def _pack(record: Record) -> Content:
    """Everything that a later process needs to go on."""
    arrays: dict[str, np.ndarray] = {"losses": np.stack(record.losses), "outputs": record.outputs}
    if record.test_losses:
        arrays["test_losses"] = np.stack(record.test_losses)
    arrays.update({f"weights.{i}": np.asarray(w) for i, w in enumerate(record.weights)})
    arrays.update({f"drift.{i}": np.asarray(d) for i, d in enumerate(record.drift)})
    arrays.update({f"kernels.{i}": k for i, k in enumerate(record.kernels)})
    for k, (_, _, weights) in enumerate(record.samples):
        arrays.update({f"sample/{k}/{i}": w for i, w in enumerate(weights)})
    header = {name: getattr(record, name) for name in _PLAIN}
    rate = record.rate if math.isfinite(record.rate) else None
    return arrays, {**header, "rate": rate, "samples": [[time, fade] for time, fade, _ in record.samples]}


def _unpack(arrays: dict[str, np.ndarray], header: dict[str, Any], depth: int) -> Record:
    """The record that `_pack` wrote."""
    layers = range(depth + 1)
    plain: dict[str, Any] = {name: header[name] for name in _PLAIN}
    return Record(
        tuple(jnp.asarray(arrays[f"weights.{i}"]) for i in layers),
        tuple(jnp.asarray(arrays[f"drift.{i}"]) for i in layers if f"drift.{i}" in arrays),
        **plain,
        rate=math.inf if header["rate"] is None else header["rate"],
        losses=list(arrays["losses"]),
        test_losses=list(arrays.get("test_losses", ())),
        samples=[
            (time, fade, [arrays[f"sample/{k}/{i}"] for i in layers])
            for k, (time, fade) in enumerate(header["samples"])
        ],
        outputs=arrays["outputs"],
        kernels=tuple(arrays[f"kernels.{i}"] for i in range(depth)),
    )


def _finished(run: Run, data: Inputs) -> Run:
    """The run with kernels and outputs of its last moment."""
    extra: dict[str, Any] = snapshot(run)
    if len(data.X_test):
        predictions, errors, _ = run._sweep(data.X_test, None, True)
        extra.update(test_predictions=run._like_y(predictions), test_errors=run._like_y(errors))
    return replace(run, **extra)
