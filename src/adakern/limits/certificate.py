r"""A certificate for two-layer aNBKs: how far above its lower bound the free energy of a claimed $v$ lies.

The law tilted by $v$ has a free energy $F$ of its own, and $D(v)$ (see `dual`) is below every free energy. In their difference $\ln Z$ cancels,

$$F-D=E(\Phi_v)+\beta\gamma_0^2\sum_\mu\ell^*_\mu(-v_\mu/\beta)+\tfrac{\gamma_0^2}{2\lambda_1}\mathrm{tr}\,v^\top\Phi_vv\ \ge\ 0,$$

zero if and only if $v$ is the readout of its own law's kernel. $\Phi_v$ is sampled afresh, whoever found $v$.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adakern import checks, inputs, losses
from adakern.limits import edge, gap, tempering
from adakern.limits.anbk import ANBK
from adakern.limits.dual import check_limit
from adakern.precision import scope


def certificate(
    limit: ANBK, X: Any, y: Any, v: Any, *, seed: int = 0, groups: int = 16, particles: int = 256
) -> tuple[float, float]:
    r"""$F-D$ at the law tilted by $v$, in nats a neuron, and its standard error; infinite where that law or $\ell^*$ is.

    Args:
        limit: an `ANBK` of one hidden layer.
        X: inputs, (points, features).
        y: targets, (points,) or (points, outputs).
        v: the claim $\beta\Delta$, $\lambda_1$ times a solution's coefficients, of the shape of `y`.
        seed: of the sampling.
        groups: independent groups of neurons, at least 4.
        particles: neurons of a group.
    """
    check_limit(limit)
    X = checks.inputs("X", X, ndim=2)
    targets = checks.labels("y", checks.targets("y", y, len(X)), limit.loss)
    claim = checks.finite("v", checks.as_array("v", v))
    if claim.shape != targets.shape:
        raise ValueError(f"v must have the shape of y, {targets.shape}, but it has {claim.shape}")
    seed, groups = checks.seed("seed", seed), checks.integer("groups", groups, least=4)
    particles = checks.integer("particles", particles, least=8)
    columns, claim = targets.reshape(len(X), -1), claim.reshape(len(X), -1)
    if limit.loss == "softmax":  # what rounding adds to rows that add up to 0
        claim = claim - claim.mean(axis=1, keepdims=True)
    with scope("float64"):  # a difference of nearly equal numbers
        moments = _moments(limit, X, claim, seed, groups, particles)
        if moments is None:
            return float("inf"), float("inf")
        of = gap.Readout(losses.get(limit.loss), limit.richness, limit.beta, limit.decays[-1])
        return gap.jackknife(of, columns, claim, moments)


def _moments(limit: ANBK, X: np.ndarray, v: np.ndarray, seed: int, groups: int, particles: int) -> np.ndarray | None:
    r"""$\Phi_v$ over all points from each group, (groups, P, P); None where the law cannot be normalised or was not reached."""
    points = inputs.distinct(X)
    root, _ = inputs.root(limit.network, X[points.first], limit.decays[0])
    dual = jnp.asarray(points.collapse(-(limit.richness**2) / limit.decays[-1] * v @ v.T))
    factor = np.zeros((len(points.first), v.shape[1]))
    np.add.at(factor, points.member, limit.richness / np.sqrt(limit.decays[-1]) * v)
    outer = tempering.Outer(jnp.asarray(factor))
    key = jax.random.fold_in(jax.random.key(seed), 0xCE47)  # no solver's stream, and not the audit's
    law = tempering.sample(
        limit.network.activation, root, outer, key, groups=groups, particles=particles, responses=False
    )
    if law.status:
        return None
    largest = law.epsilon.reshape(-1, root.shape[1])
    if edge.pull(limit.network.activation, root, dual, largest, jax.random.fold_in(key, 1)) >= 1:
        return None
    return law.moments[:, points.member][:, :, points.member]
