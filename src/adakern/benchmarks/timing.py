"""Stopwatches, and a word about the machine."""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
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


def alone(module: str, payload: dict[str, Any], what: str, home: bool = False) -> dict[str, Any]:
    """The numbers that `python -m module '{...}'` prints, measured in a process of its own, so that its peak memory is its own too; `home`: on the processor, also where there is a GPU."""
    # A GPU's memory is taken as it is needed: this process may hold most of it already.
    surroundings = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    if home:
        surroundings["JAX_PLATFORMS"] = "cpu"
    command = [sys.executable, "-m", module, json.dumps(payload)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=surroundings)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"the benchmark of {what} failed: {last}")
    return json.loads(done.stdout)


def peak_memory() -> int:
    """Most resident memory that this process has had, in bytes."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            for line in file:
                # Of this program; what getrusage says counts the parent's size at the fork.
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def device_memory() -> int | None:
    """Most memory that arrays have taken on this process's accelerator, in bytes; None where there is none."""
    device = jax.devices()[0]
    stats = None if device.platform == "cpu" else device.memory_stats()
    return None if not stats else int(stats.get("peak_bytes_in_use", 0)) or None


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
