r"""Warm starts of the particle solver: from the neurons of a neighbouring solution, or from kernels alone.

Neurons carry over to other training points as they would to new ones: given the fields $h$ at the old points, those at the new points are
Gaussian with the conditional law of the kernel below. The first layer's kernel is that of the inputs, the others are the particles' own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy.linalg

from adakern import floors, inputs
from adakern.limits.base import Limit
from adakern.networks import CNN


class Start(NamedTuple):
    """Where to start from; nothing is the prior.

    Attributes:
        limit, X: of the solution whose neurons are given.
        kernels: over that X, or over the training points where there are no neurons.
        draws: white coordinates of its neurons, particle by particle.
        moments: at which each of them was seen.
    """

    limit: Limit | None = None
    X: np.ndarray | None = None
    kernels: tuple[np.ndarray, ...] = ()
    draws: tuple[np.ndarray, ...] = ()
    moments: int = 1


def positions(limit: Limit, X: np.ndarray, init: Start, root: Any, particles: int, seed: int) -> list[np.ndarray]:
    """White coordinates of `particles` neurons per layer over the distinct points X, from another solution's."""
    assert init.limit is not None and init.X is not None
    rng = np.random.default_rng(seed)
    points = inputs.distinct(init.X)
    old = init.X[points.first]
    draws = [_choose(np.asarray(draw, np.float64), init.moments, particles, rng) for draw in init.draws]
    if isinstance(limit.network, CNN):
        return _images(limit, X, init.limit, old, draws, np.asarray(root, np.float64))
    old_kernel = inputs.input_kernel(init.limit.network, old) / init.limit.decays[0]
    old_root = _input_root(old_kernel, draws[0].shape[1])
    new_root = np.asarray(root, np.float64)
    if old.shape == X.shape and np.array_equal(old, X):
        # The same points: white coordinates stay what they are, but for the choice of the input kernel's root.
        scale = np.sqrt(init.limit.decays[0] / limit.decays[0])
        return [_coordinates(new_root, scale * draws[0] @ old_root.T), *draws[1:]]
    result: list[np.ndarray] = []
    both = np.concatenate([old, X])
    kernel = inputs.input_kernel(limit.network, both) / limit.decays[0]
    activation = limit.network.activation
    for layer, draw in enumerate(draws):
        if layer == 0:
            fields = draw @ old_root.T * np.sqrt(init.limit.decays[0] / limit.decays[0])
        else:
            fields = draw @ _root(kernel[: len(old), : len(old)]).T
        new = _condition(kernel, fields, rng)
        result.append(_coordinates(new_root if layer == 0 else _root(kernel[len(old) :, len(old) :]), new))
        if layer + 1 < len(draws):
            features = np.asarray(activation(jnp.asarray(np.concatenate([fields, new], axis=1))), np.float64)
            kernel = features.T @ features / len(features) / limit.decays[layer + 1]
    return result


def _images(
    limit: Limit, X: np.ndarray, theirs: Limit, old: np.ndarray, draws: list[np.ndarray], root: np.ndarray
) -> list[np.ndarray]:
    """The same for a CNN: on the same images, whose neurons' white coordinates stay what they are."""
    now, before = limit.network, theirs.network
    assert isinstance(now, CNN)
    same = isinstance(before, CNN) and all(
        getattr(now, name) == getattr(before, name) for name in ("window", "stride", "padding")
    )
    if not same or old.shape != X.shape or not np.array_equal(old, X):
        raise NotImplementedError(
            "init must be a solution on the same images with the same windows for a CNN: its neurons do not carry over to others yet; leave it out"
        )
    rows = inputs.features(before, old) / np.sqrt(theirs.decays[0])
    rank = draws[0].shape[1]
    if rank == root.shape[1]:  # the same root, but for the decay
        return draws
    old_root = _gram_root(rows, rank)
    scale = np.sqrt(theirs.decays[0] / limit.decays[0])
    return [_coordinates(root, scale * draws[0] @ old_root.T), *draws[1:]]


def _gram_root(rows: np.ndarray, rank: int) -> np.ndarray:
    """`_input_root` of the rows' Gram matrix, from their singular vectors."""
    vectors, values, _ = np.linalg.svd(rows, full_matrices=False)
    vectors, values = vectors[:, :rank][:, ::-1], values[:rank][::-1]
    largest = np.take_along_axis(vectors, np.argmax(np.abs(vectors), axis=0)[None, :], axis=0)
    return vectors * np.where(largest < 0, -1.0, 1.0) * values[None, :]


def _input_root(kernel: np.ndarray, rank: int) -> np.ndarray:
    """The root that draws of this rank refer to, in whatever precision they were made."""
    values, vectors = np.linalg.eigh(kernel)
    values, vectors = values[-rank:], vectors[:, -rank:]
    largest = np.take_along_axis(vectors, np.argmax(np.abs(vectors), axis=0)[None, :], axis=0)
    return vectors * np.where(largest < 0, -1.0, 1.0) * np.sqrt(np.maximum(values, 0.0))[None, :]


def _choose(draw: np.ndarray, moments: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """As many neurons as are wanted: at the latest moment, then at the one before and so on; all of them and some twice if there are not enough."""
    draw = draw.reshape(-1, moments, draw.shape[1])[:, ::-1].swapaxes(0, 1).reshape(draw.shape)
    if len(draw) >= count:
        return draw[:count]
    extra = rng.integers(len(draw), size=count - len(draw))
    return np.concatenate([draw, draw[extra]])


def _root(kernel: np.ndarray) -> np.ndarray:
    size = len(kernel)
    return np.linalg.cholesky(kernel + floors.JITTER["float32"] * np.trace(kernel) / size * np.eye(size))


def _coordinates(root: np.ndarray, fields: np.ndarray) -> np.ndarray:
    """ε with A ε = h, of least length."""
    if root.shape[0] == root.shape[1] and np.allclose(root, np.tril(root)):
        return scipy.linalg.solve_triangular(root, fields.T, lower=True).T
    return np.linalg.lstsq(root, fields.T, rcond=None)[0].T


def _condition(kernel: np.ndarray, fields: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Fields at the new points, drawn from their Gaussian law given those at the old ones, which come first in `kernel`."""
    count = fields.shape[1]
    inner, cross, outer = kernel[:count, :count], kernel[count:, :count], kernel[count:, count:]
    values, vectors = np.linalg.eigh(inner)
    keep = values > count * np.finfo(np.float64).eps * 1e3 * max(values[-1], 0.0)
    weights = (cross @ vectors[:, keep]) / values[keep][None, :] @ vectors[:, keep].T
    rest = outer - weights @ cross.T
    spread, turn = np.linalg.eigh((rest + rest.T) / 2)
    noise = rng.standard_normal((len(fields), len(outer)))
    return fields @ weights.T + (noise * np.sqrt(np.maximum(spread, 0.0))[None, :]) @ turn.T
