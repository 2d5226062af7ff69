r"""Langevin steps of a network of finite width, compiled, without a word to the host.

Weights are held white, $\varepsilon^\ell=\sqrt{\lambda_\ell}W^\ell$, so that the posterior is
$\exp(-\beta\gamma^2\mathcal L-\tfrac12\sum_\ell|\varepsilon^\ell|^2)$.

* **BAOAB**, underdamped: blocks of `leap` kicks between refreshments of the momenta,
  $$O\;(A_{1/2}\,B\,A_{1/2})^{\text{leap}},\qquad A:\varepsilon\mathrel{+}=\mathrm dt\,p,\quad B:p\mathrel{+}=-\mathrm dt\,\nabla U,\quad
    O:p\leftarrow e^{-c}p+\sqrt{1-e^{-2c}}\,\xi,\; c=\text{friction}\cdot\text{leap}\,\mathrm dt.$$
  With one kick a block this is BAOAB (Leimkuhler & Matthews 2013). Drift and kick conserve a shadow energy whatever their number, so that refreshing less often costs
  no accuracy, and saves most random numbers. Positions are measured where the force is: there the stationary variance of a harmonic mode is exact at any stable step.
* **Euler-Maruyama**, overdamped: $\mathrm d\theta=-(\beta\gamma^2\nabla\mathcal L+\lambda\theta)\,\mathrm d\tau+\sqrt2\,\mathrm dW$, whose
  harmonic variances are off by a factor $1/(1-\omega\,\mathrm d\tau/2)$.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from adakern.finite.model import Model, Weights

SAMPLERS = ("baoab", "euler")


class Problem(NamedTuple):
    """The arrays of a posterior."""

    rows: Array  # input coordinates of the training points, times the first layer's scale
    y: Array
    scales: Array  # of the layers' inputs, with the root of the prior variance
    strength: Array  # βγ²
    mobility: Array  # per layer, of the overdamped dynamics: λ
    test_rows: Array
    test_root: Array  # root of the covariance of what h¹ has outside the span of the training inputs, (tests, positions, positions)
    y_test: Array


class State(NamedTuple):
    """Replicas side by side: every array has a leading replica axis."""

    weights: Weights
    momenta: Weights
    key: Array


class Means(NamedTuple):
    """Means over the blocks of one call, of every replica."""

    kernels: tuple[Array, ...]
    outputs: Array  # f = σ(s)
    squares: Array  # (f - y)²: around the targets no digits are lost
    test: Array
    test_squares: Array
    summaries: Array  # (replicas, scalars): loss, test loss, temperature, then tr Φ^ℓ, yᵀΦ^ℓy and the concentration of each layer
    summary_squares: Array


class Measured(NamedTuple):
    kernels: tuple[Array, ...]
    outputs: Array
    loss: Array
    scalars: Array


def over_replicas(function: Any, weights: Weights, *rest: Any) -> Any:
    """`function` of each replica's weights. A single one is not batched, which compiles to better matrix products."""
    if weights[0].shape[0] > 1:
        return jax.vmap(function)(weights, *rest)
    squeezed = jax.tree.map(lambda part: part[0], (weights, *rest))
    return jax.tree.map(lambda part: part[None], function(*squeezed))


def _forces(model: Model, problem: Problem, weights: Weights) -> tuple[Weights, Array, tuple[Array, ...]]:
    gradient, s, features = model.gradient(weights, problem.rows, problem.y, problem.scales)
    return tuple(-w - problem.strength * g for w, g in zip(weights, gradient, strict=True)), s, features


def _measure(model: Model, problem: Problem, s: Array, features: tuple[Array, ...]) -> Measured:
    kernels = model.kernels(features)
    loss = jnp.sum(model.loss.value(problem.y, s))
    scalars = []
    for kernel, values in zip(kernels, features, strict=True):
        points = len(problem.y)
        sites = kernel.shape[0] // points
        coarse = kernel if sites == 1 else jnp.einsum("asbs->ab", kernel.reshape(points, sites, points, sites))
        overlap = jnp.sum(problem.y * jnp.matmul(coarse, problem.y, precision=model.matmul))
        # Whether many neurons make up the kernel or few: exchange between neurons is the slowest motion there is.
        shares = jnp.sum(values * values, axis=0)
        tiny = jnp.finfo(shares.dtype).tiny
        scalars += [jnp.trace(coarse), overlap, jnp.mean(shares**2) / jnp.maximum(jnp.mean(shares) ** 2, tiny)]
    return Measured(kernels, model.loss.link(s), loss, jnp.stack(scalars))


def _test(model: Model, problem: Problem, weights: Weights, key: Array) -> tuple[Array, Array, Array]:
    """Outputs at the test points, their squares around the targets, and the loss, of each replica. What h¹ has outside the span of the training inputs is drawn afresh from its prior."""
    if problem.test_rows.shape[0] == 0:
        replicas = weights[0].shape[0]
        empty = jnp.zeros((replicas, 0, problem.y.shape[1]), problem.y.dtype)
        return empty, empty, jnp.zeros(replicas, problem.y.dtype)
    outputs = functools.partial(model.outputs_of, rows=problem.test_rows, scales=problem.scales)
    if problem.test_root.size:
        shape = (weights[0].shape[0], *problem.test_root.shape[:2], model.width)
        drawn = jax.random.normal(key, shape, problem.y.dtype)
        outside = jnp.einsum("qab,rqbn->rqan", problem.test_root, drawn, precision=model.matmul)
        offset = outside.reshape(shape[0], -1, model.width)
        s = over_replicas(lambda weights, offset: outputs(weights, offset=offset), weights, offset)
    else:
        s = over_replicas(outputs, weights)
    loss = jnp.sum(model.loss.value(problem.y_test[None], s), axis=-1)
    f = model.loss.link(s)
    return f, (f - problem.y_test[None]) ** 2, loss


def _normal(key: Array, like: Weights) -> Weights:
    keys = jax.random.split(key, len(like))
    return tuple(jax.random.normal(k, w.shape, w.dtype) for k, w in zip(keys, like, strict=True))


def _axpy(x: Weights, a: Any, y: Weights) -> Weights:
    return tuple(p + a * q for p, q in zip(x, y, strict=True))


@functools.partial(jax.jit, static_argnames=("model", "sampler", "blocks"))
def advance(
    model: Model,
    sampler: str,
    blocks: int,
    problem: Problem,
    state: State,
    step: Array,
    friction: Array,
    leap: Array,
) -> tuple[State, Means, Array]:
    """`blocks` blocks of `leap` steps each: the new state, means over blocks, and the loss after each block, (blocks, replicas)."""
    forces = functools.partial(_forces, model, problem)
    decay = jnp.exp(-friction * step * leap)
    noise = jnp.sqrt(-jnp.expm1(-2 * friction * step * leap))
    dtype = state.weights[0].dtype
    size = sum(w.size for w in state.weights) // state.weights[0].shape[0]

    def underdamped(state: State) -> tuple[State, Weights]:
        """One block; the positions of its last kick come out too."""
        key, now = jax.random.split(state.key)
        momenta = _axpy(tuple(decay * p for p in state.momenta), noise, _normal(now, state.momenta))

        def kick(_: Any, carry: tuple[Weights, Weights]) -> tuple[Weights, Weights]:
            weights, momenta = carry
            force, _, _ = over_replicas(forces, weights)
            momenta = _axpy(momenta, step, force)
            return _axpy(weights, step, momenta), momenta

        weights = _axpy(state.weights, 0.5 * step, momenta)
        weights, momenta = jax.lax.fori_loop(0, leap - 1, kick, (weights, momenta))
        return State(weights, momenta, key), weights

    def overdamped(state: State) -> tuple[State, Weights]:
        key, now = jax.random.split(state.key)

        def move(_: Any, carry: tuple[Weights, Array]) -> tuple[Weights, Array]:
            weights, key = carry
            key, now = jax.random.split(key)
            force, _, _ = over_replicas(forces, weights)
            return _drift(weights, force, now), key

        weights, _ = jax.lax.fori_loop(0, leap - 1, move, (state.weights, now))
        return State(weights, state.momenta, key), weights

    def _drift(weights: Weights, force: Weights, key: Array) -> Weights:
        moved = []
        for w, f, xi, rate in zip(weights, force, _normal(key, weights), problem.mobility, strict=True):
            moved.append(w + step * rate * f + jnp.sqrt(2 * step * rate) * xi)
        return tuple(moved)

    # Many test points cost more than a step: they are looked at as often as costs about as much as the training points.
    every = 1 << (min(blocks, max(1, len(problem.y_test) // len(problem.y))).bit_length() - 1)

    def block(carry: tuple[State, Means], index: Array) -> tuple[tuple[State, Means], Array]:
        state, means = carry
        state, at = (underdamped if sampler == "baoab" else overdamped)(state)

        def last(weights: Weights) -> tuple[Weights, Measured]:
            force, s, features = forces(weights)
            return force, _measure(model, problem, s, features)

        force, measured = over_replicas(last, at)
        key, test_key, drift_key = jax.random.split(state.key, 3)
        if sampler == "baoab":
            momenta = _axpy(state.momenta, step, force)
            temperature = sum(jnp.sum(p * p, axis=(1, 2)) for p in momenta) / size
            state = State(_axpy(at, 0.5 * step, momenta), momenta, key)
        else:
            temperature = jnp.ones(at[0].shape[0], dtype)
            state = State(_drift(at, force, drift_key), state.momenta, key)
        test, square, test_loss = jax.lax.cond(
            index % every == every - 1,
            lambda: jax.tree.map(lambda part: every * part, _test(model, problem, at, test_key)),
            lambda: jax.tree.map(lambda part: jnp.zeros(part.shape, part.dtype), unseen),
        )
        scalars = jnp.stack([measured.loss, test_loss, temperature], axis=1)
        summaries = jnp.concatenate([scalars, measured.scalars], axis=1)
        new = Means(
            measured.kernels,
            measured.outputs,
            (measured.outputs - problem.y[None]) ** 2,
            test,
            square,
            summaries,
            summaries**2,
        )
        return (state, jax.tree.map(jnp.add, means, new)), measured.loss

    empty = jax.tree.map(lambda part: jnp.zeros(part.shape, part.dtype), _means_like(model, problem, state))
    unseen = jax.eval_shape(functools.partial(_test, model, problem), state.weights, state.key)
    (state, sums), losses = jax.lax.scan(block, (state, empty), jnp.arange(blocks))
    return state, jax.tree.map(lambda part: part / blocks, sums), losses


def _means_like(model: Model, problem: Problem, state: State) -> Means:
    points, outputs = problem.y.shape
    replicas, dtype = state.weights[0].shape[0], problem.y.dtype
    sizes = [
        points * (1 if layer == model.depth else model.positions[layer - 1]) for layer in range(1, model.depth + 1)
    ]

    def array(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype)

    tests = len(problem.y_test)
    return Means(
        tuple(array(replicas, n, n) for n in sizes),
        array(replicas, points, outputs),
        array(replicas, points, outputs),
        array(replicas, tests, outputs),
        array(replicas, tests, outputs),
        array(replicas, 3 + 3 * model.depth),
        array(replicas, 3 + 3 * model.depth),
    )


def positions(state: State, step: Any, sampler: str) -> Weights:
    """Where the last force was evaluated: the weights to keep as a draw of the posterior."""
    return state.weights if sampler == "euler" else _axpy(state.weights, -0.5 * step, state.momenta)


@functools.partial(jax.jit, static_argnames=("shapes", "replicas", "dtype"))
def _prior(key: Array, shapes: tuple[tuple[int, int], ...], replicas: int, dtype: str) -> Weights:
    keys = jax.random.split(key, len(shapes))
    return tuple(jax.random.normal(k, (replicas, *shape), dtype) for k, shape in zip(keys, shapes, strict=True))


def start(shapes: tuple[tuple[int, int], ...], replicas: int, seed: int, dtype: str) -> State:
    """White weights and momenta from the prior, exactly."""
    low, high = seed % 2**32, seed // 2**32  # a key takes 32 bits at a time
    first, second = jax.random.split(jax.random.fold_in(jax.random.key(low), high))
    weights, momenta = (_prior(key, shapes, replicas, dtype) for key in (first, second))
    # The generator that XLA has built in: several times faster than the default one, on any device.
    return State(weights, momenta, jax.random.fold_in(jax.random.key(low, impl="rbg"), high))


@functools.partial(jax.jit, static_argnames=("model",))
def stiffness(model: Model, problem: Problem, weights: Weights, mobility: Array) -> Array:
    r"""Largest rate of the linearised dynamics, $\lambda_{\max}$ of $\beta\gamma^2\,\ell''J\,\mathrm{diag}(m)J^\top+m$, by power iteration.

    $J$ is the Jacobian of the outputs; for $m=\lambda$ and the squared loss this is $\beta\lambda_{\max}(K)$ plus the decay, $K$ the empirical tangent kernel. The loss' curvature is taken at its largest:
    1, 1/4 or 1/2. The worst replica counts.
    """
    curvature = {"squared": 1.0, "logistic": 0.25, "softmax": 0.5}[model.loss.name]

    def largest(weights: Weights) -> Array:
        outputs = functools.partial(model.outputs_of, rows=problem.rows, scales=problem.scales)
        s, pull = jax.vjp(outputs, weights)

        def iterate(_: Any, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            gradient = pull(carry[0])[0]
            scaled = tuple(m * g for m, g in zip(mobility, gradient, strict=True))
            image = jax.jvp(outputs, (weights,), (scaled,))[1]
            size = jnp.sqrt(jnp.sum(image * image))
            return image / jnp.maximum(size, jnp.finfo(size.dtype).tiny), size

        vector = jnp.ones_like(s) + 0.5 * jnp.cos(jnp.arange(s.size, dtype=s.dtype)).reshape(s.shape)
        unit = vector / jnp.sqrt(jnp.sum(vector**2))
        return jax.lax.fori_loop(0, 24, iterate, (unit, jnp.asarray(0.0, s.dtype)))[1]

    # Power iteration comes from below: a tenth more is closer to the truth.
    return 1.1 * curvature * problem.strength * jnp.max(over_replicas(largest, weights)) + jnp.max(mobility)
