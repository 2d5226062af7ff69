r"""Where gradient flow with weight decay comes to rest, written in the fields of the neurons.

With $q^{L+1}=\Delta$ and $Q^{\ell}=\langle q^\ell q^{\ell\top}\rangle$ (so that $Q^{L+1}=\Delta\Delta^\top$), from the top:

$$q^\ell=\varphi'(h^\ell)\circ\tfrac{\gamma_0}{\lambda_\ell}Q^{\ell+1}\varphi(h^\ell),\qquad h^\ell=\Phi^{\ell-1}b^\ell,\quad b^\ell=\tfrac{\gamma_0}{\lambda_{\ell-1}}q^\ell,\qquad s=\tfrac1{\lambda_L}\Phi^L\Delta .$$

$q^\ell_\mu=\sum_c\Delta_{\mu c}g^{\ell,c}_\mu$ is the gradient field weighted with the errors, so that nothing here has output indices; with one output $q=\Delta\circ g$ and
$Q^\ell=\Delta\Delta^\top\circ G^\ell$. At the kink of ReLU $\varphi'$ is whatever number in $[0,1]$ makes $h=\Phi b$ hold.

The middle equation says at once how a neuron extends to new points, $h^\ell(x)=\Phi^{\ell-1}(x)^\top b^\ell$: weights outside the span of the training features have decayed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class Neurons(NamedTuple):
    """The neurons of one layer at distinct training points."""

    weights: np.ndarray  # (n,), their shares of the layer
    features: np.ndarray  # φ(h), (n, P)
    slopes: np.ndarray  # φ'(h), (n, P)

    @property
    def kernel(self) -> np.ndarray:
        return gram(self.weights, self.features)


@dataclass(frozen=True)
class Rest:
    r"""What the fields amount to, over distinct points.

    Attributes:
        kernels: $\Phi^1..\Phi^L$.
        pressures: $Q^2..Q^{L+1}$, what stands above each layer.
        fields: $q^1..q^L$, (n, P) each.
        coefficients: $b^1..b^L$.
    """

    kernels: tuple[np.ndarray, ...]
    pressures: tuple[np.ndarray, ...]
    fields: tuple[np.ndarray, ...]
    coefficients: tuple[np.ndarray, ...]


def gram(weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
    r"""$\sum_iw_ir_ir_i^\top$."""
    scaled = np.sqrt(weights)[:, None] * rows
    product: np.ndarray = scaled.T @ scaled
    return product


def recursion(layers: list[Neurons], errors: np.ndarray, richness: float, decays: tuple[float, ...]) -> Rest:
    r"""From the top; `errors` is $\Delta$ summed over equal points, (P, C)."""
    pressure = errors @ errors.T
    pressures, fields, coefficients = [], [], []
    for layer in range(len(layers), 0, -1):
        neurons = layers[layer - 1]
        pressures.append(pressure)
        field = neurons.slopes * (richness / decays[layer] * neurons.features @ pressure)
        fields.append(field)
        coefficients.append(richness / decays[layer - 1] * field)
        pressure = gram(neurons.weights, field)
    kernels = tuple(neurons.kernel for neurons in layers)
    return Rest(kernels, tuple(pressures[::-1]), tuple(fields[::-1]), tuple(coefficients[::-1]))


def gradients(
    layers: list[Neurons], errors: np.ndarray, richness: float, decays: tuple[float, ...]
) -> list[np.ndarray]:
    r"""Gradient fields $g^1..g^L$ of a network with one output, (n, P) each: $g^\ell=\varphi'\circ z^\ell$, $z^\ell_\mu=\frac{\gamma_0}{\lambda_\ell}\sum_\nu\Delta_\nu\varphi_\nu G^{\ell+1}_{\mu\nu}$.

    `errors` is $\Delta$ summed over equal points, (P,).
    """
    above: np.ndarray = np.ones((len(errors), len(errors)))
    found = []
    for layer in range(len(layers), 0, -1):
        neurons = layers[layer - 1]
        field = neurons.slopes * (richness / decays[layer] * (neurons.features * errors[None, :]) @ above)
        found.append(field)
        above = gram(neurons.weights, field)
    return found[::-1]


def tangent(kernels: list[np.ndarray], gradient_kernels: list[np.ndarray]) -> np.ndarray:
    r"""$K=\sum_{\ell=0}^LG^{\ell+1}\circ\Phi^\ell$, from $\Phi^0..\Phi^L$ and $G^1..G^L$; $G^{L+1}=1$."""
    total: np.ndarray = kernels[-1].copy()
    for kernel, gradient in zip(kernels[:-1], gradient_kernels, strict=True):
        total += kernel * gradient
    return total
