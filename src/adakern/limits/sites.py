r"""Positions of a convolutional network's neurons, for laws over (point, position).

A neuron of layer $\ell$ has $P\,S_\ell$ fields, point by point. What the next layer's windows see of the kernel of its features, and what the readout makes of those of
the last layer, is all that tells a CNN from an MLP:

$$C^{\ell+1}_{\mu a,\nu a'}=\tfrac1{\lambda_\ell}\sum_b\Phi^\ell_{\mu,a+b;\nu,a'+b},\qquad
  \Phi^L_{\mu\nu}=\sum_a\langle\varphi_{\mu a}\varphi_{\nu a}\rangle\ \text{("flatten")}\quad\text{or}\quad\langle\bar\varphi_\mu\bar\varphi_\nu\rangle,\ \bar\varphi_\mu=\tfrac1S\sum_a\varphi_{\mu a}\ \text{("mean")}.$$
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from adakern.inputs import Distinct
from adakern.networks import CNN, Network

_Rows = TypeVar("_Rows", Array, np.ndarray)


class Pool(NamedTuple):
    """What the readout does with the positions of the last layer, for arrays of jax and of numpy. Hashable, to be compiled in."""

    sites: int = 1
    mean: bool = False

    def rows(self, features: _Rows) -> _Rows:
        """Features (..., neurons, P·S) as rows over points whose products add up to the kernel: (..., neurons·S, P), or (..., neurons, P) of a mean."""
        if self.sites == 1:
            return features
        points = features.shape[-1] // self.sites
        split = features.reshape(*features.shape[:-1], points, self.sites)
        if self.mean:
            return split.mean(axis=-1)
        rows = split.swapaxes(-1, -2)
        return rows.reshape(*features.shape[:-2], features.shape[-2] * self.sites, points)

    def totals(self, values: Array, neurons: int) -> Array:
        """Numbers of rows, (..., rows), added up for every neuron, (..., neurons)."""
        if values.shape[-1] == neurons:
            return values
        return jnp.sum(values.reshape(*values.shape[:-1], neurons, -1), axis=-1)

    def transpose(self, rows: _Rows, neurons: int) -> _Rows:
        """The transpose of `rows` for (rows, P): (neurons, P·S)."""
        if self.sites == 1:
            return rows
        points = rows.shape[-1]
        if self.mean:
            wide = (rows / self.sites)[..., None].repeat(self.sites, axis=-1)
        else:
            wide = rows.reshape(neurons, self.sites, points).swapaxes(-1, -2)
        return wide.reshape(neurons, points * self.sites)

    def factor(self, errors: np.ndarray) -> np.ndarray:
        r"""$F$ over (point, position) with $|F^\top\varphi|$ the pull of errors $\Delta$, (P, C), on a neuron: (P·S, S·C), $\Delta_{\mu c}\delta_{aa'}$, or (P·S, C) of a mean."""
        if self.sites == 1:
            return errors
        if self.mean:
            return np.repeat(errors / self.sites, self.sites, axis=0)
        return np.kron(errors[:, None, None, :], np.eye(self.sites)[None, :, :, None]).reshape(
            len(errors) * self.sites, -1
        )


class Over(NamedTuple):
    """Kernels of one layer as matrices: over the distinct points of a set or over its (point, position) pairs."""

    points: Distinct  # which of the rows are distinct
    shape: tuple[int, ...]  # of the kernel over all points

    def pick(self, kernel: np.ndarray) -> np.ndarray:
        return self.points.pick(self._flat(kernel))

    def collapse(self, dual: np.ndarray) -> np.ndarray:
        flat = self._flat(dual)
        return flat if len(self.points.first) == len(self.points.member) else self.points.collapse(flat)

    def expand(self, kernel: np.ndarray) -> np.ndarray:
        return self.points.expand(kernel).reshape(self.shape)

    def spread(self, dual: np.ndarray) -> np.ndarray:
        return self.points.spread(dual).reshape(self.shape)

    def _flat(self, kernel: np.ndarray) -> np.ndarray:
        size = len(self.points.member)
        return kernel.reshape(size, size)


@dataclass(frozen=True)
class Sites:
    """Positions of every hidden layer of a CNN, for images of one shape; without a network, one position everywhere. Layers count from 0. Hashable, to be compiled in."""

    network: CNN | None = None
    image: tuple[int, ...] = ()

    @cached_property
    def counts(self) -> tuple[int, ...]:
        return () if self.network is None else self.network.sites((1, *self.image))

    @cached_property
    def taps(self) -> tuple[np.ndarray, ...]:
        """Of layers 2..L, see `CNN.taps`."""
        return () if self.network is None else self.network.taps((1, *self.image))[1:]

    @property
    def pool(self) -> Pool:
        """What happens at the last layer."""
        return Pool() if self.network is None else Pool(self.counts[-1], self.network.readout == "mean")

    def pool_of(self, layer: int, depth: int) -> Pool:
        """What happens to the features of a layer before their kernel is formed: nothing but at the last."""
        return self.pool if layer == depth - 1 else Pool()

    def count(self, layer: int) -> int:
        return self.counts[layer] if self.counts else 1

    def points(self, rows: int) -> int:
        """Of how many points there are so many rows over (point, position) at the first layer."""
        return rows // self.count(0)

    def fields(self, points: int, depth: int) -> tuple[int, ...]:
        """Number of fields of a neuron of each layer."""
        return tuple(points * self.count(layer) for layer in range(depth))

    def sizes(self, points: int, depth: int) -> tuple[int, ...]:
        """Rows of each layer's kernel: positions are counted but at the last."""
        return (*self.fields(points, depth)[:-1], points)

    def over(self, points: Distinct, layer: int, depth: int) -> Over:
        """The rows of a layer's kernel, given the points."""
        count, total = self.count(layer), len(points.member)
        if self.network is None or layer == depth - 1:
            return Over(points, (total, total))
        each = np.arange(count)[None, :]
        first, member = ((index[:, None] * count + each).ravel() for index in points)
        return Over(Distinct(first, member), (total, count, total, count))

    def seen(self, layer: int, kernel: Array) -> Array:
        r"""$\sum_b\Phi_{\mu,a+b;\nu,a'+b}$: what the windows of the layer above `layer` see of its kernel, ($P\,S_\ell$)² to ($P\,S_{\ell+1}$)²."""
        if not self.taps:
            return kernel
        return _windows(self.taps[layer], self.count(layer), kernel)

    def shifted(self, layer: int, kernel: np.ndarray) -> list[np.ndarray]:
        """Rows of a kernel, (P·S_ℓ, n), as each place of the windows above sees them: one (P·S_{ℓ+1}, n) for every b."""
        if not self.taps:
            return [kernel]
        count = self.count(layer)
        split = kernel.reshape(-1, count, kernel.shape[1])
        padded = np.concatenate([split, np.zeros((len(split), 1, kernel.shape[1]), kernel.dtype)], axis=1)
        return [padded[:, tap].reshape(-1, kernel.shape[1]) for tap in self.taps[layer].T]

    def places_of(self, layer: int) -> int:
        """Places in a window above `layer`."""
        return self.taps[layer].shape[1] if self.taps else 1

    def gather(self, layer: int, features: _Rows) -> _Rows:
        """Features (n, P·S_ℓ) as the windows above `layer` take them in: (P·S_{ℓ+1}, n·B), the places of a neuron's window side by side."""
        if not self.taps:
            return features.T
        taps, count = self.taps[layer], self.count(layer)
        split = features.reshape(len(features), -1, count)
        library: Any = jnp if isinstance(features, jax.Array) else np
        padded: _Rows = library.pad(split, ((0, 0), (0, 0), (0, 1)))  # zeros at -1
        return padded[:, :, taps].transpose(1, 2, 0, 3).reshape(split.shape[1] * len(taps), -1)

    def scatter(self, layer: int, rows: np.ndarray) -> np.ndarray:
        """The transpose of `gather`: (n·B, P·S_{ℓ+1}) to (n, P·S_ℓ)."""
        if not self.taps:
            return rows
        places = self._placed(layer, rows.reshape(-1, self.taps[layer].shape[1], rows.shape[1]))
        return places.sum(axis=1)

    def places(self, layer: int, rows: np.ndarray) -> np.ndarray:
        """Rows of the layer above, (n, P·S_{ℓ+1}), as each place of a window below meets them: (P·S_ℓ, n·B), so that products with features below are those of `gather` with the rows."""
        if not self.taps:
            return rows.T
        size = self.taps[layer].shape[1]
        spread = np.broadcast_to(rows[:, None, :], (len(rows), size, rows.shape[1]))
        placed = self._placed(layer, spread)
        return placed.reshape(-1, placed.shape[2]).T

    def _placed(self, layer: int, rows: np.ndarray) -> np.ndarray:
        """Rows (n, B, P·S_{ℓ+1}), each moved back by its place: (n, B, P·S_ℓ)."""
        taps, count = self.taps[layer], self.count(layer)
        split = rows.reshape(*rows.shape[:2], -1, len(taps))
        result = np.zeros((*split.shape[:3], count + 1), rows.dtype)
        for place, tap in enumerate(taps.T):  # no position twice, but for what lies outside
            result[:, place, :, tap] = split[:, place].transpose(2, 0, 1)
        return result[..., :count].reshape(*rows.shape[:2], -1)

    def cross(self, layer: int, kernel: Array) -> Array:
        """The same sum for a kernel between some images and the training points, (n, S, P·S) to (n, S', P·S')."""
        if not self.taps:
            return kernel
        taps, count = self.taps[layer], self.count(layer)
        split = kernel.reshape(*kernel.shape[:2], -1, count)
        padded = jnp.pad(split, ((0, 0), (0, 1), (0, 0), (0, 1)))
        total = sum(padded[:, tap][..., tap] for tap in taps.T)
        return jnp.asarray(total).reshape(len(kernel), len(taps), -1)


POINTS = Sites()  # one position everywhere: an MLP


def of(network: Network, shape: tuple[int, ...]) -> Sites:
    """The positions of a network for inputs of this shape, the points' own axis included."""
    return Sites(network, tuple(shape[1:])) if isinstance(network, CNN) else POINTS


def _windows(taps: np.ndarray, count: int, kernel: Array) -> Array:
    points, above = kernel.shape[0] // count, len(taps)
    if (taps < 0).any():  # zeros at -1
        split = jnp.pad(kernel.reshape(points, count, points, count), ((0, 0), (0, 1), (0, 0), (0, 1)))
        count, kernel = count + 1, split.reshape((points * (count + 1),) * 2)

    def rows(matrix: Array, tap: Array) -> Array:
        """Whole rows are moved, here and on the way back: single numbers would take a processor long."""
        return matrix.reshape(points, count, -1)[:, tap].reshape(points * above, -1)

    def add(total: Array, tap: Array) -> tuple[Array, None]:
        return total + rows(rows(kernel, tap).T, tap).T, None

    return jax.lax.scan(add, jnp.zeros((points * above,) * 2, kernel.dtype), jnp.asarray(taps.T))[0]
