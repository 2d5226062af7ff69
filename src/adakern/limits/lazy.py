r"""The lazy limits: NNGP, NNGPK and NTK. Kernels are those of random networks; only the readout learns.

$$\Phi^\ell=E_{h\sim N(0,\Phi^{\ell-1}/\lambda_{\ell-1})}[\varphi\varphi^\top],\qquad
  K=\sum_{\ell=0}^LG^{\ell+1}\circ\Phi^\ell,\quad G^\ell=G^{\ell+1}\circ\tfrac1{\lambda_\ell}E[\varphi'\varphi'^\top].$$
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from adakern import checks, inputs, linalg, quadrature
from adakern.limits import lazy_cnn
from adakern.limits.base import Answer, Limit, check_network, frozen_decay, relative
from adakern.networks import CNN, Network

_polar = jax.jit(quadrature.polar, static_argnums=(0, 1))
_SAFE_LEVEL = 3  # of polar quadrature, for standard deviations up to one
_AUDIT_PAIRS = 24  # entries per layer that the audit recomputes by quadrature


class LazyLimit(Limit):
    """What the lazy limits share: Gaussian fields, a linear system for the readout, and their audit."""

    @property
    @abstractmethod
    def shrinkage(self) -> float:
        r"""The multiple of the identity that is added to the kernel in the readout's linear system."""

    def residual(self, X: np.ndarray, y: np.ndarray, answer: Answer) -> float:
        r"""The largest relative violation of the limit's equations:

        * readout: $f=k\alpha$ and $y-f=\text{shrinkage}\,\alpha$, as backward errors, i.e. relative to $|k||\alpha|+|y|$ (where the shrinkage is nothing beside
          rounding, $k(y-f)=0$: a singular kernel fits only what lies in its range);
        * errors: $\Delta=y-f$;
        * recursion: $\Phi^\ell$ from $\Phi^{\ell-1}$, and the predictor's kernel $k$ ($\Phi^L$ or $K$) from all of them, at a fixed choice of entries, each by
          polar quadrature: code that the solver's closed forms do not share. A CNN: $\Phi^L$ and $k$ from the images, at a few pairs of them. What the quadrature itself is uncertain by is not held against the answer.
        """
        scale = float(np.linalg.norm(y)) or 1.0
        size = float(np.linalg.norm(answer.kernel)) or 1.0
        backward = scale + size * float(np.linalg.norm(answer.coefficients))
        readout = y - answer.fitted - self.shrinkage * answer.coefficients
        if self.shrinkage <= linalg.eigenvalue_floor(size, len(y), answer.kernel.dtype):
            readout = answer.kernel @ readout / size
        return max(
            float(np.linalg.norm(readout)) / backward,
            float(np.linalg.norm(answer.fitted - answer.kernel @ answer.coefficients)) / backward,
            float(np.linalg.norm(answer.errors - (y - answer.fitted))) / scale,
            self._recursion_error(X, answer),
        )

    def _recursion_error(self, X: np.ndarray, answer: Answer) -> float:
        if isinstance(self.network, CNN):
            return lazy_cnn.recursion_error(self.network, self.decays, self.tangent, X, answer)
        rng = np.random.default_rng(0)
        i, j = rng.integers(len(X), size=(2, _AUDIT_PAIRS))
        left, right = inputs.features(self.network, X[i]), inputs.features(self.network, X[j])
        below = np.einsum("nd,nd->n", left, right)
        a, b = np.einsum("nd,nd->n", left, left), np.einsum("nd,nd->n", right, right)
        activation, worst = self.network.activation, 0.0
        tangent, tangent_doubt = below, np.zeros_like(below)
        for layer, kernel in enumerate(answer.kernels):
            fields = tuple(v / self.decays[layer] for v in (a, b, below))
            moment, doubt = _moment(activation, activation.degree is not None, fields)
            a, b, below = kernel[i, i], kernel[j, j], kernel[i, j]
            worst = max(worst, _beyond(below - moment, doubt, moment))
            if self.tangent:
                slope, doubt = _moment(activation.derivative, activation.degree is not None, fields)
                # Next to correlation one ReLU's slope kernel is known to half the digits only.
                doubt = doubt + np.sqrt(np.finfo(kernel.dtype).eps) * np.abs(slope)
                tangent_doubt = (doubt * np.abs(tangent) + slope * tangent_doubt) / self.decays[layer + 1]
                tangent = below + slope / self.decays[layer + 1] * tangent
        top = tangent if self.tangent else below
        return max(worst, _beyond(answer.kernel[i, j] - top, tangent_doubt if self.tangent else 0 * top, top))


def _moment(
    function: Callable[[Array], Array], homogeneous: bool, fields: tuple[np.ndarray, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """E[φφ] at the audited pairs, and what it is uncertain by: the difference of two levels of the quadrature."""
    spread = float(np.sqrt(max(v.max() for v in fields[:2])))
    level = _SAFE_LEVEL if homogeneous else _SAFE_LEVEL + int(np.ceil(np.log2(max(1.0, spread))))
    level = min(level, len(quadrature.LEVELS) - 1)
    arrays = tuple(map(jnp.asarray, fields))
    fine = np.asarray(_polar(function, level, *arrays))
    if level <= _SAFE_LEVEL:  # resolved to rounding error
        return fine, np.zeros_like(fine)
    if spread > quadrature.STEEPEST:  # a sigmoid's step falls between the nodes of every level
        return fine, np.full_like(fine, np.inf)
    return fine, np.abs(fine - np.asarray(_polar(function, level - 1, *arrays)))


def _beyond(difference: np.ndarray, doubt: np.ndarray, reference: np.ndarray) -> float:
    """The relative size of a difference, as far as it exceeds what is in doubt."""
    return relative(np.maximum(np.abs(difference) - 2 * doubt, 0.0), reference)


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
