"""What the particle solver returns: kernels, readout and duals with their errors, and whether that is what was asked for."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from adakern import floors, inputs
from adakern.limits import readout
from adakern.limits.anbk import ANBK
from adakern.limits.base import Answer
from adakern.losses import Loss
from adakern.solvers import dynamics, tally
from adakern.solvers.clock import Clock
from adakern.solvers.dynamics import Data, Model
from adakern.solvers.record import Record
from adakern.solvers.tally import Estimate, Tally

BURN_IN = 8.0  # least time before averaging; fields relax in time about 1
GROUPS = 8  # of particles, whose scatter is the error of predictions; also snapshots that are kept for predictions and densities

_solve = jax.jit(readout.solve, static_argnums=0)


def readout_of(loss: Loss, kernel: Array, data: Data) -> readout.Readout:
    """The readout at a kernel over all points."""
    return _solve(loss, kernel, data.y, data.beta, data.decays[-1])


def worst(clock: Clock, counted: Tally) -> float:
    """The largest relative standard error: of a kernel, or of the outputs."""
    estimates = [counted.kernel(layer) for layer in range(counted.depth)]
    return max([tally.relative(estimate) for estimate in estimates] + [_output_error(clock, counted, estimates[-1])])


def _output_error(clock: Clock, counted: Tally, top: Estimate) -> float:
    """Relative standard error of the outputs s on the training inputs, to first order in the scatter of the top kernel."""
    total, size = 0.0, 0.0
    for scatter in counted.scatters():
        padded = np.zeros((counted.most, *scatter.shape[1:]), clock.data.root.dtype)  # one shape, compiled once
        padded[: len(scatter)] = scatter[-counted.most :]
        s, changes = _respond(clock.model, clock.data, jnp.asarray(top.mean, padded.dtype), jnp.asarray(padded))
        total += float(np.sum(tally.error(np.asarray(changes)[: len(scatter)]) ** 2))
        size = float(np.linalg.norm(s))
    return float(np.sqrt(total)) / size if size > 0 else 0.0


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
    duals = [counted.dual(layer) for layer in range(depth - 1)]
    kernels = tuple(points.expand(estimate.mean).astype(dtype) for estimate in estimates)
    inner = readout_of(clock.model.loss, jnp.asarray(kernels[-1]), data)
    v = np.asarray(inner.v)
    outputs = kernels[-1] @ v / limit.decays[-1]
    top = -(limit.richness**2) / limit.decays[-1] * v @ v.T
    snapshots = record.snapshots or (dynamics.neurons(record.stack),)
    kept = snapshots[-GROUPS:]
    # By particle, then by time: groups of particles are independent of each other, moments of a slow particle are not.
    draws = tuple(
        np.stack([s[layer] for s in kept], axis=1).reshape(-1, kept[0][layer].shape[1]) for layer in range(depth)
    )
    if record.phase != "average":  # a moment or two, not a sample: nothing is known of its error
        estimates = [estimate._replace(error=np.full_like(estimate.error, np.inf)) for estimate in estimates]
    output_error = _output_error(clock, counted, estimates[-1])
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
        kernel_errors=tuple(points.expand(estimate.error).astype(dtype) for estimate in estimates),
        duals=(*(points.spread(dual.mean).astype(dtype) for dual in duals), top.astype(dtype)),
        draws=draws,
        converged=converged,
        status=_status(clock, record, error, tolerance, converged),
        stats=stats,
    )


def _ratio(part: np.ndarray, whole: np.ndarray) -> float:
    scale = float(np.linalg.norm(whole))
    return float(np.linalg.norm(part)) / scale if scale > 0 else 0.0


def _status(clock: Clock, record: Record, error: float, tolerance: float, converged: bool) -> str:
    counted = record.tally
    if converged:
        return f"averaged {len(counted.batches)} batches; kernels and outputs known to {error:.2g} (asked: {tolerance:.2g})"
    if record.phase == "burn-in":
        return (
            f"still burning in after {clock.done} gradients of step {clock.step:.2g}, time {record.time:.1f} of the least {BURN_IN:g}; "
            "give more steps, a smaller beta or richness, or start from a neighbour (init=, or path)"
        )
    return (
        f"{clock.done} gradients (the last of step {clock.step:.2g}) gave {len(counted.batches)} batches of the least {tally.LEAST} and an error of "
        f"{error:.2g} (asked: {tolerance:.2g}); give more steps, more particles, a larger tolerance, or a smaller richness"
    )
