r"""White particles: mean-field Langevin dynamics over the neurons of every layer, the readout solved exactly at every step.

Each layer's neuron is $h^\ell=A(\Phi^{\ell-1}/\lambda_{\ell-1})\,\varepsilon^\ell$ with $AA^\top$ the kernel below and $\varepsilon$ white under the prior. $B$ particles per
layer follow

$$F=\sum_\ell\mathrm{KL}(q_\ell\,\|\,N(0,I))+E(\Phi^L),\qquad \Phi^\ell=\langle\varphi(A\varepsilon)\varphi(A\varepsilon)^\top\rangle,$$

downhill, with the gradient of $B\,E$ taken through the whole recursion by automatic differentiation, momenta of friction 1, and the BAOAB splitting.

The solver burns in, then couples the system to three others by the same noise (half the step, half the particles, no data) to see its biases
and reduce its noise (`tally`), and averages until kernels and outputs are known to the tolerance.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from threadpoolctl import threadpool_limits

from adakern import averages, floors, inputs, linalg, losses, memory
from adakern.checkpoints import Checkpoint, Content
from adakern.errors import ConvergenceError
from adakern.limits import readout
from adakern.limits.anbk import ANBK
from adakern.limits.base import Answer
from adakern.progress import Progress
from adakern.solvers import closed, dynamics, packing, tally, warm
from adakern.solvers.clock import BOILING, CAREFUL, COURANT, DRAG, Clock, Progressed
from adakern.solvers.dynamics import FINE, HALVES, MAIN, Data, Model, Shadow, Stack
from adakern.solvers.tally import Batch, Estimate, Tally

GROUPS = 8  # of particles, whose scatter is the error of predictions; also snapshots that are kept for predictions and densities
_SHORT = 32  # steps of a stretch while burning in, after which the step is chosen anew
_BURN_IN = 8.0  # least time before averaging; fields relax in time about 1
_WATCHED = 8  # latest stretches in which nothing may drift
_RECOVER = 1.5  # by which a shortened step grows again with every sound stretch of the burn-in
_LOOK = 4  # stretches between looks at the stiffness, once the richness is reached
_STIFF = 100.0  # stiffness above which the burn-in starts at a smaller richness
_GROWTH = 1.4  # of that richness per unit of time
_HELD = 3.0  # time for which a readout from given kernels is held
_SETTLE = 3  # stretches in which coupled systems part before they are compared
_BRAKE = 5.0  # friction while that heats them
_SHARE = 0.5  # of the tolerance that the corrections' own error may take up
_THREADED = 512  # points from which a factorisation is worth several threads


@dataclass(frozen=True)
class Record:
    """How far a solve is. Each stretch gives a new record, so that an interrupt finds the old one whole."""

    stack: Stack
    shadow: Shadow
    tally: Tally
    phase: str = "burn-in"  # then "couple", "settle", "average"
    coupled: bool = False  # while the biases are measured
    snapshots: tuple[tuple[np.ndarray, ...], ...] = ()
    watched: tuple[tuple[float, ...], ...] = ()  # energy and tails of the latest stretches of the burn-in
    ramp: float = 0.0  # share of the richness that the burn-in has reached; 0 before the first look at the stiffness
    time: float = 0.0
    held: float = 0.0  # time left for which the readout is held
    friction: float = DRAG
    settled: int = 0
    finished: bool = False
    trace: tuple[tuple[float, float], ...] = field(default=())  # (gradients, energy) along the way
    clock: Progressed | None = None  # at the end of the stretch


def solve(
    limit: ANBK,
    X: np.ndarray,
    y: np.ndarray,
    *,
    seed: int,
    precision: str,
    particles: int,
    tolerance: float,
    steps: int,
    budget: int,
    init: warm.Start,
    checkpoint: Checkpoint,
    progress: Progress,
) -> Answer:
    """Solve an aNBK limit; `y` has shape (points, outputs). Called inside `precision.scope`.

    Args:
        particles: neurons per layer, rounded up to what the chunks need.
        tolerance: relative standard error of every kernel (Frobenius norm) and of the outputs at which averaging may stop.
        steps: most gradient evaluations in all.
        budget: bytes for the temporary arrays of one step; what does not fit is taken in chunks of particles.
        init: where to start from.
    """
    points = inputs.distinct(X)
    size, depth = len(points.first), limit.network.depth
    item = np.dtype(precision).itemsize
    chunks = _chunks(particles, size, depth, item, budget)
    unit = GROUPS * chunks  # halves, chunks and groups of particles are equal
    particles = -(-particles // unit) * unit
    memory.require(
        item * (16 * depth * particles * size + (4 * depth + 8) * len(X) ** 2)  # positions, momenta, noise
        + 2 * GROUPS * item * depth * particles * size  # snapshots
        + 8 * 2 * 24 * depth * size**2,  # batches
        f"{particles} particles of {len(X)} points",
        "fewer training points, fewer particles",
    )
    root, report = linalg.root(jnp.asarray(inputs.input_kernel(limit.network, X[points.first]) / limit.decays[0]))
    model = Model(limit.network.activation, losses.get(limit.loss), chunks)
    numbers = (jnp.asarray(limit.richness), jnp.asarray(limit.beta), jnp.asarray(limit.decays))
    columns = jnp.asarray(y)
    data = Data(root, jnp.asarray(points.member), columns, *numbers, jnp.zeros_like(columns), jnp.zeros(()))
    clock = Clock(model, data, particles, steps, seed)
    work = _Work(clock, data, init, tolerance)

    # Threads of the linear algebra library wait for each other longer than a small factorisation takes.
    threads = 1 if len(X) < _THREADED else None
    with threadpool_limits(threads, user_api="blas"), progress.task("aNBK", total=steps) as advance:
        left = checkpoint.load()
        if left is None:
            record = _start(limit, X, points, data, init, seed, particles)
        else:
            record = work.restore(left)
            advance("resumed", clock.done)
        held = [record]
        with checkpoint.guarding(lambda: packing.pack(held[0])) as stretch:
            while not held[0].finished:
                before = clock.done
                record, note = work.go_on(held[0])
                # With the clock as it stands: an interrupt in the middle of a stretch finds both as they were before it.
                held[0] = replace(record, clock=clock.state())
                advance(note, clock.done - before)
                stretch()
        checkpoint.save(packing.pack(held[0]))  # until the answer is judged: what did not converge can go on from it
        return _answer(limit, clock, points, y, work.at_least(held[0]), tolerance, report)


def _chunks(particles: int, size: int, depth: int, item: int, budget: int) -> int:
    """How many chunks keep a step's temporaries within the budget: one if all layers' fields fit at once."""
    if 4 * item * particles * size * depth <= budget:
        return 1
    rows = max(1, budget // (8 * item * size))
    return max(1, min(particles // GROUPS, -(-particles // rows)))


def _start(
    limit: ANBK, X: np.ndarray, points: inputs.Distinct, data: Data, init: warm.Start, seed: int, particles: int
) -> Record:
    depth = limit.network.depth
    positions, held = None, 0.0
    if init.draws:
        positions = warm.positions(limit, X[points.first], init, data.root, particles, seed)
    elif init.kernels:
        held = _HELD
    stack = dynamics.start(data, seed, particles, depth, positions)
    shadow = dynamics.shadow(data, (seed, 1), particles, depth)
    lazy = closed.lazy(limit, X[points.first], str(data.y.dtype))
    return Record(stack, shadow, Tally(lazy, len(points.first), depth), held=held)


class _Work:
    """The three phases: burn in, let the coupled systems part, average."""

    def __init__(self, clock: Clock, data: Data, init: warm.Start, tolerance: float) -> None:
        self.clock, self.tolerance = clock, tolerance
        self._free, self._init = data, init

    def go_on(self, record: Record) -> tuple[Record, str]:
        """One stretch further, and a note for the progress bar."""
        if record.phase == "burn-in":
            return self._burn_in(record)
        if record.phase == "couple":
            record = self._couple(record)
        return self._average(record)

    def _burn_in(self, record: Record) -> tuple[Record, str]:
        """Run until the energy of late stretches no longer drifts beyond its own scatter.

        The prior is the stiffest place on the way, so the richness is raised from where that is bearable, stretches are short and the step is
        chosen anew for each. What the way down releases as heat is taken out by a higher friction, under which time does not count.
        """
        clock = self.clock
        if record.ramp == 0.0:
            record = replace(record, ramp=self._first_ramp(record))
        free = self._free._replace(richness=record.ramp * self._free.richness)
        clock.data = self._held() if record.held > 0 else free
        if record.ramp < 1.0 or record.held > 0 or clock.factor < 1.0 or len(record.watched) % _LOOK == 0:
            clock.choose_step(record.stack, CAREFUL)
        before = clock.done
        stack, _, mean, _ = clock.stretch(record.stack, record.shadow, friction=record.friction, most=_SHORT)
        if not clock.healthy(mean, hot=BOILING):
            # A readout from poor kernels can pull beyond all bounds: then it is let go.
            record = replace(record, stack=clock.shorten(record.stack), held=0.0)
            return self._out_of_time(record), f"too hot, step {clock.step:.3g}"
        passed = (clock.done - before) * clock.step
        energy = float(mean.energy[MAIN])
        full = record.held == 0 and record.ramp == 1.0
        watched = (*record.watched, (energy, *map(float, mean.tails[MAIN])))[-_WATCHED:] if full else ()
        calm = clock.healthy(mean)
        clock.look(mean)
        clock.factor = min(1.0, _RECOVER * clock.factor)
        time = record.time + (passed if record.friction == 1.0 and full else 0.0)
        over = time >= _BURN_IN and len(watched) == _WATCHED and not self._drifts(np.array(watched))
        if over:
            clock.factor, clock.glide = 1.0, 1.0  # what the way down called for need not hold at its end
        record = replace(
            record,
            stack=stack,
            watched=watched,
            time=time,
            held=max(0.0, record.held - passed),
            ramp=min(1.0, record.ramp * _GROWTH**passed) if calm else record.ramp,
            friction=1.0 if calm else DRAG,
            phase="couple" if over else "burn-in",
            trace=(*record.trace, (float(clock.done), energy)),
        )
        return self._out_of_time(record), f"burning in, energy {energy:.4g}, step {clock.step:.3g}"

    def _first_ramp(self, record: Record) -> float:
        """The share of the richness at which the start is only moderately stiff: E grows as its square."""
        stiffness = float(dynamics.stiffness(self.clock.model, self._free, record.stack))
        return float(np.clip(np.sqrt(_STIFF / stiffness), 1e-4, 1.0)) if stiffness > _STIFF else 1.0

    def _drifts(self, watched: np.ndarray) -> bool:
        energy, tails = watched[:, 0], watched[:, 1:]
        return averages.drifts(energy) or any(tally.trends(t, tally.TAILS * self.tolerance) for t in tails.T)

    def _held(self) -> Data:
        data = self._free
        kernel = jnp.asarray(self._init.kernels[-1])
        loss = self.clock.model.loss
        v = _solve(loss, kernel, data.y, data.beta, data.decays[-1]).v
        return data._replace(frozen=v, hold=jnp.ones((), data.root.dtype))

    def _couple(self, record: Record) -> Record:
        """Set the systems off that show the biases, and choose the step for good."""
        self.clock.data = self._free
        self.clock.choose_step(record.stack, COURANT)
        start = dynamics.couple(record.stack)
        return replace(record, stack=start, coupled=True, settled=0, phase="settle", friction=1.0)

    def _average(self, record: Record) -> tuple[Record, str]:
        clock, settling = self.clock, record.phase == "settle"
        friction = record.friction if settling else 1.0
        stack, shadow, mean, lazy = clock.stretch(
            record.stack, record.shadow, shadowed=True, coupled=record.coupled, friction=friction
        )
        # Where few neurons carry a kernel, two halves of them are two different systems, and parting releases heat. What a long step heats,
        # half of it does not.
        sound = clock.healthy(mean, record.coupled, hot=BOILING if settling else None)
        if not sound or (record.coupled and clock.heats(mean)):
            # What was averaged so far is not trusted either.
            empty = record.tally.empty()
            record = replace(record, stack=clock.shorten(record.stack), tally=empty, snapshots=(), phase="couple")
            return self._out_of_time(record), f"too hot, step {clock.step:.3g}"
        record = replace(record, stack=stack, shadow=shadow)
        if settling:
            calm = clock.healthy(mean, record.coupled)
            settled = record.settled + (calm and friction == 1.0)
            phase = "average" if settled >= _SETTLE else "settle"
            record = replace(record, settled=settled, phase=phase, friction=1.0 if calm else _BRAKE)
            return self._out_of_time(record), f"settling, step {clock.step:.3g}"
        return self._add(record, jax.device_get(mean), jax.device_get(lazy))

    def _add(self, record: Record, mean: Any, lazy: Any) -> tuple[Record, str]:
        """Count one more batch, and see whether that is enough."""
        main, fine, halves = (
            jax.tree.map(lambda part, which=which: part[which], mean) for which in (MAIN, FINE, HALVES)
        )
        batch = Batch(main.kernels, main.duals, lazy.kernels, main.tails, main.energy, main.temperature)
        snapshots = (*record.snapshots, dynamics.neurons(record.stack))
        if len(snapshots) > 2 * GROUPS:
            snapshots = snapshots[::2]
        counted = record.tally.add(batch, tally.probe(main, fine, halves, lazy) if record.coupled else None)
        trace = (*record.trace, (float(self.clock.done), float(main.energy)))
        record = replace(record, tally=counted, snapshots=snapshots, trace=trace)
        note = f"averaging, step {self.clock.step:.3g}"
        if record.coupled and len(counted.probes) >= tally.LEAST_PROBES:
            allowed = _SHARE * self.tolerance
            if all(counted.probe_error(layer) <= allowed for layer in range(counted.depth)):
                record = replace(record, coupled=False)
        if counted.due():
            error = worst(self.clock, counted)
            note = f"error {error:.2g}, step {self.clock.step:.3g}"
            if error <= self.tolerance:
                if not counted.drifting(self.tolerance):
                    return replace(record, finished=True), note
                record = replace(record, tally=counted.late(), snapshots=snapshots[GROUPS // 2 :])
        return self._out_of_time(record), note

    def _out_of_time(self, record: Record) -> Record:
        return replace(record, finished=True) if self.clock.left == 0 or self.clock.stuck else record

    def at_least(self, record: Record) -> Record:
        """Two batches at any price, for an answer that says that it did not converge."""
        self.clock.data = self._free
        while len(record.tally.batches) < 2:
            stack, _, mean, _ = self.clock.stretch(record.stack, record.shadow, most=1)
            if not self.clock.healthy(mean, hot=np.inf):
                if self.clock.stuck:
                    raise ConvergenceError(
                        "ANBK could not make a first step: energy or forces are not finite; use inputs and an init of order one, "
                        "precision='float64', or an activation that grows less"
                    )
                record = replace(record, stack=self.clock.shorten(record.stack))
                continue
            main = jax.tree.map(lambda part: part[MAIN], jax.device_get(mean))
            batch = Batch(main.kernels, main.duals, main.kernels, main.tails, main.energy, main.temperature)
            record = replace(record, stack=stack, tally=replace(record.tally, lazy=None, length=1.0).add(batch))
        return record

    def restore(self, content: Content) -> Record:
        """Where an earlier call left off; what had run out of steps goes on if there are more now."""
        record: Record = packing.unpack(content, _KINDS)
        if record.clock is not None:
            self.clock.restore(record.clock)
        self.clock.data = self._free
        return self._out_of_time(replace(record, finished=False)) if record.finished else record


_KINDS = {kind.__name__: kind for kind in (Record, Stack, Shadow, Tally, Batch, tally.Probe, Progressed)}


_solve = jax.jit(readout.solve, static_argnums=0)


def worst(clock: Clock, counted: Tally) -> float:
    """The largest relative standard error: of a kernel, or of the outputs."""
    estimates = [counted.kernel(layer) for layer in range(counted.depth)]
    return max([tally.relative(estimate) for estimate in estimates] + [_output_error(clock, counted, estimates[-1])])


def _output_error(clock: Clock, counted: Tally, top: Estimate) -> float:
    """Relative standard error of the outputs s on the training inputs, to first order in the scatter of the top kernel."""
    total, size = 0.0, 0.0
    for scatter in counted.scatters():
        padded = np.zeros((counted.most, *scatter.shape[1:]), clock.data.root.dtype)  # one shape, compiled once
        padded[: len(scatter)] = scatter[-counted.most :]
        s, changes = _respond(clock.model, clock.data, jnp.asarray(top.mean, padded.dtype), jnp.asarray(padded))
        total += float(np.sum(tally.error(np.asarray(changes)[: len(scatter)]) ** 2))
        size = float(np.linalg.norm(s))
    return float(np.sqrt(total)) / size if size > 0 else 0.0


@functools.partial(jax.jit, static_argnums=0)
def _respond(model: Model, data: Data, kernel: Array, changes: Array) -> tuple[Array, Array]:
    """The outputs, and how they answer to changes of the kernel."""

    def outputs(kernel: Array) -> Array:
        full, decay = kernel[data.member][:, data.member], data.decays[-1]
        v = readout.readout(model.loss, full, data.y, data.beta, decay)
        return jnp.matmul(full, v, precision="highest") / decay

    s, respond = jax.linearize(outputs, kernel)
    return s, jax.lax.map(respond, changes)


def _answer(
    limit: ANBK,
    clock: Clock,
    points: inputs.Distinct,
    y: np.ndarray,
    record: Record,
    tolerance: float,
    report: dict[str, Any],
) -> Answer:
    data, depth, counted = clock.data, limit.network.depth, record.tally
    dtype = np.dtype(str(data.root.dtype))
    estimates = [counted.kernel(layer) for layer in range(depth)]
    duals = [counted.dual(layer) for layer in range(depth - 1)]
    kernels = tuple(points.expand(estimate.mean).astype(dtype) for estimate in estimates)
    inner = _solve(clock.model.loss, jnp.asarray(kernels[-1]), data.y, data.beta, data.decays[-1])
    v = np.asarray(inner.v)
    outputs = kernels[-1] @ v / limit.decays[-1]
    top = -(limit.richness**2) / limit.decays[-1] * v @ v.T
    snapshots = record.snapshots or (dynamics.neurons(record.stack),)
    kept = snapshots[-GROUPS:]
    # By particle, then by time: groups of particles are independent of each other, moments of a slow particle are not.
    draws = tuple(
        np.stack([s[layer] for s in kept], axis=1).reshape(-1, kept[0][layer].shape[1]) for layer in range(depth)
    )
    if record.phase != "average":  # a moment or two, not a sample: nothing is known of its error
        estimates = [estimate._replace(error=np.full_like(estimate.error, np.inf)) for estimate in estimates]
    output_error = _output_error(clock, counted, estimates[-1])
    error = max([tally.relative(estimate) for estimate in estimates] + [output_error])
    converged = bool(
        counted.enough
        and np.isfinite(error)
        and error <= tolerance
        and counted.temperature < clock.hot
        and not counted.drifting(tolerance)
    )
    stats = {
        "solver": "particles",
        "particles": clock.particles,
        "tolerance": tolerance,
        "chunks": clock.model.chunks,
        "steps": clock.done,
        "batches": len(counted.batches),
        "probes": len(counted.probes),
        "step_size": clock.step,
        "retries": clock.retries,
        "temperature": counted.temperature,
        "relative_error": error,
        "output_error": output_error,
        "autocorrelation_time": [estimate.time * counted.length for estimate in estimates],
        "control": [estimate.control for estimate in estimates],
        "bias": {
            "step": [_ratio(estimate.step, estimate.mean) for estimate in estimates],
            "particles": [_ratio(estimate.particles, estimate.mean) for estimate in estimates],
        },
        "energy": float(np.mean(counted.energies)),
        "tails": [float(tail) for tail in np.mean([batch.tails for batch in counted.batches], axis=0)],
        "newton": {"steps": int(inner.steps), "residual": float(inner.residual)},
        "trace": [list(point) for point in record.trace[:: max(1, len(record.trace) // 200)]],  # gradients, energy
        "groups": GROUPS,
        "snapshots": len(kept),
        "root": report,
        "jitter": floors.JITTER[str(dtype)] if depth > 1 else 0.0,
    }
    return Answer(
        kernels=kernels,
        kernel=kernels[-1],
        coefficients=(v / limit.decays[-1]).astype(dtype),
        fitted=np.asarray(clock.model.loss.link(jnp.asarray(outputs, dtype))),
        errors=(v / limit.beta).astype(dtype),
        kernel_errors=tuple(points.expand(estimate.error).astype(dtype) for estimate in estimates),
        duals=(*(points.spread(dual.mean).astype(dtype) for dual in duals), top.astype(dtype)),
        draws=draws,
        converged=converged,
        status=_status(clock, record, error, tolerance, converged),
        stats=stats,
    )


def _ratio(part: np.ndarray, whole: np.ndarray) -> float:
    scale = float(np.linalg.norm(whole))
    return float(np.linalg.norm(part)) / scale if scale > 0 else 0.0


def _status(clock: Clock, record: Record, error: float, tolerance: float, converged: bool) -> str:
    counted = record.tally
    if converged:
        return f"averaged {len(counted.batches)} batches; kernels and outputs known to {error:.2g} (asked: {tolerance:.2g})"
    if record.phase == "burn-in":
        return (
            f"still burning in after {clock.done} gradients of step {clock.step:.2g}, time {record.time:.1f} of the least {_BURN_IN:g}; "
            "give more steps, a smaller beta or richness, or start from a neighbour (init=, or path)"
        )
    return (
        f"{clock.done} gradients (the last of step {clock.step:.2g}) gave {len(counted.batches)} batches of the least {tally.LEAST} and an error of "
        f"{error:.2g} (asked: {tolerance:.2g}); give more steps, more particles, a larger tolerance, or a smaller richness"
    )
