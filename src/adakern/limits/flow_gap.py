r"""The gap between a two-layer network under gradient flow with weight decay and the dual of its problem, for activations homogeneous of degree one.

Weights that are balanced leave a convex problem, in which unit neurons are paid for by their share in the outputs,

$$p=\sum_\mu\ell(y_\mu,s_\mu)+\mu\,\|f\|_{F_1},\qquad\mu=\frac{\sqrt{\lambda_0\lambda_1}}{\gamma_0},\qquad
  d=-\sum_\mu\ell^*(y_\mu,-\alpha_\mu)\quad\text{with}\quad\max_{|u|=1}|\alpha^\top\varphi(Au)|\le\mu .$$

Every $d$ is at most the least $p$. At the optimum $\alpha=\Delta$, so a multiple of $\Delta$ is what is tried.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from adakern.activations import Activation
from adakern.limits import unit_search
from adakern.limits.sites import Pool
from adakern.losses import Loss, Squared

_GOLDEN = (np.sqrt(5) - 1) / 2
_SECTIONS = 80  # of an interval: to rounding
_DOUBLINGS = 60
_POINTS = Pool()


class Gap(NamedTuple):
    r"""How far a network is from where gradient flow with weight decay ends.

    Attributes:
        primal: $p$.
        dual: the largest $d$ of a multiple of $\Delta$.
        relative: $(p-d)/p$, at least 0, and 0 at the optimum alone.
        largest: $\max_u|\Delta^\top\varphi(Au)|/\mu$: 1 at the optimum, below 1 where everything has died, above where a unit neuron is missing.
        direction: the $u$ of `largest`, (r,), where it is known.
    """

    primal: float
    dual: float
    relative: float
    largest: float
    direction: np.ndarray | None


def measured(
    loss: Loss, y: Any, outputs: Any, errors: Any, cost: float, price: float, pull: float, direction: Any = None
) -> Gap:
    r"""The gap of outputs $s$ with errors $\Delta$ that cost $\|f\|_{F_1}=\frac1{\gamma_0n}\sum_i|\varepsilon_i||a_i|$ of a network whose neurons have fields $A\varepsilon_i$.

    Args:
        loss: $\ell$.
        y: targets, (P, C).
        outputs: $s$, before the link, (P, C).
        errors: $\Delta$, (P, C).
        cost: $\|f\|_{F_1}$.
        price: $\mu$; infinite at richness 0.
        pull: $\max_{|u|=1}|\Delta^\top\varphi(Au)|$. One that is too small makes the dual's value too large.
        direction: its $u$.

    Called inside `precision.scope`.
    """
    targets, fitted, delta = jnp.asarray(y), jnp.asarray(outputs), jnp.asarray(errors)
    primal = float(jnp.sum(loss.value(targets, fitted))) + (price * cost if cost else 0.0)

    def value(t: float) -> float:
        return -float(jnp.sum(loss.conjugate(targets, -t * delta)))

    farthest = price / pull if pull else np.inf
    if isinstance(loss, Squared):
        square = float(jnp.sum(delta**2))
        t = float(np.clip(float(jnp.sum(targets * delta)) / square, 0.0, farthest)) if square else 0.0
    else:
        t = _highest(value, farthest)
    dual = value(t)
    largest = pull / price if price else (np.inf if pull else 0.0)
    relative = max((primal - dual) / primal, 0.0) if primal else 0.0  # rounding may leave less than nothing
    return Gap(primal, dual, relative, largest, None if direction is None else np.asarray(direction))


def gap(
    loss: Loss,
    activation: Activation,
    root: Any,
    y: Any,
    outputs: Any,
    *,
    cost: float,
    price: float,
    starts: Any,
    key: Array,
    errors: Any = None,
    pool: Pool = _POINTS,
    known: Any = None,
) -> Gap:
    r"""The gap with $\Delta$ the errors of the outputs, and the strongest pull that `unit_search.hardest` finds from `starts`.

    Args:
        loss, y, outputs, cost, price: see `measured`.
        activation: homogeneous of degree one.
        root: $A$, (P, r), $AA^\top=\Phi^0$, one row for each row of `y`; of a CNN one for each of its positions.
        starts: (S, r), such as `unit_starts.default_starts`.
        key: for what is random in it.
        errors: another $\Delta$, (P, C), which is a dual point as well; the better one counts.
        pool: what a CNN's readout does with positions.
        known: the neurons themselves, (n, r).

    Called inside `precision.scope`.
    """
    tried = []
    for delta in (loss.error(jnp.asarray(y), jnp.asarray(outputs)), errors):
        if delta is not None:
            found = unit_search.hardest(activation, root, pool.factor(np.asarray(delta)), starts, key, known=known)
            pull, direction = float(found.values[0]), found.directions[0]
            tried.append(measured(loss, y, outputs, delta, cost, price, pull, direction))
    return max(tried, key=lambda one: one.dual)


def _highest(value: Callable[[float], float], farthest: float) -> float:
    r"""Where a concave function on $[0,$ `farthest`$]$, which may be $-\infty$ beyond some point, is largest."""
    high = min(1.0, farthest)
    for _ in range(_DOUBLINGS):
        if high >= farthest or not value(2 * high) > value(high):
            break
        high *= 2
    low, high = 0.0, min(2 * high, farthest)
    best = max((min(1.0, farthest), high), key=value)
    for _ in range(_SECTIONS):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        if value(left) < value(right):
            low = left
        else:  # also where both are -∞
            high = right
    return max((best, 0.5 * (low + high)), key=value)
