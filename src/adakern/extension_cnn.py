r"""The lazy kernel of a convolutional network at new images, by the same recursion as at the training images."""

from __future__ import annotations

import numpy as np

from adakern.activations import ClosedForm
from adakern.extension import Extension
from adakern.limits.base import Limit
from adakern.networks import CNN
from adakern.recursion import TILE, spans
from adakern.recursion_cnn import Convolution, Variances

_POINT_BYTES = 2**22  # that a new image may take against the training images of one tile
_SERIES_VALUES = 2000  # numbers that a Hermite series holds for one position


class ConvolutionExtension(Extension):
    """Closed form: new images against the training images, a tile of these at a time."""

    def __init__(self, limit: Limit, X: np.ndarray, precision: str) -> None:
        assert isinstance(limit.network, CNN)
        self._tangent, self._inputs = limit.tangent, X
        self._convolution = Convolution(limit.network, limit.decays, X.shape[1:], precision)
        fits = _POINT_BYTES // self._convolution.bytes_per_pair()
        self._columns = int(max(1, min(len(X), TILE, fits)))

    def blocks(self, X: np.ndarray) -> np.ndarray:
        both = self._convolution.variances(np.concatenate([X, self._inputs]))  # one rule serves both
        new, old = both.pick(slice(len(X))), both.pick(slice(len(X), None))
        result = np.empty((len(X), len(self._inputs)), dtype=self._convolution.precision)
        for columns in spans(len(self._inputs), self._columns):
            top, total = self._block(new, X, old, columns)
            result[:, columns] = top if total is None else total
        return result[None]

    def own(self, X: np.ndarray) -> np.ndarray:
        return self._convolution.own(self._convolution.variances(X), X, self._tangent)

    def bytes_per_point(self) -> int:
        convolution = self._convolution
        item, sites = np.dtype(convolution.precision).itemsize, max(convolution.sites)
        patch = int(np.prod(convolution.network.window[0])) * convolution.image[2]
        coefficients = 0 if isinstance(convolution.network.activation, ClosedForm) else 4 * _SERIES_VALUES
        if convolution.pooled:  # of all positions at once, otherwise of few
            coefficients *= sites
        rows = 2 * len(self._inputs) + 3 * convolution.sites[0] * patch + 4 * sum(convolution.sites) + coefficients
        return item * rows + convolution.bytes_per_pair() * self._columns

    def _block(
        self, new: Variances, X: np.ndarray, old: Variances, columns: slice
    ) -> tuple[np.ndarray, np.ndarray | None]:
        return self._convolution.tile(self._tangent, new, X, old.pick(columns), self._inputs[columns])
