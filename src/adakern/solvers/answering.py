"""What the particle solver returns: kernels, readout and duals with their errors, and whether that is what was asked for."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from adakern import floors, inputs, linalg
from adakern.limits import readout
from adakern.limits.anbk import ANBK
from adakern.limits.base import Answer
from adakern.losses import Loss
from adakern.solvers import by_parts, dynamics, tally
from adakern.solvers.clock import Clock
from adakern.solvers.dynamics import Data, Model
from adakern.solvers.record import Record
from adakern.solvers.tally import Tally

BURN_IN = 8.0  # least time before averaging; fields relax in time about 1
_STANDING = 0.6  # of the variance between neurons that stays from start to end, above which they stand still, and errors in time miss it
GROUPS = 8  # of particles, whose scatter is the error of predictions; also snapshots that are kept for predictions and densities

_solve = jax.jit(readout.solve, static_argnums=0)


def readout_of(loss: Loss, kernel: Array, data: Data) -> readout.Readout:
    """The readout at a kernel over all points."""
    return _solve(loss, kernel, data.y, data.beta, data.decays[-1])


def worst(clock: Clock, counted: Tally) -> tuple[float, float]:
    """The largest relative standard error, of a kernel or of the outputs, and how much of it no longer average takes away."""
    estimates = [counted.kernel(layer) for layer in range(counted.depth)]
    outputs = output_errors(clock, counted)
    stays = [_ratio(counted.doubts(layer), estimate.mean) for layer, estimate in enumerate(estimates)]
    return max([*map(tally.relative, estimates), outputs.total]), max([*stays, outputs.doubt])


class OutputErrors(NamedTuple):
    """Relative errors of the outputs s on the training inputs: what batches, corrections' noise and corrections' doubt make of it."""

    batches: float
    corrections: float
    doubt: float

    @property
    def total(self) -> float:
        return float(np.linalg.norm(self))


def output_errors(clock: Clock, counted: Tally) -> OutputErrors:
    """To first order in the scatter of the top kernel."""
    mean = counted.kernel(counted.depth - 1).mean

    def respond(changes: np.ndarray) -> tuple[float, np.ndarray]:
        padded = np.zeros((counted.most, *changes.shape[1:]), clock.data.root.dtype)  # one shape, compiled once
        padded[: len(changes)] = changes
        s, answers = _respond(clock.model, clock.data, jnp.asarray(mean, padded.dtype), jnp.asarray(padded))
        return float(np.linalg.norm(s)), np.asarray(answers)[: len(changes)]

    def norm(arrays: list[np.ndarray]) -> float:
        return float(np.sqrt(sum(float(np.sum(array**2)) for array in arrays)))

    replies = [respond(scatter) for scatter in counted.scatters()]
    size = replies[0][0]
    noises = [tally.error(answers) for _, answers in replies]
    doubt = norm([respond(counted.doubts(counted.depth - 1))[1]])
    values = (norm(noises[:1]), norm(noises[1:]), doubt)
    return OutputErrors(*(value / size if size > 0 else 0.0 for value in values))


@functools.partial(jax.jit, static_argnums=0)
def _respond(model: Model, data: Data, kernel: Array, changes: Array) -> tuple[Array, Array]:
    """The outputs, and how they answer to changes of the kernel."""

    def outputs(kernel: Array) -> Array:
        full, decay = kernel[data.member][:, data.member], data.decays[-1]
        v = readout.readout(model.loss, full, data.y, data.beta, decay)
        return jnp.matmul(full, v, precision="highest") / decay

    s, respond = jax.linearize(outputs, kernel)
    return s, jax.lax.map(respond, changes)


def answer(
    limit: ANBK,
    clock: Clock,
    points: inputs.Distinct,
    record: Record,
    tolerance: float,
    report: dict[str, Any],
) -> Answer:
    data, depth, counted = clock.data, limit.network.depth, record.tally
    dtype = np.dtype(str(data.root.dtype))
    estimates = [counted.kernel(layer) for layer in range(depth)]
    overs = [clock.model.sites.over(points, layer, depth) for layer in range(depth)]
    kernels = tuple(over.expand(e.mean).astype(dtype) for over, e in zip(overs, estimates, strict=True))
    inner = readout_of(clock.model.loss, jnp.asarray(kernels[-1]), data)
    v = np.asarray(inner.v)
    outputs = kernels[-1] @ v / limit.decays[-1]
    top = -(limit.richness**2) / limit.decays[-1] * v @ v.T
    snapshots = record.snapshots or (dynamics.neurons(record.stack),)
    kept = [snapshots[i] for i in np.unique(np.linspace(0, len(snapshots) - 1, GROUPS).round().astype(int))]
    # By particle, then by time: groups of particles are independent of each other, moments of a slow particle are not.
    draws = tuple(
        np.stack([s[layer] for s in kept], axis=1).reshape(-1, kept[0][layer].shape[1]) for layer in range(depth)
    )
    lower = by_parts.duals(
        limit.network.activation,
        clock.model.sites,
        [estimate.mean for estimate in estimates[:-1]],
        overs[-1].collapse(top),
        draws[1:],
        limit.decays[1:-1],
        [counted.dual(layer).mean for layer in range(depth - 1)],
    )
    if record.phase != "average":  # a moment or two, not a sample: nothing is known of its error
        estimates = [estimate._replace(error=np.full_like(estimate.error, np.inf)) for estimate in estimates]
    standing = [_standing(clock, [estimate.mean for estimate in estimates], kept, layer) for layer in range(depth)]
    for layer, variance in enumerate(_still(clock, record, standing)):
        estimates[layer] = estimates[layer]._replace(error=np.sqrt(estimates[layer].error ** 2 + variance))
    output_error = output_errors(clock, counted).total
    error = max([tally.relative(estimate) for estimate in estimates] + [output_error])
    converged = bool(
        counted.enough
        and np.isfinite(error)
        and error <= tolerance
        and counted.temperature < clock.hot
        and not counted.drifting(tolerance)
    )
    stats = {
        "solver": "particles",
        "particles": clock.particles,
        "tolerance": tolerance,
        "chunks": clock.model.chunks,
        "steps": clock.done,
        "batches": len(counted.batches),
        "probes": len(counted.probes),
        "step_size": clock.step,
        "stiffness": clock.stiffness,
        "retries": clock.retries,
        "temperature": counted.temperature,
        "relative_error": error,
        "output_error": output_error,
        "autocorrelation_time": [estimate.time * counted.length for estimate in estimates],
        "control": [estimate.control for estimate in estimates],
        "bias": {
            "step": [_ratio(estimate.step, estimate.mean) for estimate in estimates],
            "particles": [_ratio(estimate.particles, estimate.mean) for estimate in estimates],
        },
        "energy": float(np.mean(counted.energies)),
        "standing": standing,
        "tails": [float(tail) for tail in np.mean([batch.tails for batch in counted.batches], axis=0)],
        "newton": {"steps": int(inner.steps), "residual": float(inner.residual)},
        "trace": [list(point) for point in record.trace[:: max(1, len(record.trace) // 200)]],  # gradients, energy
        "groups": GROUPS,
        "snapshots": len(kept),
        "root": report,
        "jitter": floors.JITTER[str(dtype)] if depth > 1 else 0.0,
    }
    return Answer(
        kernels=kernels,
        kernel=kernels[-1],
        coefficients=(v / limit.decays[-1]).astype(dtype),
        fitted=np.asarray(clock.model.loss.link(jnp.asarray(outputs, dtype))),
        errors=(v / limit.beta).astype(dtype),
        kernel_errors=tuple(over.expand(e.error).astype(dtype) for over, e in zip(overs, estimates, strict=True)),
        duals=(*(o.spread(dual).astype(dtype) for o, dual in zip(overs, lower, strict=False)), top.astype(dtype)),
        draws=draws,
        converged=converged,
        status=_status(clock, record, error, tolerance, converged, max(standing)),
        stats=stats,
    )


def _standing(clock: Clock, kernels: list[np.ndarray], kept: list[tuple[np.ndarray, ...]], layer: int) -> float:
    r"""How much of what tells neurons apart stays from the first moments of a run to its last: correlation of $\varphi_\mu\varphi_\nu$, over neurons.

    Neurons in wells that they do not leave are a sample of their number, however long it is averaged.
    """
    if len(kept) < 4:
        return 0.0
    dtype = clock.data.root.dtype
    decay, where = clock.data.decays[layer], clock.model.sites
    if layer == 0:
        root = clock.data.root
    else:
        root = linalg.cholesky_root(where.seen(layer - 1, jnp.asarray(kernels[layer - 1], dtype) / decay))
    pool = where.pool_of(layer, len(kernels))
    moments = [
        np.asarray(pool.rows(clock.model.activation(jnp.asarray(kept[i][layer]) @ root.T))) for i in (0, 1, -2, -1)
    ]
    count = len(moments[0])

    def covariance(first: np.ndarray, second: np.ndarray) -> float:
        product = first * second
        return float(np.sum(product.T @ product / count - (first.T @ first / count) * (second.T @ second / count)))

    stays = np.mean([covariance(a, b) for a in moments[:2] for b in moments[2:]])
    whole = np.mean([covariance(a, a) for a in moments])
    return float(stays / whole) if whole > 0 else 0.0


def _still(clock: Clock, record: Record, standing: list[float]) -> list[np.ndarray]:
    """Variance that neurons which stand still leave in each kernel: their share of the scatter between parts that do not see each other."""
    if max(standing) <= _STANDING:
        return [np.zeros(())] * len(standing)
    parts = dynamics.kernels_of_parts(clock.model, clock.data, record.stack)
    return [
        share * np.var(np.asarray(part, np.float64), axis=0, ddof=1) / len(part) if share > _STANDING else np.zeros(())
        for share, part in zip(standing, parts, strict=True)
    ]


def _ratio(part: np.ndarray, whole: np.ndarray) -> float:
    scale = float(np.linalg.norm(whole))
    return float(np.linalg.norm(part)) / scale if scale > 0 else 0.0


def _status(clock: Clock, record: Record, error: float, tolerance: float, converged: bool, standing: float) -> str:
    counted = record.tally
    if converged:
        return f"averaged {len(counted.batches)} batches; kernels and outputs known to {error:.2g} (asked: {tolerance:.2g})"
    if record.phase == "burn-in":
        return (
            f"still burning in after {clock.done} gradients of step {clock.step:.2g}, time {record.time:.1f} of the least {BURN_IN:g}; "
            "give more steps, a smaller beta or richness, or start from a neighbour (init=, or path)"
        )
    if counted.enough and record.phase == "average":
        longer, least = worst(clock, counted)
        if longer <= tolerance < error and standing > _STANDING:
            return (
                f"{clock.particles} neurons that hardly move between the places they prefer give a kernel to {error:.2g} (asked: {tolerance:.2g}), "
                "however long it is averaged; give more particles or a larger tolerance"
            )
        if least > tolerance:
            return (
                f"what the finite step and number of particles change is known to {least:.2g} only (asked: {tolerance:.2g}); "
                "give more particles or a larger tolerance"
            )
    return (
        f"{clock.done} gradients (the last of step {clock.step:.2g}) gave {len(counted.batches)} batches of the least {tally.LEAST} and an error of "
        f"{error:.2g} (asked: {tolerance:.2g}); give more steps, more particles, a larger tolerance, or a smaller richness"
    )
