"""Stopwatches, and a word about the machine."""

from __future__ import annotations

import os
import platform
import time
from typing import Any

import jax
import numpy as np

from adakern._version import __version__


class Stopwatch:
    """Seconds on the wall and of the processor (all threads together) that a `with` block takes."""

    wall = processor = 0.0

    def __enter__(self) -> Stopwatch:
        self._started = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall, self.processor = time.perf_counter() - self._started[0], time.process_time() - self._started[1]


def machine() -> dict[str, Any]:
    """Where the numbers come from."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": _cpu_model(),
        "cores": cores,
        "backend": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
        "blas_threads": os.environ.get("OPENBLAS_NUM_THREADS"),  # of the Cholesky factorisation, if the user set it
        "adakern": __version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
