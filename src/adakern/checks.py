"""Checks of what a user passes in: each error names the argument and says what it may be."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np


def as_array(name: str, value: Any) -> np.ndarray:
    """Turn anything array-like (lists, jax arrays, torch tensors) into a real float64 numpy array."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise ValueError(f"{name} must be complete, but it has masked values; fill or drop them first")
    if hasattr(value, "detach") and hasattr(value, "cpu"):  # torch: leave the graph and the device first
        value = value.detach().cpu().numpy()
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} must be a rectangular array of numbers, but its rows differ in length") from error
    if array.dtype == object:
        try:
            array = array.astype(np.float64)
        except OverflowError as error:
            raise ValueError(f"{name} must hold numbers that fit into float64, but one is too large") from error
        except (TypeError, ValueError) as error:
            raise TypeError(f"{name} must hold numbers, but it holds {type(array.flat[0]).__name__} objects") from error
    if array.dtype.kind not in "biuf":
        kind = "strings" if array.dtype.kind in "US" else f"values of type {array.dtype}"
        raise TypeError(f"{name} must hold real numbers, but it holds {kind}")
    return array.astype(np.float64, copy=False)


def finite(name: str, array: np.ndarray) -> np.ndarray:
    if not np.isfinite(array).all():
        what = "NaN" if np.isnan(array).any() else "infinity"
        raise ValueError(f"{name} must be finite, but it contains {what}")
    return array


def inputs(name: str, value: Any, ndim: int = 2, like: np.ndarray | None = None, empty: bool = False) -> np.ndarray:
    """Check a set of input points: `(points, features)`, or `(points, height, width, channels)` for images.

    `like` is an earlier set whose trailing shape the new one must share; `empty` allows no points at all.
    """
    array = as_array(name, value)
    wanted = {2: "2-D (points, features)", 4: "4-D (points, height, width, channels)"}[ndim]
    if array.ndim != ndim:
        hint = "; reshape one feature with X.reshape(-1, 1)" if array.ndim == 1 and ndim == 2 else ""
        raise ValueError(f"{name} must be {wanted}, but it has shape {array.shape}{hint}")
    if array.shape[0] == 0 and not empty:
        raise ValueError(f"{name} must have at least one point, but it has shape {array.shape}")
    if 0 in array.shape[1:]:
        raise ValueError(f"{name} must have at least one feature, but it has shape {array.shape}")
    if like is not None and array.shape[1:] != like.shape[1:]:
        raise ValueError(
            f"{name} must have points of shape {like.shape[1:]} like the training inputs, "
            f"but they have shape {array.shape[1:]}"
        )
    return finite(name, array)


def targets(name: str, value: Any, points: int) -> np.ndarray:
    """Check targets: `(points,)` or `(points, outputs)`."""
    array = as_array(name, value)
    if array.ndim not in (1, 2):
        raise ValueError(f"{name} must be 1-D (points,) or 2-D (points, outputs), but it has shape {array.shape}")
    if array.shape[0] != points:
        raise ValueError(f"{name} must have one row per point of X: X has {points}, {name} has {array.shape[0]}")
    if array.ndim == 2 and array.shape[1] == 0:
        raise ValueError(f"{name} must have at least one output, but it has shape {array.shape}")
    return finite(name, array)


def labels(name: str, targets: np.ndarray, loss: str) -> np.ndarray:
    """Check that targets are what a loss expects: ±1 for "logistic", one-hot rows (or probabilities) for "softmax"."""
    if loss == "logistic" and not np.isin(targets, (-1.0, 1.0)).all():
        raise ValueError(f"{name} must hold -1 and +1 for the logistic loss, but it holds {np.unique(targets)[:4]}")
    if loss == "softmax":
        if targets.ndim != 2:
            raise ValueError(
                f"{name} must be one-hot, (points, classes), for the softmax loss, but it has shape {targets.shape}"
            )
        if (targets < 0).any() or not np.allclose(targets.sum(axis=1), 1):
            raise ValueError(f"{name} must have rows that are one-hot (or probabilities) for the softmax loss")
    return targets


def number(name: str, value: Any) -> float:
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):  # a numpy or jax scalar
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, but it is {value!r}")
    result = float(value)
    if not np.isfinite(result):
        raise ValueError(f"{name} must be finite, but it is {result}")
    return result


def positive(name: str, value: Any) -> float:
    result = number(name, value)
    if result <= 0:
        raise ValueError(f"{name} must be greater than 0, but it is {result:g}")
    return result


def nonnegative(name: str, value: Any) -> float:
    result = number(name, value)
    if result < 0:
        raise ValueError(f"{name} must be 0 or greater, but it is {result:g}")
    return result


def integer(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer, but it is {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, but it is {value}")
    return int(value)


def seed(name: str, value: Any) -> int:
    result = integer(name, value, least=0)
    if result >= 2**63:
        raise ValueError(f"{name} must be below 2**63, but it is {result}")
    return result


def choice(name: str, value: Any, allowed: Sequence[str]) -> str:
    listing = ", ".join(repr(item) for item in allowed)
    if not isinstance(value, str):
        raise TypeError(f"{name} must be one of {listing}, but it is {value!r}")
    if value not in allowed:
        raise ValueError(f"{name} must be one of {listing}, but it is {value!r}")
    return value


def decays(name: str, value: Any, layers: int, zero: bool = False) -> tuple[float, ...]:
    """One positive (or, if `zero`, non-negative) number per weight layer ℓ = 0..L, from a number or a sequence of L+1 numbers."""
    check = nonnegative if zero else positive
    if hasattr(value, "__array__"):
        value = as_array(name, value).tolist()
    if isinstance(value, (set, frozenset, Mapping)):
        raise TypeError(f"{name} must be one number or a sequence of {layers}, in order, but it is {value!r}")
    if isinstance(value, Iterable) and not isinstance(value, str):
        values = tuple(check(f"{name}[{i}]", item) for i, item in enumerate(value))
        if len(values) != layers:
            raise ValueError(
                f"{name} must be one number or {layers} of them (one per weight layer, depth + 1), "
                f"but it has {len(values)}"
            )
        return values
    return (check(name, value),) * layers
