"""From inputs and targets to the solutions of a linear aNBK: by eigenvectors, or in a Krylov space where those cost too much."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from adakern.deep_linear import bayes, spectra
from adakern.deep_linear.spectra import Spectrum
from adakern.losses import Squared

_FIRST, _MOST = 128, 1024  # dimensions of a Krylov space, half as many again from one look to the next
_SETTLED = 1e-11  # of |y|: residual of the readout at which a Krylov space is large enough


class Way(NamedTuple):
    """All solutions, the spectrum of K that they were found in, and how it was made."""

    saddles: bayes.Saddles
    spectrum: Spectrum
    report: dict[str, Any]


def solve(problem: bayes.Problem, rows: np.ndarray, scale: float, below: np.ndarray | None = None) -> Way:
    """Of features whose inner products are Φ⁰ (`below`, where it is at hand), K = Φ⁰ / scale."""
    points, size = rows.shape
    cheap = min(points, size) <= spectra.DENSE or 2 * size <= points
    dense = cheap or not isinstance(problem.loss, Squared) or not np.any(problem.y)
    way = None if dense else _krylov(problem, rows @ rows.T if below is None else below, scale)
    if way is not None:
        return way
    spectrum = spectra.dense(rows, problem.y).scaled(1 / scale)
    return Way(bayes.solve(problem, spectrum), spectrum, {"route": "eigenvalues", "rank": len(spectrum.values)})


def _krylov(problem: bayes.Problem, below: np.ndarray, scale: float) -> Way | None:
    krylov, size = spectra.Krylov(below, problem.y), _FIRST
    while size <= _MOST:
        open_ended = krylov.grow(size)
        spectrum = krylov.spectrum().scaled(1 / scale)
        saddles = bayes.solve(problem, spectrum)
        worst = max(_unsettled(problem, below, scale, saddle) for saddle in saddles.found)
        if worst <= _SETTLED:
            return Way(saddles, spectrum, {"route": "krylov", "rank": len(spectrum.values), "readout": worst})
        if not open_ended:
            break
        size = size * 3 // 2
    return None


def _unsettled(problem: bayes.Problem, below: np.ndarray, scale: float, saddle: bayes.Saddle) -> float:
    r"""$|y-s-v/\beta|/|y|$ with $s=Kv(I+T)^L$."""
    outputs = below @ saddle.v @ saddle.of(lambda t: np.exp(problem.depth * np.log1p(t))) / scale
    return float(np.linalg.norm(problem.y - outputs - saddle.v / problem.beta) / np.linalg.norm(problem.y))
