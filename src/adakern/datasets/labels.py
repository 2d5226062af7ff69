"""From the ten classes of a data set to the targets of a task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from adakern import checks
from adakern.datasets.order import CLASSES

Groups = tuple[tuple[int, ...], ...]


def as_groups(classes: Any) -> Groups:
    """Check `classes`: two or more class numbers 0..9, or groups of them; a class stands in one place only."""
    if not _is_sequence(classes):
        raise TypeError(f"classes must be a sequence of class numbers or of groups of them, but it is {classes!r}")
    groups = []
    for i, item in enumerate(classes):
        members = tuple(item) if _is_sequence(item) else (item,)
        if not members:
            raise ValueError(f"classes[{i}] must name at least one class, but it is an empty group")
        groups.append(tuple(checks.integer(f"classes[{i}]", member, 0) for member in members))
    flat = [member for group in groups for member in group]
    for member in flat:
        if member >= CLASSES:
            raise ValueError(f"classes must be numbers from 0 to {CLASSES - 1}, but one is {member}")
        if flat.count(member) > 1:
            raise ValueError(f"classes must name each class once, but {member} is named {flat.count(member)} times")
    if len(groups) < 2:
        raise ValueError(f"classes must name at least two classes or groups, but it names {len(groups)}")
    return tuple(groups)


def as_targets(labels: np.ndarray, groups: Groups) -> np.ndarray:
    """Two groups: -1 for the first and +1 for the second, `(n,)`. More: one-hot rows of 1 and 0, `(n, groups)`."""
    member = np.stack([np.isin(labels, group) for group in groups], axis=1)
    if len(groups) == 2:
        return np.where(member[:, 1], 1.0, -1.0)
    return member.astype(np.float64)


def _is_sequence(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))
