r"""How an adaptive kernel of a convolutional network extends to new images: the fields of all positions of an image together, given those of the training images."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from adakern import floors, inputs, linalg
from adakern.activations import Activation, ClosedForm
from adakern.extension import TABLE, Extension, conditional, fields_of, gram
from adakern.limits import sites
from adakern.limits.anbk import ANBK
from adakern.limits.sites import Pool, Sites


class ImageExtension(Extension):
    r"""The same for a CNN, whose fields at all positions of a new image are jointly Gaussian given those at the training images.

    At inner layers they are drawn, one for each drawn neuron: $h_x=c_x\varepsilon+\rho_xz$ with $\rho_x\rho_x^\top$ the conditional covariance over the image's positions. Kernels of
    the features, with the training images and of the image with itself, go through the windows to the next layer. The readout is linear in the features, so that at the last
    layer means $E_z[\varphi]$ do, position by position. The numbers $z$ depend on the neuron and the position alone: how images are batched changes nothing.
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
        network, decays = limit.network, limit.decays
        self._limit, self._groups, self._precision = limit, groups, precision
        self._points = inputs.distinct(X)
        self._sites = where = sites.of(network, X.shape)
        images, depth = X[self._points.first], network.depth
        picked = [where.over(self._points, layer, depth).pick(kernel) for layer, kernel in enumerate(kernels)]
        below, _ = inputs.root(network, images, decays[0])
        self._roots = [below]
        for layer in range(1, depth):
            covariance = where.seen(layer - 1, jnp.asarray(picked[layer - 1] / decays[layer]))
            self._roots.append(linalg.cholesky_root(covariance))
        rows = jnp.asarray(inputs.features(network, images))
        lengths = jnp.sum(below * below, axis=0)[None, :]  # orthogonal columns; zero for inputs that are all zero
        span = jnp.matmul(rows.T, below, precision="highest")
        self._project = span / jnp.where(lengths > 0, lengths, 1.0) / decays[0]
        sizes = jnp.sqrt(jnp.sum(span * span, axis=0))[None, :]
        self._span = span / jnp.where(sizes > 0, sizes, 1.0)
        self._draws = [jnp.asarray(d).reshape(groups, -1, d.shape[1]) for d in draws]
        pools = [where.pool_of(layer, depth) for layer in range(depth)]
        self._features = [
            pool.rows(fields_of(network.activation, d, root))
            for pool, d, root in zip(pools, self._draws, self._roots, strict=True)
        ]
        self._averages = [jnp.asarray(kernel) for kernel in picked]
        ridges = [floors.CONTROL_RIDGE * float(np.mean(np.diag(kernel))) for kernel in picked[:-1]]
        self._ridges = [*ridges, decays[-1] / limit.beta]

    def blocks(self, X: np.ndarray) -> np.ndarray:
        depth, weights, rest = self._limit.network.depth, *self._climb(X)
        kernel = _last_block(
            self._limit.network.activation,
            self._sites.pool,
            self._draws[-1],
            self._features[-1],
            self._averages[depth - 1],
            jnp.asarray(self._ridges[-1]),
            weights,
            rest,
        )
        return np.asarray(kernel)[:, :, self._points.member]

    def own(self, X: np.ndarray) -> np.ndarray:
        weights, rest = self._climb(X)
        network = self._limit.network
        noise = _noise(self._draws[-1], network.depth - 1, rest.shape[-1])
        return np.asarray(_last_own(network.activation, self._sites.pool, self._draws[-1], noise, weights, rest))

    def bytes_per_point(self) -> int:
        item = np.dtype(self._precision).itemsize
        counts = self._sites.counts
        draws = self._draws[0].shape[1]  # of one group: groups are taken one after the other
        tables = 0 if isinstance(self._limit.network.activation, ClosedForm) else 10 * draws + 80 * TABLE
        blocks = sum(count * size.shape[0] for count, size in zip(counts, self._roots, strict=True))
        patches = 4 * counts[0] * self._project.shape[0]
        return item * (max(counts) * (8 * draws + tables) + 6 * self._groups * blocks + patches)

    def _climb(self, X: np.ndarray) -> tuple[Array, Array]:
        r"""$c_x$ and $\rho_x$ at the last layer, (groups or 1, batch, positions, rank) each."""
        network, decays, counts = self._limit.network, self._limit.decays, self._sites.counts
        rows = jnp.asarray(inputs.features(network, X))
        outside = rows - jnp.matmul(
            jnp.matmul(rows, self._span, precision="highest"), self._span.T, precision="highest"
        )
        weights = jnp.matmul(rows, self._project, precision="highest").reshape(1, len(X), counts[0], -1)
        rest = (outside / np.sqrt(decays[0])).reshape(1, len(X), counts[0], -1)
        for layer in range(network.depth - 1):
            weights, rest = _next(
                network.activation,
                self._sites,
                layer,
                self._draws[layer],
                self._features[layer],
                self._averages[layer],
                jnp.asarray(self._ridges[layer]),
                self._roots[layer + 1],
                jnp.asarray(decays[layer + 1]),
                weights,
                rest,
                _noise(self._draws[layer], layer, rest.shape[-1]),
            )
        return weights, rest


def _noise(draws: Array, layer: int, rank: int) -> Array:
    """White numbers for the neurons of a layer, (groups, draws, rank)."""
    return jax.random.normal(jax.random.fold_in(jax.random.key(0x1A6E), layer), (*draws.shape[:2], rank), draws.dtype)


def _grouped(draws: Array, *arrays: Array) -> list[Array]:
    """What all groups share, for every group."""
    return [jnp.broadcast_to(array, (draws.shape[0], *array.shape[1:])) for array in arrays]


def _drawn(activation: Activation, draw: Array, noise: Array, weights: Array, rest: Array) -> Array:
    """Features at new images, (batch, positions, draws)."""
    fields = jnp.matmul(weights, draw.T, precision="highest") + jnp.matmul(rest, noise.T, precision="highest")
    return activation(fields)


def _controlled(kernels: Array, drawn: Array, average: Array, ridge: Array) -> tuple[Array, Array]:
    """How far the scatter of the draws' own kernels carries over to new rows, (groups, n, p) each, and the weights (n, p) by which it does; see `ParticleExtension`."""
    matrix = jnp.mean(drawn, axis=0) + ridge * jnp.eye(drawn.shape[1], dtype=drawn.dtype)
    control = jnp.linalg.solve(matrix, jnp.mean(kernels, axis=0).T).T
    return jnp.matmul(control[None], average[None] - drawn, precision="highest"), control


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _next(
    activation: Activation,
    where: Sites,
    layer: int,
    draws: Array,
    features: Array,
    average: Array,
    ridge: Array,
    root: Array,
    decay: Array,
    weights: Array,
    rest: Array,
    noise: Array,
) -> tuple[Array, Array]:
    """From one layer's conditional laws at new images to the next one's."""
    _, batch, positions, _ = weights.shape

    def group(draw: Array, feature: Array, weights: Array, rest: Array, noise: Array) -> tuple[Array, Array, Array]:
        new = _drawn(activation, draw, noise, weights, rest)
        cross = jnp.matmul(new.reshape(-1, len(draw)), feature, precision="highest") / len(draw)
        own = jnp.einsum("qsn,qtn->qst", new, new, precision=jax.lax.Precision.HIGHEST) / len(draw)
        return cross, own, gram(feature)

    parts = (draws, features, *_grouped(draws, weights, rest), noise)
    cross, own, drawn = jax.lax.map(lambda part: group(*part), parts)
    shift, control = _controlled(cross, drawn, average, ridge)

    def climb(cross: Array, own: Array, shift: Array) -> tuple[Array, Array]:
        change = jnp.einsum(
            "qsm,qtm->qst",
            shift.reshape(batch, positions, -1),
            control.reshape(batch, positions, -1),
            precision=jax.lax.Precision.HIGHEST,
        )
        own = where.cross(layer, own + 0.5 * (change + jnp.swapaxes(change, 1, 2))) / decay
        seen = where.cross(layer, (cross + shift).reshape(batch, positions, -1)) / decay
        flat = seen.reshape(-1, seen.shape[-1])
        weights = jax.scipy.linalg.solve_triangular(root, flat.T, lower=True).T.reshape(seen.shape)
        inside = jnp.einsum("qsm,qtm->qst", weights, weights, precision=jax.lax.Precision.HIGHEST)
        return weights, linalg.each(_half, own - inside)

    return jax.lax.map(lambda part: climb(*part), (cross, own, shift))


def _half(matrix: Array) -> Array:
    """A root of what is positive in a symmetric matrix."""
    values, vectors = jnp.linalg.eigh(0.5 * (matrix + matrix.T))
    return vectors * jnp.sqrt(jnp.maximum(values, 0.0))[None, :]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _last_block(
    activation: Activation,
    pool: Pool,
    draws: Array,
    rows: Array,
    average: Array,
    ridge: Array,
    weights: Array,
    rest: Array,
) -> Array:
    r"""$\Phi^L(x,x_\mu)$ for each group: $\sum_a\langle E[\varphi_{xa}]\varphi_{\mu a}\rangle$, or of means over positions."""

    def group(draw: Array, rows: Array, weights: Array, rest: Array) -> tuple[Array, Array]:
        batch, positions, rank = weights.shape
        centre = jnp.matmul(weights.reshape(-1, rank), draw.T, precision="highest")
        spread = jnp.sqrt(jnp.sum(rest * rest, axis=-1)).reshape(-1)
        mean = conditional(activation, centre, spread)[0].reshape(batch, positions, -1)
        new = _pooled(pool, mean).reshape(batch, -1)
        kernel = jnp.matmul(new, rows, precision="highest") / len(draw)
        return kernel, jnp.matmul(rows.T, rows, precision="highest") / len(draw)

    parts = (draws, rows, *_grouped(draws, weights, rest))
    kernels, drawn = jax.lax.map(lambda part: group(*part), parts)
    return kernels + _controlled(kernels, drawn, average, ridge)[0]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _last_own(activation: Activation, pool: Pool, draws: Array, noise: Array, weights: Array, rest: Array) -> Array:
    r"""$\Phi^L(x,x)$."""

    def group(draw: Array, noise: Array, weights: Array, rest: Array) -> Array:
        new = _pooled(pool, _drawn(activation, draw, noise, weights, rest))
        return jnp.sum(new * new, axis=(1, 2)) / len(draw)

    parts = (draws, noise, *_grouped(draws, weights, rest))
    return jnp.mean(jax.lax.map(lambda part: group(*part), parts), axis=0)


def _pooled(pool: Pool, features: Array) -> Array:
    """Features at new images, (batch, positions, draws), as (batch, draws, rows of a draw) in the order of `Pool.rows`."""
    if pool.mean:
        return jnp.mean(features, axis=1)[:, :, None]
    return jnp.swapaxes(features, 1, 2)
