r"""Conjugate kernels by Gaussian integration by parts.

$$\hat\Phi^\ell=\tfrac1{\lambda_\ell}\sum_bS_b^\top\big(\langle\nabla\nabla^\top U\rangle-\langle\nabla U\,\nabla U^\top\rangle\big)_{\ell+1}S_b,\qquad
  U=\tfrac12\varphi^\top\hat\Phi^{\ell+1}\varphi,\quad\nabla U=\varphi'\circ(\hat\Phi^{\ell+1}\varphi),\quad
  \nabla\nabla^\top U=(\varphi'\varphi'^\top)\circ\hat\Phi^{\ell+1}+\mathrm{diag}\big(\varphi''\circ(\hat\Phi^{\ell+1}\varphi)\big),$$

with $S_b$ the shifts of a CNN's windows, one and the identity of an MLP. No kernel is inverted: the derivative of the energy, $2\,\mathrm dE/\mathrm d\Phi^\ell$, is the same, but where $\Phi^\ell$ is nearly singular, and that of
overlapping windows is, its noise is divided by small eigenvalues.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from adakern import linalg
from adakern.activations import Activation
from adakern.limits.sites import Sites

_ROWS = 2**22  # numbers of a chunk of fields
_FIRM = 0.1  # of the largest eigenvalue of a kernel: directions from there on are firm, and no noise is divided by them


def duals(
    activation: Activation,
    where: Sites,
    kernels: Sequence[np.ndarray],
    top: np.ndarray,
    draws: Sequence[np.ndarray],
    decays: Sequence[float],
    derivatives: Sequence[np.ndarray] | None = None,
) -> list[np.ndarray]:
    r"""$\hat\Phi^1,\dots,\hat\Phi^{L-1}$ over the rows of the kernels.

    Args:
        activation: of the network.
        where: positions.
        kernels: $\Phi^1,\dots,\Phi^{L-1}$ over distinct points, or (point, position).
        top: $\hat\Phi^L$ over the same points.
        draws: white neurons of the layers 2 to L, (n, rows) each.
        decays: $\lambda_1,\dots,\lambda_{L-1}$.
        derivatives: $2\,\mathrm dE/\mathrm d\Phi^\ell$, to join with what comes out, from the top down.
    """
    found: list[np.ndarray] = []
    if not kernels:  # one hidden layer, whose only dual is the top one: nothing over pairs of positions is formed
        return found
    above = _unpooled(where, jnp.asarray(top))
    for layer in reversed(range(len(kernels))):
        kernel, decay = jnp.asarray(kernels[layer]), decays[layer]
        root = linalg.cholesky_root(where.seen(layer, kernel) / decay)
        mean = _mean(activation, above, root, jnp.asarray(draws[layer]))
        (below,) = jax.vjp(lambda k, layer=layer: where.seen(layer, k), kernel)[1](mean)
        above = (below + below.T) / (2 * decay)
        if derivatives is not None:
            above = jnp.asarray(joined(kernels[layer], derivatives[layer], np.asarray(above)))
        found.insert(0, np.asarray(above))
    return found


def joined(kernel: np.ndarray, derivative: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """The derivative of the energy, averaged over a whole run and corrected, between the firm directions of a kernel; by parts, from the draws that are kept of it, elsewhere."""
    values, vectors = np.linalg.eigh(kernel)
    firm = vectors[:, values > _FIRM * values[-1]]
    within = firm @ firm.T
    return parts + within @ (derivative - parts) @ within


def _unpooled(where: Sites, top: Array) -> Array:
    """The conjugate of what the readout makes of positions, over (point, position)."""
    pool = where.pool
    if pool.sites == 1:
        return top
    within = jnp.full((pool.sites, pool.sites), 1 / pool.sites**2) if pool.mean else jnp.eye(pool.sites)
    return jnp.kron(top, within.astype(top.dtype))


def _mean(activation: Activation, above: Array, root: Array, draws: Array) -> Array:
    r"""$\langle\nabla\nabla^\top U\rangle-\langle\nabla U\,\nabla U^\top\rangle$ over neurons, in chunks.

    The diagonal matrix $B=\mathrm{diag}\langle\varphi''\circ(\hat\Phi\varphi)\rangle$ is that for which this, times $C$, is $\langle\nabla U\,h^\top\rangle$, row by row by least squares: so it has what kinks add, where no neuron of a sample is.
    """
    size = max(1, min(len(draws), _ROWS // root.shape[0]))
    totals: Any = None
    for begin in range(0, len(draws), size):
        part = _sums(activation, above, root, draws[begin : begin + size])
        totals = part if totals is None else jax.tree.map(jnp.add, totals, part)
    slopes, pulls, moments = (total / len(draws) for total in totals)
    smooth = slopes * above - pulls
    covariance = jnp.matmul(root, root.T, precision="highest")
    rest = moments - jnp.matmul(smooth, covariance, precision="highest")
    lengths = jnp.sum(covariance**2, axis=1)
    bends = jnp.where(lengths > 0, jnp.sum(rest * covariance, axis=1) / jnp.where(lengths > 0, lengths, 1.0), 0.0)
    return smooth + jnp.diag(bends)


@functools.partial(jax.jit, static_argnums=0)
def _sums(activation: Activation, above: Array, root: Array, draws: Array) -> tuple[Array, Array, Array]:
    r"""$\varphi'\varphi'^\top$, $\nabla U\nabla U^\top$ and $\nabla U\,h^\top$, added up over neurons."""
    h = jnp.matmul(draws, root.T, precision="highest")
    first = activation.derivative(h)
    force = first * jnp.matmul(activation(h), above, precision="highest")
    slopes, pulls, moments = (
        jnp.matmul(a.T, b, precision="highest") for a, b in ((first, first), (force, force), (force, h))
    )
    return slopes, pulls, moments
