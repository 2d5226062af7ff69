"""A limit as plain values, for a file's header, and back."""

from __future__ import annotations

from typing import Any

from adakern import limits, networks
from adakern.limits import Limit

FORMAT = "adakern-solution"


def limit_config(limit: Limit) -> dict[str, Any]:
    """A limit and its network as plain values."""
    return {"kind": limit.kind, "network": networks.describe(limit.network), "numbers": limit.config()}


def limit_from_config(config: dict[str, Any], activation: Any = None) -> Limit:
    """The limit that `limit_config` described."""
    kinds: dict[str, Any] = {kind.kind: kind for kind in limits.ALL}
    numbers = {k: tuple(v) if isinstance(v, list) else v for k, v in config["numbers"].items()}
    return kinds[config["kind"]](networks.recognise(config["network"], activation), **numbers)
