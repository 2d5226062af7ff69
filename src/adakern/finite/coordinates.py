r"""Input coordinates: the training inputs span few directions, and only those enter the training.

With rows $\tilde x=cQ^\top$, $Q$ orthonormal, the first layer is $h^1=c\,(Q^\top W^0)$: of $W^0$ only its projection on the span of the training inputs
is simulated. The rest is known without simulating: under Langevin dynamics it keeps its prior, independent of everything else; under gradient flow it
is the initial weight, faded by weight decay. Exact, and cheaper by inputs' dimension over points.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Coordinates:
    """The span of the training rows; `basis` None is the identity."""

    size: int  # of a row
    basis: np.ndarray | None  # (size, rank)

    @property
    def rank(self) -> int:
        return self.size if self.basis is None else self.basis.shape[1]

    def split(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Coordinates in the span, and what is left outside of it (None if the span is everything)."""
        if self.basis is None:
            return rows, None
        inside = rows @ self.basis
        return inside, rows - inside @ self.basis.T

    def project(self, weight: np.ndarray) -> np.ndarray:
        """The simulated part of first-layer weights (size, width)."""
        return weight if self.basis is None else self.basis.T @ weight


def of_rows(rows: np.ndarray) -> Coordinates:
    """The coordinates that serve these training rows best: their span if it is smaller than the space."""
    count, size = rows.shape
    if count >= size:
        return Coordinates(size, None)
    _, values, right = np.linalg.svd(rows, full_matrices=False)
    kept = values > size * np.finfo(rows.dtype).eps * values[0] if values[0] > 0 else np.arange(len(values)) < 1
    return Coordinates(size, np.ascontiguousarray(right[kept].T))  # as a file gives it back
