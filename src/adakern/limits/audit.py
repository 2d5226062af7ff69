r"""An independent check of the aNBK's saddle equations, and its free energy.

Given kernels and duals, layer $\ell$'s law in white coordinates is a closed problem of its own,

$$p_\ell(\varepsilon)=Z_\ell^{-1}N(\varepsilon;0,I)\,e^{-U(\varepsilon)},\quad U=\tfrac12\varphi(h)^\top\hat\Phi^\ell\varphi(h),\quad h=A\varepsilon,\quad AA^\top=\Phi^{\ell-1}/\lambda_{\ell-1}.$$

It is sampled afresh, from the prior, by tempering $N(0,I)e^{-\kappa U}$ from $\kappa=0$ to 1: nothing that a solver drew is used, and $Z_\ell$ comes out beside the averages.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from adakern import inputs, linalg
from adakern.activations import Activation
from adakern.limits.base import relative
from adakern.losses import Loss

SHARE = 0.8  # of the population that a change of temperature leaves effective
STAGES = 400  # at most, from prior to law
MOVES = 3  # per stage
FINAL = 16  # moves at the end, over which moments are averaged
LEAPS = 4  # per move
ACCEPTED = 0.8  # share of moves to aim at
STEPS = (0.02, 0.6)  # bounds of the angle that a leap turns
FAR = 1e3  # × √rank: where a tilt that grows shows its asymptotic sign


class Law(NamedTuple):
    r"""Averages over one layer's law; errors are standard errors from independent groups of particles.

    Attributes:
        log_z: $\ln Z_\ell$; infinite where the law cannot be normalised.
        moment: $\langle\varphi\varphi^\top\rangle$.
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


class Audit(NamedTuple):
    r"""How far the saddle equations are from holding, in relative terms.

    Attributes:
        residual: the largest of `parts`; infinite where a layer's law cannot be normalised or was not reached.
        parts: "readout", "top_dual"; "kernels" with one number per layer; "duals" with one per layer below the last.
        noise: Monte-Carlo standard errors of the sampled parts: what right kernels and duals would show.
        free_energy: $F$ at the saddle; `free_energy_error` is its Monte-Carlo standard error.
        log_z: $\ln Z_1..\ln Z_L$.
        acceptance: of the moves, per layer.
        stages: temperatures, per layer.
        status: which layers could not be sampled and why, or "".
    """

    residual: float
    parts: dict[str, float | list[float]]
    noise: dict[str, list[float]]
    free_energy: float
    free_energy_error: float
    log_z: list[float]
    acceptance: list[float]
    stages: list[int]
    status: str = ""


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
    finite: Array


_product = functools.partial(jnp.matmul, precision="highest")


# blackjax's adaptive_tempered_smc is not a dependency: the Gaussian part turned exactly and a population in groups are what is needed here.
@functools.partial(jax.jit, static_argnums=0)
def _temper(
    activation: Activation, root: Float[Array, "p r"], dual: Float[Array, "p p"], key: Array, epsilon: Array
) -> tuple[_State, dict[str, Array]]:
    """From particles of the prior, (groups, particles, rank), to the law at temperature one; averages are per group."""
    groups, count, rank = epsilon.shape

    def fields(epsilon: Array) -> tuple[Array, Array]:
        features = activation(_product(epsilon, root.T))
        return 0.5 * jnp.sum(features * _product(features, dual), axis=-1), features

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
            weight = -step * tilt.ravel()
            return jnp.exp(2 * logsumexp(weight) - logsumexp(2 * weight)) >= SHARE * tilt.size

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

    def unfinished(state: _State) -> Array:
        return (state.kappa < 1) & (state.stages < STAGES) & state.finite

    def stage(state: _State) -> _State:
        key, survive, shake = jax.random.split(state.key, 3)
        step = increment(state.place.tilt, 1 - state.kappa)
        kappa = jnp.where(step == 1 - state.kappa, 1.0, state.kappa + step)
        weight = -step * state.place.tilt
        log_z = state.log_z + logsumexp(weight, axis=1) - jnp.log(jnp.asarray(count, weight.dtype))
        kept = jax.vmap(resample)(jax.random.split(survive, groups), weight)
        here = jax.tree.map(lambda array: jax.vmap(lambda rows, index: rows[index])(array, kept), state.place)

        def shaken(index: int, carry: tuple[_Place, Array]) -> tuple[_Place, Array]:
            here, angle = carry
            here, accepted = move(jax.random.fold_in(shake, index), here, kappa, angle)
            return here, jnp.clip(angle * jnp.exp(accepted - ACCEPTED), *STEPS)

        here, angle = lax.fori_loop(0, MOVES, shaken, (here, state.step))
        finite = jnp.all(jnp.isfinite(here.tilt)) & normalisable(here.epsilon)
        return _State(key, here, kappa, log_z, angle, state.stages + 1, finite)

    def observe(index: int, carry: tuple[_Place, dict[str, Array]]) -> tuple[_Place, dict[str, Array]]:
        here, sums = carry
        here, accepted = move(jax.random.fold_in(state.key, index), here, state.kappa, state.step)
        features = fields(here.epsilon)[1]
        found = measure(here, features, accepted)
        return here, {name: sums[name] + found[name] / FINAL for name in sums}

    def measure(here: _Place, features: Array, accepted: Array) -> dict[str, Array]:
        flipped = jnp.swapaxes(here.epsilon, 1, 2)
        return {
            "moment": _product(jnp.swapaxes(features, 1, 2), features) / count,
            "white": _product(flipped, here.epsilon) / count,
            "virial": _product(flipped, here.force) / count,
            "tilt": jnp.mean(here.tilt, axis=1),
            "square": jnp.mean(here.tilt**2, axis=1),
            "acceptance": accepted,
        }

    first = place(epsilon)
    zero, one = jnp.zeros((), epsilon.dtype), jnp.ones((), epsilon.dtype)
    finite = jnp.all(jnp.isfinite(first.tilt)) & normalisable(epsilon)
    start = _State(key, first, zero, jnp.zeros(groups, epsilon.dtype), STEPS[1] * one, jnp.zeros((), jnp.int32), finite)
    state = lax.while_loop(unfinished, stage, start)
    nothing = jax.tree.map(jnp.zeros_like, measure(first, fields(epsilon)[1], zero))
    place_, averages = lax.fori_loop(0, FINAL, observe, (state.place, nothing))
    finite = state.finite & jnp.all(jnp.isfinite(place_.tilt)) & normalisable(place_.epsilon)
    return state._replace(place=place_, finite=finite), averages


def sample(
    activation: Activation, root: Array, dual: Array, key: Array, *, groups: int = 4, particles: int = 512
) -> Law:
    r"""Sample $N(\varepsilon;0,I)e^{-U}$ from the prior on, and average.

    `response` is $AA^\top-\langle hh^\top\rangle$ by Gaussian integration by parts, $I-\langle\varepsilon\varepsilon^\top\rangle=\langle\varepsilon\,\nabla_\varepsilon U^\top\rangle$, symmetrised. It needs one derivative of $U$, so it holds for
    a ReLU too, and its noise vanishes with the tilt, where that of $\langle hh^\top\rangle$ stays.
    """
    draw, run = jax.random.split(key)
    epsilon = jax.random.normal(draw, (groups, particles, root.shape[1]), root.dtype)
    state, found = _temper(activation, root, dual, run, epsilon)
    A = np.asarray(root, np.float64)
    averages = {name: np.asarray(value, np.float64) for name, value in found.items()}
    virial = 0.5 * (averages["virial"] + np.swapaxes(averages["virial"], 1, 2))
    moment, moment_error = _grouped(averages["moment"])
    second, second_error = _grouped(A @ averages["white"] @ A.T)
    response, response_error = _grouped(A @ virial @ A.T)
    log_z, log_z_error = _grouped(np.asarray(state.log_z, np.float64))
    status = ""
    if not bool(state.finite):
        status, log_z, log_z_error = "its law cannot be normalised", np.inf, np.inf
    elif float(state.kappa) < 1:
        status, log_z, log_z_error = f"its law was not reached in {STAGES} temperatures", np.nan, np.inf
    tilt = float(averages["tilt"].mean())
    return Law(
        log_z=float(log_z),
        log_z_error=float(log_z_error),
        moment=moment,
        moment_error=moment_error,
        second=second,
        second_error=second_error,
        response=response,
        response_error=response_error,
        tilt=(tilt, float(averages["square"].mean()) - tilt**2),
        acceptance=float(averages["acceptance"]),
        stages=int(state.stages),
        step=float(state.step),
        epsilon=np.asarray(state.place.epsilon),
        status=status,
    )


def _grouped(values: np.ndarray) -> tuple[Any, Any]:
    """The mean over groups, and its standard error."""
    return values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))


def audit(
    activation: Activation,
    decays: Sequence[float],
    richness: float,
    beta: float,
    loss: Loss,
    input_root: Any,
    points: inputs.Distinct,
    y: np.ndarray,
    kernels: Sequence[np.ndarray],
    duals: Sequence[np.ndarray],
    fitted: np.ndarray,
    *,
    seed: int = 0,
    groups: int = 4,
    particles: int = 512,
) -> Audit:
    r"""Check kernels, duals and outputs $s$ by the saddle equations; called inside `precision.scope`.

    * readout: $s=\Phi^Lv/\lambda_L$ with $v=\beta\Delta(s)$, relative to $|y|$;
    * top dual: $\hat\Phi^L=-\frac{\gamma_0^2}{\lambda_L}vv^\top$;
    * kernels: $\Phi^\ell=\langle\varphi\varphi^\top\rangle_\ell$;
    * duals: $\lambda_\ell\langle hh^\top\rangle_{\ell+1}=\Phi^\ell-\Phi^\ell\hat\Phi^\ell\Phi^\ell$, relative to $|\Phi^\ell|$. This is $\hat\Phi=\Phi^{-1}-\lambda\Phi^{-1}\langle hh^\top\rangle\Phi^{-1}$ without its inverses.

    $$F=-\tfrac12\sum_\ell\mathrm{Tr}\,\Phi^\ell\hat\Phi^\ell+\beta\gamma_0^2\sum_\mu\ell(y_\mu,s_\mu)+\tfrac{\gamma_0^2}{2\lambda_L}\mathrm{Tr}\,v^\top\Phi^Lv-\sum_\ell\ln Z_\ell$$

    is stationary in kernels and duals, so their errors enter it squared.

    Args:
        activation: $\varphi$.
        decays: $\lambda_0..\lambda_L$.
        richness: $\gamma_0$.
        beta: $\beta$.
        loss: $\ell$.
        input_root: a root of $\Phi^0/\lambda_0$ over the distinct points.
        points: which points are distinct.
        y: targets, (P, C).
        kernels: $\Phi^1..\Phi^L$, (P, P) each.
        duals: $\hat\Phi^1..\hat\Phi^L$, likewise.
        fitted: $s$ on the training inputs, (P, C).
        seed: of the sampling.
        groups: independent groups of particles, for the errors.
        particles: per group.
    """
    depth, top = len(kernels), decays[-1]
    targets, outputs = jnp.asarray(y), jnp.asarray(fitted)
    v = beta * np.asarray(loss.error(targets, outputs), np.float64)
    scale = float(np.linalg.norm(y)) or 1.0
    parts: dict[str, float | list[float]] = {
        "readout": float(np.linalg.norm(fitted - kernels[-1] @ v / top)) / scale,
        "top_dual": relative(duals[-1] + richness**2 / top * v @ v.T, duals[-1]),
    }
    off_kernels, off_duals, noise_kernels, noise_duals = [], [], [], []
    laws: list[Law] = []
    root = jnp.asarray(input_root)
    for layer in range(depth):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 0xA0D17), layer)  # no solver's stream
        collapsed = jnp.asarray(points.collapse(duals[layer]))
        law = sample(activation, root, collapsed, key, groups=groups, particles=particles)
        kernel = points.pick(kernels[layer])
        off_kernels.append(_off(law, law.moment - kernel, kernel))
        noise_kernels.append(_off(law, law.moment_error, kernel))
        if layer > 0:
            below, decay = points.pick(kernels[layer - 1]), decays[layer]
            prior = decay * np.asarray(root @ root.T, np.float64)  # with the root's jitter: what was sampled
            expected = prior @ points.collapse(duals[layer - 1]) @ prior
            off_duals.append(_off(law, decay * law.response - expected, below))
            noise_duals.append(_off(law, decay * law.response_error, below))
        laws.append(law)
        if layer < depth - 1:
            root = linalg.cholesky_root(jnp.asarray(kernel / decays[layer + 1]))
    parts |= {"kernels": off_kernels, "duals": off_duals}
    data = beta * richness**2 * float(jnp.sum(loss.value(targets, outputs)))
    data += 0.5 * richness**2 / top * float(np.sum(v * (kernels[-1] @ v)))
    traces = sum(float(np.sum(kernel * dual)) for kernel, dual in zip(kernels, duals, strict=True))
    return Audit(
        residual=max(_finite(part) for part in (parts["readout"], parts["top_dual"], *off_kernels, *off_duals)),
        parts=parts,
        noise={"kernels": noise_kernels, "duals": noise_duals},
        free_energy=-0.5 * traces + data - sum(law.log_z for law in laws),
        free_energy_error=float(np.sqrt(sum(law.log_z_error**2 for law in laws))),
        log_z=[law.log_z for law in laws],
        acceptance=[law.acceptance for law in laws],
        stages=[law.stages for law in laws],
        status="; ".join(f"layer {i + 1}: {law.status}" for i, law in enumerate(laws) if law.status),
    )


def _off(law: Law, difference: np.ndarray, reference: np.ndarray) -> float:
    return float("inf") if law.status else _finite(relative(difference, reference))


def _finite(value: Any) -> float:
    """A part that is not a number says that its equation does not hold."""
    return float(value) if np.isfinite(value) else float("inf")
