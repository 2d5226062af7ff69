r"""The gap between the free energy of a law tilted by $v$ and the dual's value at $v$, from samples of that law's kernel; see `certificate`."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from adakern import linalg
from adakern.limits import readout
from adakern.losses import Loss

_TINY = 1e-12  # of the energy: what rounding leaves of a difference that vanishes


class Readout(NamedTuple):
    r"""What the gap needs of a limit: the loss, $\gamma_0$, $\beta$, $\lambda_1$."""

    loss: Loss
    richness: float
    beta: float
    decay: float


def exact(of: Readout, y: np.ndarray, v: np.ndarray, kernel: np.ndarray) -> tuple[float, float]:
    """The gap at a kernel that is known, and the size of the terms whose difference it is."""
    gaps, scale = _gaps(of, y, v, kernel[None])
    return float(gaps[0]), scale


def jackknife(of: Readout, y: np.ndarray, v: np.ndarray, moments: np.ndarray) -> tuple[float, float]:
    """The gap from independent estimates of the kernel, (groups, P, P), and its standard error.

    It is convex in the kernel, so that noise raises it. Leaving out one group at a time takes that out to second order, after which a right $v$ has a gap
    of either sign within its error.
    """
    count, total = len(moments), moments.sum(axis=0)
    subsets = np.stack([total / count, *((total - moment) / (count - 1) for moment in moments)])
    gaps, scale = _gaps(of, y, v, subsets)
    if not np.isfinite(gaps).all():
        return float("inf"), float("inf")
    whole, without = gaps[0], gaps[1:]
    error = np.sqrt((count - 1) / count * np.sum((without - without.mean()) ** 2))
    # Exact for what is quadratic in the kernel: products of a group with itself drop out.
    return float(count * whole - (count - 1) * without.mean()), float(error + _TINY * scale)


def _gaps(of: Readout, y: np.ndarray, v: np.ndarray, kernels: np.ndarray) -> tuple[np.ndarray, float]:
    strength = of.richness**2
    conjugates = float(jnp.sum(of.loss.conjugate(jnp.asarray(y), jnp.asarray(-v / of.beta))))
    numbers = map(jnp.asarray, (of.richness, of.beta, of.decay))
    energies = np.asarray(_energies(of.loss, jnp.asarray(kernels), jnp.asarray(y), *numbers))
    quadratic = 0.5 * strength / of.decay * np.einsum("pc,gpq,qc->g", v, kernels, v, optimize=True)
    constant = of.beta * strength * conjugates
    return energies + constant + quadratic, float(np.max(np.abs(energies)) + np.max(quadratic) + abs(constant))


@functools.partial(jax.jit, static_argnums=0)
def _energies(loss: Loss, kernels: Array, y: Array, richness: Array, beta: Array, decay: Array) -> Array:
    return linalg.each(lambda kernel: readout.energy(loss, kernel, y, richness, beta, decay), kernels)
