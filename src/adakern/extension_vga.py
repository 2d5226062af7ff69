r"""How the variational Gaussian approximation extends to new points.

With $k(x)=\Phi^{\ell-1}(x,\cdot)/\lambda_{\ell-1}$, $\kappa(x)=\Phi^{\ell-1}(x,x)/\lambda_{\ell-1}$ and $c=A^+k(x)$, the field at $x$ is Gaussian given those at the training points, and so is the pair:

$$\mathrm{cov}(h(x),h)=k(x)+c^\top(C-I)A^\top,\qquad \mathrm{var}\,h(x)=\kappa(x)+c^\top(C-I)c,\qquad \Phi^\ell(x,\cdot)=M(\cdot).$$
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array

from adakern import inputs, linalg
from adakern.activations import ClosedForm, MomentRule
from adakern.extension import Extension
from adakern.limits.vga import VGA, choose, covariance_kernel
from adakern.precision import scope

_SERIES_VALUES = 2000  # numbers that a Hermite series holds for one point: function values at its nodes, coefficients


class GaussianLawExtension(Extension):
    """Closed form, from the training inputs and the laws alone; computes in float64 and casts the result.

    Args:
        limit: the problem.
        X: training inputs.
        draws: per layer, rows with $C=$ drawsᵀ draws.
        precision: of what comes out.

    Attributes:
        covariances: $\\Sigma_1..\\Sigma_L$ over the training points, (P, P) each.
    """

    covariances: tuple[np.ndarray, ...]

    def __init__(self, limit: VGA, X: np.ndarray, draws: tuple[np.ndarray, ...], precision: str) -> None:
        self._limit, self._precision = limit, precision
        self._points = inputs.distinct(X)
        self._inputs = X[self._points.first]
        self._layers: list[tuple[Array, Array, Array]] = []  # a root, C - I, and the fields' variances
        covariances, activation, decays = [], limit.network.activation, limit.decays
        with scope("float64"):
            first_root, _ = inputs.root(limit.network, self._inputs, decays[0])
            kernel = jnp.zeros(())
            for layer, rows in enumerate(draws):
                first = layer == 0
                root = first_root if first else linalg.cholesky_root(kernel / decays[layer])
                white = jnp.asarray(rows, jnp.float64)
                fields = jnp.matmul(white, root.T, precision="highest")
                sigma = jnp.matmul(fields.T, fields, precision="highest")
                excess = jnp.matmul(white.T, white, precision="highest") - jnp.eye(root.shape[1])
                self._layers.append((root, excess, jnp.diagonal(sigma)))
                covariances.append(self._points.expand(np.asarray(sigma)))
                kernel = covariance_kernel(choose(activation, np.asarray(jnp.diagonal(sigma))), sigma)
        self.covariances = tuple(covariances)

    def blocks(self, X: np.ndarray) -> np.ndarray:
        return self._extend(X)[0][None][:, :, self._points.member].astype(self._precision)

    def own(self, X: np.ndarray) -> np.ndarray:
        return self._extend(X)[1].astype(self._precision)

    def bytes_per_point(self) -> int:
        quadrature = 0 if isinstance(self._limit.network.activation, ClosedForm) else 4 * _SERIES_VALUES
        rows = 12 * len(self._inputs) + 2 * int(np.prod(self._inputs.shape[1:]))
        return 8 * (rows + quadrature)

    def _extend(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        network, decays = self._limit.network, self._limit.decays
        with scope("float64"):
            rows = inputs.features(network, X)
            cross = jnp.asarray(inputs.input_kernel(network, X, self._inputs))
            own = jnp.asarray(np.einsum("nd,nd->n", rows, rows))
            for layer, (root, excess, variance) in enumerate(self._layers):
                cross, own = _condition(layer == 0, root, excess, cross / decays[layer], own / decays[layer])
                both = np.concatenate([np.asarray(own), np.asarray(variance)])
                cross, own = _features(choose(network.activation, both), own, variance, cross)
            return np.asarray(cross), np.asarray(own)


@functools.partial(jax.jit, static_argnums=0)
def _condition(first: bool, root: Array, excess: Array, cross: Array, own: Array) -> tuple[Array, Array]:
    """Covariances and variances of the fields under the prior in, under the law out. As differences: what the root's jitter would cost cancels."""
    if first:  # orthogonal columns: the pseudo-inverse is a scaled transpose
        lengths = jnp.sum(root * root, axis=0)[None, :]
        weights = jnp.matmul(cross, root / jnp.where(lengths > 0, lengths, 1.0), precision="highest")
    else:
        weights = solve_triangular(root, cross.T, lower=True).T
    moved = jnp.matmul(weights, excess, precision="highest")
    variance = jnp.maximum(own + jnp.sum(moved * weights, axis=1), 0.0)
    return cross + jnp.matmul(moved, root.T, precision="highest"), variance


@functools.partial(jax.jit, static_argnums=0)
def _features(rule: MomentRule, rows: Array, columns: Array, block: Array) -> tuple[Array, Array]:
    return rule.values(rows, columns, block), rule.own_values(rows)
