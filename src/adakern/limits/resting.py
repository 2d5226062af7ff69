r"""Where gradient flow with weight decay comes to rest, written in the fields of the neurons.

With $q^{L+1}=\Delta$ and $Q^{\ell}=\langle q^\ell q^{\ell\top}\rangle$ (so that $Q^{L+1}=\Delta\Delta^\top$), from the top:

$$q^\ell=\varphi'(h^\ell)\circ\tfrac{\gamma_0}{\lambda_\ell}Q^{\ell+1}\varphi(h^\ell),\qquad h^\ell=\Phi^{\ell-1}b^\ell,\quad b^\ell=\tfrac{\gamma_0}{\lambda_{\ell-1}}q^\ell,\qquad s=\tfrac1{\lambda_L}\Phi^L\Delta .$$

$q^\ell_\mu=\sum_c\Delta_{\mu c}g^{\ell,c}_\mu$ is the gradient field weighted with the errors, so that nothing here has output indices; with one output $q=\Delta\circ g$ and
$Q^\ell=\Delta\Delta^\top\circ G^\ell$. At the kink of ReLU $\varphi'$ is whatever number in $[0,1]$ makes $h=\Phi b$ hold.

Neurons of a CNN have fields over (point, position). With $S_b$ the shift by a place $b$ of a window and $R$ what the readout makes of positions,
$\Phi^{\ell}$ becomes $\sum_bS_b\Phi^\ell S_b^\top$ below a layer, $Q^{\ell+1}$ becomes $\sum_bS_b^\top Q^{\ell+1}S_b$ above it, and $R^\top\Delta\Delta^\top R$ at the last.

The middle equation says at once how a neuron extends to new points, $h^\ell(x)=\Phi^{\ell-1}(x)^\top b^\ell$: weights outside the span of the training features have decayed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from adakern.limits.sites import POINTS, Pool, Sites


class Neurons(NamedTuple):
    """The neurons of one layer at distinct training points, of a CNN at their positions."""

    weights: np.ndarray  # (n,), their shares of the layer
    features: np.ndarray  # φ(h), (n, P)
    slopes: np.ndarray  # φ'(h), (n, P)
    pool: Pool = Pool()  # what the readout does with positions, at the last layer

    @property
    def rows(self) -> np.ndarray:
        """√w φ over points, whose products add up to the kernel."""
        pooled: np.ndarray = self.pool.rows(np.sqrt(self.weights)[:, None] * self.features)
        return pooled

    @property
    def kernel(self) -> np.ndarray:
        rows = self.rows
        product: np.ndarray = rows.T @ rows
        return product


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


def _pulled(neurons: Neurons, features: np.ndarray, pressure: np.ndarray, layer: int, last: bool, where: Sites) -> Any:
    """Features times what stands above them, through the readout or the windows."""
    if last:
        return neurons.pool.transpose(neurons.pool.rows(features) @ pressure, len(features))
    return where.scatter(layer - 1, where.gather(layer - 1, features).T @ pressure)


def recursion(
    layers: list[Neurons], errors: np.ndarray, richness: float, decays: tuple[float, ...], where: Sites = POINTS
) -> Rest:
    r"""From the top; `errors` is $\Delta$ summed over equal points, (P, C)."""
    pressure = errors @ errors.T
    pressures, fields, coefficients = [], [], []
    for layer in range(len(layers), 0, -1):
        neurons = layers[layer - 1]
        pressures.append(pressure)
        scaled = richness / decays[layer] * neurons.features
        field = neurons.slopes * _pulled(neurons, scaled, pressure, layer, layer == len(layers), where)
        fields.append(field)
        coefficients.append(richness / decays[layer - 1] * field)
        if layer > 1:
            pressure = gram(neurons.weights, field)
    kernels = tuple(neurons.kernel for neurons in layers)
    return Rest(kernels, tuple(pressures[::-1]), tuple(fields[::-1]), tuple(coefficients[::-1]))


def gradients(
    layers: list[Neurons], errors: np.ndarray, richness: float, decays: tuple[float, ...], where: Sites = POINTS
) -> list[np.ndarray]:
    r"""Gradient fields $g^1..g^L$ of a network with one output, (n, P) each: $g^\ell=\varphi'\circ z^\ell$, $z^\ell_\mu=\frac{\gamma_0}{\lambda_\ell}\sum_\nu\Delta_\nu\varphi_\nu G^{\ell+1}_{\mu\nu}$.

    `errors` is $\Delta$ summed over equal points, (P,).
    """
    above: np.ndarray = np.ones((len(errors), len(errors)))
    found = []
    for layer in range(len(layers), 0, -1):
        neurons = layers[layer - 1]
        own = np.repeat(errors, where.count(layer - 1))
        scaled = richness / decays[layer] * (neurons.features * own[None, :])
        field = neurons.slopes * _pulled(neurons, scaled, above, layer, layer == len(layers), where)
        found.append(field)
        if layer > 1:
            above = gram(neurons.weights, field)
    return found[::-1]


def inflow(layers: list[Neurons], rows: np.ndarray, where: Sites = POINTS) -> list[np.ndarray]:
    """What each layer takes in, (P·S_ℓ, inputs): rows of inputs with $\\Phi^0$ as their products, and √w φ of the layer below through the windows."""
    scaled = [np.sqrt(n.weights)[:, None] * n.features for n in layers[:-1]]
    return [rows, *(where.gather(layer, values) for layer, values in enumerate(scaled))]


def summed_tangent(
    layers: list[Neurons],
    rows: np.ndarray,
    errors: np.ndarray,
    richness: float,
    decays: tuple[float, ...],
    where: Sites = POINTS,
) -> np.ndarray:
    r"""$K_{\mu\nu}=\Phi^L_{\mu\nu}+\sum_\ell\sum_iw_i\,\partial_is_\mu\cdot\partial_is_\nu$, neuron by neuron: nothing over pairs of positions is formed."""
    total = layers[-1].kernel
    fields = gradients(layers, errors, richness, decays, where)
    for neurons, below, field in zip(layers, inflow(layers, rows, where), fields, strict=True):
        for share, own in zip(neurons.weights, field, strict=True):
            slope = derivatives(own, below, len(errors))
            total += share * (slope @ slope.T)
    return total


def derivatives(gradient: np.ndarray, below: np.ndarray, points: int) -> np.ndarray:
    r"""$\partial s_\mu/\partial W$ of one neuron, up to factors: $\sum_ag_{\mu a}\,$`below`$_{\mu a}$, (P, inputs), from $g$, (P·S,)."""
    product = (gradient[:, None] * below).reshape(points, -1, below.shape[1])
    total: np.ndarray = product.sum(axis=1)
    return total


def tangent(kernels: list[np.ndarray], gradient_kernels: list[np.ndarray]) -> np.ndarray:
    r"""$K=\sum_{\ell=0}^LG^{\ell+1}\circ\Phi^\ell$, from $\Phi^0..\Phi^L$ and $G^1..G^L$; $G^{L+1}=1$."""
    total: np.ndarray = kernels[-1].copy()
    for kernel, gradient in zip(kernels[:-1], gradient_kernels, strict=True):
        total += kernel * gradient
    return total
