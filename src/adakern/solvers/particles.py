r"""White particles: mean-field Langevin dynamics over the neurons of every layer, the readout solved exactly at every step.

Each layer's neuron is $h^\ell=A(\Phi^{\ell-1}/\lambda_{\ell-1})\,\varepsilon^\ell$ with $AA^\top$ the kernel below and $\varepsilon$ white under the prior. $B$ particles per
layer follow

$$F=\sum_\ell\mathrm{KL}(q_\ell\,\|\,N(0,I))+E(\Phi^L),\qquad \Phi^\ell=\langle\varphi(A\varepsilon)\varphi(A\varepsilon)^\top\rangle,$$

downhill, with the gradient of $B\,E$ taken through the whole recursion by automatic differentiation, momenta of friction 1, and the BAOAB splitting.
Averages over time after burn-in are the estimate; batch means with their autocorrelation give the error.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from threadpoolctl import threadpool_limits

from adakern import inputs, linalg, memory
from adakern.activations import Activation
from adakern.limits.anbk import ANBK, energy, readout
from adakern.limits.base import Answer
from adakern.progress import Progress
from adakern.solvers import averages

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


class Data(NamedTuple):
    """The arrays of a problem. Only the activation is compiled in, so that a scan over richness compiles once."""

    root: Array  # of Φ⁰/λ_0 over distinct points
    member: Array  # position of every point among the distinct ones
    y: Array
    richness: Array
    beta: Array
    decays: Array


class State(NamedTuple):
    positions: tuple[Array, ...]
    momenta: tuple[Array, ...]  # half a step behind the positions
    key: Array


class Batch(NamedTuple):
    """Means over one stretch of the dynamics."""

    kernels: tuple[Array, ...]  # over distinct points
    energy: Array
    temperature: Array


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
    state = _start(data, seed, particles, depth)
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
        stiffness = float(_stiffness(self.activation, self.data, state))
        chosen = _COURANT / np.sqrt(stiffness) if np.isfinite(stiffness) and stiffness > 0 else self.step
        self.step = float(self.factor * min(_LONGEST_STEP, chosen))

    def stretch(self, state: State, most: int | None = None, friction: float = 1.0) -> tuple[State, Batch]:
        """One unit of time, or what `most` and the budget leave of it."""
        count = max(1, min(int(np.ceil(1.0 / self.step)), self.steps_left, most or self.steps_left))
        step, drag = (jnp.asarray(value, self.data.y.dtype) for value in (self.step, friction))
        self.steps_done += count
        self.steps_left -= count
        return _advance(self.activation, self.data, state, step, drag, jnp.asarray(count))

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
        if (
            not clock.healthy(batch, clock.hot) and clock.steps_left > 0
        ):  # what was averaged so far is not trusted either
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
    duals = [np.mean(parts, axis=0) for parts in zip(*(_duals(clock.activation, data, s) for s in kept), strict=True)]
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


def _kernels(activation: Activation, data: Data, positions: tuple[Array, ...]) -> tuple[Array, ...]:
    """The recursion Φ¹ → … → Φ^L over distinct points, given every layer's particles."""
    kernels: list[Array] = []
    for layer, epsilon in enumerate(positions):
        root = data.root if layer == 0 else linalg.cholesky_root(kernels[-1] / data.decays[layer])
        kernels.append(_gram(activation(jnp.matmul(epsilon, root.T, precision="highest"))))
    return tuple(kernels)


def _gram(features: Array) -> Array:
    return jnp.matmul(features.T, features, precision="highest") / features.shape[0]


def _data_energy(data: Data, kernel: Array) -> Array:
    full = kernel[data.member][:, data.member]
    return energy(full, data.y, data.richness, data.beta, data.decays[-1])


def _forces(
    activation: Activation, data: Data, positions: tuple[Array, ...]
) -> tuple[tuple[Array, ...], tuple[Array, tuple[Array, ...]]]:
    """-∂/∂ε of ½|ε|² + B·E, and on the way E and the kernels."""

    def potential(positions: tuple[Array, ...]) -> tuple[Array, tuple[Array, ...]]:
        kernels = _kernels(activation, data, positions)
        return _data_energy(data, kernels[-1]), kernels

    (value, kernels), gradient = jax.value_and_grad(potential, has_aux=True)(positions)
    count = positions[0].shape[0]
    forces = tuple(-x - count * g for x, g in zip(positions, gradient, strict=True))
    return forces, (value, kernels)


def _start(data: Data, seed: int, particles: int, depth: int) -> State:
    """Particles and momenta from the prior."""
    size, rank = data.root.shape
    shapes = [(particles, rank if layer == 0 else size) for layer in range(depth)]
    rng = np.random.default_rng(seed)
    positions, momenta = ([jnp.asarray(rng.standard_normal(s), data.root.dtype) for s in shapes] for _ in range(2))
    # The generator that XLA has built in: several times faster than the default one, on any device.
    return State(tuple(positions), tuple(momenta), jax.random.key(seed, impl="rbg"))


@functools.partial(jax.jit, static_argnums=0)
def _stiffness(activation: Activation, data: Data, state: State) -> Array:
    """Largest eigenvalue of the Hessian of ½|ε|² + B·E at this state, by power iteration on Hessian products."""

    def product(vector: tuple[Array, ...]) -> tuple[Array, ...]:
        _, change = jax.jvp(lambda x: _forces(activation, data, x)[0], (state.positions,), (vector,))
        return tuple(-part for part in change)

    def norm(vector: tuple[Array, ...]) -> Array:
        return jnp.sqrt(sum(jnp.sum(part * part) for part in vector))

    def iterate(_: Any, carry: tuple[tuple[Array, ...], Array]) -> tuple[tuple[Array, ...], Array]:
        image = product(carry[0])
        size = norm(image)
        return tuple(part / size for part in image), size

    start = state.positions  # the recursion stretches them, so they have a share in the stiff directions
    unit = tuple(part / norm(start) for part in start)
    return jax.lax.fori_loop(0, 12, iterate, (unit, jnp.asarray(1.0, unit[0].dtype)))[1]


@functools.partial(jax.jit, static_argnums=0)
def _advance(
    activation: Activation, data: Data, state: State, step: Array, friction: Array, count: Array
) -> tuple[State, Batch]:
    """`count` BAOAB steps, and means over them.

    The two half kicks between drifts use the same force and are made as one, so a step costs one gradient and no force is carried along.
    """
    decay = jnp.exp(-friction * step)
    noise = jnp.sqrt(-jnp.expm1(-2 * friction * step))
    sizes = [part.size for part in state.positions]
    total, ends = sum(sizes), np.cumsum(sizes)[:-1]

    def one(_: Any, carry: tuple[State, Batch]) -> tuple[State, Batch]:
        state, batch = carry
        key, now = jax.random.split(state.key)
        kicks = jnp.split(jax.random.normal(now, (total,), data.root.dtype), ends)
        positions, momenta = [], []
        for x, p, kick in zip(state.positions, state.momenta, kicks, strict=True):
            x = x + 0.5 * step * p
            p = decay * p + noise * kick.reshape(p.shape)
            positions.append(x + 0.5 * step * p)
            momenta.append(p)
        forces, (value, kernels) = _forces(activation, data, tuple(positions))
        at_step = [p + 0.5 * step * f for p, f in zip(momenta, forces, strict=True)]
        temperature = sum(jnp.sum(p * p) for p in at_step) / total
        kicked = tuple(p + 0.5 * step * f for p, f in zip(at_step, forces, strict=True))
        sums = (
            tuple(a + b for a, b in zip(batch.kernels, kernels, strict=True)),
            batch.energy + value,
            batch.temperature + temperature,
        )
        return State(tuple(positions), kicked, key), Batch(*sums)

    size = data.root.shape[0]
    zero = jnp.zeros((), data.root.dtype)
    empty = Batch(tuple(jnp.zeros((size, size), data.root.dtype) for _ in state.positions), zero, zero)
    state, sums = jax.lax.fori_loop(0, count, one, (state, empty))
    return state, jax.tree.map(lambda value: value / count, sums)


def _duals(activation: Activation, data: Data, positions: tuple[Any, ...]) -> tuple[np.ndarray, ...]:
    r"""$\hat\Phi^\ell=2\,dE/d\Phi^\ell$ for $\ell<L$ with the particles of the layers above held fixed, over distinct points."""
    if len(positions) == 1:
        return ()
    return tuple(np.asarray(dual) for dual in _duals_jitted(activation, data, tuple(map(jnp.asarray, positions))))


@functools.partial(jax.jit, static_argnums=0)
def _duals_jitted(activation: Activation, data: Data, positions: tuple[Array, ...]) -> tuple[Array, ...]:
    kernels = _kernels(activation, data, positions)

    def above(layer: int, kernel: Array) -> Array:
        for upper in range(layer + 1, len(positions)):
            root = linalg.cholesky_root(kernel / data.decays[upper])
            kernel = _gram(activation(jnp.matmul(positions[upper], root.T, precision="highest")))
        return _data_energy(data, kernel)

    duals = []
    for layer, kernel in enumerate(kernels[:-1]):
        slope = jax.grad(lambda k, layer=layer: above(layer, k))(kernel)
        duals.append(slope + slope.T)
    return tuple(duals)
