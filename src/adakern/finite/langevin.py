r"""Langevin sampling of networks of finite width: draws from their posterior.

$$p(\theta|\mathcal D)\propto\exp\Big(-\beta\gamma^2\mathcal L-\sum_\ell\tfrac12\lambda_\ell|W^\ell|^2\Big),\qquad
  \gamma=\gamma_0\sqrt N\ \text{(mean field)},\quad\gamma=\gamma_0\ \text{(NTK)}.$$
"""

from __future__ import annotations

import math
import time as clock
from dataclasses import asdict, dataclass, field
from os import PathLike
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adakern import averages, checks, files, losses, memory, networks
from adakern import precision as precisions
from adakern._version import __version__
from adakern.averages import Stream
from adakern.errors import ConvergenceError
from adakern.finite import coordinates, model, sampler
from adakern.finite.checkpoint import Checkpoint, Content
from adakern.finite.inputs import Inputs, read
from adakern.finite.run import Run, Settings
from adakern.finite.sampler import Means, Problem, State
from adakern.networks import Network
from adakern.progress import Progress

_REACH = {
    "baoab": 0.6,
    "euler": 0.2,
}  # dt·ω of the stiffest mode (BAOAB, stable below 2); dτ·ω² (Euler, stable below 2)
_DRAG = 20.0  # friction while the heat of the first descent is carried off
_REFRESH = 0.2  # friction × time between two refreshments of the momenta
_MOST_KICKS = 16
_BATCHES = 32  # of the averaging phase
_STRETCHES = 16  # of the burn-in
_HOT = 1.5  # kinetic temperature of a stretch that was not followed stably
_RETRIES = 12
_RHAT = 1.1
_MOST_BLOCKS = 4096  # a call's blocks; a longer batch measures less often


def langevin(
    network: Network,
    X: Any,
    y: Any,
    *,
    richness: float = 1.0,
    beta: float = 50.0,
    decay: Any = 1.0,
    width: int = 1024,
    time: float = 10.0,
    seed: int = 0,
    loss: str = "squared",
    parameterization: str = "mean-field",
    sampler: str = "baoab",
    step: float | None = None,
    burn_in: float | None = None,
    replicas: int = 1,
    friction: float = 2.0,
    snapshots: int = 32,
    tolerance: float = 0.05,
    X_test: Any = None,
    y_test: Any = None,
    precision: str = "float32",
    matmul: str = "highest",
    progress: bool = False,
    checkpoint: str | PathLike[str] | None = None,
    throw: bool = True,
) -> Run:
    r"""Sample the posterior of a network of finite width by Langevin dynamics, and average.

    Args:
        network: the architecture, an `MLP` or a `CNN`.
        X, y: training inputs and targets, (points,) or (points, outputs); ±1 for "logistic", one-hot rows for "softmax".
        richness: $\gamma_0$; in NTK parameterisation $\gamma$.
        beta: inverse temperature $\beta$.
        decay: prior precision of the weights, one number or one per layer ($L+1$).
        width: neurons (channels) per hidden layer.
        time: length of the run in rescaled time $\tau=t/\beta$, in which a weight forgets its prior value within $\tau\sim1$ (underdamped: at unit decay).
        seed: of every random number.
        loss: "squared", "logistic" or "softmax".
        parameterization: "mean-field" ($\gamma=\gamma_0\sqrt N$) or "ntk" ($\gamma=\gamma_0$).
        sampler: "baoab", underdamped, or "euler", the plain Euler-Maruyama scheme of the overdamped dynamics.
        step: time step; by default from the largest eigenvalue of the tangent kernel, found by power iteration.
        burn_in: time before averaging starts; half of `time` by default.
        replicas: independent networks, run side by side.
        friction: of the underdamped dynamics.
        snapshots: most weights to keep per replica, for predictions at new points, densities and tangent kernels; fewer if 1 GiB does not hold them.
        tolerance: relative error of the kernels up to which the averages count as converged.
        X_test, y_test: points whose outputs (and loss) are averaged along the way.
        precision: "float32" or "float64".
        matmul: precision of matrix products on a GPU: "highest", "high" or "default" (TF32: faster, three digits).
        progress: show a progress bar with the loss on standard error.
        checkpoint: file to continue from if it exists, written every half minute and on an interrupt, removed at the end.
        throw: raise `ConvergenceError` if the averages are not converged; otherwise the run says so.

    Returns:
        A `Run`: kernels with standard errors, outputs, losses, predictions, densities.
    """
    data = read(network, X, y, loss, X_test, y_test)
    gamma = checks.positive("richness", richness)
    settings = Settings(
        kind="langevin",
        width=checks.integer("width", width, least=1),
        richness=gamma,
        decays=checks.decays("decay", decay, network.depth + 1),
        beta=checks.positive("beta", beta),
        parameterization=checks.choice("parameterization", parameterization, model.PARAMETERIZATIONS),
        loss=loss,
        centred=False,
        initial="normal",
        replicas=checks.integer("replicas", replicas, least=1),
        seed=checks.seed("seed", seed),
        precision=checks.choice("precision", precision, precisions.PRECISIONS),
        matmul=matmul,
    )
    total = checks.positive("time", time)
    wait = total / 2 if burn_in is None else checks.nonnegative("burn_in", burn_in)
    if wait >= total:
        raise ValueError(f"burn_in must be less than time, {total:g}, but it is {wait:g}")
    plan = Plan(
        sampler=checks.choice("sampler", sampler, _SAMPLERS),
        time=total,
        burn_in=wait,
        friction=checks.positive("friction", friction),
        step=None if step is None else checks.positive("step", step),
        snapshots=checks.integer("snapshots", snapshots, least=1),
        tolerance=checks.positive("tolerance", tolerance),
    )
    begun = clock.perf_counter()
    with precisions.scope(precision):
        task = _Task(network, data, settings, plan)
        task.run(checkpoint, Progress(progress))
        run = task.result(clock.perf_counter() - begun)
    if throw and not run.converged:
        raise ConvergenceError(f"Langevin sampling did not converge: {run.status} (throw=False returns it as it is)")
    return run


_SAMPLERS = sampler.SAMPLERS  # `langevin` has an argument of the module's name
_sampler = sampler


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


@dataclass
class Progression:
    """Everything that changes along a run, apart from the network's state."""

    step: float = 0.0
    leap: int = 1
    blocks: int = 1  # of one batch of the averaging phase
    time: float = 0.0
    steps: int = 0
    stretch: int = 0  # done of the burn-in
    batch: int = 0  # done of the averages
    retries: int = 0
    failure: str = ""
    times: list[float] = field(default_factory=list)


class _Task:
    """One run: the network's state, the averages so far, and how to go on."""

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
        dtype = np.dtype(settings.precision)
        rng = np.random.default_rng([settings.seed, 0])
        self.state = sampler.start(rng, shapes, settings.replicas, settings.seed, dtype)
        self.mobility = self.problem.mobility if plan.sampler == "euler" else jnp.ones_like(self.problem.mobility)
        self.progression = Progression()
        self.streams: dict[str, Stream] = {}
        self.summaries: list[np.ndarray] = []
        self.losses: list[np.ndarray] = []
        self.samples: list[tuple[float, list[np.ndarray]]] = []

    def _check_memory(self, shapes: tuple[tuple[int, int], ...], rows: int) -> int:
        """Refuse what cannot fit, and return how many weights can be kept."""
        item, copies = np.dtype(self.settings.precision).itemsize, self.settings.replicas
        weights = sum(a * b for a, b in shapes) * item * copies
        fields = 4 * self.net.depth * rows * self.net.width * item * copies
        sizes = [rows if i < self.net.depth - 1 else len(self.data.X) for i in range(self.net.depth)]
        kernels = sum(n * n for n in sizes) * (4 * 8 + 3 * item * copies)
        memory.require(
            7 * weights + fields + kernels,
            f"{copies} network(s) of width {self.net.width} on {len(self.data.X)} points",
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

    def run(self, path: str | PathLike[str] | None, progress: Progress) -> None:
        identity = {
            "network": networks.describe(self.network),
            "settings": {**asdict(self.settings), "decays": list(self.settings.decays)},
            "plan": asdict(self.plan),
            "data": files.digest(self.data.X, self.data.y, self.data.X_test, self.data.y_test),
            "version": __version__,
        }
        checkpoint = Checkpoint(path, identity)
        earlier = checkpoint.load()
        if earlier is not None:
            self._restore(earlier)
        p = self.progression
        with checkpoint.guarding(self._content) as stretch, progress.task("Langevin", _STRETCHES + _BATCHES) as advance:
            advance(parts=min(p.stretch, _STRETCHES) + p.batch)
            while p.stretch < _STRETCHES and self.plan.burn_in > 0 and not p.failure:
                self._burn()
                stretch()
                advance(note=self._note("burn-in"))
            while p.batch < self._batches() and not p.failure:
                self._average()
                stretch()
                advance(note=self._note(f"tau {p.time:.1f}"))

    def _note(self, phase: str) -> str:
        loss = float(np.mean(self.losses[-1])) / len(self.data.X) if self.losses else math.nan
        return f"{phase}, loss {loss:.4g}"

    def _batches(self) -> int:
        return _BATCHES

    def _choose_step(self, duration: float) -> tuple[float, int, int]:
        """Step, kicks per block and blocks, from the stiffness at this state, for a stretch of this duration."""
        if self.plan.step is not None:
            step = self.plan.step
        else:
            rate = float(sampler.stiffness(self.net, self.problem, self.state.weights, self.mobility))
            reach = _REACH[self.plan.sampler]
            step = reach / math.sqrt(rate) if self.plan.sampler == "baoab" else reach / rate
            step *= 0.5**self.progression.retries
        if not (math.isfinite(step) and step > 0):
            return step, 1, 1
        leap = max(1, min(_MOST_KICKS, int(_REFRESH / (self.plan.friction * step))))
        if self.plan.sampler == "euler":
            leap = max(1, min(_MOST_KICKS, int(0.1 / step)))
        blocks = max(1, math.ceil(duration / (leap * step)))
        if blocks > _MOST_BLOCKS:
            leap, blocks = math.ceil(leap * blocks / _MOST_BLOCKS), _MOST_BLOCKS
        return step, leap, blocks

    def _advance(self, step: float, leap: int, blocks: int, friction: float) -> tuple[State, Means, np.ndarray]:
        state, means, trace = sampler.advance(
            self.net,
            self.plan.sampler,
            blocks,
            self.problem,
            self.state,
            jnp.asarray(step, self.problem.y.dtype),
            jnp.asarray(friction, self.problem.y.dtype),
            jnp.asarray(leap),
        )
        return state, means, np.asarray(trace, dtype=np.float64)

    def _calm(self, means: Means, limit: float) -> bool:
        """Whether a stretch was followed stably: everything finite, and no hotter than its thermostat allows."""
        summaries = np.asarray(means.summaries)
        return bool(np.isfinite(summaries).all() and (summaries[:, 2] < limit).all())

    def _burn(self) -> None:
        """One stretch of the burn-in, with a step for the stiffness of the moment; it is tried again with half the step if it does not stay calm."""
        p, plan = self.progression, self.plan
        duration = plan.burn_in / _STRETCHES
        first = p.stretch < _STRETCHES // 4
        while True:
            step, leap, blocks = self._choose_step(duration)
            # Of one shape, so that burn-in and averages share what is compiled.
            blocks, parts = _parts(blocks)
            state, ok, traces, taken = self.state, math.isfinite(step), [], 0.0
            saved = self.state
            for _ in range(parts if ok else 0):
                state, means, trace = self._advance(step, leap, blocks, _DRAG if first else plan.friction)
                # The first descent turns potential energy into heat, which is no fault of the step.
                ok = self._calm(means, math.inf if first else _HOT * 4)
                if not ok:
                    break
                self.state = state
                traces.append(trace)
                taken += step * leap * blocks
            if ok:
                break
            self.state = saved
            if self._give_up(step):
                return
        for trace in traces:
            self._record(trace, step * leap)
        p.steps += leap * blocks * parts
        p.stretch += 1

    def _give_up(self, step: float) -> bool:
        """Count a failed stretch; after too many, or with a step that was given, say so."""
        p = self.progression
        p.retries += 1
        if self.plan.step is not None:
            p.failure = f"the dynamics is unstable at step {step:g}; give a smaller step, or none"
        elif p.retries > _RETRIES or not math.isfinite(step):
            p.failure = (
                "the dynamics stays unstable however small the step; use precision='float64' or inputs of order one"
            )
        return bool(p.failure)

    def _record(self, trace: np.ndarray, spacing: float) -> None:
        p = self.progression
        for loss in trace:
            p.time += spacing
            p.times.append(p.time)
            self.losses.append(loss)

    def _average(self) -> None:
        """One batch of the averaging phase. If it heats up, averaging starts again with half the step."""
        p, plan = self.progression, self.plan
        duration = (plan.time - plan.burn_in) / self._batches()
        if p.batch == 0:
            p.step, p.leap, p.blocks = self._choose_step(duration)
        if not math.isfinite(p.step):
            self._give_up(p.step)
            return
        state, means, trace = self._advance(p.step, p.leap, p.blocks, plan.friction)
        if not self._calm(means, _HOT):
            if not self._give_up(p.step):
                p.batch = 0
                self.streams, self.summaries, self.samples = {}, [], []
            return
        self.state = state
        self._record(trace, p.step * p.leap)
        p.steps += p.leap * p.blocks
        p.batch += 1
        self._add(means)
        if p.batch % max(1, self._batches() // self.kept) == 0:
            drawn = _sampler.positions(state, p.step, plan.sampler)
            roots = np.sqrt(self.settings.decays)
            natural = [np.asarray(w) / np.asarray(root, w.dtype) for w, root in zip(drawn, roots, strict=True)]
            self.samples.append((p.time, natural))

    def _add(self, means: Means) -> None:
        arrays = {f"kernel.{i}": kernel for i, kernel in enumerate(means.kernels)}
        arrays.update(outputs=means.outputs, squares=means.squares, test=means.test, test_squares=means.test_squares)
        for name, value in arrays.items():
            array = np.asarray(value, dtype=np.float64)
            self.streams.setdefault(name, Stream(array.shape)).add(array)
        self.summaries.append(np.asarray(means.summaries, dtype=np.float64))

    def _content(self) -> Content:
        """Everything that a later process needs to go on."""
        p = asdict(self.progression)
        arrays: dict[str, np.ndarray] = {"times": np.asarray(p.pop("times"))}
        arrays["losses"] = np.stack(self.losses) if self.losses else np.zeros((0, self.settings.replicas))
        arrays["summaries"] = np.stack(self.summaries) if self.summaries else np.zeros((0, 0, 0))
        arrays["key"] = np.asarray(jax.random.key_data(self.state.key))
        for i, (w, m) in enumerate(zip(self.state.weights, self.state.momenta, strict=True)):
            arrays[f"weights.{i}"], arrays[f"momenta.{i}"] = np.asarray(w), np.asarray(m)
        for name, stream in self.streams.items():
            arrays.update({f"stream/{name}/{part}": array for part, array in stream.state().items()})
        for k, (_, weights) in enumerate(self.samples):
            arrays.update({f"sample/{k}/{i}": w for i, w in enumerate(weights)})
        return arrays, {"progression": p, "samples": [moment for moment, _ in self.samples]}

    def _restore(self, content: Content) -> None:
        arrays, header = content
        self.progression = Progression(**header["progression"], times=list(arrays["times"]))
        self.losses, self.summaries = list(arrays["losses"]), list(arrays["summaries"])
        layers = range(self.net.depth + 1)
        key = jax.random.wrap_key_data(jnp.asarray(arrays["key"]), impl="rbg")
        weights, momenta = (tuple(jnp.asarray(arrays[f"{n}.{i}"]) for i in layers) for n in ("weights", "momenta"))
        self.state = State(weights, momenta, key)
        names = {name.split("/")[1] for name in arrays if name.startswith("stream/")}
        self.streams = {
            name: Stream.restore(
                {part: arrays[f"stream/{name}/{part}"] for part in ("first", "sum", "squares", "projections")}
            )
            for name in names
        }
        self.samples = [
            (moment, [arrays[f"sample/{k}/{i}"] for i in layers]) for k, moment in enumerate(header["samples"])
        ]

    def result(self, seconds: float) -> Run:
        p, s, net = self.progression, self.settings, self.net
        if p.failure and not self.streams:
            raise ConvergenceError(f"Langevin sampling failed: {p.failure}")
        verdict = self._judge()
        layers = range(net.depth)
        kernels = [self.streams[f"kernel.{i}"] for i in layers]
        outputs, test = self.streams["outputs"], self.streams["test"]
        spread = np.sqrt(np.maximum(self.streams["squares"].mean - outputs.mean**2, 0))
        tests, summaries = len(self.data.X_test), np.stack(self.summaries)
        dtype = s.precision

        def like_y(array: np.ndarray) -> np.ndarray:
            array = array.astype(dtype)
            return array if self.data.several else array[..., 0]

        moments = np.repeat([moment for moment, _ in self.samples], s.replicas)
        duration = (self.plan.time - self.plan.burn_in) / self._batches()
        batch_ends = self.plan.burn_in + duration * np.arange(1, self._batches() + 1)
        labelled = tests and self.data.labelled
        return Run(
            network=self.network,
            settings=s,
            X=self.data.X.copy(),
            y=self.data.targets.copy(),
            kernels=tuple(net.unfold(k.mean.astype(dtype), i + 1) for i, k in enumerate(kernels)),
            kernel_errors=tuple(net.unfold(k.error.astype(dtype), i + 1) for i, k in enumerate(kernels)),
            fitted=like_y(outputs.mean),
            fitted_errors=like_y(outputs.error),
            spread=like_y(spread),
            times=np.asarray(p.times),
            replica_losses=np.stack(self.losses) / len(self.data.X),
            test_times=batch_ends[: len(summaries)] if labelled else None,
            test_losses=summaries[:, :, 1].mean(axis=1) / tests if labelled else None,
            test_predictions=like_y(test.mean) if tests else None,
            test_errors=like_y(test.error) if tests else None,
            weights=tuple(np.concatenate([weights[i] for _, weights in self.samples]) for i in range(net.depth + 1)),
            initial_weights=None,
            sample_times=moments,
            sample_replicas=np.tile(np.arange(s.replicas), len(self.samples)),
            fades=np.ones(len(moments)),
            basis=self.coordinates.basis,
            converged=verdict["converged"],
            status=verdict["status"],
            stats={**verdict["stats"], "seconds": seconds, "version": __version__},
        )

    @property
    def _label_scale(self) -> float:
        return float(np.sum(self.data.y**2)) / len(self.data.X)

    def _judge(self) -> dict[str, Any]:
        """Whether the averages can be trusted: temperature, error bars, and agreement of halves and replicas."""
        p, net, tolerance = self.progression, self.net, self.plan.tolerance
        series = np.transpose(np.stack(self.summaries), (1, 2, 0))  # (replicas, scalars, batches)
        names = ["loss", "test_loss", "temperature"]
        names += [f"{what}_{layer}" for layer in range(1, net.depth + 1) for what in ("trace", "label_overlap")]
        rhat = {n: averages.split_rhat(series[:, i]) for i, n in enumerate(names) if n not in names[1:3]}
        relative = max(self.streams[f"kernel.{i}"].relative_error for i in range(net.depth))
        temperature = float(series[:, 2].mean())
        drifting = []
        for i, name in enumerate(names):
            if name not in rhat or name == "loss":
                continue
            half = series.shape[2] // 2
            halves = np.concatenate([series[:, i, :half].mean(1), series[:, i, -half:].mean(1)]) if half else np.ones(1)
            trace = float(
                np.abs(series[:, i - (i - 3) % 2]).mean()
            )  # of the same layer: a label overlap may be near zero
            own = float(np.abs(series[:, i]).mean())
            size = max(own, trace * (1.0 if name.startswith("trace") else self._label_scale), np.finfo(float).tiny)
            apart = float(np.ptp(halves)) / size
            if rhat[name] > _RHAT and apart > 4 * tolerance:
                drifting.append(f"{name} differs by {apart:.0%} (R-hat {rhat[name]:.2f})")
        status, converged = f"relative error of the kernels {relative:.2g}", True
        if p.failure:
            status, converged = p.failure, False
        elif not np.isfinite(relative) or relative > tolerance:
            status, converged = f"the kernels are known to {relative:.2g} only; give more time or replicas", False
        elif drifting:
            status, converged = (
                f"halves and replicas disagree: {'; '.join(drifting)}; give more time and burn-in",
                False,
            )
        elif abs(temperature - 1) > 0.1:
            status, converged = f"the kinetic temperature is {temperature:.3g}, not 1; give a smaller step", False
        stats = {
            "sampler": self.plan.sampler,
            "steps": p.steps,
            "step": p.step,
            "kicks_per_refresh": p.leap,
            "batches": p.batch,
            "temperature": temperature,
            "relative_error": relative,
            "autocorrelation_batches": [self.streams[f"kernel.{i}"].time for i in range(net.depth)],
            "split_rhat": rhat,
            "halvings": p.retries,
            "coordinates": self.coordinates.rank,
            "backend": jax.default_backend(),
        }
        return {"converged": converged, "status": status, "stats": stats}


def _parts(blocks: int) -> tuple[int, int]:
    """Blocks as a power of two per call and the number of calls: few shapes to compile."""
    size = 1 << max(0, min(blocks.bit_length() - 1, 6))
    return size, math.ceil(blocks / size)


def _roots(covariances: np.ndarray) -> np.ndarray:
    """A root of each of a stack of covariances."""
    values, vectors = np.linalg.eigh(covariances)
    return vectors * np.sqrt(np.maximum(values, 0))[:, None, :]
