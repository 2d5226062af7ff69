r"""Least squares in a box, $\min_\beta|t-\beta^\top A|$ over $0\le\beta_\mu\le$ top, with rows $A_\mu$ of length one: what one step of `settling` asks.

Not `scipy.optimize.lsq_linear`: it takes no start, and steps come by the ten thousand, each close to the one before. Newton's method serves where rows are
independent of each other. Rows that are many in few dimensions are not, and there the remainder is found instead of $\beta$ (`corner`).
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

_NEWTONS = 200
_HALVINGS = 12
_RIDGE = 1e-13  # added to the diagonal, of ones, of a Gram matrix of rows, which may depend on each other; more where it must
_FEW = 32  # dimensions up to which more free rows than those are a matter for `corner`
_ALONG = 1e-10  # cosine of a row with a step below which it does not change on the way
_DEPENDENT = 1e-6  # of a row, outside the span of those before it, below which rows are no kinks to begin with
_NOTHING, _IDLE = (
    1e-9,
    25,
)  # relative: a remainder that is zero; and turns there more than dimensions that say so of the answer
_CORNERS = 20  # steps from corner to corner, for each dimension and ten more


def box(rows: np.ndarray, target: np.ndarray, beta: np.ndarray, top: np.ndarray) -> np.ndarray:
    r"""$\min|t-\beta^\top A|$ over $0\le\beta_\mu\le$ top; rows have length one. Newton's method on what is free, projected onto the box (Bertsekas 1982); more free rows than dimensions go to a `corner`."""
    beta = np.clip(beta, 0.0, top)
    remainder = target - beta @ rows
    tolerance = 8 * np.finfo(np.float64).eps * (float(np.linalg.norm(target)) + float(np.linalg.norm(beta)))
    few = rows.shape[1] <= _FEW
    for _ in range(_NEWTONS):
        uphill = -(rows @ remainder)
        wrong = np.abs(beta - np.clip(beta - uphill, 0.0, top))
        if np.max(wrong, initial=0.0) <= tolerance:
            break
        # What is about to leave the box counts as outside: it would cut every step short.
        edge = np.minimum(0.1 * float(np.max(wrong)), 0.1 * top)
        ending = ((beta <= edge) & (uphill >= 0)) | ((beta >= top - edge) & (uphill <= 0))
        free = np.flatnonzero((top > 0) & ~ending)
        moving = np.flatnonzero((top > 0) & (wrong > 0) | ~ending)
        if few and len(free) > rows.shape[1]:
            few, found = False, corner(rows, target, remainder, top, np.flatnonzero((beta > 0) & (beta < top)))
            if found is not None:
                return found
        step = -uphill
        if len(free):
            step[free] = _newton(rows[free], -uphill[free])
        before, own = float(remainder @ remainder), rows[moving]
        for halving in range(_HALVINGS):
            change = np.clip(beta[moving] + 0.5**halving * step[moving], 0.0, top[moving]) - beta[moving]
            after = remainder - change @ own
            if float(after @ after) <= before + 2e-4 * float(uphill[moving] @ change):
                beta, remainder = beta.copy(), after
                beta[moving] += change
                break
        else:
            beta, remainder = _sweep(rows, remainder, beta, top, np.argsort(-wrong)[: np.count_nonzero(wrong)])
    return np.clip(beta, 0.0, top)


def corner(
    rows: np.ndarray, target: np.ndarray, start: np.ndarray, top: np.ndarray, kinks: np.ndarray
) -> np.ndarray | None:
    r"""The same from the remainder $w=t-\beta^\top A$, the minimum of $\frac12|w-t|^2+\sum_\mu$ top$_\mu(A_\mu\cdot w)_+$: in few dimensions, and few rows have their kink there.

    Rows with $A_\mu\cdot w>0$ have $\beta_\mu$ at the top, those below zero have none, and the kinks, independent rows, have what balances the rest. From where $w$ is, it goes to the best
    place with the same kinks and signs, or to the kink on the way where the sum starts to rise; at the best place a kink whose $\beta$ is outside its box is left. `kinks` are those of the
    start, as far as they are independent. None where nothing remains, or rows that share a kink make it go round in circles.
    """
    dimensions, w = rows.shape[1], start.copy()
    scale = float(np.linalg.norm(target)) + float(np.linalg.norm(top @ np.abs(rows)))
    tiny = 64 * np.finfo(np.float64).eps * scale
    if len(kinks):
        basis, triangle = np.linalg.qr(rows[kinks].T)
        apart = len(kinks) < dimensions and np.min(np.abs(np.diagonal(triangle))) > _DEPENDENT
        kinks = kinks if apart else kinks[:0]
        w = w - basis @ (basis.T @ w) if apart else w
    on = rows @ w > 0
    on[kinks] = False
    idle = 0  # turns at zero, where every row has its kink
    for _ in range(_CORNERS * (dimensions + 10)):
        idle = idle + 1 if float(np.linalg.norm(w)) <= _NOTHING * scale else 0
        if idle > dimensions + _IDLE:
            return None
        bare = target - np.where(on, top, 0.0) @ rows
        basis, triangle = np.linalg.qr(rows[kinks].T)
        inside = basis.T @ bare
        best = bare - basis @ inside
        step = best - w
        step -= basis @ (basis.T @ step)  # rounding, along which rows that depend on the kinks would move
        if float(np.linalg.norm(step)) <= tiny:
            beta = np.linalg.solve(triangle, inside) if len(kinks) else inside
            beyond = np.maximum(-beta, beta - top[kinks])
            worst = int(np.argmax(beyond)) if len(kinks) else -1
            if worst < 0 or beyond[worst] <= tiny:
                full = np.where(on, top, 0.0)
                full[kinks] = np.clip(beta, 0.0, top[kinks])
                return full
            on[kinks[worst]] = beta[worst] > 0
            kinks = np.delete(kinks, worst)
            continue
        height, rise = rows @ w, rows @ step
        rise[np.abs(rise) <= _ALONG * np.linalg.norm(step)] = 0.0
        # Where a row changes its sign on the way, at once where it is at its kink and on the wrong side.
        crossing = np.flatnonzero(np.where(on, rise < 0, rise > 0) & (top > 0))
        places = np.maximum(np.where(on[crossing], height[crossing], -height[crossing]), 0.0) / np.abs(rise[crossing])
        order = crossing[np.argsort(places, kind="stable")]
        places = np.sort(places, kind="stable")
        length = float(step @ step)
        # Along the way the slope is length × (place - 1), and grows by top |rise| at every crossing.
        slopes = length * (places - 1) + np.cumsum(top[order] * np.abs(rise[order]))
        ends = np.flatnonzero(slopes >= 0)
        reached = int(ends[0]) if len(ends) and places[ends[0]] < 1 else None
        if reached is None or slopes[reached] - top[order[reached]] * abs(rise[order[reached]]) >= 0:
            # The sum is flat between two crossings, or all the way.
            passed = order[:reached] if reached is not None else order[places < 1]
            on[passed] = ~on[passed]
            past = float(np.sum(top[passed] * np.abs(rise[passed]))) / length
            w = w + (1 - past) * step
            continue
        on[order[:reached]] = ~on[order[:reached]]
        kink = order[reached]
        w = w + places[reached] * step
        on[kink] = False
        kinks = np.append(kinks, kink)
    return None


def _newton(rows: np.ndarray, downhill: np.ndarray) -> np.ndarray:
    gram, ridge = rows @ rows.T, _RIDGE
    while True:
        try:
            result: np.ndarray = cho_solve(cho_factor(gram + ridge * np.eye(len(gram)), lower=True), downhill)
            return result
        except LinAlgError:  # rows that depend on each other, and rounding
            ridge *= 100


def _sweep(
    rows: np.ndarray, remainder: np.ndarray, beta: np.ndarray, top: np.ndarray, order: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """One coordinate after the other to where it is best: always downhill, also where rows depend on each other and a step of all together is not."""
    beta, remainder = beta.copy(), remainder.copy()
    for i in order:
        new = min(max(beta[i] + float(rows[i] @ remainder), 0.0), top[i])
        remainder -= (new - beta[i]) * rows[i]
        beta[i] = new
    return beta, remainder
