"""All roots of a function of one variable whose slope and curvature are bounded: intervals are ruled out one by one, so that none is missed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

_FINEST = 1e-9  # width below which an interval that could not be decided holds a touching point, or nothing
_SAME = 1e-7  # closer roots are one, seen from both sides of a border
_MOST = 200_000  # evaluations, never met in the tests

Curve = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


class Crossings(NamedTuple):
    """Roots in ascending order, and how often the function was evaluated. `complete`: whether nothing can have been missed."""

    roots: np.ndarray
    evaluations: int
    complete: bool


def crossings(
    curve: Curve,
    low: float,
    high: float,
    slope: Callable[[np.ndarray], np.ndarray],
    curvature: float | None,
    finest: float = _FINEST,
) -> Crossings:
    r"""Every root of $f$ between two ends.

    An interval of half-width $h$ around $m$ holds none if $|f(m)|>Bh$ or $|f(m)|>|f'(m)|h+\frac12Ch^2$, at most one if $|f'(m)|>Ch$, with $B$ and $C$ bounds of $|f'|$ and $|f''|$; otherwise it is halved.

    Args:
        curve: $f$ and $f'$ at an array of places.
        low, high: the ends.
        slope: a bound of $|f'|$ on everything to the left of each place.
        curvature: a bound of $|f''|$; None if there is none, and then two roots closer than `finest` are missed.
        finest: width at which halving ends.
    """
    ends = np.linspace(low, high, 33)
    left, right = ends[:-1], ends[1:]
    found: list[tuple[float, float]] = []
    touching: list[float] = []
    count, complete = 0, True
    while len(left):
        middle, half = 0.5 * (left + right), 0.5 * (right - left)
        values, slopes = curve(middle)
        count += len(middle)
        reach = slope(right) * half
        if curvature is not None:
            reach = np.minimum(reach, np.abs(slopes) * half + 0.5 * curvature * half**2)
        undecided = np.abs(values) <= reach * (1 + 1e-9) + 1e-14
        single = undecided & (np.abs(slopes) > curvature * half) if curvature is not None else np.zeros_like(undecided)
        small = undecided & ~single & (2 * half <= finest)
        found += [(float(a), float(b)) for a, b in zip(left[single], right[single], strict=True)]
        if small.any():
            if curvature is None:
                found += [(float(a), float(b)) for a, b in zip(left[small], right[small], strict=True)]
            else:
                touching += [float(m) for m in middle[small]]
        rest = undecided & ~single & ~small
        left, right, middle = left[rest], right[rest], middle[rest]
        left, right = np.concatenate([left, middle]), np.concatenate([middle, right])
        if count > _MOST:
            complete = False
            break

    def value(x: float) -> float:
        nonlocal count
        count += 1
        return float(curve(np.array([x]))[0][0])

    roots = [root for a, b in found if (root := _between(value, a, b)) is not None]
    complete = complete and curvature is not None
    return Crossings(_merged(np.array(sorted([*roots, *touching])), _SAME), count, complete)


def _between(value: Callable[[float], float], left: float, right: float) -> float | None:
    ends = value(left), value(right)
    if ends[0] == 0.0:
        return left
    if ends[1] == 0.0:
        return right
    if ends[0] * ends[1] > 0:
        return None
    return float(brentq(value, left, right, xtol=1e-15, rtol=8 * np.finfo(float).eps, maxiter=200))


def _merged(roots: np.ndarray, gap: float) -> np.ndarray:
    """Neighbouring intervals may report the root on their border twice."""
    if len(roots) == 0:
        return roots
    return roots[np.concatenate([[True], np.diff(roots) > gap])]
