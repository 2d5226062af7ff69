r"""The input kernel as the readout sees it: eigenvalues of $\Phi^0$ and the targets' coordinates on its eigenvectors.

The eigenvectors are those of the smaller of $\Phi^0$ (points) and $X^\top X/D$ (features). Where both are large, a Krylov space that holds the targets stands for
them (`krylov`): what lies outside of it does not matter, up to a residual that is measured.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.linalg

from adakern import linalg

DENSE = 600  # size from which a Krylov space is tried before all eigenvectors are computed: those take some 40 Cholesky factorisations


_CHUNK = 256  # dimensions of a Krylov space that room is made for at first


class Spectrum(NamedTuple):
    r"""$\Phi^0\approx U\,\mathrm{diag}(k)\,U^\top$ and $y=U\tilde y+y_\perp$.

    Attributes:
        vectors: $U$, (P, r), orthonormal columns.
        values: $k>0$, (r,).
        targets: $\tilde y$, (r, C).
        rest: $y_\perp$, (P, C): what no linear network fits.
    """

    vectors: np.ndarray
    values: np.ndarray
    targets: np.ndarray
    rest: np.ndarray

    def scaled(self, factor: float) -> Spectrum:
        """The same with Φ⁰ multiplied by a factor."""
        return self._replace(values=self.values * factor)


def dense(rows: np.ndarray, y: np.ndarray) -> Spectrum:
    """Of features, (P, D), whose inner products are Φ⁰."""
    points, size = rows.shape
    if size < points:
        values, right = scipy.linalg.eigh(rows.T @ rows)
        keep = values > linalg.eigenvalue_floor(float(values[-1]), size, np.float64)
        values, right = values[::-1], right[:, ::-1]
        keep = keep[::-1]
        # Good to rounding of the largest: the vector of a small one is cleaned of those before it.
        vectors, corner = np.linalg.qr(rows @ (right[:, keep] / np.sqrt(values[keep])))
        vectors = vectors * np.where(np.diag(corner) < 0, -1.0, 1.0)
    else:
        values, vectors = scipy.linalg.eigh(rows @ rows.T, driver="evd")
        keep = values > linalg.eigenvalue_floor(float(values[-1]), points, np.float64)
        vectors = vectors[:, keep]
    return _with(vectors, values[keep], y)


def _with(vectors: np.ndarray, values: np.ndarray, y: np.ndarray) -> Spectrum:
    targets = vectors.T @ y
    rest = y - vectors @ targets if vectors.shape[1] < len(y) else np.zeros_like(y)
    return Spectrum(vectors, values, targets, rest)


class Krylov:
    """A growing space of Φ⁰'s powers applied to the targets, orthogonalised in full."""

    def __init__(self, kernel: np.ndarray, y: np.ndarray) -> None:
        self._kernel, self._y = kernel, y
        rank = int(np.linalg.matrix_rank(y))
        first = scipy.linalg.qr(y, mode="economic", pivoting=True)[0][:, :rank]
        self.size, self._last = 0, rank  # dimensions, and those of the last block
        self._held = np.empty((2, min(len(y), max(_CHUNK, rank)), len(y)))  # basis and its images, in rows
        self._add(first.T)

    @property
    def _basis(self) -> np.ndarray:
        return self._held[0, : self.size]

    @property
    def _images(self) -> np.ndarray:
        return self._held[1, : self.size]

    def grow(self, size: int) -> bool:
        """Go on to at least so many dimensions; False if the space is closed before."""
        while self.size < size:
            room = len(self._y) - self.size
            if self._last == 0 or room == 0:
                return False
            fresh = self._images[-self._last :].copy()
            scale = np.linalg.norm(fresh)
            for _ in range(2):
                fresh -= (fresh @ self._basis.T) @ self._basis
            q, corner, _ = scipy.linalg.qr(fresh.T, mode="economic", pivoting=True)
            q = q[:, np.abs(np.diag(corner)) > 1e-13 * scale][:, :room].T
            q = q - (q @ self._basis.T) @ self._basis
            self._last = len(q)
            if self._last:
                self._add(np.linalg.qr(q.T)[0].T)
        return True

    def _add(self, block: np.ndarray) -> None:
        end = self.size + len(block)
        if end > self._held.shape[1]:
            more = np.empty((2, min(len(self._y), 2 * end) - self._held.shape[1], len(self._y)))
            self._held = np.concatenate([self._held, more], axis=1)
        self._held[:, self.size : end] = block, (self._kernel @ block.T).T
        self.size = end

    def spectrum(self) -> Spectrum:
        """Ritz values and vectors."""
        small = self._basis @ self._images.T
        values, rotation = scipy.linalg.eigh((small + small.T) / 2)
        keep = values > linalg.eigenvalue_floor(float(values[-1]), len(self._y), np.float64)
        vectors = self._basis.T @ rotation[:, keep]
        targets = vectors.T @ self._y
        # The targets lie in the space: what is left of them is rounding, unless directions of no variance were dropped.
        rest = np.zeros_like(self._y) if keep.all() else self._y - vectors @ targets
        return Spectrum(vectors, values[keep], targets, rest)
