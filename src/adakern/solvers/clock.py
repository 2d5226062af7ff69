"""Time of the particle dynamics: a step that follows the stiffness, and what to do when the system heats or breaks."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from adakern.solvers import dynamics
from adakern.solvers.dynamics import Coupled, Data, Layers, Mean, Model, System

_LONGEST_STEP = 0.3
COURANT = 1.0  # step × highest frequency; BAOAB is stable below 2, and exact for harmonic forces
CAREFUL = 0.5  # the same on the way down from the prior
_HOT = 1.15  # kinetic temperature, 1 in equilibrium, above which a step counts as too long
BOILING = 10.0  # the same while burning in, where the way down from the prior releases real heat
DRAG = 20.0  # friction that takes it out; 1 otherwise
PROBE = 4  # gradients of a step of the coupled systems


class Progressed(NamedTuple):
    """How far the clock is, as plain numbers for a checkpoint."""

    done: int  # gradients
    factor: float
    retries: int
    step: float
    ticks: int  # stretches, each with a key of its own


class Clock:
    """Advances the dynamics in stretches, choosing the step from the stiffness and shortening it when the system heats."""

    def __init__(self, model: Model, data: Data, particles: int, steps: int, seed: int) -> None:
        self.model, self.data, self.particles, self.seed = model, data, particles, seed
        self.most, self.done = steps, 0
        self.step, self.factor, self.retries, self.ticks = _LONGEST_STEP, 1.0, 0, 0
        self._key = jax.random.key(seed)

    @property
    def left(self) -> int:
        return max(0, self.most - self.done)

    def choose_step(self, system: System, courant: float) -> None:
        stiffness = float(dynamics.stiffness(self.model, self.data, system))
        chosen = courant / np.sqrt(stiffness) if np.isfinite(stiffness) and stiffness > 0 else self.step
        self.step = float(self.factor * min(_LONGEST_STEP, chosen))

    def _count(self, cost: int, most: int | None = None) -> int:
        """Steps of a stretch: one unit of time, or what `most` and the budget leave of it."""
        count = max(1, min(int(np.ceil(1.0 / self.step)), self.left // cost, most or self.most))
        self.done += cost * count
        return count

    def _number(self, value: float) -> jax.Array:
        return jnp.asarray(value, self.data.root.dtype)

    def _next(self) -> jax.Array:
        self.ticks += 1
        return jax.random.fold_in(self._key, self.ticks)

    def stretch(
        self, main: System, shadow: System | None = None, friction: float = 1.0, most: int | None = None
    ) -> tuple[System, System, Mean, Layers]:
        count = self._count(1, most)
        return dynamics.advance(
            self.model,
            self.data,
            main,
            main if shadow is None else shadow,
            jnp.asarray(shadow is not None),
            self._next(),
            self._number(self.step),
            self._number(friction),
            jnp.asarray(count),
        )

    def probe(self, systems: Coupled, shadow: System) -> tuple[Coupled, System, tuple[Mean, Mean, Mean], Layers]:
        count = jnp.asarray(self._count(PROBE))
        return dynamics.probe(self.model, self.data, systems, shadow, self._next(), self._number(self.step), count)

    def shorten(self, system: System) -> System:
        """After a stretch that heated or broke: half the step from now on, and fresh momenta at temperature one."""
        self.factor /= 2
        self.step /= 2
        self.retries += 1
        return system._replace(momenta=dynamics.fresh(system, self.seed + self.retries), v=jnp.zeros_like(system.v))

    def healthy(self, *means: Mean, hot: float | None = None) -> bool:
        limit = self.hot if hot is None else hot
        return all(bool(jnp.isfinite(mean.energy)) and float(mean.temperature) < limit for mean in means)

    @property
    def hot(self) -> float:
        # A stretch averages the kinetic energy of `particles` × rank momenta: its own scatter is allowed for.
        return _HOT + 6.0 / np.sqrt(self.particles * self.data.root.shape[1])

    def state(self) -> Progressed:
        return Progressed(self.done, self.factor, self.retries, self.step, self.ticks)

    def restore(self, state: Progressed) -> None:
        self.done, self.factor, self.retries, self.step, self.ticks = state
