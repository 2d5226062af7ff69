r"""Few neurons of one hidden layer, homogeneous activation, by Newton's method on all of their weights at once.

Balanced weights leave $v_k=|a_k|w_k/\gamma_0$ and unit readouts $o_k$,

$$p=\sum_\mu\ell(y_\mu,s_\mu)+\mu\sum_k|v_k|,\qquad s_\mu=\sum_ko_k\,\varphi(A_\mu\cdot v_k),\qquad\mu=\frac{\sqrt{\lambda_0\lambda_1}}{\gamma_0},$$

which is convex in $v$ as long as no field changes its sign. $\varphi(h)=eh+d\max(h,0)$ has its corner rounded off over an angle that falls from step to step. Newton's matrix is
$J^\top\ell''J$, of the rank of the outputs, and one block for each neuron: the curvature $\frac{\mu}{|v|}(1-\hat v\hat v^\top)$ of its length, and $|c_\mu|\varphi''A_\mu A_\mu^\top$ of the
points in its corner that hold it there ($c_\mu=\Delta_\mu\cdot o_k$ with $dc_\mu<0$; others repel it, and their negative curvature is left out). Blocks are a multiple of one and a few points,
so that their inverses, seen through $J$, need only $\Phi^0$: a step costs $O(P^2\sum_k|\text{corner}_k|+(PC)^3)$.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, cholesky, get_lapack_funcs, solve_triangular
from scipy.linalg.blas import dsyrk
from threadpoolctl import ThreadpoolController

from adakern.solvers.atoms import corner

_BLAS = ThreadpoolController()
_STIFF = 0.1  # curvature of a point, over that of the neuron's length, below which it is left out of Newton's matrix
_NEAR = 1e-6  # gain of a step, over the value, below which nearly all points count
_RIDGE = 1e-12  # of the Gram matrix of points in a corner, relative to its diagonal
_ALONG = 1e-9  # curvature along a neuron, over that across it, which has none of its own
_HALVINGS = 8
_DAMPING, _HARD = 1e-3, 1e6  # over the curvature of lengths: where it begins, and where it is given up
_FLOOR = 0.05  # of lengths, over their mean and the angle
_FOLLOW, _FALL = 0.1, 4.0  # an angle is done with when a step gains less than this of it; how fast angles fall
_LIGHT = 0.03  # of the mean length: lighter neurons may be let go
_ALIKE = 0.99  # cosine of readouts of neurons that may be one


@dataclass(frozen=True)
class Convex:
    """A problem over laws of unit neurons; points are distinct ones."""

    root: np.ndarray  # A, (P, r)
    gram: np.ndarray  # Φ⁰
    reach: np.ndarray  # |A_μ|
    ends: tuple[float, float]  # slopes left and right of the corner
    price: float  # μ
    zero: np.ndarray  # outputs of nothing, (P, C)
    value: Callable[[np.ndarray], float]  # Σℓ at outputs s, (P, C)
    error: Callable[[np.ndarray], np.ndarray]  # Δ, (P, C), summed over equal points
    curvature: Callable[[np.ndarray], np.ndarray]  # ℓ'', (P, C, C), likewise


class Law(NamedTuple):
    """Neurons: v, (K, r), and unit readouts, (K, C)."""

    weights: np.ndarray
    readouts: np.ndarray


class Place(NamedTuple):
    """What a law makes at corners of given widths."""

    value: float
    sizes: np.ndarray  # |v|, (K,)
    features: np.ndarray  # (K, P)
    slopes: np.ndarray  # (K, P)
    bend: np.ndarray  # φ'', (K, P)
    growth: np.ndarray  # what a longer neuron's wider corner adds, (K, P)
    outputs: np.ndarray  # (P, C)


class Rest(NamedTuple):
    """Where Newton's method ended."""

    law: Law
    slopes: np.ndarray  # φ', (K, P)
    value: float
    decrement: float  # what the last step was about to gain, over the value
    steps: int


def place(task: Convex, law: Law, angle: float = 0.0, floor: float = 0.0, tailed: bool = True) -> Place:
    r"""What a law makes, with lengths $\sqrt{|v|^2+\text{floor}^2}$ and corners whose half width is half of the angle times that length times $|A_\mu|$."""
    low, high = task.ends
    fields = law.weights @ task.root.T
    sizes = np.sqrt(np.sum(law.weights**2, axis=1) + floor**2)
    reach = angle / 2 * task.reach
    widths = np.outer(sizes, reach)
    values, slopes, bend, growth = _hyperbola(fields, widths / 2) if tailed else _parabola(fields, widths)
    features = low * fields + (high - low) * values
    outputs = features.T @ law.readouts
    value = task.value(outputs) + task.price * float(np.sum(sizes - floor))
    jump = high - low
    return Place(value, sizes, features, low + jump * slopes, jump * bend, jump * growth * reach[None, :], outputs)


def _hyperbola(fields: np.ndarray, widths: np.ndarray) -> tuple[np.ndarray, ...]:
    r"""$\frac12(h+\sqrt{h^2+w^2})$ for $\max(h,0)$, its two derivatives, and that in $2w$. Its tails show Newton's method corners before it is in them."""
    radius = np.maximum(np.hypot(fields, widths), np.finfo(np.float64).tiny)
    ratio = widths / radius
    return (fields + radius) / 2, (1 + fields / radius) / 2, ratio**2 / (2 * radius), ratio / 4


def _parabola(fields: np.ndarray, widths: np.ndarray) -> tuple[np.ndarray, ...]:
    """The corner of `atoms`, likewise."""
    values, slopes, growth = corner(fields, widths)
    inside = np.abs(fields) < widths
    return values, slopes, np.where(inside, 1 / (2 * np.where(inside, widths, 1.0)), 0.0), growth


def _tangents(readouts: np.ndarray) -> np.ndarray:
    """Orthonormal bases of what is orthogonal to each unit readout, (K, C, C - 1)."""
    count, outputs = readouts.shape
    sign = np.where(readouts[:, 0] < 0, -1.0, 1.0)
    mirror = readouts.copy()
    mirror[:, 0] += sign  # Householder: o to -sign e₀
    square = np.sum(mirror**2, axis=1)
    eye = np.broadcast_to(np.eye(outputs), (count, outputs, outputs))
    whole = eye - 2 * mirror[:, :, None] * mirror[:, None, :] / square[:, None, None]
    return whole[:, :, 1:]


class _Block(NamedTuple):
    """A neuron's own curvature, inverted."""

    points: np.ndarray  # in the corner
    lower: np.ndarray  # of their Gram matrix, softened
    scale: float  # of what is not in the corner
    cross: np.ndarray  # X N, (r, C - 1)
    schur: np.ndarray  # inverse of that of the readout, (C - 1, C - 1)


def _clear(task: Convex, block: _Block, vectors: np.ndarray) -> np.ndarray:
    """X v for columns v, (r, m)."""
    if len(block.points):
        own = task.root[block.points]
        inner = solve_triangular(block.lower, own @ vectors, lower=True, check_finite=False)
        vectors = vectors - own.T @ solve_triangular(block.lower, inner, lower=True, trans=1, check_finite=False)
    return vectors / block.scale


def _cholesky(matrix: np.ndarray) -> np.ndarray:
    ridge = _RIDGE
    while True:
        try:
            lower: np.ndarray = cholesky(
                matrix + ridge * np.diag(np.diagonal(matrix)), lower=True, overwrite_a=True, check_finite=False
            )
            return lower
        except LinAlgError:  # points that depend on each other
            ridge *= 100


def direction(
    task: Convex, law: Law, at: Place, damping: float, stiff: float = 0.0
) -> tuple[np.ndarray, np.ndarray, float]:
    """Newton's step: of weights, of readouts, and what it is to gain at first order."""
    count, outputs = law.readouts.shape
    points = len(task.root)
    delta = task.error(at.outputs)
    pulls = law.readouts @ delta.T  # c, (K, P)
    units = law.weights / at.sizes[:, None]
    downhill = (pulls * at.slopes) @ task.root + (np.sum(pulls * at.growth, axis=1) - task.price)[:, None] * units
    tangents = _tangents(law.readouts)
    signals = at.features @ delta  # (K, C)
    turning = np.einsum("kc,kcd->kd", signals, tangents)
    own = task.price / at.sizes * (1 + damping)
    bends = np.maximum(-pulls * at.bend, 0.0)
    inside = bends * task.reach[None, :] ** 2 > stiff * own[:, None]
    half = _half(task.curvature(at.outputs))  # (P, C, C)
    matrix = _gauss(task, law, at, own)
    blocks, low, seen = [], [], []
    rows = np.zeros((points * outputs, count))  # J B⁻¹ U
    shares = np.zeros(count)  # Uᵀ B⁻¹ U
    inner, plain = np.zeros(count), np.zeros((count, points))
    radial = np.sqrt(task.price / at.sizes)
    first = np.zeros((points, outputs))  # J B⁻¹ (−g)
    along = np.zeros(count)  # Uᵀ B⁻¹ (−g)
    for k in range(count):
        some = np.flatnonzero(inside[k])
        soft = task.gram[np.ix_(some, some)] + np.diag(own[k] / bends[k, some])
        lower = _cholesky(soft) if len(some) else soft
        block = _Block(some, lower, own[k], np.zeros((task.root.shape[1], 0)), np.zeros((0, 0)))
        if len(some):
            across = solve_triangular(lower, task.gram[some], lower=True, check_finite=False)
            low.append(across * (at.slopes[k] / np.sqrt(own[k]))[None, :])
            seen.append(k)
        if outputs > 1:
            block = _with_readout(
                task, block, at.slopes[k], units[k], delta, tangents[k], float(signals[k] @ law.readouts[k])
            )
        blocks.append(block)
        sides = _inverse(
            task,
            block,
            np.stack([radial[k] * units[k], downhill[k]], axis=1),
            np.stack([np.zeros(outputs - 1), turning[k]], axis=1),
        )
        image = _image(task, law, at, units, tangents, k, *sides)  # (P, C, 2)
        clear = _clear(task, block, units[k][:, None])[:, 0]
        inner[k] = float(units[k] @ clear)
        plain[k] = at.slopes[k] * (task.root @ clear)
        rows[:, k] = image[:, :, 0].ravel()
        first += image[:, :, 1]
        shares[k] = radial[k] * float(units[k] @ sides[0][:, 0])
        along[k] = radial[k] * float(units[k] @ sides[0][:, 1])
    matrix = _less_corners(matrix, law, low, seen)
    wide = _spread(at.growth, law)
    half_way = _spread(plain + 0.5 * inner[:, None] * at.growth, law)
    mixed = wide.T @ half_way
    matrix += mixed + mixed.T
    if outputs > 1:
        for k, block in enumerate(blocks):
            turned = _image(task, law, at, units, tangents, k, block.cross, np.eye(outputs - 1)).reshape(
                points * outputs, -1
            )
            matrix += turned @ block.schur @ turned.T
    multipliers, stretch = _outputs(matrix, rows, np.maximum(1 / (1 - _ALONG) - shares, _ALONG), half, first, along)
    back = multipliers @ law.readouts.T  # (P, K)
    force_w = downhill - (back.T * at.slopes) @ task.root
    force_w += (stretch * radial - np.sum(back.T * at.growth, axis=1))[:, None] * units
    force_o = turning - np.einsum("kc,kcd->kd", at.features @ multipliers, tangents)
    move = np.zeros_like(law.weights)
    turn = np.zeros_like(law.readouts)
    for k, block in enumerate(blocks):
        w, o = _inverse(task, block, force_w[k][:, None], force_o[k][:, None])
        move[k] = w[:, 0]
        turn[k] = tangents[k] @ o[:, 0]
    gain = float(np.sum(downhill * move)) + float(np.sum(signals * turn))
    return move, turn, gain


def _half(curvature: np.ndarray) -> np.ndarray:
    """Symmetric roots of ℓ'', (P, C, C)."""
    if curvature.shape[1] == 1:
        return np.sqrt(np.maximum(curvature, 0.0))
    values, vectors = np.linalg.eigh(curvature)
    result: np.ndarray = np.einsum("pij,pj,pkj->pik", vectors, np.sqrt(np.maximum(values, 0.0)), vectors)
    return result


def _spread(rows: np.ndarray, law: Law) -> np.ndarray:
    """Rows of points, times each neuron's readout: (K, PC)."""
    return (rows[:, :, None] * law.readouts[:, None, :]).reshape(len(rows), -1)


def _gauss(task: Convex, law: Law, at: Place, own: np.ndarray) -> np.ndarray:
    """Σ_k J_k J_kᵀ of the weights over `own`: Φ⁰ ∘ Σ φ'φ'ᵀ ⊗ ooᵀ, (PC, PC)."""
    outputs, points = law.readouts.shape[1], len(task.root)
    if outputs == 1:
        scaled = at.slopes / np.sqrt(own)[:, None]
        return task.gram * (scaled.T @ scaled)
    rows = (at.slopes[:, :, None] * law.readouts[:, None, :]).reshape(len(own), -1) / np.sqrt(own)[:, None]
    whole = (rows.T @ rows).reshape(points, outputs, points, outputs) * task.gram[:, None, :, None]
    result: np.ndarray = whole.reshape(points * outputs, points * outputs)
    return result


def _less_corners(matrix: np.ndarray, law: Law, low: list[np.ndarray], seen: list[int]) -> np.ndarray:
    if not low:
        return matrix
    outputs = law.readouts.shape[1]
    if outputs > 1:
        low = [
            (part[:, :, None] * law.readouts[k][None, None, :]).reshape(len(part), -1)
            for part, k in zip(low, seen, strict=True)
        ]
    stacked = np.concatenate(low)
    lower = dsyrk(-1.0, stacked.T, beta=1.0, c=np.asfortranarray(matrix), lower=1, overwrite_c=True)
    return np.tril(lower) + np.tril(lower, -1).T


def _with_readout(
    task: Convex,
    block: _Block,
    slopes: np.ndarray,
    unit: np.ndarray,
    delta: np.ndarray,
    tangent: np.ndarray,
    pull: float,
) -> _Block:
    """The readout's direction, which curves by the pull, and its coupling to the weights; stiffened where that is no minimum."""
    forces = task.root.T @ (slopes[:, None] * (delta @ tangent))
    forces -= np.outer(unit, unit @ forces)  # nothing at rest, and a neuron has no curvature of its own along itself
    cross = _clear(task, block, forces)
    values, vectors = np.linalg.eigh(pull * np.eye(tangent.shape[1]) - forces.T @ cross)
    safe = np.maximum(np.abs(values), 1e-6 * task.price + 1e-3 * abs(pull))
    return block._replace(cross=cross, schur=(vectors / safe) @ vectors.T)


def _inverse(task: Convex, block: _Block, w: np.ndarray, o: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """B⁻¹ of columns of weights and of readouts."""
    clear = _clear(task, block, w)
    if block.cross.shape[1] == 0:
        return clear, o
    turned = block.schur @ (block.cross.T @ w + o)
    return clear + block.cross @ turned, turned


def _image(
    task: Convex,
    law: Law,
    at: Place,
    units: np.ndarray,
    tangents: np.ndarray,
    k: int,
    w: np.ndarray,
    o: np.ndarray,
) -> np.ndarray:
    """J of columns, (P, C, m)."""
    fields = at.slopes[k][:, None] * (task.root @ w) + np.outer(at.growth[k], units[k] @ w)
    image: np.ndarray = fields[:, None, :] * law.readouts[k][None, :, None]
    if o.shape[0]:
        image = image + at.features[k][:, None, None] * (tangents[k] @ o)[None, :, :]
    return image


def _outputs(
    matrix: np.ndarray, rows: np.ndarray, slack: np.ndarray, half: np.ndarray, first: np.ndarray, along: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """λ = ℓ''Js and ρ = Uᵀs of the step s, from the saddle system of both."""
    points, outputs = first.shape
    size, count = points * outputs, len(slack)
    whole = np.zeros((size + count, size + count))
    if outputs == 1:
        root = half[:, 0, 0]
        whole[:size, :size] = root[:, None] * matrix * root[None, :]
        whole[size:, :size] = -(root[:, None] * rows).T
        right = root * first[:, 0]
    else:
        left = np.einsum("pij,pjx->pix", half, matrix.reshape(points, outputs, size)).reshape(size, size)
        whole[:size, :size] = np.einsum("pij,pjx->pix", half, left.T.reshape(points, outputs, size)).reshape(size, size)
        scaled = np.einsum("pij,pjk->pik", half, rows.reshape(points, outputs, count)).reshape(size, count)
        whole[size:, :size] = -scaled.T
        right = np.einsum("pij,pj->pi", half, first).ravel()
    whole[np.arange(size), np.arange(size)] += 1.0
    whole[np.arange(size, size + count), np.arange(size, size + count)] = -slack
    solve = get_lapack_funcs("sysv", (whole,))
    result = solve(whole, np.concatenate([right, -along]), lower=1, overwrite_a=True)[2]
    multipliers = np.einsum("pij,pj->pi", half, result[:size].reshape(points, outputs))
    return multipliers, result[size:]


def _moved(law: Law, move: np.ndarray, turn: np.ndarray, fraction: float) -> Law:
    readouts = law.readouts + fraction * turn
    return Law(law.weights + fraction * move, readouts / np.linalg.norm(readouts, axis=1, keepdims=True))


def descend(
    task: Convex,
    law: Law,
    *,
    angles: tuple[float, float],
    goal: float,
    steps: int,
    tailed: bool = True,
    report: Callable[[float], bool] | None = None,
) -> Rest:
    """Newton steps while the corner's angle falls from the first to the last of `angles`, until one is to gain less than `goal` of the value.

    `report` is told what each step was to gain, over the value, and says whether to go on. Lengths have a floor that falls with the angle where corners are `tailed`: neurons pass through
    zero, and others grow from next to nothing.
    """
    angle, last = angles
    damping, decrement, used, floor = _DAMPING, np.inf, 0, 0.0
    with _BLAS.limit(limits=1, user_api="blas"):
        for used in range(1, steps + 1):  # noqa: B007
            sizes = np.linalg.norm(law.weights, axis=1)
            floor = _FLOOR * angle * float(sizes.mean()) if tailed else 0.0
            at = place(task, law, angle, floor, tailed)
            stiff = _STIFF if abs(decrement) > _NEAR else _STIFF * _NEAR
            move, turn, gain = direction(task, law, at, damping, stiff)
            decrement = gain / at.value
            fraction, law = _search(task, law, at, move, turn, gain, (angle, floor, tailed))
            if report is not None and not report(decrement):
                break
            if fraction >= 0.5:  # close to the end damping goes
                damping = max(damping / 10, min(_DAMPING, decrement))
            elif fraction < 0.25:
                damping = min(max(damping, 1e-6) * 10, _HARD)
            settled = 0 <= decrement <= goal
            if (settled and angle <= last) or (fraction == 0.0 and damping >= _HARD):
                break
            if settled or (fraction >= 0.5 and decrement <= _FOLLOW * angle):
                angle = max(angle / _FALL, last)
        at = place(task, law, angle, floor, tailed)
    return Rest(law, at.slopes, at.value, decrement, used)


def _search(
    task: Convex,
    law: Law,
    at: Place,
    move: np.ndarray,
    turn: np.ndarray,
    gain: float,
    corners: tuple[float, float, bool],
) -> tuple[float, Law]:
    """The largest of 1, ½, ¼, … of a step that goes downhill, and where it leads; 0 and where it was, if none does."""
    flat = 8 * np.finfo(np.float64).eps * abs(at.value)
    fraction = 1.0
    for _ in range(_HALVINGS if gain > 0 else 0):
        there = _moved(law, move, turn, fraction)
        if place(task, there, *corners).value <= at.value - 1e-4 * fraction * gain + flat:
            return fraction, there
        fraction /= 2
    return 0.0, law


def thinned(task: Convex, law: Law, closeness: float, margin: float) -> Law:
    """Neurons closer than that become one, and light ones whose pull is by the margin too weak to live go. Not at rest any more: the outputs feel both."""
    sizes = np.linalg.norm(law.weights, axis=1)
    units = law.weights / np.maximum(sizes, np.finfo(np.float64).tiny)[:, None]
    at = place(task, Law(units, law.readouts))
    delta = task.error(place(task, law).outputs)
    dying = (np.linalg.norm(at.features @ delta, axis=1) < (1 - margin) * task.price) & (sizes < _LIGHT * sizes.mean())
    groups: list[list[int]] = []
    for k in np.argsort(-sizes):
        if dying[k] or sizes[k] == 0:
            continue
        for group in groups:
            first = group[0]
            if units[first] @ units[k] > 1 - 0.5 * closeness**2 and law.readouts[first] @ law.readouts[k] > _ALIKE:
                group.append(int(k))
                break
        else:
            groups.append([int(k)])
    weights = [law.weights[group].sum(axis=0) for group in groups]
    return Law(np.stack(weights), law.readouts[[group[0] for group in groups]]) if groups else law


def joined(task: Convex, law: Law | None, directions: np.ndarray, length: float) -> Law:
    """With new neurons of that length, read out along their own pull."""
    delta = task.error(task.zero if law is None else place(task, law).outputs)
    signals = place(task, Law(directions, np.zeros((len(directions), delta.shape[1])))).features @ delta
    norms = np.linalg.norm(signals, axis=1)
    some = norms > 0
    new = Law(length * directions[some], signals[some] / norms[some][:, None])
    if law is None:
        return new
    return Law(*(np.concatenate(both) for both in zip(law, new, strict=True)))
