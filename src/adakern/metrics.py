"""Numbers that compare kernels and predictions."""

from __future__ import annotations

from typing import Any

import numpy as np

from adakern import checks


def alignment(A: Any, B: Any) -> float:
    r"""$\mathcal A(A,B)=\mathrm{Tr}(A^\top B)/(|A||B|)$: the cosine between two kernels, 1 when they are proportional."""
    first, second = checks.finite("A", checks.as_array("A", A)), checks.finite("B", checks.as_array("B", B))
    if first.shape != second.shape:
        raise ValueError(f"B must have the shape of A, {first.shape}, but it has shape {second.shape}")
    scale = float(np.linalg.norm(first) * np.linalg.norm(second))
    if scale == 0.0:
        raise ValueError("alignment of a kernel of zeros is not defined")
    return float(np.sum(first * second)) / scale


def mean_squared_error(y: Any, f: Any, variance: Any = 0.0) -> float:
    """Mean of (y - f)² + variance over points (and outputs): the test loss of the paper's figures."""
    truth, guess = checks.as_array("y", y), checks.as_array("f", f)
    if truth.shape != guess.shape:
        raise ValueError(f"f must have the shape of y, {truth.shape}, but it has shape {guess.shape}")
    return float(np.mean((truth - guess) ** 2) + np.mean(np.asarray(variance)))
