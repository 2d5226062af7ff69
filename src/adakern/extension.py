r"""How a kernel extends to new points: $k(x,x_\mu)$ for inputs the solver never saw.

New points do not change the training kernels (their duals are zero), so an extension needs the training inputs and what the solver kept, and works
on any number of points in batches.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from adakern import floors, inputs, linalg, losses, recursion
from adakern.activations import Activation, ClosedForm
from adakern.deep_linear import bayes, flow, routes, spectra
from adakern.limits.anbk import ANBK
from adakern.limits.antk import ANTK
from adakern.limits.base import Limit

TABLE = 512  # nodes of a table of conditional means
_SERIES_VALUES = 2000  # numbers that a Hermite series holds for one point: function values at its nodes, coefficients


class Extension(ABC):
    """Base of the ways to extend a kernel. Methods are called inside `precision.scope`, one batch at a time."""

    @abstractmethod
    def blocks(self, X: np.ndarray) -> np.ndarray:
        """The kernel between a batch of new points and the training points, (groups, batch, P).

        Groups are independent estimates of it, whose scatter gives the standard error; one in closed form.
        """

    def outputs(self, X: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
        r"""$s(x)=\sum_\mu\alpha_\mu k(x,x_\mu)$ at a batch of new points, (groups, batch, outputs)."""
        values: np.ndarray = self.blocks(X) @ coefficients
        return values

    @abstractmethod
    def own(self, X: np.ndarray) -> np.ndarray:
        """The kernel of each new point with itself, (batch,)."""

    @abstractmethod
    def bytes_per_point(self) -> int:
        """Memory that one new point of a batch takes, temporaries included."""


class GaussianExtension(Extension):
    """Closed form: in the lazy limits new points follow the same recursion as the training points."""

    def __init__(self, limit: Limit, X: np.ndarray, precision: str) -> None:
        self._limit, self._precision = limit, precision
        self._features = inputs.features(limit.network, X)

    def blocks(self, X: np.ndarray) -> np.ndarray:
        new = inputs.features(self._limit.network, X)
        both = self._variances(np.concatenate([new, self._features]))
        rows, columns = both.split(len(new))
        block = recursion.top(
            both.rules,
            self._limit.tangent,
            jnp.asarray(self._limit.decays),
            tuple(map(jnp.asarray, rows.values[:-1])),
            tuple(map(jnp.asarray, columns.values[:-1])),
            jnp.asarray(new),
            jnp.asarray(self._features),
        )
        return np.asarray(block)[None]

    def own(self, X: np.ndarray) -> np.ndarray:
        variances = self._variances(inputs.features(self._limit.network, X))
        total = variances.values[-1]
        if self._limit.tangent:
            gradient = np.ones_like(total)
            for layer in range(self._limit.network.depth, 0, -1):
                gradient = gradient * variances.slopes[layer - 1]
                total = total + gradient * variances.values[layer - 1]
        return total

    def bytes_per_point(self) -> int:
        item = np.dtype(self._precision).itemsize
        quadrature = 0 if isinstance(self._limit.network.activation, ClosedForm) else 4 * _SERIES_VALUES
        # One row of each of a handful of arrays that XLA keeps alive at once, and a copy of the features.
        rows = (6 + 2 * self._limit.network.depth) * len(self._features) + 2 * self._features.shape[1]
        return item * (rows + quadrature)

    def _variances(self, features: np.ndarray) -> recursion.Variances:
        return recursion.variances(
            self._limit.network.activation, self._limit.network.depth, self._limit.decays, features, self._precision
        )


class LinearExtension(Extension):
    r"""Deep linear networks: $k(x,x_\mu)=a\,\Phi^0(x,x_\mu)+\vartheta(x)^\top M\,\vartheta(x_\mu)$ with few components $\vartheta(x)=\Phi^0(x)^\top v$, and $f(x)$ linear in $x$.

    Solved again in float64 from the data: $v$ holds what no linear network fits, $\beta$ times as large, which must drop out of $\vartheta$ and does not in stored numbers.
    """

    def __init__(self, limit: ANBK | ANTK, X: np.ndarray, y: np.ndarray) -> None:
        self._network = limit.network
        self._rows = inputs.features(limit.network, X).astype(np.float64)
        if isinstance(limit, ANBK):
            self._bayes(limit, y)
        else:
            self._flow(limit, y)

    def _bayes(self, limit: ANBK, y: np.ndarray) -> None:
        depth, decays, rows = limit.network.depth, np.asarray(limit.decays), self._rows
        whole = float(np.prod(decays))
        problem = bayes.Problem(depth, limit.richness, limit.beta, losses.get(limit.loss), y)
        saddles, spectrum, _ = routes.solve(problem, rows, whole)
        best = saddles.found[0]
        self._share = float(1 / np.prod(decays[:-1]))
        self._middle = self._share * limit.richness**2 / whole * best.feature_weights(depth, depth)
        weights = self._weights(spectrum, best.outputs)  # of K: those of Φ⁰ times the decays
        self._outputs = weights / whole
        self._factor = weights @ best.of(lambda t: np.exp(-depth * np.log1p(t)))

    def _flow(self, limit: ANTK, y: np.ndarray) -> None:
        depth, decays = limit.network.depth, np.asarray(limit.decays)
        mean = float(np.exp(np.mean(np.log(decays))))
        spectrum = spectra.dense(self._rows, y)
        rests = flow.solve(flow.Problem(depth, limit.richness, mean, y), spectrum)
        best = next((rest for rest in rests.found if rest.stable), rests.dead)
        tau = best.strengths
        balanced = mean * tau[:, None] / decays[None, :]
        size = np.where(tau > 0, tau ** (depth + 1), 1.0) / (limit.richness**2 or 1.0)
        if len(tau) == 1:
            self._share = float(np.prod(balanced[0, 1:]))
            weights = sum(np.prod(np.delete(balanced, layer, axis=1), axis=1) for layer in range(1, depth + 1))
        else:
            self._share = 0.0
            weights = np.prod(balanced[:, :depth], axis=1)
        weights = np.where(tau > 0, weights / size, 0.0)
        self._middle = (best.directions * weights[None, :]) @ best.directions.T
        self._outputs = self._factor = self._weights(spectrum, best.outputs)

    def _weights(self, spectrum: spectra.Spectrum, outputs: np.ndarray) -> np.ndarray:
        """Weights on the features that give the outputs: XᵀU diag(1/k) Uᵀ s."""
        if len(spectrum.values) == 0:
            return np.zeros((self._rows.shape[1], outputs.shape[1]))
        inside = (spectrum.vectors.T @ outputs) / spectrum.values[:, None]
        weights: np.ndarray = self._rows.T @ (spectrum.vectors @ inside)
        return weights

    def blocks(self, X: np.ndarray) -> np.ndarray:
        new = inputs.features(self._network, X)
        low = (new @ self._factor) @ self._middle @ (self._rows @ self._factor).T
        return (self._share * new @ self._rows.T + low)[None]

    def own(self, X: np.ndarray) -> np.ndarray:
        new = inputs.features(self._network, X)
        moved = new @ self._factor
        own: np.ndarray = self._share * np.einsum("nd,nd->n", new, new)
        return own + np.einsum("ni,ij,nj->n", moved, self._middle, moved)

    def outputs(self, X: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
        return (inputs.features(self._network, X) @ self._outputs)[None]

    def bytes_per_point(self) -> int:
        return 8 * (4 * len(self._rows) + 2 * self._rows.shape[1])


class ParticleExtension(Extension):
    r"""Adaptive kernels: condition each drawn neuron's field at the new point on its fields at the training points.

    Given $h=A\varepsilon$ with $AA^\top=\Phi^{\ell-1}/\lambda_{\ell-1}$, the field at $x$ is Gaussian with mean $c(x)\cdot\varepsilon$, $c(x)=A^{+}\Phi^{\ell-1}(x)/\lambda_{\ell-1}$,
    and variance $\sigma^2(x)=\Phi^{\ell-1}(x,x)/\lambda_{\ell-1}-|c(x)|^2$, so

    $$\Phi^\ell(x,x_\mu)=\left\langle E_z[\varphi(c\cdot\varepsilon+\sigma z)]\,\varphi(h_\mu)\right\rangle .$$

    The draws' own kernel $\Phi_d$ scatters around the time average $\Phi^\ell$. With $w(x)=(\Phi_d+\rho)^{-1}\Phi_d(x)$, adding $w^\top(\Phi^\ell-\Phi_d)$ to the cross
    kernel and $w^\top(\Phi^\ell-\Phi_d)w$ to the variance takes that scatter out: at a training point they become those of $\Phi^\ell$.
    """

    def __init__(
        self,
        limit: ANBK,
        X: np.ndarray,
        kernels: tuple[np.ndarray, ...],
        draws: tuple[np.ndarray, ...],
        groups: int,
        precision: str,
    ) -> None:
        self._limit, self._groups, self._precision = limit, groups, precision
        self._points = inputs.distinct(X)
        self._inputs = X[self._points.first]
        activation, decays = limit.network.activation, limit.decays
        picked = [self._points.pick(kernel) for kernel in kernels]
        below, _ = inputs.root(limit.network, self._inputs, decays[0])
        self._roots = [below]
        for layer in range(1, limit.network.depth):
            self._roots.append(linalg.cholesky_root(jnp.asarray(picked[layer - 1] / decays[layer])))
        self._draws = [jnp.asarray(d).reshape(groups, -1, d.shape[1]) for d in draws]
        self._features = [fields_of(activation, d, root) for d, root in zip(self._draws, self._roots, strict=True)]
        self._averages = [jnp.asarray(kernel) for kernel in picked]
        ridges = [floors.CONTROL_RIDGE * float(np.mean(np.diag(kernel))) for kernel in picked[:-1]]
        self._ridges = [*ridges, decays[-1] / limit.beta]

    def blocks(self, X: np.ndarray) -> np.ndarray:
        return np.asarray(self._extend(X)[0])[:, :, self._points.member]

    def own(self, X: np.ndarray) -> np.ndarray:
        return np.asarray(jnp.mean(self._extend(X)[1], axis=0))

    def bytes_per_point(self) -> int:
        item = np.dtype(self._precision).itemsize
        draws = self._draws[0].shape[1]  # of one group: groups are taken one after the other
        tables = 0 if isinstance(self._limit.network.activation, ClosedForm) else 10 * draws + 80 * TABLE
        rows = 6 * self._groups * len(self._inputs) + 2 * int(np.prod(self._inputs.shape[1:]))
        return item * (8 * draws + tables + rows)

    def _extend(self, X: np.ndarray) -> tuple[Array, Array]:
        network, decays = self._limit.network, self._limit.decays
        rows = inputs.features(network, X)
        cross = jnp.asarray(inputs.input_kernel(network, X, self._inputs))[None] / decays[0]
        own = jnp.asarray(np.einsum("nd,nd->n", rows, rows))[None] / decays[0]
        for layer in range(network.depth):
            root, scale = self._roots[layer], 1 / decays[layer + 1] if layer + 1 < network.depth else 1.0
            cross, own = _condition(
                network.activation,
                layer == 0,
                root,
                self._draws[layer],
                self._features[layer],
                self._averages[layer],
                jnp.asarray(self._ridges[layer]),
                cross,
                own,
            )
            cross, own = cross * scale, own * scale
        return cross, own


@functools.partial(jax.jit, static_argnums=0)
def fields_of(activation: Activation, draws: Array, root: Array) -> Array:
    return activation(jnp.matmul(draws, root.T, precision="highest"))


def gram(features: Array) -> Array:
    return jnp.matmul(features.T, features, precision="highest") / features.shape[0]


def conditional(activation: Activation, centre: Array, spread: Array) -> tuple[Array, Array]:
    r"""$E_z[\varphi(m+\sigma z)]$ and $E_z[\varphi^2]$ for fields (points, draws) with one spread a point.

    Without a closed form both are functions of $m$ alone at each point, so quadrature serves a table of them and cubic interpolation the draws.
    """
    if isinstance(activation, ClosedForm):
        wide = jnp.broadcast_to(spread[:, None], centre.shape)
        return activation.mean(centre, wide), activation.mean_square(centre, wide)
    low, high = jnp.min(centre, axis=1, keepdims=True), jnp.max(centre, axis=1, keepdims=True)
    gap = (high - low) / (TABLE - 3) + jnp.finfo(centre.dtype).tiny
    nodes = low + gap * (jnp.arange(TABLE, dtype=centre.dtype) - 1.0)[None, :]  # one node beyond either end
    wide = jnp.broadcast_to(spread[:, None], nodes.shape)
    place = (centre - low) / gap + 1.0
    index = jnp.clip(jnp.floor(place).astype(jnp.int32), 1, TABLE - 3)
    t = place - index
    weights = (  # Lagrange's, at -1, 0, 1, 2
        -t * (t - 1) * (t - 2) / 6,
        (t + 1) * (t - 1) * (t - 2) / 2,
        -(t + 1) * t * (t - 2) / 2,
        (t + 1) * t * (t - 1) / 6,
    )
    tables = jnp.stack([activation.mean(nodes, wide), activation.mean_square(nodes, wide)], axis=-1)
    look = jax.vmap(lambda table, rows: table[rows])
    both = sum(w[..., None] * look(tables, index + k - 1) for k, w in enumerate(weights))
    return both[..., 0], both[..., 1]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _condition(
    activation: Activation,
    first: bool,
    root: Array,
    draws: Array,
    features: Array,
    average: Array,
    ridge: Array,
    cross: Array,
    own: Array,
) -> tuple[Array, Array]:
    """One layer: covariances of the fields with new points in, kernels of the features out, for each group.

    One control serves all groups, from all draws: made of few, it would be biased.
    """

    def group(draw: Array, feature: Array, covariance: Array, variance: Array) -> tuple[Array, Array, Array]:
        if first:  # orthogonal columns, possibly fewer than points: the pseudo-inverse is a scaled transpose
            lengths = jnp.sum(root * root, axis=0)[None, :]  # zero for inputs that are all zero
            weights = covariance @ (root / jnp.where(lengths > 0, lengths, 1.0))
        else:
            weights = jax.scipy.linalg.solve_triangular(root, covariance.T, lower=True).T
        spread = jnp.sqrt(jnp.maximum(variance - jnp.sum(weights**2, axis=1), 0.0))
        centre = jnp.matmul(weights, draw.T, precision="highest")
        mean, square = conditional(activation, centre, spread)
        kernel = jnp.matmul(mean, feature, precision="highest") / draw.shape[0]
        return kernel, jnp.mean(square, axis=1), gram(feature)

    count = draws.shape[0]
    covariance = jnp.broadcast_to(cross, (count, *cross.shape[1:]))
    variance = jnp.broadcast_to(own, (count, *own.shape[1:]))
    parts = (draws, features, covariance, variance)
    kernels, squares, drawn = jax.lax.map(lambda part: group(*part), parts)
    matrix = jnp.mean(drawn, axis=0) + ridge * jnp.eye(drawn.shape[1], dtype=drawn.dtype)
    control = jnp.linalg.solve(matrix, jnp.mean(kernels, axis=0).T).T
    shift = jnp.matmul(control[None], average[None] - drawn, precision="highest")
    return kernels + shift, squares + jnp.sum(shift * control[None], axis=2)
