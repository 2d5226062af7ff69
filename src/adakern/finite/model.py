r"""The network of finite width that a description stands for: shapes, initial weights, and the forward pass.

$$h^1=W^0\tilde x,\qquad h^{\ell+1}=N^{-1/2}W^\ell\varphi(h^\ell),\qquad s=\frac1{\gamma\sqrt N}\sum_aw_a\cdot\varphi(h^L_a),$$

with $\tilde x$ the input (or patch) over the root of its size; a CNN with `readout="mean"` has $w\cdot\frac1S\sum_a\varphi(h^L_a)$ there. In mean-field parameterisation $\gamma=\gamma_0\sqrt N$, in NTK
parameterisation $\gamma=\gamma_0$. Weights of a layer are one matrix, (fan-in, width), whatever the architecture.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from adakern import checks
from adakern.activations import Activation
from adakern.losses import Loss
from adakern.networks import CNN, Network, Pair, window_taps

PARAMETERIZATIONS = ("mean-field", "ntk")
MATMULS = ("highest", "high", "default")
Weights = tuple[Array, ...]  # layers 0..L, each (fan-in, width), the readout (positions × width, outputs)


@dataclass(frozen=True)
class Model:
    """A network of finite width, without its weights; hashable, so that compiled code is specialised to it.

    Attributes:
        grids: positions (height, width) of each hidden layer; (1, 1) for an MLP.
        windows, strides, margins: of the layers after the first, for a CNN; empty for an MLP.
        wraps: whether what lies in the margins is the image again, rather than zeros.
        pooled: whether the readout sees the mean over positions, rather than each.
        matmul: precision of matrix products on devices that offer several.
    """

    activation: Activation
    loss: Loss
    depth: int
    width: int
    outputs: int
    grids: tuple[Pair, ...]
    windows: tuple[Pair, ...] = ()
    strides: tuple[Pair, ...] = ()
    margins: tuple[tuple[Pair, Pair], ...] = ()
    wraps: bool = False
    pooled: bool = False
    matmul: str = "highest"
    convolutional: bool = False

    @property
    def positions(self) -> tuple[int, ...]:
        return tuple(height * width for height, width in self.grids)

    def shapes(self, first: int) -> tuple[tuple[int, int], ...]:
        """Shapes of the weights, for `first` input coordinates."""
        shapes = [(first, self.width)]
        for layer in range(1, self.depth):
            taps = math.prod(self.windows[layer - 1]) if self.windows else 1
            shapes.append((taps * self.width, self.width))
        return (*shapes, ((1 if self.pooled else self.positions[-1]) * self.width, self.outputs))

    def scales(self, gamma: float) -> np.ndarray:
        r"""What multiplies each layer's inputs: 1 (inputs are scaled already), $N^{-1/2}$, …, $1/(\gamma\sqrt N)$."""
        root = 1 / math.sqrt(self.width)
        return np.asarray([1.0, *([root] * (self.depth - 1)), root / gamma])

    def forward(
        self,
        weights: Weights,
        rows: Array,
        scales: Array,
        offset: Array | None = None,
        bumps: tuple[Array, ...] | None = None,
    ) -> tuple[Array, tuple[Array, ...], tuple[Array, ...]]:
        r"""Outputs $s$ (points, outputs), fields $h^\ell$ and features $\varphi(h^\ell)$, each (points × positions, width).

        `rows` are input coordinates, (points × positions, coordinates), already multiplied by `scales[0]`; `offset` is added to $h^1$,
        and `bumps`, one per hidden layer, to every $h^\ell$: to differentiate with respect to fields.
        """
        fields: list[Array] = []
        features: list[Array] = []
        for layer in range(self.depth):
            if layer == 0:
                field = self._product(rows, weights[0])
                field = field if offset is None else field + offset
            else:
                field = self._layer(layer, features[-1] * scales[layer], weights[layer])
            fields.append(field if bumps is None else field + bumps[layer])
            features.append(self.activation(fields[-1]))
        flat = self.read(features[-1]) * scales[-1]
        return self._product(flat, weights[-1]), tuple(fields), tuple(features)

    def read(self, features: Array) -> Array:
        """What the readout sees of the last layer's features, (points × positions, width): (points, positions × width), or their mean over positions."""
        if self.pooled:
            return jnp.mean(features.reshape(-1, self.positions[-1], self.width), axis=1)
        return features.reshape(-1, self.positions[-1] * self.width)

    def outputs_of(self, weights: Weights, rows: Array, scales: Array, offset: Array | None = None) -> Array:
        return self.forward(weights, rows, scales, offset)[0]

    def _layer(self, layer: int, inputs: Array, weight: Array) -> Array:
        if not self.windows:
            return self._product(inputs, weight)
        below, window, stride = self.grids[layer - 1], self.windows[layer - 1], self.strides[layer - 1]
        images, margins = inputs.reshape(-1, *below, self.width), self.margins[layer - 1]
        if self.wraps:
            rows, columns = (
                np.arange(-before, size + max(after, 0)) % size
                for size, (before, after) in zip(below, margins, strict=True)
            )
            images, margins = images[:, rows][:, :, columns], ((0, 0), (0, 0))
        kernel = weight.reshape(*window, self.width, self.width)
        result = jax.lax.conv_general_dilated(
            images, kernel, stride, margins, dimension_numbers=("NHWC", "HWIO", "NHWC"), precision=self.matmul
        )
        return result.reshape(-1, self.width)

    def patches(self, layer: int, features: Array) -> Array:
        """What a neuron of hidden layer `layer` + 1 sees of this layer's features: (points × positions, fan-in)."""
        if not self.windows:
            return features
        below = features.reshape(-1, math.prod(self.grids[layer - 1]), self.width)
        padded = jnp.pad(below, ((0, 0), (0, 1), (0, 0)))  # -1 is a row of zeros
        shapes = (self.grids[layer - 1], self.grids[layer], self.windows[layer - 1], self.strides[layer - 1])
        taps = window_taps(*shapes, self.margins[layer - 1], wraps=self.wraps)
        return padded[:, taps].reshape(-1, taps.shape[1] * self.width)

    def _product(self, a: Array, b: Array) -> Array:
        return jnp.matmul(a, b, precision=self.matmul)

    def gradient(
        self, weights: Weights, rows: Array, y: Array, scales: Array, offset: Array | None = None, shift: Any = 0.0
    ) -> tuple[Weights, Array, tuple[Array, ...]]:
        r"""$\nabla\mathcal L$, and on the way $s$ and the features. `shift` is subtracted from the outputs (centring)."""

        def outputs(weights: Weights) -> tuple[Array, tuple[Array, ...]]:
            s, _, features = self.forward(weights, rows, scales, offset)
            return s - shift, features

        s, pull, features = jax.vjp(outputs, weights, has_aux=True)
        return pull(-self.loss.error(y, s))[0], s, features

    def kernels(self, features: tuple[Array, ...]) -> tuple[Array, ...]:
        r"""$\Phi^\ell=\frac1N\varphi\varphi^\top$, (P, P); over (point, position) for a CNN's inner layers, of what the readout sees at the last."""
        result = []
        for layer, values in enumerate(features, start=1):
            if layer == self.depth:
                values = self.read(values)
            result.append(self._product(values, values.T) / self.width)
        return tuple(result)

    def unfold(self, kernel: np.ndarray, layer: int) -> np.ndarray:
        """A kernel of hidden layer `layer` in its public shape: (P, P), or (P, S, P, S) for a CNN's inner layers."""
        sites = self.positions[layer - 1]
        if layer == self.depth or not self.convolutional:
            return kernel
        points = len(kernel) // sites
        return kernel.reshape(points, sites, points, sites)


def build(network: Network, X: np.ndarray, loss: Loss, width: int, outputs: int, matmul: str) -> Model:
    """The model of this width for inputs like `X`."""
    checks.choice("matmul", matmul, MATMULS)
    common: dict[str, Any] = {"depth": network.depth, "width": width, "outputs": outputs, "matmul": matmul}
    if not isinstance(network, CNN):
        return Model(network.activation, loss, grids=((1, 1),) * network.depth, **common)
    return Model(
        network.activation,
        loss,
        grids=network.grids(X.shape),
        windows=network.window[1:],
        strides=network.stride[1:],
        margins=network.margins(X.shape)[1:],
        wraps=network.padding == "circular",
        pooled=network.readout == "mean",
        convolutional=True,
        **common,
    )


def rows_of(network: Network, X: np.ndarray) -> np.ndarray:
    """Inputs of the first layer over the root of their size: (points, features), or (points × positions, patch)."""
    if not isinstance(network, CNN):
        return X / math.sqrt(X.shape[1])
    taps, (points, height, width, channels) = network.taps(X.shape)[0], X.shape
    pixels = np.zeros((points, height * width + 1, channels))  # the last, which -1 picks, stays zero
    pixels[:, :-1] = X.reshape(points, -1, channels)
    fan_in = taps.shape[1] * channels
    return pixels[:, taps].reshape(-1, fan_in) / math.sqrt(fan_in)


def draw(
    rng: np.random.Generator, shapes: tuple[tuple[int, ...], ...], distribution: str = "normal"
) -> list[np.ndarray]:
    """Independent weights of mean zero and variance one."""
    if distribution == "laplace":
        return [rng.laplace(scale=math.sqrt(0.5), size=shape) for shape in shapes]
    return [rng.standard_normal(shape) for shape in shapes]


def scale(parameterization: str, richness: float, width: int) -> float:
    r"""$\gamma$: the output is $s=w\cdot\varphi/(\gamma\sqrt N)$ and the loss counts $\gamma^2$ times."""
    checks.choice("parameterization", parameterization, PARAMETERIZATIONS)
    return richness * math.sqrt(width) if parameterization == "mean-field" else richness
