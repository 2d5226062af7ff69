r"""Gradient flow and gradient descent of networks of finite width, with weight decay.

$$\dot W^\ell=-\gamma^2\nabla_{W^\ell}\mathcal L-\lambda_\ell W^\ell,\qquad\gamma=\gamma_0\sqrt N\ \text{(mean field)},\quad\gamma=\gamma_0\ \text{(NTK)}.$$
"""

from __future__ import annotations

import functools
import math
import time as clock
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from os import PathLike
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from adakern import checks, files, losses, memory, networks
from adakern import precision as precisions
from adakern._version import __version__
from adakern.errors import ConvergenceError
from adakern.finite import coordinates, measure, model, sampler
from adakern.finite.checkpoint import Checkpoint, Content
from adakern.finite.inputs import Inputs, read
from adakern.finite.model import Model, Weights
from adakern.finite.run import Run, Settings, first_weights, snapshot
from adakern.networks import Network
from adakern.progress import Progress

METHODS = ("ode", "descent")
INITIAL = ("normal", "laplace")
_RECORDS = 64  # moments at which the loss is recorded
_REACH = 2.0  # step × stiffest rate: explicit third order is stable below 2.5, and a stable step lets stiff modes die out instead of chattering
_DESCENT = 0.5  # the same for gradient descent, stable below 2
_MOST_STEPS = 2**24  # of one record interval


def gradient_flow(
    network: Network,
    X: Any,
    y: Any,
    *,
    richness: float = 1.0,
    decay: Any = 1.0,
    width: int = 1024,
    time: float = 20.0,
    seed: int = 0,
    loss: str = "squared",
    parameterization: str = "mean-field",
    method: str = "ode",
    step: float | None = None,
    accuracy: float = 1e-4,
    initial: str = "normal",
    centred: bool = False,
    times: Sequence[float] | None = None,
    tolerance: float = 1e-4,
    replicas: int = 1,
    X_test: Any = None,
    y_test: Any = None,
    precision: str = "float32",
    matmul: str = "highest",
    progress: bool = False,
    checkpoint: str | PathLike[str] | None = None,
    throw: bool = True,
) -> Run:
    r"""Train a network of finite width by gradient flow with weight decay.

    Args:
        network: the architecture, an `MLP` or a `CNN`.
        X, y: training inputs and targets, (points,) or (points, outputs); ±1 for "logistic", one-hot rows for "softmax".
        richness: $\gamma_0$; in NTK parameterisation $\gamma$.
        decay: weight decay $\lambda\ge0$, one number or one per layer ($L+1$).
        width: neurons (channels) per hidden layer.
        time: most time to run.
        seed: of the initial weights.
        loss: "squared", "logistic" or "softmax".
        parameterization: "mean-field" ($\gamma=\gamma_0\sqrt N$) or "ntk" ($\gamma=\gamma_0$).
        method: "ode", the flow by an adaptive integrator, or "descent", gradient descent with a step.
        step: of gradient descent; by default from the largest eigenvalue of the tangent kernel at the start, found by power iteration.
        accuracy: relative error per step of the integrator.
        initial: "normal" or "laplace" weights, of unit variance.
        centred: subtract the outputs that the network has at the start, at every point.
        times: moments whose weights to keep, for `run.at(time)`; the last moment is always kept.
        tolerance: the flow stops when kernels and outputs move by less than this, relatively, per unit of time (and all `times` are past); 0 never.
        replicas: independent initialisations, run side by side.
        X_test, y_test: points whose outputs (and loss) are recorded along the way.
        precision: "float32" or "float64".
        matmul: precision of matrix products on a GPU: "highest", "high" or "default" (TF32: faster, three digits).
        progress: show a progress bar with the loss on standard error.
        checkpoint: file to continue from if it exists, written every half minute and on an interrupt, removed at the end.
        throw: raise `ConvergenceError` if the integration fails; otherwise the run says so. To reach `time` before the tolerance is no failure:
            `run.stats["stationary"]` tells.

    Returns:
        A `Run`: kernels, outputs, losses over time, predictions, densities.
    """
    data = read(network, X, y, loss, X_test, y_test)
    settings = Settings(
        kind="gradient flow",
        width=checks.integer("width", width, least=1),
        richness=checks.positive("richness", richness),
        decays=checks.decays("decay", decay, network.depth + 1, zero=True),
        beta=None,
        parameterization=checks.choice("parameterization", parameterization, model.PARAMETERIZATIONS),
        loss=loss,
        centred=bool(centred),
        initial=checks.choice("initial", initial, INITIAL),
        replicas=checks.integer("replicas", replicas, least=1),
        seed=checks.seed("seed", seed),
        precision=checks.choice("precision", precision, precisions.PRECISIONS),
        matmul=matmul,
    )
    total = checks.positive("time", time)
    plan = Plan(
        method=checks.choice("method", method, METHODS),
        step=None if step is None else checks.positive("step", step),
        accuracy=checks.positive("accuracy", accuracy),
        tolerance=checks.nonnegative("tolerance", tolerance),
        time=total,
        times=_moments(times, total),
    )
    if plan.step is not None and plan.method == "ode":
        raise ValueError(
            "step has no meaning for method='ode', whose step adapts; leave it out or use method='descent'"
        )
    begun = clock.perf_counter()
    with precisions.scope(precision):
        task = _Task(network, data, settings, plan)
        task.run(checkpoint, Progress(progress))
        run = task.result(clock.perf_counter() - begun)
    if throw and not run.converged:
        raise ConvergenceError(f"gradient flow failed: {run.status} (throw=False returns it as it is)")
    return run


def _moments(times: Sequence[float] | None, total: float) -> tuple[float, ...]:
    if times is None:
        return ()
    moments = checks.finite("times", checks.as_array("times", times)).ravel()
    if len(moments) and (moments.min() < 0 or moments.max() > total * (1 + 1e-9)):
        raise ValueError(
            f"times must lie between 0 and time, {total:g}, but they are {moments.min():g} to {moments.max():g}"
        )
    return tuple(sorted({min(float(moment), total) for moment in moments}))


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


@functools.partial(jax.jit, static_argnames=("net",))
def _descend(net: Model, problem: Problem, weights: Weights, step: Array, count: Array) -> Weights:
    def one(_: Any, weights: Weights) -> Weights:
        return tuple(w + step * v for w, v in zip(weights, _velocity(net, problem, weights), strict=True))

    return jax.lax.fori_loop(0, count, one, weights)


@functools.partial(jax.jit, static_argnames=("net",))
def _look(net: Model, problem: Problem, weights: Weights) -> tuple[Array, tuple[Array, ...]]:
    """Outputs of every replica and kernels averaged over them."""

    def one(weights: Weights, shift: Array) -> tuple[Array, tuple[Array, ...]]:
        s, _, features = net.forward(weights, problem.rows, problem.scales)
        return s - shift, net.kernels(features)

    s, kernels = sampler.over_replicas(one, weights, problem.shift)
    return s, tuple(k.mean(axis=0) for k in kernels)


@dataclass
class Progression:
    """Everything that changes along a run, apart from the weights."""

    index: int = 0  # of the last moment reached
    steps: int = 0
    step: float = 0.0
    fade: float = 1.0  # what weight decay has left of first-layer weights that no training point sees
    rate: float = math.inf
    stationary: bool = False
    failure: str = ""


class _Task:
    """One run: the networks' weights, the records so far, and how to go on."""

    def __init__(self, network: Network, data: Inputs, settings: Settings, plan: Plan) -> None:
        self.network, self.data, self.settings, self.plan = network, data, settings, plan
        self.net = model.build(
            network, data.X, losses.get(settings.loss), settings.width, data.y.shape[1], settings.matmul
        )
        rows = model.rows_of(network, data.X)
        self.coordinates = coordinates.of_rows(rows)
        self._check_memory(rows)
        self.weights = self._start(rows.shape[1])
        self.problem = self._problem(rows)
        self.first = self.weights
        self.test_rows, self.test_far, self.test_shift = self._tests()
        self.grid = plan.grid
        self.progression = Progression()
        self.losses: list[np.ndarray] = []
        self.test_losses: list[np.ndarray] = []
        self.samples: list[tuple[float, float, list[np.ndarray]]] = []  # time, fade, weights
        self.seen: tuple[np.ndarray, tuple[np.ndarray, ...]] | None = None
        self.sizes = [1.0] * self.net.depth

    def _check_memory(self, rows: np.ndarray) -> None:
        item, copies = np.dtype(self.settings.precision).itemsize, self.settings.replicas
        weights = sum(a * b for a, b in self.net.shapes(self.coordinates.rank)) * item * copies
        fields = 4 * self.net.depth * len(rows) * self.net.width * item * copies
        sizes = [len(rows) if i < self.net.depth - 1 else len(self.data.X) for i in range(self.net.depth)]
        kernels = 3 * sum(n * n for n in sizes) * item * copies
        kept = weights * (len(self.plan.times) + 2)
        memory.require(
            8 * weights + fields + kernels + kept,
            f"{copies} network(s) of width {self.net.width} on {len(self.data.X)} points, {len(self.plan.times) + 1} moments kept,",
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
        return problem._replace(shift=_look(net, problem, self.weights)[0]) if s.centred else problem

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
        return rows, fields, self._test_outputs(rows, fields, shift, 1.0) if s.centred else shift

    def _test_outputs(self, rows: Array, far: Array, shift: Array, fade: float) -> Array:
        parts = [
            measure.outputs(
                self.net, tuple(w[r] for w in self.weights), rows, self.problem.scales, jnp.asarray(fade) * far[r]
            )
            for r in range(self.settings.replicas)
        ]
        return jnp.stack(parts) - shift

    def run(self, path: str | PathLike[str] | None, progress: Progress) -> None:
        identity = {
            "network": networks.describe(self.network),
            "settings": {**asdict(self.settings), "decays": list(self.settings.decays)},
            "plan": {**asdict(self.plan), "times": list(self.plan.times)},
            "data": files.digest(self.data.X, self.data.y, self.data.X_test, self.data.y_test),
            "version": __version__,
        }
        checkpoint = Checkpoint(path, identity)
        earlier = checkpoint.load()
        if earlier is None:
            self._record()
        else:
            self._restore(earlier)
        p = self.progression
        with (
            checkpoint.guarding(self._content) as stretch,
            progress.task("gradient flow", len(self.grid) - 1) as advance,
        ):
            advance(parts=p.index)
            while p.index < len(self.grid) - 1 and not (p.failure or p.stationary):
                self._stretch()
                stretch()
                advance(note=f"t {self.grid[p.index]:.3g}, loss {np.mean(self.losses[-1]):.4g}")

    def _stretch(self) -> None:
        """Train to the next moment of the grid."""
        p, plan = self.progression, self.plan
        span = float(self.grid[p.index + 1] - self.grid[p.index])
        dtype = self.problem.y.dtype
        if plan.method == "ode":
            rate = self._rate()
            largest = jnp.asarray(_REACH / rate, dtype)
            weights, steps, fine = _integrate(
                self.net, plan.accuracy, self.problem, self.weights, jnp.asarray(span, dtype), largest
            )
            p.steps += int(steps)
            p.step = span / max(1, int(steps))
            fade, sound = math.exp(-self.settings.decays[0] * span), bool(fine)
        else:
            if p.index == 0:
                p.step = plan.step if plan.step is not None else _DESCENT / self._rate()
            count = max(1, round(self.grid[p.index + 1] / p.step) - p.steps)
            weights = _descend(self.net, self.problem, self.weights, jnp.asarray(p.step, dtype), jnp.asarray(count))
            p.steps += count
            fade, sound = (1 - p.step * self.settings.decays[0]) ** count, True
        if not (sound and all(bool(jnp.isfinite(w).all()) for w in weights)):
            p.failure = (
                f"gradient descent is unstable at step {p.step:g}; give a smaller step"
                if plan.method == "descent"
                else f"the integrator failed after t = {self.grid[p.index]:g}; use precision='float64' or another accuracy"
            )
            return
        self.weights, p.fade = weights, p.fade * fade
        p.index += 1
        self._record()

    def _rate(self) -> float:
        """The fastest rate of the linearised flow at these weights."""
        layers = jnp.ones(self.net.depth + 1, self.problem.y.dtype)
        problem = sampler.Problem(
            self.problem.rows,
            self.problem.y,
            self.problem.scales,
            self.problem.strength,
            layers,
            *(jnp.zeros((0, 1, 1)),) * 3,
        )
        fastest = sampler.stiffness(self.net, problem, self.weights, layers)
        return float(fastest) - 1.0 + max(*self.settings.decays, 1e-3)

    def _record(self) -> None:
        """Losses, and how fast kernels and outputs move."""
        p, time = self.progression, float(self.grid[self.progression.index])
        s, kernels = _look(self.net, self.problem, self.weights)
        loss = self.net.loss
        self.losses.append(np.asarray(jnp.mean(loss.value(self.problem.y[None], s), axis=-1), dtype=np.float64))
        if len(self.data.X_test):
            outputs = self._test_outputs(self.test_rows, self.test_far, self.test_shift, p.fade)
            labels = jnp.asarray(self.data.y_test)[None]
            self.test_losses.append(np.asarray(jnp.mean(loss.value(labels, outputs), axis=-1), dtype=np.float64))
        now = np.asarray(s, dtype=np.float64), tuple(np.asarray(k, dtype=np.float64) for k in kernels)
        if self.seen is None:
            self.sizes = [float(np.linalg.norm(k)) for k in now[1]]
        else:
            p.rate = self._motion(now, time - float(self.grid[p.index - 1]))
        self.seen = now
        last = p.index == len(self.grid) - 1
        past = not self.plan.times or time >= self.plan.times[-1]
        p.stationary = p.rate < self.plan.tolerance and past
        if last or p.stationary or any(abs(time - m) < 1e-9 * self.plan.time for m in self.plan.times):
            self.samples.append((time, p.fade, [np.asarray(w) for w in self.weights]))

    def _motion(self, now: tuple[np.ndarray, tuple[np.ndarray, ...]], span: float) -> float:
        """Largest relative change of a kernel or of the outputs per unit of time. A kernel that dies counts against a hundredth of its first size."""
        assert self.seen is not None
        rates = [
            float(np.linalg.norm(new - old)) / max(float(np.linalg.norm(new)), 0.01 * size, np.finfo(float).tiny)
            for new, old, size in zip(now[1], self.seen[1], self.sizes, strict=True)
        ]
        scale = max(float(np.abs(self.data.y).max()), np.finfo(float).tiny)
        rates.append(float(np.sqrt(np.mean((now[0] - self.seen[0]) ** 2))) / scale)
        outside = self.settings.decays[0] * self.progression.fade if self.coordinates.basis is not None else 0.0
        return max(*(rate / span for rate in rates), outside)

    def _content(self) -> Content:
        arrays: dict[str, np.ndarray] = {"losses": np.stack(self.losses)}
        if self.test_losses:
            arrays["test_losses"] = np.stack(self.test_losses)
        arrays.update({f"weights.{i}": np.asarray(w) for i, w in enumerate(self.weights)})
        for k, (_, _, weights) in enumerate(self.samples):
            arrays.update({f"sample/{k}/{i}": w for i, w in enumerate(weights)})
        assert self.seen is not None
        arrays["seen"] = self.seen[0]
        arrays.update({f"seen.{i}": k for i, k in enumerate(self.seen[1])})
        header = {
            "progression": {k: v if v != math.inf else None for k, v in asdict(self.progression).items()},
            "samples": [[time, fade] for time, fade, _ in self.samples],
            "sizes": self.sizes,
        }
        return arrays, header

    def _restore(self, content: Content) -> None:
        arrays, header = content
        layers = range(self.net.depth + 1)
        values: dict[str, Any] = {k: math.inf if v is None else v for k, v in header["progression"].items()}
        self.progression = Progression(**values)
        self.losses, self.test_losses = list(arrays["losses"]), list(arrays.get("test_losses", ()))
        self.weights = tuple(jnp.asarray(arrays[f"weights.{i}"]) for i in layers)
        self.samples = [
            (time, fade, [arrays[f"sample/{k}/{i}"] for i in layers])
            for k, (time, fade) in enumerate(header["samples"])
        ]
        self.seen = arrays["seen"], tuple(arrays[f"seen.{i}"] for i in range(self.net.depth))
        self.sizes = list(header["sizes"])

    def result(self, seconds: float) -> Run:
        p, s, replicas = self.progression, self.settings, self.settings.replicas
        time = float(self.grid[p.index])
        if not self.samples or self.samples[-1][0] != time:  # a failed run ends at its last sound moment
            self.samples.append((time, p.fade, [np.asarray(w) for w in self.weights]))
        if p.failure:
            status = p.failure
        elif p.stationary:
            status = f"stationary at t = {time:g}: kernels and outputs move by {p.rate:.2g} per unit of time"
        else:
            status = f"reached t = {time:g}, where kernels and outputs move by {p.rate:.2g} per unit of time"
        tests = len(self.data.X_test)
        times = self.grid[: p.index + 1]
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
            replica_losses=np.stack(self.losses),
            test_times=times.copy() if tests and self.data.labelled else None,
            test_losses=np.stack(self.test_losses).mean(axis=1) if tests and self.data.labelled else None,
            test_predictions=None,
            test_errors=None,
            weights=tuple(np.concatenate([w[i] for _, _, w in self.samples]) for i in range(self.net.depth + 1)),
            initial_weights=tuple(np.asarray(w) for w in self.first) if s.centred else None,
            sample_times=np.repeat([time for time, _, _ in self.samples], replicas),
            sample_replicas=np.tile(np.arange(replicas), len(self.samples)),
            fades=np.repeat([fade for _, fade, _ in self.samples], replicas),
            basis=self.coordinates.basis,
            converged=not p.failure,
            status=status,
            stats={
                "method": self.plan.method,
                "steps": p.steps,
                "step": p.step,
                "stationary": p.stationary,
                "rate": p.rate if math.isfinite(p.rate) else None,
                "coordinates": self.coordinates.rank,
                "backend": jax.default_backend(),
                "seconds": seconds,
                "version": __version__,
            },
        )
        return _finished(base, self.data)


def _finished(run: Run, data: Inputs) -> Run:
    """The run with kernels and outputs of its last moment."""
    extra: dict[str, Any] = snapshot(run)
    if len(data.X_test):
        predictions, errors, _ = run._sweep(data.X_test, None, True)
        extra.update(test_predictions=run._like_y(predictions), test_errors=run._like_y(errors))
    return replace(run, **extra)
