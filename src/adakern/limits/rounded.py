r"""Unit neurons uphill while a rounded corner closes.

The pull $|F^\top\varphi(Au)|$ has very many local maxima over the unit sphere, and climbs from random starts end at weak ones. With ReLU's corner rounded off over an angle, most of them are gone, and those that are left are
close to the strongest of the others: many starts are brought to them by a few matrix products each, and follow them while the corner closes. Steps are of Barzilai's and Borwein's length along the gradient on the sphere, each start with its own;
scipy's and optax's methods would take the starts for one large problem, with one length and one line search.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from adakern import memory
from adakern.limits.settling import Task

WIDE, NARROW = 0.25, 0.1  # angles to begin with: fewer maxima, the strongest of many; and more of them
CLOSED, FINE = 1e-3, 3e-4  # the last angle: as a rule, and of neurons that are close to their maxima
_ANGLES = (0.25, 0.1, 0.05, 0.02, 0.01, 3e-3, 1e-3, 3e-4)
_STEPS = 20  # at each
_LOWER = 1e-4  # relative: a value that falls by less is not a fall
_LENGTHS = 0.02, 100.0  # of steps, at least and at most
_LONGER, _SHORTER = 3.0, 0.25  # where the pull bends upwards, and after a fall
_BATCH, _WIDE_BATCH = 128, 1024  # starts at once: on a processor, and on an accelerator
_COMPILED = 1e5  # numbers of the rows from which on steps are compiled
_CURVED = 1e-12


class _Pull(NamedTuple):
    """What is climbed, in single precision."""

    rows: Any
    factor: Any
    line: Any
    bend: Any


class _Climb(NamedTuple):
    """Where starts are, the way up, the value, and the lengths of their steps."""

    u: Any
    uphill: Any
    value: Any
    length: Any


def climb(task: Task, starts: np.ndarray, first: float, last: float = CLOSED) -> np.ndarray:
    """Where unit vectors, (S, r), have come to when the corner, of angle `first` in the beginning, has closed to `last`. In single precision: ends are close to maxima, not at them.

    Large problems are compiled, and go to an accelerator if there is one.
    """
    single = np.float32
    pull = _Pull(np.asarray(task.rows, single), np.asarray(task.factor, single), single(task.line), single(task.bend))
    compiled = pull.rows.size > _COMPILED
    device = jax.local_devices()[0] if compiled else None
    most = _BATCH if device is None or device.platform == "cpu" else _WIDE_BATCH
    size = memory.rows_per_batch(10 * 4 * sum(pull.rows.shape), memory.DEFAULT_BUDGET * most // _BATCH, most)
    if device is not None:
        pull = jax.device_put(pull, device)
    ends = [starts[:0]]
    for begin in range(0, len(starts), size):
        batch = starts[begin : begin + size]
        # One shape, compiled once: the last batch is filled up.
        u = np.resize(batch, (size, batch.shape[1])) if compiled else batch
        u = np.asarray(u, single) if device is None else jax.device_put(np.asarray(u, single), device)
        for angle in (angle for angle in _ANGLES if last <= angle <= first):
            u = (_stage if compiled else functools.partial(_steps, np))(pull, u, single(angle / 2))
        ends.append(np.asarray(u)[: len(batch)])
    return np.asarray(np.concatenate(ends), np.float64)


def _steps(xp: Any, pull: _Pull, u: Any, width: Any) -> Any:
    """The steps of one angle. `xp` is numpy or jax.numpy."""
    value, uphill = _look(xp, pull, u, width)
    place = _Climb(u, uphill, value, xp.ones(len(u), np.float32))
    for _ in range(_STEPS):
        place = _step(xp, pull, width, place)
    return place.u


@jax.jit
def _stage(pull: _Pull, u: Any, width: Any) -> Any:
    """`_steps`, compiled."""
    value, uphill = _look(jnp, pull, u, width)
    place = _Climb(u, uphill, value, jnp.ones(len(u), np.float32))
    return jax.lax.fori_loop(0, _STEPS, lambda _, here: _step(jnp, pull, width, here), place).u


def _step(xp: Any, pull: _Pull, width: Any, here: _Climb) -> _Climb:
    u, uphill, value, length = here
    there = u + length[:, None] * uphill
    there = there / xp.linalg.norm(there, axis=1, keepdims=True)
    new, slope = _look(xp, pull, there, width)
    taken = new >= np.float32(1 - _LOWER) * value
    moved = there - u
    along, bent = xp.sum(moved**2, axis=1), xp.sum(moved * (uphill - slope), axis=1)
    curved = bent > np.float32(_CURVED) * along
    best = xp.where(curved, along / xp.where(curved, bent, np.float32(1.0)), np.float32(_LONGER) * length)
    least, most = map(np.float32, _LENGTHS)
    length = xp.where(taken, xp.clip(best, least, most), np.float32(_SHORTER) * length)
    u, uphill = (xp.where(taken[:, None], after, before) for after, before in ((there, u), (slope, uphill)))
    return _Climb(u, uphill, xp.where(taken, new, value), length)


def _look(xp: Any, pull: _Pull, u: Any, width: Any) -> tuple[Any, Any]:
    """The pull with a parabola for the corner, and its gradient along the sphere over it."""
    product = functools.partial(jnp.matmul, precision="highest") if xp is jnp else np.matmul
    zero, half, one = map(np.float32, (0.0, 0.5, 1.0))
    h = product(u, pull.rows.T)
    slope = xp.clip(h * (half / width) + half, zero, one)
    # Outside of the corner the parabola's slope is 0 or 1, and so is that of the kink.
    phi = xp.where((slope > zero) & (slope < one), width * slope**2, xp.maximum(h, zero))
    n = product(pull.line * h + pull.bend * phi, pull.factor)
    value = xp.linalg.norm(n, axis=1)
    some = xp.maximum(value, np.finfo(np.float32).tiny)[:, None]
    g = product(product(n / some, pull.factor.T) * (pull.line + pull.bend * slope), pull.rows)
    return value, (g - xp.sum(g * u, axis=1, keepdims=True) * u) / some
