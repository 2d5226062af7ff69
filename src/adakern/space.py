r"""Kernels between the positions of a CNN, averaged over points: what the features of one place of an image have to do with those of another.

$$\bar\Phi^\ell_{aa'}=\frac1P\sum_\mu\Phi^\ell_{\mu a,\mu a'},\qquad\Phi^\ell_{\mu a,\nu a'}=\langle\varphi(h^\ell_{\mu a})\varphi(h^\ell_{\nu a'})\rangle .$$

At the last layer too this is the kernel before the readout pools positions.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from adakern import inputs
from adakern.activations import MomentRule
from adakern.limits.sites import Sites
from adakern.recursion_cnn import Convolution


def of_kernel(kernel: np.ndarray) -> np.ndarray:
    r"""From $\Phi_{\mu a,\nu a'}$, (P, S, P, S): (S, S)."""
    return np.einsum("papb->ab", kernel) / len(kernel)


def of_features(features: np.ndarray, sites: int, counts: np.ndarray, shares: np.ndarray | None = None) -> np.ndarray:
    """From the features of neurons, (neurons, points × positions), point by point: (S, S).

    Args:
        features: of every neuron at every position of every distinct point.
        sites: positions.
        counts: how many points each distinct one stands for.
        shares: how much of the layer each neuron stands for; by default all alike.
    """
    neurons = len(features)
    weights = np.full(neurons, 1 / neurons) if shares is None else shares
    rows = features.reshape(neurons, -1, sites) * np.sqrt(weights[:, None] * counts / counts.sum())[..., None]
    flat = rows.reshape(-1, sites).astype(np.float64)
    return flat.T @ flat


def lazy(convolution: Convolution, X: np.ndarray, layer: int) -> np.ndarray:
    """Of the Gaussian fields of a lazy limit, one image after the other: (S, S). Called inside `precision.scope`."""
    variances = convolution.variances(X)
    count = convolution.sites[0]
    rows = inputs.features(convolution.network, X).reshape(len(X), count, -1)
    where = Sites(convolution.network, convolution.image)
    fields = tuple(jnp.asarray(field) for field in variances.fields[:layer])
    decays = jnp.asarray(convolution.decays[:layer])
    return np.asarray(_lazy(variances.rules[:layer], where, decays, fields, jnp.asarray(rows)), np.float64) / len(X)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _lazy(rules: tuple[MomentRule, ...], where: Sites, decays: Array, fields: tuple[Array, ...], rows: Array) -> Array:
    def add(total: Array, image: tuple[Array, tuple[Array, ...]]) -> tuple[Array, None]:
        patches, variances = image
        kernel = jnp.matmul(patches, patches.T, precision="highest")
        for layer, (rule, variance) in enumerate(zip(rules, variances, strict=True)):
            seen = where.seen(layer - 1, kernel) if layer else kernel
            kernel = rule.values(variance, variance, seen / decays[layer])
        return total + kernel, None

    last = fields[-1].shape[1]
    return jax.lax.scan(add, jnp.zeros((last, last), rows.dtype), (rows, fields))[0]
