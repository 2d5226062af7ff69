r"""The unit neurons that pull hardest: local maxima of $|F^\top\varphi(Au)|$ over $|u|=1$, for activations homogeneous of degree one.

Such an activation is a line and a bend, $\varphi(h)=eh+d\max(h,0)$. With $b=Fn/|n|$, $n=F^\top\varphi(Au)$, what is maximised is at least $b\cdot\varphi(Av)$ at every $v$ and equal to it at $u$.
That surrogate is linearised where it is convex ($db_\mu>0$: $\theta_\mu=1[h_\mu>0]$); the rest is concave, and its maximum is, by duality, the remainder of a least-squares problem in a box,

$$\max_{|v|\le1}\Big[c\cdot v-\sum_{db_\mu<0}|db_\mu|\max(A_\mu\cdot v,0)\Big]=\min_{\theta\in[0,1]}\Big|c-\sum_{db_\mu<0}|db_\mu|\,\theta_\mu A_\mu\Big|,\qquad v\propto\text{the remainder}.$$

Going there never lowers the value. At a fixed point $A^\top(b\circ\varphi'_\theta)=|n|\,u$ with $\varphi'_\theta=e+d\theta$, where $\theta_\mu=1$ for $h_\mu>0$, $0$ for $h_\mu<0$, and between them at a kink,
$h_\mu=0$: the Clarke subgradient, to which gradient flow averages there.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from threadpoolctl import threadpool_limits

from adakern import memory
from adakern.activations import Activation
from adakern.limits import rounded, unit_starts
from adakern.limits.boxed import box
from adakern.limits.settling import Task, reduce, settle, share_of, signal, turned, unit

_CLIMBS = 30  # steps of a start before it is settled to rounding
_RIDGES, _STRETCH = 200, 10  # the same with several outputs; after how many those that still rise go on alone
_STALLED, _PATIENT = 2, 3  # steps without a rise after which it is, and with several outputs
_RISE = 1e-6  # relative: what counts as one
_INNER = 10  # accelerated gradient steps on a box problem between steps of its start; it goes on where it stopped
_DEEPER = 40  # the same with several outputs
_LONGER = (2.0, 4.0, 8.0, 16.0, 32.0)  # times a step, tried where there are several outputs
_BATCH, _REST = 64, 16  # starts at once: enough for a matrix product to be a fast one; and where few are left
_ROUNDS = 6  # of `hardest`, at most
_PARENTS = 16  # families that it follows
_HOPS = 128  # starts around neurons at hand
_FAMILY = 0.98  # cosine of neurons of one family
_TOGETHER = 1e-7  # one minus the cosine between climbs that end at one maximum
_LARGE = 3e5  # numbers of a root from which on corners are rounded in every climb; a tenth of it with several outputs
_SETTLED = 32  # of the ends of rounded climbs, which are brought to rest
_HUGE = 1e6  # numbers of a root from which on neurons are settled in the end alone; a tenth of it with several outputs
_NEAR = 0.01  # angle at which climbs of neurons that are close to their maxima begin
_BEST = 4  # that are settled then
_GROWN = 1e-3  # relative: what a round of their families is to find for another
_FEW = 4  # times that each maximum was found on average


_Signal = tuple[Array, Array, Array]  # h, b, and the value
_End = tuple[np.ndarray, ...]  # u, the value, slopes, and how far from stationary


class Found(NamedTuple):
    r"""Where each start led.

    Attributes:
        directions: $u$, (S, r).
        values: $|F^\top\varphi(Au)|$, (S,).
        slopes: $\varphi'_\theta$ at every point, (S, P): that of the activation, and at kinks the one that makes $u$ stationary; (S, 0) where not all are at rest.
        error: $|A^\top(b\circ\varphi'_\theta)/|\cdot|-u|$, (S,): how far from stationary; infinite where that is not known.
    """

    directions: np.ndarray
    values: np.ndarray
    slopes: np.ndarray
    error: np.ndarray


def bends(activation: Activation) -> tuple[float, float]:
    r"""$(\varphi'(0^-),\varphi'(0^+))$ of an activation homogeneous of degree one."""
    if activation.degree != 1:
        raise ValueError(f"activation must be homogeneous of degree one, like ReLU, but it is {activation.name!r}")
    low, high = (float(value) for value in np.asarray(activation(jnp.asarray([-1.0, 1.0]))))
    return -low, high


def search(activation: Activation, root: Any, factor: Any, starts: Any, *, exact: bool = True) -> Found:
    r"""Climb from every start to a local maximum of $|F^\top\varphi(Au)|$ over the unit sphere; the best is a lower bound of the maximum.

    Args:
        activation: homogeneous of degree one. Linear: the exact maximum, for every start (its sign is that of the start).
        root: $A$, (P, r).
        factor: $F$, (P, k).
        starts: (S, r), of any length but zero.
        exact: settle every maximum and its slopes to rounding. Without it values are good to about 1e-6, at a fraction of the time.

    Called inside `precision.scope`. Points on one ray count as one, with one slope.
    """
    dtype = np.dtype(jnp.result_type(float))
    starts = unit(np.asarray(starts, np.float64))
    task, scale = _task(activation, root, factor, dtype)
    if scale == 0.0 or not len(task.rows) or not len(starts):
        on = starts @ np.asarray(root, np.float64).T > 0
        nothing = np.zeros(len(starts))
        slopes = task.line + task.bend * on
        return Found(*(np.asarray(part, dtype) for part in (starts, nothing, slopes, nothing)))
    if task.bend == 0.0:
        settled = _linear(task, starts)
    else:
        # Threads of the linear algebra library wait for each other longer than a small product takes.
        with threadpool_limits(1, user_api="blas"):
            dead = np.array([signal(task, u).value == 0.0 for u in starts])
            starts = np.where(dead[:, None], -starts, starts)  # what is off everywhere is on on the other side
            places, theta = _climb(task, starts, dtype)
            if exact:
                settled = _settled(task, places, theta)
            else:
                settled = [_rough(task, u, own) for u, own in zip(places, theta, strict=True)]
    return _found(task, scale, settled, dtype)


def funnelled(activation: Activation, root: Any, factor: Any, starts: Any, *, settled: int = _SETTLED) -> Found:
    """`search` for problems with many maxima: `climbed`, and the best ends, so many of them, are brought to rest."""
    rough = climbed(activation, root, factor, starts)
    if not np.isinf(rough.error).all() or not len(rough.values):
        return rough
    return joined(resting(activation, root, factor, first(rough, settled).directions), rough)


def climbed(activation: Activation, root: Any, factor: Any, starts: Any, *, near: bool = False) -> Found:
    """Ends of climbs while a rounded corner closes (`rounded`), good to about 1e-3: every other start begins with a wide corner, the others with a narrower one; starts that are `near` their maxima with one that is all but closed, and are good to about 1e-5. Where there is no corner, or nothing to climb, `search`."""
    dtype = np.dtype(jnp.result_type(float))
    starts = unit(np.asarray(starts, np.float64))
    task, scale = _task(activation, root, factor, dtype)
    if scale == 0.0 or not len(task.rows) or not len(starts) or task.bend == 0.0:
        return search(activation, root, factor, starts)
    if near:
        ends = unit(rounded.climb(task, starts, _NEAR, rounded.FINE))
    else:
        firsts = enumerate((rounded.WIDE, rounded.NARROW))
        ends = unit(np.concatenate([rounded.climb(task, starts[k::2], angle) for k, angle in firsts]))
    values = scale * _values(task, ends)
    return Found(
        *(np.asarray(part, dtype) for part in (ends, values, np.zeros((len(ends), 0)), np.full(len(ends), np.inf)))
    )


def resting(activation: Activation, root: Any, factor: Any, places: Any) -> Found:
    """Places, each brought to rest to rounding."""
    dtype = np.dtype(jnp.result_type(float))
    task, scale = _task(activation, root, factor, dtype)
    with threadpool_limits(1, user_api="blas"):
        rest = [
            settle(task, u, np.asarray(task.rows @ u > 0, np.float64)) for u in unit(np.asarray(places, np.float64))
        ]
    return _found(task, scale, rest, dtype)


def pulls(activation: Activation, root: Any, factor: Any, directions: Any) -> np.ndarray:
    r"""$|F^\top\varphi(Au)|$ of unit neurons, (S, r), a few at a time."""
    task, scale = _task(activation, root, factor, np.dtype(np.float64))
    return scale * _values(task, np.asarray(directions, np.float64))


def _values(task: Task, directions: np.ndarray) -> np.ndarray:
    size = memory.rows_per_batch(3 * 8 * len(task.rows), memory.DEFAULT_BUDGET, len(directions))
    found = [np.zeros(0)]
    for begin in range(0, len(directions), size):
        h = directions[begin : begin + size] @ task.rows.T
        found.append(np.linalg.norm((task.line * h + task.bend * np.maximum(h, 0.0)) @ task.factor, axis=1))
    return np.concatenate(found)


def sought(activation: Activation, root: Any, factor: Any, starts: Any) -> Found:
    """Maxima from these starts: by `search` and `funnelled`, and by the latter alone where climbs take long."""
    if large(root, factor):
        return funnelled(activation, root, factor, starts)
    found = search(activation, root, factor, starts)
    return found if few(found) else joined(found, funnelled(activation, root, factor, starts))


def large(root: Any, factor: Any) -> bool:
    """Whether climbs take long: many points, or windows of images with readouts of their own, whose pulls have ridges."""
    return bool(np.size(root) > (_LARGE if np.shape(factor)[1] == 1 else _LARGE / 10))


def _task(activation: Activation, root: Any, factor: Any, dtype: np.dtype[Any]) -> tuple[Task, float]:
    return reduce(np.asarray(root, np.float64), np.asarray(factor, np.float64), *bends(activation), dtype)


def _found(task: Task, scale: float, settled: Sequence[_End], dtype: np.dtype[Any]) -> Found:
    directions, values, slopes, error = (np.stack(part) for part in zip(*settled, strict=True))
    spread = np.where(task.member[None, :] >= 0, slopes[:, task.member], task.line)
    return Found(*(np.asarray(part, dtype) for part in (directions, scale * values, spread, error)))


def families(
    activation: Activation,
    root: Any,
    factor: Any,
    places: Any,
    rng: np.random.Generator,
    *,
    rounds: int,
    tries: int = 4,
    idle: int | None = None,
) -> Found:
    """Local maxima around places, each of which is settled; `tries` times a round a few points are turned on or off (`settling.turned`), and the best of what comes of a place goes on; until `idle` rounds in a row find nothing better.

    Maxima are many, and come in families: what random starts find of one is rarely its best. Places that are good already do not crowd out others.
    """
    dtype = np.dtype(jnp.result_type(float))
    places = unit(np.asarray(places, np.float64))
    task, scale = _task(activation, root, factor, dtype)
    if scale == 0.0 or not len(task.rows) or not len(places) or task.bend == 0.0:
        return search(activation, root, factor, places)
    with threadpool_limits(1, user_api="blas"):
        heads = [settle(task, u, np.asarray(task.rows @ u > 0, np.float64)) for u in places]
        every, waited = list(heads), 0
        for _ in range(rounds):
            best = max(float(head[1]) for head in heads)
            for place, head in enumerate(heads):
                young = [turned(task, head, rng) for _ in range(tries)]
                every.extend(young)
                heads[place] = max((head, *young), key=lambda end: float(end[1]))
            waited = 0 if max(float(head[1]) for head in heads) > (1 + _RISE) * best else waited + 1
            if waited == idle:
                break
    return _found(task, scale, every, dtype)


def _settled(task: Task, places: np.ndarray, theta: np.ndarray) -> list[_End]:
    """Each place brought to rest; of those that climbs have brought together already, one."""
    heads, ends, every = np.empty_like(places), list[_End](), list[_End]()
    for u, own in zip(places, theta, strict=True):
        near = heads[: len(ends)] @ u
        if np.max(near, initial=-1.0) < 1 - _TOGETHER:
            heads[len(ends)] = u
            ends.append(settle(task, u, own))
            every.append(ends[-1])
        else:
            every.append(ends[int(np.argmax(near))])
    return every


def _rough(task: Task, u: np.ndarray, theta: np.ndarray) -> tuple[np.ndarray, ...]:
    """Where a climb ended, as it is."""
    slopes = task.line + task.bend * theta
    now = signal(task, u)
    pull = unit((now.b * slopes) @ task.rows)
    return u, np.asarray(now.value), slopes, np.asarray(np.linalg.norm(pull - u) * (now.value > 0))


def hardest(activation: Activation, root: Any, factor: Any, starts: Any, key: Array, *, known: Any = None) -> Found:
    """`sought`, then the best of what was found and their `families`, until two rounds in a row find nothing better (one, where there are few maxima); the best few, the best first.

    `known` are unit neurons, (n, r), that count as found. They are next to the best of their families as a rule, and other families are looked for elsewhere.
    """
    rng = np.random.default_rng(np.asarray(jax.random.bits(key, (4,), "uint32")))
    own = np.zeros((0, root.shape[1])) if known is None else unit(np.asarray(known, np.float64))
    if np.size(root) > (_HUGE if np.shape(factor)[1] == 1 else _HUGE / 10):
        return _hardest_of_many(activation, root, factor, starts, own, rng)
    many = _HOPS if len(own) and np.shape(factor)[1] == 1 else 0  # several outputs: climbs are long
    begin = np.concatenate([np.asarray(starts, np.float64), unit_starts.hops(own, many, rng)])
    found, ends = sought(activation, root, factor, begin), bends(activation)
    if ends[0] == ends[1] and len(found.values):
        return _sorted(found)
    heads = apart(found, own, _PARENTS)
    there = families(activation, root, factor, unit_starts.some(own, root, rng), rng, rounds=1, tries=1)
    others = families(activation, root, factor, heads, rng, rounds=_ROUNDS, idle=1 if few(found) else 2)
    settled = Found(*(part[np.isfinite(found.error)] for part in found))
    return first(joined(settled, there, others), _PARENTS)


def _hardest_of_many(
    activation: Activation, root: Any, factor: Any, starts: Any, own: np.ndarray, rng: np.random.Generator
) -> Found:
    """The same where bringing a neuron to rest takes seconds: neurons at hand and those of their families climb together, and the best few of all are settled."""
    begin = np.concatenate([np.asarray(starts, np.float64), unit_starts.hops(own, _HOPS if len(own) else 0, rng)])
    found = climbed(activation, root, factor, begin)
    if len(own):
        found = joined(found, climbed(activation, root, factor, own, near=True))
    for _ in range(_ROUNDS):
        best = float(np.max(found.values, initial=0.0))
        young = unit_starts.hops(apart(found, own[:0], _PARENTS), _HOPS, rng)
        found = joined(found, climbed(activation, root, factor, young))
        if float(np.max(found.values)) <= (1 + _GROWN) * best:
            break
    return first(resting(activation, root, factor, first(found, _BEST).directions), _BEST)


def few(found: Found) -> bool:
    """Whether starts led to the same maxima again and again: then these are all, or nearly."""
    return _FEW * len(_distinct(_sorted(found))) <= len(found.values)


def joined(*parts: Found) -> Found:
    """All that was found; without slopes where some have none."""
    if len({part.slopes.shape[1] for part in parts}) > 1:
        parts = tuple(part._replace(slopes=part.slopes[:, :0]) for part in parts)
    return Found(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def apart(found: Found, known: np.ndarray, most: int) -> np.ndarray:
    """The best directions of so many families that none of the known directions is in, the best first."""
    kept = np.concatenate([np.asarray(known, np.float64), np.zeros((most, known.shape[1]))])
    count = len(known)
    for k in np.argsort(-found.values, kind="stable"):
        u = np.asarray(found.directions[k], np.float64)
        if count < len(kept) and found.values[k] > 0 and np.max(kept[:count] @ u, initial=-1.0) < _FAMILY:
            kept[count], count = u, count + 1
    return kept[len(known) : count]


def first(found: Found, most: int) -> Found:
    """The best few, each once, the best first."""
    found = _sorted(found)
    kept: list[int] = []
    for k, u in enumerate(np.asarray(found.directions, np.float64)):
        if len(kept) < most and np.max(found.directions[kept] @ u, initial=-1.0) < 1 - _RISE:
            kept.append(k)
    return Found(*(part[kept] for part in found))


def _sorted(found: Found) -> Found:
    order = np.argsort(-found.values, kind="stable")
    return Found(*(part[order] for part in found))


def _distinct(found: Found) -> np.ndarray:
    """The directions found, the best first, each once."""
    directions = np.asarray(found.directions, np.float64)
    kept, count = np.empty_like(directions), 0
    for u in directions:
        if float(np.max(kept[:count] @ u, initial=-1.0)) < 1 - _RISE:
            kept[count] = u
            count += 1
    return kept[:count]


def clarke(
    root: Any,
    weights: Any,
    targets: Any,
    fields: Any,
    near: Any,
    slopes0: Any,
    ends: tuple[float, float] = (0.0, 1.0),
) -> np.ndarray:
    r"""For each of n neurons the slopes that minimise $|t-A^\top(w\circ\varphi')|$, (n, P).

    Where `near` is True, slopes lie between `ends` (those left and right of the kink, see `bends`) and start at `slopes0`; elsewhere they are `ends[1]` where $h_\mu>0$, else `ends[0]`.

    Args:
        root: $A$, (P, r).
        weights: $w$, (n, P).
        targets: $t$, (n, r).
        fields: $h$, (n, P).
        near: which pairs sit on a kink, (n, P).
        slopes0: (n, P).
    """
    dtype = np.dtype(jnp.result_type(float))
    A, w, t, h, first = (np.asarray(part, np.float64) for part in (root, weights, targets, fields, slopes0))
    mask, (low, high) = np.asarray(near, bool), ends
    slopes = np.where(h > 0, high, low)
    slopes[mask] = low
    if low == high:
        return np.asarray(slopes, dtype)
    remainders = t - (w * slopes) @ A
    sizes = np.linalg.norm(A, axis=1)
    rows = A / np.where(sizes > 0, sizes, 1.0)[:, None]
    for i in np.flatnonzero(mask.any(axis=1)):
        some = np.flatnonzero(mask[i])
        strength = w[i, some] * (high - low) * sizes[some]
        top, start = np.abs(strength), np.clip((first[i, some] - low) / (high - low), 0.0, 1.0)
        beta = box(rows[some] * np.where(strength < 0, -1.0, 1.0)[:, None], remainders[i], start * top, top)
        slopes[i, some] = low + (high - low) * share_of(beta, top, start)
    return np.asarray(slopes, dtype)


def _linear(task: Task, starts: np.ndarray) -> list[tuple[np.ndarray, ...]]:
    left, values, _ = np.linalg.svd(task.line * task.rows.T @ task.factor, full_matrices=False)
    slopes = np.full(len(task.rows), task.line)
    return [(left[:, 0] * (1 if u @ left[:, 0] >= 0 else -1), values[0], slopes, np.zeros(())) for u in starts]


def _climb(task: Task, starts: np.ndarray, dtype: np.dtype[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Steps with box problems that are solved roughly, batches of starts at once: directions and θ."""
    vector = np.random.default_rng(0).standard_normal((task.rows.shape[1],))
    for _ in range(50):
        vector = unit(task.rows.T @ (task.rows @ vector))
    steepest = 1.1 * float(np.sum((task.rows @ vector) ** 2))
    arrays = [jnp.asarray(part, dtype) for part in (task.rows, task.factor, task.line, task.bend, steepest)]
    most = min(_BATCH, 2 ** (len(starts) - 1).bit_length())  # few shapes to compile
    size = memory.rows_per_batch(16 * 8 * sum(task.rows.shape), memory.DEFAULT_BUDGET, most)
    u, theta = starts.copy(), np.asarray(starts @ task.rows.T > 0, np.float64)
    single = task.factor.shape[1] == 1
    waiting = np.arange(len(starts))
    for _ in range(1 if single else _RIDGES // _STRETCH):
        if len(waiting) <= _REST < size:
            size = _REST
        rising = []
        for begin in range(0, len(waiting), size):
            part = waiting[begin : begin + size]
            filled = np.concatenate([part, part[:1].repeat(size - len(part))])
            given = (jnp.asarray(u[filled], dtype), jnp.asarray(theta[filled], dtype))
            ends = _ascend(*arrays, *given, jnp.asarray(_CLIMBS if single else _STRETCH))
            u[part], theta[part], rises = (np.asarray(end)[: len(part)] for end in ends)
            rising.append(part[rises])
        waiting = np.concatenate(rising)
        if not len(waiting):
            break
    return unit(u), theta


def _either(which: Array, yes: Array, no: Array) -> Array:
    return jnp.where(which[:, None] if yes.ndim == 2 else which, yes, no)


@jax.jit
def _ascend(
    rows: Array, factor: Array, line: Array, bend: Array, steepest: Array, starts: Array, theta: Array, most: Array
) -> tuple[Array, Array, Array]:
    product = functools.partial(jnp.matmul, precision="highest")
    tiny = jnp.finfo(rows.dtype).tiny

    def signal(u: Array) -> _Signal:
        h = product(u, rows.T)
        n = product(line * h + bend * jnp.maximum(h, 0.0), factor)
        value = jnp.sqrt(jnp.sum(n * n, axis=1, keepdims=True))
        return h, product(n / jnp.maximum(value, tiny), factor.T), value[:, 0]

    def dual(c: Array, beta: Array, top: Array) -> Array:
        """Accelerated projected gradient, restarted where it turns uphill."""

        def step(_: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            x, y, t = carry
            downhill = product(c - product(y, rows), rows.T)
            new = jnp.clip(y + downhill / steepest, 0.0, top)
            t = jnp.where(jnp.sum((y - new) * (new - x), axis=1) > 0, 1.0, t)
            after = 0.5 * (1 + jnp.sqrt(1 + 4 * t * t))
            return new, new + ((t - 1) / after)[:, None] * (new - x), after

        count = _INNER if factor.shape[1] == 1 else _DEEPER
        return jax.lax.fori_loop(0, count, step, (beta, beta, jnp.ones_like(c[:, 0])))[0]

    def normed(vectors: Array) -> Array:
        return vectors / jnp.maximum(jnp.sqrt(jnp.sum(vectors**2, axis=1, keepdims=True)), tiny)

    def farther(u: Array, there: Array, new: _Signal) -> tuple[Array, _Signal]:
        """The best of longer and longer steps: several outputs make ridges, along which the surrogate's maximum is close by."""
        place = there
        for length in _LONGER:
            beyond = normed(u + length * (there - u))
            trial = signal(beyond)
            best = trial[2] > new[2]
            place = _either(best, beyond, place)
            new = (_either(best, trial[0], new[0]), _either(best, trial[1], new[1]), _either(best, trial[2], new[2]))
        return place, new

    def climb(carry: Any) -> Any:
        u, theta, (h, b, value), stalled, count = carry
        strength = bend * b
        top = jnp.maximum(-strength, 0.0)
        c = product(line * b + jnp.where((strength > 0) & (h > 0), strength, 0.0), rows)
        beta = dual(c, theta * top, top)
        theta = jnp.where(top > 0, beta / jnp.where(top > 0, top, 1.0), theta)
        remainder = c - product(beta, rows)
        there = normed(remainder)
        new = signal(there)
        if factor.shape[1] > 1:
            there, new = farther(u, there, new)
        better = new[2] > value
        stalled = jnp.where(new[2] > (1 + _RISE) * value, 0, stalled + 1)
        kept = tuple(_either(better, now, old) for now, old in zip(new, (h, b, value), strict=True))
        return _either(better, there, u), theta, kept, stalled, count + 1

    carry = (starts, theta, signal(starts), jnp.zeros(len(starts), int), 0)
    patience = _STALLED if factor.shape[1] == 1 else _PATIENT
    end = jax.lax.while_loop(lambda carry: (carry[4] < most) & jnp.any(carry[3] < patience), climb, carry)
    return end[0], end[1], end[3] < patience
