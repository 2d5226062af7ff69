"""Memory: how much there is, how much a piece of work may use, and a refusal before it starts."""

from __future__ import annotations

import os
from typing import Any

import jax

from adakern import checks
from adakern.errors import TooLargeError

GIB = 1024**3
DEFAULT_BUDGET = GIB  # for the temporary arrays of one batch


def available() -> int:
    """Bytes that can be allocated now without swapping (a guess of 8 GiB where the system does not say)."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):
        return 8 * GIB


def budget(value: Any) -> int:
    """The user's `memory` argument in bytes; None gives the default of 1 GiB."""
    return DEFAULT_BUDGET if value is None else int(checks.positive("memory", value))


def on_device() -> int | None:
    """Bytes free on the accelerator that computes, None where the device does not say (or is the host)."""
    stats = jax.local_devices()[0].memory_stats() if jax.default_backend() != "cpu" else None
    return stats["bytes_limit"] - stats["bytes_in_use"] if stats and "bytes_limit" in stats else None


def require(needed: int, what: str, advice: str = "fewer training points") -> None:
    """Refuse work whose results alone would not fit."""
    free = min(available(), on_device() or available())
    if needed > 0.9 * free:
        raise TooLargeError(
            f"{what} needs about {needed / GIB:.1f} GiB of memory, but only {free / GIB:.1f} GiB are free; "
            f"use {advice} or precision='float32'"
        )


def rows_per_batch(bytes_per_row: int, limit: int, total: int) -> int:
    """How many rows fit into the budget; at least one, at most all."""
    return max(1, min(total, limit // max(1, bytes_per_row)))
