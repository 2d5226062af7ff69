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
    error = np.asarray(loss.error(jnp.asarray(y), jnp.asarray(kernels[-1] @ coefficients)))
    last = duals[-1] @ probes
    off_kernels, off_duals = [], []
    below = input_kernel
    for layer, (kernel, dual) in enumerate(zip(kernels, duals, strict=True)):
        prior = below @ probes / decays[layer]
        moved = kernel @ probes
        tilt = below @ (dual @ moved) / decays[layer]
        off_kernels.append(_off(moved + tilt - prior, moved, tilt, prior))
        if layer + 1 < len(kernels):
            higher = duals[layer + 1] @ probes
            parts = (dual @ probes, dual @ (kernel @ higher) / decays[layer + 1], higher / decays[layer + 1])
            off_duals.append(_off(parts[0] + parts[1] - parts[2], *parts))
        below = kernel
    return {
        "readout": float(np.linalg.norm(error - v / beta)) / (float(np.linalg.norm(y)) or 1.0),
        "top_dual": _off(last + richness**2 / top * (v @ (v.T @ probes)), last),
        "kernels": off_kernels,
        "duals": off_duals,
    }


def _off(difference: np.ndarray, *terms: np.ndarray) -> float:
    size = max(float(np.linalg.norm(term)) for term in terms)
    return float(np.linalg.norm(difference)) / size if size > 0 else float(np.linalg.norm(difference))
