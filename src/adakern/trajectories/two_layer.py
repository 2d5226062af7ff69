r"""The flow of one hidden layer's neurons at infinite width, given a population of them.

$$\dot w=\gamma_0\sum_\mu(a\cdot\Delta_\mu)\,\varphi'(h_\mu)\,\tilde x_\mu-\lambda_0w,\qquad\dot a=\gamma_0\sum_\mu\Delta_\mu\varphi(h_\mu)-\lambda_1a,\qquad
  \Delta_\mu=-\partial\ell/\partial s_\mu,\quad s_\mu=\langle a\,\varphi(h_\mu)\rangle/\gamma_0,\quad h_\mu=w\cdot\tilde x_\mu .$$

**Positions.** A neuron of a CNN has a field $h_{\mu q}=w\cdot\tilde x_{\mu q}$ at each of $S$ positions, and either a readout weight for each ("flatten") or one for the mean of its features:

$$s_\mu=\frac1{\gamma_0}\Big\langle\sum_qa_q\varphi(h_{\mu q})\Big\rangle,\quad\dot w=\gamma_0\sum_{\mu q}(a_q\cdot\Delta_\mu)\varphi'(h_{\mu q})\tilde x_{\mu q}-\lambda_0w,\quad
  \dot a_q=\gamma_0\sum_\mu\Delta_\mu\varphi(h_{\mu q})-\lambda_1a_q,$$

with $a_q=a/S$ in the first two and $\frac1S\sum_q\varphi(h_{\mu q})$ in the last for the mean. An MLP has one position. Fields are replicas × signs × neurons × positions × points: in this order every sum over neurons and
positions is one matrix product, and nothing is transposed.

**Kinks.** Where $\varphi'$ jumps at the origin (ReLU), neurons that both sides push towards $h_\mu=0$ slide along it, and $\varphi'(h_\mu)$ is whatever fraction of the jump keeps them there
(Filippov). The jump is therefore spread linearly over $|h_\mu|<\tau|\tilde x_\mu|$, and $\varphi$ with it, so that the flow remains one of a gradient: a sliding neuron settles where the fraction is
right, at a rate of the order of (jump of its velocity)$/\tau$, which the integrator is told.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from adakern import chebyshev
from adakern.activations import Activation
from adakern.chebyshev import Motion
from adakern.losses import Loss
from adakern.trajectories import kinks
from adakern.trajectories.population import Neurons

_einsum = functools.partial(jnp.einsum, precision="highest")
_LOOSE = 10.0  # by how much a single neuron, in the root mean square, may be less accurate than outputs
_BAND, _LEAP = 2.0, 4.0  # neurons that may slide are watched for within so many bands, and errors, of a kink


class Problem(NamedTuple):
    """The numbers of a problem: rows in coordinates of their span, and what depends on them."""

    rows: Array  # (positions, points, rank)
    y: Array  # (points, outputs)
    band: Array  # (1, 1, 1, positions, points): half the width over which a jump is spread
    richness: Array
    decays: Array  # (2,)
    accuracy: Array
    scale: Array  # of the targets


class Record(NamedTuple):
    """What is seen of every replica at a moment."""

    outputs: Array  # s, (replicas, points, outputs)
    kernels: Array  # (replicas, points, points)
    gradient_kernels: Array  # the same; empty with several outputs, and for a CNN
    first_layer: (
        Array  # the first layer's part of a CNN's tangent kernel, the same; empty with several outputs, and for an MLP
    )


@dataclass(frozen=True)
class Flow:
    """What the compiled functions are specialised to. `blocks` of neurons are taken one after the other; features are `pooled` if the readout sees their mean over positions."""

    activation: Activation
    loss: Loss
    jump: float
    blocks: int = 1
    convolutional: bool = False
    pooled: bool = False

    def features(self, problem: Problem, h: Array) -> Array:
        r"""$\varphi(h)$, rounded at its kink."""
        return kinks.value(self.activation, self.jump, h, problem.band)

    def slopes(self, problem: Problem, h: Array) -> Array:
        r"""$\varphi'(h)$, its jump spread."""
        return kinks.slope(self.activation, self.jump, h, problem.band)

    def seen(self, features: Array) -> Array:
        """What the readout sees of features, (…, positions, points): their mean over positions, or all of them."""
        return jnp.mean(features, axis=-2, keepdims=True) if self.pooled else features

    def sums(self, features: Array, a: Array) -> Array:
        """Outputs summed over the neurons of either sign."""
        return _einsum("ksnp,ksnc->kspc", _merged(self.seen(features)), _merged(a))

    def pull(self, a: Array, delta: Array, positions: int) -> Array:
        r"""$a_q\cdot\Delta_\mu$, where a mean over positions gives each of them its share; an axis of one position stands for all."""
        pull = _einsum("ksnc,kpc->ksnp", _merged(a), delta).reshape(*a.shape[:-1], -1)
        return pull / positions if self.pooled else pull

    def outputs(self, problem: Problem, neurons: Neurons) -> Array:
        def part(some: Neurons) -> Array:
            return self.sums(self.features(problem, fields(problem, some)), some.a)

        return self._mean(problem, neurons, self._summed(part, neurons))

    def velocity(self, problem: Problem, neurons: Neurons) -> Neurons:
        def part(some: Neurons, s: Array | None = None) -> Neurons:
            h = fields(problem, some)
            value = self.features(problem, h)
            if s is None:
                s = self._mean(problem, neurons, self.sums(value, some.a))
            delta = problem.richness * self.loss.error(problem.y[None], s)
            pull = self.pull(some.a, delta, h.shape[-2]) * self.slopes(problem, h)
            push = _einsum("ksnp,kpc->ksnc", _merged(self.seen(value)), delta).reshape(some.a.shape)
            pull = pull.reshape(*pull.shape[:3], -1)
            return Neurons(
                _einsum("ksnp,pr->ksnr", pull, _listed(problem.rows)) - problem.decays[0] * some.w,
                push - problem.decays[1] * some.a,
            )

        if self.blocks == 1:
            return part(neurons)
        s = self.outputs(problem, neurons)
        return self._join(jax.lax.map(lambda some: part(some, s), self._split(neurons)))

    def inspect(self, problem: Problem, neurons: Neurons, error: Neurons) -> tuple[Array, Array]:
        """How large an error is against the accuracy, and the fastest rate of neurons that slide.

        An error counts by what it does to the outputs, and with less weight by its root mean square over neurons; not by its worst neuron, which may just have met a kink.
        """
        s = self.outputs(problem, neurons)
        delta = problem.richness * self.loss.error(problem.y[None], s)

        def part(pair: tuple[Neurons, Neurons]) -> tuple[Array, Array]:
            some, off = pair
            h, shifted = fields(problem, some), fields(problem, off)
            slope = self.slopes(problem, h)
            moved = self.sums(self.features(problem, h), off.a) + self.sums(slope * shifted, some.a)
            if not self.jump:
                return moved, jnp.zeros((), h.dtype)
            pull = -self.jump * self.pull(some.a, delta, h.shape[-2])
            lengths = jnp.sum(problem.rows**2, axis=-1)[None, None, None]
            # A neuron that leaps across the band from step to step is not in it, but its error tells.
            near = jnp.abs(h) < _BAND * problem.band + _LEAP * jnp.abs(shifted)
            near = jnp.where(near, jnp.maximum(pull, 0.0), 0.0)
            return moved, jnp.max(jnp.sum(near * (lengths / (2 * problem.band)), axis=(-2, -1)))

        if self.blocks == 1:
            moved, local = part((neurons, error))
        else:
            parts = jax.lax.map(part, (self._split(neurons), self._split(error)))
            moved, local = jnp.sum(parts[0], axis=0), jnp.max(parts[1])
        shift = self._mean(problem, neurons, moved)
        scale = jnp.maximum(problem.scale, jnp.sqrt(jnp.mean(s * s, axis=(1, 2))))
        outputs = jnp.max(jnp.sqrt(jnp.mean(shift * shift, axis=(1, 2))) / scale)
        count = jnp.asarray(neurons.w.size + neurons.a.size, s.dtype)
        size = jnp.maximum(chebyshev.length(neurons), 0.1 * jnp.sqrt(count))
        each = chebyshev.length(error) / size
        return jnp.maximum(outputs, each / _LOOSE) / problem.accuracy, local + jnp.max(problem.decays)

    def _mean(self, problem: Problem, neurons: Neurons, sums: Array) -> Array:
        """Both signs are summed apart and then together, so that outputs at the start are zero to the last digit."""
        return (sums[:, 0] + sums[:, 1]) / (2 * neurons.w.shape[2] * problem.richness)

    def _summed(self, part: Any, neurons: Neurons) -> Any:
        if self.blocks == 1:
            return part(neurons)
        some = self._split(neurons)
        first = jax.eval_shape(part, jax.tree.map(lambda x: x[0], some))
        zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), first)
        return jax.lax.scan(lambda total, x: (jax.tree.map(jnp.add, total, part(x)), None), zero, some)[0]

    def _split(self, neurons: Neurons) -> Neurons:
        def split(x: Array) -> Array:
            k, s, n, *rest = x.shape
            return jnp.moveaxis(x.reshape(k, s, self.blocks, n // self.blocks, *rest), 2, 0)

        return Neurons(*map(split, neurons))

    def _join(self, neurons: Neurons) -> Neurons:
        def join(x: Array) -> Array:
            moved = jnp.moveaxis(x, 0, 2)
            return moved.reshape(*moved.shape[:2], -1, *moved.shape[4:])

        return Neurons(*map(join, neurons))


def fields(problem: Problem, neurons: Neurons) -> Array:
    return _fields(neurons, problem.rows)


def _fields(neurons: Neurons, rows: Array) -> Array:
    h = _einsum("ksnr,pr->ksnp", neurons.w, _listed(rows))
    return h.reshape(*h.shape[:3], *rows.shape[:2])


def _merged(each: Array) -> Array:
    """Neurons and positions, which are summed over alike, as one axis."""
    k, s, n, q, last = each.shape
    return each.reshape(k, s, n * q, last)


def _listed(rows: Array) -> Array:
    """Positions and points as one axis."""
    return rows.reshape(-1, rows.shape[-1])


@functools.partial(jax.jit, static_argnames="flow")
def begin(flow: Flow, problem: Problem, neurons: Neurons) -> Motion:
    """The flow at its beginning."""
    return chebyshev.start(functools.partial(flow.velocity, problem), functools.partial(flow.inspect, problem), neurons)


@functools.partial(jax.jit, static_argnames="flow")
def advance(flow: Flow, problem: Problem, motion: Motion, most: Array) -> Motion:
    """Go on until the next stop, at most so many steps."""
    return chebyshev.advance(
        functools.partial(flow.velocity, problem), functools.partial(flow.inspect, problem), motion, most
    )


@functools.partial(jax.jit, static_argnames="flow")
def look(flow: Flow, problem: Problem, neurons: Neurons) -> Record:
    r"""Outputs, $\Phi^1=\langle\varphi\varphi^\top\rangle$ and $G^1=\langle gg^\top\rangle$, $g=\varphi'(h)a$; at a kink $\varphi'$ is the fraction at which neurons slide.

    A CNN has $\Phi^1_{\mu\nu}=\sum_q\langle\varphi_{\mu q}\varphi_{\nu q}\rangle$, or that of the means; and in place of $G^1$, which goes with pairs of positions, what it is for:
    $\sum_{qq'}\Phi^0_{\mu q,\nu q'}G^1_{\mu q,\nu q'}=\langle v_\mu\cdot v_\nu\rangle$, $v_\mu=\sum_qg_{\mu q}\tilde x_{\mu q}$.
    """

    def part(some: Neurons) -> tuple[Array, Array, Array, Array]:
        h = fields(problem, some)
        value = flow.activation(h)
        seen, none = _merged(flow.seen(value)), jnp.zeros((h.shape[0], 0, 0), h.dtype)
        s, kernel = flow.sums(value, some.a), _einsum("ksnp,ksnq->kpq", seen, seen)
        if some.a.shape[-1] > 1:
            return s, kernel, none, none
        slope = flow.slopes(problem, h) * some.a
        if not flow.convolutional:
            slope = _merged(slope)
            return s, kernel, _einsum("ksnp,ksnq->kpq", slope, slope), none
        slope = slope / h.shape[-2] if flow.pooled else slope
        gradient = _einsum("ksnqp,qpr->ksnpr", slope, problem.rows)
        return s, kernel, none, _einsum("ksnpr,ksnmr->kpm", gradient, gradient)

    s, *kernels = flow._summed(part, neurons)
    count = 2 * neurons.w.shape[2]
    return Record(flow._mean(problem, neurons, s), *(kernel / count for kernel in kernels))


@functools.partial(jax.jit, static_argnames="flow")
def predict(flow: Flow, problem: Problem, neurons: Neurons, rows: Array, spread: Array) -> Array:
    r"""Outputs at new points $\tilde x=\tilde x_\parallel+\tilde x_\perp$ with Gaussian weights outside of the span: $s=\langle a\,E_z\varphi(w\cdot\tilde x_\parallel+\sigma z)\rangle/\gamma_0$, $\sigma=|\tilde x_\perp|e^{-\lambda_0t}$.

    Outputs are linear in the features of every position, so that each may be averaged by itself.
    """
    h = _fields(neurons, rows)
    value = flow.activation.mean(h, jnp.broadcast_to(spread[None, None, None], h.shape))
    return flow._mean(problem, neurons, flow.sums(value, neurons.a))


@functools.partial(jax.jit, static_argnames="flow")
def predict_drawn(flow: Flow, problem: Problem, neurons: Neurons, rows: Array, far: Array) -> Array:
    """The same with weights outside of the span that were drawn: `far` (replicas, pairs, positions, points) is what they add to the fields."""
    h = _fields(neurons, rows) + far[:, None]
    return flow._mean(problem, neurons, flow.sums(flow.activation(h), neurons.a))
