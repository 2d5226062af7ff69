r"""Inputs as a kernel: $\Phi^0$, its cross blocks and its diagonal, for an MLP and, over positions, for a CNN.

MLP: $\Phi^0_{\mu\nu}=x_\mu\cdot x_\nu/D$. CNN: $\Phi^0_{\mu a,\nu b}=\langle\text{patch}_{\mu a},\text{patch}_{\nu b}\rangle/\text{fan-in}$, so a set of images is first turned
into `features`, one row per (point, position), and from there both are the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from adakern import linalg
from adakern.networks import CNN, Network


def features(network: Network, X: np.ndarray) -> np.ndarray:
    """Rows whose scaled inner products are Φ⁰: (points, features), or (points × positions, patch) for a CNN."""
    network.check_inputs(X.shape)
    if isinstance(network, CNN):
        fan_in = width(network, X.shape)
        rows = patches(X, network.taps(X.shape)[0]).reshape(-1, fan_in) / np.sqrt(fan_in)
    else:
        rows = X / np.sqrt(X.shape[1])
    with np.errstate(over="ignore"):
        if not np.isfinite(np.einsum("nd,nd->n", rows, rows)).all():
            raise ValueError(
                "X must have squares that fit into float64, but some of its values are too large; rescale it"
            )
    return rows


def patches(X: np.ndarray, taps: np.ndarray) -> np.ndarray:
    """Image patches, (points, positions, patch): rows of positions first, each patch flattened as (height, width, channels).

    `taps` are those of the first layer, `CNN.taps`; beyond the image there are zeros.
    """
    points, channels = X.shape[0], X.shape[3]
    pixels = np.concatenate([X.reshape(points, -1, channels), np.zeros((points, 1, channels), X.dtype)], axis=1)
    return pixels[:, taps].reshape(points, len(taps), -1)  # -1 is the row of zeros


def input_kernel(network: Network, X: np.ndarray, Z: np.ndarray | None = None) -> np.ndarray:
    r"""$\Phi^0$ between two sets of inputs (of `X` with itself by default): (P, Q), or (P, S, Q, S) for a CNN."""
    rows = features(network, X)
    columns = rows if Z is None else features(network, Z)
    block = rows @ columns.T
    if isinstance(network, CNN):
        other = X if Z is None else Z
        sites = network.sites(X.shape)[0]
        return block.reshape(X.shape[0], sites, other.shape[0], sites)
    return block


def root(network: Network, X: np.ndarray, decay: float) -> tuple[Array, dict[str, Any]]:
    r"""$A$ with $AA^\top=\Phi^0/\lambda_0$, the coordinates in which a neuron of the first layer is white, and a report; called inside `precision.scope`."""
    return linalg.root_of_gram(jnp.asarray(features(network, X) / np.sqrt(decay)))


def width(network: Network, shape: tuple[int, ...]) -> int:
    """Inputs of a neuron of the first layer, for inputs of this shape."""
    if isinstance(network, CNN):
        height, across = network.window[0]
        return height * across * shape[3]
    return shape[1]


class Distinct(NamedTuple):
    """Which points of a set are distinct: equal inputs have equal fields, so a law over fields lives on distinct points.

    Attributes:
        first: index of each distinct point's first appearance, in order of appearance.
        member: for every point, its position in `first`.
    """

    first: np.ndarray
    member: np.ndarray

    def pick(self, kernel: np.ndarray) -> np.ndarray:
        """A kernel over all points, restricted to the distinct ones."""
        return kernel[np.ix_(self.first, self.first)]

    def expand(self, kernel: np.ndarray) -> np.ndarray:
        """A kernel over distinct points, repeated for all."""
        return kernel[np.ix_(self.member, self.member)]

    def spread(self, dual: np.ndarray) -> np.ndarray:
        """The inverse of `collapse`: a dual on distinct points, shared equally among the points that are equal."""
        count = np.bincount(self.member).astype(dual.dtype)
        return self.expand(dual / np.outer(count, count))

    def add(self, rows: np.ndarray) -> np.ndarray:
        """Numbers of all points, (P, C), added up over those that are equal."""
        total = np.zeros((len(self.first), rows.shape[1]), dtype=rows.dtype)
        np.add.at(total, self.member, rows)
        return total

    def collapse(self, dual: np.ndarray) -> np.ndarray:
        """A dual over all points as it acts on the distinct ones: rows and columns of equal points add up."""
        belongs = np.zeros((len(self.member), len(self.first)))
        belongs[np.arange(len(self.member)), self.member] = 1.0
        return belongs.T @ dual @ belongs


def distinct(X: np.ndarray) -> Distinct:
    """Find the distinct points of a set of inputs."""
    flat = X.reshape(len(X), -1)
    _, first, inverse = np.unique(flat, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)  # numbered by value there, by first appearance here
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return Distinct(first[order], rank[inverse.ravel()])
