r"""Where searches for unit neurons begin (`unit_search`): how many starts there are, and which."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from adakern.limits.settling import unit

_LENGTHS = (0.5, 0.8)  # of hops, over the root of the dimension
_MANY = (96, 2048)  # starts over windows of images, at least and at most, and
_WORK = 2e8  # the numbers that all of them together go through in a product
_PLACES = (32, 2e7)  # neurons at hand whose families are searched: at least, and times the numbers of the root


def default_starts(root: Any, factor: Any, count: int, key: Array) -> np.ndarray:
    r"""`count` unit vectors, (count, r): a third random, a third rows $\pm A_\mu$, a third $A^\top(Fm\circ1[Az>0])$ of random $m$ and $z$ (first among these without the mask, for the largest columns of $F$)."""
    A, F = np.asarray(root, np.float64), np.asarray(factor, np.float64)
    rng = np.random.default_rng(np.asarray(jax.random.bits(key, (4,), "uint32")))
    points, rank = A.shape
    thirds = [count - 2 * (count // 3), count // 3, count // 3]
    random = rng.standard_normal((thirds[0], rank))
    rows = A[rng.integers(points, size=thirds[1])] * rng.choice([-1.0, 1.0], size=(thirds[1], 1))
    mixed = rng.standard_normal((thirds[2], F.shape[1])) @ F.T
    mask = rng.standard_normal((thirds[2], rank)) @ A.T > 0
    largest = np.argsort(-np.linalg.norm(F, axis=0))[: len(mixed) // 4]
    for place, column in enumerate(largest):
        for sign in (0, 1):
            mixed[2 * place + sign] = F[:, column] * (-1) ** sign
            mask[2 * place + sign] = mixed[2 * place + sign] > 0
    aimed = (mixed * mask) @ A
    starts = np.concatenate([random, rows, aimed])
    lost = ~(np.linalg.norm(starts, axis=1) > 0)
    starts[lost] = rng.standard_normal((int(lost.sum()), rank))
    return unit(starts)


def images_starts(root: Any, factor: Any) -> int:
    """How many starts a search over windows of images begins from: patches are many and of few dimensions, and so are maxima; but for many images each start takes long."""
    work = root.shape[0] * (root.shape[1] + factor.shape[1])
    return int(np.clip(_WORK / work, *_MANY))


def hops(places: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Starts around unit vectors, (count, r), half of them farther away: where there are many maxima, the best ones lie near each other. None around none."""
    count = count if len(places) else 0
    lengths = np.resize(_LENGTHS, (count, 1)) / np.sqrt(places.shape[1])
    chosen = places[rng.integers(len(places), size=count)] if count else places[:0]
    return chosen + lengths * rng.standard_normal((count, places.shape[1]))


def some(places: np.ndarray, root: Any, rng: np.random.Generator) -> np.ndarray:
    """As many of them as can be settled in a reasonable time, at random: over many windows of images one takes a third of a second."""
    most = max(_PLACES[0], int(_PLACES[1] / max(np.size(root), 1)))
    return places if len(places) <= most else places[rng.choice(len(places), most, replace=False)]
