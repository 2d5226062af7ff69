"""adakern: infinitely wide neural networks that learn features, as kernel machines.

Describe a network (`MLP`, `CNN`), choose a limit (`NNGP`, `NNGPK`, `NTK`, `ANBK`, `ANTK`), and `solve` it on data:

    >>> import adakern as ak
    >>> X, y, X_test, y_test = ak.datasets.mnist(n_train=50)
    >>> solution = ak.solve(ak.NNGPK(ak.MLP(depth=2, activation="relu"), beta=50.0), X, y)
    >>> solution.predict(X_test).shape
    (600,)
"""

from importlib import import_module
from typing import Any

from adakern import activations, datasets, finite, linear, losses
from adakern._version import __version__
from adakern.collapsing import collapse_threshold
from adakern.errors import AdakernError, ConvergenceError, FileFormatError, TooLargeError
from adakern.estimators import AdaptiveKernelClassifier, AdaptiveKernelRegressor
from adakern.limits import ANBK, ANTK, NNGP, NNGPK, NTK, VGA, Limit
from adakern.limits.dual import Dual
from adakern.loading import load
from adakern.metrics import alignment, mean_squared_error
from adakern.networks import CNN, MLP, Network
from adakern.perturbing import Perturbation, perturbation
from adakern.renormalization import Renormalization, renormalize
from adakern.solution import Solution
from adakern.solving import path, solve
from adakern.trajectories import Trajectory, dynamics

__all__ = [
    "ANBK",
    "ANTK",
    "CNN",
    "MLP",
    "NNGP",
    "NNGPK",
    "NTK",
    "VGA",
    "AdakernError",
    "AdaptiveKernelClassifier",
    "AdaptiveKernelRegressor",
    "ConvergenceError",
    "Dual",
    "FileFormatError",
    "Limit",
    "Network",
    "Perturbation",
    "Renormalization",
    "Solution",
    "TooLargeError",
    "Trajectory",
    "__version__",
    "activations",
    "alignment",
    "collapse_threshold",
    "datasets",
    "dynamics",
    "finite",
    "linear",
    "load",
    "losses",
    "mean_squared_error",
    "path",
    "perturbation",
    "renormalize",
    "solve",
]

_LATER = ("plot", "report")  # imported when they are asked for: most programs draw nothing


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return import_module(f"adakern.{name}")
    raise AttributeError(f"module 'adakern' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
