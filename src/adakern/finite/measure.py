r"""What is measured on a network of finite width with given weights: kernels, gradient kernels, the empirical tangent kernel, outputs.

$$\Phi^\ell=\tfrac1N\varphi(h^\ell)\varphi(h^\ell)^\top,\quad g^\ell=\gamma\sqrt N\,\frac{\partial s}{\partial h^\ell},\quad G^\ell=\tfrac1Ng^\ell g^{\ell\top},\quad
  K=\gamma^2\nabla_\theta s\cdot\nabla_\theta s=\sum_{\ell=0}^LG^{\ell+1}\circ\Phi^\ell .$$
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from adakern.finite.model import Model, Weights


class Tangents(NamedTuple):
    gradient_kernels: tuple[Array, ...]  # (outputs, outputs, rows, rows) of each hidden layer
    tangent: Array  # (P, C, P, C)


@functools.partial(jax.jit, static_argnames=("model",))
def outputs(model: Model, weights: Weights, rows: Array, scales: Array, offset: Array) -> Array:
    return model.outputs_of(weights, rows, scales, offset)


@functools.partial(jax.jit, static_argnames=("model",))
def fields(model: Model, weights: Weights, rows: Array, scales: Array) -> tuple[Array, ...]:
    return model.forward(weights, rows, scales)[1]


@functools.partial(jax.jit, static_argnames=("model",))
def kernels(model: Model, weights: Weights, rows: Array, scales: Array) -> tuple[Array, ...]:
    return model.kernels(model.forward(weights, rows, scales)[2])


@functools.partial(jax.jit, static_argnames=("model",))
def neuron_scatter(model: Model, weights: Weights, rows: Array, scales: Array) -> tuple[Array, ...]:
    """Standard errors of the kernels of one network, its neurons taken as independent draws.

    At the last layer of a CNN a neuron contributes a sum over positions, or its mean over positions squared.
    """
    result = []
    features = model.forward(weights, rows, scales)[2]
    for layer, values in enumerate(features, start=1):
        sites = model.positions[layer - 1] if layer == model.depth else 1
        if layer == model.depth and model.pooled:
            values, sites = model.read(values), 1
        places = values.reshape(-1, sites, model.width)

        def second(total: Array, neuron: Array) -> tuple[Array, None]:
            return total + jnp.matmul(neuron, neuron.T, precision=model.matmul) ** 2, None

        if sites == 1:
            squares = jnp.matmul(values**2, (values**2).T, precision=model.matmul)
        else:
            zero = jnp.zeros((places.shape[0],) * 2, values.dtype)
            squares = jax.lax.scan(second, zero, jnp.moveaxis(places, 2, 0))[0]
        flat = places.reshape(places.shape[0], -1)
        mean = jnp.matmul(flat, flat.T, precision=model.matmul) / model.width
        variance = jnp.maximum(squares / model.width - mean**2, 0)
        result.append(jnp.sqrt(variance / (model.width - 1)) if model.width > 1 else jnp.full_like(mean, jnp.inf))
    return tuple(result)


@functools.partial(jax.jit, static_argnames=("model",))
def contributions(model: Model, weights: Weights, rows: Array, scales: Array, offset: Array) -> Array:
    """What each neuron of the last layer adds to the outputs, times the width: (points, outputs, width)."""
    features = model.forward(weights, rows, scales, offset)[2][-1]
    seen = model.read(features)
    places = seen.reshape(len(seen), -1, model.width)
    readout = weights[-1].reshape(-1, model.width, model.outputs)
    return jnp.einsum("pan,anc->pcn", places, readout, precision=model.matmul) * scales[-1] * model.width


@functools.partial(jax.jit, static_argnames=("model",))
def tangents(model: Model, weights: Weights, rows: Array, scales: Array) -> Tangents:
    """Gradient kernels and the empirical tangent kernel at the training points."""
    _, hs, features = model.forward(weights, rows, scales)
    zeros = tuple(jnp.zeros_like(h) for h in hs)
    s, pull = jax.vjp(lambda bumps: model.forward(weights, rows, scales, bumps=bumps)[0], zeros)
    # ∂s_c/∂h for each output; a point's output depends on its own fields alone.
    picks = jnp.broadcast_to(jnp.eye(model.outputs, dtype=s.dtype)[:, None, :], (model.outputs, *s.shape))
    slopes = jax.vmap(lambda pick: pull(pick)[0])(picks)
    gamma = 1 / (scales[-1] * np.sqrt(model.width))
    scaled = [gamma * np.sqrt(model.width) * slope for slope in slopes]
    gradients = [jnp.einsum("cui,dvi->cduv", g, g, precision=model.matmul) / model.width for g in scaled]

    points = s.shape[0]
    last = model.kernels(features)[-1]
    total = jnp.einsum("uv,cd->ucvd", last, jnp.eye(model.outputs, dtype=s.dtype))
    for layer in range(model.depth):
        if layer == 0:
            below = jnp.matmul(rows, rows.T, precision=model.matmul)
        else:
            seen = model.patches(layer, features[layer - 1])
            below = jnp.matmul(seen, seen.T, precision=model.matmul) / model.width
        sites = model.positions[layer]
        joint = gradients[layer] * below[None, None]
        joint = joint.reshape(model.outputs, model.outputs, points, sites, points, sites)
        total = total + jnp.einsum("cduavb->ucvd", joint)
    return Tangents(tuple(gradients), total)
