r"""Kernel regression with the tangent kernel of one moment of training: $f(x)=k(x)^\top K^{-1}y$ with

$$k_\nu(x)=\big\langle\varphi(h(x))\varphi(h_\nu)\big\rangle+\tfrac{x\cdot x_\nu}D\big\langle\varphi'(h(x))\varphi'(h_\nu)\,a^2\big\rangle$$

over the neurons of a population. What a new input has outside the span of the training inputs meets weights that nothing has moved, Gaussian ones of variance one, which are averaged over. A network that was trained predicts this only if its kernel has not moved.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from adakern import linalg, quadrature
from adakern.activations import Activation
from adakern.trajectories import kinks

_LEAST = 1e-12  # squared length outside the span below which there is nothing outside


class Neurons(NamedTuple):
    """Features and gradients of every neuron at training points and at new ones, (replicas, neurons, points) each, and inner products of inputs, (P, P) and (Q, P)."""

    features: tuple[np.ndarray, np.ndarray]
    gradients: tuple[np.ndarray, np.ndarray]
    grams: tuple[np.ndarray, np.ndarray]

    def kernels(self, some: slice = slice(None)) -> tuple[np.ndarray, np.ndarray]:
        """$K$ between training points and $k$ between new and training points, of some of the replicas."""
        points = self.grams[0].shape[1]
        known, pull = (part[0][some].reshape(-1, points) for part in (self.features, self.gradients))
        own, cross = (
            (phi[some].reshape(len(known), -1).T @ known + gram * (g[some].reshape(len(known), -1).T @ pull))
            / len(known)
            for phi, g, gram in zip(self.features, self.gradients, self.grams, strict=True)
        )
        return own, cross


def neurons(
    activation: Activation,
    rows: np.ndarray,
    new: np.ndarray,
    weights: np.ndarray,
    readouts: np.ndarray,
    basis: np.ndarray | None,
    rounded: float,
) -> Neurons:
    """What the kernels are made of.

    Args:
        activation: of the hidden layer.
        rows, new: inputs over the root of their dimension, (P, D) and (Q, D).
        weights, readouts: of the neurons, (replicas, neurons, rank) and (replicas, neurons).
        basis: in whose coordinates weights are, (D, rank); None for those of the inputs.
        rounded: half the width of the band over which a kink is rounded, for rows of length one.
    """
    inside = [part if basis is None else part @ basis for part in (rows, new)]
    seen, unseen = (jnp.asarray(weights @ part.T) for part in inside)
    far = np.sqrt(np.maximum(np.sum(new**2, axis=1) - np.sum(inside[1] ** 2, axis=1), _LEAST))
    width = np.maximum(rounded * np.linalg.norm(rows, axis=1), np.finfo(np.float64).tiny)
    band = jnp.broadcast_to(jnp.asarray(width), seen.shape)
    # Neurons slide along kinks of training points, where their slope is a fraction that the rounded kink knows.
    slopes = kinks.slope(activation, kinks.jump(activation), seen, band)
    spread = jnp.broadcast_to(jnp.asarray(far), unseen.shape)
    fresh, steep = (quadrature.shifted_mean(part, unseen, spread) for part in (activation, activation.derivative))
    return Neurons(
        (np.asarray(activation(seen)), np.asarray(fresh)),
        (np.asarray(slopes) * readouts[..., None], np.asarray(steep) * readouts[..., None]),
        (rows @ rows.T, new @ rows.T),
    )


def regression(found: Neurons, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Predictions at the new points, and their standard error over replicas, NaN with one; called inside `precision.scope`."""

    def predicted(some: slice = slice(None)) -> np.ndarray:
        own, cross = found.kernels(some)
        # The least-norm solution where points are given twice, or neurons are fewer than points.
        return np.asarray(cross @ np.asarray(linalg.solve_psd(jnp.asarray(own), 0.0, jnp.asarray(y)[:, None]).x[:, 0]))

    count = len(found.features[0])
    each = np.stack([predicted(slice(index, index + 1)) for index in range(count)])
    error = each.std(axis=0, ddof=1) / np.sqrt(count) if count > 1 else np.full(each.shape[1:], np.nan)
    return predicted(), error
