r"""Gradient flow by Runge–Kutta–Chebyshev steps of second order (Sommeijer, Shampine & Verwer 1998), with error control.

The Jacobian of a gradient flow has real eigenvalues. Its fastest rate $\rho$ grows with the number of points, and an explicit pair of low order may not step farther than $2.5/\rho$ for its
three evaluations, however slowly everything moves. Here $s$ evaluations reach $0.65\,s^2/\rho$: the number of them is chosen such that the step is as long as the error allows.
diffrax has no such method, and its controller sees errors of the state alone; here what an error means is the caller's to say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

_DAMPING = 2 / 13
_REACH = 1.54  # stages: 1 + root of (1 + this × step × fastest rate)
_MOST_STAGES = {"float64": 256, "float32": 64}  # rounding grows with their square
_CAUTION = 1.25  # on the fastest rate, which power iteration finds from below
POWERS = 12  # power iterations before the first step
_SAFE, _SLOWEST, _FASTEST = 0.8, 0.2, 4.0  # of a step's changes

Velocity = Callable[[Any], Any]
# Of a new state and its error estimate: the error's size, at most one if it is fine, and a bound of rates that power iteration does not see.
Inspect = Callable[[Any, Any], tuple[Array, Array]]


class Motion(NamedTuple):
    """Where the flow is, and everything that decides how it goes on."""

    state: Any
    velocity: Any
    left: Array  # time until the next stop
    step: Array
    direction: Any  # in which the flow is stiffest
    rate: Array  # there
    local: Array  # bound of the others
    steps: Array
    rejected: Array
    evaluations: Array
    stages: Array  # of the last step
    stuck: Array


def start(velocity: Velocity, inspect: Inspect, state: Any) -> Motion:
    """The flow at its beginning, with a careful first step."""
    now = velocity(state)
    dtype = jax.tree.leaves(state)[0].dtype
    direction, rate = _powers(velocity, state, now)
    local = inspect(state, jax.tree.map(jnp.zeros_like, state))[1]
    zero = jnp.zeros((), jnp.int32)
    step = 0.1 / jnp.maximum(_CAUTION * rate + local, jnp.finfo(dtype).tiny ** 0.5)
    return Motion(
        state,
        now,
        jnp.zeros((), dtype),
        step,
        direction,
        rate,
        local,
        zero,
        zero,
        zero + 1 + POWERS,
        zero,
        jnp.asarray(False),
    )


def fastest(velocity: Velocity, state: Any) -> Array:
    """The fastest rate of the flow here, from below."""
    return _powers(velocity, state, velocity(state))[1]


def _powers(velocity: Velocity, state: Any, now: Any) -> tuple[Any, Array]:
    """Where the flow is stiffest, and how fast it is there."""
    first = now, jnp.zeros((), jax.tree.leaves(state)[0].dtype)
    found: tuple[Any, Array] = jax.lax.fori_loop(
        0, POWERS, lambda _, found: _stiffest(velocity, state, now, found[0]), first
    )
    return found


def advance(velocity: Velocity, inspect: Inspect, motion: Motion, most: Array) -> Motion:
    """Go on until the next stop, at most so many steps."""

    def going(carry: tuple[Motion, Array]) -> Array:
        motion, count = carry
        return (motion.left > 0) & ~motion.stuck & (count < most)

    def go(carry: tuple[Motion, Array]) -> tuple[Motion, Array]:
        return _attempt(velocity, inspect, carry[0]), carry[1] + 1

    return jax.lax.while_loop(going, go, (motion, jnp.zeros((), jnp.int32)))[0]


def _attempt(velocity: Velocity, inspect: Inspect, motion: Motion) -> Motion:
    """One step, taken or not."""
    dtype = motion.left.dtype
    rate = _CAUTION * motion.rate + motion.local
    most = _MOST_STAGES[str(dtype)]
    wanted = jnp.minimum(
        motion.step, ((most - 1) ** 2 - 1) / (_REACH * jnp.maximum(rate, jnp.finfo(dtype).tiny ** 0.5))
    )
    # Neither a crumb before the stop nor a step beyond it.
    step = jnp.where(wanted >= motion.left, motion.left, jnp.minimum(wanted, motion.left / 2))
    stages = jnp.maximum(2, 1 + jnp.ceil(jnp.sqrt(1 + _REACH * step * rate)).astype(jnp.int32))
    new = _chebyshev(velocity, motion.state, motion.velocity, step, stages)
    after = velocity(new)
    error = jax.tree.map(
        lambda a, b, u, v: 0.8 * (a - b) + 0.4 * step * (u + v), motion.state, new, motion.velocity, after
    )
    size, local = inspect(new, error)
    finite = jnp.isfinite(size)
    fine = finite & (size <= 1)
    change = jnp.where(finite, jnp.clip(_SAFE * jnp.maximum(size, 1e-6) ** (-1 / 3), _SLOWEST, _FASTEST), _SLOWEST / 2)
    longer = jnp.where(fine & (step < wanted), jnp.maximum(step * change, wanted), step * change)
    tried = motion._replace(
        step=longer,
        steps=motion.steps + 1,
        evaluations=motion.evaluations + stages,
        stages=stages,
        rejected=motion.rejected + (~fine).astype(jnp.int32),
        stuck=longer <= 4 * jnp.finfo(dtype).eps * motion.left,
    )

    def accept(tried: Motion) -> Motion:
        direction, rate = _stiffest(velocity, new, after, motion.direction)
        return tried._replace(
            state=new,
            velocity=after,
            left=motion.left - step,
            direction=direction,
            rate=rate,
            local=local,
            evaluations=tried.evaluations + 1,
            stuck=jnp.asarray(False),
        )

    return jax.lax.cond(fine, accept, lambda tried: tried, tried)


def _stiffest(velocity: Velocity, state: Any, now: Any, direction: Any) -> tuple[Any, Array]:
    """One power iteration with the Jacobian, by a difference: a better direction, and the rate along the old one."""
    dtype = jax.tree.leaves(state)[0].dtype
    apart = jnp.sqrt(jnp.finfo(dtype).eps) * (length(state) + jnp.finfo(dtype).eps)
    scale = apart / jnp.maximum(length(direction), jnp.finfo(dtype).tiny ** 0.5)
    there = velocity(jax.tree.map(lambda y, v: y + scale * v, state, direction))
    moved = jax.tree.map(lambda a, b: (a - b) / apart, there, now)
    return moved, length(moved)


def of_layers(accuracy: float, small: float = 1e-3) -> Inspect:
    """Errors of a network's weights, relative to those of their layer, or to `small` of what standard normal ones would be."""

    def inspect(new: Any, error: Any) -> tuple[Array, Array]:
        sizes = [
            jnp.linalg.norm(e) / jnp.maximum(jnp.linalg.norm(w), small * w.size**0.5)
            for e, w in zip(error, new, strict=True)
        ]
        return jnp.max(jnp.stack(sizes)) / accuracy, jnp.zeros((), new[0].dtype)

    return inspect


def length(tree: Any) -> Array:
    """Euclidean, over all entries."""
    return jnp.sqrt(sum(jnp.sum(leaf * leaf) for leaf in jax.tree.leaves(tree)))


def _chebyshev(velocity: Velocity, state: Any, now: Any, step: Array, stages: Array) -> Any:
    r"""A step: $Y_j=(1-\mu_j-\nu_j)Y_0+\mu_jY_{j-1}+\nu_jY_{j-2}+\tilde\mu_j\tau F_{j-1}+\tilde\gamma_j\tau F_0$, with Chebyshev polynomials $T_j(w_0)$ and their derivatives along the way."""
    dtype = step.dtype
    s = stages.astype(dtype)
    w0 = 1 + _DAMPING / (s * s)
    # T_s'/T_s'' at w0 > 1, from hyperbolic functions of the excess as it was rounded.
    excess = w0 - 1
    square = excess * (2 + excess)
    grown = s * jnp.log1p(excess + jnp.sqrt(square))
    slope = jnp.sinh(grown) * s / jnp.sqrt(square)
    bend = (jnp.cosh(grown) * s * s - w0 * slope) / square
    w1 = slope / bend
    second = 1 / (4 * w0 * w0)  # b_2 = T_2''/T_2'^2, also b_0
    first = 1 / w0
    one = jax.tree.map(lambda y, f: y + first * w1 * step * f, state, now)
    table = (jnp.ones((), dtype), w0), (jnp.zeros((), dtype), jnp.ones((), dtype)), (jnp.zeros((), dtype),) * 2

    def stage(j: Any, carry: Any) -> Any:
        before, here, (b2, b1), a1, (T, D, B) = carry
        T = T[1], 2 * w0 * T[1] - T[0]
        D = D[1], 2 * w0 * D[1] - D[0] + 2 * T[0]
        B = B[1], 2 * w0 * B[1] - B[0] + 4 * D[0]
        b = B[1] / (D[1] * D[1])
        mu, nu, strength = 2 * b * w0 / b1, -b / b2, 2 * b * w1 / b1
        f = velocity(here)
        new = jax.tree.map(
            lambda y, f0, y1, y2, f1: (
                (1 - mu - nu) * y + mu * y1 + nu * y2 + strength * step * f1 - a1 * strength * step * f0
            ),
            state,
            now,
            here,
            before,
            f,
        )
        return here, new, (b1, b), 1 - b * T[1], (T, D, B)

    carry = state, one, (second, first), jnp.zeros((), dtype), table
    return jax.lax.fori_loop(2, stages + 1, stage, carry)[1]
