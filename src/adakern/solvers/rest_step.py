r"""A Newton step of few neurons of one hidden layer, homogeneous activation: of all of their weights at once.

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
from scipy.linalg import LinAlgError, cho_solve, cholesky, get_lapack_funcs, solve_triangular
from scipy.linalg.blas import dsyrk

from adakern.limits.sites import POINTS, Pool
from adakern.solvers.atoms import corner

_RIDGE = 1e-12  # of the Gram matrix of points in a corner, relative to its diagonal
_SMALL = 400  # weights and readouts up to which Newton's matrix is written out
_ALONG = 1e-9  # curvature along a neuron, over that across it, which has none of its own


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
    pool: Pool = POINTS.pool  # of a CNN, whose rows of A are those of positions

    def features(self, directions: np.ndarray) -> np.ndarray:
        """φ with sharp corners, (K, P·S)."""
        fields, (low, high) = directions @ self.root.T, self.ends
        return low * fields + (high - low) * np.maximum(fields, 0.0)

    def signals(self, features: np.ndarray, delta: np.ndarray) -> np.ndarray:
        """What the readouts of neurons with features (K, P·S) get from errors (P, C): (K, readouts)."""
        each = self.zero.shape[1] * (1 if self.pool.mean else self.pool.sites)
        return (self.pool.rows(features) @ delta).reshape(len(features), each)


class Law(NamedTuple):
    """Neurons: v, (K, r), and unit readouts, (K, C); (K, S·C) where a CNN has one for each position."""

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


def place(task: Convex, law: Law, angle: float = 0.0, floor: float = 0.0, tailed: bool = True) -> Place:
    r"""What a law makes, with lengths $\sqrt{|v|^2+\text{floor}^2}$ and corners whose half width is half of the angle times that length times $|A_\mu|$."""
    low, high = task.ends
    fields = law.weights @ task.root.T
    sizes = np.sqrt(np.sum(law.weights**2, axis=1) + floor**2)
    reach = angle / 2 * task.reach
    widths = np.outer(sizes, reach)
    values, slopes, bend, growth = _hyperbola(fields, widths / 2) if tailed else _parabola(fields, widths)
    features = low * fields + (high - low) * values
    outputs = task.pool.rows(features).T @ law.readouts.reshape(-1, task.zero.shape[1])
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
    """With a ridge of a part of the diagonal, as small as will do."""
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
    """Newton's step: of weights, of readouts, and what it is to gain at first order.

    Points whose curvature is less than `stiff` of that of a neuron's length may be left out.
    """
    count, outputs = law.readouts.shape
    points = len(task.root)
    if task.pool.sites > 1:
        return _pooled(task, law, at, damping)
    if count * (task.root.shape[1] + outputs - 1) <= _SMALL:
        return _dense(task, law, at, damping)
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


def _dense(task: Convex, law: Law, at: Place, damping: float) -> tuple[np.ndarray, np.ndarray, float]:
    """The same with the whole matrix, every point in it: quicker where weights are few."""
    (count, outputs), rank = law.readouts.shape, task.root.shape[1]
    delta = task.error(at.outputs)
    pulls = law.readouts @ delta.T
    units = law.weights / at.sizes[:, None]
    tangents = _tangents(law.readouts)
    signals = at.features @ delta
    downhill = (pulls * at.slopes) @ task.root + (np.sum(pulls * at.growth, axis=1) - task.price)[:, None] * units
    turning = np.einsum("kc,kcd->kd", signals, tangents)
    own = task.price / at.sizes
    blocks = np.einsum("kp,pi,pj->kij", np.maximum(-pulls * at.bend, 0.0), task.root, task.root, optimize=True)
    blocks += (own * (1 + damping))[:, None, None] * np.eye(rank)
    along = (1 - _ALONG) * own[:, None, None] * units[:, :, None] * units[:, None, :]
    size = rank + outputs - 1
    own_blocks = np.zeros((count, size, size))
    own_blocks[:, :rank, :rank] = blocks - along
    if outputs > 1:
        forces = np.einsum("kp,pi,pc,kcd->kid", at.slopes, task.root, delta, tangents, optimize=True)
        forces -= units[:, :, None] * np.einsum("ki,kid->kd", units, forces)[:, None, :]
        seen = np.einsum("kid,kie->kde", forces, np.linalg.solve(blocks, forces))
        pull = np.sum(signals * law.readouts, axis=1)
        safe = _safe(pull[:, None, None] * np.eye(outputs - 1) - seen, pull, task.price)
        own_blocks[:, :rank, rank:], own_blocks[:, rank:, :rank] = -forces, -forces.transpose(0, 2, 1)
        own_blocks[:, rank:, rank:] = safe + seen
    fields = at.slopes[:, :, None] * task.root[None, :, :] + at.growth[:, :, None] * units[:, None, :]
    jacobian = np.concatenate(
        [
            fields[:, :, None, :] * law.readouts[:, None, :, None],
            at.features[:, :, None, None] * tangents[:, None, :, :],
        ],
        axis=3,
    )  # (K, P, C, size)
    seen_by = np.einsum("pab,kpbi->kpai", _half(task.curvature(at.outputs)), jacobian).transpose(1, 2, 0, 3)
    rows = seen_by.reshape(-1, count * size)
    matrix = rows.T @ rows
    whole = matrix.reshape(count, size, count, size)
    whole[np.arange(count), :, np.arange(count), :] += own_blocks
    right = np.concatenate([downhill, turning], axis=1)
    step = cho_solve((_cholesky(matrix), True), right.ravel()).reshape(count, size)
    turn = np.einsum("kcd,kd->kc", tangents, step[:, rank:])
    return step[:, :rank], turn, float(np.sum(right * step))


def _pooled(task: Convex, law: Law, at: Place, damping: float) -> tuple[np.ndarray, np.ndarray, float]:
    r"""The same for a CNN, whose outputs add up over positions: neurons' blocks are written out, $r$ being that of a patch, and what joins them is of the size of the outputs."""
    (count, readouts), rank = law.readouts.shape, task.root.shape[1]
    points, outputs = task.zero.shape
    delta = task.error(at.outputs)
    factor = task.pool.factor(delta)  # (P·S, readouts)
    pulls = law.readouts @ factor.T  # (K, P·S)
    units = law.weights / at.sizes[:, None]
    downhill = (pulls * at.slopes) @ task.root + (np.sum(pulls * at.growth, axis=1) - task.price)[:, None] * units
    tangents, signals = _tangents(law.readouts), task.signals(at.features, delta)
    turning = np.einsum("kc,kcd->kd", signals, tangents)
    own = task.price / at.sizes * (1 + damping)
    bends = np.maximum(-pulls * at.bend, 0.0)
    radial = np.sqrt(task.price / at.sizes)
    size = rank + readouts - 1
    matrix = np.zeros((points * outputs, points * outputs))
    rows, first = np.zeros((points * outputs, count)), np.zeros(points * outputs)
    shares, along = np.zeros(count), np.zeros(count)
    inverses, jacobians = [], []
    for k in range(count):
        some = np.flatnonzero(bends[k])
        corner_rows = np.sqrt(bends[k, some])[:, None] * task.root[some]
        block = corner_rows.T @ corner_rows
        block[np.diag_indices(rank)] += own[k]
        whole = np.zeros((size, size))
        whole[:rank, :rank] = block
        if readouts > 1:
            forces = task.root.T @ (at.slopes[k][:, None] * (factor @ tangents[k]))
            forces -= np.outer(units[k], units[k] @ forces)
            seen = forces.T @ cho_solve((_cholesky(block.copy()), True), forces)
            pull = float(signals[k] @ law.readouts[k])
            safe = _safe((pull * np.eye(readouts - 1) - seen)[None], np.array([pull]), task.price)[0]
            whole[:rank, rank:], whole[rank:, :rank] = -forces, -forces.T
            whole[rank:, rank:] = safe + seen
        jacobian = _image_of(task, law, at, units, tangents, k)
        lower = _cholesky(whole)
        right = np.zeros((size, 2))
        right[:rank, 0], right[:rank, 1], right[rank:, 1] = radial[k] * units[k], downhill[k], turning[k]
        solved = cho_solve((lower, True), right)
        half = solve_triangular(lower, jacobian.T, lower=True, check_finite=False)
        matrix += half.T @ half
        rows[:, k], shares[k] = jacobian @ solved[:, 0], float(right[:, 0] @ solved[:, 0])
        first += jacobian @ solved[:, 1]
        along[k] = float(right[:, 0] @ solved[:, 1])
        inverses.append(lower)
        jacobians.append(jacobian)
    curvature = _half(task.curvature(at.outputs))
    slack = np.maximum(1 / (1 - _ALONG) - shares, _ALONG)
    multipliers, stretch = _outputs(matrix, rows, slack, curvature, first.reshape(points, outputs), along)
    move, turn = np.zeros_like(law.weights), np.zeros_like(law.readouts)
    for k in range(count):
        force = np.concatenate([downhill[k] + stretch[k] * radial[k] * units[k], turning[k]])
        step = cho_solve((inverses[k], True), force - jacobians[k].T @ multipliers.ravel())
        move[k], turn[k] = step[:rank], tangents[k] @ step[rank:]
    gain = float(np.sum(downhill * move)) + float(np.sum(signals * turn))
    return move, turn, gain


def _image_of(task: Convex, law: Law, at: Place, units: np.ndarray, tangents: np.ndarray, k: int) -> np.ndarray:
    """J of one neuron, (PC, r + readouts - 1)."""
    sites, (points, outputs) = task.pool.sites, task.zero.shape
    if task.pool.mean:
        weights = np.broadcast_to(law.readouts[k] / sites, (sites, outputs))
    else:
        weights = law.readouts[k].reshape(sites, outputs)
    split = task.root.reshape(points, sites, -1)
    slopes, growth = at.slopes[k].reshape(points, sites), at.growth[k].reshape(points, sites)
    moved = np.matmul((slopes[:, :, None] * weights[None]).transpose(0, 2, 1), split)
    moved += (growth @ weights)[:, :, None] * units[k][None, None, :]
    features = task.pool.rows(at.features[k][None]).T  # (P, S), or (P, 1) of a mean
    turned = (features @ tangents[k].reshape(features.shape[1], -1)).reshape(points, outputs, -1)
    whole: np.ndarray = np.concatenate([moved, turned], axis=2).reshape(points * outputs, -1)
    return whole


def _safe(matrices: np.ndarray, pull: np.ndarray, price: float) -> np.ndarray:
    """Curvatures of readouts, stiffened where they are no minimum."""
    values, vectors = np.linalg.eigh(matrices)
    safe = np.maximum(np.abs(values), 1e-6 * price + 1e-3 * np.abs(pull)[:, None])
    result: np.ndarray = (vectors * safe[:, None, :]) @ vectors.transpose(0, 2, 1)
    return result


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
    schur = _safe((pull * np.eye(tangent.shape[1]) - forces.T @ cross)[None], np.array([pull]), task.price)[0]
    return block._replace(cross=cross, schur=np.linalg.inv(schur))


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
