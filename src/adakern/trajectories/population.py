r"""Neurons at the start: drawn in pairs $(w,a)$, $(w,-a)$, of whose first-layer weights only the part in the span of the training inputs is simulated.

With rows $\tilde x=x/\sqrt D=cQ^\top+\tilde x_\perp$, $Q$ orthonormal, training sees $Q^\top w$ alone; the rest of $w$ decays as $e^{-\lambda_0t}$. The rows of a CNN are its patches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Array

INITIAL = ("normal", "laplace")
_DRAWN = 256  # neurons drawn with one generator: any stretch of them can be drawn again


class Neurons(NamedTuple):
    """All neurons: replicas × signs of the readout × neurons × what each has."""

    w: Array  # coordinates
    a: Array  # positions that have a readout weight of their own, outputs


@dataclass(frozen=True)
class Span:
    """Orthonormal directions that span the training rows, (features, rank); None if they span everything."""

    size: int
    basis: np.ndarray | None

    @property
    def rank(self) -> int:
        return self.size if self.basis is None else self.basis.shape[1]

    def inside(self, rows: np.ndarray) -> np.ndarray:
        """Coordinates in the span; weights, as rows, have the same."""
        return rows if self.basis is None else rows @ self.basis

    def outside(self, rows: np.ndarray) -> np.ndarray:
        """What is left of rows outside of the span."""
        if self.basis is None:
            return np.zeros_like(rows)
        rest = rows - self.inside(rows) @ self.basis.T
        rest -= self.inside(rest) @ self.basis.T  # once more, against rounding
        scale = np.linalg.norm(rows, axis=1, keepdims=True)
        lost = np.linalg.norm(rest, axis=1, keepdims=True) <= 1e3 * np.finfo(rows.dtype).eps * scale
        return np.where(lost, 0.0, rest)


def span(rows: np.ndarray) -> Span:
    """The span of training rows."""
    _, values, right = np.linalg.svd(rows, full_matrices=False)
    floor = max(rows.shape) * np.finfo(rows.dtype).eps * values[0]
    kept = values > floor if values[0] > 0 else np.arange(len(values)) < 1  # inputs of zeros: one coordinate
    if kept.sum() == rows.shape[1]:
        return Span(rows.shape[1], None)
    basis = right[kept].T
    largest = np.take_along_axis(basis, np.argmax(np.abs(basis), axis=0)[None, :], axis=0)
    return Span(rows.shape[1], np.ascontiguousarray(basis * np.where(largest < 0, -1.0, 1.0)))


@dataclass(frozen=True)
class Start:
    """The law of the neurons at the start, and its draws, which the seed determines."""

    initial: str
    seed: int
    pairs: int
    outputs: int  # readout weights of a neuron

    def drawn(self, replica: int, size: int) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """First-layer weights (neurons, features) and readout weights (neurons, outputs) of a replica, some at a time."""
        for index, begin in enumerate(range(0, self.pairs, _DRAWN)):
            rng = np.random.default_rng([self.seed, replica, index])
            count = min(_DRAWN, self.pairs - begin)
            both = self._variates(rng, (count, size + self.outputs))
            yield slice(begin, begin + count), both[:, :size], both[:, size:]

    def _variates(self, rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
        return (
            rng.laplace(scale=math.sqrt(0.5), size=shape) if self.initial == "laplace" else rng.standard_normal(shape)
        )

    def neurons(self, span: Span, replicas: int, precision: str) -> tuple[np.ndarray, np.ndarray]:
        """Weights in the span and readouts of all neurons, the second half with readouts of the other sign."""
        w = np.empty((replicas, 2, self.pairs, span.rank), precision)
        a = np.empty((replicas, 2, self.pairs, self.outputs), precision)
        for replica in range(replicas):
            for here, first, readout in self.drawn(replica, span.size):
                w[replica, :, here] = span.inside(first)
                a[replica, 0, here], a[replica, 1, here] = readout, -readout
        return w, a

    def far(self, span: Span, outside: np.ndarray, replica: int) -> np.ndarray:
        """Fields that the weights outside of the span give at the start, (pairs, points)."""
        fields = np.empty((self.pairs, len(outside)))
        for here, first, _ in self.drawn(replica, span.size):
            fields[here] = first @ outside.T
        return fields
