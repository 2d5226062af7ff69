"""The numbers behind each panel of a page: kernels, densities, alignments, traces, predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import norm

from adakern import inputs, readings
from adakern.errors import TooLargeError
from adakern.limits import ANTK, NNGP, VGA
from adakern.metrics import mean_squared_error
from adakern.networks import CNN
from adakern.report import packing
from adakern.report.words import counted, raised
from adakern.solution import Solution

MOST = 400  # points of a kernel that are shown
_BYTES = 4.5e6  # of all kernels of a page
_POINTS = 12  # training points whose densities are shown
_BINS = 60
_DOTS = 600  # predictions that are shown
_TALL = 6.5  # a density's range, in standard deviations of the lazy end, from its middle


@dataclass(frozen=True)
class Test:
    """New points to predict: inputs as the solution's, and targets if they are known."""

    __test__ = False  # no test of pytest's

    X: np.ndarray
    y: np.ndarray | None = None
    name: str = ""


def side(points: int, layers: int, items: int) -> int:
    """How many points of the kernels to show, so that the page stays small."""
    return min(points, MOST, max(20, int((_BYTES * 0.75 / (layers * items)) ** 0.5)))


def spaced(count: int, most: int) -> np.ndarray:
    """Indices of evenly spaced elements, both ends included where there are two."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def groups(y: np.ndarray, labels: Sequence[str]) -> dict[str, Any]:
    """The classes in their order: names, and the class of every point; one class where the targets are real numbers."""
    if not readings.discrete(y):
        readings.check_labels(labels, 0)
        return {"names": [], "member": np.zeros(len(y), int)}
    values, member = np.unique(readings.classes(y), return_inverse=True)
    readings.check_labels(labels, len(values))
    prefix = "output" if y.ndim == 2 else "y ="
    names = list(labels) or [f"{prefix} {value:g}".replace("-", "−") for value in values]
    return {"names": [str(name) for name in names], "member": member}


def layers(solution: Solution) -> list[str]:
    """Names of the kernels, from the inputs up; the tangent kernel last where it is the predictor's own."""
    depth = solution.limit.network.depth
    names = [f"Φ{raised(layer)}" for layer in range(depth + 1)]
    return [*names, "K"] if _tangent(solution) else names


def _tangent(solution: Solution) -> bool:
    limit, outputs = solution.limit, 1 if solution.y.ndim == 1 else solution.y.shape[1]
    return limit.kernel_is_tangent(outputs) if isinstance(limit, ANTK) else limit.tangent


def kernels(solution: Solution, names: Sequence[str]) -> list[np.ndarray | None]:
    """The kernels of those names between training points; None where there is none, or where it is too large to compute."""
    network, found = solution.limit.network, {}
    rows = inputs.features(network, solution.X)
    rows = rows.reshape(len(solution.X), -1) if isinstance(network, CNN) else rows  # summed over positions
    found["Φ⁰"] = rows @ rows.T
    for layer in range(1, network.depth + 1):
        try:
            found[f"Φ{raised(layer)}"] = readings.kernel(solution, layer)
        except TooLargeError:
            continue
    if _tangent(solution):
        found["K"] = solution.kernel
    return [found.get(name) for name in names]


def chosen_points(y: np.ndarray) -> np.ndarray:
    """A few training points, spread over the classes."""
    return readings.by_class(y)[spaced(len(y), _POINTS)]


def densities(solutions: Sequence[Solution], points: np.ndarray) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Histograms of preactivations in the same bins for all solutions: what they share, and each one's own."""
    first = solutions[0]
    depth, shape = first.limit.network.depth, first.X.shape
    places = [sites // 2 for sites in first.limit.network.sites(shape)]
    ends = np.zeros((depth, len(points), 2))
    heights = np.zeros((len(solutions), depth, len(points), _BINS))
    spreads = np.zeros((len(solutions), depth, len(points)))
    for layer in range(depth):
        for column, point in enumerate(points.tolist()):
            laws = [solution.density(layer + 1, point, places[layer]) for solution in solutions]
            low, high = ends[layer, column] = _ends(laws)
            edges = np.linspace(low, high, _BINS + 1)
            for index, (solution, (values, weights)) in enumerate(zip(solutions, laws, strict=True)):
                spread = _spread(values, weights)
                spreads[index, layer, column] = spread
                if _gaussian(solution) and spread > 0:
                    shares = np.diff(norm.cdf(edges / spread))
                else:
                    shares = np.histogram(values, bins=edges, weights=weights)[0]
                heights[index, layer, column] = shares / np.diff(edges)
    shared = {"points": points, "bins": _BINS, "ends": packing.floats(ends), "position": _position(first, places)}
    own = [
        {"heights": packing.floats(rows), "spreads": packing.floats(part), "law": _law(solution)}
        for solution, rows, part in zip(solutions, heights, spreads, strict=True)
    ]
    return shared, own


def _gaussian(solution: Solution) -> bool:
    return isinstance(solution.limit, VGA) or not solution.draws


def _law(solution: Solution) -> list[str]:
    """What a layer's law is made of."""
    depth = solution.limit.network.depth
    if _gaussian(solution):
        return ["a Gaussian"] * depth
    if solution.shares:
        counts = [0] * depth if solution.stats.get("collapsed") else [len(share) for share in solution.shares]
        return [f"{counted(count, 'neuron')} with weights" for count in counts]
    return [f"{len(draws)} neurons drawn" for draws in solution.draws]


def _position(solution: Solution, places: list[int]) -> str:
    if not isinstance(solution.limit.network, CNN):
        return ""
    return "at position " + ", ".join(map(str, places)) + ("" if len(places) == 1 else " of the layers")


def _spread(values: np.ndarray, weights: np.ndarray) -> float:
    return float(np.sqrt(np.sum(weights * values**2)))


def _ends(laws: list[tuple[np.ndarray, np.ndarray]]) -> tuple[float, float]:
    """A range that holds every law, but not the farthest of many neurons."""
    reach = [np.quantile(values, (0.002, 0.998)) if len(values) > 200 else values for values, _ in laws]
    low, high = min(float(r.min()) for r in reach), max(float(r.max()) for r in reach)
    widest = _TALL * max(_spread(*law) for law in laws)
    low, high = max(low, -widest), min(high, widest)
    if low == high == 0.0:
        return -1.0, 1.0
    margin = 0.05 * (high - low) or 0.5 * abs(high)
    return low - margin, high + margin


def alignments(solution: Solution, found: Sequence[np.ndarray | None]) -> list[float]:
    r"""$\mathcal A(\Phi^\ell,yy^\top)$ of every kernel that is shown."""
    nothing = float("nan")
    return [nothing if kernel is None else readings.label_alignment(kernel, solution.y) for kernel in found]


def traces(solution: Solution) -> list[dict[str, Any]]:
    return [
        {
            "what": line.what,
            "along": line.along,
            "x": line.x,
            "values": line.values,
            "level": line.level,
            "log": line.falls and bool((line.values > 0).all()),
        }
        for line in readings.traces(solution)
    ]


def scores(y: np.ndarray, f: np.ndarray, variance: Any = 0.0) -> dict[str, float | None]:
    """Mean squared error, and the accuracy where targets are classes."""
    signs = y.ndim == 1 and bool(np.isin(y, (-1.0, 1.0)).all())
    hot = y.ndim == 2 and bool(np.isin(y, (0.0, 1.0)).all()) and bool((y.sum(axis=1) == 1).all())
    right = np.sign(f) == y if signs else np.argmax(f, axis=1) == np.argmax(y, axis=1) if hot else None
    return {
        "loss": mean_squared_error(y, f, variance),
        "accuracy": None if right is None else float(np.mean(right)),
    }


def training(solution: Solution, shown: np.ndarray) -> dict[str, Any]:
    """Outputs at the training points, with what `testing` has of new ones."""
    std = solution.predict(solution.X[shown], return_std=True)[1]
    variance, spread = _posterior(solution, solution.X, shown)
    return _outputs(solution.fitted[shown], std, spread) | scores(solution.y, solution.fitted, variance)


def testing(solution: Solution, test: Test, shown: np.ndarray) -> dict[str, Any]:
    """Predictions at new points with their Monte-Carlo error, the variance of an NNGP, and the scores where targets are known."""
    f, std = solution.predict(test.X, return_std=True)
    variance, spread = _posterior(solution, test.X, shown)
    return _outputs(f[shown], std[shown], spread) | ({} if test.y is None else scores(test.y, f, variance))


def _posterior(solution: Solution, X: np.ndarray, shown: np.ndarray) -> tuple[Any, np.ndarray | None]:
    """The variance of an NNGP at all points, and its root at those that are shown; 0 and None of the other limits."""
    if not isinstance(solution.limit, NNGP):
        return 0.0, None
    variance = solution.variance(X)
    return variance, np.sqrt(variance[shown])


def _outputs(f: np.ndarray, std: np.ndarray, spread: np.ndarray | None) -> dict[str, Any]:
    return {
        "f": packing.floats(f),
        "std": packing.floats(std) if std.any() else None,
        "spread": None if spread is None else packing.floats(spread),
    }


def targets(y: np.ndarray | None, count: int) -> tuple[np.ndarray, dict[str, Any]]:
    """Which points a picture of predictions shows, sorted by target, and what it says of them."""
    order = np.arange(count) if y is None else np.lexsort((np.arange(count), readings.classes(y)))
    shown = order[spaced(count, _DOTS)]
    ordered = y is not None and (y.ndim == 1 or readings.discrete(y))
    held = None if y is None else packing.floats(y[shown])
    return shown, {"count": count, "index": shown, "y": held, "sorted": ordered}
