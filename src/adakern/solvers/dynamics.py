r"""The dynamics of white particles: recursion, forces, stiffness, and BAOAB steps, all compiled.

Only the activation is compiled in; every number travels as an array, so that a scan over richness or temperature compiles once.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from adakern import linalg
from adakern.activations import Activation
from adakern.limits.anbk import energy


class Data(NamedTuple):
    """The arrays of a problem."""

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


def start(data: Data, seed: int, particles: int, depth: int) -> State:
    """Particles and momenta from the prior."""
    size, rank = data.root.shape
    shapes = [(particles, rank if layer == 0 else size) for layer in range(depth)]
    rng = np.random.default_rng(seed)
    positions, momenta = ([jnp.asarray(rng.standard_normal(s), data.root.dtype) for s in shapes] for _ in range(2))
    # The generator that XLA has built in: several times faster than the default one, on any device.
    return State(tuple(positions), tuple(momenta), jax.random.key(seed, impl="rbg"))


@functools.partial(jax.jit, static_argnums=0)
def stiffness(activation: Activation, data: Data, state: State) -> Array:
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
def advance(
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


def duals(activation: Activation, data: Data, positions: tuple[Any, ...]) -> tuple[np.ndarray, ...]:
    r"""$\hat\Phi^\ell=2\,dE/d\Phi^\ell$ for $\ell<L$ with the particles of the layers above held fixed, over distinct points."""
    if len(positions) == 1:
        return ()
    return tuple(np.asarray(dual) for dual in _duals(activation, data, tuple(map(jnp.asarray, positions))))


@functools.partial(jax.jit, static_argnums=0)
def _duals(activation: Activation, data: Data, positions: tuple[Array, ...]) -> tuple[Array, ...]:
    kernels = _kernels(activation, data, positions)

    def above(layer: int, kernel: Array) -> Array:
        for upper in range(layer + 1, len(positions)):
            root = linalg.cholesky_root(kernel / data.decays[upper])
            kernel = _gram(activation(jnp.matmul(positions[upper], root.T, precision="highest")))
        return _data_energy(data, kernel)

    slopes = []
    for layer, kernel in enumerate(kernels[:-1]):
        slope = jax.grad(lambda k, layer=layer: above(layer, k))(kernel)
        slopes.append(slope + slope.T)
    return tuple(slopes)
