"""The connected four-point function of Gaussian fields, contracted with a dual: closed form, quadrature, or quasi Monte Carlo."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy.special import gammaln, ndtri
from scipy.stats import qmc

from adakern import linalg, quadrature
from adakern.activations import Activation, Linear
from adakern.perturbing.response import RADIUS, Response

CLOSED, QUADRATURE, SAMPLED = "closed form", "quadrature", "quasi Monte Carlo"

SCRAMBLES = 16  # independent randomisations of the Sobol points, whose scatter is the error
_BITS = 30  # of a Sobol coordinate
ROWS = 1 << 13  # nodes at a time: one shape to compile, and bounded memory
_WORK = 2e8  # evaluations of φ that a quadrature may take
_RESOLVED = 1e-4  # relative difference of two orders at which the finer one counts
_SETTLED = 1e-8  # the same, at which no finer one is tried
_LINE = (64, 128, 256)  # orders in one dimension,
_POLAR = ((16, 48), (24, 72), (36, 108))  # in two, angular (per sector) and radial,
_GRIDS = {3: (24, 32, 48, 64), 4: (24, 32, 40, 48)}  # and per axis of a tensor grid
_BALL = 8.0  # radius outside which four dimensions have a share of 1e-12

Nodes = tuple[np.ndarray, np.ndarray]  # white coordinates, (nodes, rank), and weights


class Change(NamedTuple):
    """A mean over scrambles, their deviations from it (scrambles, p, p), and a bound on the quadrature's error."""

    value: np.ndarray
    scatter: np.ndarray
    bound: np.ndarray

    @classmethod
    def none(cls, size: int) -> Change:
        zero = np.zeros((size, size))
        return cls(zero, np.zeros((1, size, size)), zero)

    @property
    def error(self) -> np.ndarray:
        count = len(self.scatter)
        return np.sqrt(np.sum(self.scatter**2, axis=0) / max(1, count * (count - 1))) + self.bound

    def scaled(self, factor: float) -> Change:
        return Change(factor * self.value, factor * self.scatter, abs(factor) * self.bound)

    def plus(self, other: Change) -> Change:
        return Change(self.value + other.value, self.scatter + other.scatter, self.bound + other.bound)

    def through(self, response: Response, decay: float) -> Change:
        bound = Response(*(np.abs(part) for part in response)).push(self.bound)
        return Change(response.push(self.value), response.push(self.scatter), bound).scaled(1 / decay)


def four_point(
    activation: Activation, field: np.ndarray, kernel: np.ndarray, dual: np.ndarray, samples: int, seed: tuple[int, int]
) -> tuple[Change, str]:
    r"""$\langle\varphi\varphi^\top V\rangle-\langle\varphi\varphi^\top\rangle\langle V\rangle$, $V=\varphi^\top\hat\Phi\varphi$, over $h\sim N(0,C)$, and how it was found."""
    none = Change.none(len(kernel))
    if isinstance(activation, Linear):  # Wick's theorem
        return none._replace(value=2 * kernel @ dual @ kernel), CLOSED
    root = np.asarray(linalg.root(jnp.asarray(field))[0])[:, ::-1]  # the largest directions first
    law = _Law(activation, root, dual, kernel)
    value, difference = _finest(attempts(law))
    if np.max(difference) <= _RESOLVED * max(np.max(np.abs(value)), np.finfo(float).tiny):
        return none._replace(value=value, bound=difference), QUADRATURE
    scrambles = _sampled(law, samples, seed)
    mean = scrambles.mean(axis=0)
    return Change(mean, scrambles - mean, none.bound), SAMPLED


@dataclass(frozen=True)
class _Law:
    """Gaussian fields and what is averaged over them."""

    activation: Activation
    root: np.ndarray
    dual: np.ndarray
    kernel: np.ndarray

    @property
    def level(self) -> float:
        """The mean of V."""
        return float(np.sum(self.dual * self.kernel))

    def connected(self, nodes: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Nodes in batches of one shape, the last filled up by nodes of weight zero."""
        batch = min(ROWS, 1 << (len(weights) - 1).bit_length())
        constants = [jnp.asarray(part) for part in (self.root, self.dual, self.kernel)]
        total = np.zeros_like(self.kernel)
        for start in range(0, len(weights), batch):
            part, weight = nodes[start : start + batch], weights[start : start + batch]
            missing = batch - len(weight)
            part, weight = np.pad(part, ((0, missing), (0, 0))), np.pad(weight, (0, missing))
            total += np.asarray(_batch(self.activation, *constants, self.level, part, weight))
        return (total + total.T) / 2


@functools.partial(jax.jit, static_argnums=0)
def _batch(
    activation: Activation, root: Array, dual: Array, kernel: Array, level: Array, nodes: Array, weights: Array
) -> Array:
    r"""$\sum w\,(\varphi\varphi^\top-\Phi_0)(V-\langle V\rangle)$: exact means, so that an error enters as a product of two deviations."""
    features = activation(jnp.matmul(nodes, root.T, precision="highest"))
    energy = jnp.sum(jnp.matmul(features, dual, precision="highest") * features, axis=1)
    weights = weights * (energy - level)
    return jnp.matmul((features * weights[:, None]).T, features, precision="highest") - kernel * jnp.sum(weights)


def _finest(attempts: Iterator[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The last of ever finer quadratures, and its difference from the one before; infinite where there are fewer than two."""
    value = next(attempts, np.zeros(()))
    difference = np.full(value.shape, np.inf)
    for finer in attempts:
        value, difference = finer, np.abs(finer - value)
        if np.max(difference) <= _SETTLED * np.max(np.abs(value)):
            break
    return value, difference


def attempts(law: _Law) -> Iterator[np.ndarray]:
    """Quadratures, coarse to fine, as far as work allows; none in many dimensions."""
    size, rank = law.root.shape
    smooth = law.activation.degree is None  # as far as is known: two orders will not agree otherwise
    if rank <= 2 or (rank in _GRIDS and smooth):
        for nodes, weights in _tables(law.root):
            if len(weights) * size > _WORK:
                return
            yield law.connected(nodes, weights)


def _tables(root: np.ndarray) -> Iterator[Nodes]:
    rank = root.shape[1]
    if rank == 1:
        for order in _LINE:
            z, weight = quadrature.legendre(order, 0.0, RADIUS)
            weight = weight * np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
            yield np.concatenate([z, -z])[:, None], np.concatenate([weight, weight])
    elif rank == 2:
        yield from (sectors(root, *orders) for orders in _POLAR)
    else:
        yield from (_grid(order, rank) for order in _GRIDS[rank])


def sectors(root: np.ndarray, angular: int, radial: int) -> Nodes:
    """Polar nodes in the plane, cut along every line on which a field is zero: there an activation may have its kink."""
    kinks = np.unique(np.mod(np.arctan2(-root[:, 0], root[:, 1]), np.pi))
    edges = np.append(kinks, kinks[0] + np.pi)
    x, angle_weight = quadrature.legendre(angular, 0.0, 1.0)
    widths = np.diff(edges)
    t = (edges[:-1, None] + widths[:, None] * x).ravel()
    r, weight = quadrature.legendre(radial, 0.0, RADIUS)
    weight = weight * r * np.exp(-r * r / 2) / (2 * np.pi)
    half = (r[:, None, None] * np.stack([np.cos(t), np.sin(t)], axis=1)).reshape(-1, 2)
    weights = (weight[:, None] * (widths[:, None] * angle_weight).ravel()).ravel()
    return np.concatenate([half, -half]), np.concatenate([weights, weights])


def _grid(order: int, rank: int) -> Nodes:
    r"""The trapezoidal rule in every direction, inside a ball.

    With $\varphi$ analytic in a strip of half-width $d$ around the real axis, as a sigmoid is, its error falls as $e^{-2\pi d/\text{step}}$; Gauss–Hermite's only as $e^{-c\sqrt n}$.
    """
    z = (np.arange(order) + 0.5) * (2 * _BALL / order) - _BALL
    squares = functools.reduce(np.add.outer, [z * z] * rank).ravel()
    keep = squares <= _BALL**2
    weights = np.exp(-squares[keep] / 2)
    axes = np.meshgrid(*[z] * rank, indexing="ij")
    return np.stack([axis.ravel()[keep] for axis in axes], axis=1), weights / weights.sum()


# ---------------------------------------------------------------------------------------------------------------------
# Quasi Monte Carlo


def _sampled(law: _Law, samples: int, seed: tuple[int, int]) -> np.ndarray:
    r"""One estimate per scramble of the Sobol points, (scrambles, p, p).

    Where $\varphi$ has degree $k>0$ only directions are drawn: $|z|$ is fixed so that $\langle\varphi\varphi^\top\rangle$ stays right, and with
    $q=E|z|^{4k}/(E|z|^{2k})^2$ the connected function is $q$ times the mean over directions plus $(q-1)\Phi_0\langle V\rangle$.
    """
    law = replace(law, root=law.root @ _axes(law))
    rank, degree = law.root.shape[1], law.activation.degree
    radius, excess = _radii(rank, degree) if degree else (None, 1.0)
    count = 1 << ((samples // SCRAMBLES).bit_length() - 1)
    batch = min(count, ROWS)
    weights = np.full(batch, 1 / count)
    estimates = []
    for child in np.random.SeedSequence(seed).spawn(SCRAMBLES):
        engine = qmc.Sobol(rank, scramble=True, bits=_BITS, seed=np.random.default_rng(child))
        total = np.zeros_like(law.kernel)
        for _ in range(count // batch):
            nodes = ndtri(engine.random(batch) + 0.5 ** (_BITS + 1))  # the middles of cells: never 0 or 1
            if radius is not None:
                nodes *= radius / np.linalg.norm(nodes, axis=1, keepdims=True)
            total += law.connected(nodes, weights)
        estimates.append(total)
    return excess * np.stack(estimates) + (excess - 1) * law.level * law.kernel


def _axes(law: _Law) -> np.ndarray:
    """White axes in order of weight, since Sobol points are most even along the first: the one that V depends on most, then the largest fields."""
    values, vectors = np.linalg.eigh(law.root.T @ law.dual @ law.root)
    main = vectors[:, [np.argmax(np.abs(values))]]
    others = np.linalg.svd(law.root - law.root @ main @ main.T)[2][:-1].T  # the last one is `main`
    return np.concatenate([main, others], axis=1)


def _radii(rank: int, degree: int) -> tuple[float, float]:
    r"""The radius at which $|z|^{2k}$ has its mean over $z\sim N(0,I)$, and $E|z|^{4k}/(E|z|^{2k})^2$."""
    once, twice = (gammaln(rank / 2 + n * degree) - gammaln(rank / 2) for n in (1, 2))
    return float(np.sqrt(2.0) * np.exp(once / (2 * degree))), float(np.exp(twice - 2 * once))
