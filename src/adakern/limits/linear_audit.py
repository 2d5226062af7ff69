r"""The saddle equations of a deep linear aNBK, where every law is Gaussian and nothing need be sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from adakern.limits.base import Answer
from adakern.losses import Loss

_EXACT = 600  # points up to which equations between matrices are checked entry by entry; beyond, on random vectors
_PROBES = 8
_CLEAR = 1e3  # units of rounding that products of the recursion may lose


def audit(
    rows: np.ndarray,
    decays: Sequence[float],
    richness: float,
    beta: float,
    loss: Loss,
    y: np.ndarray,
    answer: Answer,
) -> dict[str, Any]:
    r"""Relative violations, of features `rows` whose inner products are $\Phi^0$, with $K_\ell=\Phi^\ell/\lambda_\ell$ and $v$ from the coefficients:

    * readout: $\Delta(s)=v/\beta$, relative to $|y|$, and $s=\Phi^Lv/\lambda_L$, relative to $|\Phi^L||v|/\lambda_L$;
    * strengths: the eigenvalues of $T=\gamma_0^2v^\top s$, relative to $\gamma_0^2|v||s|$;
    * top dual: $\hat\Phi^L=-\frac{\gamma_0^2}{\lambda_L}vv^\top$;
    * kernels: $\Phi^\ell+K_{\ell-1}\hat\Phi^\ell\Phi^\ell=K_{\ell-1}$, relative to the largest term;
    * duals: $\hat\Phi^\ell+\hat\Phi^\ell K_\ell\hat\Phi^{\ell+1}=\hat\Phi^{\ell+1}/\lambda_\ell$, likewise.

    Labels that inputs do not determine leave large parts in $v$ and the duals that cancel in these products. Where rounding alone would make more of them than is asked for,
    the same is asked of what the recursion sums up to, $\lambda_0\cdots\lambda_{\ell-1}\Phi^\ell=\Phi^0+sB_\ell s^\top$ and $\hat\Phi^\ell=-vM_\ell v^\top$ with functions $B_\ell,M_\ell$ of $T$, where nothing cancels.
    """
    kernels, duals = answer.kernels, answer.duals
    assert duals is not None
    points, depth, top, whole = len(y), len(kernels), decays[-1], float(np.prod(decays))
    probes = np.eye(points) if points <= _EXACT else np.random.default_rng(0).standard_normal((points, _PROBES))
    v = top * np.asarray(answer.coefficients, np.float64)
    outputs = kernels[-1] @ answer.coefficients
    s = np.asarray(answer.fitted if loss.name == "squared" else outputs, np.float64)
    error = np.asarray(loss.error(jnp.asarray(y), jnp.asarray(s)))
    measured, turn = np.linalg.eigh(richness**2 * _even(v.T @ s))
    t = np.maximum(np.asarray(answer.stats.get("strengths", measured)), 0.0)  # as claimed: v's own value has rounding
    turned, turned_v = s @ turn, v @ turn
    epsilon = float(np.finfo(kernels[-1].dtype).eps)
    last = duals[-1] @ probes
    off_kernels, off_duals = [], []
    inputs = rows @ (rows.T @ probes)  # Φ⁰ itself is not needed
    size = _norm(inputs) / (1.0 if points <= _EXACT else np.sqrt(_PROBES))

    def through(layer: int, vectors: np.ndarray) -> np.ndarray:
        """The kernel below a layer, applied."""
        product: np.ndarray = rows @ (rows.T @ vectors) if layer == 0 else kernels[layer - 1] @ vectors
        return product

    for layer, (kernel, dual) in enumerate(zip(kernels, duals, strict=True)):
        prior = through(layer, probes) / decays[layer]
        moved = kernel @ probes
        tilt = through(layer, dual @ moved) / decays[layer]
        strength = _norm(dual)
        rounding = epsilon * size * strength * _norm(moved) / decays[layer]
        size = _norm(kernel)
        if rounding <= _CLEAR * epsilon * max(map(_norm, (moved, tilt, prior))):
            off_kernels.append(_off(moved + tilt - prior, moved, tilt, prior))
        else:
            growth = np.where(t > 1e-12, np.expm1((layer + 1) * np.log1p(t)) / np.where(t > 1e-12, t, 1.0), layer + 1.0)
            weights = richness**2 * whole * np.exp(-depth * np.log1p(t)) * growth
            grown = (turned * weights[None, :]) @ (turned.T @ probes)
            parts = (float(np.prod(decays[: layer + 1])) * moved, inputs, grown)
            off_kernels.append(_off(parts[0] - parts[1] - parts[2], *parts))
        if layer + 1 < depth:
            higher = duals[layer + 1] @ probes
            parts = (dual @ probes, dual @ (kernel @ higher) / decays[layer + 1], higher / decays[layer + 1])
            rounding = epsilon * strength * size * _norm(higher) / decays[layer + 1]
            if rounding <= _CLEAR * epsilon * max(map(_norm, parts)):
                off_duals.append(_off(parts[0] + parts[1] - parts[2], *parts))
            else:
                share = richness**2 / float(np.prod(decays[layer + 1 :])) * np.exp((depth - layer - 1) * np.log1p(t))
                off_duals.append(_off(parts[0] + (turned_v * share[None, :]) @ (turned_v.T @ probes), parts[0]))
    scale = _norm(y) or 1.0
    backward = size * _norm(v) / top + scale
    return {
        "readout": max(_norm(error - v / beta) / scale, _norm(s - outputs) / backward),
        "strengths": _norm(t - measured) / (richness**2 * _norm(v) * _norm(s) + _norm(t) or 1.0),
        "top_dual": _off(last + richness**2 / top * (v @ (v.T @ probes)), last),
        "kernels": off_kernels,
        "duals": off_duals,
    }


def _even(matrix: np.ndarray) -> np.ndarray:
    return (matrix + matrix.T) / 2


def _norm(array: np.ndarray) -> float:
    return float(np.linalg.norm(array))


def _off(difference: np.ndarray, *terms: np.ndarray) -> float:
    """Relative to the largest term."""
    size = max(map(_norm, terms))
    return _norm(difference) / size if size > 0 else _norm(difference)
