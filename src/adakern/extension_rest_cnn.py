r"""How a convolutional network at rest extends to new images: its weights are those that its forces make,

$$W^{\ell-1}_i=\sum_{\mu a}b^\ell_{i\mu a}\,v^{\ell}_{\mu a},\qquad h^\ell_{ia}(x)=W^{\ell-1}_i\cdot v^\ell_a(x),\qquad f(x)=\tfrac1{\lambda_L}\Phi^L(x)^\top\Delta ,$$

with $v^\ell_a$ what a window at position $a$ sees: the patch of an image, or $\sqrt w\varphi$ of the layer below at every place of the window. Homogeneous activations have the same number as $K(x)^\top\Delta/\kappa$,
and $K$ adds up over neurons and weights: nothing over pairs of positions is formed.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from adakern import inputs
from adakern.extension import Extension
from adakern.limits import resting, sites
from adakern.limits.antk import ANTK


class RestImageExtension(Extension):
    """From the neurons' fields, slopes and shares at the positions of distinct training images, and Δ at all of them."""

    def __init__(
        self,
        limit: ANTK,
        X: np.ndarray,
        draws: tuple[np.ndarray, ...],
        slopes: tuple[np.ndarray, ...],
        shares: tuple[np.ndarray, ...],
        errors: np.ndarray,
    ) -> None:
        self._limit, self._where = limit, sites.of(limit.network, X.shape)
        self._points = inputs.distinct(X)
        self._pool, depth = self._where.pool, limit.network.depth
        self._layers = [
            resting.Neurons(share, self._phi(h), slope, self._where.pool_of(layer, depth))
            for layer, (h, slope, share) in enumerate(zip(draws, slopes, shares, strict=True))
        ]
        self._errors = self._points.add(errors)
        numbers = (limit.richness, limit.decays, self._where)
        rest = resting.recursion(self._layers, self._errors, *numbers)
        self._below = resting.inflow(self._layers, inputs.features(limit.network, X[self._points.first]), self._where)
        self._weights = [b @ rows for b, rows in zip(rest.coefficients, self._below, strict=True)]
        self._rows = self._layers[-1].rows
        self._tangent = limit.kernel_is_tangent(errors.shape[1])
        self._gradients = resting.gradients(self._layers, self._errors[:, 0], *numbers) if self._tangent else []

    def fields(self, X: np.ndarray) -> list[np.ndarray]:
        """h¹(x)..h^L(x) of every neuron, (batch, positions, n) each."""
        fields, _ = self._climb(X)
        return [h.reshape(len(h), len(X), -1).transpose(1, 2, 0) for h in fields]

    def blocks(self, X: np.ndarray) -> np.ndarray:
        fields, below = self._climb(X)
        total = self._top(fields[-1]).T @ self._rows
        if self._tangent:
            for layer, gradients in enumerate(self._descend(fields)):
                for share, new, old in zip(self._layers[layer].weights, gradients, self._gradients[layer], strict=True):
                    there = resting.derivatives(new, below[layer], len(X))
                    total += share * there @ resting.derivatives(old, self._below[layer], len(self._errors)).T
        return total[None][:, :, self._points.member]

    def outputs(self, X: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
        rows = self._top(self._climb(X)[0][-1])
        return (rows.T @ (self._rows @ self._errors) / self._limit.decays[-1])[None]

    def own(self, X: np.ndarray) -> np.ndarray:
        fields, below = self._climb(X)
        total: np.ndarray = np.sum(self._top(fields[-1]) ** 2, axis=0)
        if self._tangent:
            for layer, gradients in enumerate(self._descend(fields)):
                for share, new in zip(self._layers[layer].weights, gradients, strict=True):
                    total = total + share * np.sum(resting.derivatives(new, below[layer], len(X)) ** 2, axis=1)
        return total

    def bytes_per_point(self) -> int:
        fields = sum(len(n.weights) * count for n, count in zip(self._layers, self._where.counts, strict=True))
        taken = sum(rows.shape[1] * count for rows, count in zip(self._below, self._where.counts, strict=True))
        return 8 * (2 * len(self._errors) + 6 * fields + 3 * taken)

    def _phi(self, fields: np.ndarray) -> np.ndarray:
        return np.asarray(self._limit.network.activation(jnp.asarray(fields)))

    def _climb(self, X: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Fields of the new images, (n, batch·S), and what every layer takes in of them."""
        below = [inputs.features(self._limit.network, X)]
        fields = []
        for layer, (neurons, weights) in enumerate(zip(self._layers, self._weights, strict=True)):
            fields.append(weights @ below[-1].T)
            if layer + 1 < len(self._layers):
                scaled = np.sqrt(neurons.weights)[:, None] * self._phi(fields[-1])
                below.append(self._where.gather(layer, scaled))
        return fields, below

    def _top(self, fields: np.ndarray) -> np.ndarray:
        """√w φ of the last layer as the readout sees it, (rows, batch)."""
        rows: np.ndarray = self._pool.rows(np.sqrt(self._layers[-1].weights)[:, None] * self._phi(fields))
        return rows

    def _descend(self, fields: list[np.ndarray]) -> list[np.ndarray]:
        """Gradient fields of the new images, (n, batch·S): what the output at an image gains from its fields."""
        limit, gradients = self._limit, []
        readouts = limit.richness / limit.decays[-1] * (self._pool.rows(self._layers[-1].features) @ self._errors)
        batch = fields[0].shape[1] // self._where.counts[0]
        pulled = self._pool.transpose(np.repeat(readouts, batch, axis=1), len(self._layers[-1].weights))
        for layer in range(len(fields) - 1, -1, -1):
            slopes = np.asarray(limit.network.activation.derivative(jnp.asarray(fields[layer])))
            gradients.append(slopes * pulled)
            if layer:
                root = np.sqrt(self._layers[layer].weights)[:, None]
                below = np.sqrt(self._layers[layer - 1].weights)[:, None]
                share = (root * self._weights[layer]).T @ (root * gradients[-1])
                pulled = self._where.scatter(layer - 1, share) / np.where(below > 0, below, 1.0)
        return gradients[::-1]
