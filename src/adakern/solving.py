"""`solve`: checks the data, picks a way, runs it, and judges what came out. `path`: a chain of solves, each from the last."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterable
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np

from adakern import checks, files, limits, precision, storage
from adakern._version import __version__
from adakern.checkpoints import Checkpoint
from adakern.errors import ConvergenceError
from adakern.limits import ANBK, ANTK, NNGPK, VGA, Answer, LazyLimit, Limit, sites
from adakern.memory import budget
from adakern.networks import CNN
from adakern.progress import Progress
from adakern.solution import Solution
from adakern.solvers import closed, gaussian, linear, minmax, newton_dual, rest
from adakern.solvers import particles as particle_solver
from adakern.solvers.warm import Start

SOLVERS = ("particles", "dual", "linear", "minmax")  # of ANBK; the lazy limits have a closed form

_CLOSED_TOLERANCE = {"float64": 1e-7, "float32": 1e-2}  # residual above which a closed form counts as failed
_LINEAR_TOLERANCE = {"float64": 1e-9, "float32": 1e-2}
_DESCENT_TOLERANCE, _ROUNDING = 10.0, {"float64": 0.0, "float32": 1e-3}  # times the tolerance asked for, and beyond
_GAUSSIAN_TOLERANCE = {"float64": 1e-5, "float32": 1e-2}  # roots of singular kernels have a jitter

# The same for a sampled answer, beyond three times the Monte-Carlo error of the residual itself. With v frozen, the law of a neuron answers to a
# change of the kernel along a stiff direction by k times as much, k the largest eigenvalue of the Hessian, and the kernel's error is about 1/√k
# of its usual size there: the residual of a right answer is up to √k times its error.
_SAMPLED_TOLERANCE = 0.1
_MOST_ALLOWED = 0.3  # however stiff, and of the noise as well: a kernel that is half too large is not to pass


def solve(
    limit: Limit,
    X: Any,
    y: Any,
    *,
    seed: int = 0,
    precision: str = "float64",
    solver: str | None = None,
    particles: int | None = None,
    tolerance: float | None = None,
    steps: int | None = None,
    memory: float | None = None,
    init: Any = None,
    checkpoint: str | PathLike[str] | None = None,
    progress: bool = False,
    throw: bool = True,
) -> Solution:
    """Solve a limit on training data.

    Args:
        limit: the problem: `NNGP`, `NNGPK`, `NTK`, `ANBK`, `ANTK` or `VGA`, of an `MLP`; all but the last also of a `CNN` (`VGA` raises `NotImplementedError`).
        X: inputs, (points, features), or (points, height, width, channels) for a CNN.
        y: targets, (points,) or (points, outputs); ±1 for the logistic loss, one-hot rows for softmax.
        seed: of every random number; the same seed gives the same answer on the same machine.
        precision: "float64" or "float32".
        solver: ANBK: by default what is exact where there is such a thing: "linear", the closed recursion, for linear networks; "dual", Newton's method on the
            two-layer dual over samples of the prior, for one hidden layer where a pilot says that samples carry the tilt; otherwise "particles". Also "minmax", the
            published algorithm (slow, and rarely converged: for comparison).
        particles: ANBK: neurons per layer, by default 2048 or eight per point (of a deep CNN per point and position) if that is more. Their bias, which falls as 1/particles, is measured and taken out. minmax: samples of an importance average, 20000 by default. dual: samples, by default as many as the tolerance needs. ANTK: neurons per layer of both starts together, 2048.
        tolerance: ANBK: relative standard error of every kernel and of the outputs at which averaging stops, 0.02 by default. minmax: relative violation of the saddle equations, 0.01. ANTK: what the duality gap (one hidden layer, homogeneous activation) or the gradient may be relative to the value or the weights, 1e-4.
        steps: ANBK: most gradient evaluations in all, 20000 by default. minmax: outer steps, 20000. ANTK: gradient evaluations, 40000.
        memory: ANBK: bytes for the temporary arrays of one step, 1 GiB by default; what does not fit is taken in chunks of particles.
        init: ANBK: a warm start: a `Solution` of a neighbouring problem (another richness, beta, decay, loss or, but for a CNN, data set; the same depth), or kernels
            over the training points, as a list or as what has them (a finite network's `Run`). It changes the way, not the answer. ANTK: a `Solution` of another ANTK of the same
            depth, or the `Run` of a network trained on X, whose neurons take the place of the random ones: several layers may have several places to rest.
        checkpoint: ANBK, ANTK: a file to write every half minute and on an interrupt, and to go on from if it exists. It is removed when the answer has converged;
            otherwise a call with more `steps` goes on from it.
        progress: show a progress bar on standard error.
        throw: raise `ConvergenceError` if the answer does not meet its tolerance; otherwise the solution says so.

    Returns:
        A `Solution`: kernels, errors, residual, status, and the predictor.
    """
    if not isinstance(limit, Limit):
        names = ", ".join(kind.kind for kind in limits.ALL)
        raise TypeError(f"limit must be one of {names}, but it is {limit!r}")
    if isinstance(limit.network, CNN) and isinstance(limit, VGA):
        raise NotImplementedError("solve serves CNN networks in all limits but VGA; use an MLP, or another limit")
    inputs = checks.inputs("X", X, ndim=limit.network.input_ndim)
    limit.network.check_inputs(inputs.shape)
    targets = checks.targets("y", y, len(inputs))
    if isinstance(limit, ANTK) and min(limit.decays) == 0:
        raise ValueError(
            f"decay must be positive at every layer for solve, but it is {limit.decay}: without decay gradient flow ends in a place that depends on all of its way, "
            "and no kernel predicts it; dynamics(limit, X, y, times) follows it"
        )
    if isinstance(limit, (ANBK, ANTK, VGA)):
        checks.labels("y", targets, limit.loss)
    seed = checks.seed("seed", seed)
    options = {
        "solver": solver,
        "particles": particles,
        "tolerance": tolerance,
        "steps": steps,
        "memory": memory,
        "init": init,
        "checkpoint": checkpoint,
    }
    columns = targets if targets.ndim == 2 else targets[:, None]
    start = time.perf_counter()
    # The aNTK's few neurons are moved by numpy; what jax does in between is too small for an accelerator.
    place = _host() if isinstance(limit, ANTK) else contextlib.nullcontext()
    with _scope(precision) as dtype, place:
        work = _Work(limit, inputs, columns, seed, str(dtype), options, Progress(progress))
        answer = work.run()
        residual, findings = limit.audit(inputs, columns, answer)
    answer = _judge(answer, residual, findings, str(dtype))
    seconds = time.perf_counter() - start
    evidence = {"seconds": seconds, "seed": seed, "precision": str(dtype), "version": __version__}
    certificate = findings.pop("certificate", None)
    stats = {**answer.stats, **findings, **evidence}
    solution = _solution(limit, inputs, targets, answer, residual, certificate, stats)
    if answer.converged:
        work.checkpoint.remove()
    if throw and not answer.converged:
        raise ConvergenceError(
            f"{limit.kind} did not converge: {answer.status} (throw=False returns it as it is)", solution
        )
    return solution


_scope, _host = precision.scope, precision.host  # `solve` has an argument of the module's name


def path(limit: ANBK, X: Any, y: Any, richness: Iterable[float], **options: Any) -> tuple[Solution, ...]:
    r"""Solve an `ANBK` for each richness $\gamma_0$ in turn, each from the neurons of the one before.

    Going up in small steps is the gentle way into strongly rich problems. `options` are those of `solve`; `init` is where the first one starts.
    """
    if not isinstance(limit, ANBK):
        raise TypeError(f"limit must be an ANBK, but it is {limit!r}")
    if not isinstance(richness, Iterable):
        raise TypeError(f"richness must be a list of numbers, but it is {richness!r}")
    values = [checks.nonnegative("richness", value) for value in richness]
    if not values:
        raise ValueError("richness must hold at least one value, but it is empty")
    if options.get("checkpoint") is not None:
        raise ValueError("checkpoint is for one solve; path has none, leave it out")
    solutions: list[Solution] = []
    for value in values:
        if solutions:
            options["init"] = solutions[-1]
        try:
            solutions.append(solve(replace(limit, richness=value), X, y, **options))
        except ConvergenceError as failure:
            found = (*solutions, *([] if failure.result is None else [failure.result]))
            raise ConvergenceError(f"richness {value:g}: {failure}", found) from failure
    return tuple(solutions)


class _Work:
    """One call of `solve`, its data and options checked."""

    def __init__(
        self,
        limit: Limit,
        X: np.ndarray,
        y: np.ndarray,
        seed: int,
        dtype: str,
        options: dict[str, Any],
        progress: Progress,
    ) -> None:
        self.limit, self.X, self.y = limit, X, y
        self.seed, self.dtype, self.progress = seed, dtype, progress
        self.options = options
        given = [name for name, value in options.items() if value is not None]
        idle = [] if isinstance(limit, ANBK) else given
        descends = isinstance(limit, ANTK) and not linear.applies(limit)
        if descends:
            idle = [
                name
                for name in given
                if name not in ("particles", "tolerance", "steps", "memory", "init", "checkpoint")
            ]
        if isinstance(limit, VGA):
            idle = [name for name in given if name not in ("tolerance", "steps")]
        if idle:
            how = "by descent" if descends else "by Newton's method" if isinstance(limit, VGA) else "in closed form"
            raise ValueError(f"{idle[0]} has no meaning for {limit.kind}, which is solved {how}; leave it out")
        self.solver = _chosen(limit, options["solver"])
        slow = self.solver == "minmax"
        defaults: dict[str, Any] = {
            "particles": 20000 if slow else max(2048, 8 * _largest(limit, X)),
            "tolerance": 0.01 if slow else 0.02,
            "steps": 20000,
        }
        if descends:
            defaults |= {"particles": rest.PARTICLES, "tolerance": rest.TOLERANCE, "steps": rest.STEPS}
        if isinstance(limit, VGA):
            defaults |= {"tolerance": gaussian.TOLERANCE, "steps": gaussian.STEPS}
        chosen = {name: value if options[name] is None else options[name] for name, value in defaults.items()}
        self.particles = checks.integer("particles", chosen["particles"], least=2)
        self.tolerance = checks.positive("tolerance", chosen["tolerance"])
        self.steps = checks.integer("steps", chosen["steps"], least=1)
        self.budget = budget(options["memory"])
        self.fields: list[tuple[np.ndarray, np.ndarray]] = []
        if descends:
            self.init, self.fields = Start(), _fields(limit, X, options["init"], dtype)
        else:
            self.init = _warm(limit, X, options["init"])
        identity: dict[str, Any] = {}
        if options["checkpoint"] is not None:
            if not descends and self.solver != "particles":
                raise ValueError(f'checkpoint is for solver="particles", and {self.solver!r} has none; leave it out')
            identity = {
                "limit": storage.limit_config(limit),
                "data": files.digest(X, y),
                "init": files.digest(*self.init.kernels, *self.init.draws, *itertools.chain(*self.fields)),
                "options": [self.particles, self.tolerance, self.budget, seed, dtype],
                "version": __version__,
            }
        self.checkpoint = Checkpoint(options["checkpoint"], identity)

    def run(self) -> Answer:
        limit = self.limit
        if isinstance(limit, LazyLimit):
            return closed.solve(limit, self.X, self.y, precision=self.dtype, progress=self.progress)
        if isinstance(limit, VGA):
            options: dict[str, Any] = {"tolerance": self.tolerance, "steps": self.steps, "progress": self.progress}
            return gaussian.solve(limit, self.X, self.y, precision=self.dtype, **options)
        if isinstance(limit, ANTK) and not linear.applies(limit):
            return rest.solve(
                limit,
                self.X,
                self.y,
                seed=self.seed,
                precision=self.dtype,
                particles=self.particles,
                tolerance=self.tolerance,
                steps=self.steps,
                budget=self.budget,
                init=self.fields,
                checkpoint=self.checkpoint,
                progress=self.progress,
            )
        if isinstance(limit, ANTK):
            return linear.solve_flow(limit, self.X, self.y, precision=self.dtype, progress=self.progress)
        assert isinstance(limit, ANBK)
        if limit.richness == 0:
            return self._lazy(limit)
        if self.solver == "linear":
            return linear.solve(limit, self.X, self.y, precision=self.dtype, progress=self.progress)
        if self.solver == "dual":
            return self._dual(limit)
        if self._samples_carry(limit):
            answer = self._dual(limit)
            if answer.converged:
                return answer
        if self.solver == "minmax":
            kernels = self.init.kernels
            if self.init.X is not None and not np.array_equal(self.init.X, self.X):
                raise ValueError("init must be a solution on X for solver='minmax', which takes its kernels alone")
            return minmax.solve(
                limit,
                self.X,
                self.y,
                seed=self.seed,
                precision=self.dtype,
                samples=self.particles,
                outer=self.steps,
                tolerance=self.tolerance,
                progress=self.progress,
                start=kernels or None,
            )
        return particle_solver.solve(
            limit,
            self.X,
            self.y,
            seed=self.seed,
            precision=self.dtype,
            particles=self.particles,
            tolerance=self.tolerance,
            steps=self.steps,
            budget=self.budget,
            init=self.init,
            checkpoint=self.checkpoint,
            progress=self.progress,
        )

    def _samples_carry(self, limit: ANBK) -> bool:
        """Whether to try the dual though nobody asked: one hidden layer, a small tilt, and no option that speaks of another solver."""
        spoken = any(value is not None for name, value in self.options.items() if name != "tolerance")
        if spoken or isinstance(limit.network, CNN):
            return False
        return newton_dual.promising(limit, self.X, self.y, seed=self.seed, precision=self.dtype)

    def _dual(self, limit: ANBK) -> Answer:
        return newton_dual.solve(
            limit,
            self.X,
            self.y,
            seed=self.seed,
            precision=self.dtype,
            particles=None if self.options["particles"] is None else self.particles,
            tolerance=self.tolerance,
            steps=self.steps,
            budget=self.budget,
            init=self.init,
            checkpoint=self.checkpoint,
            progress=self.progress,
        )

    def _lazy(self, limit: ANBK) -> Answer:
        """Richness 0: the lazy kernels, duals of zero, and the readout of the loss."""
        lazy = NNGPK(limit.network, beta=limit.beta, decay=limit.decay)
        answer = closed.solve(lazy, self.X, self.y, precision=self.dtype, progress=self.progress)
        zero = np.zeros((), answer.kernel.dtype)
        where, depth = sites.of(limit.network, self.X.shape), limit.network.depth
        shapes = [(len(self.X), count, len(self.X), count) for count in where.counts[:-1]]
        duals = (*(np.broadcast_to(zero, shape) for shape in shapes),)
        duals += tuple(np.zeros_like(answer.kernel) for _ in range(depth - len(duals)))
        if limit.loss == "squared":
            return replace(answer, duals=duals)
        return replace(closed.with_loss(limit, self.y, answer), duals=duals)


def _chosen(limit: Limit, solver: str | None) -> str:
    """The solver: the one asked for, or what answers without sampling, or the particles."""
    images = isinstance(limit.network, CNN)
    if solver is None:
        return "linear" if linear.applies(limit) and not images else "particles"
    checks.choice("solver", solver, SOLVERS)
    if images and solver != "particles":
        raise NotImplementedError(
            f"solver={solver!r} serves MLP networks; leave it out: a CNN's ANBK is solved by particles"
        )
    if solver == "dual" and limit.network.depth != 1:
        depth = limit.network.depth
        raise ValueError(f"solver='dual' is for one hidden layer, but the network has {depth}; leave it out")
    if solver == "linear" and not linear.applies(limit):
        name = limit.network.activation.name
        raise ValueError(f"solver='linear' is for linear networks, but the activation is {name!r}; leave it out")
    return solver


def _largest(limit: Limit, X: np.ndarray) -> int:
    """Rows of the largest kernel: points, or for the inner layers of a CNN their positions."""
    return max(sites.of(limit.network, X.shape).sizes(len(X), limit.network.depth))


def _fields(limit: Limit, X: np.ndarray, init: Any, dtype: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """ANTK: preactivations of the neurons to start from, (n, P) a layer, of a CNN (n, P·S), and their shares: those of a solution at these inputs, or of a finite network trained on them."""
    if init is None:
        return []
    depth = limit.network.depth
    theirs = init.limit.network if isinstance(init, Solution) else getattr(init, "network", None)
    if theirs is None or (isinstance(init, Solution) and not (isinstance(init.limit, ANTK) and init.draws)):
        raise TypeError("init must be a Solution of an ANTK by descent, or the Run of a finite network, for ANTK")
    if theirs.depth != depth:
        raise ValueError(f"init must have {depth} hidden layers like the limit's network, but it has {theirs.depth}")
    if init.X.shape[1:] != X.shape[1:]:
        raise ValueError(f"init must have inputs of shape {X.shape[1:]} like X, but they have {init.X.shape[1:]}")
    counts = limit.network.sites(X.shape)
    if theirs.sites(X.shape) != counts:
        raise ValueError(f"init must have {counts} positions in its layers, but it has {theirs.sites(X.shape)}")
    if isinstance(init, Solution):
        with _scope(dtype):
            rows = [np.asarray(part, np.float64).reshape(-1, part.shape[-1]).T for part in init.neurons(X)]
        return [(part, np.asarray(share, np.float64)) for part, share in zip(rows, init.shares, strict=True)]
    if not np.array_equal(init.X, X):
        raise ValueError("init must have been trained on X, but its inputs are others; only a Solution carries over")
    layers = []
    for layer in range(1, depth + 1):
        values = [
            np.asarray(init.density(layer, point, position)[0], np.float64)
            for point in range(len(X))
            for position in range(counts[layer - 1])
        ]
        layers.append((np.stack(values, axis=1), np.full(len(values[0]), 1 / len(values[0]))))
    return layers


def _warm(limit: Limit, X: np.ndarray, init: Any) -> Start:
    """Where to start from, checked."""
    if init is None:
        return Start()
    depth = limit.network.depth
    theirs = init.limit.network if isinstance(init, Solution) else getattr(init, "network", limit.network)
    if theirs.depth != depth:
        raise ValueError(f"init must have {depth} hidden layers like the limit's network, but it has {theirs.depth}")
    if isinstance(init, Solution):
        if init.X.shape[1:] != X.shape[1:]:
            raise ValueError(f"init must have inputs of shape {X.shape[1:]} like X, but they have {init.X.shape[1:]}")
        if isinstance(init.limit, ANBK) and init.draws:
            return Start(init.limit, init.X, init.kernels, init.draws, int(init.stats.get("snapshots", 1)))
        return Start()  # a lazy solution's neurons are those of the prior
    kernels = getattr(init, "kernels", init)
    if not isinstance(kernels, (tuple, list)):
        raise TypeError(f"init must be a Solution, a Run, or a list of kernels, but it is {type(init).__name__}")
    arrays = tuple(checks.finite("init", checks.as_array("init", kernel)) for kernel in kernels)
    counts = sites.of(limit.network, X.shape).counts
    wanted: list[tuple[int, ...]] = [(len(X), count, len(X), count) for count in counts[:-1]] or [(len(X),) * 2] * (
        depth - 1
    )
    wanted.append((len(X),) * 2)
    if [array.shape for array in arrays] != wanted:
        shapes = [array.shape for array in arrays]
        expected = f"{depth} kernels of shape {wanted[0]}" if len(set(wanted)) == 1 else f"kernels of shapes {wanted}"
        raise ValueError(f"init must hold {expected}, but its kernels have shapes {shapes}")
    for kernel in arrays:
        rows = int(np.sqrt(kernel.size))
        array = kernel.reshape(rows, rows)
        if not np.allclose(array, array.T, atol=1e-6 * np.abs(array).max()) or np.trace(array) <= 0:
            raise ValueError("init must hold symmetric kernels with a positive trace, but one of them is not")
        if np.linalg.eigvalsh(array)[0] < -1e-4 * np.trace(array):
            raise ValueError("init must hold positive semi-definite kernels, but one of them is not")
    if hasattr(init, "X") and not np.array_equal(init.X, X):
        raise ValueError("init must have been trained on X, but its inputs are others; only a Solution carries over")
    return Start(kernels=arrays)


def _judge(answer: Answer, residual: float, findings: dict[str, Any], dtype: str) -> Answer:
    """A closed form is converged if its equations hold; a sampler says so itself, and must not be contradicted by the audit."""
    said = findings["audit"]["doubt"] if findings else residual
    doubt = float("inf") if said is None else float(said)
    finer = "precision='float64', " if dtype == "float32" else ""
    if answer.converged and not np.isfinite(doubt):
        reason = findings.get("audit", {}).get("status") or "the answer is not finite"
        return replace(answer, converged=False, status=f"{reason}; use {finer}a smaller tolerance or more decay")
    if answer.stats.get("solver") == "descent":
        return _judge_descent(answer, doubt, findings.get("certificate"), dtype, finer)
    if not answer.converged:
        return answer
    if answer.draws and findings:
        noise = max([value for values in findings["audit"]["noise"].values() for value in values], default=0.0)
        own = float(answer.stats.get("relative_error", 0.0)) * np.sqrt(float(answer.stats.get("stiffness", 1.0)))
        if 3 * noise > _MOST_ALLOWED:
            status = f"the audit is too noisy to bear the answer out ({noise:.2g}); give a smaller beta or richness"
            return replace(answer, converged=False, status=status)
        allowed = min(_MOST_ALLOWED, max(_SAMPLED_TOLERANCE, 3 * own)) + 3 * noise
        if doubt <= allowed:
            remark = findings["audit"].get("status")
            return replace(answer, status=f"{answer.status}; {remark}") if remark else answer
        status = f"the saddle equations hold to {doubt:.2g} only; give more particles or a smaller tolerance"
        return replace(answer, converged=False, status=status)
    tolerances = {"linear": _LINEAR_TOLERANCE, "gaussian": _GAUSSIAN_TOLERANCE}
    allowed = tolerances.get(str(answer.stats["solver"]), _CLOSED_TOLERANCE)[dtype]
    if residual > allowed:
        advice = "use precision='float64'" if dtype == "float32" else "use inputs of order one"
        status = f"the equations hold to {residual:.2g} only; {advice}, a smaller beta or a larger ridge"
        return replace(answer, converged=False, status=status)
    return answer


def _judge_descent(answer: Answer, doubt: float, gap: float | None, dtype: str, finer: str) -> Answer:
    """ANTK: the solver leaves the duality gap to the audit, which is the one that the solution has."""
    asked, rounding = float(answer.stats["tolerance"]), _ROUNDING[dtype]
    if gap is not None and (gap > asked + rounding or not answer.converged):
        advice = f"give {finer}a larger tolerance" if answer.converged else answer.status
        return replace(answer, converged=False, status=f"the duality gap is {gap:.2g} of the value; {advice}")
    if answer.converged and doubt > _DESCENT_TOLERANCE * asked + rounding:
        words = ["more steps", "a smaller tolerance", *answer.stats.get("scales", ())]
        status = f"the equations hold to {doubt:.2g} only; give {finer}{' or '.join(words)}"
        return replace(answer, converged=False, status=status)
    if gap is None or answer.stats.get("collapsed"):
        return answer
    words = [f"duality gap {gap:.1e} of the value", *([answer.status] if answer.status else [])]
    return replace(answer, status="; ".join(words))


def _solution(
    limit: Limit,
    X: np.ndarray,
    y: np.ndarray,
    answer: Answer,
    residual: float,
    certificate: float | None,
    stats: dict[str, Any],
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
        slopes=answer.slopes,
        shares=answer.shares,
        residual=residual,
        certificate=certificate,
        converged=answer.converged,
        status=answer.status,
        stats=stats,
    )
