r"""Two layers, homogeneous activation: a convex problem over laws of unit neurons, by fully corrective conditional gradients.

$$F(m)=\tfrac{\lambda_0}2\sum_im_i+E\Big(\sum_im_i\varphi(Au_i)\varphi(Au_i)^\top\Big),\qquad\frac{\partial F}{\partial m_i}=\tfrac{\lambda_0}2\left(1-p(u_i)^2\right),$$

with $p(u)=\frac{\gamma_0}{\sqrt{\lambda_0\lambda_1}}|\Delta^\top\varphi(Au)|$, the pull on a unit neuron in units of what it costs. A neuron of a CNN has a row of features for each of its positions. Masses $m\ge0$ of the neurons at hand are made optimal; then local maxima of $p$ near
them, and others that a search finds, join them. At the optimum $p\le1$ everywhere and $p=1$ where there is mass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from threadpoolctl import ThreadpoolController

from adakern.limits.unit_search import Found
from adakern.solvers.atoms import Energy

_BLAS = ThreadpoolController()
_SAME = 1e-7  # distance between unit neurons that are one
_ROUND = 0.1  # the same, over the root of the gap, with several outputs
_IDLE = 1e-3  # a neuron without mass whose pull is this far below 1 is let go
_LIGHT = 1e-9  # share of the mass below which a neuron is left out in the end
_NEWTONS, _HALVINGS, _EXACT, _SOFTEST, _STIFFEST = 60, 6, 1e-11, 1e-10, 1e-1
_MASTER = 600  # evaluations of the masses' descent
_SHARE = 0.01  # of the mass, that newcomers begin with
_ELSEWHERE = 8  # rounds between two searches far from the neurons at hand

Find = Callable[
    [np.ndarray, np.ndarray, bool], Found
]  # V (P, C), starts, whether to look elsewhere too -> local maxima, values in units of the price
Measure = Callable[[np.ndarray, np.ndarray, np.ndarray, Found], float]  # features, masses, V, maxima -> relative gap


Curvature = Callable[[np.ndarray], np.ndarray]  # Φ -> R with dV = -R dΦ V
Values = Callable[[np.ndarray], tuple[float, np.ndarray, np.ndarray]]  # masses -> F, its slopes, V


class Law(NamedTuple):
    """Unit neurons with masses, their slopes at all points, the objective, the gap, and how many evaluations and rounds that took."""

    directions: np.ndarray
    masses: np.ndarray
    slopes: np.ndarray
    objective: float
    gap: float
    excess: float
    evaluations: int
    rounds: int


def master(
    features: np.ndarray, masses: np.ndarray, decay: float, energy: Energy, curvature: Curvature | None
) -> tuple[np.ndarray, float, np.ndarray, int]:
    """The best masses of neurons with these features, (m, P) or (m·S, P); the objective, V there, and evaluations."""
    count = 0

    def function(m: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        nonlocal count
        count += 1
        rows = weighted(m, features)
        value, pull = energy(rows.T @ rows)
        slopes = 0.5 * decay - 0.5 * np.sum((features @ pull).reshape(len(m), -1) ** 2, axis=1)
        return value + 0.5 * decay * float(m.sum()), slopes, pull

    with _BLAS.limit(limits=1, user_api="blas"):
        if curvature is None:
            best = _quasi_newton(function, masses)
        else:
            best = _newton(function, curvature, features, masses, decay)
        value, _, pull = function(best)
    return best, value, pull, count


def weighted(masses: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Rows of features times the roots of their neurons' masses."""
    result: np.ndarray = np.repeat(np.sqrt(masses), len(features) // len(masses))[:, None] * features
    return result


def _curved(own: np.ndarray, inverse: np.ndarray, pull: np.ndarray) -> np.ndarray:
    """Second derivatives of E in the masses of neurons with features `own`, (m, S, P)."""
    if own.shape[1] == 1:
        rows = own[:, 0]
        result: np.ndarray = (rows @ inverse @ rows.T) * ((rows @ pull) @ (rows @ pull).T)
        return result
    moved = np.einsum("map,mac->mcp", own, own @ pull)  # what a mass adds to Φ V
    turned = moved @ inverse
    return np.einsum("mcp,ncp->mn", turned, moved, optimize=True)


def _newton(
    function: Values, curvature: Curvature, features: np.ndarray, masses: np.ndarray, decay: float
) -> np.ndarray:
    """Newton's method on the masses that are free, projected onto m ≥ 0 (Bertsekas 1982)."""
    m, ridge = masses, _SOFTEST
    split = features.reshape(len(m), -1, features.shape[1])
    value, slopes, pull = function(m)
    for _ in range(_NEWTONS):
        wrong = np.abs(m - np.maximum(m - slopes * (float(m.sum()) or 1.0) / decay, 0.0))
        if np.max(wrong, initial=0.0) <= _EXACT * (float(m.sum()) or 1.0):
            break
        edge = min(1e-3 * (float(m.sum()) or 1.0), float(np.max(wrong)))
        free = np.flatnonzero((m > edge) | (slopes <= 0))
        rows = weighted(m, features)
        hessian = _curved(split[free], curvature(rows.T @ rows), pull)
        hessian += ridge * np.trace(hessian) / max(len(free), 1) * np.eye(len(free))
        step = -slopes * (float(m.sum()) or 1.0) / decay
        step[free] = -np.linalg.solve(hessian, slopes[free])
        for halving in range(_HALVINGS):
            there = np.maximum(m + 0.5**halving * step, 0.0)
            new = function(there)
            if new[0] <= value + 1e-4 * float(slopes @ (there - m)):
                break
        else:
            if ridge > _STIFFEST:
                break
            ridge *= 100
            continue
        m, (value, slopes, pull), ridge = there, new, max(ridge / 10, _SOFTEST)
    return m


def _quasi_newton(function: Values, masses: np.ndarray) -> np.ndarray:
    """Losses whose curvature is not the same everywhere: L-BFGS-B."""
    scale = float(masses.sum()) or 1.0
    size = abs(function(masses)[0]) or 1.0

    def scaled(share: np.ndarray) -> tuple[float, np.ndarray]:
        value, slopes, _ = function(scale * share)
        return value / size, scale * slopes / size

    end = minimize(
        scaled,
        masses / scale,
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, None)] * len(masses),
        options={"maxcor": 60, "maxiter": _MASTER, "maxfun": _MASTER, "ftol": 1e-16, "gtol": 1e-12},
    )
    best: np.ndarray = np.maximum(end.x, 0.0) * scale
    return best


def solve(
    root: np.ndarray,
    phi: Callable[[np.ndarray], np.ndarray],
    decay: float,
    energy: Energy,
    curvature: Curvature | None,
    find: Find,
    measure: Measure,
    start: tuple[np.ndarray, np.ndarray],
    *,
    aim: float,
    rounds: int,
    report: Callable[[float, int], bool],
) -> Law:
    """From unit neurons with masses to a gap of `aim`; `report` is told the gap and the evaluations of each round and says whether to go on.

    Called inside `precision.scope("float64")`.
    """
    directions, masses = start
    best: Law | None = None
    total, far, number = 0, True, 0
    for number in range(1, rounds + 1):
        features = phi(directions @ root.T)
        masses, value, pull, count = master(features, masses, decay, energy, curvature)
        total += count
        heavy = masses > _LIGHT * masses.sum()
        found = find(pull, directions[heavy], far)
        gap = measure(features, masses, pull, found)
        excess = float(np.max(found.values)) - 1
        slopes = np.asarray(found.slopes)[: np.count_nonzero(heavy)]
        if far and (best is None or gap <= best.gap):
            best = Law(directions[heavy], masses[heavy], slopes, value, gap, excess, total, number)
        going = report(gap, count)
        if (far and gap <= aim) or not going:
            break
        far = gap <= 2 * aim or number % _ELSEWHERE == 0 or number == rounds - 1
        own = np.linalg.norm((features @ pull).reshape(len(masses), -1), axis=1) / np.sqrt(decay)
        keep = heavy | (own > 1 - _IDLE) if len(masses) <= len(root) else heavy
        # With several outputs maxima are round, and the neurons around one make what it makes.
        single = features.shape[0] == len(masses) and pull.shape[1] == 1
        same = _SAME if single else max(_SAME, _ROUND * float(np.sqrt(max(gap, 0.0))))
        new = np.asarray(found.directions)[found.values > 1 + 1e-10]
        directions, masses = _joined(directions[keep], masses[keep], new, same)
    assert best is not None
    return best._replace(evaluations=total, rounds=number)


def _joined(directions: np.ndarray, masses: np.ndarray, new: np.ndarray, same: float) -> tuple[np.ndarray, np.ndarray]:
    """With the new ones among these, each once."""
    kept = directions
    for u in new:
        if np.min(np.linalg.norm(kept - u[None, :], axis=1), initial=np.inf) > same:
            kept = np.concatenate([kept, u[None, :]])
    count = len(kept) - len(directions)
    share = _SHARE * float(masses.sum()) / max(count, 1) if masses.sum() > 0 else 1.0
    return kept, np.concatenate([masses, np.full(count, share)])
