r"""Gradient flow of an infinitely wide network of several hidden layers, in the fields of populations of neurons.

$$h^1=w\tilde x,\quad h^{\ell+1}=e^{-\lambda_\ell t}W^\ell_0\varphi(h^\ell)+\sum_{ij}Z^\ell_iC^\ell_{ij}\langle Y^\ell_j\varphi(h^\ell)\rangle,\quad s=\langle a\varphi(h^L)\rangle/\gamma_0,\qquad
\dot C^\ell_{ij}=\gamma_0\sum_\mu\Delta_\mu\langle Z_ig^{\ell+1}_\mu\rangle\langle Y_j\varphi^\ell_\mu\rangle-\lambda_\ell C^\ell_{ij},$$

with $W_0$, $Y$ and $Z$ of `deep_weights`. What training adds to a matrix, $\gamma_0\int ds\,e^{-\lambda(t-s)}\sum_\nu\Delta_\nu(s)\,g_\nu(s)\otimes\varphi_\nu(s)$, lies in the directions that were met: a matrix of their
number is all the memory there is, and what remains is an ordinary differential equation in $w,C,a$ without integrals over the past. $\dot w$ and $\dot a$ are those of one hidden layer.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from adakern import chebyshev
from adakern.activations import Activation
from adakern.chebyshev import Motion
from adakern.losses import Loss
from adakern.trajectories import deep_weights, kinks
from adakern.trajectories.deep_weights import Known, Side, Weights, coordinates, product

_WATCHED = 3.0  # bands around a kink within which neurons may slide
_LOOSE = 10.0  # errors of fields may be larger than those of outputs by this


class State(NamedTuple):
    """What moves: first-layer weights (rank, M), matrices in the directions that were met, times $M^{1/2}$, readouts (C, M), and what decay has left of the initial weights, (L,)."""

    w: Array
    C: tuple[Array, ...]
    a: Array
    fade: Array


class Bases(NamedTuple):
    """What is known of the initial weights: between hidden layers, of each hidden layer, and Gaussians for what new points have outside of it, (L, M)."""

    weights: tuple[Weights, ...]
    known: tuple[Known, ...]
    far: Array


class Problem(NamedTuple):
    """Data and numbers. `share` is $1/M$ for neurons and 1 for coordinates: averages are sums times it."""

    rows: Array
    y: Array
    richness: Array
    decays: Array
    accuracy: Array
    scale: Array
    least: Array
    share: Array


class Sweep(NamedTuple):
    """All fields of a moment, layer by layer; `weights` go with the rows of `gradients` where these meet features."""

    fields: tuple[Array, ...]
    features: tuple[Array, ...]
    gradients: tuple[Array, ...]
    up: tuple[Array, ...]
    down: tuple[Array, ...]
    outputs: Array
    delta: Array
    weights: Array
    sliding: Array  # the fastest rate of neurons at kinks


class Seen(NamedTuple):
    """What is recorded of a moment."""

    outputs: Array
    kernels: Array
    gradient_kernels: Array
    fields: Array
    readouts: Array
    features: Array
    gradients: Array
    forward: Array  # u, the Gaussian part of the fields of layers 2..L
    backward: Array  # r, that of the fields that gradients give in layers 1..L-1


@dataclass(frozen=True)
class Flow:
    """What the compiled functions are specialised to. `exact`: coordinates of a linear network. Without `responses` forward and backward fields are independent, which is wrong: for comparisons."""

    activation: Activation
    loss: Loss
    depth: int
    outputs: int
    jump: float = 0.0  # of the activation's slope, at the origin
    exact: bool = False
    responses: bool = True

    def above(self, problem: Problem, weights: Weights, rows: Array, inside: Array, fade: Array, C: Array) -> Array:
        """Fields that features (or, with the sides exchanged, gradients) give in the next layer, apart from the rest."""
        # Both what was learned and the response come in the directions of the other side: one product for the two.
        known = jnp.sqrt(problem.share) * product(inside, C.T)
        if self.responses:
            known = known + fade * deep_weights.answers(rows, weights.down, problem.share)
        return fade * product(inside, weights.up.given) + product(known, weights.down.asked)

    def gaussian(self, inside: Sequence[Array], sides: Sequence[Side], problem: Problem) -> Array:
        """What white rows give for these coordinates, a process for every matrix."""
        found = [
            product(one, side.given) + (0.0 if self.exact else side.rest)
            for one, side in zip(inside, sides, strict=True)
        ]
        return jnp.stack(found) if found else jnp.zeros((0, *problem.rows.shape), problem.rows.dtype)

    def sweep(self, problem: Problem, bases: Bases, state: State, key: Array | None = None) -> tuple[Bases, Sweep]:
        """Forward and backward through the network; with a key, directions that are met for the first time become known."""
        weights, known, share = list(bases.weights), list(bases.known), problem.share
        keys = None if key is None else jax.random.split(key, 2 * self.depth)
        fields = [product(problem.rows, state.w)]
        bands = [self.band(problem, jnp.sum(problem.rows**2, axis=1))]
        features = [kinks.value(self.activation, self.jump, fields[0], bands[0])]
        up: list[Array] = []
        for layer, fade in enumerate(state.fade[1:]):
            rows, (side, other) = features[-1], weights[layer]
            if keys is not None:
                side, known[layer], known[layer + 1] = deep_weights.ask(
                    side, rows, known[layer], known[layer + 1], keys[layer], problem.least, share, self.exact
                )
                weights[layer] = Weights(side, other)
            up.append(coordinates(rows, side, share))
            h = self.above(problem, weights[layer], rows, up[-1], fade, state.C[layer])
            if not self.exact:
                h = h + fade * side.rest
            fields.append(h)
            bands.append(self.band(problem, jnp.sum(rows**2, axis=1) * share))
            features.append(kinks.value(self.activation, self.jump, h, bands[-1]))
        s = product(features[-1], state.a.T) * share / problem.richness
        delta = self.loss.error(problem.y, s)
        # With one output gradients are fields of their own; with several, what is sent back is their sum, weighted by
        # errors over their size: what is too small to be remembered must not be all that is left late in training.
        size = jnp.sqrt(jnp.mean(delta * delta))
        seeds = state.a if self.outputs == 1 else product(delta / jnp.maximum(size, jnp.finfo(s.dtype).tiny), state.a)
        weighing = delta if self.outputs == 1 else jnp.full_like(delta[:, :1], size)
        g = kinks.slope(self.activation, self.jump, fields[-1], bands[-1]) * seeds
        gradients, pulls = [g], [jnp.broadcast_to(seeds, g.shape)]
        down: list[Array] = []
        for layer in range(self.depth - 2, -1, -1):
            side = weights[layer].down
            if keys is not None:
                side, known[layer + 1], known[layer] = deep_weights.ask(
                    side,
                    g,
                    known[layer + 1],
                    known[layer],
                    keys[self.depth + layer],
                    problem.least,
                    share,
                    self.exact,
                )
                weights[layer] = Weights(weights[layer].up, side)
            down.insert(0, coordinates(g, side, share))
            turned, fade = Weights(side, weights[layer].up), state.fade[layer + 1]
            z = self.above(problem, turned, g, down[0], fade, state.C[layer].T)
            if not self.exact:
                z = z + fade * side.rest
            g = kinks.slope(self.activation, self.jump, fields[layer], bands[layer]) * z
            gradients.insert(0, g)
            pulls.insert(0, z)
        sliding = self.sliding(problem, fields, bands, pulls, weighing) if self.jump else jnp.zeros((), s.dtype)
        found = Sweep(
            tuple(fields), tuple(features), tuple(gradients), tuple(up), tuple(down), s, delta, weighing, sliding
        )
        return Bases(tuple(weights), tuple(known), bases.far), found

    def band(self, problem: Problem, variance: Array) -> Array:
        """Half the width of a rounded kink, for fields whose Gaussians have these variances."""
        return kinks.BAND * problem.accuracy * jnp.sqrt(variance + jnp.finfo(variance.dtype).tiny ** 0.5)[:, None]

    def sliding(
        self, problem: Problem, fields: list[Array], bands: list[Array], pulls: list[Array], weights: Array
    ) -> Array:
        """The fastest rate at which neurons near a kink are drawn onto it."""
        rates = []
        for h, band, pull in zip(fields, bands, pulls, strict=True):
            variance = (band / (kinks.BAND * problem.accuracy)) ** 2
            drawn = jnp.maximum(-self.jump * problem.richness * weights * pull, 0.0) * variance / (2 * band)
            rates.append(jnp.max(jnp.sum(jnp.where(jnp.abs(h) < _WATCHED * band, drawn, 0.0), axis=0)))
        return jnp.max(jnp.stack(rates))

    def moving(self, problem: Problem, state: State, now: Sweep) -> State:
        """The velocity, from the fields."""
        pull, decays = problem.richness, problem.decays
        strength = pull / jnp.sqrt(problem.share)
        return State(
            pull * product((problem.rows * now.weights).T, now.gradients[0]) - decays[0] * state.w,
            tuple(
                strength * product((b * now.weights).T, c) - decay * C
                for b, c, C, decay in zip(now.down, now.up, state.C, decays[1:-1], strict=True)
            ),
            pull * product(now.delta.T, now.features[-1]) - decays[-1] * state.a,
            -decays[:-1] * state.fade,
        )

    def velocity(self, problem: Problem, bases: Bases, state: State) -> State:
        return self.moving(problem, state, self.sweep(problem, bases, state)[1])

    def inspect(self, problem: Problem, bases: Bases, state: State, error: State) -> tuple[Array, Array]:
        """How large an error is against the accuracy: by what it does to the outputs, and with less weight by its size in all weights."""
        _, now = self.sweep(problem, bases, state)
        s = now.outputs
        there = self.sweep(problem, bases, jax.tree.map(jnp.add, state, error))[1].outputs
        scale = jnp.maximum(problem.scale, jnp.sqrt(jnp.mean(s * s)))
        outputs = jnp.sqrt(jnp.mean((there - s) ** 2)) / scale
        size = jnp.maximum(outputs, relative(problem, state, error) / _LOOSE)
        return size / problem.accuracy, now.sliding + jnp.max(problem.decays)


def relative(problem: Problem, state: State, error: State) -> Array:
    """The size of an error in all weights together."""
    return chebyshev.length(error) / jnp.maximum(chebyshev.length(state), 0.1 / jnp.sqrt(problem.share))


def _motion(flow: Flow, problem: Problem, bases: Bases) -> tuple[chebyshev.Velocity, chebyshev.Inspect]:
    return functools.partial(flow.velocity, problem, bases), functools.partial(flow.inspect, problem, bases)


@functools.partial(jax.jit, static_argnames="flow")
def begin(flow: Flow, problem: Problem, bases: Bases, state: State, key: Array) -> tuple[Bases, State]:
    r"""The start of a population, in empty buffers. Readouts are drawn last, orthogonal to the features: the outputs at the training points are exactly zero, as they are at infinite width."""
    first, readout, spare, forward, backward = jax.random.split(key, 5)
    rank, share, depth = len(state.w), problem.share, flow.depth
    known = list(bases.known)
    known[0], w = deep_weights.fresh(known[0], first, rank, jnp.asarray(rank, jnp.int32), share, flow.exact)
    state = state._replace(w=w)
    bases, now = flow.sweep(problem, bases._replace(known=tuple(known)), state, forward)
    # The gradients of that sweep were zero: nothing was asked for on the way back.
    known = list(bases.known)
    known[-1] = deep_weights.learn(known[-1], now.features[-1], share, flow.exact)
    count = jnp.asarray(flow.outputs, jnp.int32)
    known[-1], a = deep_weights.fresh(known[-1], readout, flow.outputs, count, share, flow.exact)
    weights, far = list(bases.weights), bases.far
    if not flow.exact:
        keys = jax.random.split(spare, 3 * depth)
        points = jnp.asarray(len(problem.rows), jnp.int32)
        for layer in range(depth - 1):
            sides = []
            for side, there, own in ((weights[layer].up, layer + 1, 0), (weights[layer].down, layer, 1)):
                known[there], rows = deep_weights.fresh(
                    known[there], keys[2 * layer + own], len(problem.rows), points, share, False
                )
                sides.append(side._replace(spare=rows))
            weights[layer] = Weights(*sides)
        far = jnp.concatenate(
            [deep_weights.white(known[layer], keys[2 * depth + layer], 1, share) for layer in range(depth)]
        )
    state = state._replace(a=a)
    bases, _ = flow.sweep(problem, Bases(tuple(weights), tuple(known), far), state, backward)
    return bases, state


@functools.partial(jax.jit, static_argnames="flow")
def start(flow: Flow, problem: Problem, bases: Bases, state: State) -> Motion:
    """The flow at its beginning."""
    return chebyshev.start(*_motion(flow, problem, bases), state)


@functools.partial(jax.jit, static_argnames="flow")
def attempt(flow: Flow, problem: Problem, bases: Bases, motion: Motion) -> Motion:
    """One step with what is known, taken or not."""
    return chebyshev.advance(*_motion(flow, problem, bases), motion, jnp.asarray(1, jnp.int32))


@functools.partial(jax.jit, static_argnames="flow")
def reveal(
    flow: Flow, problem: Problem, bases: Bases, before: Motion, after: Motion, key: Array
) -> tuple[Bases, Motion, Motion, Array]:
    """What is known after a step; both ends of the step with it; and how wrong the step was for not knowing, against the accuracy."""
    bases, now = flow.sweep(problem, bases, after.state, key)
    velocity = flow.moving(problem, after.state, now)
    step = before.left - after.left
    # What was missing grew from nothing to this along the step.
    error = jax.tree.map(lambda new, old: 0.5 * step * (new - old), velocity, after.velocity)
    # Fresh Gaussians are independent of all else: in averages over neurons their effect is of second order.
    size = relative(problem, after.state, error) ** 2 / problem.accuracy
    again = before._replace(
        velocity=flow.velocity(problem, bases, before.state), steps=after.steps, evaluations=after.evaluations + 2
    )
    return bases, again, after._replace(velocity=velocity, evaluations=after.evaluations + 2), size


@functools.partial(jax.jit, static_argnames="flow")
def look(flow: Flow, problem: Problem, bases: Bases, state: State) -> Seen:
    r"""Outputs, $\Phi^\ell=\langle\varphi\varphi^\top\rangle$, $G^\ell=\langle gg^\top\rangle$ (of several outputs not the gradients', and of no use), fields and readouts."""
    _, now = flow.sweep(problem, bases, state)
    return Seen(
        now.outputs,
        jnp.stack([product(f, f.T) * problem.share for f in now.features]),
        jnp.stack([product(g, g.T) * problem.share for g in now.gradients]),
        jnp.stack(now.fields),
        state.a,
        jnp.stack(now.features),
        jnp.stack(now.gradients),
        flow.gaussian(now.up, [weights.up for weights in bases.weights], problem),
        flow.gaussian(now.down, [weights.down for weights in bases.weights], problem),
    )


@functools.partial(jax.jit, static_argnames="flow")
def predict(flow: Flow, problem: Problem, bases: Bases, state: State, rows: Array, spread: Array) -> Array:
    """Outputs at new points, (points, outputs). They do not train, so that each is by itself, and no earlier field of theirs matters."""
    h = product(rows, state.w) + state.fade[0] * spread[:, None] * bases.far[0][None, :]
    for layer, fade in enumerate(state.fade[1:]):
        weights, features = bases.weights[layer], flow.activation(h)
        inside = coordinates(features, weights.up, problem.share)
        h = flow.above(problem, weights, features, inside, fade, state.C[layer])
        if not flow.exact:
            h = h + fade * deep_weights.rest_alone(features, inside, bases.far[layer + 1], problem.share)
    return product(flow.activation(h), state.a.T) * problem.share / problem.richness


def empty(depth: int, points: int, width: int, most: int, most_known: int, exact: bool, dtype: str) -> Bases:
    """Buffers for so many directions, in which nothing is known."""
    none = jnp.zeros((), jnp.int32)

    def side() -> Side:
        asked, given = (jnp.zeros((most, width), dtype) for _ in range(2))
        spare, rest = (jnp.zeros((0 if exact else points, width), dtype) for _ in range(2))
        return Side(asked, given, none, jnp.zeros((), dtype), spare, rest)

    known = [Known(jnp.zeros((0 if exact else most_known, width), dtype), none) for _ in range(depth)]
    weights = tuple(Weights(side(), side()) for _ in range(depth - 1))
    return Bases(weights, tuple(known), jnp.zeros((depth, width), dtype))
