r"""Unit neurons uphill while a rounded corner closes.

The pull $|F^\top\varphi(Au)|$ has very many local maxima over the unit sphere, and climbs from random starts end at weak ones. With ReLU's corner rounded off over an angle, most of them are gone, and those that are left are
close to the strongest of the others: many starts are brought to them by a few matrix products each, and follow them while the corner closes. Steps are of Barzilai's and Borwein's length along the gradient on the sphere, each start with its own;
scipy's and optax's methods would take the starts for one large problem, with one length and one line search.
"""

from __future__ import annotations

import numpy as np

from adakern import memory
from adakern.limits.settling import Task

WIDE, NARROW = 0.25, 0.1  # angles to begin with: fewer maxima, the strongest of many; and more of them
_ANGLES = (0.25, 0.1, 0.05, 0.02, 0.01, 3e-3, 1e-3)
_STEPS = 20  # at each
_LOWER = 1e-4  # relative: a value that falls by less is not a fall
_LENGTHS = 0.02, 100.0  # of steps, at least and at most
_LONGER, _SHORTER = 3.0, 0.25  # where the pull bends upwards, and after a fall
_BATCH = 128  # starts at once
_CURVED = 1e-12


def climb(task: Task, starts: np.ndarray, first: float) -> np.ndarray:
    """Where unit vectors, (S, r), have come to when the corner, of angle `first` in the beginning, is all but closed. In single precision: ends are close to maxima, not at them."""
    rows, factor = np.asarray(task.rows, np.float32), np.asarray(task.factor, np.float32)
    size = memory.rows_per_batch(10 * 4 * sum(rows.shape), memory.DEFAULT_BUDGET, _BATCH)
    batches = [starts[begin : begin + size] for begin in range(0, len(starts), size)]
    ends = [_climb(rows, factor, task.line, task.bend, np.asarray(batch, np.float32), first) for batch in batches]
    return np.asarray(np.concatenate([starts[:0], *ends]), np.float64)


def _climb(rows: np.ndarray, factor: np.ndarray, line: float, bend: float, u: np.ndarray, first: float) -> np.ndarray:
    for angle in _ANGLES:
        if angle > first:
            continue
        value, uphill = _look(rows, factor, line, bend, u, angle / 2)
        length = np.ones(len(u), np.float32)
        for _ in range(_STEPS):
            there = u + length[:, None] * uphill
            there /= np.linalg.norm(there, axis=1, keepdims=True)
            new, slope = _look(rows, factor, line, bend, there, angle / 2)
            taken = new >= (1 - _LOWER) * value
            moved = there - u
            along, bent = np.sum(moved**2, axis=1), np.sum(moved * (uphill - slope), axis=1)
            curved = bent > _CURVED * along
            best = np.where(curved, along / np.where(curved, bent, 1.0), _LONGER * length)
            length = np.where(taken, np.clip(best, *_LENGTHS), _SHORTER * length).astype(np.float32)
            u, uphill = (np.where(taken[:, None], after, before) for after, before in ((there, u), (slope, uphill)))
            value = np.where(taken, new, value)
    return u


def _look(
    rows: np.ndarray, factor: np.ndarray, line: float, bend: float, u: np.ndarray, width: float
) -> tuple[np.ndarray, np.ndarray]:
    """The pull with a parabola for the corner, and its gradient along the sphere over it."""
    h = u @ rows.T
    slope = np.clip(h * np.float32(0.5 / width) + np.float32(0.5), 0.0, 1.0)
    # Outside of the corner the parabola's slope is 0 or 1, and so is that of the kink.
    phi = np.where((slope > 0) & (slope < 1), np.float32(width) * slope**2, np.maximum(h, 0.0))
    n = (np.float32(line) * h + np.float32(bend) * phi) @ factor
    value = np.linalg.norm(n, axis=1)
    some = np.maximum(value, np.finfo(np.float32).tiny)[:, None]
    slope = np.float32(line) + np.float32(bend) * slope
    g = (((n / some) @ factor.T) * slope) @ rows
    return value, (g - np.sum(g * u, axis=1, keepdims=True) * u) / some
