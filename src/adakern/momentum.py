r"""Gradient flow by descent with momentum whose inertia grows with time.

$$\tau\ddot y+\dot y=v(y),\qquad\tau=\tfrac t{100},$$

is the flow $\dot y=v(y)$ up to a lag of one hundredth of the time passed. Steps of length $h=\sqrt{2\eta\tau}$ are stable where descent by $\eta$ is (below 2 over the fastest rate), and
tremble at kinks as little as its do, so that the number of gradients grows as the root of time. Stabilised steps of higher order (`chebyshev`) gain as much where a flow is smooth, and nothing at kinks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from adakern.chebyshev import Velocity

_INERTIA = 0.01  # over the time that has passed


class Rolling(NamedTuple):
    """Where the flow is, and how it moves."""

    state: Any
    drift: Any
    time: Array
    steps: Array


def start(state: Any) -> Rolling:
    """At rest, at time zero."""
    dtype = jax.tree.leaves(state)[0].dtype
    return Rolling(state, jax.tree.map(jnp.zeros_like, state), jnp.zeros((), dtype), jnp.zeros((), jnp.int32))


def advance(velocity: Velocity, rolling: Rolling, step: Array, end: Array, most: Array) -> Rolling:
    r"""On to a time, by at most so many steps; `step` is $\eta$."""
    last = rolling.steps + most

    def going(rolling: Rolling) -> Array:
        return (rolling.time < end) & (rolling.steps < last)

    def one(rolling: Rolling) -> Rolling:
        state, drift, time, steps = rolling
        inertia = _INERTIA * time
        length = jnp.minimum(jnp.maximum(step, jnp.sqrt(2 * step * inertia)), jnp.maximum(end - time, 1e-6 * end))
        share = length / (length + jnp.where(inertia > step, inertia, 0.0))
        drift = jax.tree.map(lambda d, v: d + share * (v - d), drift, velocity(state))
        return Rolling(jax.tree.map(lambda y, d: y + length * d, state, drift), drift, time + length, steps + 1)

    return jax.lax.while_loop(going, one, rolling)
