"""Several solutions as one sweep over the richness: of the same data, the same network and the same numbers otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from adakern.readings import richness
from adakern.solution import Solution

_LAZY = {"ANBK": "NNGPK", "VGA": "NNGPK", "ANTK": "NTK"}  # what may stand at richness 0


def ordered(solutions: Sequence[Solution], names: Sequence[str]) -> list[int]:
    """Their order by richness, or an error that says what does not belong together."""
    if not solutions:
        raise ValueError("a report needs at least one solution")
    first = solutions[0]
    for solution, name in zip(solutions[1:], names[1:], strict=True):
        for what in ("X", "y"):
            if not np.array_equal(getattr(solution, what), getattr(first, what)):
                raise ValueError(f"a sweep must be of the same data, but {what} of {names[0]} and {name} differ")
        if solution.limit.network != first.limit.network:
            raise ValueError(f"a sweep must be of one network, but those of {names[0]} and {name} differ")
    _check_numbers(solutions, names)
    order = sorted(range(len(solutions)), key=lambda index: richness(solutions[index]))
    for one, other in pairwise(order):
        if richness(solutions[one]) == richness(solutions[other]):
            value = f"{richness(solutions[one]):g}"
            raise ValueError(
                f"a sweep must have every richness once, but {names[one]} and {names[other]} both have {value}"
            )
    return order


def _check_numbers(solutions: Sequence[Solution], names: Sequence[str]) -> None:
    """Refuse two adaptive limits, and numbers other than the richness that change along the way; a lazy limit may be the end of an adaptive one."""
    seen: dict[str, tuple[Any, str]] = {}
    for solution, name in zip(solutions, names, strict=True):
        numbers = {key: value for key, value in solution.limit.config().items() if key not in ("richness", "ridge")}
        if richness(solution) > 0:
            numbers["limit"] = solution.limit.kind
        for key, value in numbers.items():
            known, where = seen.setdefault(key, (value, name))
            if known != value:
                raise ValueError(
                    f"a sweep must differ in the richness alone, but {key} is {known} in {where} and {value} in {name}"
                )
    if "limit" not in seen:
        return
    adaptive, where = seen["limit"]
    for solution, name in zip(solutions, names, strict=True):
        if richness(solution) == 0 and solution.limit.kind not in (adaptive, _LAZY[adaptive]):
            raise ValueError(
                f"the lazy end of a sweep of {adaptive} ({where}) must be {_LAZY[adaptive]}, but {name} is {solution.limit.kind}"
            )
