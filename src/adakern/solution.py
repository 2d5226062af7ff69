"""A solution: immutable evidence of what a solver found, and the predictor that follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy.stats import norm

from adakern import checks, files, inputs, linalg, losses, memory, space, storage
from adakern.extension import Extension, GaussianExtension, LinearExtension, ParticleExtension
from adakern.extension_cnn import ConvolutionExtension
from adakern.extension_images import ImageExtension
from adakern.extension_rest import RestExtension
from adakern.extension_rest_cnn import RestImageExtension
from adakern.extension_vga import GaussianLawExtension
from adakern.limits import ANBK, ANTK, NNGP, VGA, Limit, sites
from adakern.networks import CNN
from adakern.precision import scope
from adakern.recursion import spans
from adakern.recursion_cnn import Convolution, Layers

_QUANTILES = 4096  # equally likely points that stand for a Gaussian density


class FrozenDict(dict[str, Any]):
    """A dict that cannot be changed, nor the dicts in it, for the evidence in `Solution.stats`."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__({k: FrozenDict(v) if isinstance(v, dict) else v for k, v in values.items()})

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("a solution is evidence and cannot be changed; copy it with dict(...) first")

    __setitem__ = __delitem__ = __ior__ = _refuse  # type: ignore[assignment]
    clear = pop = popitem = setdefault = update = _refuse  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return FrozenDict, (dict(self),)


@dataclass(frozen=True, eq=False, repr=False)
class Solution:
    r"""What `solve` returns. Arrays are read-only; with one output (1-D `y`) the trailing output axis is absent.

    Attributes:
        limit: the problem that was solved.
        X, y: the training data.
        kernels: $\Phi^1..\Phi^L$, each (P, P). Those of a CNN's inner layers, (P, S, P, S) over pairs of positions, are computed when they are asked for in the lazy limits.
        kernel: the predictor's own, $\Phi^L$ or $K$.
        kernel_errors: standard error of each entry of `kernels`; 0 in closed form. ANTK: how far two starts are apart, over $\sqrt2$; nan where there was one. The biases of a finite step and of a finite number of particles
            are taken out, with the error that this costs (`stats["bias"]` has their size).
        gradient_kernels: $G^1..G^L$ (NTK, and ANTK with one output), else None; of a CNN (P, S, P, S), when they are asked for.
        duals: $\hat\Phi^1..\hat\Phi^L$ (ANBK), else None.
        coefficients: $\alpha$ in $f(x)=\sum_\mu\alpha_\mu k(x,x_\mu)$.
        fitted: $f$ on the training inputs.
        errors: $\Delta=-\partial\ell/\partial s$ there.
        draws: white coordinates of neurons drawn from each layer's law; empty in closed form. VGA: rows whose Gram matrix is the law's covariance. ANTK: fields
            $h^1..h^L$ of the neurons at distinct training points. Dead neurons are left out, and neurons that point the same way are one.
        slopes, shares: ANTK: $\varphi'(h)$ of those neurons (at kinks the subgradient that stationarity asks for), and how much of the layer each stands for.
        residual: how far the limit's equations are from holding, computed by the limit.
        certificate: ANBK of one hidden layer: the free energy of the law that the answer's $v$ tilts, minus the dual's value at $v$, in nats. Never negative beyond
            `stats["certificate_error"]`; it falls with the square of the answer's error, and is infinite where there is no such law. ANTK of one hidden layer with a homogeneous activation: the duality gap relative to the value. None where there is no certificate.
        converged, status: whether the answer meets its tolerance, and a sentence about it.
        stats: seconds, precision, version, seed, and what the solver has to say.
    """

    limit: Limit
    X: np.ndarray
    y: np.ndarray
    kernels: tuple[np.ndarray, ...]
    kernel: np.ndarray
    kernel_errors: tuple[np.ndarray, ...]
    gradient_kernels: tuple[np.ndarray, ...] | None
    duals: tuple[np.ndarray, ...] | None
    coefficients: np.ndarray
    fitted: np.ndarray
    errors: np.ndarray
    draws: tuple[np.ndarray, ...]
    residual: float
    certificate: float | None
    converged: bool
    status: str
    stats: dict[str, Any] = field(default_factory=dict)
    slopes: tuple[np.ndarray, ...] = ()
    shares: tuple[np.ndarray, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "stats", FrozenDict(self.stats))
        if isinstance(self.limit.network, CNN) and not self.draws:
            self._defer(self._convolution)
        _freeze(self.__dict__)

    def _defer(self, convolution: Convolution) -> None:
        """Leave kernels over pairs of positions until they are asked for. Their errors are zeros that take no memory."""
        points, zero = len(self.X), np.zeros((), dtype=self.kernel.dtype)
        shapes = [(points, sites, points, sites) for sites in convolution.sites[:-1]] + [(points, points)]
        layers: dict[str, tuple[np.ndarray, ...] | None] = {
            "kernels": Layers(convolution, self.X, self.kernels[-1]),
            "kernel_errors": tuple(np.broadcast_to(zero, shape) for shape in shapes),
            "gradient_kernels": Layers(convolution, self.X, None) if self.limit.tangent else None,
        }
        for name, value in layers.items():
            object.__setattr__(self, name, value)

    @property
    def _convolution(self) -> Convolution:
        assert isinstance(self.limit.network, CNN)
        return Convolution(self.limit.network, self.limit.decays, self.X.shape[1:], self.precision)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_extension"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        _freeze(state)  # copies and worker processes get arrays that numpy has made writable again
        self.__dict__.update(state)

    def __repr__(self) -> str:
        state = "converged" if self.converged else "NOT converged"
        return f"Solution({self.limit!r}, {len(self.X)} points, residual {self.residual:.2g}, {state}: {self.status})"

    @property
    def precision(self) -> str:
        return str(self.stats["precision"])

    @cached_property
    def _extension(self) -> Extension:
        if isinstance(self.limit, VGA):
            return GaussianLawExtension(self.limit, self.X, self.draws, self.precision)
        if self.draws and isinstance(self.limit, ANBK):
            kind = ImageExtension if isinstance(self.limit.network, CNN) else ParticleExtension
            return kind(self.limit, self.X, self.kernels, self.draws, int(self.stats["groups"]), self.precision)
        if self.draws and isinstance(self.limit, ANTK):
            errors = self.errors if self.errors.ndim == 2 else self.errors[:, None]
            rest = RestImageExtension if isinstance(self.limit.network, CNN) else RestExtension
            return rest(self.limit, self.X, self.draws, self.slopes, self.shares, errors)
        if self._linear:
            assert isinstance(self.limit, (ANBK, ANTK))
            with scope("float64"):
                return LinearExtension(self.limit, self.X, self.y if self.y.ndim == 2 else self.y[:, None])
        if isinstance(self.limit.network, CNN):
            return ConvolutionExtension(self.limit, self.X, self.precision)
        return GaussianExtension(self.limit, self.X, self.precision)

    @property
    def _linear(self) -> bool:
        """Whether the kernels are those of a linear network that learned features, in closed form."""
        adapted = isinstance(self.limit, ANBK) and self.limit.richness > 0 and not self.draws
        return adapted or (isinstance(self.limit, ANTK) and not self.draws)

    def predict(self, X: Any, *, return_std: bool = False, memory: float | None = None) -> Any:
        r"""$f$ at new inputs, in batches that fit the memory budget.

        Args:
            X: new inputs, any number of them.
            return_std: also return the Monte-Carlo standard error of $f$ (0 in closed form). It measures how well the
                solver knows $f$, not how uncertain the network is: for that see `variance`. It is the scatter of `stats["groups"]`
                groups of particles, eight as a rule, so that differences in such errors have Student's law: one in 50 is beyond 3.
            memory: budget in bytes for one batch; 1 GiB by default.
        """
        total, groups = self._new(X), []
        with scope(self.precision):
            for rows in self._batches(total, memory):
                groups.append((rows, self._extension.outputs(total[rows], self._columns)))
        count = groups[0][1].shape[0] if groups else 1
        values = np.empty((count, len(total), self._columns.shape[1]), dtype=self.precision)
        for rows, block in groups:
            values[:, rows] = block
        mean = values.mean(axis=0)
        f = self._linked(mean)
        if not return_std:
            return self._like_y(f)
        linked = np.stack([self._linked(value) for value in values])  # each group's own: σ mixes outputs
        spread = linked.std(axis=0, ddof=1) / np.sqrt(count) if count > 1 else np.zeros_like(mean)
        return self._like_y(f), self._like_y(spread)

    def _linked(self, s: np.ndarray) -> np.ndarray:
        r"""$f=\sigma(s)$."""
        if not isinstance(self.limit, (ANBK, ANTK, VGA)) or self.limit.loss == "squared":
            return s
        with scope(self.precision):
            return np.asarray(losses.get(self.limit.loss).link(jnp.asarray(s)))

    @property
    def free_energy(self) -> float | None:
        r"""ANBK and VGA: $F=\sum_\ell\mathrm{KL}+E$ at the saddle, in nats per neuron; 0 at richness 0. Its Monte-Carlo error is `stats["free_energy_error"]`.

        None for the other limits, and where the audit could not measure it (`stats["audit"]["status"]` says why).
        """
        if not isinstance(self.limit, (ANBK, VGA)):
            return None
        return self.stats.get("free_energy", 0.0)

    def cross_kernel(self, X: Any, *, memory: float | None = None) -> np.ndarray:
        """The kernel between new inputs and the training inputs that `predict` uses, (Q, P)."""
        new = self._new(X)
        result = np.empty((len(new), len(self.X)), dtype=self.precision)
        with scope(self.precision):
            for rows, block in self._blocks(new, memory):
                result[rows] = block.mean(axis=0)
        return result

    def variance(self, X: Any, *, memory: float | None = None) -> np.ndarray:
        r"""Posterior variance of $f$ at new inputs, (Q,); NNGP only, the other limits have none."""
        if not isinstance(self.limit, NNGP):
            raise ValueError(
                f"variance exists for NNGP only, and this is a solution of {self.limit.kind}: at infinite width its output does not fluctuate"
            )
        new = self._new(X)
        result = np.empty(len(new), dtype=self.precision)
        with scope(self.precision):
            identity = jnp.eye(len(self.X), dtype=self.precision)
            inverse = linalg.solve_psd(jnp.asarray(self.kernel), self.limit.shrinkage, identity).x
            for rows, block in self._blocks(new, memory):
                cross = jnp.asarray(block[0])
                explained = np.asarray(jnp.sum(cross * jnp.matmul(cross, inverse, precision="highest"), axis=1))
                result[rows] = (self._extension.own(new[rows]) - explained) / self.limit.decays[-1]
        return np.maximum(result, 0.0)

    def neurons(self, X: Any) -> list[np.ndarray]:
        """ANTK by descent: preactivations of the neurons at new inputs, (Q, n) for every hidden layer, of a CNN (Q, S, n); `shares` says what each stands for."""
        if not (self.draws and isinstance(self.limit, ANTK)):
            raise ValueError("neurons exist for solutions of ANTK that were found by descent")
        new = self._new(X)
        with scope(self.precision):
            assert isinstance(self._extension, (RestExtension, RestImageExtension))
            return self._extension.fields(new)

    def density(self, layer: int, point: int, position: int = 0) -> tuple[np.ndarray, np.ndarray]:
        r"""Draws of the preactivation $h^\ell_\mu$ of training point `point` at hidden layer `layer` (1..L), and their weights.

        In the lazy limits the law is Gaussian, and the draws are its equally likely quantiles. A CNN has one density per `position`, counted row by row.
        """
        layer, point = self._layer(layer), self._point(point)
        position, last = checks.integer("position", position, least=0), self._sites(layer) - 1
        if position > last:
            raise ValueError(f"position must be at most {last}, but it is {position}")
        if self.draws and isinstance(self.limit, ANTK):
            place = inputs.distinct(self.X).member[point] * self._sites(layer) + position
            return self.draws[layer - 1][:, place].copy(), self.shares[layer - 1].copy()
        if self.draws and isinstance(self.limit, ANBK):
            values = self._fields(layer)[:, inputs.distinct(self.X).member[point] * self._sites(layer) + position]
        else:
            levels = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
            values = norm.ppf(levels) * np.sqrt(self._field_variance(layer, point, position))
        return values, np.full(len(values), 1 / len(values))

    def spatial(self, layer: int = 1, point: int | None = None) -> np.ndarray:
        r"""CNN: $\frac1P\sum_\mu\Phi^\ell_{\mu a,\mu a'}$, what the features of two positions have in common on average over training points, (S, S).

        Args:
            layer: hidden layer (1..L); at the last one too this is the kernel before the readout pools positions.
            point: a training point whose own kernel between positions to give instead of the average.
        """
        network = self.limit.network
        if not isinstance(network, CNN):
            raise ValueError("spatial exists for CNNs, and this network is an MLP, which has no positions")
        layer = self._layer(layer)
        where = slice(None) if point is None else slice(self._point(point), self._point(point) + 1)
        if not self.draws:
            with scope(self.precision):
                return space.lazy(self._convolution, self.X[where], layer)
        if layer < network.depth and not isinstance(self.limit, ANTK):
            return space.of_kernel(self.kernels[layer - 1][where, :, where])
        rest = isinstance(self.limit, ANTK)
        with scope(self.precision):
            fields = self.draws[layer - 1] if rest else self._fields(layer)
            features = np.asarray(network.activation(jnp.asarray(fields)))
        points, sites = inputs.distinct(self.X), self._sites(layer)
        counts = np.bincount(points.member[where], minlength=len(points.first))
        return space.of_features(features, sites, counts, self.shares[layer - 1] if rest else None)

    def _layer(self, layer: Any) -> int:
        layer = checks.integer("layer", layer, least=1)
        if layer > self.limit.network.depth:
            raise ValueError(f"layer must be at most {self.limit.network.depth}, the depth, but it is {layer}")
        return layer

    def _point(self, point: Any) -> int:
        point = checks.integer("point", point, least=0)
        if point >= len(self.X):
            raise ValueError(f"point must be at most {len(self.X) - 1}, but it is {point}")
        return point

    def _sites(self, layer: int) -> int:
        return self.limit.network.sites(self.X.shape)[layer - 1]

    def _field_variance(self, layer: int, point: int, position: int) -> float:
        if isinstance(self.limit.network, CNN):
            with scope(self.precision):
                return float(self._convolution.variances(self.X[point : point + 1]).fields[layer - 1][0, position])
        if self._linear:  # the fields are the features
            return float(self.kernels[layer - 1][point, point])
        if isinstance(self.limit, VGA):
            assert isinstance(self._extension, GaussianLawExtension)
            return float(self._extension.covariances[layer - 1][point, point])
        row = inputs.features(self.limit.network, self.X[point : point + 1])[0]
        below = row @ row if layer == 1 else self.kernels[layer - 2][point, point]
        return float(below / self.limit.decays[layer - 1])

    def save(self, path: str | PathLike[str]) -> None:
        """Write the solution to a safetensors file; `adakern.load` reads it back."""
        files.write(path, storage.FORMAT, *_pack(self))

    def _fields(self, layer: int) -> np.ndarray:
        """Fields of the drawn neurons at the distinct training points; of a CNN at their positions, point by point."""
        points = inputs.distinct(self.X)
        decay = self.limit.decays[layer - 1]
        with scope(self.precision):
            if layer == 1:
                root, _ = inputs.root(self.limit.network, self.X[points.first], decay)
            else:
                where = sites.of(self.limit.network, self.X.shape)
                below = where.over(points, layer - 2, self.limit.network.depth).pick(self.kernels[layer - 2])
                root = linalg.cholesky_root(where.seen(layer - 2, jnp.asarray(below / decay)))
            return np.asarray(jnp.asarray(self.draws[layer - 1]) @ root.T)

    @property
    def _columns(self) -> np.ndarray:
        return self.coefficients if self.coefficients.ndim == 2 else self.coefficients[:, None]

    def _like_y(self, values: np.ndarray) -> np.ndarray:
        return values if self.y.ndim == 2 else values[:, 0]

    def _new(self, X: Any) -> np.ndarray:
        return checks.inputs("X", X, ndim=self.limit.network.input_ndim, like=self.X, empty=True)

    def _batches(self, new: np.ndarray, limit: float | None) -> Any:
        budget = memory.budget(limit)
        if len(new) == 0:
            return
        size = memory.rows_per_batch(self._extension.bytes_per_point(), budget, len(new))
        yield from spans(len(new), size)

    def _blocks(self, new: np.ndarray, limit: float | None) -> Any:
        for rows in self._batches(new, limit):
            yield rows, self._extension.blocks(new[rows])


def _freeze(values: dict[str, Any]) -> None:
    for value in values.values():
        for array in value if type(value) is tuple else (value,):  # `Layers` come later, and frozen
            if isinstance(array, np.ndarray):
                array.setflags(write=False)


_STACKS = ("kernels", "kernel_errors", "gradient_kernels", "duals", "draws", "slopes", "shares")
_ARRAYS = ("X", "y", "coefficients", "fitted", "errors")
_PLAIN = ("residual", "certificate", "converged", "status", "stats")


def _pack(solution: Solution) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays and header of a solution. Zero errors, repeated kernels, and what is computed when it is asked for are not written."""
    arrays = {name: getattr(solution, name) for name in _ARRAYS}
    deferred = isinstance(solution.kernels, Layers)
    exact = deferred or not any(error.any() for error in solution.kernel_errors)
    lengths: dict[str, int | None] = {}
    for name in _STACKS:
        stack = getattr(solution, name)
        if deferred and name in ("kernels", "gradient_kernels"):
            stack = (solution.kernels[-1],) if name == "kernels" else None
        lengths[name] = None if stack is None else len(stack)
        if name == "kernel_errors" and exact:
            continue
        arrays.update({f"{name}.{i}": array for i, array in enumerate(stack or ())})
    if solution.limit.tangent:
        arrays["kernel"] = solution.kernel
    header = {name: getattr(solution, name) for name in _PLAIN}
    if solution.certificate is not None and not np.isfinite(solution.certificate):
        header["certificate"] = str(solution.certificate)  # JSON has no infinity
    header["limit"] = storage.limit_config(solution.limit)
    header["stacks"], header["exact"] = lengths, exact
    return arrays, header


def load(path: str | PathLike[str], *, activation: Any = None) -> Solution:
    """Read a solution that `Solution.save` wrote.

    Args:
        path: the file.
        activation: the callable of a network whose activation has no name of its own; files hold no code.
    """
    arrays, header = files.read(path, storage.FORMAT)
    with files.complaints(path):
        fields: dict[str, Any] = {name: arrays[name] for name in _ARRAYS}
        fields["limit"] = storage.limit_from_config(header["limit"], activation)
        for name, length in header["stacks"].items():
            if name == "kernel_errors" and header["exact"]:
                continue
            fields[name] = None if length is None else tuple(arrays[f"{name}.{i}"] for i in range(length))
        if header["exact"]:
            fields["kernel_errors"] = tuple(np.zeros_like(kernel) for kernel in fields["kernels"])
        fields["kernel"] = arrays["kernel"] if fields["limit"].tangent else fields["kernels"][-1]
        fields.update({name: header[name] for name in _PLAIN})
        if fields["certificate"] is not None:
            fields["certificate"] = float(fields["certificate"])
        _check_shapes(fields)
        return Solution(**fields)


def _take_inner(fields: dict[str, Any], network: CNN) -> bool:
    """Whether what a CNN's inner layers have in a file are arrays over pairs of (point, position)."""
    points = len(fields["X"])
    shapes = [(points, count, points, count) for count in network.sites(fields["X"].shape)[:-1]]
    stacks = [fields[name] or () for name in ("kernels", "kernel_errors", "duals")]
    return all(
        array.shape == shape
        for stack in stacks
        if len(stack) > 1
        for array, shape in zip(stack[:-1], shapes, strict=True)
    )


def _check_shapes(fields: dict[str, Any]) -> None:
    """Refuse arrays that do not belong together."""
    points, network = len(fields["X"]), fields["limit"].network
    inner = _take_inner(fields, network) if isinstance(network, CNN) else True
    depth = (
        1 if isinstance(network, CNN) and not fields["draws"] else network.depth
    )  # of a lazy CNN the last kernel alone is written
    last = slice(-1, None) if isinstance(network, CNN) else slice(None)
    square = [
        *fields["kernels"][last],
        *fields["kernel_errors"][last],
        fields["kernel"],
        *(fields["duals"] or ())[last],
    ]
    rows = [fields[name] for name in ("y", "coefficients", "fitted", "errors")]
    if (
        not inner
        or any(array.shape != (points, points) for array in [*square, *(fields["gradient_kernels"] or ())])
        or any(array.shape != fields["y"].shape or len(array) != points for array in rows)
        or any(len(fields[name]) != depth for name in ("kernels", "kernel_errors"))
        or len(fields["draws"]) not in (0, depth)
        or any(len(fields.get(name, ())) not in (0, depth) for name in ("slopes", "shares"))
    ):
        raise ValueError("its arrays do not fit together")
