r"""White particles: mean-field Langevin dynamics over the neurons of every layer, the readout solved exactly at every step.

Each layer's neuron is $h^\ell=A(\Phi^{\ell-1}/\lambda_{\ell-1})\,\varepsilon^\ell$ with $AA^\top$ the kernel below and $\varepsilon$ white under the prior. $B$ particles per
layer follow

$$F=\sum_\ell\mathrm{KL}(q_\ell\,\|\,N(0,I))+E(\Phi^L),\qquad \Phi^\ell=\langle\varphi(A\varepsilon)\varphi(A\varepsilon)^\top\rangle,$$

downhill, with the gradient of $B\,E$ taken through the whole recursion by automatic differentiation, momenta of friction 1, and the BAOAB splitting.
Averages over time after burn-in are the estimate; batch means with their autocorrelation give the error.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from threadpoolctl import threadpool_limits

from adakern import averages, inputs, linalg, memory
from adakern.activations import Activation
from adakern.limits.anbk import ANBK, readout
from adakern.limits.base import Answer
from adakern.progress import Progress
from adakern.solvers import dynamics
from adakern.solvers.dynamics import Batch, Data, State

GROUPS = 8  # snapshots that are kept for predictions, densities and their errors
_LONGEST_STEP = 0.15
_COURANT = 0.5  # step × highest frequency; BAOAB is stable below 2, its bias falls with the square
_HOT = 1.15  # kinetic temperature, 1 in equilibrium, above which a step counts as too long
_BOILING = 10.0  # the same while burning in, where the way down from the prior releases real heat
_DRAG = 20.0  # friction that takes it out; 1 otherwise
_SHORT = 32  # steps of a stretch while burning in, after which the step is chosen anew
_BURN_IN = 8.0  # least time before averaging; fields relax in time about 1
_LEAST_BATCHES = 12
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
    progress: Progress,
) -> Answer:
    """Solve an aNBK limit with the squared loss; `y` has shape (points, outputs). Called inside `precision.scope`.

    Args:
        particles: neurons per layer.
        tolerance: relative standard error of every kernel (Frobenius norm) at which averaging may stop.
        steps: most steps in all.
    """
    points = inputs.distinct(X)
    size, depth = len(points.first), limit.network.depth
    item = np.dtype(precision).itemsize
    memory.require(
        item * (8 * depth * particles * size + (4 * depth + 8) * len(X) ** 2),
        f"{particles} particles of {len(X)} points",
    )
    root, report = linalg.root(jnp.asarray(inputs.input_kernel(limit.network, X[points.first]) / limit.decays[0]))
    numbers = (jnp.asarray(limit.richness), jnp.asarray(limit.beta), jnp.asarray(limit.decays))
    data = Data(root, jnp.asarray(points.member), jnp.asarray(y), *numbers)
    state = dynamics.start(data, seed, particles, depth)
    clock = _Clock(limit.network.activation, data, particles, steps)

    # Threads of the linear algebra library wait for each other longer than a small factorisation takes.
    threads = 1 if len(X) < _THREADED else None
    with threadpool_limits(threads, user_api="blas"), progress.task("aNBK", total=steps) as advance:
        state = _burn_in(clock, state, advance)
        batches, snapshots, state = _average(clock, state, tolerance, advance)
    return _answer(limit, clock, points, y, batches, snapshots, tolerance, report)


class _Clock:
    """Advances the dynamics in stretches, choosing the step from the stiffness and shortening it when the system heats."""

    def __init__(self, activation: Activation, data: Data, particles: int, steps: int) -> None:
        self.activation, self.data, self.particles = activation, data, particles
        self.steps_left, self.steps_done = steps, 0
        self.step, self.factor, self.retries = _LONGEST_STEP, 1.0, 0

    def choose_step(self, state: State) -> None:
        stiffness = float(dynamics.stiffness(self.activation, self.data, state))
        chosen = _COURANT / np.sqrt(stiffness) if np.isfinite(stiffness) and stiffness > 0 else self.step
        self.step = float(self.factor * min(_LONGEST_STEP, chosen))

    def stretch(self, state: State, most: int | None = None, friction: float = 1.0) -> tuple[State, Batch]:
        """One unit of time, or what `most` and the budget leave of it."""
        count = max(1, min(int(np.ceil(1.0 / self.step)), self.steps_left, most or self.steps_left))
        step, drag = (jnp.asarray(value, self.data.y.dtype) for value in (self.step, friction))
        self.steps_done += count
        self.steps_left -= count
        return dynamics.advance(self.activation, self.data, state, step, drag, jnp.asarray(count))

    def shorten(self, state: State) -> State:
        """After a stretch that heated or broke: half the step from now on, and fresh momenta at temperature one."""
        self.factor /= 2
        self.step /= 2
        self.retries += 1
        key, now = jax.random.split(state.key)
        fresh = jax.random.normal(now, (sum(p.size for p in state.momenta),), self.data.root.dtype)
        ends = np.cumsum([p.size for p in state.momenta])[:-1]
        parts = jnp.split(fresh, ends)
        momenta = tuple(part.reshape(p.shape) for part, p in zip(parts, state.momenta, strict=True))
        return State(state.positions, momenta, key)

    def healthy(self, batch: Batch, hot: float) -> bool:
        return bool(jnp.isfinite(batch.energy)) and float(batch.temperature) < hot

    @property
    def hot(self) -> float:
        # A stretch averages the kinetic energy of `particles` × rank momenta: its own scatter is allowed for.
        return _HOT + 6.0 / np.sqrt(self.particles * self.data.root.shape[1])


def _burn_in(clock: _Clock, state: State, advance: Any) -> State:
    """Run until the energy of late stretches no longer drifts beyond its own scatter.

    The prior is the stiffest place on the way, so stretches are short and the step is chosen anew for each. What the way down from there releases
    as heat is taken out by a higher friction, under which time does not count.
    """
    energies: list[float] = []
    time, friction = 0.0, _DRAG
    while clock.steps_left > 0:
        clock.choose_step(state)
        before = clock.steps_done
        fresh, batch = clock.stretch(state, _SHORT, friction)
        used = clock.steps_done - before
        advance(f"energy {float(batch.energy):.4g}, step {clock.step:.3g}", used)
        if not clock.healthy(batch, _BOILING):
            state = clock.shorten(state)
            continue
        state, time = fresh, time + used * clock.step * (friction == 1.0)
        energies.append(float(batch.energy))
        friction = 1.0 if clock.healthy(batch, clock.hot) else _DRAG
        if time >= _BURN_IN and len(energies) >= 8 and not averages.drifts(np.asarray(energies[-8:])):
            break
    return state


def _average(
    clock: _Clock, state: State, tolerance: float, advance: Any
) -> tuple[list[Batch], list[tuple[np.ndarray, ...]], State]:
    batches: list[Batch] = []
    snapshots: list[tuple[np.ndarray, ...]] = []
    clock.choose_step(state)
    while clock.steps_left > 0 or len(batches) < 2:
        before = clock.steps_done
        fresh, batch = clock.stretch(state)
        if not clock.healthy(batch, clock.hot) and clock.steps_left > 0:
            # What was averaged so far is not trusted either.
            advance(f"too hot, step {clock.step:.3g}", clock.steps_done - before)
            state, batches, snapshots = clock.shorten(state), [], []
            continue
        state = fresh
        batches.append(jax.device_get(batch))
        snapshots.append(tuple(map(np.asarray, state.positions)))
        if len(snapshots) > 2 * GROUPS:
            snapshots = snapshots[::2]
        error = _worst_error(batches) if len(batches) >= _LEAST_BATCHES else np.inf
        advance(f"error {error:.2g}, step {clock.step:.3g}", clock.steps_done - before)
        if error <= tolerance:
            break
    return batches, snapshots, state


def _worst_error(batches: list[Batch]) -> float:
    depth = len(batches[0].kernels)
    return max(averages.relative_error(np.stack([batch.kernels[layer] for batch in batches])) for layer in range(depth))


def _answer(
    limit: ANBK,
    clock: _Clock,
    points: inputs.Distinct,
    y: np.ndarray,
    batches: list[Batch],
    snapshots: list[tuple[np.ndarray, ...]],
    tolerance: float,
    report: dict[str, Any],
) -> Answer:
    data, depth = clock.data, limit.network.depth
    series = [np.stack([batch.kernels[layer] for batch in batches]) for layer in range(depth)]
    means = [np.mean(values, axis=0) for values in series]
    deviations = [averages.standard_error(values) for values in series]
    kernels = tuple(points.expand(mean) for mean in means)
    v = np.asarray(jax.jit(readout)(jnp.asarray(kernels[-1]), data.y, data.beta, data.decays[-1]))
    fitted = kernels[-1] @ v / limit.decays[-1]
    kept = snapshots[-GROUPS:] if len(snapshots) >= GROUPS else snapshots
    draws = tuple(np.concatenate([snapshot[layer] for snapshot in kept]) for layer in range(depth))
    duals = [
        np.mean(parts, axis=0) for parts in zip(*(dynamics.duals(clock.activation, data, s) for s in kept), strict=True)
    ]
    top = -(limit.richness**2) / limit.decays[-1] * v @ v.T
    error = _worst_error(batches)
    temperature = float(np.mean([batch.temperature for batch in batches]))
    enough = len(batches) >= _LEAST_BATCHES
    converged = bool(enough and np.isfinite(error) and error <= tolerance and temperature < clock.hot)
    status = (
        f"averaged {len(batches)} batches; kernels known to {error:.2g} (asked: {tolerance:.2g})"
        if converged
        else f"{clock.steps_done} steps (the last of length {clock.step:.2g}) gave {len(batches)} of the least {_LEAST_BATCHES} batches and kernels "
        f"known to {error:.2g} (asked: {tolerance:.2g}); give more steps, more particles, a larger tolerance, or a smaller richness"
    )
    stats = {
        "solver": "particles",
        "particles": clock.particles,
        "steps": clock.steps_done,
        "batches": len(batches),
        "step_size": clock.step,
        "retries": clock.retries,
        "temperature": temperature,
        "relative_error": error,
        "energy": float(np.mean([batch.energy for batch in batches])),
        "groups": len(kept),
        "root": report,
    }
    return Answer(
        kernels=kernels,
        kernel=kernels[-1],
        coefficients=v / limit.decays[-1],
        fitted=fitted,
        errors=y - fitted,
        kernel_errors=tuple(points.expand(deviation) for deviation in deviations),
        duals=(*(points.spread(dual) for dual in duals), top),
        draws=draws,
        converged=converged,
        status=status,
        stats=stats,
    )
