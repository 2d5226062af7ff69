r"""The dynamics of white particles: recursion, forces, stiffness, and BAOAB steps, all compiled.

Only the activation, the loss and the number of chunks are compiled in; every number travels as an array, so that a scan over richness or
temperature compiles once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from adakern import linalg
from adakern.activations import Activation
from adakern.limits import readout
from adakern.limits.sites import Pool, Sites
from adakern.losses import Loss

_MOST_PRODUCTS = 20  # of the Hessian, for its largest eigenvalue to 1 %
_ENOUGH = 8  # particles of a part, for every point

Layers = tuple[Array, ...]
Seed = int | tuple[int, ...]
_ALONE = Sites()


@dataclass(frozen=True)
class Model:
    """What is compiled in. Particles are taken through each layer in `chunks`, whose fields are not kept but computed again on the way back."""

    activation: Activation
    loss: Loss
    chunks: int = 1
    sites: Sites = _ALONE

    def sizes(self, data: Data, depth: int) -> tuple[int, ...]:
        """Rows of each layer's kernel over distinct points, or over their positions."""
        return self.sites.sizes(self.sites.points(data.root.shape[0]), depth)


class Data(NamedTuple):
    """The arrays of a problem."""

    root: Array  # of Φ⁰/λ_0 over distinct points, or over their positions
    member: Array  # position of every point among the distinct ones
    y: Array
    richness: Array
    beta: Array
    decays: Array
    frozen: Array  # the readout v of a warm start from kernels
    hold: Array  # 1 while that v is held, 0 when v follows the kernel


MAIN, PARTS, COARSE = range(3)  # the systems of a `Stack`
ALONE, COUPLED = (
    1.0,
    2.5,
)  # force evaluations of a step: of the main system alone; of all three, of which the coarse one takes every other


class Stack(NamedTuple):
    """Three systems driven by the same noise, so that their differences stand out of it: main, parts, coarse (steps of twice the length).

    Positions and momenta are (3, parts, particles / parts, rank). In the second system each part of the particles has a mean field of its own; in
    the others all share one.
    """

    positions: Layers
    momenta: Layers  # with both half kicks at the latest positions: half a kick ahead
    pulls: Layers  # forces of the data at the latest positions
    v: Array  # (3, parts, P, C): where Newton's method for the next readout begins


class Shadow(NamedTuple):
    """A network without data, at its prior: (particles, rank) each. Its kernels are known exactly."""

    positions: Layers
    momenta: Layers


class Mean(NamedTuple):
    """Means over one stretch of the dynamics, one for each system."""

    kernels: Layers  # Φ¹..Φ^L over distinct points; of a CNN's inner layers over their positions too
    duals: Layers  # Φ̂¹..Φ̂^{L-1} likewise
    tails: Array  # ⟨|φ|⁴⟩/⟨|φ|²⟩² of each layer: how unequal the neurons are
    energy: Array
    temperature: Array


def _gram(model: Model, epsilon: Array, root: Array, pool: Pool) -> tuple[Array, Array]:
    r"""$\langle\varphi(A\varepsilon)\varphi(A\varepsilon)^\top\rangle$ and $\langle|\varphi|^4\rangle$ over the particles; at the last layer as the readout pools positions."""

    def sums(part: Array) -> tuple[Array, Array]:
        features = pool.rows(model.activation(jnp.matmul(part, root.T, precision="highest")))
        lengths = pool.totals(jnp.sum(features * features, axis=1), part.shape[0])
        return jnp.matmul(features.T, features, precision="highest"), jnp.sum(lengths * lengths)

    count = epsilon.shape[0]
    if model.chunks == 1:
        square, fourth = sums(epsilon)
    else:
        parts = epsilon.reshape(model.chunks, -1, epsilon.shape[1])
        empty = (jnp.zeros((root.shape[0] // pool.sites,) * 2, root.dtype), jnp.zeros((), root.dtype))
        add = jax.checkpoint(lambda total, part: (jax.tree.map(jnp.add, total, sums(part)), None))
        (square, fourth), _ = jax.lax.scan(add, empty, parts)
    return square / count, jax.lax.stop_gradient(fourth / count)


def _recursion(
    model: Model, data: Data, positions: Layers, shifts: Layers, joint: Array
) -> tuple[Layers, tuple[Array, ...]]:
    """Φ¹ → … → Φ^L over distinct points for parts of the particles, (parts, particles, rank) a layer, that share one mean field where `joint`.

    `shifts` are added to the kernels on the way. Returns fourth moments beside the kernels.
    """
    kernels: list[Array] = []
    fourths: list[Array] = []
    for layer, epsilon in enumerate(positions):
        pool = model.sites.pool_of(layer, len(positions))
        if layer == 0:
            kernel, fourth = jax.vmap(lambda part, pool=pool: _gram(model, part, data.root, pool))(epsilon)
        else:
            see = functools.partial(model.sites.seen, layer - 1)
            roots = _of_parts(
                joint, lambda below, see=see: linalg.cholesky_root(see(below)), kernels[-1] / data.decays[layer]
            )
            kernel, fourth = jax.vmap(lambda part, root, pool=pool: _gram(model, part, root, pool))(epsilon, roots)
        mean = jnp.broadcast_to(jnp.mean(kernel, axis=0, keepdims=True), kernel.shape)
        kernel = jnp.where(joint, mean, kernel)
        kernels.append(kernel + shifts[layer][None] if layer < len(shifts) else kernel)
        fourths.append(jnp.mean(fourth))
    return tuple(kernels), tuple(fourths)


def _of_parts(joint: Array, function: Callable[..., Any], *stacks: Array) -> Any:
    """`function` of what every part has, or where all have the same, of the first part's."""

    def once(*stacks: Array) -> Any:
        result = function(*(stack[0] for stack in stacks))
        return jax.tree.map(lambda value: jnp.broadcast_to(value[None], (len(stacks[0]), *value.shape)), result)

    return jax.lax.cond(joint, once, lambda *stacks: linalg.each(function, *stacks), *stacks)


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
    tails: Array
    v: Array


def _pull(model: Model, data: Data, positions: Layers, v: Array, joint: Array) -> _Pull:
    r"""$-\partial/\partial\varepsilon$ of $\frac12|\varepsilon|^2+B\,E$, and on the way $E$, the kernels and $\hat\Phi^\ell=2\,dE/d\Phi^\ell$, $\ell<L$, as means over the parts."""
    sizes = model.sizes(data, len(positions))
    shifts = tuple(jnp.zeros((size, size), data.root.dtype) for size in sizes[:-1])

    def potential(positions: Layers, shifts: Layers) -> tuple[Array, tuple[Layers, Array, Array]]:
        kernels, fourths = _recursion(model, data, positions, shifts, joint)
        values, new = _of_parts(joint, lambda kernel, start: _energy(model, data, kernel, start), kernels[-1], v)
        means = tuple(jnp.mean(kernel, axis=0) for kernel in kernels)
        tiny = jnp.finfo(v.dtype).tiny
        tails = jnp.stack([q / (jnp.trace(k) ** 2 + tiny) for q, k in zip(fourths, means, strict=True)])
        return jnp.mean(values), (means, new, tails)

    (value, (kernels, new, tails)), (gradient, slopes) = jax.value_and_grad(potential, (0, 1), has_aux=True)(
        positions, shifts
    )
    count = positions[0].shape[0] * positions[0].shape[1]
    forces = tuple(-x - count * g for x, g in zip(positions, gradient, strict=True))
    return _Pull(forces, value, kernels, tuple(slope + slope.T for slope in slopes), tails, new)


def _drift(
    positions: Layers,
    momenta: Layers,
    kicks: Layers,
    step: Array,
    friction: Array,
    along: Layers | None = None,
    glide: Array | float = 1.0,
) -> tuple[list[Array], list[Array]]:
    """Half a drift, the exact Ornstein-Uhlenbeck step of the momenta, half a drift.

    Along the pull of the data a law can be nearly flat (homogeneous activations at large richness), and friction would make it diffuse there,
    so there it is multiplied by `glide`. While burning in only: the direction is that of the place before, so that the momenta's law is only nearly kept.
    """
    moved, turned = [], []
    for layer, (x, p, kick) in enumerate(zip(positions, momenta, kicks, strict=True)):
        x = x + 0.5 * step * p
        noise = kick.reshape(p.shape)
        new = _damp(p, noise, step, friction)
        if along is not None:
            pull = along[layer]
            direction = pull * jax.lax.rsqrt(jnp.sum(pull * pull, axis=-1, keepdims=True) + jnp.finfo(p.dtype).tiny)
            inside, shaken = (jnp.sum(part * direction, axis=-1, keepdims=True) for part in (p, noise))
            free = _damp(inside, shaken, step, friction * glide)
            new = new + (free - _damp(inside, shaken, step, friction)) * direction
        moved.append(x + 0.5 * step * new)
        turned.append(new)
    return moved, turned


def _damp(momenta: Array, noise: Array, step: Array, friction: Array) -> Array:
    return jnp.exp(-friction * step) * momenta + jnp.sqrt(-jnp.expm1(-2 * friction * step)) * noise


class Lazy(NamedTuple):
    """Kernels of the shadow, and of its parts that do not see each other (their mean)."""

    kernels: Layers
    parts: Layers


def _follow(model: Model, data: Data, shadow: Shadow, kicks: Layers, step: Array, parts: int) -> tuple[Shadow, Lazy]:
    """A step of the shadow: the same noise, no data."""
    positions, momenta = _drift(shadow.positions, shadow.momenta, kicks, step, jnp.ones((), step.dtype))
    momenta = [p - step * x for x, p in zip(positions, momenta, strict=True)]
    divided = tuple(x.reshape(parts, -1, x.shape[1]) for x in positions)
    both = []
    for joint in (True, False) if len(divided) > 1 else (True,):  # a single layer's kernel is the mean of its parts'
        kernels, _ = _recursion(model, data, divided, (), jnp.asarray(joint))
        both.append(tuple(jnp.mean(kernel, axis=0) for kernel in kernels))
    return Shadow(tuple(positions), tuple(momenta)), Lazy(both[0], both[-1])


def _prior(
    data: Data, seed: Seed, particles: int, depth: int, sites: Sites
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    rows, rank = data.root.shape
    sizes = sites.fields(sites.points(rows), depth)
    shapes = [(particles, rank if layer == 0 else size) for layer, size in enumerate(sizes)]
    rng = np.random.default_rng(seed)
    dtype = np.dtype(str(data.root.dtype))
    return tuple([rng.standard_normal(shape).astype(dtype) for shape in shapes] for _ in "xp")  # type: ignore[return-value]


def shadow(data: Data, seed: Seed, particles: int, depth: int, sites: Sites = _ALONE) -> Shadow:
    """A shadow at the prior."""
    positions, momenta = _prior(data, seed, particles, depth, sites)
    return Shadow(tuple(map(jnp.asarray, positions)), tuple(map(jnp.asarray, momenta)))


def parts(particles: int, points: int) -> int:
    """Into how many parts the particles are divided: the more, the less noise the bias that they show has, but each is to have enough of them.

    `points` are the rows of the largest kernel.
    """
    return 4 if particles >= 4 * _ENOUGH * points else 2


def start(
    data: Data,
    seed: int,
    particles: int,
    depth: int,
    positions: Sequence[np.ndarray] | None = None,
    sites: Sites = _ALONE,
) -> Stack:
    """Three equal systems with momenta at temperature one; positions from the prior unless they are given."""
    drawn, momenta = _prior(data, seed, particles, depth, sites)
    places = drawn if positions is None else [np.asarray(x, drawn[0].dtype) for x in positions]

    count = parts(particles, max(sites.sizes(sites.points(len(data.root)), depth)))

    def thrice(array: np.ndarray) -> Array:
        return jnp.asarray(np.stack([array.reshape(count, -1, array.shape[1])] * 3))

    v = jnp.zeros((3, count, *data.y.shape), data.y.dtype)
    still = tuple(map(jnp.zeros_like, map(thrice, places)))
    return Stack(tuple(map(thrice, places)), tuple(map(thrice, momenta)), still, v)


def couple(stack: Stack) -> Stack:
    """The main system as the start of all three."""

    def thrice(array: Array) -> Array:
        return jnp.broadcast_to(array[MAIN][None], array.shape)

    return jax.tree.map(thrice, stack)


def cool(stack: Stack, seed: Seed) -> Stack:
    """The same positions with new momenta at temperature one."""
    rng = np.random.default_rng(seed)
    momenta = tuple(jnp.asarray(rng.standard_normal(p.shape), p.dtype) for p in stack.momenta)
    return stack._replace(momenta=momenta, v=jnp.zeros_like(stack.v))


def neurons(stack: Stack) -> tuple[np.ndarray, ...]:
    """White coordinates of the main system's particles, (particles, rank) a layer."""
    return tuple(np.asarray(x[MAIN]).reshape(-1, x.shape[-1]) for x in stack.positions)


@functools.partial(jax.jit, static_argnums=0)
def stiffness(model: Model, data: Data, stack: Stack) -> Array:
    """Largest eigenvalue of the Hessian of ½|ε|² + B·E at the main system's place, by power iteration on Hessian products."""
    joint, v = jnp.asarray(True), stack.v[MAIN]

    def forces(positions: Layers) -> Layers:
        return _pull(model, data, positions, v, joint).forces

    def product(vector: Layers) -> Layers:
        _, change = jax.jvp(forces, (positions,), (vector,))
        return tuple(-part for part in change)

    def norm(vector: Layers) -> Array:
        return jnp.sqrt(sum(jnp.sum(part * part) for part in vector))

    def going(carry: tuple[Layers, Array, Array, Array]) -> Array:
        _, size, before, count = carry
        return (jnp.abs(size - before) > 0.01 * size) & (count < _MOST_PRODUCTS)

    def iterate(carry: tuple[Layers, Array, Array, Array]) -> tuple[Layers, Array, Array, Array]:
        vector, before, _, count = carry
        image = product(vector)
        size = norm(image)
        return tuple(part / size for part in image), size, before, count + 1

    positions = tuple(x[MAIN] for x in stack.positions)
    # The recursion stretches the positions themselves, so they have a share in the stiff directions.
    unit = tuple(part / norm(positions) for part in positions)
    zero = jnp.zeros((), unit[0].dtype)
    return jax.lax.while_loop(going, iterate, (unit, zero + 1, zero, jnp.zeros((), int)))[1]


@functools.partial(jax.jit, static_argnums=0)
def kernels_of_parts(model: Model, data: Data, stack: Stack) -> Layers:
    """Φ¹ .. Φ^L of every part, (parts, P, P) or (parts, P·S, P·S) each, of the system whose parts do not see each other."""
    positions = tuple(x[PARTS] for x in stack.positions)
    return _recursion(model, data, positions, (), jnp.asarray(False))[0]


def _normal(key: Array, like: Layers) -> Layers:
    sizes = [part.size for part in like]
    # Normal numbers of 24 bits serve in either precision, and on a CPU they are most of a step's cost.
    normal = jax.random.normal(key, (sum(sizes),), jnp.float32).astype(like[0].dtype)
    return tuple(jnp.split(normal, np.cumsum(sizes)[:-1]))


@functools.partial(jax.jit, static_argnums=0)
def advance(
    model: Model,
    data: Data,
    stack: Stack,
    shadow: Shadow,
    coupled: Array,
    shadowed: Array,
    key: Array,
    step: Array,
    friction: Array,
    glide: Array,
    count: Array,
) -> tuple[Stack, Shadow, Mean, Lazy]:
    """`count` BAOAB steps of the main system, where `coupled` of all three (an even number), and where `shadowed` of the shadow.

    Returns means over the steps. The two half kicks between drifts use the same force and are made as one: a step costs one gradient.
    Two steps' noises make up that of the coarse system as the Ornstein-Uhlenbeck process does.
    """
    depth, sizes = len(stack.positions), model.sizes(data, len(stack.positions))
    early = 1 / jnp.sqrt(1 + jnp.exp(2 * friction * step))  # = e^{-γh} √(1 - e^{-2γh}) / √(1 - e^{-4γh})
    late = 1 / jnp.sqrt(1 + jnp.exp(-2 * friction * step))

    def one(index: Array, carry: Any) -> Any:
        stack, shadow, sums, lazy, before = carry
        z = _normal(jax.random.fold_in(key, index), shadow.positions)

        def evaluate(system: Array, carry: tuple[Stack, Mean]) -> tuple[Stack, Mean]:
            stack, sums = carry
            doubled = system == COARSE
            share = jnp.where(doubled, 2.0, 1.0).astype(step.dtype)
            mine, other = jnp.where(doubled, late, 1.0), jnp.where(doubled, early, 0.0)
            kicks = tuple(mine * a + other * b for a, b in zip(z, before, strict=True))
            positions, momenta = _drift(
                tuple(x[system] for x in stack.positions),
                tuple(p[system] for p in stack.momenta),
                kicks,
                share * step,
                friction,
                tuple(g[system] for g in stack.pulls),
                glide,
            )
            pull = _pull(model, data, tuple(positions), stack.v[system], system != PARTS)
            middle = [p + 0.5 * share * step * f for p, f in zip(momenta, pull.forces, strict=True)]
            temperature = sum(jnp.sum(p * p) for p in middle) / sum(p.size for p in middle)
            momenta = [p + 0.5 * share * step * f for p, f in zip(middle, pull.forces, strict=True)]
            here = Mean(pull.kernels, pull.duals, pull.tails, pull.energy, jnp.asarray(temperature))
            stack = Stack(
                tuple(a.at[system].set(x) for a, x in zip(stack.positions, positions, strict=True)),
                tuple(a.at[system].set(p) for a, p in zip(stack.momenta, momenta, strict=True)),
                tuple(a.at[system].set(f + x) for a, f, x in zip(stack.pulls, pull.forces, positions, strict=True)),
                stack.v.at[system].set(pull.v),
            )
            return stack, jax.tree.map(lambda total, part: total.at[system].add(share * part), sums, here)

        # The coarse system goes with every other step: the first of a pair leaves its noise for the second.
        evaluations = jnp.where(coupled, PARTS + 1 + index % 2, MAIN + 1)
        stack, sums = jax.lax.fori_loop(0, evaluations, evaluate, (stack, sums))

        def follow(shadow: Shadow, lazy: Lazy) -> tuple[Shadow, Lazy]:
            shadow, here = _follow(model, data, shadow, z, step, stack.v.shape[1])
            return shadow, jax.tree.map(jnp.add, lazy, here)

        shadow, lazy = jax.lax.cond(shadowed, follow, lambda *same: same, shadow, lazy)
        return stack, shadow, sums, lazy, z

    layers = tuple(jnp.zeros((size, size), data.root.dtype) for size in sizes)
    threes = tuple(jnp.zeros((3, size, size), data.root.dtype) for size in sizes)
    tails, zero = jnp.zeros((3, depth), data.root.dtype), jnp.zeros(3, data.root.dtype)
    empty = Mean(threes, threes[:-1], tails, zero, zero)
    nothing = tuple(jnp.zeros(x.size, x.dtype) for x in shadow.positions)
    stack, shadow, sums, lazy, _ = jax.lax.fori_loop(
        0, count, one, (stack, shadow, empty, Lazy(layers, layers), nothing)
    )
    return stack, shadow, *jax.tree.map(lambda value: value / count, (sums, lazy))
