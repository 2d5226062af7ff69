r"""The input kernel as the readout sees it: eigenvalues of $\Phi^0$ and the targets' coordinates on its eigenvectors.

The eigenvectors are those of the smaller of $\Phi^0$ (points) and $X^\top X/D$ (features). Where both are large, a Krylov space that holds the targets stands for
them (`krylov`): what lies outside of it does not matter, up to a residual that is measured.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.linalg

from adakern import linalg

DENSE = 2500  # size from which a Krylov space is tried before all eigenvectors are computed: those take some 40 Cholesky factorisations


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
        basis = scipy.linalg.qr(y, mode="economic", pivoting=True)[0]
        rank = int(np.linalg.matrix_rank(y))
        self._blocks = [basis[:, :rank]] if rank else []
        self._images: list[np.ndarray] = []

    @property
    def size(self) -> int:
        return sum(block.shape[1] for block in self._blocks)

    def grow(self, size: int) -> bool:
        """Go on to at least so many dimensions; False if the space is closed before."""
        while self.size < size:
            room = len(self._y) - self.size
            if not self._blocks or self._blocks[-1].shape[1] == 0 or room == 0:
                return False
            image = self._image()
            scale = np.linalg.norm(image)
            basis = np.concatenate(self._blocks, axis=1)
            fresh = image.copy()
            for _ in range(2):
                fresh -= basis @ (basis.T @ fresh)
            q, corner, _ = scipy.linalg.qr(fresh, mode="economic", pivoting=True)
            keep = np.abs(np.diag(corner)) > 1e-13 * scale
            q = q[:, keep][:, :room]
            for _ in range(2):
                q = np.linalg.qr(q - basis @ (basis.T @ q))[0]
            self._blocks.append(q)
        return True

    def _image(self) -> np.ndarray:
        """Φ⁰ times the last block."""
        if len(self._images) < len(self._blocks):
            self._images.append(self._kernel @ self._blocks[-1])
        return self._images[-1]

    def spectrum(self) -> Spectrum:
        """Ritz values and vectors."""
        self._image()
        basis, images = np.concatenate(self._blocks, axis=1), np.concatenate(self._images, axis=1)
        small = basis.T @ images
        values, rotation = scipy.linalg.eigh((small + small.T) / 2)
        keep = values > linalg.eigenvalue_floor(float(values[-1]), len(basis), np.float64)
        vectors = basis @ rotation[:, keep]
        targets = vectors.T @ self._y
        # The targets lie in the space: what is left of them is rounding, unless directions of no variance were dropped.
        rest = np.zeros_like(self._y) if keep.all() else self._y - vectors @ targets
        return Spectrum(vectors, values[keep], targets, rest)
