r"""What pairs of times have of a deep network: kernels and responses.

By Stein's lemma the response functions of a layer are in averages of products: with $r^\ell\sim GP(0,G^{\ell+1})$ the Gaussian part of the gradients that come back to it,

$$\langle\varphi(h^\ell_\mu(t))\,r^\ell_\nu(s)\rangle=\gamma_0\int_0^tds'\sum_\rho A^\ell_{\mu\rho}(t,s')\,G^{\ell+1}_{\rho\nu}(s',s),$$

and likewise $\langle g^{\ell+1}_\mu(t)u^{\ell+1}_\nu(s)\rangle=\gamma_0\int B^\ell\Phi^\ell$. These have ordinary Monte-Carlo errors. $A$ itself is resolved by them only where $r$ changes: a process that keeps its value says what $\int A\,ds$ is, and not when.
"""

from __future__ import annotations

import numpy as np

HISTORY = ("history_features", "history_gradients", "history_forward", "history_backward")
PAIRS = ("two_time_kernels", "two_time_gradients", "feature_responses", "gradient_responses")


def pairs(history: list[dict[str, np.ndarray]], share: float) -> dict[str, np.ndarray]:
    """Averages over neurons of one population at all pairs of times, (T, T, layers, P, P), from what was kept of each time, (layers, P, M); coordinates may become more on the way."""
    width = max(row[HISTORY[0]].shape[-1] for row in history)
    features, gradients, forward, backward = (
        np.stack([_padded(row[name].astype(np.float64), width) for row in history]) for name in HISTORY
    )
    factors = (features, features), (gradients, gradients), (features[:, :-1], backward), (gradients[:, 1:], forward)
    return {name: _products(*each, share) for name, each in zip(PAIRS, factors, strict=True)}


def _padded(rows: np.ndarray, width: int) -> np.ndarray:
    return np.pad(rows, ((0, 0), (0, 0), (0, width - rows.shape[-1])))


def _products(left: np.ndarray, right: np.ndarray, share: float) -> np.ndarray:
    moments, layers, points, width = left.shape
    found = np.empty((moments, moments, layers, points, points))
    for layer in range(layers):
        flat = left[:, layer].reshape(-1, width) @ right[:, layer].reshape(-1, width).T * share
        found[:, :, layer] = flat.reshape(moments, points, moments, points).swapaxes(1, 2)
    return found


def resolved(
    times: np.ndarray, correlations: np.ndarray, covariances: np.ndarray, richness: float, cutoff: float
) -> np.ndarray:
    r"""The smallest $A(t,s)$, (T, T, P, P), whose $\gamma_0\int ds'A(t,s')G(s',s)$, by the trapezoidal rule on `times`, are the correlations, in directions in which the process has more than a share `cutoff` of the largest variance."""
    moments, points = correlations.shape[0], correlations.shape[2]
    found = np.zeros_like(correlations)
    for last in range(moments):
        if not times[last] > 0:
            continue
        grid = times[: last + 1]
        gaps = np.diff(grid, prepend=0.0)
        weights = 0.5 * (gaps + np.append(gaps[1:], 0.0))
        weights[0] += 0.5 * gaps[0]  # before the first time that was asked for
        roots = np.repeat(np.sqrt(weights), points)
        size = (last + 1) * points
        G = covariances[: last + 1, : last + 1].swapaxes(1, 2).reshape(size, size)
        values, vectors = np.linalg.eigh(roots[:, None] * (G + G.T) / 2 * roots[None, :])
        inverse = np.where(values > cutoff * values[-1], 1 / np.where(values > 0, values, 1.0), 0.0)
        given = correlations[last, : last + 1].swapaxes(0, 1).reshape(points, size) * roots[None, :]
        solved = (given @ vectors * inverse[None, :]) @ vectors.T
        held = roots[None, :] > 0
        A = np.where(held, solved / np.where(held, roots[None, :], 1.0), 0.0) / richness
        found[last, : last + 1] = A.reshape(points, last + 1, points).swapaxes(0, 1)
    return found
