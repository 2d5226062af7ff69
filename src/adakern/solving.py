"""`solve`: checks the data, picks a way, runs it, and judges what came out."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from adakern import checks, limits, precision
from adakern._version import __version__
from adakern.errors import ConvergenceError
from adakern.limits import ANBK, NNGPK, Answer, LazyLimit, Limit
from adakern.networks import CNN
from adakern.progress import Progress
from adakern.solution import Solution
from adakern.solvers import closed
from adakern.solvers import particles as particle_solver

_CLOSED_TOLERANCE = {"float64": 1e-7, "float32": 1e-2}  # residual above which a closed form counts as failed

_SAMPLED_TOLERANCE = 0.5  # the same for a sampled answer, whose residual carries the Monte-Carlo error of few draws


def solve(
    limit: Limit,
    X: Any,
    y: Any,
    *,
    seed: int = 0,
    precision: str = "float64",
    particles: int | None = None,
    tolerance: float | None = None,
    steps: int | None = None,
    progress: bool = False,
    throw: bool = True,
) -> Solution:
    """Solve a limit on training data.

    Args:
        limit: the problem: `NNGP`, `NNGPK`, `NTK` or `ANBK` of an `MLP` (a `CNN` raises `NotImplementedError` so far).
        X: inputs, (points, features).
        y: targets, (points,) or (points, outputs).
        seed: of every random number; the same seed gives the same answer on the same machine.
        precision: "float64" or "float32".
        particles: ANBK: neurons per layer, by default 2048 or four per point if that is more; the bias of a finite number of them falls as 1/particles.
        tolerance: ANBK: relative standard error of the kernels at which averaging stops, 0.02 by default.
        steps: ANBK: most steps in all, 5000 by default.
        progress: show a progress bar on standard error.
        throw: raise `ConvergenceError` if the answer does not meet its tolerance; otherwise the solution says so.

    Returns:
        A `Solution`: kernels, errors, residual, status, and the predictor.
    """
    if not isinstance(limit, Limit):
        names = ", ".join(kind.kind for kind in limits.ALL)
        raise TypeError(f"limit must be one of {names}, but it is {limit!r}")
    if isinstance(limit.network, CNN):
        raise NotImplementedError("solve serves MLP networks; CNN networks are described but not solved yet")
    inputs = checks.inputs("X", X, ndim=limit.network.input_ndim)
    limit.network.check_inputs(inputs.shape)
    targets = checks.targets("y", y, len(inputs))
    seed = checks.seed("seed", seed)
    options = {"particles": particles, "tolerance": tolerance, "steps": steps}
    columns = targets if targets.ndim == 2 else targets[:, None]
    start = time.perf_counter()
    with _scope(precision) as dtype:
        answer = _run(limit, inputs, columns, seed, str(dtype), options, Progress(progress))
        residual = limit.residual(inputs, columns, answer)
    answer = _judge(limit, answer, residual, str(dtype))
    seconds = time.perf_counter() - start
    stats = {**answer.stats, "seconds": seconds, "seed": seed, "precision": str(dtype), "version": __version__}
    solution = _solution(limit, inputs, targets, answer, residual, stats)
    if throw and not answer.converged:
        raise ConvergenceError(
            f"{limit.kind} did not converge: {answer.status} (throw=False returns it as it is)", solution
        )
    return solution


_scope = precision.scope  # `solve` has an argument of the module's name


def _run(
    limit: Limit, X: np.ndarray, y: np.ndarray, seed: int, dtype: str, options: dict[str, Any], progress: Progress
) -> Answer:
    if isinstance(limit, ANBK) and limit.loss != "squared":
        raise NotImplementedError(f"ANBK is solved for the squared loss only so far, not for {limit.loss!r}")
    if isinstance(limit, ANBK) and limit.richness > 0:
        defaults = {"particles": max(2048, 4 * len(X)), "tolerance": 0.02, "steps": 5000}
        chosen = {name: defaults[name] if value is None else value for name, value in options.items()}
        return particle_solver.solve(
            limit,
            X,
            y,
            seed=seed,
            precision=dtype,
            particles=checks.integer("particles", chosen["particles"], least=2),
            tolerance=checks.positive("tolerance", chosen["tolerance"]),
            steps=checks.integer("steps", chosen["steps"], least=1),
            progress=progress,
        )
    given = [name for name, value in options.items() if value is not None]
    if given and not isinstance(limit, ANBK):
        raise ValueError(f"{given[0]} has no meaning for {limit.kind}, which is solved in closed form; leave it out")
    if isinstance(limit, LazyLimit):
        return closed.solve(limit, X, y, precision=dtype, progress=progress)
    assert isinstance(limit, ANBK)  # richness 0: the lazy limit, with duals of zero
    lazy = NNGPK(limit.network, beta=limit.beta, decay=limit.decay)
    answer = closed.solve(lazy, X, y, precision=dtype, progress=progress)
    return replace(answer, duals=tuple(np.zeros_like(kernel) for kernel in answer.kernels))


def _judge(limit: Limit, answer: Answer, residual: float, dtype: str) -> Answer:
    """A closed form is converged if its equations hold; a sampler says so itself, and must be finite."""
    if not np.isfinite(residual):
        return replace(
            answer, converged=False, status="the answer is not finite; use precision='float64' or more decay"
        )
    if answer.draws:
        if answer.converged and residual > _SAMPLED_TOLERANCE:
            status = f"the saddle equations hold to {residual:.2g} only; give more particles or a smaller tolerance"
            return replace(answer, converged=False, status=status)
        return answer
    if answer.converged and residual > _CLOSED_TOLERANCE[dtype]:
        advice = "use precision='float64'" if dtype == "float32" else "use inputs of order one"
        status = f"the equations hold to {residual:.2g} only; {advice}, a smaller beta or a larger ridge"
        return replace(answer, converged=False, status=status)
    return answer


def _solution(
    limit: Limit, X: np.ndarray, y: np.ndarray, answer: Answer, residual: float, stats: dict[str, Any]
) -> Solution:
    dtype = answer.kernel.dtype

    def like_y(values: np.ndarray) -> np.ndarray:
        return values if y.ndim == 2 else values[:, 0]

    return Solution(
        limit=limit,
        X=X.copy(),
        y=y.copy(),
        kernels=answer.kernels,
        kernel=answer.kernel,
        kernel_errors=tuple(error.astype(dtype, copy=False) for error in answer.kernel_errors),
        gradient_kernels=answer.gradient_kernels,
        duals=answer.duals,
        coefficients=like_y(answer.coefficients),
        fitted=like_y(answer.fitted),
        errors=like_y(answer.errors).astype(dtype, copy=False),
        draws=answer.draws,
        residual=residual,
        certificate=None,
        converged=answer.converged,
        status=answer.status,
        stats=stats,
    )
