"""What a page says of a solution in words and numbers: what was solved, and how far to trust it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from adakern.limits import ANBK, ANTK
from adakern.networks import CNN, Network
from adakern.readings import pooled
from adakern.recursion_cnn import Layers
from adakern.solution import Solution

_NAMES = {
    "NNGP": "Gaussian process of a random network",
    "NNGPK": "kernel of a random network",
    "NTK": "neural tangent kernel, gradient flow of a lazy network",
    "ANBK": "adaptive neural Bayesian kernel",
    "ANTK": "adaptive neural tangent kernel, the end of gradient flow with weight decay",
    "VGA": "variational Gaussian approximation of the ANBK",
}
_SYMBOLS = {"richness": "γ₀", "beta": "β", "decay": "λ", "ridge": "ridge", "loss": "loss"}
_SHOWN = ("trace", "seconds", "seed", "precision", "version", "solver", "columns")  # elsewhere on the page
_LONG = 12  # numbers of a list that are written out

Rows = list[tuple[str, str]]


def number(value: Any, digits: int = 4) -> str:
    """A number as text, with a minus sign and the words for what is not finite."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, np.integer)):
        return str(value)
    if not isinstance(value, (float, np.floating)):
        return str(value)
    if math.isnan(value):
        return "not known"
    if math.isinf(value):
        return "infinite" if value > 0 else "−infinite"
    return f"{value:.{digits}g}".replace("-", "−")


def listed(value: Any) -> str:
    """Any value of `Solution.stats` as one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {listed(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        shown = ", ".join(f"({listed(item)})" if isinstance(item, Mapping) else listed(item) for item in value[:_LONG])
        return shown + (f", … ({len(value)} in all)" if len(value) > _LONG else "")
    return number(value)


def counted(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def network(net: Network) -> str:
    text = f"{type(net).__name__}, {counted(net.depth, 'hidden layer')}, {net.activation.name}"
    if isinstance(net, CNN):
        windows = ", ".join(f"{h}×{w}" for h, w in net.window)
        strides = ", ".join(f"{h}×{w}" for h, w in net.stride)
        text += f", windows {windows}, strides {strides}, {net.padding} padding, {net.readout} readout"
    return text


def numbers(solution: Solution) -> str:
    return ", ".join(f"{_SYMBOLS.get(key, key)} = {listed(value)}" for key, value in solution.limit.config().items())


def summary(solution: Solution, name: str) -> Rows:
    """What was solved, by what, from what."""
    kind, stats, X = solution.limit.kind, solution.stats, solution.X
    outputs = 1 if solution.y.ndim == 1 else solution.y.shape[1]
    size = f"images of {'×'.join(map(str, X.shape[1:]))}" if X.ndim == 4 else counted(X.shape[1], "feature")
    rows = [
        ("limit", f"{kind}: {_NAMES.get(kind, kind)}"),
        ("numbers", numbers(solution)),
        ("network", network(solution.limit.network)),
        ("data", f"{counted(len(X), 'point')}, {size}, {counted(outputs, 'output')}"),
        ("solver", str(stats.get("solver", "–"))),
        ("seconds", number(stats.get("seconds"), 3)),
        ("seed", f"{number(stats.get('seed'))}, {stats.get('precision', '–')}"),
        ("version", f"adakern {stats.get('version', '–')}"),
    ]
    return [*rows, ("file", name)] if name else rows


def evidence(solution: Solution) -> list[tuple[str, str, str]]:
    """Name, value and meaning of what says how far to trust a solution."""
    stats = solution.stats
    rows = [("residual", number(solution.residual, 2), "largest relative violation of the limit's own equations")]
    rows.append(("certificate", _certificate(solution), _certified(solution)))
    if solution.free_energy is not None and solution.limit.kind != "NNGPK":
        error = stats.get("free_energy_error")
        value = number(solution.free_energy) + (f" ± {number(error, 1)}" if error else "")
        rows.append(("free energy", value, "in nats per neuron; 0 is lazy"))
    if "relative_error" in stats:
        asked = f"kernels and outputs; asked for: {number(stats.get('tolerance'), 2)}"
        rows.append(("relative error", number(stats["relative_error"], 2), asked))
    for layer, share in enumerate(relative_errors(solution), start=1):
        if share is not None:
            what = "difference of two starts" if isinstance(solution.limit, ANTK) else "standard error"
            meaning = f"{what}, relative to Φ{raised(layer)}"
            rows.append((f"error, layer {layer}", number(share, 2), meaning))
    if stats.get("collapsed"):
        rows.append(("collapse", "everything died", "weight decay left no neuron: the predictor is zero"))
    return rows


def relative_errors(solution: Solution) -> list[float | None]:
    """|standard errors| / |kernel| of every layer; None where the kernel is exact."""
    if isinstance(solution.kernels, Layers):
        return [None] * len(solution.kernels)
    found: list[float | None] = []
    for kernel, error in zip(solution.kernels, solution.kernel_errors, strict=True):
        size = float(np.linalg.norm(pooled(kernel)))
        wrong = float(np.linalg.norm(pooled(error)))
        found.append(None if wrong == 0.0 or size == 0.0 else wrong / size)
    return found


def rest(solution: Solution) -> Rows:
    """Everything else that the solver and the audit reported."""
    return [(key.replace("_", " "), listed(value)) for key, value in solution.stats.items() if key not in _SHOWN]


def raised(layer: int) -> str:
    """A number as a superscript."""
    return str(layer).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _certificate(solution: Solution) -> str:
    if solution.certificate is None:
        return "–"
    error = solution.stats.get("certificate_error")
    return number(solution.certificate, 2) + (f" ± {number(error, 1)}" if error else "")


def _uncertified(solution: Solution) -> str:
    """Why there is no certificate."""
    limit = solution.limit
    if isinstance(limit, ANBK) and limit.network.depth == 1:
        if limit.richness == 0:
            return "none is needed: lazy, in closed form"
        if status := solution.stats.get("audit", {}).get("status"):
            return f"none could be computed; {status}"
    return "there is none for this limit and network"


def _certified(solution: Solution) -> str:
    if solution.certificate is None:
        return _uncertified(solution)
    if isinstance(solution.limit, ANTK):
        return "duality gap relative to the value: no answer is better by more"
    assert isinstance(solution.limit, ANBK)
    if math.isinf(solution.certificate):
        return "a few neurons carry the answer, and no law is tilted by it: nothing is certified"
    return "free energy above its lower bound, in nats: no answer is better by more"
