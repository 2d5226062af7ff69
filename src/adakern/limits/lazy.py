r"""The lazy limits: NNGP, NNGPK and NTK. Kernels are those of random networks; only the readout learns.

$$\Phi^\ell=E_{h\sim N(0,\Phi^{\ell-1}/\lambda_{\ell-1})}[\varphi\varphi^\top],\qquad
  K=\sum_{\ell=0}^LG^{\ell+1}\circ\Phi^\ell,\quad G^\ell=G^{\ell+1}\circ\tfrac1{\lambda_\ell}E[\varphi'\varphi'^\top].$$
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from adakern import checks, inputs, quadrature
from adakern.limits.base import Answer, Limit, check_network, frozen_decay, relative
from adakern.networks import Network

_polar = jax.jit(quadrature.polar, static_argnums=(0, 1))
_AUDIT_PAIRS = 24  # entries per layer that the audit recomputes by quadrature


class LazyLimit(Limit):
    """What the lazy limits share: Gaussian fields, a linear system for the readout, and their audit."""

    @property
    @abstractmethod
    def shrinkage(self) -> float:
        r"""The multiple of the identity that is added to the kernel in the readout's linear system."""

    def residual(self, X: np.ndarray, y: np.ndarray, answer: Answer) -> float:
        r"""The largest of $|f-K\alpha|/|y|$, $|y-f-\text{shrinkage}\,\alpha|/|y|$, and the recursion's relative error.

        Without shrinkage the second becomes $|K(y-f)|/|K||y|$: a singular kernel can only fit what lies in its range.
        The recursion is audited at a fixed choice of entries of every layer, each by polar quadrature from the layer
        below: code that the solver's closed forms do not share.
        """
        scale = float(np.linalg.norm(y)) or 1.0
        readout = y - answer.fitted - self.shrinkage * answer.coefficients
        if self.shrinkage == 0.0:
            readout = answer.kernel @ readout / (float(np.linalg.norm(answer.kernel)) or 1.0)
        return max(
            float(np.linalg.norm(readout)) / scale,
            float(np.linalg.norm(answer.fitted - answer.kernel @ answer.coefficients)) / scale,
            self._recursion_error(X, answer),
        )

    def _recursion_error(self, X: np.ndarray, answer: Answer) -> float:
        points = X.shape[0]
        rng = np.random.default_rng(0)
        i, j = rng.integers(points, size=_AUDIT_PAIRS), rng.integers(points, size=_AUDIT_PAIRS)
        chosen = np.concatenate([i, j])
        rows = inputs.features(self.network, X[chosen])
        a, b, c = (
            np.einsum("nd,nd->n", left, right)
            for left, right in (
                (rows[:_AUDIT_PAIRS], rows[:_AUDIT_PAIRS]),
                (rows[_AUDIT_PAIRS:], rows[_AUDIT_PAIRS:]),
                (rows[:_AUDIT_PAIRS], rows[_AUDIT_PAIRS:]),
            )
        )
        worst = 0.0
        for layer, kernel in enumerate(answer.kernels):
            size = 1 / self.decays[layer]
            fields = tuple(jnp.asarray(v * size) for v in (a, b, c))
            moment = np.asarray(_polar(self.network.activation, _level(a * size, b * size), *fields))
            worst = max(worst, relative(kernel[i, j] - moment, moment))
            a, b, c = kernel[i, i], kernel[j, j], kernel[i, j]
        return worst


def _level(*variances: np.ndarray) -> int:
    """A polar level that resolves a sigmoid at these variances: the steps get sharper with the standard deviation."""
    spread = float(np.sqrt(max(v.max() for v in variances)))
    return min(len(quadrature.LEVELS) - 1, 3 + int(np.ceil(np.log2(max(1.0, spread)))))


@dataclass(frozen=True)
class _Posterior(LazyLimit):
    """The numbers of a Bayesian limit in the lazy regime."""

    network: Network
    beta: float = 50.0
    decay: Any = 1.0

    def __post_init__(self) -> None:
        check_network(self.network)
        object.__setattr__(self, "beta", checks.positive("beta", self.beta))
        object.__setattr__(self, "decay", frozen_decay(self.decay, self.network))

    @property
    def shrinkage(self) -> float:
        return self.decays[-1] / self.beta

    def config(self) -> dict[str, Any]:
        return {"beta": self.beta, "decay": self.decay}


@dataclass(frozen=True)
class NNGPK(_Posterior):
    r"""The kernel predictor of the lazy Bayesian limit: the mean alone.

    $$f(x)=\Phi^L(x)^\top\left[\Phi^L+\tfrac{\lambda_L}{\beta}I\right]^{-1}y$$

    It is the $\gamma_0\to0$ limit of `ANBK`.

    Args:
        network: the architecture.
        beta: inverse temperature $\beta>0$.
        decay: prior precision $\lambda$ of the weights, one number or one per weight layer ($L+1$).
    """

    kind: ClassVar[str] = "NNGPK"


@dataclass(frozen=True)
class NNGP(_Posterior):
    r"""The Gaussian process of a Bayesian network with $\gamma=O(1)$: the mean of `NNGPK`, and a variance.

    $$\mathrm{Var}f(x)=\tfrac1{\lambda_L}\left(\Phi^L(x,x)-\Phi^L(x)^\top\left[\Phi^L+\tfrac{\lambda_L}{\beta}I\right]^{-1}\Phi^L(x)\right)$$

    Its expected test loss is bias² + variance.

    Args:
        network: the architecture.
        beta: inverse temperature, the precision of the observation noise.
        decay: prior precision of the weights, one number or one per weight layer ($L+1$).
    """

    kind: ClassVar[str] = "NNGP"


@dataclass(frozen=True)
class NTK(LazyLimit):
    r"""Kernel regression with the neural tangent kernel at initialisation.

    $$f(x)=K(x)^\top\left[K+\text{ridge}\,I\right]^{-1}y,\qquad K=\sum_{\ell=0}^LG^{\ell+1}\circ\Phi^\ell,\quad G^{L+1}=1$$

    With `ridge` 0 and a singular kernel (duplicated points) it is the limit ridge → 0⁺, which is where gradient flow ends.

    Args:
        network: the architecture.
        ridge: multiple of the identity added to the kernel, 0 or greater.
        decay: inverse variance of the initial weights, one number or one per weight layer; 1 is the usual unit variance.
    """

    kind: ClassVar[str] = "NTK"
    network: Network
    ridge: float = 0.0
    decay: Any = 1.0

    def __post_init__(self) -> None:
        check_network(self.network)
        object.__setattr__(self, "ridge", checks.nonnegative("ridge", self.ridge))
        object.__setattr__(self, "decay", frozen_decay(self.decay, self.network))

    @property
    def tangent(self) -> bool:
        return True

    @property
    def shrinkage(self) -> float:
        return self.ridge

    def config(self) -> dict[str, Any]:
        return {"ridge": self.ridge, "decay": self.decay}
