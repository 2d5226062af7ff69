"""Deep linear networks: kernels, duals and readout from the C×C matrix that all layers share. No sampling.

numpy and scipy rather than jax: a handful of LAPACK calls in float64, whatever the precision of the answer.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import jax.numpy as jnp
import numpy as np
from scipy.linalg import blas

from adakern import inputs, losses, memory
from adakern.deep_linear import bayes, flow, routes, spectra
from adakern.limits.anbk import ANBK
from adakern.limits.antk import ANTK
from adakern.limits.base import Answer, Limit
from adakern.networks import MLP
from adakern.progress import Progress

_THREADS = 4  # that write matrices


def applies(limit: Limit) -> bool:
    """Whether this solver serves a limit: the activation is linear; gradient flow has a closed form for an MLP and the squared loss only."""
    closed = not isinstance(limit, ANTK) or (limit.loss == "squared" and isinstance(limit.network, MLP))
    return closed and limit.network.activation.name == "linear"


def solve(limit: ANBK, X: np.ndarray, y: np.ndarray, *, precision: str, progress: Progress) -> Answer:
    """Solve the aNBK of a linear network; `y` has shape (points, outputs)."""
    rows, below = _inputs(limit, X, 2 * limit.network.depth)
    depth, decays = limit.network.depth, np.asarray(limit.decays)
    loss = losses.get(limit.loss)
    problem = bayes.Problem(depth, limit.richness, limit.beta, loss, y)
    with progress.task("linear aNBK", total=depth + 1) as advance:
        saddles, _, route = routes.solve(problem, rows, float(np.prod(decays)), below)
        advance("solved", 1)
        best = saddles.found[0]
        v, image = best.v, float(np.prod(decays)) * best.image(depth)
        whole, square = float(np.prod(decays)), limit.richness**2

        def layer_of(layer: int) -> tuple[np.ndarray, np.ndarray]:
            grown = square / whole * best.feature_weights(depth, layer)
            kernel = _updated(below, image, grown, 1 / float(np.prod(decays[:layer])), precision)
            share = -square / float(np.prod(decays[layer:])) * best.dual_weights(depth, layer)
            return kernel, _updated(None, v, share, 1.0, precision)

        kernels, duals = [], []
        # Most of the time goes into memory that is touched for the first time, which threads share.
        with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
            for kernel, dual in pool.map(layer_of, range(1, depth + 1)):
                kernels.append(kernel)
                duals.append(dual)
                advance("kernels", 1)
    stats = {
        "solver": "linear",
        "strengths": best.strengths.tolist(),
        "free_energy": best.free_energy,
        "free_energy_error": 0.0,
        "solutions": [
            {"strengths": part.strengths.tolist(), "free_energy": part.free_energy, "stable": part.stable}
            for part in saddles.found
        ],
        "all_solutions": saddles.complete,
        "steps": saddles.evaluations,
        **route,
    }
    return Answer(
        kernels=tuple(kernels),
        kernel=kernels[-1],
        coefficients=(v / decays[-1]).astype(precision),
        fitted=np.asarray(loss.link(jnp.asarray(best.outputs))).astype(precision),
        errors=(v / limit.beta).astype(precision),
        kernel_errors=_zeros(len(X), depth, precision),
        duals=tuple(duals),
        status=_status(saddles),
        stats=stats,
    )


def solve_flow(limit: ANTK, X: np.ndarray, y: np.ndarray, *, precision: str, progress: Progress) -> Answer:
    """Solve the aNTK of a linear network; `y` has shape (points, outputs)."""
    rows, below = _inputs(limit, X, 2 * limit.network.depth + 1)
    depth, decays = limit.network.depth, np.asarray(limit.decays)
    mean = float(np.exp(np.mean(np.log(decays))))
    spectrum = spectra.dense(rows, y)
    rests = flow.solve(flow.Problem(depth, limit.richness, mean, y), spectrum)
    living = [rest for rest in rests.found if rest.stable]
    best = living[0] if living else rests.dead
    tau, turned = best.strengths, below @ best.map @ best.directions
    n = np.where(tau > 0, tau ** (depth + 1), 1.0) / (limit.richness**2 or 1.0)
    balanced = mean * tau[:, None] / decays[None, :]  # squared singular values, (C, L+1)
    kernels = []
    for layer in range(1, depth + 1):
        weights = np.where(tau > 0, np.prod(balanced[:, :layer], axis=1) / n, 0.0)
        kernels.append(_updated(None, turned, np.diag(weights), 1.0, precision))
    single = y.shape[1] == 1
    gradients: tuple[np.ndarray, ...] | None = None
    if single:
        products = [float(np.prod(balanced[0, layer:])) for layer in range(1, depth + 1)]
        gradients = tuple(np.full((len(X), len(X)), value, dtype=precision) for value in products)
        others = sum(float(np.prod(np.delete(balanced[0], layer))) for layer in range(1, depth + 1))
        square = np.array([[others / n[0] if tau[0] > 0 else 0.0]])
        kernel = _updated(below, turned, square / products[0] if products[0] > 0 else square, products[0], precision)
        coefficients = best.errors / float(np.sum(decays))
    else:
        kernel, coefficients = kernels[-1], best.errors / decays[-1]
    stats = {
        "solver": "linear",
        "strengths": tau.tolist(),
        "objective": best.objective,
        "collapse": flow.collapse(spectrum, depth, mean) if single or depth == 1 else None,
        "solutions": [
            {"strengths": part.strengths.tolist(), "objective": part.objective, "stable": part.stable}
            for part in (*rests.found, rests.dead)
        ],
        "all_solutions": rests.complete,
    }
    if stats["collapse"] is not None and not np.isfinite(stats["collapse"]):
        stats["collapse"] = None
    return Answer(
        kernels=tuple(kernels),
        kernel=kernel,
        coefficients=coefficients.astype(precision),
        fitted=best.outputs.astype(precision),
        errors=best.errors.astype(precision),
        kernel_errors=_zeros(len(X), depth, precision),
        gradient_kernels=gradients,
        status=_rest_status(rests, bool(living)),
        stats=stats,
    )


def _inputs(limit: Limit, X: np.ndarray, matrices: int) -> tuple[np.ndarray, np.ndarray]:
    """Features and their inner products, if the matrices to come fit into memory."""
    memory.require(
        8 * (matrices + 4) * len(X) ** 2, f"kernels and duals of {limit.network.depth} layers over {len(X)} points"
    )
    rows = inputs.features(limit.network, X).astype(np.float64)
    return rows, rows @ rows.T


def _updated(
    base: np.ndarray | None, factor: np.ndarray, middle: np.ndarray, scale: float, precision: str
) -> np.ndarray:
    """scale·(base + factor middle factorᵀ), symmetric: rows or columns first makes no difference, and no copy that swaps them is made."""
    left = scale * factor @ middle
    if base is None:
        result: np.ndarray = left @ factor.T
    else:
        copy = (base * scale).T  # columns first, as LAPACK has it
        result = blas.dgemm(1.0, left, factor, beta=1.0, c=copy, trans_b=True, overwrite_c=True).T
    return result.astype(precision, copy=False)


def _zeros(points: int, depth: int, precision: str) -> tuple[np.ndarray, ...]:
    return (np.zeros((points, points), dtype=precision),) * depth


def _status(saddles: bayes.Saddles) -> str:
    others = len(saddles.found) - 1
    if others == 0:
        return (
            "closed form"
            if saddles.complete
            else "closed form; descent from small and large networks ends in the same place"
        )
    stable = sum(part.stable for part in saddles.found[1:])
    found = "" if saddles.complete else " that were found"
    return (
        f"closed form; the solution of least free energy of {others + 1}{found} ({stable} more of them stable, see stats['solutions']): "
        "which one a network finds may depend on its start"
    )


def _rest_status(rests: flow.Rests, alive: bool) -> str:
    if not alive:
        return "closed form; everything dies: this decay is too strong for this richness (see stats['collapse'])"
    if rests.dead.stable:
        return "closed form; death is stable too (see stats['solutions']): which of the two gradient flow ends in depends on its start"
    return "closed form"
