r"""White particles: mean-field Langevin dynamics over the neurons of every layer, the readout solved exactly at every step.

Each layer's neuron is $h^\ell=A(\Phi^{\ell-1}/\lambda_{\ell-1})\,\varepsilon^\ell$ with $AA^\top$ the kernel below and $\varepsilon$ white under the prior. $B$ particles per
layer follow

$$F=\sum_\ell\mathrm{KL}(q_\ell\,\|\,N(0,I))+E(\Phi^L),\qquad \Phi^\ell=\langle\varphi(A\varepsilon)\varphi(A\varepsilon)^\top\rangle,$$

downhill, with the gradient of $B\,E$ taken through the whole recursion by automatic differentiation, momenta of friction 1, and the BAOAB splitting.

The solver burns in, then couples the system to three others by the same noise (twice the step, a part of the particles, no data) to see its biases
and reduce its noise (`tally`), and averages until kernels and outputs are known to the tolerance.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from threadpoolctl import threadpool_limits

from adakern import averages, inputs, losses, memory
from adakern.checkpoints import Checkpoint, Content
from adakern.errors import ConvergenceError
from adakern.limits import sites
from adakern.limits.anbk import ANBK
from adakern.limits.base import Answer
from adakern.progress import Progress
from adakern.solvers import answering, closed, dynamics, packing, tally, warm
from adakern.solvers.answering import BURN_IN, GROUPS
from adakern.solvers.clock import BOILING, CAREFUL, COURANT, DRAG, Clock
from adakern.solvers.dynamics import COARSE, MAIN, PARTS, Data, Model
from adakern.solvers.record import KINDS, Record
from adakern.solvers.tally import Batch, Tally

_SHORT = 32  # steps of a stretch while burning in, after which the step is chosen anew
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
        particles: neurons per layer, rounded up to a multiple of eight.
        tolerance: relative standard error of every kernel (Frobenius norm) and of the outputs at which averaging may stop.
        steps: most gradient evaluations in all.
        budget: bytes for the temporary arrays of one step; what does not fit is taken in chunks of particles.
        init: where to start from.
    """
    points, where = inputs.distinct(X), sites.of(limit.network, X.shape)
    size, depth = len(points.first), limit.network.depth
    item = np.dtype(precision).itemsize
    particles = -(-particles // GROUPS) * GROUPS  # parts and groups of particles are equal
    fields, sizes = where.fields(size, depth), where.sizes(size, depth)
    chunks = _chunks(particles, fields, max(sizes), item, budget)
    white = min(fields[0], inputs.width(limit.network, X.shape)) + sum(fields[1:])  # white coordinates of a neuron
    everywhere = sum(n**2 for n in where.sizes(len(X), depth)[:-1])  # kernels over all points, the last apart
    memory.require(
        item * (16 * particles * white + 4 * everywhere + 12 * len(X) ** 2)  # positions, momenta, noise
        + 2 * GROUPS * item * particles * white  # snapshots
        + 8 * 8 * 24 * sum(n**2 for n in sizes),  # batches and probes
        f"{particles} particles of {len(X)} points" + (f" x {max(where.counts)} positions" if where.counts else ""),
        "fewer training points, fewer particles",
    )
    root, report = inputs.root(limit.network, X[points.first], limit.decays[0])
    model = Model(limit.network.activation, losses.get(limit.loss), chunks, where)
    numbers = (jnp.asarray(limit.richness), jnp.asarray(limit.beta), jnp.asarray(limit.decays))
    columns = jnp.asarray(y)
    data = Data(root, jnp.asarray(points.member), columns, *numbers, jnp.zeros_like(columns), jnp.zeros(()))
    clock = Clock(model, data, particles, steps, seed)
    work = _Work(clock, data, init, tolerance)

    # Threads of the linear algebra library wait for each other longer than a small factorisation takes.
    threads = 1 if max(sizes[:-1], default=0) < _THREADED and len(X) < _THREADED else None
    with threadpool_limits(threads, user_api="blas"), progress.task("aNBK", total=steps) as advance:
        left = checkpoint.load()
        if left is None:
            record = _start(limit, X, points, data, init, seed, particles, where)
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
        return answering.answer(limit, clock, points, work.at_least(held[0]), tolerance, report)


def _chunks(particles: int, fields: tuple[int, ...], size: int, item: int, budget: int) -> int:
    """How many equal chunks of every part keep a step's temporaries within the budget: one if all layers' fields fit at once. `size` is that of the largest kernel."""
    if 4 * item * particles * sum(fields) <= budget:
        return 1
    rows = max(1, budget // (8 * item * max(fields)))
    part = particles // dynamics.parts(particles, size)
    return next(
        chunks for chunks in range(1, part + 1) if part % chunks == 0 and chunks * rows >= min(particles, rows * part)
    )


def _start(
    limit: ANBK,
    X: np.ndarray,
    points: inputs.Distinct,
    data: Data,
    init: warm.Start,
    seed: int,
    particles: int,
    where: sites.Sites,
) -> Record:
    depth = limit.network.depth
    positions, held = None, 0.0
    if init.draws:
        positions = warm.positions(limit, X[points.first], init, data.root, particles, seed)
    elif init.kernels:
        held = _HELD
    stack = dynamics.start(data, seed, particles, depth, positions, where)
    shadow = dynamics.shadow(data, (seed, 1), particles, depth, where)
    lazy = closed.lazy(limit, X[points.first], str(data.y.dtype))
    largest = max(where.sizes(len(points.first), depth))
    return Record(stack, shadow, Tally(lazy, largest, depth), held=held)


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
        if record.ramp < 1.0 or record.held > 0 or clock.factor < 1.0 or clock.ticks % _LOOK == 0:
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
        over = time >= BURN_IN and len(watched) == _WATCHED and not self._drifts(np.array(watched))
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
        v = answering.readout_of(loss, kernel, data).v
        return data._replace(frozen=v, hold=jnp.ones((), data.root.dtype))

    def _couple(self, record: Record) -> Record:
        """Set the systems off that show the biases, and choose the step for good."""
        self.clock.data = self._free
        self.clock.choose_step(record.stack, COURANT)
        start = dynamics.couple(record.stack)
        return replace(record, stack=start, coupled=True, settled=0, phase="settle", friction=1.0)

    def _average(self, record: Record) -> tuple[Record, str]:
        clock, settling = self.clock, record.phase == "settle"
        if not clock.fits(record.coupled):  # a part of a stretch is no batch
            return replace(record, finished=True), "out of steps"
        friction = record.friction if settling else 1.0
        stack, shadow, mean, lazy = clock.stretch(
            record.stack, record.shadow, shadowed=True, coupled=record.coupled, friction=friction
        )
        # Where few neurons carry a kernel, parts of them are different systems, and parting releases heat. What a long step heats, twice as
        # long a one does more.
        sound = clock.healthy(mean, record.coupled, hot=BOILING if settling else None)
        if not sound or (record.coupled and clock.heats(mean)):
            # What was averaged so far is not trusted either.
            nothing: dict[str, Any] = {"tally": record.tally.empty(), "snapshots": (), "stride": 1, "since": 0}
            record = replace(record, stack=clock.shorten(record.stack), phase="couple", **nothing)
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
        main, parts, coarse = (
            jax.tree.map(lambda part, which=which: part[which], mean) for which in (MAIN, PARTS, COARSE)
        )
        batch = Batch(main.kernels, main.duals, lazy.kernels, main.tails, main.energy, main.temperature)
        record = _photographed(record)
        probe = tally.probe(main, parts, coarse, lazy, record.stack.v.shape[1]) if record.coupled else None
        counted = record.tally.add(batch, probe)
        trace = (*record.trace, (float(self.clock.done), float(main.energy)))
        record = replace(record, tally=counted, trace=trace)
        note = f"averaging, step {self.clock.step:.3g}"
        probes = len(counted.probes)
        if record.coupled and probes >= tally.LEAST_PROBES and (probes < 2 * tally.LEAST or probes % 4 == 0):
            allowed = _SHARE * self.tolerance
            if all(counted.probe_error(layer) <= allowed for layer in range(counted.depth)):
                record = replace(record, coupled=answering.output_errors(self.clock, counted).corrections > allowed)
        if counted.due():
            error, least = answering.worst(self.clock, counted)
            note = f"error {error:.2g}, step {self.clock.step:.3g}"
            if least > self.tolerance and not record.coupled:  # longer averaging does not help
                return replace(record, finished=True), note
            if error <= self.tolerance:
                if not counted.drifting(self.tolerance):
                    return replace(record, finished=True), note
                later = record.snapshots[len(record.snapshots) // 2 :]
                record = replace(record, tally=counted.late(), snapshots=later)
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
        record: Record = packing.unpack(content, KINDS)
        if record.clock is not None:
            self.clock.restore(record.clock)
        self.clock.data = self._free
        return self._out_of_time(replace(record, finished=False)) if record.finished else record


def _photographed(record: Record) -> Record:
    """With a snapshot of the neurons if one is due: about evenly spaced over the run, at most twice as many as are wanted."""
    if record.since % record.stride:
        return replace(record, since=record.since + 1)
    snapshots = (*record.snapshots, dynamics.neurons(record.stack))
    stride = record.stride
    if len(snapshots) > 2 * GROUPS:
        snapshots, stride = snapshots[::2], 2 * stride
    return replace(record, snapshots=snapshots, stride=stride, since=1)
