r"""The concave dual of the two-layer aNBK, on a fixed sample of the prior.

With one hidden layer everything hangs on $v\in R^{P\times C}$. The law of a neuron is the prior tilted by $e^U$, $U=\frac{\gamma_0^2}{2\lambda_1}|v^\top\varphi(h)|^2$, and $v$ maximises

$$D(v)=-\beta\gamma_0^2\sum_\mu\ell^*_\mu(-v_\mu/\beta)-\ln Z(v),\qquad Z(v)=E_h\,e^U,\qquad h\sim N(0,\Phi^0/\lambda_0).$$

The prior's kernel $\Phi_0=E[\varphi\varphi^\top]$ is known exactly, so that only what the tilt adds is sampled:

$$Z=1+\tfrac{\gamma_0^2}{2\lambda_1}\mathrm{tr}\,v^\top\Phi_0v+E[e^U-1-U],\qquad
  \Phi_v=\frac{\Phi_0+E[(e^U-1)\varphi\varphi^\top]}Z,\qquad \nabla\ln Z=\tfrac{\gamma_0^2}{\lambda_1}\Phi_vv .$$

Each is the derivative of the one before also on a sample, and that $Z$ is never below 1.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from adakern import checks, inputs, losses, memory, recursion
from adakern.activations import Activation
from adakern.limits.anbk import ANBK
from adakern.losses import Loss, Softmax, Squared
from adakern.networks import MLP
from adakern.precision import PRECISIONS, scope

GROUPS = 8  # independent parts of a sample

_product = functools.partial(jnp.matmul, precision="highest")


class Data(NamedTuple):
    """Targets (P, C), each point's place among the distinct ones, and the limit's numbers."""

    y: Array
    member: Array
    richness: Array
    beta: Array
    decay: Array


class Sample(NamedTuple):
    r"""Neurons of the prior.

    Attributes:
        features: $\varphi(h)$ at the distinct points, (samples, points).
        weights: what each counts; they add up to about 1.
        prior: $\Phi_0$, exact, or the sample's own.
        mass: 1, or the sum of the weights where $\Phi_0$ is the sample's own.
    """

    features: Array
    weights: Array
    prior: Array
    mass: Array


class Proposal(NamedTuple):
    r"""Half of the neurons from the prior, half from $N(0,I+\sum_it_iw_iw_i^\top)$: `directions` $w$, (rank, k), orthonormal, and `stretch` $t$, (k,)."""

    directions: np.ndarray
    stretch: np.ndarray

    def draw(self, rng: np.random.Generator, groups: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """White coordinates, (groups × count, rank), group by group, and prior over proposal for each."""
        rank = len(self.directions)
        epsilon = rng.standard_normal((groups, count, rank))
        if not np.any(self.stretch > 0):
            return epsilon.reshape(-1, rank), np.ones(groups * count)
        half = epsilon[:, count // 2 :]
        half += ((half @ self.directions) * (np.sqrt(1 + self.stretch) - 1)) @ self.directions.T
        epsilon = epsilon.reshape(-1, rank)
        along = (epsilon @ self.directions) ** 2
        ratio = 0.5 * along @ (self.stretch / (1 + self.stretch)) - 0.5 * np.sum(np.log1p(self.stretch))
        share = (count // 2) / count
        with np.errstate(over="ignore"):
            return epsilon, 1 / (share + (1 - share) * np.exp(ratio))  # both halves share one density: never above 2


def unstretched(rank: int) -> Proposal:
    """The prior itself."""
    return Proposal(np.zeros((rank, 0)), np.zeros(0))


class Tilted(NamedTuple):
    r"""A sample under $v$: $\ln Z$ and its `slope` $\Phi_vv/\lambda_1$ at the distinct points, and what products with the Hessian need."""

    log_z: Array
    slope: Array
    drive: Array  # vᵀφ
    remainder: Array  # of the weights, (e^U - 1)/Z
    tilt: Array  # of the weights, e^U/Z
    rest: Array  # 1/Z, what Φ_0 counts


def collapse(data: Data, sample: Sample, v: Array) -> Array:
    """v as it acts on the distinct points: rows of equal points add up."""
    return jax.ops.segment_sum(v, data.member, num_segments=sample.features.shape[1])


def tilted(data: Data, sample: Sample, v: Float[Array, "p c"]) -> Tilted:
    """The sample tilted by v (over all points)."""
    V = collapse(data, sample, v)
    scale = data.richness**2 / data.decay
    drive = _product(sample.features, V)
    U = 0.5 * scale * jnp.sum(drive * drive, axis=1)
    lazy = _product(sample.prior, V)
    mean = 0.5 * scale * jnp.sum(V * lazy)
    shift = jnp.max(U)
    small, large = jnp.exp(-shift), jnp.exp(U - shift)
    Z = small * (sample.mass + mean) + jnp.sum(sample.weights * (large - small * (1 + U)))
    remainder, tilt = sample.weights * (large - small) / Z, sample.weights * large / Z
    slope = (lazy * small / Z + _product(sample.features.T, remainder[:, None] * drive)) / data.decay
    return Tilted(shift + jnp.log(Z), slope, drive, remainder, tilt, small / Z)


def bend(data: Data, sample: Sample, at: Tilted, u: Float[Array, "p c"]) -> Float[Array, "p c"]:
    r"""$\gamma_0^{-2}\,\nabla^2\ln Z\,[u]=\frac1{\lambda_1}\Phi_vu+\frac{\gamma_0^2}{\lambda_1^2}\mathrm{Cov}[\varphi\,(v^\top\varphi)^\top]u$, by products with the features alone."""
    V = collapse(data, sample, u)
    along = _product(sample.features, V)
    scale = data.richness**2 / data.decay
    inner = at.remainder[:, None] * along
    inner += scale * (at.tilt * jnp.sum(at.drive * along, axis=1))[:, None] * at.drive
    result = (at.rest * _product(sample.prior, V) + _product(sample.features.T, inner)) / data.decay
    result -= data.richness**2 * at.slope * jnp.sum(at.slope * V)
    return result[data.member]


def moment(sample: Sample, at: Tilted) -> Float[Array, "m m"]:
    r"""$\Phi_v$ over the distinct points."""
    features = sample.features
    added = _product(features.T, at.remainder[:, None] * features)
    return at.rest * sample.prior + 0.5 * (added + added.T)


def effective(at: Tilted, weights: Array) -> Array:
    r"""The share of the sample that its weights $\omega e^U$ leave effective."""
    return jnp.sum(at.tilt) ** 2 / (weights.shape[0] * jnp.sum(at.tilt**2))


def outputs(loss: Loss, data: Data, v: Float[Array, "p c"]) -> Float[Array, "p c"]:
    r"""$s^*(v)=\nabla\ell^*(-v/\beta)$, where $v=\beta\Delta(s^*)$; not a number where no output gives $v$. Softmax: the one whose rows add up to 0."""
    share = v / data.beta
    if isinstance(loss, Squared):
        return data.y - share
    if isinstance(loss, Softmax):
        s = jnp.log(data.y - share)
        return s - jnp.mean(s, axis=1, keepdims=True)
    q = data.y * share
    return data.y * (jnp.log1p(-q) - jnp.log(q))


def conjugate_bend(loss: Loss, data: Data, v: Array, u: Array) -> Array:
    r"""$(\ell^*)''(-v/\beta)\,u$, for softmax within rows that add up to 0."""
    share = v / data.beta
    if isinstance(loss, Squared):
        return u
    if isinstance(loss, Softmax):
        scaled = u / (data.y - share)
        return scaled - jnp.mean(scaled, axis=1, keepdims=True)
    q = data.y * share
    return u / (q * (1 - q))


def value(loss: Loss, data: Data, sample: Sample, v: Array) -> Array:
    """D(v)."""
    conjugates = jnp.sum(loss.conjugate(data.y, -v / data.beta))
    return -data.beta * data.richness**2 * conjugates - tilted(data, sample, v).log_z


@functools.partial(jax.jit, static_argnums=0)
def _value(loss: Loss, data: Data, sample: Sample, v: Array) -> Array:
    return value(loss, data, sample, v)


@functools.partial(jax.jit, static_argnums=0)
def _gradient(loss: Loss, data: Data, sample: Sample, v: Array) -> Array:
    return data.richness**2 * (outputs(loss, data, v) - tilted(data, sample, v).slope[data.member])


@functools.partial(jax.jit, static_argnums=0)
def _hessian(loss: Loss, data: Data, sample: Sample, v: Array, u: Array) -> Array:
    if isinstance(loss, Softmax):
        u = u - jnp.mean(u, axis=1, keepdims=True)
    bent = conjugate_bend(loss, data, v, u) / data.beta + bend(data, sample, tilted(data, sample, v), u)
    return data.richness**2 * bent


@jax.jit
def _effective(data: Data, sample: Sample, v: Array) -> Array:
    return effective(tilted(data, sample, v), sample.weights)


@jax.jit
def _moment(data: Data, sample: Sample, v: Array) -> Array:
    return moment(sample, tilted(data, sample, v))


@functools.partial(jax.jit, static_argnums=0)
def fields(activation: Activation, root: Array, epsilon: Array) -> Array:
    r"""$\varphi(A\varepsilon)$, (samples, points)."""
    return activation(_product(epsilon, root.T))


@jax.jit
def weighted(features: Array, weights: Array) -> Array:
    """The kernel of a weighted sample."""
    total = _product(features.T, weights[:, None] * features)
    return 0.5 * (total + total.T)


def make_sample(features: Array, weights: Array, prior: Array | None) -> Sample:
    """With the prior's kernel where it is known, else with the sample's own, which leaves plain averages."""
    if prior is None:
        return Sample(features, weights, weighted(features, weights), jnp.sum(weights))
    return Sample(features, weights, prior, jnp.ones((), features.dtype))


def make_data(limit: ANBK, points: inputs.Distinct, y: np.ndarray) -> Data:
    numbers = (limit.richness, limit.beta, limit.decays[-1])
    return Data(jnp.asarray(y), jnp.asarray(points.member), *map(jnp.asarray, numbers))


def prior_kernel(limit: ANBK, X: np.ndarray, precision: str) -> np.ndarray | None:
    r"""$\Phi_0$ of one hidden layer, or None where quadrature cannot resolve the activation. Called inside `precision.scope`."""
    features = inputs.features(limit.network, X)
    try:
        variances = recursion.variances(limit.network.activation, 1, limit.decays, features, precision)
    except ValueError:
        return None
    if not variances.rules[0].resolved:
        return None
    below = jnp.asarray(variances.values[0])
    kernel = np.empty((len(X), len(X)))
    for rows in recursion.spans(len(X), recursion.TILE):
        for columns in recursion.spans(len(X), recursion.TILE):
            block = recursion.tile(
                variances.rules,
                False,
                jnp.asarray(limit.decays),
                (below[rows],),
                (below[columns],),
                jnp.asarray(features[rows]),
                jnp.asarray(features[columns]),
            )
            kernel[rows, columns] = np.asarray(block.kernels[0])
    kernel = 0.5 * (kernel + kernel.T)
    np.fill_diagonal(kernel, variances.values[1])
    return kernel


def check_limit(limit: Any) -> ANBK:
    """The dual is that of two-layer networks."""
    if not isinstance(limit, ANBK):
        raise TypeError(f"limit must be an ANBK, but it is {limit!r}")
    if not isinstance(limit.network, MLP) or limit.network.depth != 1:
        raise ValueError(f"limit must be of an MLP with one hidden layer, as the dual is, but it is of {limit.network}")
    return limit


class Dual:
    r"""The concave function $D(v)$ whose maximum is a two-layer aNBK, on a fixed sample of neurons.

    $$D(v)=-\beta\gamma_0^2\sum_\mu\ell^*_\mu(-v_\mu/\beta)-\ln E_h\exp\left(\tfrac{\gamma_0^2}{2\lambda_1}|v^\top\varphi(h)|^2\right),\qquad
      \nabla D=\gamma_0^2\left(s^*(v)-\Phi_vv/\lambda_1\right)$$

    is at most the free energy for every $v$, and equals it at $v=\beta\Delta$. For an activation that grows linearly the expectation is infinite where
    $\gamma_0^2|v^\top\varphi(A\omega)|^2\ge\lambda_1$ for a unit vector $\omega$ ($AA^\top=\Phi^0/\lambda_0$), which a finite sample does not show but by its effective share.

    Args:
        limit: an `ANBK` of one hidden layer.
        X: inputs, (points, features).
        y: targets, (points,) or (points, outputs).
        samples: neurons of the prior, rounded up to a multiple of eight.
        seed: of the sample.
        precision: "float64" or "float32".
    """

    def __init__(
        self, limit: ANBK, X: Any, y: Any, *, samples: int = 65536, seed: int = 0, precision: str = "float64"
    ) -> None:
        self.limit = check_limit(limit)
        points = checks.inputs("X", X, ndim=2)
        targets = checks.labels("y", checks.targets("y", y, len(points)), limit.loss)
        samples = -(-checks.integer("samples", samples, least=GROUPS) // GROUPS) * GROUPS
        rng = np.random.default_rng(checks.seed("seed", seed))
        self.precision = checks.choice("precision", precision, PRECISIONS)
        self._shape, self._loss = targets.shape, losses.get(limit.loss)
        self._points = inputs.distinct(points)
        chosen = points[self._points.first]
        memory.require(
            np.dtype(precision).itemsize * 4 * samples * len(chosen), f"{samples} samples of {len(chosen)} points"
        )
        with scope(precision):
            root, _ = inputs.root(limit.network, chosen, limit.decays[0])
            epsilon, weights = unstretched(root.shape[1]).draw(rng, GROUPS, samples // GROUPS)
            prior = prior_kernel(limit, chosen, precision)
            self._data = make_data(limit, self._points, targets.reshape(len(points), -1))
            self._sample = make_sample(
                fields(limit.network.activation, root, jnp.asarray(epsilon)),
                jnp.asarray(weights / samples),
                None if prior is None else jnp.asarray(prior),
            )

    def value(self, v: Any) -> float:
        r"""$D(v)$; $-\infty$ where no output has $\beta\Delta=v$."""
        with scope(self.precision):
            return float(_value(self._loss, self._data, self._sample, self._columns("v", v)))

    def gradient(self, v: Any) -> np.ndarray:
        r"""$\nabla D(v)$, of the shape of $y$; for softmax along rows that add up to 0, where alone $D$ is finite."""
        with scope(self.precision):
            found = _gradient(self._loss, self._data, self._sample, self._columns("v", v))
            return np.asarray(found).reshape(self._shape)

    def hessian_product(self, v: Any, u: Any) -> np.ndarray:
        r"""$-\nabla^2D(v)\,u=\frac{\gamma_0^2}\beta(\ell^*)''u+\frac{\gamma_0^2}{\lambda_1}\Phi_vu+\mathrm{Cov}\left[\frac{\gamma_0^2}{\lambda_1}\varphi(v^\top\varphi)^\top\right]u$."""
        with scope(self.precision):
            columns = self._columns("v", v), self._columns("u", u)
            return np.asarray(_hessian(self._loss, self._data, self._sample, *columns)).reshape(self._shape)

    def kernel(self, v: Any) -> np.ndarray:
        r"""$\Phi_v=\langle\varphi\varphi^\top\rangle$ under the law tilted by $v$, (P, P)."""
        with scope(self.precision):
            return self._points.expand(np.asarray(_moment(self._data, self._sample, self._columns("v", v))))

    def ess(self, v: Any) -> float:
        r"""The share of the sample that is effective under the weights $e^U$, from 0 to 1."""
        with scope(self.precision):
            return float(_effective(self._data, self._sample, self._columns("v", v)))

    def _columns(self, name: str, v: Any) -> Array:
        array = checks.finite(name, checks.as_array(name, v))
        if array.shape != self._shape:
            raise ValueError(f"{name} must have the shape of y, {self._shape}, but it has {array.shape}")
        return jnp.asarray(array.reshape(len(array), -1))
