r"""Network descriptions: frozen, validated, read alike by the theory and by networks of finite width.

A description holds no weights and no width. It says how a point becomes *sites* (one for an MLP, one per position for
a CNN), how many hidden layers there are, and what the activation is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adakern import activations, checks
from adakern.activations import Activation
from adakern.errors import FileFormatError

Pair = tuple[int, int]
PADDINGS = ("valid", "same", "circular")
READOUTS = ("flatten", "mean")


class Network(ABC):
    r"""What every architecture has.

    Attributes:
        depth: number of hidden layers $L$.
        activation: $\varphi$, the same in every hidden layer.
    """

    depth: int
    activation: Activation

    @property
    @abstractmethod
    def input_ndim(self) -> int:
        """Number of axes of a set of inputs, the points' own included."""

    @abstractmethod
    def check_inputs(self, shape: tuple[int, ...]) -> None:
        """Raise `ValueError` if inputs of this shape do not fit the architecture."""

    @abstractmethod
    def sites(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Number of positions of each hidden layer 1..L, for inputs of this shape."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """The description as plain values, for a file's header."""

    @property
    def homogeneity(self) -> int | None:
        r"""Degree $\kappa$ of the output in all weights together: $1+k+\dots+k^L$ for $\varphi$ of degree $k$, else None."""
        k = self.activation.degree
        return None if k is None else sum(k**layer for layer in range(self.depth + 1))


@dataclass(frozen=True)
class MLP(Network):
    r"""A fully connected network with `depth` hidden layers.

    $$h^1=D^{-1/2}W^0x,\qquad h^{\ell+1}=N^{-1/2}W^\ell\varphi(h^\ell),\qquad s=(\gamma_0N)^{-1}w^L\cdot\varphi(h^L)$$

    Inputs have shape (points, features).

    Args:
        depth: hidden layers $L\ge1$.
        activation: "linear", "relu", "erf", "tanh", "gelu", "sine", or any jax-differentiable elementwise callable.
    """

    depth: int = 1
    activation: Activation = "relu"  # type: ignore[assignment]  # a name or a callable is turned into one below

    def __post_init__(self) -> None:
        object.__setattr__(self, "depth", checks.integer("depth", self.depth, least=1))
        object.__setattr__(self, "activation", activations.get(self.activation))

    @property
    def input_ndim(self) -> int:
        return 2

    def check_inputs(self, shape: tuple[int, ...]) -> None:
        if len(shape) != 2:
            raise ValueError(f"X must be 2-D (points, features) for an MLP, but it has shape {shape}")

    def sites(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (1,) * self.depth

    def config(self) -> dict[str, Any]:
        return {"kind": "MLP", "depth": self.depth, "activation": self.activation.name}


@dataclass(frozen=True)
class CNN(Network):
    r"""A convolutional network with `depth` hidden layers.

    $$h^1_a=(\text{fan-in})^{-1/2}\sum_b W^0_bx_{a+b},\qquad h^{\ell+1}_a=N^{-1/2}\sum_bW^\ell_b\varphi(h^\ell_{a+b}),
      \qquad s=(\gamma_0N)^{-1}\sum_aw_a\cdot\varphi(h^L_a)$$

    or, with `readout="mean"`, $s=(\gamma_0N)^{-1}\,w\cdot\frac1S\sum_a\varphi(h^L_a)$. The fan-in is window height × width × channels, whatever the padding.
    Inputs have shape (points, height, width, channels); a neuron is a vector over (point, position), and so are kernels.

    Args:
        depth: hidden layers $L\ge1$.
        window: filter size, an integer, a (height, width) pair, or one of either per layer. Two integers are a pair, with two layers too: give ((3, 3), (2, 2)) for one each.
        stride: step between positions, likewise; by default 1.
        activation: as for `MLP`.
        padding: what a window sees outside of the image, at every layer. "valid": windows stay inside. "same": zeros, with ⌈size/stride⌉ positions per
            axis; an odd number of them has one more after the image than before, as in JAX and TensorFlow. "circular": the image
            wraps around, ⌈size/stride⌉ positions, and a window begins (window−1)//2 before its position.
        readout: "flatten" has one readout weight per position and adds up, "mean" averages over positions first.
    """

    depth: int = 1
    window: Any = 3
    stride: Any = 1
    activation: Activation = "relu"  # type: ignore[assignment]
    padding: str = "valid"
    readout: str = "flatten"

    def __post_init__(self) -> None:
        object.__setattr__(self, "depth", checks.integer("depth", self.depth, least=1))
        object.__setattr__(self, "window", _per_layer("window", self.window, self.depth))
        object.__setattr__(self, "stride", _per_layer("stride", self.stride, self.depth))
        object.__setattr__(self, "activation", activations.get(self.activation))
        checks.choice("padding", self.padding, PADDINGS)
        checks.choice("readout", self.readout, READOUTS)

    @property
    def input_ndim(self) -> int:
        return 4

    def grids(self, shape: tuple[int, ...]) -> tuple[Pair, ...]:
        """Positions (height, width) of each hidden layer, for inputs of this shape."""
        self.check_inputs(shape)
        height, width, result = shape[1], shape[2], []
        for (wh, ww), (sh, sw) in zip(self.window, self.stride, strict=True):
            height, width = _positions(height, wh, sh, self.padding), _positions(width, ww, sw, self.padding)
            result.append((height, width))
        return tuple(result)

    def margins(self, shape: tuple[int, ...]) -> tuple[tuple[Pair, Pair], ...]:
        """Rows and columns, (before, after) each, by which every layer's windows reach beyond what is below it; negative where they leave some of it unseen."""
        result, below = [], shape[1:3]
        for grid, window, stride in zip(self.grids(shape), self.window, self.stride, strict=True):
            rows, columns = (
                _margin(*axis, padding=self.padding) for axis in zip(below, grid, window, stride, strict=True)
            )
            result.append((rows, columns))
            below = grid
        return tuple(result)

    def taps(self, shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
        """What the windows see: for each layer, (positions, window height × width) indices of positions below, counted row by row; -1 where there is nothing."""
        grids, wraps = self.grids(shape), self.padding == "circular"
        layers = zip((shape[1:3], *grids), grids, self.window, self.stride, self.margins(shape), strict=False)
        return tuple(window_taps(*layer, wraps=wraps) for layer in layers)

    def check_inputs(self, shape: tuple[int, ...]) -> None:
        if len(shape) != 4:
            raise ValueError(f"X must be 4-D (points, height, width, channels) for a CNN, but it has shape {shape}")
        if self.padding != "valid":
            return
        height, width = shape[1], shape[2]
        for layer, ((wh, ww), (sh, sw)) in enumerate(zip(self.window, self.stride, strict=True), start=1):
            if wh > height or ww > width:
                what = "the image" if layer == 1 else f"the {height}x{width} positions that layer {layer - 1} leaves"
                raise ValueError(
                    f"window of layer {layer} must fit into {what} "
                    f"(at most {height}x{width}), but it is {wh}x{ww}; use a smaller window or stride, or padding='same'"
                )
            height, width = (height - wh) // sh + 1, (width - ww) // sw + 1

    def sites(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(height * width for height, width in self.grids(shape))

    def config(self) -> dict[str, Any]:
        return {
            "kind": "CNN",
            "depth": self.depth,
            "window": [list(pair) for pair in self.window],
            "stride": [list(pair) for pair in self.stride],
            "activation": self.activation.name,
            "padding": self.padding,
            "readout": self.readout,
        }


def _positions(size: int, window: int, stride: int, padding: str) -> int:
    """Positions of a window along one axis."""
    return (size - window) // stride + 1 if padding == "valid" else -(-size // stride)


def _margin(size: int, count: int, window: int, stride: int, padding: str) -> Pair:
    """By how much `count` windows reach beyond an axis, before and after it."""
    excess = (count - 1) * stride + window - size
    before = {"valid": 0, "same": max(excess, 0) // 2, "circular": (window - 1) // 2}[padding]
    return before, excess - before


def window_taps(
    below: tuple[int, ...], grid: Pair, window: Pair, stride: Pair, margin: tuple[Pair, Pair], *, wraps: bool
) -> np.ndarray:
    """What one layer's windows see, as `CNN.taps` has it; beyond the margins there is the image again if it `wraps`, else nothing."""
    axes = []
    for size, count, side, step, (before, _) in zip(below, grid, window, stride, margin, strict=True):
        index = np.arange(count)[:, None] * step - before + np.arange(side)[None, :]
        axes.append(index % size if wraps else np.where((index >= 0) & (index < size), index, -1))
    rows, columns = axes[0][:, None, :, None], axes[1][None, :, None, :]
    places = np.where((rows < 0) | (columns < 0), -1, rows * below[1] + columns)
    return places.reshape(grid[0] * grid[1], window[0] * window[1])


def from_config(config: dict[str, Any], activation: str | Activation | Callable[[Any], Any] | None = None) -> Network:
    """The description that `Network.config` wrote; `activation` stands in for one that has no name."""
    chosen: Any = config["activation"] if activation is None else activation
    if config["kind"] == "MLP":
        return MLP(config["depth"], chosen)
    if config["kind"] == "CNN":
        window, stride = (tuple(tuple(pair) for pair in config[key]) for key in ("window", "stride"))
        padding, readout = config.get("padding", "valid"), config.get("readout", "flatten")  # older files have neither
        return CNN(config["depth"], window, stride, chosen, padding, readout)
    raise ValueError(f"network kind must be 'MLP' or 'CNN', but it is {config['kind']!r}")


def describe(network: Network) -> dict[str, Any]:
    """The description with what is needed to recognise an activation that has no name, for a file's header."""
    activation = network.activation
    return {
        **network.config(),
        "builtin": activations.is_builtin(activation),
        "values": activations.fingerprint(activation),
    }


def recognise(config: dict[str, Any], activation: Any = None) -> Network:
    """The network that `describe` wrote; one whose activation is a function of its author's needs that function again."""
    if not config["builtin"] and activation is None:
        raise FileFormatError(
            f"the network's activation {config['activation']!r} is a function of its author's, and files hold no code; "
            "pass it with load(path, activation=...)"
        )
    built = from_config(config, None if config["builtin"] else activation)
    if not np.allclose(activations.fingerprint(built.activation), config["values"], rtol=1e-4, atol=1e-6):
        raise FileFormatError(
            f"the activation given is not the one that the file was made with ({config['activation']!r}): their values differ"
        )
    return built


def _pair(name: str, value: Any) -> Pair:
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) != 2:
            raise ValueError(f"{name} must be an integer or a (height, width) pair, but it is {value!r}")
        return checks.integer(name, value[0], least=1), checks.integer(name, value[1], least=1)
    side = checks.integer(name, value, least=1)
    return side, side


def _per_layer(name: str, value: Any, depth: int) -> tuple[Pair, ...]:
    """One pair per layer. A flat sequence of two integers is a (height, width) pair; a longer or nested one is per layer."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str):
        nested = any(isinstance(item, Sequence) for item in value)
        if nested or len(value) != 2:
            if len(value) != depth:
                raise ValueError(
                    f"{name} must be an integer, a (height, width) pair, or one of either per layer ({depth}), "
                    f"but it is {value!r}"
                )
            return tuple(_pair(f"{name}[{layer}]", item) for layer, item in enumerate(value))
    return (_pair(name, value),) * depth
