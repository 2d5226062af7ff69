r"""The published algorithm: descent on the kernels, ascent on their duals, with importance sampling from the prior.

Algorithm 1 and appendix "Min-Max optimization" of Lauditi, Bordelon & Pehlevan (ICML 2025), here as a yardstick; `particles` is what `solve` uses. With

$$S=-\tfrac12\sum_\ell\mathrm{Tr}\,\Phi^\ell\hat\Phi^\ell+E(\Phi^L)-\sum_{\ell=1}^L\ln Z_\ell,\qquad
  Z_\ell\approx\tfrac1B\sum_{k=1}^B e^{-\frac12\varphi(h_k)^\top\hat\Phi^\ell\varphi(h_k)},\quad h_k=A(\Phi^{\ell-1}/\lambda_{\ell-1})\,\varepsilon_k,$$

one outer step is `inner` ascents $\hat\Phi\leftarrow\hat\Phi+\eta_{\hat\Phi}\,\partial S/\partial\hat\Phi$ and one descent $\Phi\leftarrow\Phi-\eta_\Phi\,\partial S/\partial\Phi$, each with a
fresh batch $\varepsilon$ and derivatives by automatic differentiation, through the root $A$ too.

It stops when both halves of the saddle hold in units of the kernels, averaged over a window of outer steps:

$$|\langle\varphi\varphi^\top\rangle_\ell-\Phi^\ell|\le\text{tolerance}\cdot|\Phi^\ell|,\qquad |\Phi^\ell\,(2\,\partial S/\partial\Phi^\ell)\,\Phi^\ell|\le\text{tolerance}\cdot|\Phi^\ell| .$$

$2\,\partial S/\partial\Phi^\ell$ is the dual's error, and the second product what that error is worth in the kernel (to first order, for linear layers).
"""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from threadpoolctl import threadpool_limits

from adakern import inputs, linalg, memory
from adakern.activations import Activation
from adakern.limits import readout
from adakern.limits.anbk import ANBK
from adakern.limits.base import Answer
from adakern.losses import Squared
from adakern.progress import Progress

Kernels = tuple[Array, ...]
Watch = Callable[[int, float, tuple[np.ndarray, ...]], bool]

_WINDOW = 20  # outer steps over which the equations are averaged before they are judged
_CHUNK = 0.5  # seconds between looks at the clock
_GROUPS, _DRAWS = 8, 2048  # neurons kept for predictions: groups, and the most in each
_LEAST_ESS = 100  # below, weighted averages are 10 % off at best, and so are their own standard errors
_BROKEN = 'the descent left the cone of positive matrices; use solver="particles" (the default) instead'
_LOSS = Squared()
_THREADED = 512  # points from which a factorisation is worth several threads


class Data(NamedTuple):
    """The arrays of a problem."""

    root: Array  # of Φ⁰/λ_0 over distinct points
    member: Array  # position of every point among the distinct ones
    y: Array
    richness: Array
    beta: Array
    decays: Array


class State(NamedTuple):
    """What an ascent step changes. Kernels and duals are over distinct points."""

    kernels: Kernels
    duals: Kernels
    key: Array
    last: Array  # the key of the latest ascent's batch
    ticks: Array  # ascent steps so far
    ascents: Kernels  # sums of ∂S/∂Φ̂ and of ∂S/∂Φ over the window
    descents: Kernels
    sound: Array  # False once a step would leave the cone of positive matrices; that step is not made


def solve(
    limit: ANBK,
    X: np.ndarray,
    y: np.ndarray,
    *,
    seed: int,
    precision: str,
    samples: int = 20000,
    inner: int = 200,
    outer: int = 20000,
    rates: tuple[float, float] = (1e-5, 1e-4),
    tolerance: float = 1e-2,
    seconds: float | None = None,
    progress: Progress,
    start: tuple[np.ndarray, ...] | None = None,
    watch: Watch | None = None,
) -> Answer:
    """Solve an aNBK limit with the squared loss; `y` has shape (points, outputs). Called inside `precision.scope`.

    Args:
        samples: batch per layer and step.
        inner: ascent steps on the duals before each descent step on the kernels.
        outer: most descent steps.
        rates: step lengths of kernels and of duals.
        tolerance: relative violation of the saddle equations, in the kernels' units, at which to stop.
        seconds: wall clock, compilation included, after which to stop.
        start: kernels over all points to begin from, those of a network for instance; by default the lazy ones, sampled.
        watch: called with (outer steps, seconds, kernels) whenever the kernels have moved and about half a second has passed; True ends the run.
    """
    if limit.loss != "squared":
        raise NotImplementedError(f"the published algorithm is for the squared loss, not for {limit.loss!r}")
    if samples < 2 * _GROUPS:
        raise ValueError(f"samples must be at least {2 * _GROUPS}, but it is {samples}")
    clock = time.perf_counter()
    points, depth = inputs.distinct(X), limit.network.depth
    size = len(points.first)
    needed = np.dtype(precision).itemsize * (8 * depth * samples * size + (8 * depth + 8) * len(X) ** 2)
    memory.require(needed, f"{samples} samples of {len(X)} points", "fewer samples")
    root, report = inputs.root(limit.network, X[points.first], limit.decays[0])
    numbers = (jnp.asarray(limit.richness), jnp.asarray(limit.beta), jnp.asarray(limit.decays))
    data = Data(root, jnp.asarray(points.member), jnp.asarray(y), *numbers)

    # Threads of the linear algebra library wait for each other longer than a small factorisation takes.
    threads = 1 if len(X) < _THREADED else None
    with threadpool_limits(threads, user_api="blas"), progress.task("min-max", total=outer) as advance:
        run = _Run(limit, data, points, samples, inner, rates, clock)
        state = run.begin(seed, start)
        state, converged, status = run.iterate(state, outer, tolerance, seconds, watch, advance)
        return _answer(run, state, y, converged, status, report)


class _Run(NamedTuple):
    """The problem with its settings, and the loop that looks at the clock."""

    limit: ANBK
    data: Data
    points: inputs.Distinct
    samples: int
    inner: int
    rates: tuple[float, float]
    clock: float

    def elapsed(self) -> float:
        return time.perf_counter() - self.clock

    def expand(self, kernels: Kernels) -> tuple[np.ndarray, ...]:
        return tuple(self.points.expand(np.asarray(kernel)) for kernel in kernels)

    def begin(self, seed: int, start: tuple[np.ndarray, ...] | None) -> State:
        key, now = jax.random.split(jax.random.key(seed))
        depth, shape = self.limit.network.depth, (len(self.data.member),) * 2
        if start is None:
            kernels = _lazy(self.limit.network.activation, self.data, noise(self.data, depth, self.samples, now))
        elif len(start) != depth or any(np.shape(kernel) != shape for kernel in start):
            raise ValueError(f"start must hold {depth} kernels of shape {shape}, one per hidden layer")
        else:
            picked = [self.points.pick(np.asarray(kernel)) for kernel in start]
            kernels = tuple(_symmetric(jnp.asarray(kernel, self.data.root.dtype)) for kernel in picked)
        zeros = tuple(jnp.zeros_like(kernel) for kernel in kernels)
        return State(kernels, zeros, key, now, jnp.asarray(0), zeros, zeros, jnp.asarray(True))

    def iterate(
        self, state: State, outer: int, tolerance: float, seconds: float | None, watch: Watch | None, advance: Any
    ) -> tuple[State, bool, str]:
        """Chunks of ascents as long as the clock allows, none across the end of a window: what a seed gives does not depend on the clock."""
        done, seen, total, chunk, violation = 0, 0, outer * self.inner, 1, np.inf
        window = _WINDOW * self.inner
        activation, inner = self.limit.network.activation, jnp.asarray(self.inner)
        rates = tuple(jnp.asarray(rate, self.data.root.dtype) for rate in self.rates)
        while done < total:
            count = min(chunk, total - done, window - done % window)
            began = time.perf_counter()
            state = _advance(activation, self.samples, self.data, state, rates, inner, jnp.asarray(count))
            if not bool(state.sound):  # waits for the device
                return state, False, _BROKEN
            done += count
            # The first chunk compiled, so its time says nothing; growth is bounded where a chunk was too short to time.
            pace = _CHUNK / max(time.perf_counter() - began, 1e-6)
            chunk = 1 if done == count else max(1, int(count * min(pace, 10.0)))
            steps = done // self.inner
            advance(f"{self.elapsed():.0f} s", steps - seen)
            if steps > seen and watch is not None and watch(steps, self.elapsed(), self.expand(state.kernels)):
                return state, False, f"ended by watch after {steps} outer steps"
            seen = steps
            if done % window == 0:
                violation = _violation(state, window, _WINDOW)
                if violation <= tolerance:
                    return state, True, f"the saddle equations hold to {violation:.2g} (asked: {tolerance:.2g})"
                zeros = tuple(jnp.zeros_like(kernel) for kernel in state.kernels)
                state = state._replace(ascents=zeros, descents=zeros)
            if seconds is not None and self.elapsed() >= seconds:
                return state, False, f"{seconds:g} seconds were over after {steps} of {outer} outer steps"
        return (
            state,
            False,
            f"the saddle equations hold to {violation:.2g} only (asked: {tolerance:.2g}) after {outer} outer steps",
        )


def _violation(state: State, ascents: int, descents: int) -> float:
    """The larger of the two relative violations in the module's docstring, over all layers."""
    worst = 0.0
    for kernel, up, down in zip(*jax.device_get((state.kernels, state.ascents, state.descents)), strict=True):
        scale = float(np.linalg.norm(kernel))
        moment = 2 * np.linalg.norm(up) / ascents
        slope = 2 * np.linalg.norm(kernel @ down @ kernel) / descents
        worst = max(worst, float(moment) / scale, float(slope) / scale)
    return worst


def noise(data: Data, depth: int, samples: int, key: Array) -> Kernels:
    """White coordinates of a batch of neurons from the prior, for every layer."""
    size, rank = data.root.shape
    shapes = [(samples, rank if layer == 0 else size) for layer in range(depth)]
    keys = jax.random.split(key, depth)
    return tuple(jax.random.normal(k, shape, data.root.dtype) for k, shape in zip(keys, shapes, strict=True))


def action(activation: Activation, data: Data, kernels: Kernels, duals: Kernels, epsilons: Kernels) -> Array:
    r"""$S$ as the batch estimates it, over distinct points."""
    full = kernels[-1][data.member][:, data.member]
    total = readout.energy(_LOSS, full, data.y, data.richness, data.beta, data.decays[-1])
    roots = _roots(data, kernels)
    for kernel, dual, root, epsilon in zip(kernels, duals, roots, epsilons, strict=True):
        exponents, _ = _site(activation, root, dual, epsilon)
        total = total - 0.5 * jnp.sum(kernel * dual)
        total = total - jax.scipy.special.logsumexp(exponents) + np.log(len(epsilon))
    return total


def _roots(data: Data, kernels: Kernels) -> Kernels:
    """Of the covariance of each layer's fields. The input's never changes; those of kernels are differentiated."""
    above = zip(kernels[:-1], data.decays[1:-1], strict=True)
    return (data.root, *(linalg.cholesky_root(kernel / decay) for kernel, decay in above))


def _site(activation: Activation, root: Array, dual: Array, epsilon: Array) -> tuple[Array, Array]:
    r"""Exponents $-\frac12\varphi^\top\hat\Phi\varphi$ of a batch, and its features."""
    features = activation(jnp.matmul(epsilon, root.T, precision="highest"))
    return -0.5 * jnp.sum(features * jnp.matmul(features, dual, precision="highest"), axis=1), features


def _symmetric(matrix: Array) -> Array:
    return (matrix + matrix.T) / 2


@functools.partial(jax.jit, static_argnums=0)
def _lazy(activation: Activation, data: Data, epsilons: Kernels) -> Kernels:
    kernels: list[Array] = []
    for layer, epsilon in enumerate(epsilons):
        root = data.root if layer == 0 else linalg.cholesky_root(kernels[-1] / data.decays[layer])
        features = activation(jnp.matmul(epsilon, root.T, precision="highest"))
        kernels.append(_symmetric(jnp.matmul(features.T, features, precision="highest")) / len(epsilon))
    return tuple(kernels)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _advance(
    activation: Activation, samples: int, data: Data, state: State, rates: Kernels, inner: Array, count: Array
) -> State:
    """`count` ascents, with a descent after every `inner` of them since the start; fewer where a step breaks."""
    depth = len(state.kernels)

    def slopes(kernels: Kernels, duals: Kernels, key: Array, which: int) -> Kernels:
        batch = noise(data, depth, samples, key)
        gradient = jax.grad(lambda k, d: action(activation, data, k, d, batch), argnums=which)(kernels, duals)
        return tuple(map(_symmetric, gradient))

    def add(first: Kernels, second: Kernels, factor: Array | float = 1.0) -> Kernels:
        return tuple(a + factor * b for a, b in zip(first, second, strict=True))

    def sound(kernels: Kernels, duals: Kernels) -> Array:
        full = kernels[-1][data.member][:, data.member]
        parts = (*duals, *_roots(data, kernels), readout.readout(_LOSS, full, data.y, data.beta, data.decays[-1]))
        return jnp.all(jnp.stack([jnp.all(jnp.isfinite(part)) for part in parts]))

    def descend(state: State) -> State:
        key, now = jax.random.split(state.key)
        slope = slopes(state.kernels, state.duals, now, 0)
        kernels = add(state.kernels, slope, -rates[0])
        fresh = state._replace(kernels=kernels, key=key, descents=add(state.descents, slope))
        broken = state._replace(sound=jnp.asarray(False))
        return jax.lax.cond(sound(kernels, state.duals), lambda: fresh, lambda: broken)

    def ascend(carry: tuple[Array, State]) -> tuple[Array, State]:
        state = carry[1]
        key, now = jax.random.split(state.key)
        slope = slopes(state.kernels, state.duals, now, 1)
        duals, ticks = add(state.duals, slope, rates[1]), state.ticks + 1
        state = state._replace(duals=duals, key=key, last=now, ticks=ticks, ascents=add(state.ascents, slope))
        return carry[0] + 1, jax.lax.cond(ticks % inner == 0, descend, lambda state: state, state)

    return jax.lax.while_loop(lambda c: (c[0] < count) & c[1].sound, ascend, (jnp.zeros_like(count), state))[1]


@functools.partial(jax.jit, static_argnums=0)
def weigh(activation: Activation, root: Array, dual: Array, epsilon: Array) -> tuple[Array, Array, Array, Array]:
    r"""A batch's weights $w_k$, normalised; its effective size $1/\sum w^2$; $m=\sum w_k\varphi_k\varphi_k^\top$; and the standard error of each entry of $m$.

    The delta method: $\sum_kw_k^2(\varphi_k\varphi_k^\top-m)^2$ is the variance, entry by entry.
    """
    exponents, features = _site(activation, root, dual, epsilon)
    weights = jax.nn.softmax(exponents)
    total = jnp.sum(weights**2)

    def sums(weight: Array, values: Array) -> Array:
        return jnp.matmul((weight[:, None] * values).T, values, precision="highest")

    moment = sums(weights, features)
    variance = sums(weights**2, features**2) - 2 * moment * sums(weights**2, features) + moment**2 * total
    return weights, 1 / total, moment, jnp.sqrt(jnp.maximum(variance, 0.0))


def _resample(weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Indices drawn by their weights, group by group: groups share no sample, so that their scatter is an error.

    Systematic resampling: one random offset, then equal spacing on the cumulative weights.
    """
    members = len(weights) // _GROUPS
    kept = min(_DRAWS, members)
    found = []
    for group in range(_GROUPS):
        cumulative = np.cumsum(weights[group * members : (group + 1) * members], dtype=np.float64)
        places = (rng.uniform() + np.arange(kept)) / kept * cumulative[-1]
        found.append(group * members + np.minimum(np.searchsorted(cumulative, places), members - 1))
    return np.concatenate(found)


def _answer(run: _Run, state: State, y: np.ndarray, converged: bool, status: str, report: dict[str, Any]) -> Answer:
    limit, data, points, activation = run.limit, run.data, run.points, run.limit.network.activation
    roots = _roots(data, state.kernels)
    depth = limit.network.depth
    fitted_to, fresh = (noise(data, depth, run.samples, key) for key in (state.last, jax.random.split(state.key)[1]))
    rng = np.random.default_rng(np.asarray(jax.random.key_data(state.key)))
    errors, draws, shares, own, ess = [], [], [], [], []
    for root, dual, epsilon, seen in zip(roots, state.duals, fresh, fitted_to, strict=True):
        weights, size, _, error = jax.device_get(weigh(activation, root, dual, epsilon))
        errors.append(points.expand(error))
        draws.append(np.asarray(epsilon)[_resample(weights, rng)])
        shares.append(float(weights.max()))
        ess.append(float(size))
        own.append(float(weigh(activation, root, dual, seen)[1]))
    # With fewer effective neurons than points a kernel, a mean of rank-one matrices, has not even its rank.
    least = max(_LEAST_ESS, len(points.first))
    complaints = []
    if min(ess + own) < least:
        complaints.append(
            f"the effective sample size of {run.samples} prior samples is {min(ess + own):.0f} (below {least}), so the estimate is meaningless; "
            'use solver="particles" (the default), or a smaller richness'
        )
        warnings.warn(complaints[-1], RuntimeWarning, stacklevel=3)
    kernels = run.expand(state.kernels)
    v = np.asarray(
        jax.jit(readout.readout, static_argnums=0)(_LOSS, jnp.asarray(kernels[-1]), data.y, data.beta, data.decays[-1])
    )
    fitted = kernels[-1] @ v / limit.decays[-1]
    stats = {
        "solver": "minmax",
        "samples": run.samples,
        "steps": int(state.ticks) // run.inner,
        "inner": run.inner,
        "inner_steps": int(state.ticks),
        "rates": list(run.rates),
        "ess": own,  # on the batch of the last ascent
        "ess_fresh": ess,  # on a batch that no step has seen
        "weight_share": max(shares),
        "groups": _GROUPS,
        "warnings": complaints,
        "root": report,
    }
    return Answer(
        kernels=kernels,
        kernel=kernels[-1],
        coefficients=v / limit.decays[-1],
        fitted=fitted,
        errors=y - fitted,
        kernel_errors=tuple(errors),
        duals=tuple(points.spread(np.asarray(dual)) for dual in state.duals),
        draws=tuple(draws),
        converged=converged and not complaints,
        status="; ".join([status, *complaints]),
        stats=stats,
    )
