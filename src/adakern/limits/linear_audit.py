r"""The saddle equations of a deep linear aNBK, where every law is Gaussian and nothing need be sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from adakern.losses import Loss

_EXACT = 600  # points up to which equations between matrices are checked entry by entry; beyond, on random vectors
_PROBES = 8


def audit(
    input_kernel: np.ndarray,
    decays: Sequence[float],
    richness: float,
    beta: float,
    loss: Loss,
    y: np.ndarray,
    kernels: Sequence[np.ndarray],
    duals: Sequence[np.ndarray],
    coefficients: np.ndarray,
) -> dict[str, Any]:
    r"""Relative violations, with $K_\ell=\Phi^\ell/\lambda_\ell$ and $v$ from the coefficients:

    * readout: $\Delta(\Phi^Lv/\lambda_L)=v/\beta$, relative to $|y|$;
    * top dual: $\hat\Phi^L=-\frac{\gamma_0^2}{\lambda_L}vv^\top$;
    * kernels: $\Phi^\ell+K_{\ell-1}\hat\Phi^\ell\Phi^\ell=K_{\ell-1}$, relative to the largest term;
    * duals: $\hat\Phi^\ell+\hat\Phi^\ell K_\ell\hat\Phi^{\ell+1}=\hat\Phi^{\ell+1}/\lambda_\ell$, likewise.
    """
    points, top = len(y), decays[-1]
    probes = np.eye(points) if points <= _EXACT else np.random.default_rng(0).standard_normal((points, _PROBES))
    v = top * coefficients
    epsilon = float(
        np.finfo(kernels[-1].dtype).eps
    )  # labels that inputs do not determine leave large duals, which cancel in products
    error = np.asarray(loss.error(jnp.asarray(y), jnp.asarray(kernels[-1] @ coefficients)))
    last = duals[-1] @ probes
    off_kernels, off_duals = [], []
    below = input_kernel
    for layer, (kernel, dual) in enumerate(zip(kernels, duals, strict=True)):
        prior = below @ probes / decays[layer]
        moved = kernel @ probes
        tilt = below @ (dual @ moved) / decays[layer]
        rounding = epsilon * _norm(below) * _norm(dual) * _norm(moved) / decays[layer]
        off_kernels.append(_off(moved + tilt - prior, moved, tilt, prior, rounding=rounding))
        if layer + 1 < len(kernels):
            higher = duals[layer + 1] @ probes
            parts = (dual @ probes, dual @ (kernel @ higher) / decays[layer + 1], higher / decays[layer + 1])
            rounding = epsilon * _norm(dual) * _norm(kernel) * _norm(higher) / decays[layer + 1]
            off_duals.append(_off(parts[0] + parts[1] - parts[2], *parts, rounding=rounding))
        below = kernel
    return {
        "readout": float(np.linalg.norm(error - v / beta)) / (float(np.linalg.norm(y)) or 1.0),
        "top_dual": _off(last + richness**2 / top * (v @ (v.T @ probes)), last),
        "kernels": off_kernels,
        "duals": off_duals,
    }


def _norm(array: np.ndarray) -> float:
    return float(np.linalg.norm(array))


def _off(difference: np.ndarray, *terms: np.ndarray, rounding: float = 0.0) -> float:
    """Relative to the largest term, as far as it exceeds what rounding makes of the products."""
    size, excess = max(map(_norm, terms)), _norm(difference)
    excess = max(0.0, excess - rounding) if np.isfinite(excess) else excess
    return excess / size if size > 0 else excess
