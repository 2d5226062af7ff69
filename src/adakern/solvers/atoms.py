r"""A layer's law as few weighted neurons: what white particles condense into.

$$h^{\ell+1}_i=\sum_jW^\ell_{ij}\sqrt{w_j}\,\varphi(h^\ell_j),\qquad\Phi^\ell=\sum_jw_j\varphi(h^\ell_j)\varphi(h^\ell_j)^\top,\qquad F=\tfrac12\sum_\ell\lambda_\ell\sum_iw_i|W^\ell_i|^2+E(\Phi^L).$$

Neurons of a CNN have fields over (point, position): what a layer takes in is what its windows see of the one below, one weight for each neuron and place in the window, and the readout pools the positions of
the last layer (`limits.sites`).

The same functional as in `rest_model`, with weights instead of white coordinates: no root of a kernel is taken, which few neurons leave singular.

numpy rather than jax: the number of neurons changes all the time, and every new shape would be compiled. The gradient is written out; the readout is jax's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from adakern.limits.resting import Neurons
from adakern.limits.sites import POINTS, Sites

_DEAD = 1e-10  # share of a layer's mass below which a neuron is left out
_SMALLEST = 1e-9  # eigenvalue of a kernel, relative to the largest, that counts when weights are made from fields
Energy = Callable[[np.ndarray], tuple[float, np.ndarray]]  # Φ^L over distinct points -> E, and dE/dΦ = -½ V Vᵀ as V


class Curve(Protocol):
    """An activation at fields of half width `width` from its corner: value, slope, and derivative in the width."""

    def __call__(self, fields: np.ndarray, width: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]: ...


@dataclass(frozen=True)
class Shape:
    """What does not change."""

    curve: Curve
    homogeneous: bool
    root: np.ndarray  # of Φ⁰ over distinct points; in single precision, fields and features are too
    decays: tuple[float, ...]
    energy: Energy
    where: Sites = POINTS  # positions of a CNN's neurons


@dataclass(frozen=True)
class Atoms:
    """Weights of all layers but the readout, the shares of the neurons, and the angle over which ReLU's corner is rounded off."""

    incoming: tuple[np.ndarray, ...]  # W⁰..W^{L-1}, (n_ℓ, r) and (n_{ℓ+1}, n_ℓ), of a CNN (n_{ℓ+1}, n_ℓ·B)
    shares: tuple[np.ndarray, ...]  # w¹..w^L
    angle: float = 0.0

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(len(share) for share in self.shares)


class _Layer(NamedTuple):
    """A layer on the way up."""

    below: np.ndarray  # what it takes in: the root of Φ⁰, or √w φ of the layer below, (points and positions, inputs)
    fields: np.ndarray
    values: np.ndarray
    slopes: np.ndarray
    bend: np.ndarray  # dφ/dwidth
    sizes: np.ndarray  # |W_i|
    reach: np.ndarray  # |below_μ|


def corner(fields: np.ndarray, width: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ReLU with a parabola between -width and width. Few passes over the fields: with many neurons these take as long as their products do."""
    rounded = bool(np.min(width, initial=1.0) > 0)
    place = fields / (width if rounded else np.where(width > 0, width, 1.0))
    slopes = 0.5 * np.clip(place, -1.0, 1.0, out=place) + 0.5
    if not rounded:
        slopes = np.where(width > 0, slopes, fields > 0)
    values = np.maximum(fields - width, 0.0) + width * slopes**2
    return values, slopes, slopes * (1 - slopes)


def _climb(shape: Shape, atoms: Atoms) -> list[_Layer]:
    below, found, dtype = shape.root, [], shape.root.dtype
    for index, (incoming, shares) in enumerate(zip(atoms.incoming, atoms.shares, strict=True)):
        weights = incoming.astype(dtype, copy=False)
        sizes, reach = np.linalg.norm(weights, axis=1), np.linalg.norm(below, axis=1)
        fields = weights @ below.T
        values, slopes, bend = shape.curve(fields, np.outer(atoms.angle / 2 * sizes, reach))
        found.append(_Layer(below, fields, values, slopes, bend, sizes, reach))
        if index + 1 < len(atoms.incoming):
            below = shape.where.gather(index, np.sqrt(shares).astype(dtype)[:, None] * values)
    return found


def fields(shape: Shape, atoms: Atoms) -> list[np.ndarray]:
    """h¹..h^L at distinct training points, (n, P) each; of a CNN (n, P·S)."""
    return [layer.fields for layer in _climb(shape, atoms)]


def value_and_gradient(shape: Shape, atoms: Atoms) -> tuple[float, list[np.ndarray]]:
    """F and its derivatives in the weights."""
    climbed = _climb(shape, atoms)
    pool, count, dtype = shape.where.pool, len(atoms.shares[-1]), shape.root.dtype
    top = pool.rows(np.sqrt(atoms.shares[-1]).astype(dtype)[:, None] * climbed[-1].values)
    value, pull = shape.energy((top.T @ top).astype(np.float64, copy=False))
    pull = pull.astype(dtype, copy=False)
    back = pool.transpose(-(top @ pull) @ pull.T, count)  # dE/d(√w φ), (n, P): dE/dΦ = -½VVᵀ
    gradients = []
    for index in range(len(climbed) - 1, -1, -1):
        layer, weights, shares = climbed[index], atoms.incoming[index], atoms.shares[index]
        pushed = back * np.sqrt(shares).astype(dtype)[:, None]
        slope, decay = pushed * layer.slopes, shape.decays[index]
        value += 0.5 * decay * float(np.sum(shares[:, None] * weights**2))
        gradient = slope @ layer.below + decay * shares[:, None] * weights
        widening = pushed * layer.bend if atoms.angle > 0 else None
        if widening is not None:  # corners grow with the weights and with what they take in
            gradient += (atoms.angle / 2 * (widening @ layer.reach) / _some(layer.sizes))[:, None] * weights
        if index:
            back = weights.T.astype(dtype, copy=False) @ slope
            if widening is not None:
                back += (atoms.angle / 2 * (layer.sizes @ widening) / _some(layer.reach))[None, :] * layer.below.T
            back = shape.where.scatter(index - 1, back)
        gradients.append(gradient)
    return value, gradients[::-1]


def _some(sizes: np.ndarray) -> np.ndarray:
    return np.where(sizes > 0, sizes, 1.0)


def layers(shape: Shape, atoms: Atoms) -> list[Neurons]:
    """The neurons as the limit's equations see them."""
    depth = len(atoms.shares)
    return [
        Neurons(shares, layer.values, layer.slopes, shape.where.pool_of(index, depth))
        for index, (shares, layer) in enumerate(zip(atoms.shares, _climb(shape, atoms), strict=True))
    ]


def _masses(shape: Shape, atoms: Atoms, layer: int) -> np.ndarray:
    """What a neuron counts for: its share, and its length where the activation is homogeneous."""
    squares = np.sum(atoms.incoming[layer] ** 2, axis=1)
    masses: np.ndarray = atoms.shares[layer] * (squares if shape.homogeneous else 1.0)
    return masses


def merge(shape: Shape, atoms: Atoms, closeness: float) -> Atoms:
    """Neurons that point the same way (homogeneous) or stand in the same place become one; dead ones go. F does not change where they agree exactly."""
    for layer in range(len(atoms.shares)):
        atoms = _merge_layer(shape, atoms, layer, closeness)
    return atoms


def _merge_layer(shape: Shape, atoms: Atoms, layer: int, closeness: float) -> Atoms:
    weights = atoms.incoming[layer]
    masses = _masses(shape, atoms, layer)
    total = float(masses.sum())
    lengths = np.linalg.norm(weights, axis=1)
    scale = lengths if shape.homogeneous else np.full(len(lengths), np.sqrt(np.mean(lengths**2)) or 1.0)
    points = weights / np.where(scale > 0, scale, 1.0)[:, None]
    order = [int(i) for i in np.argsort(-masses) if masses[i] > _DEAD * total or not shape.homogeneous]
    centres: list[int] = []
    groups: list[list[int]] = []
    for index in order:
        if centres:
            distances = np.linalg.norm(points[centres] - points[index][None, :], axis=1)
            nearest = int(np.argmin(distances))
            if distances[nearest] < closeness:
                groups[nearest].append(index)
                continue
        centres.append(index)
        groups.append([index])
    if not groups:  # everything died: one neuron of length zero keeps shapes regular
        groups = [[0]]
    count = len(groups)
    mass = np.array([masses[group].sum() for group in groups])
    mean = np.stack(
        [
            np.average(points[group], axis=0, weights=masses[group]) if masses[group].sum() > 0 else points[group[0]]
            for group in groups
        ]
    )
    if shape.homogeneous:
        unit = np.linalg.norm(mean, axis=1)
        new_shares = np.full(count, 1 / count)
        new_weights = mean * (np.sqrt(mass * count) / np.where(unit > 0, unit, 1.0))[:, None]
    else:
        new_shares, new_weights = mass, mean * scale[0]
    incoming, all_shares = list(atoms.incoming), list(atoms.shares)
    incoming[layer], all_shares[layer] = new_weights, new_shares
    if layer + 1 < len(incoming):
        heads = len(incoming[layer + 1])
        above = incoming[layer + 1].reshape(heads, len(masses), -1) * np.sqrt(masses)[None, :, None]
        joined = np.stack([above[:, group].sum(axis=1) for group in groups], axis=1)
        joined /= np.sqrt(np.where(mass > 0, mass, 1.0))[None, :, None]
        incoming[layer + 1] = joined.reshape(heads, -1)
    return Atoms(tuple(incoming), tuple(all_shares), atoms.angle)


def add(atoms: Atoms, layer: int, directions: np.ndarray, pulls: np.ndarray | None, mass: float) -> Atoms:
    """Homogeneous: new neurons of this total mass in a layer (0-based), along unit `directions`; the layer above takes them in with `pulls`, (n_above, new), of a CNN (n_above, new·B)."""
    old, new = len(atoms.shares[layer]), len(directions)
    count = old + new
    incoming, shares = list(atoms.incoming), list(atoms.shares)
    kept = incoming[layer] * np.sqrt(shares[layer] * count)[:, None]
    incoming[layer] = np.concatenate([kept, directions * np.sqrt(mass / new * count)])
    shares[layer] = np.full(count, 1 / count)
    if layer + 1 < len(incoming):
        assert pulls is not None
        incoming[layer + 1] = np.concatenate([incoming[layer + 1], pulls], axis=1)
    return Atoms(tuple(incoming), tuple(shares), atoms.angle)


def condense(
    positions: list[np.ndarray],
    features: list[np.ndarray],
    fields: list[np.ndarray],
    angle: float,
    where: Sites = POINTS,
    shares: list[np.ndarray] | None = None,
) -> Atoms:
    r"""White particles with their features and fields, as atoms: $W^\ell_i$ is the shortest that makes the fields.

    Equal `shares` if none are given. First layer: the white coordinates themselves. Above: $W=h\,(\sqrt w\varphi)^{+}$.
    """
    incoming = [np.asarray(positions[0])]
    shares = shares or [np.full(len(p), 1 / len(p)) for p in positions]
    for layer in range(1, len(positions)):
        below = where.gather(layer - 1, np.sqrt(shares[layer - 1])[:, None] * features[layer - 1]).T
        values, vectors = np.linalg.eigh(below.T @ below)
        keep = values > _SMALLEST * max(values[-1], 0.0)
        inverse = (vectors[:, keep] / values[keep][None, :]) @ vectors[:, keep].T
        incoming.append(fields[layer] @ inverse @ below.T)
    return Atoms(tuple(incoming), tuple(shares), angle)
