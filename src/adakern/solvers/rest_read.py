r"""The errors that neurons of one hidden layer leave, their readouts solved for.

A law of unit neurons that is not quite at rest makes outputs $s$ that are close to their targets where neurons are cheap, and $\Delta=y-s$ is then mostly what Newton's method has not done yet: pulls of such errors look for neurons that nothing misses.
With the lengths $|v_k|$ as prior variances of the readouts $c_k$,

$$\min_c\;\tfrac12|y-\textstyle\sum_kc_k\varphi(A\hat v_k)|^2+\frac\mu2\sum_k\frac{c_k^2}{|v_k|},\qquad
  \Delta=\Big(1+\frac1\mu\sum_k|v_k|\,\varphi(A\hat v_k)\varphi(A\hat v_k)^\top\Big)^{-1}y,$$

which is $y-s$ at rest, and a good dual point long before.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy.linalg import cho_factor, cho_solve

from adakern import losses
from adakern.solvers import rest_step
from adakern.solvers.rest_task import Problem


class Errors(NamedTuple):
    """At all points, (P, C), and summed over equal ones."""

    each: np.ndarray
    summed: np.ndarray


def errors(task: Problem, convex: rest_step.Convex, law: rest_step.Law, angle: float) -> Errors:
    """Of a law with corners of this angle; where the loss is not squared, of its outputs as they are."""
    at = rest_step.place(convex, law, angle)
    if task.limit.loss != "squared":
        signal = losses.get(task.limit.loss).error(jnp.asarray(task.y), jnp.asarray(at.outputs[task.points.member]))
        return Errors(np.asarray(signal, np.float64), convex.error(at.outputs))
    member = task.points.member
    counts = np.bincount(member).astype(np.float64)
    roots = np.sqrt(np.maximum(at.sizes, np.finfo(np.float64).tiny))
    rows = convex.pool.rows(at.features / roots[:, None])
    kernel = rows.T @ rows / convex.price
    matrix = kernel + np.diag(1 / counts)
    summed = cho_solve(cho_factor(matrix, lower=True), task.points.add(task.y) / counts[:, None])
    return Errors(task.y - (kernel @ summed)[member], summed)
