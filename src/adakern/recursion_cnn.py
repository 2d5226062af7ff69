r"""The kernel recursion of the lazy limit for convolutional networks, in tiles of points.

Fields of layer $\ell$ are Gaussian over (point, position), with what their windows see of the layer below as covariance:

$$C^1_{\mu a,\nu a'}=\frac{\text{patch}_{\mu a}\cdot\text{patch}_{\nu a'}}{\text{fan-in}},\qquad C^{\ell+1}_{\mu a,\nu a'}=\sum_b\Phi^\ell_{\mu,a+b;\nu,a'+b},\qquad
  \Phi^\ell=E_{h\sim N(0,C^\ell/\lambda_{\ell-1})}[\varphi\varphi^\top],\quad\dot\Phi^\ell=\tfrac1{\lambda_\ell}E[\varphi'\varphi'^\top].$$

The tangent kernel of the fields climbs alongside, $T^1=C^1$, $T^{\ell+1}_{\mu a,\nu a'}=C^{\ell+1}_{\mu a,\nu a'}+\sum_b(\dot\Phi^\ell\circ T^\ell)_{\mu,a+b;\nu,a'+b}$, so that
$K=R(\Phi^L)+R(\dot\Phi^L\circ T^L)$ with $R$ the readout: $\sum_a$ of the blocks with $a=a'$ ("flatten"), or $S^{-2}\sum_{aa'}$ ("mean"). Both sums of a window shift
both positions alike: a flattened readout needs the blocks with $a=a'$ alone, at every layer, a mean all pairs of positions.

Nothing but a tile is ever held: points² × positions, or × positions² for a mean.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, SupportsIndex, overload

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from adakern import inputs, memory
from adakern.activations import MomentRule
from adakern.activations.base import ClosedRule
from adakern.networks import CNN
from adakern.precision import scope
from adakern.recursion import TILE, spans

_TILE_BYTES = 2**27  # of all arrays of a tile together
_ROWS = 4096  # variances whose Hermite coefficients are computed at a time
_FEW = 256
_FEWER = "a larger stride, smaller images"


class Variances(NamedTuple):
    """Variances of the fields of a set of images, the rule that serves all of them at each layer, and the kernels' diagonals."""

    fields: tuple[np.ndarray, ...]  # of layers 1..L, (points, positions) each
    rules: tuple[MomentRule, ...]
    kernel: np.ndarray  # Σ_a Φ^L(μa, μa): the diagonal of Φ^L under a flattened readout
    tangent: np.ndarray  # the same of K

    def pick(self, points: slice) -> Variances:
        fields = tuple(field[points] for field in self.fields)
        return Variances(fields, self.rules, self.kernel[points], self.tangent[points])


@dataclass(frozen=True)
class Convolution:
    r"""The recursion of one network for images of one shape. Methods that compute are called inside `precision.scope`.

    Attributes:
        decays: $\lambda_0..\lambda_L$.
        image: (height, width, channels).
    """

    network: CNN
    decays: tuple[float, ...]
    image: tuple[int, ...]
    precision: str

    @property
    def pooled(self) -> bool:
        return self.network.readout == "mean"

    @cached_property
    def sites(self) -> tuple[int, ...]:
        return self.network.sites((1, *self.image))

    @cached_property
    def taps(self) -> tuple[np.ndarray, ...]:
        """Of layers 2..L: the first sees patches."""
        return self.network.taps((1, *self.image))[1:]

    def bytes_per_pair(self, pairs: bool | None = None) -> int:
        """Memory that a tile takes for one pair of points; `pairs` of positions, or as the readout needs it."""
        every = self.pooled if pairs is None else pairs
        live = 6 + 2 * self.network.depth
        return live * np.dtype(self.precision).itemsize * max(self.sites) ** (2 if every else 1)

    def side(self, points: int, pairs: bool | None = None) -> int:
        """Points per side of a tile."""
        fits = int(np.sqrt(_TILE_BYTES / self.bytes_per_pair(pairs)))
        return max(1, min(points, TILE, fits))

    def require(self, points: int, tangent: bool) -> None:
        """Refuse what does not fit: the kernels over points and the workspace of their linear system, and one tile."""
        if self.pooled:
            what = f"readout='mean', every pair of the {max(self.sites)} positions of two images,"
            memory.require(self.bytes_per_pair(), what, f"{_FEWER}, readout='flatten'")
        item, matrices = np.dtype(self.precision).itemsize, 7 if tangent else 5
        tile = self.bytes_per_pair() * self.side(points) ** 2 + 8 * points * sum(self.sites)
        memory.require(matrices * points**2 * item + tile, f"a kernel over {points} images")

    def variances(self, X: np.ndarray) -> Variances:
        """Carry the variances of every position of a set of images through the layers."""
        network, decays = self.network, self.decays
        size = max(1, 2**22 // (self.sites[0] * int(np.prod(network.window[0])) * self.image[2]))
        seen = np.empty((len(X), self.sites[0]))
        for part in spans(len(X), size):
            rows = inputs.features(network, X[part])
            seen[part] = np.einsum("nd,nd->n", rows, rows).reshape(-1, self.sites[0])
        fields, rules, tangent = [], [], seen
        for layer in range(1, network.depth + 1):
            fields.append(seen / decays[layer - 1])
            rules.append(network.activation.rule(fields[-1].ravel(), self.precision))
            value, slope = _own(rules[-1], fields[-1])
            tangent = slope / decays[layer] * tangent
            if layer < network.depth:
                seen = _sum_taps(value, self.taps[layer - 1])
                tangent = seen + _sum_taps(tangent, self.taps[layer - 1])
        kernel = value.sum(axis=1)
        return Variances(tuple(fields), tuple(rules), kernel, kernel + tangent.sum(axis=1))

    def tile(
        self, tangent: bool, rows: Variances, X: np.ndarray, columns: Variances, Z: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        r"""$\Phi^L$ and, on request, $K$ between two sets of images that share their rules, (n, m)."""
        top, total = _tile(rows.rules, tangent, self.pooled, *self._arrays(rows, X, columns, Z))
        return np.asarray(top), None if total is None else np.asarray(total)

    def own(self, variances: Variances, X: np.ndarray, tangent: bool) -> np.ndarray:
        r"""The diagonal of $\Phi^L$ or $K$, (n,)."""
        if not self.pooled:
            return variances.tangent if tangent else variances.kernel
        result = np.empty(len(X))
        for point in range(len(X)):
            here = slice(point, point + 1)
            both = self.tile(tangent, variances.pick(here), X[here], variances.pick(here), X[here])
            result[point] = np.squeeze(both[0] if both[1] is None else both[1])
        return result

    def inner(self, X: np.ndarray, layer: int) -> np.ndarray:
        r"""$\Phi^\ell_{\mu a,\nu a'}$ of hidden layer `layer` (1..L) over all pairs of positions, (P, S, P, S)."""
        return self._all_pairs(X, layer, "kernel", _inner)

    def gradient(self, X: np.ndarray, layer: int) -> np.ndarray:
        r"""$G^\ell_{\mu a,\nu a'}$ likewise: what climbs down, $G^\ell=\dot\Phi^\ell\circ\sum G^{\ell+1}$ over all windows that see both positions alike."""
        return self._all_pairs(X, layer, "gradient kernel", _gradient)

    def _all_pairs(self, X: np.ndarray, layer: int, name: str, compute: Any) -> np.ndarray:
        points, sites = len(X), self.sites[layer - 1]
        shape = (points, sites, points, sites)
        item = np.dtype(self.precision).itemsize
        needed = item * (points * sites) ** 2 + self.bytes_per_pair(pairs=True)
        what = f"the {name} of layer {layer} over all pairs of {points} x {sites} positions"
        memory.require(needed, what, f"fewer training points, {_FEWER}")
        result = np.empty(shape, dtype=self.precision)
        variances = self.variances(X)
        parts = list(spans(points, self.side(points, pairs=True)))
        for i, rows in enumerate(parts):
            for columns in parts[i:]:
                arrays = self._arrays(variances.pick(rows), X[rows], variances.pick(columns), X[columns])
                block = np.asarray(compute(variances.rules, layer, self.pooled, *arrays)).transpose(1, 0, 3, 2)
                if rows == columns:  # a matrix product is symmetric only up to rounding
                    block = (block + block.transpose(2, 3, 0, 1)) / 2
                result[rows, :, columns] = block
                result[columns, :, rows] = block.transpose(2, 3, 0, 1)
        return result

    def _arrays(self, rows: Variances, X: np.ndarray, columns: Variances, Z: np.ndarray) -> tuple[Any, ...]:
        left, right = (
            inputs.features(self.network, images).reshape(len(images), self.sites[0], -1) for images in (X, Z)
        )
        return (
            jnp.asarray(self.decays),
            tuple(jnp.asarray(taps) for taps in self.taps),
            tuple(jnp.asarray(field.T) for field in rows.fields),
            tuple(jnp.asarray(field.T) for field in columns.fields),
            jnp.asarray(left),
            jnp.asarray(right),
        )


def _own(rule: MomentRule, variances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """E[φ²] and E[φ'²] at every position, a few thousand at a time."""
    flat = variances.ravel()
    length = _FEW if len(flat) <= _FEW else _ROWS  # two shapes: each is compiled
    padded = np.pad(flat, (0, -len(flat) % length))
    values, slopes = np.empty_like(padded), np.empty_like(padded)
    for part in spans(len(padded), length):
        value, slope = _own_part(rule, jnp.asarray(padded[part]))
        values[part], slopes[part] = np.asarray(value), np.asarray(slope)
    return values[: len(flat)].reshape(variances.shape), slopes[: len(flat)].reshape(variances.shape)


@functools.partial(jax.jit, static_argnames="rule")
def _own_part(rule: MomentRule, variance: Array) -> tuple[Array, Array]:
    return rule.own_values(variance), rule.own_slopes(variance)


def _sum_taps(values: np.ndarray, taps: np.ndarray) -> np.ndarray:
    """Sums over windows, (points, positions below) to (points, positions)."""
    padded = np.concatenate([values, np.zeros((len(values), 1))], axis=1)
    total = np.zeros((len(values), len(taps)))
    for tap in taps.T:
        total += padded[:, tap]
    return total


def _window(taps: Array, pairs: bool, values: Array) -> Array:
    r"""$\sum_b$ over a window: (positions, n, m), or (positions, n, positions, m) with both shifted alike."""
    if pairs:
        padded = jnp.pad(values, ((0, 1), (0, 0), (0, 1), (0, 0)))
        shape: tuple[int, ...] = (len(taps), values.shape[1], len(taps), values.shape[3])
    else:
        padded = jnp.pad(values, ((0, 1), (0, 0), (0, 0)))
        shape = (len(taps), *values.shape[1:])

    def add(total: Array, tap: Array) -> tuple[Array, None]:
        seen = padded[tap]  # -1 is the zeros
        return total + (seen[:, :, tap] if pairs else seen), None

    return jax.lax.scan(add, jnp.zeros(shape, values.dtype), taps.T)[0]


def _moments(
    rule: MomentRule, slopes: bool, pairs: bool, row: Array, column: Array, block: Array
) -> tuple[Array, Array | None]:
    """E[φφ] and E[φ'φ'] of a tile, whose variances are (positions, n) and (positions, m)."""

    def both(row: Array, column: Array, block: Array) -> tuple[Array, Array | None]:
        return rule.values(row, column, block), rule.slopes(row, column, block) if slopes else None

    if pairs:
        flat = block.reshape(row.size, column.size)
        values, derivatives = both(row.ravel(), column.ravel(), flat)
        return values.reshape(block.shape), None if derivatives is None else derivatives.reshape(block.shape)
    if isinstance(rule, ClosedRule):
        return jax.vmap(both)(row, column, block)
    # Coefficients of a Hermite series take hundreds of numbers a variance: few positions at a time.
    few = max(1, _ROWS // max(row.shape[1], column.shape[1]))
    return jax.lax.map(lambda part: both(*part), (row, column, block), batch_size=few)


class _Layer(NamedTuple):
    kernel: Array  # Φ^ℓ
    slopes: Array | None  # E[φ'φ'] / λ_ℓ
    tangent: Array | None  # T^ℓ


def _climb(
    rules: tuple[MomentRule, ...],
    tangent: bool,
    pairs: bool,
    decay: Array,
    taps: tuple[Array, ...],
    row_fields: tuple[Array, ...],
    column_fields: tuple[Array, ...],
    rows: Array,
    columns: Array,
) -> Iterator[_Layer]:
    """The layers of a tile, from the bottom, as far as there are rules."""
    product = "nad,mbd->anbm" if pairs else "nad,mad->anm"
    seen = jnp.einsum(product, rows, columns, precision=jax.lax.Precision.HIGHEST)
    total = seen if tangent else None
    for index, rule in enumerate(rules):
        fields = (row_fields[index], column_fields[index], seen / decay[index])
        kernel, slopes = _moments(rule, tangent, pairs, *fields)
        slopes = None if slopes is None else slopes / decay[index + 1]
        yield _Layer(kernel, slopes, total)
        if index + 1 < len(rules):
            seen = _window(taps[index], pairs, kernel)
            if slopes is not None and total is not None:
                total = seen + _window(taps[index], pairs, slopes * total)


def _readout(pairs: bool, values: Array) -> Array:
    return jnp.mean(values, axis=(0, 2)) if pairs else jnp.sum(values, axis=0)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _tile(rules: tuple[MomentRule, ...], tangent: bool, pairs: bool, *arrays: Any) -> tuple[Array, Array | None]:
    *_, last = _climb(rules, tangent, pairs, *arrays)
    top = _readout(pairs, last.kernel)
    if last.slopes is None or last.tangent is None:
        return top, None
    return top, top + _readout(pairs, last.slopes * last.tangent)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _inner(rules: tuple[MomentRule, ...], layer: int, pooled: bool, *arrays: Any) -> Array:
    *_, last = _climb(rules[:layer], False, True, *arrays)
    return last.kernel


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _gradient(rules: tuple[MomentRule, ...], layer: int, pooled: bool, *arrays: Any) -> Array:
    layers, taps = list(_climb(rules, True, pooled, *arrays)), arrays[1]
    gradient = layers[-1].slopes
    assert gradient is not None
    if pooled:
        gradient = gradient / gradient.shape[0] ** 2
    for index in range(len(rules) - 1, layer - 1, -1):
        below = layers[index - 1]
        _, transposed = jax.vjp(functools.partial(_window, taps[index - 1], pooled), below.kernel)
        gradient = transposed(gradient)[0] * below.slopes
    if pooled:
        return gradient
    sites = jnp.arange(gradient.shape[0])  # readout weights are independent: so are gradients at two positions
    shape = (gradient.shape[0], gradient.shape[1], gradient.shape[0], gradient.shape[2])
    return jnp.zeros(shape, gradient.dtype).at[sites, :, sites].set(gradient)


class Layers(tuple[np.ndarray, ...]):
    r"""$\Phi^1..\Phi^L$ of a CNN, or $G^1..G^L$: a tuple whose arrays over pairs of positions, (P, S, P, S), are computed when they are asked for, and then kept.

    $\Phi^L$, summed over positions as the readout does, is there from the start.
    """

    _problem: Convolution
    _inputs: np.ndarray
    _found: dict[int, np.ndarray]
    _last: np.ndarray | None

    def __new__(cls, problem: Convolution, X: np.ndarray, last: np.ndarray | None) -> Layers:
        self = super().__new__(cls)
        self._problem, self._inputs, self._last = problem, X, last
        self._found = {} if last is None else {problem.network.depth - 1: last}
        for array in self._found.values():
            array.setflags(write=False)
        return self

    def __reduce__(self) -> Any:
        return Layers, (self._problem, self._inputs, self._last)

    def __len__(self) -> int:
        return self._problem.network.depth

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[index] for index in range(len(self)))

    @overload
    def __getitem__(self, key: SupportsIndex) -> np.ndarray: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[np.ndarray, ...]: ...
    def __getitem__(self, key: Any) -> Any:
        places = range(len(self))[key]
        return tuple(map(self._layer, places)) if isinstance(places, range) else self._layer(places)

    def _layer(self, index: int) -> np.ndarray:
        if index not in self._found:
            compute = self._problem.gradient if self._last is None else self._problem.inner
            with scope(self._problem.precision):
                self._found[index] = compute(self._inputs, index + 1)
            self._found[index].setflags(write=False)
        return self._found[index]

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __add__(self, other: Any) -> Any:
        return tuple(self) + tuple(other)
