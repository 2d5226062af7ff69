"""A run of finite-width networks: immutable evidence of what they did, and their predictions."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from os import PathLike
from typing import Any

import jax.numpy as jnp
import numpy as np

from adakern import checks, losses, memory
from adakern.averages import Stream
from adakern.finite import measure, model
from adakern.finite.coordinates import Coordinates
from adakern.networks import Network
from adakern.precision import scope


@dataclass(frozen=True)
class Settings:
    r"""The numbers of a run.

    Attributes:
        kind: "langevin" or "gradient flow".
        width: $N$.
        richness: $\gamma_0$; in NTK parameterisation $\gamma$ itself.
        decays: $\lambda_0..\lambda_L$.
        beta: inverse temperature (Langevin only, else None).
        parameterization: "mean-field" or "ntk".
        loss: name of the loss.
        centred: whether the initial outputs are subtracted.
        initial: distribution of the initial weights, "normal" or "laplace".
        replicas: independent networks.
        seed, precision, matmul: as given.
    """

    kind: str
    width: int
    richness: float
    decays: tuple[float, ...]
    beta: float | None
    parameterization: str
    loss: str
    centred: bool
    initial: str
    replicas: int
    seed: int
    precision: str
    matmul: str

    @property
    def gamma(self) -> float:
        r"""$\gamma$: $\gamma_0\sqrt N$ in mean-field parameterisation, $\gamma_0$ in NTK parameterisation."""
        return model.scale(self.parameterization, self.richness, self.width)


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    r"""What `langevin` and `gradient_flow` return. Arrays are read-only; with one output (1-D `y`) the output axis is absent.

    Attributes:
        network: the architecture.
        settings: width, richness, decays and the other numbers of the run.
        X, y: the training data.
        kernels: $\Phi^1..\Phi^L$: averages over the posterior (Langevin), or at the end of the flow; (P, P), for a CNN's inner layers (P, S, P, S).
        kernel_errors: standard error of each entry: over time with its autocorrelation (Langevin), over replicas, or for a single flow over neurons,
            taken as independent draws.
        fitted, fitted_errors: $f$ at the training inputs (posterior mean, or at the end of the flow) and its standard error.
        spread: standard deviation of $f$ under the posterior (Langevin; else None).
        times, losses: the loss at the training points, mean over points of $\ell$, at these times, averaged over replicas; burn-in included.
        replica_losses: the same for each replica, (times, replicas).
        test_losses: the same at the test points, if `X_test` and `y_test` were given, else None. Langevin: mean over each batch after burn-in, at `test_times`.
        test_predictions, test_errors: $f$ at `X_test` and its standard error, else None.
        test_spread: standard deviation of $f$ there under the posterior (Langevin; else None).
        weights: weights that were kept, layers $0..L$, each (samples, fan-in, width); of layer 0 the part in the span of the training inputs.
        sample_times, sample_replicas: when and of which replica.
        converged, status: whether the averages can be trusted (Langevin), or the flow could be followed; and a sentence about it. Whether a flow has come to rest
            is in `stats["stationary"]`.
        initial_weights: weights of every replica at the start, if centred, else None.
        basis: orthonormal directions that span the training inputs, (features, rank); None if they span everything.
        fades: what weight decay has left of the first layer outside that span, for each of the kept weights.
        stats: steps, seconds, step size, what the checks found, version.
    """

    network: Network
    settings: Settings
    X: np.ndarray
    y: np.ndarray
    kernels: tuple[np.ndarray, ...]
    kernel_errors: tuple[np.ndarray, ...]
    fitted: np.ndarray
    fitted_errors: np.ndarray
    spread: np.ndarray | None
    times: np.ndarray
    replica_losses: np.ndarray
    test_times: np.ndarray | None
    test_losses: np.ndarray | None
    test_predictions: np.ndarray | None
    test_errors: np.ndarray | None
    test_spread: np.ndarray | None
    weights: tuple[np.ndarray, ...]
    initial_weights: tuple[np.ndarray, ...] | None  # of each replica, if centred
    sample_times: np.ndarray
    sample_replicas: np.ndarray
    fades: np.ndarray  # what is left of the initial weights outside the span, for each sample
    basis: np.ndarray | None
    converged: bool
    status: str
    stats: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stats", dict(self.stats))
        _freeze(self.__dict__)

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: self.__dict__[f.name] for f in fields(self)}  # without what is cached

    def __setstate__(self, state: dict[str, Any]) -> None:
        _freeze(state)  # copies and worker processes get arrays that numpy has made writable again
        self.__dict__.update(state)

    def __repr__(self) -> str:
        s = self.settings
        state = "converged" if self.converged else "NOT converged"
        return (
            f"Run({s.kind}, {self.network!r}, width {s.width}, richness {s.richness:g}, {len(self.X)} points, "
            f"{s.replicas} replica{'s' if s.replicas > 1 else ''}, {state}: {self.status})"
        )

    @property
    def losses(self) -> np.ndarray:
        r"""Mean over training points (and replicas) of $\ell$, at `times`."""
        return self.replica_losses.mean(axis=1)

    @property
    def kernel(self) -> np.ndarray:
        r"""$\Phi^L$."""
        return self.kernels[-1]

    @cached_property
    def gradient_kernels(self) -> tuple[np.ndarray, ...]:
        r"""$G^1..G^L$, averaged over the kept weights: (P, P); over (point, position) for a CNN; with several outputs (P, C, P, C)."""
        return self._tangents[0]

    @cached_property
    def tangent_kernel(self) -> np.ndarray:
        r"""The empirical NTK $K=\gamma^2\nabla_\theta s\cdot\nabla_\theta s$, averaged over the kept weights: (P, P), or (P, C, P, C)."""
        return self._tangents[1]

    def predict(self, X: Any, *, return_std: bool = False, memory: float | None = None) -> Any:
        r"""$f$ at new inputs: the mean over the kept weights of $\sigma(s)$, in batches that fit the memory budget.

        Args:
            X: new inputs, any number of them.
            return_std: also return the standard error of that mean: over time with its autocorrelation (Langevin), over replicas, or for
                a single flow over its neurons.
            memory: budget in bytes for one batch; 1 GiB by default.
        """
        mean, error, _ = self._sweep(self._new(X), memory, return_std)
        return (self._like_y(mean), self._like_y(error)) if return_std else self._like_y(mean)

    def variance(self, X: Any, *, memory: float | None = None) -> np.ndarray:
        """Variance of $f$ over the posterior at new inputs (Langevin only), from the kept weights."""
        if self.settings.kind != "langevin":
            raise ValueError("variance exists for Langevin runs only: gradient flow has no posterior")
        if len(self.sample_times) < 2:
            raise ValueError("variance needs weights of several moments; give snapshots=2 or more")
        return self._like_y(self._sweep(self._new(X), memory, False)[2])

    def density(self, layer: int, point: int, position: int = 0) -> tuple[np.ndarray, np.ndarray]:
        r"""Preactivations $h^\ell_\mu$ of all neurons of hidden layer `layer` (1..L) at training point `point`, and their weights.

        All kept weights count alike. A CNN has one density per `position`, counted row by row.
        """
        layer = checks.integer("layer", layer, least=1)
        if layer > self.network.depth:
            raise ValueError(f"layer must be at most {self.network.depth}, the depth, but it is {layer}")
        point = checks.integer("point", point, least=0)
        if point >= len(self.X):
            raise ValueError(f"point must be at most {len(self.X) - 1}, but it is {point}")
        position = checks.integer("position", position, least=0)
        sites = self._model.positions[layer - 1]
        if position >= sites:
            raise ValueError(f"position must be at most {sites - 1}, but it is {position}")
        first = self._model.positions[0]
        with scope(self.settings.precision):
            rows = jnp.asarray(self._rows[point * first : (point + 1) * first])
            values = np.concatenate(
                [
                    np.asarray(measure.fields(self._model, weights, rows, self._scales)[layer - 1][position])
                    for weights in map(self._sample, self._indices())
                ]
            )
        return values, np.full(len(values), 1 / len(values))

    def at(self, time: float) -> Run:
        """The run as it was at one of `sample_times` (gradient flow): kernels, outputs and predictions of that moment."""
        if self.settings.kind == "langevin":
            raise ValueError("at(time) is for gradient flow: a Langevin run is an average over its times")
        time = checks.nonnegative("time", time)
        moments = np.unique(self.sample_times)
        nearest = moments[np.argmin(np.abs(moments - time))]
        if abs(nearest - time) > 1e-6 * max(1.0, time):
            listing = ", ".join(f"{moment:g}" for moment in moments)
            raise ValueError(f"time must be one of the times that were kept ({listing}), but it is {time:g}")
        return self._part(self.sample_times == nearest, stats={**self.stats, "moment": float(nearest)})

    def replica(self, index: int) -> Run:
        """One of the replicas of a gradient flow as a run of its own, at all the moments that were kept; losses at test points are left out."""
        if self.settings.kind == "langevin":
            raise ValueError(
                "replica(index) is for gradient flow: the averages of a Langevin run are over its replicas"
            )
        have = sorted({int(k) for k in self.sample_replicas})
        if checks.integer("index", index, least=0) not in have:
            listing = ", ".join(str(k) for k in have)
            raise ValueError(f"index must be that of a replica ({listing}), but it is {index}")
        column = have.index(index)
        return self._part(
            self.sample_replicas == index,
            settings=replace(self.settings, replicas=1),
            replica_losses=self.replica_losses[:, column : column + 1],
            test_times=None,
            test_losses=None,
        )

    def _part(self, chosen: np.ndarray, **changes: Any) -> Run:
        """The run of some of the kept weights alone."""
        part = replace(
            self,
            weights=tuple(w[chosen] for w in self.weights),
            sample_times=self.sample_times[chosen],
            sample_replicas=self.sample_replicas[chosen],
            fades=self.fades[chosen],
            test_predictions=None,
            test_errors=None,
            **changes,
        )
        with scope(self.settings.precision):
            return replace(part, **snapshot(part))

    def save(self, path: str | PathLike[str]) -> None:
        """Write the run to a safetensors file; `adakern.load` reads it back."""
        from adakern.finite import storing  # which knows what a run is

        storing.save(self, path)

    @cached_property
    def _model(self) -> model.Model:
        s = self.settings
        outputs = 1 if self.y.ndim == 1 else self.y.shape[1]
        return model.build(self.network, self.X, losses.get(s.loss), s.width, outputs, s.matmul)

    @cached_property
    def _coordinates(self) -> Coordinates:
        size = self.weights[0].shape[1] if self.basis is None else len(self.basis)
        return Coordinates(size, self.basis)

    @cached_property
    def _rows(self) -> np.ndarray:
        return self._coordinates.split(model.rows_of(self.network, self.X))[0].astype(self.settings.precision)

    @property
    def _scales(self) -> Any:
        return jnp.asarray(self._model.scales(self.settings.gamma))

    def _indices(self) -> list[int]:
        """The kept weights that stand for the run: all of a Langevin run, the last moment of a flow."""
        last = self.sample_times.max()
        everything = self.settings.kind == "langevin"
        return [i for i, time in enumerate(self.sample_times) if everything or time == last]

    def _sample(self, index: int) -> model.Weights:
        """One of the kept weights, on the device; called inside `scope`."""
        return tuple(jnp.asarray(w[index]) for w in self.weights)

    def _outside(self, index: int) -> np.ndarray:
        """First-layer weights outside the span of the training inputs, before projection: (row size, width)."""
        size, width, s = self._coordinates.size, self.settings.width, self.settings
        if s.kind == "langevin":  # independent of everything that was simulated, and distributed as under the prior
            rng = np.random.default_rng([s.seed, 1, index])
            return rng.standard_normal((size, width)) / np.sqrt(s.decays[0])
        return first_weights(self._model, s, size, int(self.sample_replicas[index]))

    @cached_property
    def _tangents(self) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        rows = max(self._model.positions) * len(self.X) * self._model.outputs
        memory.require((4 + self.network.depth) * 8 * rows**2, "a tangent kernel over positions", "fewer points")
        gradients: list[np.ndarray] = []
        tangent, count = np.zeros(()), 0
        with scope(self.settings.precision):
            for weights in map(self._sample, self._indices()):
                result = measure.tangents(self._model, weights, jnp.asarray(self._rows), self._scales)
                parts = [np.asarray(g, dtype=np.float64) for g in result.gradient_kernels]
                gradients = parts if not count else [a + b for a, b in zip(gradients, parts, strict=True)]
                tangent = tangent + np.asarray(result.tangent, dtype=np.float64)
                count += 1
        shaped = tuple(self._shape_gradient(g / count, i) for i, g in enumerate(gradients))
        result = shaped, self._shape_tangent(tangent / count)
        for array in (*shaped, result[1]):
            array.setflags(write=False)
        return result

    def _shape_gradient(self, kernel: np.ndarray, layer: int) -> np.ndarray:
        sites, points = self._model.positions[layer], len(self.X)
        split = kernel.reshape(*kernel.shape[:2], points, sites, points, sites)
        full = np.transpose(split, (2, 3, 0, 4, 5, 1))  # (P, S, C, P, S, C)
        if self.y.ndim == 1:
            full = full[:, :, 0, :, :, 0]
            return full if self._model.convolutional else full[:, 0, :, 0]
        return full if self._model.convolutional else full[:, 0, :, :, 0]

    def _shape_tangent(self, kernel: np.ndarray) -> np.ndarray:
        return kernel if self.y.ndim == 2 else kernel[:, 0, :, 0]

    def _sweep(self, X: np.ndarray, budget: float | None, errors: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean, standard error and variance of f over the kept weights."""
        net, loss = self._model, losses.get(self.settings.loss)
        first = net.positions[0]
        per_point = first * net.width * (net.depth + 3) * np.dtype(self.settings.precision).itemsize
        per_point += 4 * 8 * first * self._coordinates.size
        size = memory.rows_per_batch(per_point, memory.budget(budget), max(1, len(X)))
        indices = sorted(self._indices(), key=lambda i: (self.sample_times[i], self.sample_replicas[i]))
        alone = len(indices) == 1
        if alone and errors and self.settings.kind == "langevin":
            raise ValueError(
                "the standard error of a prediction needs weights of several moments; give snapshots=2 or more"
            )
        replicas = len({int(self.sample_replicas[i]) for i in indices})
        shape = (len(X), net.outputs)
        stream, moments = Stream(shape), Stream(shape)
        gathered: list[np.ndarray] = []  # of one moment: the series is of means over replicas
        scatter = np.zeros(shape)
        with scope(self.settings.precision):
            for index in indices:
                s, noise = self._outputs(index, X, size, errors and alone)
                f = np.asarray(loss.link(jnp.asarray(s)), dtype=np.float64)
                if errors and alone:
                    slope = np.asarray(loss.link(jnp.asarray(s + 1e-3)) - loss.link(jnp.asarray(s - 1e-3))) / 2e-3
                    scatter = np.abs(slope) * noise
                moments.add(f)
                gathered.append(f)
                if len(gathered) == replicas:
                    stream.add(np.mean(gathered, axis=0))
                    gathered = []
        if alone:
            error = scatter
        elif stream.count == 1:  # replicas alone
            error = np.sqrt(moments.variance / moments.count)
        else:
            error = stream.error
        dtype = self.settings.precision
        return moments.mean.astype(dtype), error.astype(dtype), np.asarray(moments.variance, dtype=dtype)

    def _outputs(
        self,
        index: int,
        X: np.ndarray,
        size: int,
        scatter: bool,
    ) -> tuple[np.ndarray, np.ndarray]:
        """s of one sample at rows of new points, batch by batch, and on request its scatter over neurons."""
        net, points, weights = self._model, len(X), self._sample(index)
        beyond = None if self.basis is None else self._outside(index)
        start = None
        if self.initial_weights is not None:
            replica = int(self.sample_replicas[index])
            start = tuple(jnp.asarray(w[replica]) for w in self.initial_weights)
        values, noise = np.empty((points, net.outputs)), np.zeros((points, net.outputs))
        for begin in range(0, points, size):
            here = slice(begin, min(points, begin + size))
            inside, outside = self._coordinates.split(model.rows_of(self.network, X[here]))
            rows = jnp.asarray(inside)
            far = np.zeros((1, net.width)) if beyond is None or outside is None else outside @ beyond
            pieces = [(weights, float(self.fades[index]))] + ([] if start is None else [(start, 1.0)])
            offsets = [jnp.asarray(fade * far) for _, fade in pieces]
            s = [
                np.asarray(measure.outputs(net, w, rows, self._scales, offset), dtype=np.float64)
                for (w, _), offset in zip(pieces, offsets, strict=True)
            ]
            values[here] = s[0] - (s[1] if len(s) > 1 else 0.0)
            if scatter:
                parts = [
                    measure.contributions(net, w, rows, self._scales, offset)
                    for (w, _), offset in zip(pieces, offsets, strict=True)
                ]
                each = parts[0] - (parts[1] if len(parts) > 1 else 0.0)
                noise[here] = np.asarray(each.std(axis=-1)) / np.sqrt(net.width - 1) if net.width > 1 else np.inf
        return values, noise

    def _like_y(self, values: np.ndarray) -> np.ndarray:
        return values if self.y.ndim == 2 else values[..., 0]

    def _new(self, X: Any) -> np.ndarray:
        return checks.inputs("X", X, ndim=self.network.input_ndim, like=self.X, empty=True)


def _freeze(values: dict[str, Any]) -> None:
    for value in values.values():
        for array in value if isinstance(value, tuple) else (value,):
            if isinstance(array, np.ndarray):
                array.setflags(write=False)


def first_weights(net: model.Model, settings: Settings, size: int, replica: int) -> np.ndarray:
    """The initial first-layer weights of a replica of a flow, (row size, width): drawn again from the seed, not stored."""
    rng = np.random.default_rng([settings.seed, 0, replica])
    return model.draw(rng, (net.shapes(size)[0],), settings.initial)[0]


def snapshot(run: Run) -> dict[str, Any]:
    """Kernels and outputs at the training points of a flow's last kept moment, with errors over replicas or neurons."""
    net, rows = run._model, jnp.asarray(run._rows)
    samples = [run._sample(index) for index in run._indices()]
    stacks = [measure.kernels(net, weights, rows, run._scales) for weights in samples]
    kernels: list[np.ndarray] = []
    errors: list[np.ndarray] = []
    for layer in range(net.depth):
        stack = np.stack([np.asarray(stack[layer], dtype=np.float64) for stack in stacks])
        kernels.append(stack.mean(axis=0))
        if len(stack) > 1:
            errors.append(stack.std(axis=0, ddof=1) / np.sqrt(len(stack)))
    if len(samples) == 1:
        errors = [np.asarray(e, dtype=np.float64) for e in measure.neuron_scatter(net, samples[0], rows, run._scales)]
    mean, error, _ = run._sweep(run.X, None, True)
    dtype = run.settings.precision
    layers = range(1, net.depth + 1)
    return {
        "kernels": tuple(net.unfold(k.astype(dtype), layer) for k, layer in zip(kernels, layers, strict=True)),
        "kernel_errors": tuple(net.unfold(e.astype(dtype), layer) for e, layer in zip(errors, layers, strict=True)),
        "fitted": run._like_y(mean),
        "fitted_errors": run._like_y(error),
    }
