"""Floating-point precision, chosen per call and never globally.

JAX computes in float32 unless 64-bit mode is on. adakern does not touch the process-wide switch: every public
call enters `scope(precision)`, which sets the mode for the calling thread and restores it on the way out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from adakern import checks

PRECISIONS = ("float32", "float64")


@contextmanager
def scope(precision: str) -> Iterator[np.dtype[Any]]:
    """Compute in `precision` inside the `with` block; yields the numpy dtype.

    Inside, Python floats and numpy float64 arrays become jax arrays of that dtype. Works the same whether or not
    the user has switched `jax_enable_x64` on for the process.
    """
    checks.choice("precision", precision, PRECISIONS)
    with jax.enable_x64(precision == "float64"):
        yield np.dtype(precision)


@contextmanager
def host() -> Iterator[None]:
    """Compute on the processor inside the `with` block, whatever accelerator there is: for work that goes back and forth with numpy in small pieces."""
    try:
        device = jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # the user has switched the processor off (JAX_PLATFORMS)
        yield
        return
    with jax.default_device(device):
        yield
