r"""How a network at rest extends to new points: weights outside the span of the training features have decayed, so

$$h^\ell(x)=\Phi^{\ell-1}(x)^\top b^\ell,\qquad f(x)=\tfrac1{\lambda_L}\Phi^L(x)^\top\Delta ,$$

and for homogeneous activations the same number is $K(x)^\top\Delta/\kappa$, with gradient fields $g^\ell(x)=\varphi'(h^\ell(x))z^\ell(x)$ at the new point.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from adakern import inputs
from adakern.extension import Extension
from adakern.limits import resting
from adakern.limits.antk import ANTK


class RestExtension(Extension):
    """From the neurons' fields, slopes and shares at distinct training points, and Δ at all of them."""

    def __init__(
        self,
        limit: ANTK,
        X: np.ndarray,
        draws: tuple[np.ndarray, ...],
        slopes: tuple[np.ndarray, ...],
        shares: tuple[np.ndarray, ...],
        errors: np.ndarray,
    ) -> None:
        self._limit = limit
        self._points = inputs.distinct(X)
        self._inputs = X[self._points.first]
        self._layers = [
            resting.Neurons(share, np.asarray(limit.network.activation(jnp.asarray(h))), slope)
            for h, slope, share in zip(draws, slopes, shares, strict=True)
        ]
        self._errors = self._points.add(errors)
        rest = resting.recursion(self._layers, self._errors, limit.richness, limit.decays)
        self._coefficients = rest.coefficients
        self._tangent = limit.kernel_is_tangent(errors.shape[1])
        self._gradients = (
            resting.gradients(self._layers, self._errors[:, 0], limit.richness, limit.decays) if self._tangent else []
        )

    def fields(self, X: np.ndarray) -> list[np.ndarray]:
        """h¹(x)..h^L(x) of every neuron, (batch, n) each."""
        return self._climb(X)[0]

    def blocks(self, X: np.ndarray) -> np.ndarray:
        fields, kernels = self._climb(X)
        total = kernels[-1]
        if self._tangent:
            for kernel, gradient in zip(kernels[:-1], self._descend(fields)[1], strict=True):
                total = total + kernel * gradient
        return total[None][:, :, self._points.member]

    def outputs(self, X: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
        return (self._climb(X)[1][-1] @ self._errors / self._limit.decays[-1])[None]

    def own(self, X: np.ndarray) -> np.ndarray:
        fields, _ = self._climb(X)
        rows = inputs.features(self._limit.network, X)
        squares = [np.einsum("nd,nd->n", rows, rows)]
        squares += [self._phi(h) ** 2 @ n.weights for h, n in zip(fields, self._layers, strict=True)]
        total: np.ndarray = squares[-1]
        if self._tangent:
            for square, g, n in zip(squares[:-1], self._descend(fields)[0], self._layers, strict=True):
                total = total + square * (g**2 @ n.weights)
        return total

    def bytes_per_point(self) -> int:
        widest = max(len(n.weights) for n in self._layers)
        size = int(np.prod(self._inputs.shape[1:]))
        return 8 * ((2 + 2 * len(self._layers)) * len(self._inputs) + 6 * len(self._layers) * widest + 2 * size)

    def _phi(self, fields: np.ndarray) -> np.ndarray:
        return np.asarray(self._limit.network.activation(jnp.asarray(fields)))

    def _climb(self, X: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Fields of the new points, and Φ⁰..Φ^L between them and the training points."""
        kernels = [inputs.input_kernel(self._limit.network, X, self._inputs)]
        fields = []
        for neurons, coefficients in zip(self._layers, self._coefficients, strict=True):
            fields.append(kernels[-1] @ coefficients.T)
            kernels.append(self._phi(fields[-1]) * neurons.weights[None, :] @ neurons.features)
        return fields, kernels

    def _descend(self, fields: list[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Gradient fields of the new points, and G¹..G^L between them and the training points."""
        limit = self._limit
        above = np.ones((len(fields[0]), len(self._inputs)))
        gradients, kernels = [], []
        for layer in range(len(fields), 0, -1):
            neurons = self._layers[layer - 1]
            z = limit.richness / limit.decays[layer] * above @ (neurons.features * self._errors.T).T
            slopes = np.asarray(limit.network.activation.derivative(jnp.asarray(fields[layer - 1])))
            gradients.append(slopes * z)
            above = gradients[-1] * neurons.weights[None, :] @ self._gradients[layer - 1]
            kernels.append(above)
        return gradients[::-1], kernels[::-1]
