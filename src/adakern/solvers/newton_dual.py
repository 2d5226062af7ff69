r"""Two-layer aNBKs by Newton's method on their dual (`limits.dual`), on a fixed sample of neurons.

The unknown is $v$. With $s(v)=\Phi_vv/\lambda_1=\gamma_0^{-2}\nabla\ln Z$, $H=\partial s/\partial v$ and $W=\beta\,\partial^2\ell/\partial s^2$, the step solves

$$(I+WH)\,d=\beta\Delta(s(v))-v,$$

Newton's of $D$ for the squared loss, and one that any $v$ allows for the others, where $D$ is finite on a simplex alone. It goes downhill in the free energy of the
law tilted by $v$, $F=\beta\gamma_0^2\sum\ell(s)+\gamma_0^2v\cdot s-\ln Z$, by which it is shortened where needed.

Neurons come from the prior, half of them stretched along the directions that the data pull in, as a small pilot sample finds them. Errors, and the bias of $v$
having been fitted to its sample, come from the jackknife over eight groups; whether the sample carries the law, from a fresh one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve
from jaxtyping import Array
from threadpoolctl import threadpool_limits

from adakern import inputs, linalg, losses, memory
from adakern.activations import Activation
from adakern.checkpoints import Checkpoint
from adakern.limits import dual, edge, readout
from adakern.limits.anbk import ANBK
from adakern.limits.base import Answer
from adakern.limits.dual import GROUPS, Data, Proposal, Sample, Tilted
from adakern.losses import Loss, Softmax, Squared
from adakern.progress import Progress
from adakern.solvers.warm import Start

DENSE = 256  # points × outputs up to which the Hessian is formed
LEAST = 16384  # samples to begin with, and so many a point
PER_POINT = 8
PILOT = 8192
MOST = 60  # Newton steps; 4 to 8 are usual
DRAWN = 1024  # neurons kept of each group
WARM = 4  # steps from the whole sample's v to that of seven groups
EFFECTIVE = 0.05  # share of a fresh sample below which its weights are not trusted
SOUND = 0.15  # share in a pilot above which the dual is tried first
_TOLERANCE = {"float64": 1e-9, "float32": 1e-4}  # relative residual at which Newton's method stops
_CONJUGATE = {"float64": 1e-8, "float32": 1e-4}  # of the linear solves by conjugate gradients
_ITERATIONS = 400
_NEGLIGIBLE = 1e-10  # relative error that no longer matters
_SETTLED = 0.1  # share of the way that the last of those steps may be
_RAMP = (0.5, 1.0, 1.0)  # richness of the pilots, in units of the limit's
_NOTICED = 0.1  # stretch from which a direction is worth its own neurons
_LONGEST = 100.0
_SMALLEST = 2.0**-20
_THREADED = 512  # points from which a factorisation is worth several threads

_product = functools.partial(jnp.matmul, precision="highest")


# ---------------------------------------------------------------------------------------------------------------------
# Newton's method on one sample


class _State(NamedTuple):
    v: Array
    at: Tilted
    steps: Array
    residual: Array
    stalled: Array


def _halves(loss: Loss, data: Data, s: Array) -> tuple[Callable[[Array], Array], Callable[[Array], Array], Array]:
    r"""$R$ and $R^\top$ with $RR^\top=W$, and the weights that `readout` calls so ($W$'s diagonal; for softmax of $W=\beta p-\beta pp^\top$ the first part)."""
    weights = readout._weights(loss, data.y, s, data.beta)
    root = jnp.sqrt(weights)
    if not isinstance(loss, Softmax):
        return lambda z: root * z, lambda x: root * x, weights
    p = weights / data.beta

    def right(z: Array) -> Array:
        return root * z - p * jnp.sum(root * z, axis=-1, keepdims=True)

    def left(x: Array) -> Array:
        return root * (x - jnp.sum(p * x, axis=-1, keepdims=True))

    return right, left, weights


def _matrix(data: Data, sample: Sample, at: Tilted) -> tuple[Array, Array]:
    """H as a (P, C, P, C) array without the square of the mean that a covariance subtracts, and that mean."""
    count, outputs = at.drive.shape
    points = sample.features.shape[1]
    parts = GROUPS if count % GROUPS == 0 else 1

    scale, mean = (data.richness / data.decay) ** 2, (data.richness * at.slope)[data.member]
    if outputs == 1:  # one product with the features serves both parts
        weights = at.remainder / data.decay + scale * at.tilt * at.drive[:, 0] ** 2
        whole = dual.weighted(sample.features, weights) + at.rest / data.decay * sample.prior
        return whole[data.member][:, None, data.member, None], mean

    def add(total: Array, part: tuple[Array, ...]) -> tuple[Array, None]:
        features, drive, tilt = part
        both = (features[:, :, None] * drive[:, None, :]).reshape(len(features), -1)
        return total + _product(both.T, tilt[:, None] * both), None

    arrays = (sample.features, at.drive, at.tilt)
    split = tuple(array.reshape(parts, count // parts, *array.shape[1:]) for array in arrays)
    square, _ = jax.lax.scan(add, jnp.zeros((points * outputs,) * 2, sample.features.dtype), split)
    square = square.reshape(points, outputs, points, outputs) * scale
    eye = jnp.eye(outputs, dtype=square.dtype)
    square += (dual.moment(sample, at) / data.decay)[:, None, :, None] * eye[None, :, None, :]
    return square[data.member][:, :, data.member], mean


def _dense(data: Data, sample: Sample, at: Tilted, left: Callable[[Array], Array]) -> Callable[[Array], Array]:
    r"""Solves with $I+R^\top HR$ by its Cholesky factor."""
    shape = data.y.shape
    square, mean = _matrix(data, sample, at)

    def both(matrix: Array) -> Array:
        half = jax.vmap(left)(matrix.reshape(-1, *shape)).reshape(-1, matrix.shape[-1])
        return jax.vmap(left)(half.T.reshape(-1, *shape)).reshape(half.T.shape)

    size = shape[0] * shape[1]
    eye = jnp.eye(size, dtype=square.dtype)
    flat = square.reshape(size, size)
    vector = mean.reshape(-1)
    factor = jnp.linalg.cholesky(eye + both(flat - vector[:, None] * vector[None, :]))
    # A noisy sample's covariance may be indefinite: then without the square of the mean, which only shortens the step.
    safe = jax.lax.cond(jnp.isfinite(factor[-1, -1]), lambda: factor, lambda: jnp.linalg.cholesky(eye + both(flat)))
    return lambda b: cho_solve((safe, True), b.reshape(-1)).reshape(shape)


def _iterative(
    loss: Loss,
    data: Data,
    sample: Sample,
    at: Tilted,
    right: Callable[[Array], Array],
    left: Callable[[Array], Array],
    weights: Array,
) -> Callable[[Array], Array]:
    r"""Solves with $I+R^\top HR$ by conjugate gradients, preconditioned by the prior's kernel in the place of $H$, output by output."""
    K = sample.prior[data.member][:, data.member] / data.decay
    eye = jnp.eye(K.shape[0], dtype=K.dtype)

    def factorised(row: Array) -> Array:
        return readout._cholesky(row[:, None] * K * row[None, :] + eye)

    if isinstance(loss, Squared):
        factor = factorised(jnp.sqrt(weights[:, 0]))

        def precondition(z: Array) -> Array:
            return cho_solve((factor, True), z)
    else:
        factors = linalg.each(factorised, jnp.sqrt(weights.T))

        def precondition(z: Array) -> Array:
            return linalg.each(lambda low, b: cho_solve((low, True), b), factors, z.T).T

    def apply(z: Array) -> Array:
        return z + left(dual.bend(data, sample, at, right(z)))

    accuracy = _CONJUGATE[str(K.dtype)]
    return lambda b: jax.scipy.sparse.linalg.cg(apply, b, tol=accuracy, maxiter=_ITERATIONS, M=precondition)[0]


def _stepper(loss: Loss, dense: bool, data: Data, sample: Sample, at: Tilted) -> Callable[[Array], Array]:
    r"""$r\mapsto(I+WH)^{-1}r$ at a tilted sample."""
    right, left, weights = _halves(loss, data, at.slope[data.member])
    solve = _dense(data, sample, at, left) if dense else _iterative(loss, data, sample, at, right, left, weights)
    K = sample.prior[data.member][:, data.member] / data.decay

    def step(r: Array) -> Array:
        t, rest = readout._split(loss, K, weights, r)
        return right(solve(left(t - dual.bend(data, sample, at, rest)))) + rest

    return step


def _residual(loss: Loss, data: Data, v: Array, at: Tilted) -> Array:
    r"""$\beta\Delta(s(v))-v$."""
    return data.beta * readout._error(loss, data.y, at.slope[data.member]) - v


@functools.partial(jax.jit, static_argnums=(0, 1))
def _newton(loss: Loss, dense: bool, data: Data, sample: Sample, v: Array, most: Array) -> _State:
    eps = jnp.finfo(v.dtype).eps

    residual = functools.partial(_residual, loss, data)

    def objective(v: Array, at: Tilted) -> Array:
        s = at.slope[data.member]
        return data.beta * readout._value(loss, data.y, s) + jnp.sum(v * s) - at.log_z / data.richness**2

    def step(state: _State) -> _State:
        d = _stepper(loss, dense, data, sample, state.at)(residual(state.v, state.at))
        here = objective(state.v, state.at)
        slope = -jnp.sum(residual(state.v, state.at) * dual.bend(data, sample, state.at, d))
        rounding = 64 * eps * (jnp.abs(here) + jnp.sum(jnp.abs(state.v * state.at.slope[data.member])))

        def refused(trial: tuple[Array, Array, Tilted]) -> Array:
            fraction, v, at = trial
            lower = objective(v, at) <= here + 1e-4 * fraction * slope + rounding
            return ~lower & (fraction > _SMALLEST)

        def trial(fraction: Array) -> tuple[Array, Array, Tilted]:
            v = state.v + fraction * d
            return fraction, v, dual.tilted(data, sample, v)

        fraction, v, at = jax.lax.while_loop(refused, lambda last: trial(last[0] / 2), trial(jnp.ones((), d.dtype)))
        size = readout._relative(residual(v, at), v, data.y, data.beta)
        still = (fraction <= _SMALLEST) | ~jnp.isfinite(size) | ((-slope <= rounding) & (size > 0.25 * state.residual))
        worse = still & ~(size < state.residual)
        v, at = jax.tree.map(lambda a, b: jnp.where(worse, a, b), (state.v, state.at), (v, at))
        return _State(v, at, state.steps + 1, jnp.where(worse, state.residual, size), still)

    def going(state: _State) -> Array:
        return (state.residual > _TOLERANCE[str(v.dtype)]) & (state.steps < most) & ~state.stalled

    at = dual.tilted(data, sample, v)
    first = readout._relative(residual(v, at), v, data.y, data.beta)
    start = _State(v, at, jnp.zeros((), int), first, jnp.zeros((), bool))
    return jax.lax.while_loop(going, step, start)


# ---------------------------------------------------------------------------------------------------------------------
# Where to draw neurons from


@functools.partial(jax.jit, static_argnums=0)
def _virial(activation: Activation, root: Array, data: Data, at: Tilted, v: Array, epsilon: Array) -> Array:
    r"""$\langle\varepsilon\varepsilon^\top\rangle-I=\langle\varepsilon\,\nabla_\varepsilon U^\top\rangle$, symmetrised: what the tilt adds to the covariance, with noise that vanishes with it."""
    V = jax.ops.segment_sum(v, data.member, num_segments=root.shape[0])
    slopes = activation.derivative(_product(epsilon, root.T))
    force = _product(slopes * _product(at.drive, V.T), root) * data.richness**2 / data.decay
    total = _product(epsilon.T, (at.tilt / jnp.sum(at.tilt))[:, None] * force)
    return 0.5 * (total + total.T)


class _Problem:
    """One problem: what every sample shares."""

    def __init__(self, limit: ANBK, X: np.ndarray, y: np.ndarray, precision: str) -> None:
        self.limit, self.loss = limit, losses.get(limit.loss)
        self.points = inputs.distinct(X)
        chosen = X[self.points.first]
        self.root, self.report = inputs.root(limit.network, chosen, limit.decays[0])
        prior = dual.prior_kernel(limit, chosen, precision)
        self.prior = None if prior is None else jnp.asarray(prior)
        self.data = dual.make_data(limit, self.points, y)
        self.dense = y.size <= DENSE

    def draw(self, stream: list[int], proposal: Proposal, count: int) -> tuple[np.ndarray, Sample]:
        """White coordinates of `count` neurons, and their sample."""
        epsilon, weights = proposal.draw(np.random.default_rng(stream), GROUPS, count // GROUPS)
        features = dual.fields(self.limit.network.activation, self.root, jnp.asarray(epsilon))
        return epsilon, dual.make_sample(features, jnp.asarray(weights / count), self.prior)

    def newton(self, sample: Sample, v: Array, most: int = MOST, richness: float = 1.0) -> _State:
        data = self.data._replace(richness=richness * self.data.richness)
        return _newton(self.loss, self.dense, data, sample, v, jnp.asarray(most))

    def start(self, init: Start, X: np.ndarray, seed: int) -> Array:
        """The readout at the prior's kernel, or at given kernels of the same points."""
        if init.kernels and (init.X is None or np.array_equal(init.X, X)):
            kernel = np.asarray(init.kernels[-1])
        elif self.prior is not None:
            kernel = self.points.expand(np.asarray(self.prior))
        else:
            kernel = self.points.expand(np.asarray(self.draw([seed, 0], self.unstretched, PILOT)[1].prior))
        return self.readout(kernel).v

    def readout(self, kernel: np.ndarray) -> readout.Readout:
        return _readout(self.loss, jnp.asarray(kernel), self.data.y, self.data.beta, self.data.decay)

    @property
    def unstretched(self) -> Proposal:
        return dual.unstretched(self.root.shape[1])

    def pilot(self, v: Array, seed: int, count: int) -> tuple[Array, Proposal, bool]:
        """A first v, the directions along which the law it tilts is wider than the prior, and whether this worked up to the richness asked for: few samples may have no moments."""
        proposal = self.unstretched
        for turn, share in enumerate(_RAMP):
            epsilon, sample = self.draw([seed, 1, turn], proposal, count)
            state = self.newton(sample, v, richness=share)
            data = self.data._replace(richness=share * self.data.richness)
            activation = self.limit.network.activation
            matrix = np.asarray(
                _virial(activation, self.root, data, state.at, state.v, jnp.asarray(epsilon)), np.float64
            )
            if not (np.isfinite(matrix).all() and np.isfinite(np.asarray(state.v)).all()):
                return v, proposal, False
            v = state.v
            values, vectors = np.linalg.eigh(matrix)
            kept = np.flatnonzero(values > _NOTICED)[-2 * v.shape[1] :]
            proposal = Proposal(vectors[:, kept], np.minimum(values[kept], _LONGEST))
        return v, proposal, True


_readout = jax.jit(readout.solve, static_argnums=0)
_tilted = jax.jit(dual.tilted)
_moment = jax.jit(dual.moment)


def promising(limit: ANBK, X: np.ndarray, y: np.ndarray, *, seed: int = 0, precision: str = "float64") -> bool:
    """Whether a small pilot says that samples will carry the law with ease; `y` has shape (points, outputs). Called inside `precision.scope`."""
    if limit.network.depth != 1 or PER_POINT * len(X) > PILOT:
        return False
    problem = _Problem(limit, X, y, precision)
    v, proposal, whole = problem.pilot(problem.start(Start(), X, seed), seed, PILOT)
    if not whole:
        return False
    _, fresh = problem.draw([seed, 4], proposal, PILOT)
    at = _tilted(problem.data, fresh, v)
    share = float(dual.effective(at, fresh.weights))
    return share > SOUND and _pull(problem, v, np.zeros((0, problem.root.shape[1])), seed) < 0.9


def _pull(problem: _Problem, v: Array, draws: np.ndarray, seed: int) -> float:
    limit = problem.limit
    outer = -(limit.richness**2) / limit.decays[-1] * np.asarray(v @ v.T)
    key = jax.random.fold_in(jax.random.key(seed), 0xED6E)
    return edge.pull(limit.network.activation, problem.root, jnp.asarray(problem.points.collapse(outer)), draws, key)


# ---------------------------------------------------------------------------------------------------------------------
# The jackknife


class _Estimate(NamedTuple):
    """The kernel over distinct points, its bias taken out, and relative errors of it and of the outputs."""

    kernel: np.ndarray
    error: np.ndarray
    bias: float
    relative: float
    outputs: float
    settled: bool


@functools.partial(jax.jit, static_argnums=(0, 1))
def _leave_out(
    loss: Loss, dense: bool, data: Data, sample: Sample, known: Array | None, v: Array
) -> tuple[Array, Array, Array, Array, Array]:
    """The kernel and the outputs of the whole sample; then without each group in turn: mean change of the kernel, its squares' sum, outputs, and the last step's share of the way."""
    whole = dual.tilted(data, sample, v)
    # Steps with the whole sample's Hessian: parts are close to it, and each step gains that factor.
    step = _stepper(loss, dense, data, sample, whole)
    kernel = dual.moment(sample, whole)
    size = sample.weights.shape[0] // GROUPS

    def without(carry: tuple[Array, Array], group: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        kept = jnp.where(jnp.arange(GROUPS) == group, 0.0, GROUPS / (GROUPS - 1)).astype(v.dtype)
        part = dual.make_sample(sample.features, sample.weights * jnp.repeat(kept, size), known)

        def closer(_: int, place: tuple[Array, Tilted, Array]) -> tuple[Array, Tilted, Array]:
            u, at = place[:2]
            d = step(_residual(loss, data, u, at))
            return u + d, dual.tilted(data, part, u + d), jnp.linalg.norm(d)

        begin = (v, dual.tilted(data, part, v), jnp.zeros((), v.dtype))
        u, at, last = jax.lax.fori_loop(0, WARM, closer, begin)
        change = dual.moment(part, at) - kernel
        left = last / (jnp.linalg.norm(u - v) + jnp.finfo(v.dtype).eps * jnp.linalg.norm(v) + jnp.finfo(v.dtype).tiny)
        return (carry[0] + change / GROUPS, carry[1] + change**2), (at.slope, left)

    none = jnp.zeros_like(kernel)
    (shift, square), (slopes, left) = jax.lax.scan(without, (none, none), jnp.arange(GROUPS))
    return kernel, shift, square, slopes, jnp.max(left)


def _jackknife(problem: _Problem, sample: Sample, state: _State) -> _Estimate:
    found = _leave_out(problem.loss, problem.dense, problem.data, sample, problem.prior, state.v)
    kernel, shift, square, slopes = (np.asarray(array, np.float64) for array in found[:4])
    if not all(np.isfinite(array).all() for array in (shift, square, slopes)):  # groups whose v ran away
        nothing = float("inf")
        return _Estimate(kernel, np.full_like(kernel, nothing), nothing, nothing, nothing, False)
    spread = np.sqrt((GROUPS - 1) / GROUPS * np.maximum(square - GROUPS * shift**2, 0.0))
    scatter = np.std(slopes, axis=0) * np.sqrt(GROUPS - 1)
    bias = (GROUPS - 1) * shift
    # Where groups differ by rounding alone there is no way to be part of.
    negligible = max(_ratio(spread, kernel), _ratio(scatter, slopes.mean(axis=0))) < _NEGLIGIBLE
    settled = float(found[4]) < _SETTLED or negligible
    return _Estimate(
        kernel=kernel - bias if settled else kernel,
        error=spread,
        bias=_ratio(bias, kernel),
        relative=_ratio(spread, kernel),
        outputs=_ratio(scatter, slopes.mean(axis=0)),
        settled=settled,
    )


def _ratio(part: np.ndarray, whole: np.ndarray) -> float:
    scale = float(np.linalg.norm(whole))
    return float(np.linalg.norm(part)) / scale if scale > 0 else 0.0


# ---------------------------------------------------------------------------------------------------------------------
# The solver


def solve(
    limit: ANBK,
    X: np.ndarray,
    y: np.ndarray,
    *,
    seed: int,
    precision: str,
    particles: int | None,
    tolerance: float,
    steps: int,
    budget: int,
    init: Start,
    checkpoint: Checkpoint,
    progress: Progress,
) -> Answer:
    """Solve a two-layer aNBK limit; `y` has shape (points, outputs). Called inside `precision.scope`.

    Args:
        particles: samples to begin with, chosen where None; doubled until the tolerance is met or the budget does not hold them.
        tolerance: relative standard error of the kernel (Frobenius norm) and of the outputs.
        steps: most Newton steps on one sample.
        budget: bytes for a sample and what is computed from it.
        init: kernels of the same points, whose readout is the start.
        checkpoint: not used: the work takes seconds.
    """
    dual.check_limit(limit)
    problem = _Problem(limit, X, y, precision)
    size, item = len(problem.points.first), np.dtype(precision).itemsize
    row = item * (5 * size + (2 * size * y.shape[1] // GROUPS if problem.dense else 0))
    most = max(GROUPS, budget // row // GROUPS * GROUPS)
    wanted = max(LEAST, _power(PER_POINT * len(X))) if particles is None else particles
    count = min(most, -(-wanted // GROUPS) * GROUPS)
    memory.require(
        row * count + 12 * item * len(X) ** 2, f"{count} samples of {len(X)} points", "fewer training points"
    )
    steps = min(steps, MOST)
    threads = 1 if len(X) < _THREADED else None
    with threadpool_limits(threads, user_api="blas"), progress.task("dual", total=4) as advance:
        v = problem.start(init, X, seed)
        v, proposal, _ = problem.pilot(v, seed, min(most, PILOT))
        advance("pilot")
        turn = 0
        while True:
            sample = problem.draw([seed, 2, turn], proposal, count)[1]
            state = problem.newton(sample, v, steps)
            share = float(dual.effective(state.at, sample.weights))  # more of what v was fitted to than of others
            estimate = _jackknife(problem, sample, state)
            error = max(estimate.relative, estimate.outputs)
            advance(f"{count} samples, error {error:.2g}")
            if not error > tolerance or count >= most or not share >= EFFECTIVE:
                break  # done, or more samples do not help
            factor = min(8, max(2, _power(int(np.ceil((error / tolerance) ** 2)))))
            count, v, turn = min(most, factor * count), state.v, turn + 1
        return _answer(problem, estimate, state, proposal, count, tolerance, seed)


def _power(number: int) -> int:
    """The next power of two: few shapes, compiled once."""
    return 1 << max(0, number - 1).bit_length()


def _answer(
    problem: _Problem,
    estimate: _Estimate,
    state: _State,
    proposal: Proposal,
    count: int,
    tolerance: float,
    seed: int,
) -> Answer:
    limit, points = problem.limit, problem.points
    dtype = np.dtype(str(problem.root.dtype))
    kernel = points.expand(estimate.kernel).astype(dtype)
    inner = problem.readout(kernel)
    v = np.asarray(inner.v)
    outputs = kernel @ v / limit.decays[-1]
    epsilon, fresh = problem.draw([seed, 3], proposal, count)
    at = _tilted(problem.data, fresh, inner.v)
    weights = np.asarray(at.tilt, np.float64)
    share = float(dual.effective(at, fresh.weights))
    draws = _resample(epsilon, weights, np.random.default_rng([seed, 5])).astype(dtype)
    pull = _pull(problem, inner.v, draws, seed)
    error = max(estimate.relative, estimate.outputs)
    status = _status(estimate, state, share, pull, error, tolerance)
    stats: dict[str, Any] = {
        "solver": "dual",
        "steps": int(state.steps),
        "samples": count,
        "tolerance": tolerance,
        "ess": share,
        "stretch": [float(t) for t in proposal.stretch],
        "pull": pull if np.isfinite(pull) else None,
        "relative_error": error,
        "output_error": estimate.outputs,
        "bias": {"samples": estimate.bias},
        "newton": {"steps": int(state.steps), "residual": float(state.residual)},
        "groups": GROUPS,
        "snapshots": 1,
        "root": problem.report,
    }
    return Answer(
        kernels=(kernel,),
        kernel=kernel,
        coefficients=(v / limit.decays[-1]).astype(dtype),
        fitted=np.asarray(problem.loss.link(jnp.asarray(outputs, dtype))),
        errors=(v / limit.beta).astype(dtype),
        kernel_errors=(points.expand(estimate.error).astype(dtype),),
        duals=((-(limit.richness**2) / limit.decays[-1] * v @ v.T).astype(dtype),),
        draws=(draws,),
        converged=not status,
        status=status
        or f"{int(state.steps)} Newton steps on {count} samples; kernel and outputs known to {error:.2g} (asked: {tolerance:.2g})",
        stats=stats,
    )


def _resample(epsilon: np.ndarray, weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Neurons of the tilted law, (groups × drawn, rank), by systematic resampling within each group."""
    rows = epsilon.reshape(GROUPS, -1, epsilon.shape[1])
    shares = weights.reshape(GROUPS, -1)
    kept = []
    for group, share in zip(rows, shares, strict=True):
        total = np.cumsum(share)
        comb = (np.arange(DRAWN) + rng.uniform()) * (total[-1] / DRAWN)
        kept.append(group[np.minimum(np.searchsorted(total, comb), len(group) - 1)])
    return np.concatenate(kept)


def _status(estimate: _Estimate, state: _State, share: float, pull: float, error: float, tolerance: float) -> str:
    """Why the answer is not to be trusted, or nothing."""
    finite = np.isfinite(error) and bool(np.isfinite(estimate.kernel).all())
    if not pull < 1:
        return (
            "the tilt of large neurons is beyond what their prior bears, so that no sample of it carries the law; "
            'use solver="particles"'
        )
    if not finite or not share >= EFFECTIVE:
        return f'{share:.2g} of a fresh sample is effective, too little (least: {EFFECTIVE:g}); use solver="particles"'
    accuracy = _TOLERANCE[str(state.v.dtype)]
    if not (float(state.residual) <= 100 * accuracy or (bool(state.stalled) and float(state.residual) < 1e-4)):
        return (
            f"{int(state.steps)} Newton steps left a residual of {float(state.residual):.2g}; "
            'give more steps, or use solver="particles"'
        )
    if not estimate.settled:
        return f'eight groups of samples differ too much for their scatter to be an error ({error:.2g}); use solver="particles"'
    if error > tolerance:
        return (
            f"as many samples as memory allows give kernel and outputs to {error:.2g} (asked: {tolerance:.2g}); "
            'give more memory or a larger tolerance, or use solver="particles"'
        )
    return ""
