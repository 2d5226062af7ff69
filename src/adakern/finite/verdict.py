"""Whether the averages of a Langevin run can be trusted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from adakern import averages
from adakern.averages import Stream
from adakern.finite.inputs import Inputs

_RHAT = 1.1
_UNSETTLED = 1.2
_STUCK = 5.0  # no fluctuation is so small that halves may differ by so many times it


@dataclass(frozen=True)
class Verdict:
    converged: bool
    status: str
    stats: dict[str, Any]


def judge(
    summaries: list[np.ndarray],
    streams: dict[str, Stream],
    errors: dict[str, np.ndarray],
    data: Inputs,
    tolerance: float,
    chance: float,
    failure: str,
) -> Verdict:
    """Temperature, error bars, and agreement of halves and replicas.

    `summaries` holds, for each batch, (replicas, scalars): loss, test loss, temperature, and trace, label overlap and
    concentration of each layer's kernel.
    """
    series = np.transpose(np.stack(summaries), (1, 2, 0))  # (replicas, scalars, batches)
    depth = (series.shape[1] - 3) // 3
    names = [f"kernel.{i}" for i in range(depth)]
    relative = max(_relative(errors[name], streams[name].mean) for name in names)
    temperature = float(series[:, 2].mean())
    rhat, apart = _agreement(series, float(np.sum(data.y**2)) / len(data.X))
    drifting = [
        f"{name} is uncertain by {size:.0%} (R-hat {rhat[name]:.2f})"
        for name, size in apart.items()
        if rhat[name] > _RHAT and size > tolerance
    ]
    drifting += [f"R-hat of {name} is {rhat[name]:.3g}" for name in ("loss", *apart) if rhat[name] > _STUCK]
    moments = len(summaries) / max(streams[f"kernel.{i}"].time for i in range(depth))
    converged, status = False, failure
    if not failure:
        if not np.isfinite(relative) or relative > tolerance:
            status = f"the kernels are known to {relative:.2g} only; give more time or replicas"
        elif drifting:
            status = f"halves and replicas disagree: {'; '.join(drifting)}; give more time and burn-in"
        elif abs(temperature - 1) > 0.1 + chance:
            cure = "more burn_in" if temperature > 1 else "a smaller step"
            status = f"the kinetic temperature is {temperature:.3g}, not 1; give {cure}"
        else:
            converged, status = True, f"kernels known to {relative:.2g}, from about {moments:.0f} independent moments"
            unsettled = max(value for name, value in rhat.items() if name.startswith("concentration"))
            if unsettled > _UNSETTLED:
                status += (
                    f"; which neurons make them up has not settled (R-hat {unsettled:.2f}): densities need more time"
                )
    stats = {
        "temperature": temperature,
        "relative_error": relative,
        "autocorrelation_batches": [streams[f"kernel.{i}"].time for i in range(depth)],
        "independent_moments": moments,
        "split_rhat": rhat,
        **_overlaps(streams, errors, data),
    }
    return Verdict(converged, status, stats)


def _agreement(series: np.ndarray, label_scale: float) -> tuple[dict[str, float], dict[str, float]]:
    """Split-R̂ of the loss and of each layer's trace, label overlap and concentration, and what the scatter of half-chain means leaves of doubt in trace and overlap."""
    rhat, apart = {"loss": averages.split_rhat(series[:, 0])}, {}
    half = series.shape[2] // 2
    for layer in range((series.shape[1] - 3) // 3):
        trace = np.abs(series[:, 3 + 3 * layer]).mean()
        rhat[f"concentration_{layer + 1}"] = averages.split_rhat(series[:, 5 + 3 * layer])
        for offset, what in enumerate(("trace", "label_overlap")):
            values, name = series[:, 3 + 3 * layer + offset], f"{what}_{layer + 1}"
            rhat[name] = averages.split_rhat(values)
            # Relative to the overlap itself or, where that is near zero, to the overlap of an isotropic kernel of the same trace.
            size = max(float(np.abs(values).mean()), float(trace) * (label_scale if offset else 1.0))
            halves = (
                np.concatenate([values[:, :half].mean(axis=1), values[:, -half:].mean(axis=1)]) if half else values[0]
            )
            scatter = float(halves.std(ddof=1)) / math.sqrt(len(halves)) if len(halves) > 1 else 0.0
            apart[name] = scatter / size if size > 0 else 0.0
    return rhat, apart


def _relative(error: np.ndarray, mean: np.ndarray) -> float:
    scale = float(np.linalg.norm(mean))
    return float(np.linalg.norm(error)) / scale if scale > 0 else float(np.linalg.norm(error))


def _overlaps(streams: dict[str, Stream], errors: dict[str, np.ndarray], data: Inputs) -> dict[str, list[float]]:
    """yᵀΦ^ℓy/|y|² of each layer: mean, standard error, and standard deviation under the posterior."""
    size = float(np.sum(data.y**2)) or 1.0
    overlaps, squares = streams["overlaps"], streams["overlap_squares"]
    spread = np.sqrt(np.maximum(squares.mean - overlaps.mean**2, 0))
    named = {"label_overlap": overlaps.mean, "label_overlap_error": errors["overlaps"], "label_overlap_spread": spread}
    return {name: [float(v) / size for v in values] for name, values in named.items()}
