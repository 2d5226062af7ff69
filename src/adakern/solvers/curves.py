"""Activations as numpy functions of arrays whose shapes change all the time."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from adakern.activations import Activation
from adakern.precision import scope
from adakern.solvers.atoms import Curve, corner

_LEAST = 1024  # numbers that are compiled for at least


def of(activation: Activation) -> Curve:
    """The curve of an activation; that of ReLU has its corner rounded off."""
    return corner if activation.name == "relu" else functools.partial(_smooth, activation)


def _smooth(activation: Activation, fields: np.ndarray, width: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Any differentiable activation, by jax: flat, and filled up to the next power of two, so that few lengths are compiled."""
    length = max(_LEAST, 1 << (max(fields.size, 1) - 1).bit_length())
    flat = np.zeros(length, fields.dtype)
    flat[: fields.size] = fields.ravel()
    with scope("float64"):
        values, slopes = (np.asarray(part) for part in _both(activation, jnp.asarray(flat)))
    return (
        values[: fields.size].reshape(fields.shape),
        slopes[: fields.size].reshape(fields.shape),
        np.zeros_like(fields),
    )


@functools.partial(jax.jit, static_argnums=0)
def _both(activation: Activation, fields: Array) -> tuple[Array, Array]:
    return activation(fields), activation.derivative(fields)
