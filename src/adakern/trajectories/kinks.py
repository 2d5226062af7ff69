r"""Kinks of an activation, rounded: where $\varphi'$ jumps at the origin, neurons slide along $h=0$, and the jump spread over a band is what lets them settle at the fraction at which they do."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from adakern.activations import Activation

BAND = 30.0  # half the width of a rounded kink, in units of the accuracy: its effect on outputs is then that of the steps' errors
_NEAR = 1e-6  # where slopes on both sides of the origin are compared
_JUMP = 1e-4  # what counts as a jump between them


def jump(activation: Activation) -> float:
    r"""By how much $\varphi'$ jumps at the origin."""
    below, above = np.asarray(activation.derivative(jnp.asarray([-_NEAR, _NEAR])), dtype=np.float64)
    return float(above - below) if abs(above - below) > _JUMP else 0.0


def value(activation: Activation, jump: float, h: Array, band: Array) -> Array:
    r"""$\varphi(h)$, rounded at its kink."""
    found = activation(h)
    if jump:
        inside = jnp.maximum(band - jnp.abs(h), 0.0)
        found = found + jump * inside * inside / (4 * band)
    return found


def slope(activation: Activation, jump: float, h: Array, band: Array) -> Array:
    r"""$\varphi'(h)$, its jump spread."""
    found = activation.derivative(h)
    if jump:
        found = found + jump * (jnp.clip(0.5 + h / (2 * band), 0.0, 1.0) - (h > 0))
    return found
