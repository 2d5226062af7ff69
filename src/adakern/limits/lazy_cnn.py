r"""The audit of a lazy solution of a convolutional network: kernels of a few pairs of images, from the images, by other means than the solver's.

Position by position in numpy: what a window sees is cut out of a padded image, moments come by polar quadrature, and the tangent kernel from the top,
$K=R(\Phi^L)+\sum_\ell\sum_{aa'}G^\ell_{aa'}C^\ell_{aa'}$ with the gradient kernels $G^\ell$, where the solver climbs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from adakern import quadrature
from adakern.activations import Activation, MomentRule
from adakern.limits.base import Answer, relative
from adakern.networks import CNN

_polar = jax.jit(quadrature.polar, static_argnums=(0, 1))
_LEVEL = 3  # of polar quadrature, for standard deviations up to one
_MOST = 16384  # moments that are computed by quadrature one by one; of more, this many spot checks
_ROWS = 2048  # of these a batch, where a rule takes hundreds of numbers a pair
_PAIRS = 3


class _Moments:
    """E[φφ] or E[φ'φ'] of many pairs, and how far they may be off: `doubt`, relative to the largest, adds up over calls."""

    def __init__(self, activation: Activation) -> None:
        self.activation, self.doubt, self.error = activation, 0.0, 0.0
        self._rng = np.random.default_rng(0)

    def __call__(self, slopes: bool, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        function = self.activation.derivative if slopes else self.activation
        if c.size <= _MOST:
            return self._quadrature(function, a, b, c)
        chosen = self._rng.integers(c.size, size=_MOST // 16)
        values = self._rule(slopes, a, b, c)
        checked = self._quadrature(function, a[chosen], b[chosen], c[chosen])
        difference = np.maximum(np.abs(values[chosen] - checked) - 2 * self.doubt * np.abs(checked), 0.0)
        self.error = max(self.error, relative(difference, checked))
        return values

    def _quadrature(
        self, function: Callable[[Array], Array], a: np.ndarray, b: np.ndarray, c: np.ndarray
    ) -> np.ndarray:
        spread = float(np.sqrt(max(a.max(), b.max(), 0.0)))
        steps = 0 if self.activation.degree is not None else int(np.ceil(np.log2(max(1.0, spread))))
        level = min(_LEVEL + steps, len(quadrature.LEVELS) - 1)
        length = 4 ** max(4, int(np.ceil(np.log(c.size) / np.log(4) - 1e-9)))  # few shapes: each is compiled
        arrays = [jnp.asarray(np.pad(part, (0, length - c.size))) for part in (a, b, c)]
        fine = np.asarray(_polar(function, level, *arrays), np.float64)[: c.size]
        if level > _LEVEL:
            coarse = np.asarray(_polar(function, level - 1, *arrays))[: c.size]
            self.doubt += np.inf if spread > quadrature.STEEPEST else relative(fine - coarse, fine)
        return fine

    def _rule(self, slopes: bool, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        """The activation's own rule, spot-checked by the caller."""
        rule = self.activation.rule(np.concatenate([a, b]), str(jnp.zeros(()).dtype))
        return np.asarray(_one_by_one(rule, slopes, *map(jnp.asarray, (a, b, c))), np.float64)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _one_by_one(rule: MomentRule, slopes: bool, a: Array, b: Array, c: Array) -> Array:
    compute = rule.slopes if slopes else rule.values

    def one(part: tuple[Array, Array, Array]) -> Array:
        return compute(part[0][None], part[1][None], part[2][None, None])[0, 0]

    return jax.lax.map(one, (a, b, c), batch_size=_ROWS)


class _Level(NamedTuple):
    seen: np.ndarray  # C^ℓ of two images: (positions,), or (positions, positions) for a mean
    slopes: np.ndarray  # E[φ'φ'] / λ_ℓ


def recursion_error(network: CNN, decays: tuple[float, ...], tangent: bool, X: np.ndarray, answer: Answer) -> float:
    """The largest relative error of the answer's kernels at a few pairs of images, as far as it exceeds what quadrature leaves in doubt."""
    rng = np.random.default_rng(0)
    pairs = [(int(i), int(j)) for i, j in rng.integers(len(X), size=(_PAIRS, 2))]
    found, expected, worst = [], [], 0.0
    for i, j in pairs:
        moments = _Moments(network.activation)
        top, total = _kernels(network, decays, tangent, X[i], X[j], moments)
        found += [answer.kernels[-1][i, j], answer.kernel[i, j]]
        expected += [top, total if tangent else top]
        # Next to correlation one ReLU's slope kernel is known to half the digits only.
        doubt = 2 * moments.doubt + (np.sqrt(np.finfo(answer.kernel.dtype).eps) if tangent else 0.0)
        for theirs, ours in zip(found[-2:], expected[-2:], strict=True):
            gap = max(abs(theirs - ours) - doubt * abs(ours), 0.0)
            scale = np.sqrt(abs(answer.kernels[-1][i, i] * answer.kernels[-1][j, j]))
            worst = max(worst, gap if scale == 0 else gap / max(abs(ours), scale), moments.error)
    return float(worst)


def _kernels(
    network: CNN, decays: tuple[float, ...], tangent: bool, x: np.ndarray, z: np.ndarray, moments: _Moments
) -> tuple[float, float]:
    r"""$\Phi^L$ and $K$ of two images."""
    every = network.readout == "mean"
    patches = [np.stack([patch.ravel() for patch in _windows(image, network, 0)]) for image in (x, z)]
    left, right = (rows / np.sqrt(rows.shape[1]) for rows in patches)
    own = [np.sum(rows**2, axis=1) for rows in (left, right)]
    seen = left @ right.T if every else np.sum(left * right, axis=1)
    kernel, levels = np.zeros(0), list[_Level]()
    for layer in range(network.depth):
        if layer:
            places = _places(network, layer, x.shape)
            own = [_add(places, moments(False, *(v / decays[layer - 1],) * 3), False) for v in own]
            seen = _add(places, kernel, every)
        first, second = np.broadcast_arrays(own[0][:, None], own[1][None, :]) if every else own
        fields = [np.ravel(part) / decays[layer] for part in (first, second, seen)]
        kernel = moments(False, *fields).reshape(seen.shape)
        slopes = moments(True, *fields).reshape(seen.shape) if tangent else np.zeros_like(seen)
        levels.append(_Level(seen, slopes / decays[layer + 1]))
    above = np.full_like(kernel, 1 / len(kernel) ** 2 if every else 1.0)  # the readout
    top = total = float(np.sum(above * kernel))
    for layer in range(network.depth - 1, -1, -1):
        gradient = above * levels[layer].slopes
        total += float(np.sum(gradient * levels[layer].seen))
        if layer:
            above = _spread(_places(network, layer, x.shape), gradient, levels[layer - 1].seen.shape, every)
    return top, total


def _add(places: np.ndarray, values: np.ndarray, every: bool) -> np.ndarray:
    """Sums over windows, of values at positions or at pairs of positions that a window shifts alike."""
    padded = np.pad(values, (0, 1))  # -1 is zero
    return np.sum([padded[np.ix_(tap, tap)] if every else padded[tap] for tap in places.T], axis=0)


def _spread(places: np.ndarray, values: np.ndarray, shape: tuple[int, ...], every: bool) -> np.ndarray:
    """The transpose of `_add`: every window gives its value to all that it sees."""
    padded = np.zeros([size + 1 for size in shape])
    for tap in places.T:
        np.add.at(padded, np.ix_(tap, tap) if every else tap, values)
    return padded[tuple(slice(-1) for _ in shape)]


def _windows(image: np.ndarray, network: CNN, layer: int) -> list[np.ndarray]:
    """What each window of a layer sees of an image of what is below, (height, width, channels), cut out of it after padding."""
    (wh, ww), (sh, sw) = network.window[layer], network.stride[layer]
    height, width = image.shape[:2]
    if network.padding == "valid":
        rows, columns, padded = (height - wh) // sh + 1, (width - ww) // sw + 1, image
    else:
        rows, columns = -(-height // sh), -(-width // sw)
        down, right = max((rows - 1) * sh + wh - height, 0), max((columns - 1) * sw + ww - width, 0)
        if network.padding == "same":
            margins = ((down // 2, down - down // 2), (right // 2, right - right // 2), (0, 0))
            padded = np.pad(image, margins, constant_values=-1 if image.dtype.kind == "i" else 0)
        else:
            top, left = (wh - 1) // 2, (ww - 1) // 2
            margins = ((top, max(down, wh)), (left, max(right, ww)), (0, 0))
            padded = np.pad(image, margins, mode="wrap")
    corners = [(row * sh, column * sw) for row in range(rows) for column in range(columns)]
    return [padded[row : row + wh, column : column + ww] for row, column in corners]


def _places(network: CNN, layer: int, image: tuple[int, ...]) -> np.ndarray:
    """The positions below that each window of layer `layer` + 1 sees, -1 where there is none: windows cut out of an image of numbers."""
    grid = network.grids((1, *image))[layer - 1]
    numbers = np.arange(grid[0] * grid[1]).reshape(*grid, 1)
    return np.stack([window.ravel() for window in _windows(numbers, network, layer)])
