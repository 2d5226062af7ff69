"""scikit-learn estimators over `solve`: fit, predict, and the solution for those who want the kernels."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from adakern import checks, losses
from adakern.limits import ANBK, ANTK, NNGP, NNGPK, NTK, Limit
from adakern.networks import MLP
from adakern.solution import Solution
from adakern.solvers import linear
from adakern.solving import solve

LIMITS = ("anbk", "nngp", "nngpk", "ntk", "antk")


class _AdaptiveKernel(BaseEstimator):
    """What regressor and classifier share: hyperparameters to limit, data to solution."""

    def __init__(
        self,
        limit: str = "anbk",
        *,
        depth: int = 1,
        activation: Any = "relu",
        richness: float = 1.0,
        beta: float = 50.0,
        decay: Any = 1.0,
        ridge: float = 0.0,
        particles: int | None = None,
        tolerance: float | None = None,
        steps: int | None = None,
        precision: str = "float64",
        random_state: Any = None,
    ) -> None:
        self.limit = limit
        self.depth = depth
        self.activation = activation
        self.richness = richness
        self.beta = beta
        self.decay = decay
        self.ridge = ridge
        self.particles = particles
        self.tolerance = tolerance
        self.steps = steps
        self.precision = precision
        self.random_state = random_state

    def _limit(self) -> Limit:
        checks.choice("limit", self.limit, LIMITS)
        network = MLP(self.depth, self.activation)
        if self.limit == "anbk":
            return ANBK(network, richness=self.richness, beta=self.beta, decay=self.decay, loss=self._loss())
        if self.limit == "antk":
            return ANTK(network, richness=self.richness, decay=self.decay, loss=self._loss())
        if self._loss() != "squared":
            raise ValueError(f"loss={self._loss()!r} needs limit='anbk' or 'antk', but it is {self.limit!r}")
        if self.limit == "ntk":
            return NTK(network, ridge=self.ridge, decay=self.decay)
        kind = NNGP if self.limit == "nngp" else NNGPK
        return kind(network, beta=self.beta, decay=self.decay)

    def _loss(self) -> str:
        return "squared"

    def _solve(self, X: np.ndarray, targets: np.ndarray) -> Solution:
        limit = self._limit()
        options: dict[str, Any] = {}
        if isinstance(limit, ANBK) or (isinstance(limit, ANTK) and not linear.applies(limit)):
            options = {"particles": self.particles, "tolerance": self.tolerance, "steps": self.steps}
        seed = 0 if self.random_state is None else int(check_random_state(self.random_state).randint(2**31 - 1))
        solution = solve(limit, X, targets, seed=seed, precision=self.precision, throw=False, **options)
        if not solution.converged:
            warnings.warn(f"{limit.kind} did not converge: {solution.status}", ConvergenceWarning, stacklevel=3)
        return solution

    def _outputs(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        return np.asarray(self.solution_.predict(X), dtype=np.float64)


class AdaptiveKernelRegressor(RegressorMixin, _AdaptiveKernel):
    r"""Regression with the kernel of an infinitely wide network.

    Targets are used as they are. Multiplying them by a factor multiplies the effective richness by it, so scale them to order one
    (for example with `sklearn.compose.TransformedTargetRegressor`) if `richness` is to mean the same on every task.

    Parameters
    ----------
    limit : {"anbk", "nngp", "nngpk", "ntk", "antk"}
        Which limit of the network: the adaptive Bayesian kernel, one of the lazy ones, or where gradient flow with weight decay ends.
    depth : int
        Hidden layers.
    activation : str or callable
        "linear", "relu", "erf", "tanh", "gelu", "sine", or any jax-differentiable elementwise function.
    richness : float
        $\gamma_0\ge0$, "anbk" and "antk" only: larger learns more features. 0 is lazy for "anbk"; with "antk" a small one lets the decay win, and all outputs are 0.
    beta : float
        Inverse temperature, not used by "ntk" and "antk".
    decay : float or sequence of depth + 1 floats
        Prior precision of the weights; "antk": their decay, positive.
    ridge : float
        "ntk" only: multiple of the identity added to the kernel.
    particles, tolerance, steps : optional
        "anbk" and "antk" only: as in `adakern.solve`.
    precision : {"float64", "float32"}
    random_state : int, RandomState instance or None
        Seed of the solvers that draw neurons. None is a fixed seed: the same data give the same fit.

    Attributes
    ----------
    solution_ : Solution
        Kernels, errors, residual, status; everything that `adakern.solve` returns.
    n_features_in_ : int

    Examples
    --------
    >>> import adakern as ak
    >>> X, y, X_test, y_test = ak.datasets.mnist(n_train=50)
    >>> model = ak.AdaptiveKernelRegressor(limit="nngpk", depth=2).fit(X, y)
    >>> round(model.score(X_test, y_test), 2)
    0.95
    """

    def fit(self, X: Any, y: Any) -> AdaptiveKernelRegressor:
        """Fit to inputs (points, features) and targets (points,) or (points, outputs)."""
        X, y = validate_data(self, X, y, multi_output=True, y_numeric=True, dtype=np.float64)
        self.solution_ = self._solve(X, np.asarray(y, dtype=np.float64))
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict targets; `return_std` adds the posterior standard deviation and needs limit="nngp"."""
        values = self._outputs(X)
        if not return_std:
            return values
        if not isinstance(self.solution_.limit, NNGP):
            kind = self.solution_.limit.kind.lower()
            raise ValueError(f"return_std needs limit='nngp', the only limit with a variance, but it is {kind!r}")
        return values, np.sqrt(self.solution_.variance(X))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class AdaptiveKernelClassifier(ClassifierMixin, _AdaptiveKernel):
    r"""Classification with the kernel of an infinitely wide network.

    With the squared loss (the default) it is regression on class indicators: two classes are coded as ∓1 in the order of `classes_`, $C>2$ classes as
    indicators minus $1/C$. With `loss="logistic"` (two classes) or `loss="softmax"` (any number), for limit="anbk" or "antk", the network maximises the likelihood of the
    labels, and `predict_proba` returns its probabilities. `predict` returns the class with the largest output.

    **What `predict_proba` means with the squared loss.** Least-squares regression on indicators estimates the conditional class probabilities $P(c\,|\,x)$; its outputs need not
    be in [0, 1] nor sum to one, so `predict_proba` returns the nearest probability vector (Euclidean projection on the simplex; for two classes
    $\frac12(1\pm f)$ clipped to [0, 1]). It orders points sensibly, but it is not calibrated: wrap the estimator in `sklearn.calibration.CalibratedClassifierCV` where calibrated
    probabilities matter.

    Parameters are those of `AdaptiveKernelRegressor`, and

    Parameters
    ----------
    loss : {"squared", "logistic", "softmax"}

    Attributes
    ----------
    classes_ : ndarray
    solution_ : Solution
    n_features_in_ : int
    """

    def __init__(
        self,
        limit: str = "anbk",
        *,
        depth: int = 1,
        activation: Any = "relu",
        richness: float = 1.0,
        beta: float = 50.0,
        decay: Any = 1.0,
        loss: str = "squared",
        ridge: float = 0.0,
        particles: int | None = None,
        tolerance: float | None = None,
        steps: int | None = None,
        precision: str = "float64",
        random_state: Any = None,
    ) -> None:
        super().__init__(
            limit,
            depth=depth,
            activation=activation,
            richness=richness,
            beta=beta,
            decay=decay,
            ridge=ridge,
            particles=particles,
            tolerance=tolerance,
            steps=steps,
            precision=precision,
            random_state=random_state,
        )
        self.loss = loss

    def _loss(self) -> str:
        return checks.choice("loss", self.loss, losses.NAMES)

    def fit(self, X: Any, y: Any) -> AdaptiveKernelClassifier:
        """Fit to inputs (points, features) and one label per point, of any type."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if self._loss() == "logistic" and len(self.classes_) > 2:
            raise ValueError(f"loss='logistic' is for two classes, but y has {len(self.classes_)}; use loss='softmax'")
        self.solution_ = self._solve(X, self._encode(codes))
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """The predictor's outputs: (points,) for two classes, positive for the second; (points, classes) for more."""
        values = self._outputs(X)
        return values[:, 1] - values[:, 0] if self.loss == "softmax" and len(self.classes_) == 2 else values

    def predict(self, X: Any) -> np.ndarray:
        """The most likely class of each point."""
        best = np.argmax(self._scores(X), axis=1)
        return self.classes_[best]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Estimated class probabilities, (points, classes); see above for what they mean."""
        return _simplex(self._scores(X))

    def _encode(self, codes: np.ndarray) -> np.ndarray:
        count = len(self.classes_)
        if self.loss == "softmax":
            return np.eye(count)[codes]
        if count <= 2:  # a single class is the constant 1
            return np.where(codes == count - 1, 1.0, -1.0)
        return np.eye(count)[codes] - 1 / count

    def _scores(self, X: Any) -> np.ndarray:
        """Outputs as estimates of the class indicators, (points, classes)."""
        values, count = self._outputs(X), len(self.classes_)
        if count == 1:
            return np.ones((len(values), 1))
        if self.loss == "softmax":
            return values
        if count == 2:
            return np.column_stack([(1 - values) / 2, (1 + values) / 2])
        return values + 1 / count


def _simplex(scores: np.ndarray) -> np.ndarray:
    """Nearest probability vector to each row: subtract one number from a row and clip at zero, so that it sums to one."""
    count = scores.shape[1]
    ordered = -np.sort(-scores, axis=1)
    excess = (np.cumsum(ordered, axis=1) - 1) / np.arange(1, count + 1)
    last = np.sum(ordered > excess, axis=1) - 1
    shift = excess[np.arange(len(scores)), last]
    return np.maximum(scores - shift[:, None], 0.0)
