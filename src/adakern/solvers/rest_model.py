r"""What gradient flow with weight decay leaves stationary, as a function of white neurons: the zero-temperature limit of the particles' free energy.

$$F=\tfrac12\sum_{\ell=0}^{L-1}\lambda_\ell\langle|\varepsilon^{\ell+1}|^2\rangle+E(\Phi^L),\qquad h^\ell=A(\Phi^{\ell-1})\varepsilon^\ell,\quad\Phi^\ell=\langle\varphi(h^\ell)\varphi(h^\ell)^\top\rangle,\qquad
E(\Phi)=\min_s\gamma_0^2\mathcal L(s)+\tfrac12\gamma_0^2\lambda_Ls^\top\Phi^{-1}s .$$

$|\varepsilon|^2$ is the least norm of weights that make the fields $h$ out of the features below, and $E$ has the readout solved. Kinks of ReLU are rounded off over an angle
$\tau$: neuron $\varepsilon$ and point $\mu$ count as standing on the kink where $|h_\mu|<\frac\tau2|\varepsilon||A_\mu|$. That keeps $F$ homogeneous, and in the limit $\tau\to0$ the slope of a pair on
its kink is the subgradient that stationarity asks for.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from adakern import linalg
from adakern.activations import Activation
from adakern.limits import readout
from adakern.limits.sites import POINTS, Pool, Sites
from adakern.losses import Loss

Layers = tuple[Array, ...]


@dataclass(frozen=True)
class Model:
    """What is compiled in. Neurons are taken through each layer in `chunks`, whose fields are computed again on the way back."""

    activation: Activation
    loss: Loss
    chunks: int = 1
    where: Sites = POINTS

    @property
    def kinked(self) -> bool:
        return self.activation.name == "relu"


class Data(NamedTuple):
    """The arrays of a problem."""

    root: Array  # of Φ⁰ over distinct points, of a CNN over their positions
    member: Array  # position of every point among the distinct ones
    y: Array
    richness: Array
    decays: Array


def features(model: Model, epsilon: Array, root: Array, angle: Array) -> Array:
    r"""$\varphi(A\varepsilon)$, (neurons, points), with the kink of ReLU rounded off over `angle`."""
    fields = jnp.matmul(epsilon, root.T, precision="highest")
    if not model.kinked:
        return model.activation(fields)
    width = angle * _lengths(epsilon)[:, None] * _lengths(root)[None, :]
    on = jnp.abs(fields) < width / 2
    safe = jnp.where(on, width, 1.0)
    return jnp.where(on, safe * (fields / safe + 0.5) ** 2 / 2, jax.nn.relu(fields))


def _lengths(rows: Array) -> Array:
    """|row|, with a derivative of zero where it is zero."""
    squares = jnp.sum(rows * rows, axis=1)
    some = squares > 0
    return jnp.where(some, jnp.sqrt(jnp.where(some, squares, 1.0)), 0.0)


def _gram(model: Model, epsilon: Array, root: Array, angle: Array, pool: Pool) -> Array:
    def product(part: Array) -> Array:
        phi = pool.rows(features(model, part, root, angle))
        return jnp.matmul(phi.T, phi, precision="highest")

    if model.chunks == 1:
        return product(epsilon) / epsilon.shape[0]
    parts = epsilon.reshape(model.chunks, -1, epsilon.shape[1])
    add = jax.checkpoint(lambda total, part: (total + product(part), None))
    size = root.shape[0] // pool.sites
    return jax.lax.scan(add, jnp.zeros((size, size), root.dtype), parts)[0] / epsilon.shape[0]


def climb(model: Model, data: Data, positions: Layers, angle: Array) -> tuple[Layers, Layers]:
    """The kernels Φ¹..Φ^L over distinct points, and the roots A(Φ⁰)..A(Φ^{L-1}) of what windows see of them."""
    kernels: list[Array] = []
    roots = [data.root]
    for layer, epsilon in enumerate(positions):
        kernels.append(_gram(model, epsilon, roots[-1], angle, model.where.pool_of(layer, len(positions))))
        if layer + 1 < len(positions):
            roots.append(linalg.cholesky_root(model.where.seen(layer, kernels[-1])))
    return tuple(kernels), tuple(roots)


def cost(data: Data, positions: Layers) -> Array:
    r"""$\frac12\sum_\ell\lambda_\ell\langle|\varepsilon^{\ell+1}|^2\rangle$."""
    return 0.5 * sum(
        (data.decays[layer] * jnp.sum(epsilon**2) / epsilon.shape[0] for layer, epsilon in enumerate(positions)),
        jnp.zeros((), data.root.dtype),
    )


def energy(model: Model, data: Data, kernel: Array) -> tuple[Array, Array]:
    r"""$E$ and $\Delta$ at the last kernel over distinct points."""
    whole = kernel[data.member][:, data.member]
    return readout.energy_and_readout(model.loss, whole, data.y, data.richness, 1.0, data.decays[-1])


def objective(model: Model, data: Data, positions: Layers, angle: Array) -> Array:
    """F."""
    kernels, _ = climb(model, data, positions, angle)
    return cost(data, positions) + energy(model, data, kernels[-1])[0]


@functools.partial(jax.jit, static_argnums=0)
def value_and_gradient(model: Model, data: Data, positions: Layers, angle: Array) -> tuple[Array, Layers]:
    """F and its gradient in the neurons."""
    return jax.value_and_grad(lambda at: objective(model, data, at, angle))(positions)
