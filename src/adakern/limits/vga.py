r"""The variational Gaussian approximation of the aNBK: the best Gaussian per layer (Seroussi, Naveh and Ringel 2023).

The aNBK minimises $F=\sum_\ell\mathrm{KL}(q_\ell\,\|\,N(0,K_{\ell-1}))+E(\Phi^L)$ over the laws of every layer's fields, $K_{\ell-1}=\Phi^{\ell-1}/\lambda_{\ell-1}$. Here
$q_\ell=N(0,\Sigma_\ell)$, so that the feature kernel is the lazy limit's map of another covariance:

$$\Sigma_\ell=A\,C_\ell A^\top,\quad AA^\top=K_{\ell-1},\qquad \mathrm{KL}=\tfrac12\left[\mathrm{Tr}\,C_\ell-r-\ln\det C_\ell\right],\qquad
  \Phi^\ell=M(\Sigma_\ell)=E_{h\sim N(0,\Sigma_\ell)}[\varphi\varphi^\top].$$
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from adakern import checks, inputs, linalg, losses, quadrature
from adakern.activations import Activation, MomentRule
from adakern.activations.numeric import PolarRule, SeriesRule
from adakern.limits.base import Answer, Limit, check_network, frozen_decay, relative
from adakern.networks import Network
from adakern.precision import scope

_SMALLEST = 1e-60  # variance that stands for none: √a has no derivative at 0
_APART = 1e-12  # by which correlations are kept from ±1, where the closed forms have no derivative; beyond rounding, floors.CORRELATION
_AFFORDABLE = 2  # level of polar quadrature beyond which a series is tried instead


@dataclass(frozen=True)
class VGA(Limit):
    r"""The variational Gaussian approximation of `ANBK`: every layer's fields are Gaussian, with the covariance that makes the free energy stationary.

    $$\Sigma_\ell^{-1}=\lambda_{\ell-1}(\Phi^{\ell-1})^{-1}+G_\ell,\quad G_\ell=\frac{\partial}{\partial\Sigma_\ell}\mathrm{Tr}\,\hat\Phi^\ell M(\Sigma_\ell),\quad \Phi^\ell=M(\Sigma_\ell),\qquad
      \lambda_\ell\Sigma_{\ell+1}=\Phi^\ell-\Phi^\ell\hat\Phi^\ell\Phi^\ell,\quad \hat\Phi^L=-\tfrac{\gamma_0^2}{\lambda_L}vv^\top,$$

    with $v$ and the predictor of `ANBK`. Deterministic, and exact for a linear network; elsewhere a law that is not Gaussian is replaced by one that is. With one
    hidden layer its free energy is an upper bound of the aNBK's.

    Args:
        network: the architecture.
        richness: $\gamma_0\ge0$; 0 is lazy (`NNGPK`), larger learns more features.
        beta: inverse temperature $\beta>0$.
        decay: prior precision $\lambda$ of the weights, one number or one per weight layer ($L+1$).
        loss: "squared", "logistic" (targets ±1) or "softmax" (one-hot rows).
    """

    kind: ClassVar[str] = "VGA"
    network: Network
    richness: float = 1.0
    beta: float = 50.0
    decay: Any = 1.0
    loss: str = "squared"

    def __post_init__(self) -> None:
        check_network(self.network)
        object.__setattr__(self, "richness", checks.nonnegative("richness", self.richness))
        object.__setattr__(self, "beta", checks.positive("beta", self.beta))
        object.__setattr__(self, "decay", frozen_decay(self.decay, self.network))
        losses.get(self.loss)

    def config(self) -> dict[str, Any]:
        return {"richness": self.richness, "beta": self.beta, "decay": self.decay, "loss": self.loss}

    def residual(self, X: np.ndarray, y: np.ndarray, answer: Answer) -> float:
        r"""The largest relative violation of the approximation's equations, from `answer` alone, layer by layer:

        * law: $W^\top(I+A^\top G_\ell A)W=I$, $C_\ell=WW^\top$ from `draws`, $G_\ell$ from the duals;
        * kernels: $\Phi^\ell=M(\Sigma_\ell)$, by the plain moment rule;
        * duals: $\lambda_\ell\Sigma_{\ell+1}=\Phi^\ell-\Phi^\ell\hat\Phi^\ell\Phi^\ell$, and $\hat\Phi^L=-\frac{\gamma_0^2}{\lambda_L}vv^\top$;
        * readout: $\lambda_L\alpha=\beta\Delta(s)$ at $s=\Phi^L\alpha$, as a backward error; $f=\sigma(s)$; `errors` $=\Delta(s)$.
        """
        with scope("float64"), np.errstate(over="ignore", invalid="ignore"):
            parts = [*self._readout_error(y, answer), *self._law_error(X, answer)]
        return max(part if np.isfinite(part) else float("inf") for part in parts)

    def _readout_error(self, y: np.ndarray, answer: Answer) -> tuple[float, ...]:
        loss, top = losses.get(self.loss), self.decays[-1]
        kernel, alpha = (np.asarray(part, np.float64) for part in (answer.kernel, answer.coefficients))
        targets, s = jnp.asarray(y, float), jnp.asarray(kernel @ alpha)
        delta, f = np.asarray(loss.error(targets, s)), np.asarray(loss.link(s))
        scale = float(np.linalg.norm(y)) or 1.0
        backward = scale + float(np.linalg.norm(kernel)) * float(np.linalg.norm(alpha))
        assert answer.duals is not None
        dual, v = answer.duals[-1], top * alpha
        return (
            float(np.linalg.norm(delta - v / self.beta)) / backward,
            float(np.linalg.norm(answer.errors - delta)) / backward,
            float(np.linalg.norm(answer.fitted - f)) / backward,
            relative(dual + self.richness**2 / top * v @ v.T, dual),
            relative(answer.kernel - answer.kernels[-1], answer.kernel),
        )

    def _law_error(self, X: np.ndarray, answer: Answer) -> list[float]:
        points, activation, worst = inputs.distinct(X), self.network.activation, []
        assert answer.duals is not None
        root, _ = inputs.root(self.network, X[points.first], self.decays[0])
        below = None
        for layer, draws in enumerate(answer.draws):
            fields = jnp.asarray(draws, float) @ root.T
            sigma = fields.T @ fields
            if below is not None:  # Φ^{ℓ-1}, its dual, and the covariance above it
                prior = self.decays[layer] * np.asarray(root @ root.T)
                expected = prior @ points.collapse(np.asarray(answer.duals[layer - 1], np.float64)) @ prior
                above = self.decays[layer] * np.asarray(sigma)
                worst.append(relative(prior - above - expected, max(below, above, key=np.linalg.norm)))
            rule = choose(activation, np.asarray(jnp.diagonal(sigma)))
            below = np.asarray(covariance_kernel(rule, sigma))
            worst.append(relative(points.pick(answer.kernels[layer]) - below, below))
            dual = jnp.asarray(points.collapse(np.asarray(answer.duals[layer], np.float64)))
            tilt = fields @ _tilt(activation, rule, sigma, dual) @ fields.T
            size = jnp.eye(root.shape[1])
            white = jnp.asarray(draws, float)
            worst.append(relative(np.asarray(white @ white.T + tilt - size), np.asarray(size)))
            if layer + 1 < self.network.depth:
                root = linalg.cholesky_root(jnp.asarray(below / self.decays[layer + 1]))
        return worst


def choose(activation: Activation, variances: np.ndarray) -> MomentRule:
    """The moment rule for these variances: good to 1e-12, or, where only polar quadrature is and takes minutes, a Hermite series good to 2e-6."""
    rule = activation.rule(variances, "float64")
    if isinstance(rule, PolarRule) and rule.level > _AFFORDABLE:
        coarse = activation.rule(variances, "float32")
        return coarse if isinstance(coarse, SeriesRule) else rule
    return rule


@functools.partial(jax.jit, static_argnums=0)
def covariance_kernel(rule: MomentRule, sigma: Array) -> Array:
    """M(Σ) as the lazy limits compute it."""
    variance = jnp.diagonal(sigma)
    kernel = rule.values(variance, variance, sigma)
    return jnp.where(jnp.eye(len(variance), dtype=bool), jnp.diag(rule.own_values(variance)), (kernel + kernel.T) / 2)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _tilt(activation: Activation, rule: MomentRule, sigma: Array, dual: Array) -> Array:
    r"""$G=\partial\,\mathrm{Tr}\,\hat\Phi M(\Sigma)/\partial\Sigma$, symmetric."""
    gradient = jax.grad(lambda covariance: jnp.sum(dual * moments(activation, rule, covariance)))(sigma)
    return (gradient + gradient.T) / 2


def moments(activation: Activation, rule: MomentRule, sigma: Array) -> Array:
    r"""$M(\Sigma)=E_{h\sim N(0,\Sigma)}[\varphi\varphi^\top]$ with finite derivatives of every order, also for points that are collinear or zero.

    The rules' own forms are accurate there, but $\sqrt{1-\rho^2}$ in them has no derivative at $\rho=\pm1$, which the diagonal always is.
    """
    own = jnp.maximum(jnp.diagonal(sigma), _SMALLEST)
    diagonal = jnp.eye(len(own), dtype=bool)
    block = jnp.where(diagonal, 0.0, (1 - _APART) * (sigma + sigma.T) / 2)
    kernel = _pairs(rule, own, block)
    return jnp.where(diagonal, jnp.diag(_own(activation, rule, own)), (kernel + kernel.T) / 2)


def _pairs(rule: MomentRule, own: Array, block: Array) -> Array:
    if isinstance(rule, SeriesRule):
        alpha = quadrature.coefficients(rule.activation, rule.terms, own)
        scale = jnp.sqrt(own)
        return _series(alpha, alpha, jnp.clip(block / (scale[:, None] * scale[None, :]), -1.0, 1.0))
    if isinstance(
        rule, PolarRule
    ):  # a thousand nodes a pair, which the derivative would keep: one row at a time, computed again

        @jax.checkpoint
        def row(one: tuple[Array, Array]) -> Array:
            return rule.values(one[0][None], own, one[1][None, :])[0]

        return jax.lax.map(row, (own, block))
    return rule.values(own, own, block)


def _own(activation: Activation, rule: MomentRule, variance: Array) -> Array:
    if activation.degree is not None:
        return rule.own_values(jnp.ones((1,), variance.dtype)) * variance**activation.degree
    if isinstance(rule, PolarRule):
        return quadrature.line_mean(lambda h: activation(h) ** 2, variance, order=400)
    return rule.own_values(variance)


@jax.custom_jvp
def _series(left: Array, right: Array, rho: Array) -> Array:
    r"""$\sum_k\rho^k\alpha_k\alpha'_k$, whose derivative is a series of the same kind: Horner's own would hold every partial sum."""
    return quadrature.series(left, right, rho)


@_series.defjvp
def _series_jvp(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
    left, right, rho = primals
    dleft, dright, drho = tangents
    k = jnp.arange(1, left.shape[1], dtype=left.dtype)
    slope = _series(left[:, 1:] * k[None, :], right[:, 1:], rho)
    return _series(left, right, rho), slope * drho + _series(dleft, right, rho) + _series(left, dright, rho)
