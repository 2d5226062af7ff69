r"""The best masses of given unit neurons of one hidden layer, by an interior-point method.

$$\min_{m\ge0}F(m)=\tfrac{\lambda_0}2\sum_im_i+E\Big(\sum_im_i\Phi_i\Big),\qquad\Phi_i=\sum_a\varphi_{ia}\varphi_{ia}^\top,\qquad g_i=\frac{\partial F}{\partial m_i}=\tfrac12\big(\lambda_0-|\varphi_iV|^2\big),$$

is convex and smooth inside, and its curvature is $z_i^\top Rz_j$ with $z_i=\Phi_iV$ and $dV=-R\,d\Phi\,V$. Neurons next to each other make nearly the same kernels, and which of them has the mass is next to arbitrary:
an active set has to find out one by one, while steps of Newton's method on $g_i=s_i$, $m_is_i=\tau$ with $\tau\to0$ (primal and dual, a barrier in between) are a dozen or two whatever their number.

Written out: libraries for cones (not among the dependencies) want $E$ as cones over pairs of points.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from adakern.solvers import corrective
from adakern.solvers.atoms import Energy
from adakern.solvers.corrective import Curvature

_STEPS = 60
_LEAST = 1e-4  # of the mean mass: where a mass may begin
_SLACK = 1e-2  # of λ0/2, likewise for s
_FALL = 0.1  # of τ in a step
_BOUNDARY = 0.95  # of the way there, at most
_HALVINGS = 8
_RIDGE = 1e-14  # of Newton's matrix, over its diagonal, and more where it must
_FLAT = 1e-14  # of the value: a rise that rounding makes


class Best(NamedTuple):
    """Masses, F, V, g, the relative gap of F among these neurons, and evaluations."""

    masses: np.ndarray
    value: float
    pull: np.ndarray
    slopes: np.ndarray
    gap: float
    evaluations: int


class _Place(NamedTuple):
    value: float
    slopes: np.ndarray
    pull: np.ndarray
    signals: np.ndarray  # φ_i V, (m, S, C)
    kernel: np.ndarray


def gap_of(masses: np.ndarray, value: float, slopes: np.ndarray, decay: float) -> float:
    r"""What $F$ is above its least, over itself, at most: $g\cdot m$, and the steepest way down times $2F/\lambda_0$, more than which the masses of the least do not add up to."""
    steepest = max(float(np.max(-slopes, initial=0.0)), 0.0)
    return (float(slopes @ masses) + steepest * 2 * value / decay) / value if value else 0.0


def best(
    features: np.ndarray, start: np.ndarray, decay: float, energy: Energy, curvature: Curvature, tolerance: float
) -> Best:
    """The masses of neurons with these features, (m, P), or (m·S, P), that are best to a relative gap of `tolerance`, or as good as rounding allows."""
    count = len(start)
    split = features.reshape(count, -1, features.shape[1])

    def at(masses: np.ndarray) -> _Place:
        rows = corrective.weighted(masses, features)
        kernel = rows.T @ rows
        value, pull = energy(kernel)
        signals = (features @ pull).reshape(count, split.shape[1], -1)
        slopes = 0.5 * (decay - np.sum(signals**2, axis=(1, 2)))
        return _Place(value + 0.5 * decay * float(masses.sum()), slopes, pull, signals, kernel)

    total = float(start.sum())
    m = np.maximum(start, _LEAST * total / count) if total > 0 else np.ones(count)
    here, used = at(m), 1
    s = np.maximum(here.slopes, 0.5 * _SLACK * decay)
    lowest = Best(m, here.value, here.pull, here.slopes, gap_of(m, here.value, here.slopes, decay), used)
    for _ in range(_STEPS):
        if lowest.gap <= tolerance:
            break
        tau = _FALL * float(m @ s) / count
        moved = np.einsum("map,mac->mcp", split, here.signals, optimize=True)  # Φ_i V
        turned = moved @ curvature(here.kernel)
        matrix = np.tensordot(turned, moved, axes=((1, 2), (1, 2)))
        step = _solved(matrix, s / m, tau / m - here.slopes)
        slack = tau / m - s - s / m * step
        length = min(1.0, _BOUNDARY / max(float(np.max(-step / m)), _BOUNDARY))
        before = here.value - tau * float(np.sum(np.log(m)))
        for _ in range(_HALVINGS):
            there = at(m + length * step)
            used += 1
            after = there.value - tau * float(np.sum(np.log(m + length * step)))
            if after <= before + _FLAT * abs(here.value):
                break
            length *= 0.5
        else:
            break
        m, here = m + length * step, there
        s = s + min(1.0, _BOUNDARY / max(float(np.max(-slack / s)), _BOUNDARY)) * slack
        gap = gap_of(m, here.value, here.slopes, decay)
        if gap < lowest.gap:
            lowest = Best(m, here.value, here.pull, here.slopes, gap, used)
    return lowest._replace(evaluations=used)


def _solved(matrix: np.ndarray, diagonal: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(M + D)⁻¹ r; scaled by the diagonal, which goes over many orders of magnitude."""
    scale = 1 / np.sqrt(np.diagonal(matrix) + diagonal)
    whole = matrix * scale[:, None] * scale[None, :]
    whole[np.diag_indices(len(whole))] = 1.0
    ridge = _RIDGE
    while True:
        try:
            factor = cho_factor(whole + ridge * np.eye(len(whole)), lower=True, overwrite_a=True, check_finite=False)
            result: np.ndarray = scale * cho_solve(factor, scale * right, check_finite=False)
            return result
        except LinAlgError:  # neurons that are all but one
            ridge *= 100
