"""Whether neurons are where gradient flow with weight decay leaves them: every equation of `resting`, from an answer's own numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from adakern import inputs, losses, precision
from adakern.limits import flow_gap, resting, sites, unit_starts
from adakern.limits.base import Answer, relative
from adakern.networks import CNN

if TYPE_CHECKING:
    from adakern.limits.antk import ANTK

_SEEDS = 256  # starts of the search for the strongest pull
_KEY = 7  # other starts than a solver's


def audit(limit: ANTK, X: np.ndarray, y: np.ndarray, answer: Answer) -> tuple[float, dict[str, Any]]:
    """The largest violation, each relative to what it is a violation of, and the certificate where there is one."""
    points = inputs.distinct(X)
    activation = limit.network.activation
    y = np.asarray(y, np.float64)
    fields = [np.asarray(h, np.float64) for h in answer.draws]
    shares = [np.asarray(w, np.float64) for w in answer.shares]
    with precision.scope("float64"):
        phi = [np.asarray(activation(jnp.asarray(h))) for h in fields]
        prime = [np.asarray(activation.derivative(jnp.asarray(h))) for h in fields]
        loss = losses.get(limit.loss)
        delta = np.asarray(answer.errors, np.float64)
        s = np.asarray(answer.kernels[-1], np.float64) @ delta / limit.decays[-1]
        made = np.asarray(loss.error(jnp.asarray(y), jnp.asarray(s)))
        linked = np.asarray(loss.link(jnp.asarray(s)))
    where, depth = sites.of(limit.network, X.shape), limit.network.depth
    layers = [
        resting.Neurons(w, p, np.asarray(t, np.float64), where.pool_of(layer, depth))
        for layer, (w, p, t) in enumerate(zip(shares, phi, answer.slopes, strict=True))
    ]
    over = points.add(delta)
    rest = resting.recursion(layers, over, limit.richness, limit.decays, where)
    below = resting.inflow(layers, inputs.features(limit.network, X[points.first]), where)
    picks = [where.over(points, layer, depth).pick for layer in range(depth)]
    kinked = activation.name == "relu"
    parts: dict[str, Any] = {
        "readout": relative(delta - made, y),
        "outputs": relative(answer.fitted - linked, y),
        "kernels": [relative(pick(a) - b, b) for pick, a, b in zip(picks, answer.kernels, rest.kernels, strict=True)],
        "fields": [
            _weighted(h - (b @ rows) @ rows.T, h, w)
            for h, b, rows, w in zip(fields, rest.coefficients, below, shares, strict=True)
        ],
        "slopes": [_slopes(h, n.slopes, p, kinked) for h, n, p in zip(fields, layers, prime, strict=True)],
    }
    if answer.gradient_kernels is not None:
        gradients = resting.gradients(layers, over[:, 0], limit.richness, limit.decays)
        grams = [resting.gram(w, g) for w, g in zip(shares, gradients, strict=True)]
        parts["gradient_kernels"] = [
            relative(points.pick(a) - b, b) for a, b in zip(answer.gradient_kernels, grams, strict=True)
        ]
    parts["predictor"] = relative(s - np.asarray(answer.kernel, np.float64) @ answer.coefficients, y)
    flat = [v for value in parts.values() for v in (value if isinstance(value, list) else [value])]
    worst = float(np.max(flat)) if np.isfinite(flat).all() else float("inf")
    report: dict[str, Any] = {"audit": {"parts": parts, "doubt": worst if np.isfinite(worst) else None, "noise": {}}}
    if limit.network.depth == 1 and activation.degree == 1 and not np.isfinite(worst):
        report["certificate"] = float("inf")
    elif limit.network.depth == 1 and activation.degree == 1:
        report |= _certificate(limit, X, y, points, layers[0], fields[0], delta)
        # Two searches for the strongest pull: the one that misses it has too small a gap.
        report["certificate"] = max(report["certificate"], _claimed(answer))
    return worst, report


def _claimed(answer: Answer) -> float:
    """The solver's own relative gap, if it has one."""
    primal, dual = answer.stats.get("primal"), answer.stats.get("dual")
    return (primal - dual) / primal if primal and dual is not None else -np.inf


def _weighted(difference: np.ndarray, fields: np.ndarray, shares: np.ndarray) -> float:
    root = np.sqrt(shares)[:, None]
    return relative(root * difference, root * fields)


def _slopes(fields: np.ndarray, slopes: np.ndarray, prime: np.ndarray, kinked: bool) -> float:
    """Slopes that are not the activation's; at a kink any number in [0, 1] is, so that what counts is how far from it a pair stands."""
    if not kinked:
        return relative(slopes - prime, prime)
    outside = np.maximum(np.maximum(-slopes, slopes - 1), 0.0)
    off = np.where(fields > 0, 1 - slopes, slopes) * np.abs(fields)
    return relative(off, fields) + float(outside.max(initial=0.0))


def _certificate(
    limit: ANTK,
    X: np.ndarray,
    y: np.ndarray,
    points: inputs.Distinct,
    neurons: resting.Neurons,
    fields: np.ndarray,
    delta: np.ndarray,
) -> dict[str, Any]:
    """The duality gap of the predictor that these neurons make, relative to its value."""
    if limit.richness == 0:
        return {"certificate": 0.0}
    price = float(np.sqrt(limit.decays[0] * limit.decays[1])) / limit.richness
    loss = losses.get(limit.loss)
    with precision.scope("float64"):
        root = np.asarray(inputs.root(limit.network, X[points.first], 1.0)[0])
        # The shortest weights that make the fields, and the network that they make: whatever the answer says, this one exists.
        weights = np.linalg.lstsq(root, fields.T, rcond=None)[0].T
        features = np.asarray(limit.network.activation(jnp.asarray(weights @ root.T)))
        over = points.add(delta)
        pool, count = neurons.pool, len(features)
        rows = pool.rows(features)
        readouts = limit.richness / limit.decays[1] * rows @ over
        lengths, sizes = np.linalg.norm(weights, axis=1), np.linalg.norm(readouts.reshape(count, -1), axis=1)
        norm = float(np.sum(neurons.weights * lengths * sizes)) / limit.richness
        own = np.repeat(neurons.weights, len(rows) // count)
        s = ((own[:, None] * rows).T @ readouts / limit.richness)[points.member]
        key = jax.random.key(_KEY)
        signal = pool.factor(points.add(np.asarray(loss.error(jnp.asarray(y), jnp.asarray(s)))))
        many = unit_starts.images_starts(root, signal) if isinstance(limit.network, CNN) else _SEEDS
        starts = np.asarray(unit_starts.default_starts(root, signal, many, key))
        known = weights[lengths > 0] / lengths[lengths > 0][:, None]
        numbers: dict[str, Any] = {"cost": norm, "price": price, "starts": starts, "key": key, "errors": delta}
        every = root.reshape(len(points.first), -1)[points.member].reshape(-1, root.shape[1])
        gap = flow_gap.gap(loss, limit.network.activation, every, y, s, **numbers, pool=pool, known=known)
    return {"certificate": gap.relative, "value": gap.primal, "largest_pull": gap.largest}
