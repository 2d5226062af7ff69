"""Quasi-Newton descent to a relative gradient, by scipy's L-BFGS-B.

scipy rather than optax or optimistix: the functionals change shape between stages, and scipy's line search copes with rounded corners. Vectors are float64 on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from threadpoolctl import ThreadpoolController

_MEMORY = 100  # pairs of steps and gradients, if they fit into
_BYTES = 2**26  # which all go through the processor at every step; and so many all the same
_LEAST = 30
_BLAS = (
    ThreadpoolController()
)  # threads that wait for each other at every vector operation cost ten times what they gain
_FLAT = 1e-15  # relative decrease below which there is nothing left to gain


class Descent(NamedTuple):
    """Where a descent ended."""

    x: np.ndarray
    value: float
    relative: float  # |gradient| / |x|
    evaluations: int


def descend(
    function: Callable[[np.ndarray], tuple[float, np.ndarray]],
    x: np.ndarray,
    *,
    tolerance: float,
    evaluations: int,
    report: Callable[[float, float], None] | None = None,
) -> Descent:
    """Go downhill from `x` until |gradient| ≤ tolerance |x|, or nothing falls any more, or the evaluations are used up.

    `x` is scaled such that decay costs ½|x|²: then the gradient is what weights are away from what their own forces make them. `report` is told value and relative gradient
    after each step.
    """
    count, best = 0, (np.inf, np.inf, x)

    def counted(z: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal count, best
        count += 1
        value, gradient = function(z)
        if not np.isfinite(value):
            return 1e300, np.zeros_like(z)
        relative = _ratio(gradient, z)
        if value <= best[0]:
            best = (value, relative, z.copy())
        return value, gradient

    def done(intermediate_result: object) -> None:
        if report is not None:
            report(best[0], best[1])
        if best[1] <= tolerance:
            raise StopIteration

    value, gradient = counted(x)
    if _ratio(gradient, x) <= tolerance or not np.isfinite(value):
        return Descent(x, value, _ratio(gradient, x), count)
    scale = abs(value) or 1.0  # the line search's own tolerances are absolute
    options = {
        "maxcor": max(_LEAST, min(_MEMORY, _BYTES // (16 * x.size))),
        "maxiter": evaluations,
        "maxfun": evaluations,
        "ftol": _FLAT,
        "gtol": 0.0,
        "maxls": 30,
    }

    def scaled(z: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = counted(z)
        return value / scale, gradient / scale

    with _BLAS.limit(limits=1, user_api="blas"):
        minimize(scaled, x, jac=True, method="L-BFGS-B", callback=done, options=options)
    return Descent(best[2], best[0], best[1], count)


def _ratio(gradient: np.ndarray, x: np.ndarray) -> float:
    size = float(np.linalg.norm(x))
    return float(np.linalg.norm(gradient)) / size if size > 0 else 0.0
