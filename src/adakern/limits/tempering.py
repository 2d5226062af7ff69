r"""Sampling a layer's law from the prior on, by tempering.

$$p(\varepsilon)=Z^{-1}N(\varepsilon;0,I)\,e^{-U(\varepsilon)},\qquad U=\tfrac12\varphi(h)^\top\hat\Phi\varphi(h),\quad h=A\varepsilon,$$

is reached through $N(0,I)e^{-\kappa U}$, $\kappa$ from 0 to 1: a population is reweighted, resampled and moved by Metropolis-corrected dynamics, and $Z$
comes out beside the averages.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from adakern.activations import Activation
from adakern.limits.sites import Pool

SHARE = 0.8  # of the population that a change of temperature leaves effective
STAGES = 400  # at most, from prior to law
MOVES = 3  # per stage
FINAL = 33  # moves at the end, over which moments are averaged
LEAPS = 4  # per move
ACCEPTED = 0.8  # share of moves to aim at
STEPS = (0.02, 0.6)  # bounds of the angle that a leap turns
FAR = 1e3  # × √rank: where a tilt that grows shows its asymptotic sign


EDGE = "its law cannot be normalised"
_ALONE = Pool()


class Law(NamedTuple):
    r"""Averages over one layer's law; errors are standard errors from independent groups of particles.

    Attributes:
        log_z: $\ln Z_\ell$; infinite where the law cannot be normalised.
        moment: $\langle\varphi\varphi^\top\rangle$; `moments` of each group.
        second: $\langle hh^\top\rangle$.
        response: $AA^\top-\langle hh^\top\rangle$ with less noise, see `sample`.
        tilt: mean and variance of $U$.
        acceptance: share of accepted moves at the end.
        stages: temperatures on the way.
        step: angle of a leap at the end.
        epsilon: the particles, (groups, particles, rank).
        status: what went wrong, or "".
    """

    log_z: float
    log_z_error: float
    moment: np.ndarray
    moments: np.ndarray
    moment_error: np.ndarray
    second: np.ndarray
    second_error: np.ndarray
    response: np.ndarray
    response_error: np.ndarray
    tilt: tuple[float, float]
    acceptance: float
    stages: int
    step: float
    epsilon: np.ndarray
    status: str = ""


class Outer(NamedTuple):
    r"""A dual $-FF^\top$ of few columns, (p, c), as the last layer's is: forces then cost $p\,c$ a neuron instead of $p^2$."""

    factor: Array


Dual = Array | Outer


class _Place(NamedTuple):
    r"""Particles, (groups, particles, rank), with their $U$ and $\nabla_\varepsilon U$."""

    epsilon: Array
    tilt: Array
    force: Array


class _State(NamedTuple):
    key: Array
    place: _Place
    kappa: Array
    log_z: Array
    step: Array
    stages: Array
    seen: Array  # moves at κ = 1 that were averaged over
    sums: dict[str, Array]
    finite: Array


_product = functools.partial(jnp.matmul, precision="highest")


# blackjax's adaptive_tempered_smc is not a dependency: the Gaussian part turned exactly and a population in groups are what is needed here.
@functools.partial(jax.jit, static_argnums=(0, 1))
def _temper(
    activation: Activation,
    pool: Pool,
    root: Float[Array, "p r"],
    dual: Dual,
    key: Array,
    epsilon: Array,
    kappa: Array,
) -> _State:
    """From particles at κ, (groups, particles, rank), to the law at κ = 1; averages over the moves there are per group."""
    groups, count, rank = epsilon.shape

    def fields(epsilon: Array) -> tuple[Array, Array]:
        features = pool.rows(activation(_product(epsilon, root.T)))
        if isinstance(dual, Outer):
            tilts = -0.5 * jnp.sum(_product(features, dual.factor) ** 2, axis=-1)
        else:
            tilts = 0.5 * jnp.sum(features * _product(features, dual), axis=-1)
        return pool.totals(tilts, epsilon.shape[-2]), features

    def place(epsilon: Array) -> _Place:
        def total(epsilon: Array) -> tuple[Array, Array]:
            tilt = fields(epsilon)[0]
            return jnp.sum(tilt), tilt

        force, tilt = jax.grad(total, has_aux=True)(epsilon)
        return _Place(epsilon, tilt, force)

    def move(key: Array, here: _Place, kappa: Array, step: Array) -> tuple[_Place, Array]:
        """Kick by U, turn (ε, p) exactly as the Gaussian does, kick: the error, and with it acceptance, is U's alone."""
        turn, refresh, chance = jax.random.split(key, 3)
        angle = step * jax.random.uniform(turn, (), epsilon.dtype, 0.7, 1.0)  # varied: no orbit closes on itself
        sine, cosine = jnp.sin(angle), jnp.cos(angle)
        start = jax.random.normal(refresh, epsilon.shape, epsilon.dtype)

        def leap(_: int, carry: tuple[_Place, Array]) -> tuple[_Place, Array]:
            at, momentum = carry
            momentum = momentum - 0.5 * angle * kappa * at.force
            there = place(cosine * at.epsilon + sine * momentum)
            momentum = cosine * momentum - sine * at.epsilon
            return there, momentum - 0.5 * angle * kappa * there.force

        def energy(at: _Place, momentum: Array) -> Array:
            return 0.5 * jnp.sum(at.epsilon**2 + momentum**2, axis=-1) + kappa * at.tilt

        there, momentum = lax.fori_loop(0, LEAPS, leap, (here, start))
        gain = energy(here, start) - energy(there, momentum)
        accept = jnp.log(jax.random.uniform(chance, gain.shape, gain.dtype)) < gain  # a gain of NaN is refused
        wide = accept[..., None]
        chosen = _Place(
            jnp.where(wide, there.epsilon, here.epsilon),
            jnp.where(accept, there.tilt, here.tilt),
            jnp.where(wide, there.force, here.force),
        )
        return chosen, jnp.mean(accept.astype(epsilon.dtype))

    def increment(tilt: Array, room: Array) -> Array:
        """The largest step in κ that leaves the share `SHARE` of the population effective; `room` if that does."""

        def enough(step: Array) -> Array:
            weight = -step * tilt
            effective = jnp.exp(2 * logsumexp(weight, axis=1) - logsumexp(2 * weight, axis=1)) / count
            return jnp.mean(effective) >= SHARE  # within groups: resampling does not even out what differs between them

        def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = bounds
            middle = 0.5 * (low + high)
            good = enough(middle)
            return jnp.where(good, middle, low), jnp.where(good, high, middle)

        low, _ = lax.fori_loop(0, 40, halve, (jnp.zeros_like(room), room))
        return jnp.where(enough(room), room, low)

    def resample(key: Array, weight: Array) -> Array:
        """Systematic: indices of the survivors of one group."""
        total = jnp.cumsum(jnp.exp(weight - jnp.max(weight)))
        comb = (jnp.arange(count) + jax.random.uniform(key, (), weight.dtype)) * (total[-1] / count)
        return jnp.minimum(jnp.searchsorted(total, comb.astype(total.dtype)), count - 1)

    def normalisable(epsilon: Array) -> Array:
        r"""Whether $\frac12|\varepsilon|^2+U>0$ far out along every particle's ray: where it is not, $Z=\infty$, as U grows at least as fast as the square."""
        length = jnp.sqrt(jnp.sum(epsilon**2, axis=-1, keepdims=True))
        reach = FAR * rank**0.5
        return jnp.all(0.5 * reach**2 + fields(epsilon * (reach / length))[0] > 0)

    def measure(here: _Place, accepted: Array) -> dict[str, Array]:
        features, flipped = fields(here.epsilon)[1], jnp.swapaxes(here.epsilon, 1, 2)
        return {
            "moment": _product(jnp.swapaxes(features, 1, 2), features) / count,
            "white": _product(flipped, here.epsilon) / count,
            "virial": _product(flipped, here.force) / count,
            "tilt": jnp.mean(here.tilt, axis=1),
            "square": jnp.mean(here.tilt**2, axis=1),
            "acceptance": accepted,
        }

    def unfinished(state: _State) -> Array:
        return (state.seen < FINAL) & (state.stages < STAGES) & state.finite

    def stage(state: _State) -> _State:
        """One temperature further, and a few moves; at κ = 1 only moves, which are averaged over. One body, so that the moves are compiled once."""
        key, survive, shake = jax.random.split(state.key, 3)
        there = state.kappa >= 1
        step = increment(state.place.tilt, 1 - state.kappa)
        kappa = jnp.where(step == 1 - state.kappa, 1.0, state.kappa + step)
        weight = -step * state.place.tilt
        log_z = state.log_z + logsumexp(weight, axis=1) - jnp.log(jnp.asarray(count, weight.dtype))
        kept = jax.vmap(resample)(jax.random.split(survive, groups), weight)
        kept = jnp.where(there, jnp.broadcast_to(jnp.arange(count)[None, :], kept.shape), kept)
        here = jax.tree.map(lambda array: jax.vmap(lambda rows, index: rows[index])(array, kept), state.place)

        def shaken(index: int, carry: tuple[_Place, Array, dict[str, Array]]) -> tuple[_Place, Array, dict[str, Array]]:
            here, angle, sums = carry
            here, accepted = move(jax.random.fold_in(shake, index), here, kappa, angle)
            angle = jnp.where(there, angle, jnp.clip(angle * jnp.exp(accepted - ACCEPTED), *STEPS))
            found = measure(here, accepted)
            return here, angle, {name: sums[name] + jnp.where(there, found[name], 0.0) for name in sums}

        here, angle, sums = lax.fori_loop(0, MOVES, shaken, (here, state.step, state.sums))
        finite = jnp.all(jnp.isfinite(here.tilt)) & normalisable(here.epsilon)
        seen = state.seen + jnp.where(there, MOVES, 0)
        stages = state.stages + jnp.where(there, 0, 1)
        return _State(key, here, kappa, jnp.where(there, state.log_z, log_z), angle, stages, seen, sums, finite)

    first = place(epsilon)
    size, zero = root.shape[0] // pool.sites, jnp.zeros((), epsilon.dtype)
    scalar = jnp.zeros(groups, epsilon.dtype)
    square = jnp.zeros((groups, rank, rank), epsilon.dtype)
    moment = jnp.zeros((groups, size, size), epsilon.dtype)
    sums = {"moment": moment, "white": square, "virial": square, "tilt": scalar, "square": scalar, "acceptance": zero}
    none = jnp.zeros((), jnp.int32)
    finite = jnp.all(jnp.isfinite(first.tilt))
    start = _State(key, first, kappa, scalar, STEPS[1] * (zero + 1), none, none, sums, finite)
    state = lax.while_loop(unfinished, stage, start)
    return state._replace(sums=jax.tree.map(lambda total: total / jnp.maximum(state.seen, 1), state.sums))


def sample(
    activation: Activation,
    root: Array,
    dual: Dual,
    key: Array,
    *,
    groups: int = 4,
    particles: int = 512,
    start: np.ndarray | None = None,
    responses: bool = True,
    pool: Pool = _ALONE,
    lift: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Law:
    r"""Sample $N(\varepsilon;0,I)e^{-U}$ from the prior on, or at $\kappa=1$ from neurons `start`, (draws, rank), and average.

    `response` is $AA^\top-\langle hh^\top\rangle$ by Gaussian integration by parts, $I-\langle\varepsilon\varepsilon^\top\rangle=\langle\varepsilon\,\nabla_\varepsilon U^\top\rangle$, symmetrised. It needs one derivative of $U$, so it holds for
    a ReLU too, and its noise vanishes with the tilt, where that of $\langle hh^\top\rangle$ stays. Without `responses` it and `second` are left out.

    The last layer of a CNN: $\varphi$ stands for the rows that the readout's `pool` makes of the features, and $U$ adds up over a neuron's rows.
    `lift` takes the place of $V\to AVA^\top$ in `second` and `response`.
    """
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    if start is None:
        epsilon = rng.standard_normal((groups, particles, root.shape[1]))
    else:
        epsilon = start[rng.integers(len(start), size=groups * particles)].reshape(groups, particles, -1)
    kappa = jnp.asarray(0.0 if start is None else 1.0, root.dtype)
    state = _temper(activation, pool, root, dual, key, jnp.asarray(epsilon, root.dtype), kappa)
    A = np.asarray(root, np.float64)
    averages = {name: np.asarray(value, np.float64) for name, value in state.sums.items()}
    virial = 0.5 * (averages["virial"] + np.swapaxes(averages["virial"], 1, 2))
    moment, moment_error = _grouped(averages["moment"])
    none = np.zeros((len(virial), 1, 1))  # P×P for each group: not where nobody looks
    lifted = (lambda white: A @ white @ A.T) if lift is None else lambda white: np.stack([lift(part) for part in white])
    second, second_error = _grouped(lifted(averages["white"]) if responses else none)
    response, response_error = _grouped(lifted(virial) if responses else none)
    log_z, log_z_error = _grouped(np.asarray(state.log_z, np.float64))
    status = ""
    if not bool(state.finite):
        status, log_z, log_z_error = EDGE, np.inf, np.inf
    elif float(state.kappa) < 1:
        status, log_z, log_z_error = f"its law was not reached in {STAGES} temperatures", np.nan, np.inf
    tilt, square = averages["tilt"].mean(), averages["square"].mean()
    return Law(
        log_z=float(log_z),
        log_z_error=float(log_z_error),
        moment=moment,
        moments=averages["moment"],
        moment_error=moment_error,
        second=second,
        second_error=second_error,
        response=response,
        response_error=response_error,
        tilt=(float(tilt), float(square - tilt * tilt)),
        acceptance=float(averages["acceptance"]),
        stages=int(state.stages),
        step=float(state.step),
        epsilon=np.asarray(state.place.epsilon),
        status=status,
    )


def _grouped(values: np.ndarray) -> tuple[Any, Any]:
    """The mean over groups, and its standard error."""
    return values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))
