"""A trajectory: immutable evidence of how the infinitely wide network was trained, and its file."""

from __future__ import annotations

from dataclasses import dataclass, field
from os import PathLike
from typing import Any

import numpy as np

from adakern import checks, files, inputs, memory, storage
from adakern.limits import ANTK
from adakern.networks import CNN
from adakern.precision import scope
from adakern.trajectories import tangents
from adakern.trajectories.pairs import resolved

FORMAT = "adakern-trajectory"
# What is recorded with a standard error, and the name of that.
ERRORS = {
    "train_loss": "train_loss_errors",
    "test_loss": "test_loss_errors",
    "fitted": "fitted_errors",
    "predictions": "prediction_errors",
    "kernels": "kernel_errors",
    "feature_responses": "feature_response_errors",
    "gradient_responses": "gradient_response_errors",
}
SCALARS = ("train_loss", "train_loss_errors", "test_loss", "test_loss_errors")
RECORDED = (*ERRORS, *ERRORS.values(), "gradient_kernels", "tangent_kernels", "weights", "readouts", "fields")
RECORDED = (*RECORDED, "two_time_kernels", "two_time_gradients")


@dataclass(frozen=True, eq=False, repr=False)
class Trajectory:
    r"""What `dynamics` returns, at each of T `times`. Arrays are read-only; with one output (1-D `y`) the output axis is absent.

    Every standard error is over independent replicas of the whole population of neurons; with one replica it is not known, and NaN.

    Attributes:
        limit: the problem.
        X, y: the training data.
        times: those asked for, (T,); if the integration failed, those that were reached.
        train_loss, train_loss_errors: mean over training points of $\ell$, (T,), and its standard error.
        test_loss, test_loss_errors: the same at the test points, None without `y_test`.
        fitted, fitted_errors: $f$ at the training points, (T, P) or (T, P, C).
        predictions, prediction_errors: $f$ at `X_test`, (T, Q) or (T, Q, C); None without.
        kernels, kernel_errors: $\Phi^1$, (T, P, P); of several hidden layers $\Phi^1..\Phi^L$, (T, L, P, P); of a CNN $\sum_q\langle\varphi_{\mu q}\varphi_{\nu q}\rangle$ over positions $q$, or that of the means over them.
        gradient_kernels: $G^1=\langle gg^\top\rangle$, $g=\varphi'(h)a$, (T, P, P), or (T, L, P, P); None with several outputs and for a CNN, whose $G^1$ goes with pairs of positions.
        tangent_kernels: $K=\Phi^1+\Phi^0\circ G^1$, (T, P, P); in general $\sum_\ell G^{\ell+1}\circ\Phi^\ell$; of a CNN $K_{\mu\nu}=\Phi^1_{\mu\nu}+\sum_{qq'}\Phi^0_{\mu q,\nu q'}G^1_{\mu q,\nu q'}$. None with several outputs.
        weights: $w$ of every neuron in the coordinates of `basis`, (T, replicas, neurons, rank), in float32; None if they were not kept.
        readouts: $a$, (T, replicas, neurons, C), likewise; of a CNN with several positions that reads each of them, (T, replicas, neurons, S, C).
        fields: of several hidden layers, in the place of weights and readouts, $h^\ell_\mu$ of every neuron, (T, L, replicas, neurons, P), in float32; of linear networks, drawn from their Gaussian law. None if they were not kept.
        two_time_kernels, two_time_gradients: with `pairs=True`, $\Phi^\ell(t,s)$ and $G^\ell(t,s)$ of all pairs of times and $\ell=1..L$, (T, T, L, P, P).
        feature_responses, feature_response_errors: likewise $\langle\varphi(h^\ell_\mu(t))r^\ell_\nu(s)\rangle=\gamma_0\int A^\ell G^{\ell+1}$ for $\ell=1..L-1$, (T, T, L-1, P, P), and its standard error.
        gradient_responses, gradient_response_errors: $\langle g^{\ell+1}_\mu(t)u^{\ell+1}_\nu(s)\rangle=\gamma_0\int B^\ell\Phi^\ell$.
        basis: orthonormal directions that span the training inputs, of a CNN their patches, (features, rank); None if they span everything.
        converged, status: whether the integrator reached all times, and a sentence about it.
        stats: steps, evaluations, seconds, seed, precision, version and whatever else was chosen.
    """

    limit: ANTK
    X: np.ndarray
    y: np.ndarray
    times: np.ndarray
    train_loss: np.ndarray
    train_loss_errors: np.ndarray
    test_loss: np.ndarray | None
    test_loss_errors: np.ndarray | None
    fitted: np.ndarray
    fitted_errors: np.ndarray
    predictions: np.ndarray | None
    prediction_errors: np.ndarray | None
    kernels: np.ndarray
    kernel_errors: np.ndarray
    gradient_kernels: np.ndarray | None
    tangent_kernels: np.ndarray | None
    weights: np.ndarray | None
    readouts: np.ndarray | None
    basis: np.ndarray | None
    converged: bool
    status: str
    fields: np.ndarray | None = None
    two_time_kernels: np.ndarray | None = None
    two_time_gradients: np.ndarray | None = None
    feature_responses: np.ndarray | None = None
    feature_response_errors: np.ndarray | None = None
    gradient_responses: np.ndarray | None = None
    gradient_response_errors: np.ndarray | None = None
    stats: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stats", dict(self.stats))
        _freeze(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        _freeze(state)  # copies and worker processes get arrays that numpy has made writable again
        self.__dict__.update(state)

    def __repr__(self) -> str:
        state = "converged" if self.converged else "FAILED"
        return f"Trajectory({self.limit!r}, {len(self.X)} points, {len(self.times)} times, {state}: {self.status})"

    def index(self, time: float) -> int:
        """Where in `times` a time stands."""
        time = checks.nonnegative("time", time)
        if not len(self.times):
            raise ValueError(f"time must be one that was reached, and none was: {self.status}")
        nearest = int(np.argmin(np.abs(self.times - time)))
        if abs(self.times[nearest] - time) > 1e-6 * max(1.0, time):
            listing = ", ".join(f"{moment:g}" for moment in self.times)
            raise ValueError(f"time must be one of the times of the trajectory ({listing}), but it is {time:g}")
        return nearest

    def density(self, time: float, layer: int, point: int, position: int = 0) -> tuple[np.ndarray, np.ndarray]:
        r"""Preactivations $h_\mu$ of all neurons at one of the `times`, at training point `point`, and their weights.

        Args:
            time: one of `times`.
            layer: of the hidden layers, from 1.
            point: index of a training point.
            position: of a CNN, counted row by row.
        """
        index = self.index(time)
        layer, depth = self._layer(layer), self.limit.network.depth
        point = checks.integer("point", point, least=0)
        if point >= len(self.X):
            raise ValueError(f"point must be at most {len(self.X) - 1}, but it is {point}")
        position, last = checks.integer("position", position, least=0), self.limit.network.sites(self.X.shape)[0] - 1
        if position > last:
            raise ValueError(f"position must be at most {last}, but it is {position}")
        if (self.weights if depth == 1 else self.fields) is None:
            raise ValueError("density needs the neurons, which were not kept; call dynamics with keep=True")
        if self.fields is not None:
            values = self.fields[index, layer - 1, ..., point].ravel()
        else:
            row = inputs.features(self.limit.network, self.X[point : point + 1])[position]
            values = (np.asarray(self.weights)[index] @ (row if self.basis is None else row @ self.basis)).ravel()
        return values, np.full(len(values), 1 / len(values))

    def tangent_regression(self, X: Any, time: float | None = None) -> tuple[np.ndarray, np.ndarray]:
        r"""What kernel regression with the tangent kernel of a moment predicts at new inputs, $k(x)^\top K^{-1}y$, and its standard error over replicas; of an MLP with one hidden layer and one output whose neurons were kept.

        At the start it is the NTK's predictor. Later it is what the network would say if it had had this kernel from the start, and not what it says.

        Args:
            X: new inputs.
            time: one of `times`, by default the last.
        """
        network = self.limit.network
        if isinstance(network, CNN) or network.depth > 1 or self.y.ndim > 1:
            raise ValueError("tangent_regression is for an MLP with one hidden layer and one output")
        if self.weights is None or self.readouts is None:
            raise ValueError("tangent_regression needs the neurons, which were not kept; call dynamics with keep=True")
        new = checks.inputs("X", X, ndim=network.input_ndim, like=self.X)
        index = self.index(float(self.times[-1]) if time is None and len(self.times) else time or 0.0)
        weights, readouts = self.weights[index].astype(np.float64), self.readouts[index, ..., 0].astype(np.float64)
        rows, fresh = (inputs.features(network, part).reshape(len(part), -1) for part in (self.X, new))
        rounded, y = float(self.stats.get("rounded_kink") or 0.0), np.asarray(self.y, np.float64)
        batch = max(1, memory.DEFAULT_BUDGET // (8 * 10 * weights[..., 0].size))  # of new points: ten arrays at once
        parts = []
        with scope("float64"):
            for begin in range(0, max(len(fresh), 1), batch):
                some = fresh[begin : begin + batch]
                found = tangents.neurons(network.activation, rows, some, weights, readouts, self.basis, rounded)
                parts.append(tangents.regression(found, y))
        f, errors = (np.concatenate(part) for part in zip(*parts, strict=True))
        return f, errors

    def two_times(self, layer: int, time: float, other: float) -> np.ndarray:
        r"""$\Phi^\ell_{\mu\nu}(t,s)=\langle\varphi(h^\ell_\mu(t))\varphi(h^\ell_\nu(s))\rangle$ of two of the `times`, (P, P), of several hidden layers, from pairs of times or fields that were kept."""
        layer, first, second = self._layer(layer), self.index(time), self.index(other)
        if self.two_time_kernels is not None:
            return self.two_time_kernels[first, second, layer - 1]
        if self.fields is None:
            raise ValueError("two_times needs several hidden layers, and pairs=True or keep=True")
        rows = (self.fields[moment, layer - 1].astype(np.float64) for moment in (first, second))
        left, right = (np.asarray(self.limit.network.activation(one)).reshape(-1, len(self.X)) for one in rows)
        return left.T @ right / len(left)

    def response_functions(self, layer: int, cutoff: float = 1e-3) -> tuple[np.ndarray, np.ndarray]:
        r"""$A^\ell(t,s)=\gamma_0^{-1}\langle\delta\varphi(h^\ell(t))/\delta r^\ell(s)\rangle$ and $B^\ell(t,s)=\gamma_0^{-1}\langle\delta g^{\ell+1}(t)/\delta u^{\ell+1}(s)\rangle$ at all pairs of times, both (T, T, P, P), zero where $s>t$; needs `pairs=True`.

        They are read off $\gamma_0\int A\,G$ and $\gamma_0\int B\,\Phi$, integrals by the trapezoidal rule on `times`, and are as sharp in time as the processes that they answer to: of all functions with the same integrals the smallest.

        Args:
            layer: from 1 to L - 1.
            cutoff: directions in which a process has less than this share of its largest variance are left out, noise and all.
        """
        layer, cutoff = self._layer(layer), checks.positive("cutoff", cutoff)
        if cutoff >= 1:
            raise ValueError(f"cutoff must be below 1, a share of the largest variance, but it is {cutoff:g}")
        if self.feature_responses is None or self.gradient_responses is None:
            raise ValueError("response_functions needs several hidden layers that were followed with pairs=True")
        if layer >= self.limit.network.depth:
            raise ValueError(
                f"layer must be at most {self.limit.network.depth - 1}, but it is {layer}: the readout's gradients respond to nothing"
            )
        G, phi = np.asarray(self.two_time_gradients)[:, :, layer], np.asarray(self.two_time_kernels)[:, :, layer - 1]
        richness = self.limit.richness
        A, B = (
            resolved(self.times, given[:, :, layer - 1], process, richness, cutoff)
            for given, process in ((self.feature_responses, G), (self.gradient_responses, phi))
        )
        return A, B

    def _layer(self, layer: int) -> int:
        layer = checks.integer("layer", layer, least=1)
        depth = self.limit.network.depth
        if layer > depth:
            which = "1, the hidden layer" if depth == 1 else f"at most {depth}"
            raise ValueError(f"layer must be {which}, but it is {layer}")
        return layer

    def save(self, path: str | PathLike[str]) -> None:
        """Write the trajectory to a safetensors file; `adakern.load` reads it back."""
        arrays = {name: getattr(self, name) for name in (*_ARRAYS, *_OPTIONAL) if getattr(self, name) is not None}
        header = {name: getattr(self, name) for name in _PLAIN}
        files.write(path, FORMAT, arrays, {**header, "limit": storage.limit_config(self.limit)})


_ARRAYS = ("X", "y", "times", "train_loss", "train_loss_errors", "fitted", "fitted_errors", "kernels", "kernel_errors")
_OPTIONAL = (
    "test_loss",
    "test_loss_errors",
    "predictions",
    "prediction_errors",
    "gradient_kernels",
    "tangent_kernels",
    "weights",
    "readouts",
    "fields",
    "two_time_kernels",
    "two_time_gradients",
    "feature_responses",
    "feature_response_errors",
    "gradient_responses",
    "gradient_response_errors",
    "basis",
)
_PLAIN = ("converged", "status", "stats")


def _freeze(values: dict[str, Any]) -> None:
    for value in values.values():
        if isinstance(value, np.ndarray):
            value.setflags(write=False)


def load(path: str | PathLike[str], *, activation: Any = None) -> Trajectory:
    """Read a trajectory that `Trajectory.save` wrote.

    Args:
        path: the file.
        activation: the callable of a network whose activation has no name of its own; files hold no code.
    """
    arrays, header = files.read(path, FORMAT)
    with files.complaints(path):
        values: dict[str, Any] = {name: arrays[name] for name in _ARRAYS}
        values.update({name: arrays.get(name) for name in _OPTIONAL})
        values.update({name: header[name] for name in _PLAIN})
        limit = storage.limit_from_config(header["limit"], activation)
        if not isinstance(limit, ANTK):
            raise ValueError(f"its limit is {limit.kind}, not ANTK")
        trajectory = Trajectory(limit=limit, **values)
        _check_shapes(trajectory)
        return trajectory


def _paired(t: Trajectory) -> bool:
    """Whether what pairs of times have is all there, in its shapes, or not at all."""
    found = [getattr(t, name) for name in _OPTIONAL if name.startswith(("two_time", "feature_r", "gradient_r"))]
    if any(array is None for array in found):
        return all(array is None for array in found)
    points, moments, depth = len(t.X), len(t.times), t.limit.network.depth
    return all(
        a.shape == (moments, moments, n, points, points)
        for a, n in zip(found, (*[depth] * 2, *[depth - 1] * 4), strict=True)
    )


def _check_shapes(t: Trajectory) -> None:
    """Refuse arrays that do not belong together."""
    points, moments, outputs, depth = len(t.X), len(t.times), t.y.shape[1:], t.limit.network.depth
    layers = (moments, points, points) if depth == 1 else (moments, depth, points, points)
    square, pairs = (moments, points, points), (("test_loss", "test_loss_errors"), ("predictions", "prediction_errors"))
    optional = [getattr(t, name) for name in _OPTIONAL[:-1]]
    network = t.limit.network
    sites, features = inputs.features(network, t.X[:1]).shape
    rank = features if t.basis is None else t.basis.shape[1]
    single = sites == 1 or (isinstance(network, CNN) and network.readout == "mean")
    each = (outputs or (1,)) if single else (sites, *(outputs or (1,)))
    if (
        len(t.y) != points
        or any(a.shape != (moments,) for a in (t.train_loss, t.train_loss_errors))
        or any(a.shape != (moments, points, *outputs) for a in (t.fitted, t.fitted_errors))
        or any(a.shape != layers for a in (t.kernels, t.kernel_errors))
        or (t.gradient_kernels is not None and t.gradient_kernels.shape != layers)
        or (t.tangent_kernels is not None and t.tangent_kernels.shape != square)
        or (t.fields is not None and (t.fields.shape[1:2] + t.fields.shape[4:]) != (depth, points))
        or any(len(a) != moments for a in optional if a is not None)
        or not _paired(t)
        or any(np.shape(getattr(t, a)) != np.shape(getattr(t, b)) for a, b in pairs)
        or (t.basis is not None and len(t.basis) != features)
        or (t.weights is None) != (t.readouts is None)
        or (t.weights is not None and t.weights.shape[-1] != rank)
        or (t.readouts is not None and t.readouts.shape[3:] != each)
    ):
        raise ValueError("its arrays do not fit together")
