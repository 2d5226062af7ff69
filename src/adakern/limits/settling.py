r"""One neuron brought to a local maximum of its pull, to rounding: the steps of `unit_search`, whose box problems are `boxed`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from adakern.limits.boxed import box

_SETTLES = 500
_FLAT = 1e-14  # relative: a rise that rounding makes
_STILL = 1e-13
_KINK = 1e-9  # |h| / |A_μ|, of a unit neuron, below which it sits on a kink: a box problem leaves rounding
_SAME = 0.6  # power of machine epsilon within which two unit rows are one ray
_ZERO = 16.0  # machine epsilons × the longest row: below, a row is a rounding error of zero
_DENSE = 32  # columns of F up to which its image is formed
_CHEAP = 12  # points that are turned on or off are among so many that cost the least
_TURNED = (2, 9)  # how many of them at once: at least, and less than


class Task(NamedTuple):
    """The problem on rays: rows of length one, none twice; their factor; line and bend; and the ray of every point, or -1."""

    rows: np.ndarray
    factor: np.ndarray
    line: float
    bend: float
    member: np.ndarray


class Signal(NamedTuple):
    h: np.ndarray
    b: np.ndarray
    value: float


def reduce(root: np.ndarray, factor: np.ndarray, low: float, high: float, dtype: np.dtype[Any]) -> tuple[Task, float]:
    """Points on one ray, which have one kink, become one: rows of length one, with the lengths in the factor, which is scaled to order one."""
    epsilon, sizes = float(np.finfo(dtype).eps), np.linalg.norm(root, axis=1)
    alive = np.flatnonzero(sizes > _ZERO * epsilon * np.max(sizes, initial=0.0))
    rows = root[alive] / sizes[alive, None]
    # Equal rows are neighbours in the order of a random projection.
    order = np.argsort(rows @ np.random.default_rng(0).standard_normal(root.shape[1]), kind="stable")
    apart = np.linalg.norm(np.diff(rows[order], axis=0), axis=1) > epsilon**_SAME
    group = np.concatenate([[0], np.cumsum(apart)]) if len(alive) else np.zeros(0, int)
    member = np.full(len(root), -1)
    member[alive[order]] = group
    count = int(group[-1]) + 1 if len(alive) else 0
    heads = np.zeros(count, int)
    heads[group] = order
    total = np.zeros((count, factor.shape[1]))
    np.add.at(total, member[alive], factor[alive] * sizes[alive, None])
    scale = float(np.max(np.abs(total), initial=0.0))
    return Task(rows[heads], total / (scale or 1.0), low, high - low, member), scale


def signal(task: Task, u: np.ndarray) -> Signal:
    h = task.rows @ u
    n = (task.line * h + task.bend * np.maximum(h, 0.0)) @ task.factor
    value = float(np.linalg.norm(n))
    return Signal(h, task.factor @ (n / value if value else np.eye(len(n))[0]), value)


def settle(task: Task, u: np.ndarray, theta: np.ndarray) -> tuple[np.ndarray, ...]:
    r"""Steps with box problems that are solved to rounding, until nothing moves: $u$, the value, the slopes on rays, and how far from stationary."""
    now, last = signal(task, u), np.inf
    for _ in range(_SETTLES):
        # A convex kink is no maximum: one of its sides goes up.
        stuck = np.any((np.abs(now.h) <= _KINK) & (task.bend * now.b > 0))
        tries = []
        for side in (_KINK, -_KINK) if stuck else (0.0,):
            there, share = _step(task, now, theta, side)
            tries.append((signal(task, there), there, share))
            if task.factor.shape[1] > 1:
                there = _top(task, share, there)
                tries.append((signal(task, there), there, share))
        highest = max(trial[0].value for trial in tries)
        new, there, share = next(trial for trial in reversed(tries) if trial[0].value >= (1 - _FLAT) * highest)
        moved, flat = float(np.linalg.norm(there - u)), new.value <= (1 + _FLAT) * now.value
        # A value is flat at its maximum; the direction may still be on its way.
        if flat and (moved >= 0.5 * last or new.value < (1 - _FLAT) * now.value):
            break
        u, theta, now, last = there, share, new, moved if flat else np.inf
        if moved <= _STILL:
            break
    theta = np.where(np.abs(now.h) <= _KINK, theta, now.h > 0)
    slopes = task.line + task.bend * theta
    pull = unit((now.b * slopes) @ task.rows)
    return u, np.asarray(now.value), slopes, np.asarray(np.linalg.norm(pull - u) * (now.value > 0))


def turned(task: Task, end: tuple[np.ndarray, ...], rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    r"""Another local maximum close to a settled one: a few points that pull the neuron up are turned on or off, among those that cost the least, and it settles again.

    With slopes $s$ of these points and $\beta$ of the others, $\max_u$ is $\max_{s\in\{0,1\}}\min_\beta|A^\top(b\circ s)-A^\top\beta|$, and turning one point changes the square of it by
    $\pm2Vb_\mu h_\mu+b_\mu^2|A_\mu^\perp|^2$ as long as the kinks are the same ones, to which $A^\perp$ is orthogonal.
    """
    u, _, slopes, _ = end
    now, theta = signal(task, u), (slopes - task.line) / task.bend
    strength, on = task.bend * now.b, now.h > 0
    kinks = (strength < 0) & (theta > 0) & (theta < 1)
    across = np.sum((task.rows @ np.linalg.qr(task.rows[kinks].T)[0]) ** 2, axis=1) if kinks.any() else 0.0
    gain = np.where(on, -2.0, 2.0) * now.value * strength * now.h + strength**2 * (1 - across)
    pulls = np.flatnonzero(strength > 0)
    cheap = pulls[np.argsort(-gain[pulls], kind="stable")[:_CHEAP]]
    if not len(cheap):
        return end
    some = rng.choice(cheap, size=min(int(rng.integers(*_TURNED)), len(cheap)), replace=False)
    on[some] = ~on[some]
    return settle(task, *_towards(task, now, on, theta))


def _step(task: Task, now: Signal, theta: np.ndarray, side: float) -> tuple[np.ndarray, np.ndarray]:
    return _towards(task, now, now.h > side, theta)


def _towards(task: Task, now: Signal, on: np.ndarray, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The best direction, and θ, where what pulls upwards is linear: on or off as given."""
    strength = task.bend * now.b
    c = (task.line * now.b + np.where(strength > 0, strength * on, 0.0)) @ task.rows
    top = np.maximum(-strength, 0.0)
    beta = box(task.rows, c, theta * top, top)
    return unit(c - beta @ task.rows), share_of(beta, top, np.asarray(on, np.float64))


def _top(task: Task, theta: np.ndarray, u: np.ndarray) -> np.ndarray:
    """The best direction that keeps the kinks and the signs of the others: a largest eigenvector, to which steps converge slowly by themselves."""
    kinks = (theta > 0) & (theta < 1)
    slopes = np.where(kinks, 0.0, task.line + task.bend * (theta > 0))
    if kinks.sum() >= task.rows.shape[1]:
        return u
    basis = np.linalg.qr(task.rows[kinks].T)[0]

    def clear(v: np.ndarray) -> np.ndarray:
        return v - basis @ (basis.T @ v)

    if task.factor.shape[1] <= _DENSE or task.rows.shape[1] <= _DENSE:
        image = clear(task.rows.T @ (slopes[:, None] * task.factor))
        best = np.linalg.svd(image, full_matrices=False)[0][:, 0]
    else:
        size, weighted = task.rows.shape[1], slopes[:, None] * task.factor
        form = LinearOperator(
            (size, size),
            matvec=lambda v: clear(task.rows.T @ (weighted @ (weighted.T @ (task.rows @ clear(v.ravel()))))),
            dtype=np.float64,
        )
        try:
            best = eigsh(form, k=1, v0=u, tol=1e-12)[1][:, 0]
        except ArpackNoConvergence:
            return u
    best = unit(clear(best))
    return best if best @ u >= 0 else -best


def unit(vectors: np.ndarray) -> np.ndarray:
    size = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(size > 0, size, 1.0)


def share_of(beta: np.ndarray, top: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.where(top > 0, beta / np.where(top > 0, top, 1.0), other)
