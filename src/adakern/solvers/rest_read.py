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
from scipy.linalg import LinAlgError, cho_factor, cho_solve

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
        return _plain(task, convex, at.outputs)
    member = task.points.member
    counts = np.bincount(member).astype(np.float64)
    roots = np.sqrt(np.maximum(at.sizes, np.finfo(np.float64).tiny))
    rows = convex.pool.rows(at.features / roots[:, None])
    kernel = rows.T @ rows / convex.price
    mean = task.points.add(task.y) / counts[:, None]
    try:
        summed = cho_solve(cho_factor(kernel + np.diag(1 / counts), lower=True), mean)
    except LinAlgError:  # neurons so cheap that rounding is all there is of the errors
        return _plain(task, convex, at.outputs)
    # The same as y less the outputs, without the digits that these have in common.
    return Errors(task.y + (summed / counts[:, None] - mean)[member], summed)


def _plain(task: Problem, convex: rest_step.Convex, outputs: np.ndarray) -> Errors:
    signal = losses.get(task.limit.loss).error(jnp.asarray(task.y), jnp.asarray(outputs[task.points.member]))
    return Errors(np.asarray(signal, np.float64), convex.error(outputs))
