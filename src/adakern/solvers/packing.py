"""Nested records as arrays and plain values, for a checkpoint, and back."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adakern.checkpoints import Content


def pack(value: Any) -> Content:
    """Arrays by number, and a description of what holds them."""
    arrays: dict[str, np.ndarray] = {}

    def describe(part: Any) -> Any:
        if isinstance(part, (np.ndarray, np.generic, jax.Array)):
            name = f"array.{len(arrays)}"
            arrays[name] = np.asarray(part)
            # Files hold no arrays without dimensions: the shape is kept beside.
            return {"array": name, "device": isinstance(part, jax.Array), "shape": list(np.shape(part))}
        if is_dataclass(part) and not isinstance(part, type):
            return {"record": type(part).__name__, "parts": [describe(getattr(part, f.name)) for f in fields(part)]}
        if isinstance(part, tuple):
            kind = type(part).__name__ if hasattr(part, "_fields") else "tuple"
            return {"record": kind, "parts": [describe(p) for p in part]}
        return {"plain": part}

    return arrays, {"record": describe(value)}


def unpack(content: Content, kinds: dict[str, Any]) -> Any:
    """What `pack` packed; `kinds` are the record classes that may occur, by name."""
    arrays, header = content

    def build(part: dict[str, Any]) -> Any:
        if "plain" in part:
            return part["plain"]
        if "array" in part:
            array = arrays[part["array"]].reshape(part["shape"])
            return jnp.asarray(array) if part["device"] else array
        parts = [build(p) for p in part["parts"]]
        return tuple(parts) if part["record"] == "tuple" else kinds[part["record"]](*parts)

    return build(header["record"])
