r"""Gradient flow itself, for as long as it decides where it ends.

Where a problem is not convex neurons have many places to rest, close to each other in value; which of them the flow ends in is decided while neurons sort themselves, and quasi-Newton steps sort them differently.
So a network of width $n$ is followed, in the coordinates of its inputs' span, with a readout of opposite pairs (zero output at the start, as at infinite width):

$$J=\gamma_0^2\mathcal L+\frac1{2n}\sum_\ell\lambda_\ell|W^\ell|^2,\qquad\dot W^\ell=-n\,\partial J/\partial W^\ell,\qquad h^{\ell+1}=W^\ell\varphi(h^\ell)/\sqrt n,\quad s=a^\top\varphi(h^L)/(n\gamma_0).$$
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from adakern import chebyshev, momentum
from adakern.limits.sites import Sites
from adakern.momentum import Rolling
from adakern.solvers import atoms as atomic
from adakern.solvers.atoms import Atoms
from adakern.solvers.rest_journal import Journal
from adakern.solvers.rest_model import Data, Model
from adakern.solvers.rest_settle import CLOSE
from adakern.solvers.rest_task import Meter, Problem

WIDEST = 512
_LENGTHS = (
    12.0,
    48.0,
)  # time to follow, over the slowest decay: neurons that are going to be one have met by then; at kinks they take longer
_SHARE = 0.3  # of the evaluations that are left, at most
_WORK = 2e13  # floating-point operations to spend on it at most
_STRETCH = (
    16,
    256,
)  # steps between two looks at the fastest rate, which grows with the features: in the beginning, and later
_STABLE = 0.2  # a step over what that rate allows: it grows on the way
_SHORTER, _SHORTEST = 0.1, 1e-6  # of that, each time a stretch goes uphill, and where the flow is left

_EARLY = 1000  # steps after which it shows

Weights = tuple[Array, ...]


def _cost(model: Model, data: Data, weights: Weights) -> Array:
    """J."""
    width = weights[0].shape[0]
    values = model.activation(jnp.matmul(weights[0], data.root.T, precision="highest"))
    for layer, matrix in enumerate(weights[1:-1]):
        seen = model.where.gather(layer, values).T
        values = model.activation(jnp.matmul(matrix, seen, precision="highest") / np.sqrt(width).astype(values.dtype))
    rows = model.where.pool.rows(values)
    s = jnp.matmul(rows.T, weights[-1], precision="highest")[data.member] / (width * data.richness)
    decay = sum(
        (rate * jnp.sum(w * w) for rate, w in zip(data.decays, weights, strict=True)), jnp.zeros((), values.dtype)
    )
    return data.richness**2 * jnp.sum(model.loss.value(data.y, s)) + decay / (2 * width)


def _velocity(model: Model, data: Data, weights: Weights) -> Weights:
    width = weights[0].shape[0]
    return tuple(-width * slope for slope in jax.grad(_cost, argnums=2)(model, data, weights))


@functools.partial(jax.jit, static_argnums=0)
def _fastest(model: Model, data: Data, weights: Weights) -> Array:
    return chebyshev.fastest(functools.partial(_velocity, model, data), weights)


@functools.partial(jax.jit, static_argnums=0)
def _advance(model: Model, data: Data, rolling: Rolling, step: Array, end: Array, most: Array) -> Rolling:
    return momentum.advance(functools.partial(_velocity, model, data), rolling, step, end, most)


def _drawn(rng: np.random.Generator, width: int, rank: int, outputs: int, where: Sites, depth: int) -> Any:
    """Standard normal, the last hidden layer and the readout in opposite pairs."""
    half = (width + 1) // 2
    sizes = [rank, *(width * where.places_of(layer) for layer in range(depth - 1))]
    drawn = [rng.standard_normal((width, size)) for size in sizes]
    drawn[-1][width - half :] = drawn[-1][:half]
    readouts = 1 if where.pool.mean else where.pool.sites
    readout = rng.standard_normal((width, readouts * outputs))
    readout[width - half :] = -readout[:half]
    return (*drawn, readout.reshape(width * readouts, outputs))


def _decay(task: Problem, weights: Weights) -> float:
    """What decay costs: a part of J, which only falls."""
    squares = [float(np.sum(np.square(w, dtype=np.float64))) / len(weights[0]) for w in map(np.asarray, weights)]
    return 0.5 * float(np.dot(task.limit.decays, squares))


def followed(
    task: Problem, seed: int, start: int, count: int, least: float, meter: Meter, journal: Journal | None
) -> tuple[Atoms, float]:
    """The hidden neurons of a network that has followed the flow, and how much of its time; one that is not going to come as far as `least` is left early."""
    depth = task.limit.network.depth
    # Single precision: accuracy comes later.
    white = task.white._replace(
        **{name: jnp.asarray(getattr(task.white, name), "float32") for name in ("root", "y", "richness", "decays")}
    )
    width = 2 * max(1, (min(count, WIDEST) if depth > 1 else count) // 2)
    span = left = _LENGTHS[task.model.kinked] / min(task.limit.decays)
    if journal is None or journal.network is None:
        rng = np.random.default_rng([seed, start])
        drawn = _drawn(rng, width, white.root.shape[1], task.y.shape[1], task.shape.where, depth)
        weights = tuple(jnp.asarray(w, white.root.dtype) for w in drawn)
    else:
        weights, left = tuple(map(jnp.asarray, journal.network[0])), journal.network[1]
    each = 6.0 * len(white.root) * sum(w.size for w in weights)
    begun, affordable = meter.used, int(min(_SHARE * meter.left, _WORK / each))
    rolling = momentum.start(weights)._replace(time=jnp.asarray(span - left, white.root.dtype))
    end, stable = jnp.asarray(span, white.root.dtype), _STABLE
    lost = float(jnp.sum(task.model.loss.value(white.y, jnp.zeros_like(white.y))))
    height = task.limit.richness**2 * lost + _decay(task, weights)  # J at the start, where outputs are zero
    while float(rolling.time) < span and meter.used < begun + affordable:
        spent = meter.used - begun
        # Time grows as the square of steps.
        if spent > _EARLY and float(rolling.time) * (affordable / spent) ** 2 < least * span:
            break
        step = stable / _fastest(task.model, white, rolling.state)
        before = int(rolling.steps)
        stretch = jnp.asarray(min(max(_STRETCH[0], before // 4), _STRETCH[1]), jnp.int32)
        ahead = _advance(task.model, white, rolling, step, end, stretch)
        taken = int(ahead.steps) - before + chebyshev.POWERS
        meter.used += taken
        if _decay(task, ahead.state) <= 2 * height:  # or steps were too long for a rate that rose between two looks
            rolling = ahead
        elif stable <= _SHORTEST:
            break
        else:
            stable *= _SHORTER
        if journal is not None:
            journal.flow(tuple(map(np.asarray, rolling.state)), span - float(rolling.time))
        meter.advance(f"flow to t = {float(rolling.time):.3g} of {span:.3g}", taken)
    hidden = tuple(np.asarray(w, np.float64) for w in rolling.state[:-1])
    shares = tuple(np.full(width, 1 / width) for _ in hidden)
    return atomic.merge(task.shape, Atoms(hidden, shares, 0.0), CLOSE[1]), float(rolling.time) / span
