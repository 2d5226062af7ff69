r"""The adaptive Neural Tangent Kernel: where gradient flow with weight decay ends in an infinitely wide network.

At the fixed point the predictor is a kernel machine, $s=\Phi^L\Delta/\lambda_L$, and for activations that are homogeneous of degree one also $s=K\Delta/\kappa$ with
$K=\sum_{\ell=0}^LG^{\ell+1}\circ\Phi^\ell$ and $\kappa=\sum_\ell\lambda_\ell$.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from adakern import checks, inputs, losses
from adakern.limits import flow_audit
from adakern.limits.base import Answer, Limit, check_network, frozen_decay, relative
from adakern.networks import Network

_CLEAR = 1e3  # units of rounding that a product of the recursion may lose


@dataclass(frozen=True)
class ANTK(Limit):
    r"""The adaptive Neural Tangent Kernel.

    $$f(x)=K(x)^\top\left[K+\kappa I\right]^{-1}y,\qquad K=\sum_{\ell=0}^LG^{\ell+1}\circ\Phi^\ell,\quad\kappa=\sum_{\ell=0}^L\lambda_\ell$$

    for activations that are homogeneous of degree one (ReLU, linear), the squared loss and one output. Other losses keep $s(x)=K(x)^\top\Delta/\kappa$ with $\Delta=-\partial\ell/\partial s$. Other activations
    keep $s(x)=\Phi^L(x)^\top\Delta/\lambda_L$, which is then what `Solution.kernel` is for; so do several outputs, where the tangent kernel has output indices.

    Args:
        network: the architecture.
        richness: $\gamma_0\ge0$.
        decay: weight decay $\lambda\ge0$, one number or one per weight layer ($L+1$). `solve` wants all of them positive: without decay the end of training remembers its start, and
            no kernel predicts it; `dynamics` follows it.
        loss: "squared", "logistic" (targets ±1) or "softmax" (one-hot rows).
    """

    kind: ClassVar[str] = "ANTK"
    network: Network
    richness: float = 1.0
    decay: Any = 1.0
    loss: str = "squared"

    def __post_init__(self) -> None:
        check_network(self.network)
        object.__setattr__(self, "richness", checks.nonnegative("richness", self.richness))
        object.__setattr__(self, "decay", frozen_decay(self.decay, self.network, zero=True))
        losses.get(self.loss)

    @property
    def decays(self) -> tuple[float, ...]:
        return checks.decays("decay", self.decay, self.network.depth + 1, zero=True)

    @property
    def tangent(self) -> bool:
        return True

    def config(self) -> dict[str, Any]:
        return {"richness": self.richness, "decay": self.decay, "loss": self.loss}

    def kernel_is_tangent(self, outputs: int) -> bool:
        r"""Whether the predictor's kernel is $K$ rather than $\Phi^L$: one output, homogeneous activation."""
        return outputs == 1 and self.network.activation.degree == 1

    def residual(self, X: np.ndarray, y: np.ndarray, answer: Answer) -> float:
        """The largest relative violation of stationarity."""
        return self.audit(X, y, answer)[0]

    def audit(self, X: np.ndarray, y: np.ndarray, answer: Answer) -> tuple[float, dict[str, Any]]:
        """The residual and what it is made of; with one hidden layer and a homogeneous activation also the duality gap."""
        if not answer.draws:
            return self._linear_residual(X, y, answer), {}
        return flow_audit.audit(self, X, y, answer)

    def _linear_residual(self, X: np.ndarray, y: np.ndarray, answer: Answer) -> float:
        r"""The largest relative violation of stationarity, for linear networks, with $G^\ell$ as C×C matrices and $G^{L+1}=I$:

        $$f=\tfrac1{\lambda_L}\Phi^L\Delta,\quad\Delta=y-f,\quad\Phi^{\ell+1}=\tfrac{\gamma_0^2}{\lambda_\ell^2}\Phi^\ell\Delta\,G^{\ell+1}\Delta^\top\Phi^\ell,\quad G^\ell=\tfrac{\gamma_0^2}{\lambda_\ell^2}G^{\ell+1}\Delta^\top\Phi^\ell\Delta\,G^{\ell+1},$$

        and $f=k\alpha$ with the predictor's kernel.
        """
        delta, decays, scale = answer.errors, self.decays, float(np.linalg.norm(y)) or 1.0
        parts = [
            float(np.linalg.norm(delta - (y - answer.fitted))) / scale,
            float(np.linalg.norm(answer.fitted - answer.kernels[-1] @ delta / decays[-1]))
            / (scale + float(np.linalg.norm(answer.kernels[-1]) * np.linalg.norm(delta)) / decays[-1]),
            float(np.linalg.norm(answer.fitted - answer.kernel @ answer.coefficients))
            / (scale + float(np.linalg.norm(answer.kernel) * np.linalg.norm(answer.coefficients))),
        ]
        below = (inputs.input_kernel(self.network, X), *answer.kernels)
        gradient = np.eye(y.shape[1])
        epsilon = float(np.finfo(answer.kernel.dtype).eps)
        for layer in range(self.network.depth, 0, -1):
            moved = below[layer - 1] @ delta
            made = (self.richness / decays[layer]) ** 2 * gradient @ (delta.T @ below[layer] @ delta) @ gradient
            # Labels that inputs do not determine stay in Δ and drop out of Φ Δ, up to rounding.
            blur = epsilon * float(np.linalg.norm(delta))
            clear = all(
                blur * float(np.linalg.norm(part)) <= _CLEAR * epsilon * float(np.linalg.norm(part @ delta))
                for part in (below[layer], below[layer - 1])
            )
            if not clear:
                return max(*parts, *self._summed(below, answer))
            if answer.gradient_kernels is not None:
                expected = np.full(below[0].shape, made[0, 0])
                parts.append(relative(answer.gradient_kernels[layer - 1] - made[0, 0], expected))
            gradient = made
            kernel = (self.richness / decays[layer - 1]) ** 2 * moved @ gradient @ moved.T
            parts.append(relative(below[layer] - kernel, below[layer]))
        return max(parts)

    def _summed(self, below: tuple[np.ndarray, ...], answer: Answer) -> list[float]:
        r"""What the recursion sums up to, $\Phi^\ell=fB_\ell f^\top$ with $B_\ell$ a function of $\mathcal T=\gamma_0^2\Delta^\top f/\Lambda$, where nothing cancels."""
        depth, decays = self.network.depth, np.asarray(self.decays)
        mean = float(np.exp(np.mean(np.log(decays))))
        product = self.richness**2 * answer.errors.T @ answer.fitted / mean
        measured, turn = np.linalg.eigh((product + product.T) / 2)
        tau = np.asarray(answer.stats.get("strengths", measured), np.float64)
        size = self.richness**2 * float(np.linalg.norm(answer.errors) * np.linalg.norm(answer.fitted)) / mean
        parts = [float(np.linalg.norm(tau - measured)) / (size + float(np.linalg.norm(tau)) or 1.0)]
        alive = tau > 0
        outputs = np.asarray(answer.fitted, np.float64) @ turn[:, alive]
        balanced = mean * tau[alive][:, None] / decays[None, :]
        for layer in range(1, depth + 1):
            weights = self.richness**2 * np.prod(balanced[:, :layer], axis=1) / tau[alive] ** (depth + 1)
            parts.append(relative(below[layer] - (outputs * weights[None, :]) @ outputs.T, below[layer]))
            if answer.gradient_kernels is not None and alive.all():
                made = float(np.prod(balanced[0, layer:]))
                parts.append(relative(answer.gradient_kernels[layer - 1] - made, np.full(below[0].shape, made)))
        return parts
