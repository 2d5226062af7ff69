r"""The dynamics of white particles: recursion, forces, stiffness, and BAOAB steps, all compiled.

Only the activation, the loss and the number of chunks are compiled in; every number travels as an array, so that a scan over richness or
temperature compiles once.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from adakern import linalg
from adakern.activations import Activation
from adakern.limits import readout
from adakern.losses import Loss

Layers = tuple[Array, ...]


@dataclass(frozen=True)
class Model:
    """What is compiled in. Particles are taken through each layer in `chunks`, whose fields are not kept but computed again on the way back."""

    activation: Activation
    loss: Loss
    chunks: int = 1


class Data(NamedTuple):
    """The arrays of a problem."""

    root: Array  # of Φ⁰/λ_0 over distinct points
    member: Array  # position of every point among the distinct ones
    y: Array
    richness: Array
    beta: Array
    decays: Array
    frozen: Array  # the readout v of a warm start from kernels
    hold: Array  # 1 while that v is held, 0 when v follows the kernel


class System(NamedTuple):
    """Particles of every layer. Arrays are (groups, particles, rank): each group is a mean field of its own."""

    positions: Layers
    momenta: Layers  # half a step behind the positions
    v: Array  # (groups, P, C): where Newton's method for the next readout begins


class Mean(NamedTuple):
    """Means over one stretch of the dynamics, over groups too."""

    kernels: Layers  # Φ¹..Φ^L over distinct points
    duals: Layers  # Φ̂¹..Φ̂^{L-1} over distinct points
    energy: Array
    temperature: Array


class Coupled(NamedTuple):
    """Systems that are driven by the same noise, so that their differences stand out of it."""

    main: System
    fine: System  # steps of half the length
    halves: System  # the particles in two groups


def recursion(model: Model, data: Data, positions: Layers, shifts: Layers = ()) -> Layers:
    """Φ¹ → … → Φ^L over distinct points, given every layer's particles (particles, rank); `shifts` are added to the kernels on the way."""
    kernels: list[Array] = []
    for layer, epsilon in enumerate(positions):
        root = data.root if layer == 0 else linalg.cholesky_root(kernels[-1] / data.decays[layer])
        kernel = _gram(model, epsilon, root)
        kernels.append(kernel + shifts[layer] if layer < len(shifts) else kernel)
    return tuple(kernels)


def _gram(model: Model, epsilon: Array, root: Array) -> Array:
    r"""$\langle\varphi(A\varepsilon)\varphi(A\varepsilon)^\top\rangle$ over the particles."""

    def square(part: Array) -> Array:
        features = model.activation(jnp.matmul(part, root.T, precision="highest"))
        return jnp.matmul(features.T, features, precision="highest")

    if model.chunks == 1:
        return square(epsilon) / epsilon.shape[0]
    parts = epsilon.reshape(model.chunks, -1, epsilon.shape[1])
    empty = jnp.zeros((root.shape[0],) * 2, root.dtype)
    total, _ = jax.lax.scan(jax.checkpoint(lambda sum, part: (sum + square(part), None)), empty, parts)
    return total / epsilon.shape[0]


def _energy(model: Model, data: Data, kernel: Array, v: Array) -> tuple[Array, Array]:
    """E of a kernel over distinct points, and v. While v is held, what E is to first order around it."""
    full = kernel[data.member][:, data.member]
    decay = data.decays[-1]
    value, new = readout.energy_and_readout(model.loss, full, data.y, data.richness, data.beta, decay, v)
    held = jnp.matmul(full, data.frozen, precision="highest")
    linear = -0.5 * data.richness**2 / decay * jnp.sum(data.frozen * held)
    return jnp.where(data.hold > 0, linear, value), jax.lax.stop_gradient(new)


class _Pull(NamedTuple):
    forces: Layers
    energy: Array
    kernels: Layers
    duals: Layers
    v: Array


def _pull(model: Model, data: Data, positions: Layers, v: Array) -> _Pull:
    r"""$-\partial/\partial\varepsilon$ of $\frac12|\varepsilon|^2+B\,E$ for one group, and on the way $E$, the kernels and $\hat\Phi^\ell=2\,dE/d\Phi^\ell$, $\ell<L$."""
    size = data.root.shape[0]
    shifts = tuple(jnp.zeros((size, size), data.root.dtype) for _ in positions[:-1])

    def potential(positions: Layers, shifts: Layers) -> tuple[Array, tuple[Layers, Array]]:
        kernels = recursion(model, data, positions, shifts)
        value, new = _energy(model, data, kernels[-1], v)
        return value, (kernels, new)

    (value, (kernels, new)), (gradient, slopes) = jax.value_and_grad(potential, (0, 1), has_aux=True)(positions, shifts)
    count = positions[0].shape[0]
    forces = tuple(-x - count * g for x, g in zip(positions, gradient, strict=True))
    return _Pull(forces, value, kernels, tuple(slope + slope.T for slope in slopes), new)


def _drift(system: System, kicks: list[Array], step: Array, friction: Array) -> System:
    """Half a drift, the exact Ornstein-Uhlenbeck step of the momenta, half a drift."""
    decay, noise = jnp.exp(-friction * step), jnp.sqrt(-jnp.expm1(-2 * friction * step))
    positions, momenta = [], []
    for x, p, kick in zip(system.positions, system.momenta, kicks, strict=True):
        x = x + 0.5 * step * p
        p = decay * p + noise * kick.reshape(p.shape)
        positions.append(x + 0.5 * step * p)
        momenta.append(p)
    return System(tuple(positions), tuple(momenta), system.v)


def _step(
    model: Model, data: Data, system: System, kicks: list[Array], step: Array, friction: Array
) -> tuple[System, Mean]:
    """One BAOAB step. The two half kicks between drifts use the same force and are made as one: a step costs one gradient."""
    moved = _drift(system, kicks, step, friction)
    pull = jax.vmap(lambda positions, v: _pull(model, data, positions, v))(moved.positions, moved.v)
    middle = [p + 0.5 * step * f for p, f in zip(moved.momenta, pull.forces, strict=True)]
    temperature = sum(jnp.sum(p * p) for p in middle) / sum(p.size for p in middle)
    momenta = tuple(p + 0.5 * step * f for p, f in zip(middle, pull.forces, strict=True))
    means = jax.tree.map(lambda part: jnp.mean(part, axis=0), (pull.kernels, pull.duals, pull.energy))
    return System(moved.positions, momenta, pull.v), Mean(*means, jnp.asarray(temperature))


def _lazy_step(model: Model, data: Data, system: System, kicks: list[Array], step: Array) -> tuple[System, Layers]:
    """The same step without data: a network at its prior, whose kernels are known exactly."""
    moved = _drift(system, kicks, step, jnp.ones((), step.dtype))
    momenta = tuple(p - step * x for p, x in zip(moved.momenta, moved.positions, strict=True))
    kernels = recursion(model, data, tuple(x[0] for x in moved.positions))
    return System(moved.positions, momenta, system.v), kernels


def shapes(data: Data, particles: int, depth: int) -> list[tuple[int, int]]:
    size, rank = data.root.shape
    return [(particles, rank if layer == 0 else size) for layer in range(depth)]


def start(data: Data, seed: int, particles: int, depth: int) -> System:
    """Particles and momenta from the prior."""
    rng = np.random.default_rng(seed)
    wanted = shapes(data, particles, depth)
    positions, momenta = ([jnp.asarray(rng.standard_normal((1, *s)), data.root.dtype) for s in wanted] for _ in "xp")
    return System(tuple(positions), tuple(momenta), jnp.zeros((1, *data.y.shape), data.y.dtype))


def fresh(system: System, seed: int) -> Layers:
    """New momenta at temperature one."""
    rng = np.random.default_rng(seed)
    return tuple(jnp.asarray(rng.standard_normal(p.shape), p.dtype) for p in system.momenta)


def couple(system: System) -> Coupled:
    """One system as the start of all three."""
    halved = System(
        tuple(x[0].reshape(2, -1, x.shape[2]) for x in system.positions),
        tuple(p[0].reshape(2, -1, p.shape[2]) for p in system.momenta),
        jnp.concatenate([system.v, system.v]),
    )
    return Coupled(system, system, halved)


@functools.partial(jax.jit, static_argnums=0)
def stiffness(model: Model, data: Data, system: System) -> Array:
    """Largest eigenvalue of the Hessian of ½|ε|² + B·E at this state, by power iteration on Hessian products."""
    v = system.v[0]

    def forces(positions: Layers) -> Layers:
        return _pull(model, data, positions, v).forces

    def product(vector: Layers) -> Layers:
        _, change = jax.jvp(forces, (positions,), (vector,))
        return tuple(-part for part in change)

    def norm(vector: Layers) -> Array:
        return jnp.sqrt(sum(jnp.sum(part * part) for part in vector))

    def iterate(_: Any, carry: tuple[Layers, Array]) -> tuple[Layers, Array]:
        image = product(carry[0])
        size = norm(image)
        return tuple(part / size for part in image), size

    positions = tuple(x[0] for x in system.positions)
    # The recursion stretches the positions themselves, so they have a share in the stiff directions.
    unit = tuple(part / norm(positions) for part in positions)
    return jax.lax.fori_loop(0, 12, iterate, (unit, jnp.asarray(1.0, unit[0].dtype)))[1]


def _kicks(key: Array, like: System) -> list[Array]:
    sizes = [part.size for part in like.positions]
    # Normal numbers of 24 bits serve in either precision, and on a CPU they are most of a step's cost.
    normal = jax.random.normal(key, (sum(sizes),), jnp.float32).astype(like.positions[0].dtype)
    return jnp.split(normal, np.cumsum(sizes)[:-1])


def _nothing(data: Data, depth: int) -> Mean:
    size = data.root.shape[0]
    zero = jnp.zeros((), data.root.dtype)
    layer = jnp.zeros((size, size), data.root.dtype)
    return Mean((layer,) * depth, (layer,) * (depth - 1), zero, zero)


@functools.partial(jax.jit, static_argnums=0)
def advance(
    model: Model,
    data: Data,
    main: System,
    shadow: System,
    shadowed: Array,
    key: Array,
    step: Array,
    friction: Array,
    count: Array,
) -> tuple[System, System, Mean, Layers]:
    """`count` steps of the system and, where `shadowed`, of its lazy shadow by the same noise; means over them."""
    depth = len(main.positions)

    def one(index: Array, carry: tuple[System, System, Mean, Layers]) -> tuple[System, System, Mean, Layers]:
        main, shadow, sums, lazy = carry
        kicks = _kicks(jax.random.fold_in(key, index), main)
        main, here = _step(model, data, main, kicks, step, friction)

        def follow(shadow: System) -> tuple[System, Layers]:
            return _lazy_step(model, data, shadow, kicks, step)

        shadow, kernels = jax.lax.cond(shadowed, follow, lambda shadow: (shadow, lazy), shadow)
        lazy = tuple(jnp.where(shadowed, a + b, a) for a, b in zip(lazy, kernels, strict=True))
        return main, shadow, jax.tree.map(jnp.add, sums, here), lazy

    empty = _nothing(data, depth)
    main, shadow, sums, lazy = jax.lax.fori_loop(0, count, one, (main, shadow, empty, empty.kernels))
    return main, shadow, *jax.tree.map(lambda value: value / count, (sums, lazy))


@functools.partial(jax.jit, static_argnums=0)
def probe(
    model: Model, data: Data, systems: Coupled, shadow: System, key: Array, step: Array, count: Array
) -> tuple[Coupled, System, tuple[Mean, Mean, Mean], Layers]:
    """`count` steps of the coupled systems and the shadow, all by the same noise, and means of main, fine and halves over them.

    The noise of a whole step is made up of that of its halves, as the Ornstein-Uhlenbeck process makes it up.
    """
    one_ = jnp.ones((), step.dtype)
    keep, lose = jnp.exp(-0.5 * step), jnp.sqrt(-jnp.expm1(-step))
    whole = jnp.sqrt(-jnp.expm1(-2 * step))

    def one(index: Array, carry: Any) -> Any:
        systems, shadow, sums, lazy = carry
        first, second = (
            _kicks(jax.random.fold_in(jax.random.fold_in(key, index), half), systems.main) for half in (0, 1)
        )
        kicks = [(keep * lose * a + lose * b) / whole for a, b in zip(first, second, strict=True)]
        main, at_main = _step(model, data, systems.main, kicks, step, one_)
        halves, at_halves = _step(model, data, systems.halves, kicks, step, one_)

        def half(which: Array, carry: tuple[System, Mean]) -> tuple[System, Mean]:
            system, sums = carry
            now = [jnp.where(which == 0, a, b) for a, b in zip(first, second, strict=True)]
            system, here = _step(model, data, system, now, 0.5 * step, one_)
            return system, jax.tree.map(lambda a, b: a + 0.5 * b, sums, here)

        fine, at_fine = jax.lax.fori_loop(0, 2, half, (systems.fine, empty))
        shadow, kernels = _lazy_step(model, data, shadow, kicks, step)
        sums = jax.tree.map(jnp.add, sums, (at_main, at_fine, at_halves))
        return Coupled(main, fine, halves), shadow, sums, tuple(map(jnp.add, lazy, kernels))

    empty = _nothing(data, len(shadow.positions))
    systems, shadow, sums, lazy = jax.lax.fori_loop(
        0, count, one, (systems, shadow, (empty, empty, empty), empty.kernels)
    )
    return systems, shadow, *jax.tree.map(lambda value: value / count, (sums, lazy))
