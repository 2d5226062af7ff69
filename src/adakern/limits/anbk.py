r"""The adaptive Neural Bayesian Kernel: the posterior of an infinitely wide network that learns features.

The action made stationary, with $Z_\ell=E_{h\sim N(0,\Phi^{\ell-1}/\lambda_{\ell-1})}\exp(-\frac12\varphi(h)^\top\hat\Phi^\ell\varphi(h))$:

$$S=-\tfrac12\sum_{\ell=1}^L\mathrm{Tr}\,\Phi^\ell\hat\Phi^\ell+\tfrac{\gamma_0^2}2y^\top\left(\tfrac I\beta+\tfrac{\Phi^L}{\lambda_L}\right)^{-1}y-\sum_{\ell=1}^L\ln Z_\ell .$$
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from adakern import checks, inputs, linalg, losses
from adakern.activations import Activation
from adakern.limits.base import Answer, Limit, check_network, frozen_decay, relative
from adakern.limits.lazy import NNGPK
from adakern.networks import Network

Scalar = float | Float[Array, ""]


def readout(kernel: Float[Array, "p p"], y: Float[Array, "p c"], beta: Scalar, decay: Scalar) -> Float[Array, "p c"]:
    r"""$v=\beta\Delta=(I/\beta+\Phi^L/\lambda_L)^{-1}y$, squared loss."""
    matrix = kernel / decay + jnp.eye(kernel.shape[0], dtype=kernel.dtype) / beta
    return jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(matrix), True), y)


def energy(
    kernel: Float[Array, "p p"], y: Float[Array, "p c"], richness: Scalar, beta: Scalar, decay: Scalar
) -> Float[Array, ""]:
    r"""$E(\Phi^L)=\frac{\gamma_0^2}2y^\top(I/\beta+\Phi^L/\lambda_L)^{-1}y$: what the data add to the free energy."""
    return 0.5 * richness**2 * jnp.sum(y * readout(kernel, y, beta, decay))


@dataclass(frozen=True)
class ANBK(Limit):
    r"""The adaptive Neural Bayesian Kernel.

    $$\Phi^\ell=\langle\varphi\varphi^\top\rangle_\ell,\quad p_\ell(h)\propto N(h;0,\Phi^{\ell-1}/\lambda_{\ell-1})\,e^{-\frac12\varphi^\top\hat\Phi^\ell\varphi},\quad
      \hat\Phi^L=-\tfrac{\gamma_0^2}{\lambda_L}vv^\top,\quad v=\left(\tfrac I\beta+\tfrac{\Phi^L}{\lambda_L}\right)^{-1}y,$$

    $$f(x)=\tfrac1{\lambda_L}\Phi^L(x)^\top v .$$

    Args:
        network: the architecture.
        richness: $\gamma_0\ge0$; 0 is lazy (`NNGPK`), larger learns more features.
        beta: inverse temperature $\beta>0$.
        decay: prior precision $\lambda$ of the weights, one number or one per weight layer ($L+1$).
        loss: "squared", "logistic" or "softmax"; `solve` serves the squared loss so far.
    """

    kind: ClassVar[str] = "ANBK"
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
        r"""The largest relative violation of the saddle equations, from the kernels, duals and draws alone.

        * readout: $f=\Phi^Lv/\lambda_L$ with $v=\beta(y-f)$;
        * top dual: $\hat\Phi^L=-\frac{\gamma_0^2}{\lambda_L}vv^\top$;
        * every layer: $\Phi^\ell=\langle\varphi\varphi^\top\rangle$ over the draws, and the virial identity
          $\langle\varepsilon\cdot(\varepsilon+\nabla U)\rangle=\mathrm{rank}$ of their law, $U=\frac12\varphi^\top\hat\Phi^\ell\varphi$. Both carry the Monte-Carlo error of the draws.
        """
        if self.richness == 0.0:
            return NNGPK(self.network, beta=self.beta, decay=self.decay).residual(X, y, answer)
        assert answer.duals is not None
        top = self.decays[-1]
        scale = float(np.linalg.norm(y)) or 1.0
        v = self.beta * (y - answer.fitted)
        parts = [
            float(np.linalg.norm(answer.fitted - answer.kernels[-1] @ v / top)) / scale,
            relative(answer.duals[-1] + self.richness**2 / top * v @ v.T, answer.duals[-1]),
        ]
        points = inputs.distinct(X)
        for layer, draws in enumerate(answer.draws):
            if layer == 0:
                root, _ = linalg.root(jnp.asarray(inputs.input_kernel(self.network, X[points.first]) / self.decays[0]))
            else:
                root = linalg.cholesky_root(jnp.asarray(points.pick(answer.kernels[layer - 1]) / self.decays[layer]))
            dual = jnp.asarray(points.collapse(answer.duals[layer]))
            moment, virial = _audit(self.network.activation, root, dual, jnp.asarray(draws))
            parts.append(relative(np.asarray(moment) - points.pick(answer.kernels[layer]), np.asarray(moment)))
            parts.append(abs(float(virial) - 1))
        return max(parts)


@functools.partial(jax.jit, static_argnums=0)
def _audit(activation: Activation, root: Array, dual: Array, draws: Array) -> tuple[Array, Array]:
    def tilt(epsilon: Array) -> Array:
        features = activation(epsilon @ root.T)
        return 0.5 * jnp.sum(features * (features @ dual))

    features = activation(draws @ root.T)
    moment = features.T @ features / draws.shape[0]
    virial = jnp.sum(draws * (draws + jax.grad(tilt)(draws))) / draws.size
    return moment, virial
