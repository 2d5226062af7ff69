"""Time of the particle dynamics: a step that follows the stiffness, and what to do when the system heats or breaks."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from adakern.solvers import dynamics
from adakern.solvers.dynamics import ALONE, COARSE, COUPLED, MAIN, Data, Lazy, Mean, Model, Shadow, Stack

_LONGEST_STEP = 0.25
SHORTEST_STEP = 1e-9  # below which nothing moves
COURANT = 0.8  # step × highest frequency, twice as much for the coarse system; BAOAB is stable below 2, and exact for harmonic forces
CAREFUL = 0.5  # the same on the way down from the prior
_HOT = 1.15  # kinetic temperature, 1 in equilibrium, above which a step counts as too long
BOILING = 10.0  # the same while burning in, where the way down from the prior releases real heat
_GLIDE = 0.1  # factor of the friction along the pull of the data where a few neurons are much larger than the others
_UNEQUAL = 4.0  # ⟨|φ|⁴⟩/⟨|φ|²⟩² from which that is so
DRAG = 20.0  # friction that takes it out; 1 otherwise


class Progressed(NamedTuple):
    """How far the clock is, as plain numbers for a checkpoint."""

    done: int  # gradients
    factor: float
    retries: int
    step: float
    ticks: int  # stretches, each with a key of its own
    glide: float
    stiffness: float


class Clock:
    """Advances the dynamics in stretches, choosing the step from the stiffness and shortening it when the system heats."""

    def __init__(self, model: Model, data: Data, particles: int, steps: int, seed: int) -> None:
        self.model, self.data, self.particles, self.seed = model, data, particles, seed
        self.most, self.done = steps, 0
        self.step, self.factor, self.retries, self.ticks = _LONGEST_STEP, 1.0, 0, 0
        self.glide, self.unscaled, self.stiffness = 1.0, _LONGEST_STEP, 1.0
        self._key = jax.random.key(seed)

    @property
    def left(self) -> int:
        return max(0, self.most - self.done)

    def choose_step(self, stack: Stack, courant: float) -> None:
        stiffness = float(dynamics.stiffness(self.model, self.data, stack))
        if np.isfinite(stiffness) and stiffness > 0:
            self.stiffness = stiffness
            self.unscaled = min(_LONGEST_STEP, courant / np.sqrt(stiffness))
        self.step = max(SHORTEST_STEP, float(self.factor * self.unscaled))

    def _count(self, coupled: bool, most: int | None = None) -> int:
        """Steps of a stretch: one unit of time, or what `most` and the budget leave of it; of coupled systems an even number."""
        cost = COUPLED if coupled else ALONE
        pace = 2 if coupled else 1
        count = max(pace, min(self._wanted(coupled), pace * int(self.left / (pace * cost)), most or self.most))
        self.done += int(cost * count)
        return count

    def fits(self, coupled: bool) -> bool:
        """Whether a whole stretch is left."""
        return self.left >= (COUPLED if coupled else ALONE) * self._wanted(coupled)

    def _wanted(self, coupled: bool) -> int:
        pace = 2 if coupled else 1
        return pace * int(np.ceil(1.0 / (pace * self.step)))

    def _number(self, value: float) -> jax.Array:
        return jnp.asarray(value, self.data.root.dtype)

    def _next(self) -> jax.Array:
        self.ticks += 1
        return jax.random.fold_in(self._key, self.ticks)

    def stretch(
        self,
        stack: Stack,
        shadow: Shadow,
        *,
        shadowed: bool = False,
        coupled: bool = False,
        friction: float = 1.0,
        most: int | None = None,
    ) -> tuple[Stack, Shadow, Mean, Lazy]:
        count = self._count(coupled, most)
        return dynamics.advance(
            self.model,
            self.data,
            stack,
            shadow,
            jnp.asarray(coupled),
            jnp.asarray(shadowed),
            self._next(),
            self._number(self.step),
            self._number(friction),
            self._number(self.glide),
            jnp.asarray(count),
        )

    def shorten(self, stack: Stack) -> Stack:
        """After a stretch that heated or broke: half the step from now on, and fresh momenta at temperature one."""
        self.factor /= 2
        self.step = max(SHORTEST_STEP, self.step / 2)
        self.retries += 1
        return dynamics.cool(stack, (self.seed, 2, self.retries))

    def healthy(self, mean: Mean, coupled: bool = False, hot: float | None = None) -> bool:
        """Whether the main system, or all of them, came out finite and not too hot."""
        systems = slice(None) if coupled else slice(MAIN, MAIN + 1)
        energy, temperature = np.asarray(mean.energy)[systems], np.asarray(mean.temperature)[systems]
        return bool(np.isfinite(energy).all() and (temperature < (self.hot if hot is None else hot)).all())

    def heats(self, mean: Mean) -> bool:
        """Whether the system at twice the step is hotter than the main one."""
        return float(mean.temperature[COARSE] - mean.temperature[MAIN]) > self.hot - 1.05

    @property
    def stuck(self) -> bool:
        """Whether the step cannot be shortened any further."""
        return self.step <= SHORTEST_STEP

    @property
    def hot(self) -> float:
        # A stretch averages the kinetic energy of `particles` × rank momenta: its own scatter is allowed for.
        return _HOT + 6.0 / np.sqrt(self.particles * self.data.root.shape[1])

    def look(self, mean: Mean) -> None:
        """Take the friction along the pull back where neurons grow unequal. It would cost the coupling of systems, so only while burning in."""
        self.glide = _GLIDE if float(jnp.max(mean.tails[MAIN])) > _UNEQUAL else 1.0

    def state(self) -> Progressed:
        return Progressed(self.done, self.factor, self.retries, self.step, self.ticks, self.glide, self.stiffness)

    def restore(self, state: Progressed) -> None:
        self.done, self.factor, self.retries, self.step, self.ticks, self.glide, self.stiffness = state
