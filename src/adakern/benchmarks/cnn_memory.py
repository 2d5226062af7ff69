r"""Memory and seconds of CNNs at the paper's size.

`python -m adakern.benchmarks.cnn_memory '{"task": "NTK", "quick": false}'` measures one task in a process of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax

from adakern.benchmarks.cnn_flow import DECAY
from adakern.benchmarks.cnn_tasks import images, shallow
from adakern.benchmarks.flow_rows import Options, Row, Setting, below
from adakern.benchmarks.timing import Stopwatch, alone, device_memory, peak_memory
from adakern.limits import ANBK, ANTK, NTK
from adakern.solving import solve
from adakern.trajectories import dynamics

GIB = 1024**3
MOST = 8.0  # GiB, on a processor
FIRST = 1  # steps of the aNBK on a processor: as much memory as all of them, which take a GPU
LAST = (10.0, 1.0)  # time of the dynamics, over that of a point: on a GPU, and on a processor, likewise
ACCURACY = 1e-4  # of the dynamics
TASKS = ("NTK", "ANBK", "dynamics")
HOME = " on a processor"


def work(task: str, options: Options) -> dict[str, Any]:
    """One task in this process; the lazy limit also a second time, compiled."""
    X, y, X_test, y_test = images(options, 10 if options.quick else 1000, 50 if options.quick else 500)
    network, said = shallow(options), ""
    with Stopwatch() as first:
        if task == "NTK":
            solve(NTK(network), X, y)
        elif task == "ANBK":
            steps = None if options.quick or jax.default_backend() != "cpu" else FIRST
            said = solve(ANBK(network, richness=1.0, beta=50.0), X, y, steps=steps, throw=False).status
            said = said if steps is None else f"the first step: {said}"
        else:
            limit = ANTK(network, richness=1.0, decay=DECAY)
            tests: dict[str, Any] = {"X_test": X_test, "y_test": y_test}
            last = LAST[jax.default_backend() == "cpu"] / len(X)
            said = dynamics(limit, X, y, [last], accuracy=ACCURACY, throw=False, **tests).status
            said = f"to t = {last:g}; {said}"
    peak, device = peak_memory(), device_memory()
    with Stopwatch() as second:
        if task == "NTK":
            solve(NTK(network), X, y)
    again = second.wall if task == "NTK" else None
    return {"points": len(X), "seconds": first.wall, "again": again, "peak": peak, "device": device, "said": said}


def measure(options: Options, task: str, home: bool = False) -> Iterator[Row]:
    """Peak memory of the process, and of the accelerator if there is one and it is not to stay at home on the processor. Few points tell little: quick runs take the NTK alone."""
    if options.quick and task != "NTK":
        return
    payload = {"task": task, "quick": options.quick}
    found = alone("adakern.benchmarks.cnn_memory", payload, f"{task} of a CNN", home)
    label = f"{task}{HOME if home else ''}, P={found['points']}, CIFAR-10 in colour"
    again = "" if found["again"] is None else f"{found['again']:.1f} s once compiled; "
    yield Row(f"{label}: seconds, compilation included", found["seconds"], note=f"{again}{found['said']}".rstrip("; "))
    resident = f"{label}: peak resident memory, GiB"
    if found["device"] is None:
        yield below(resident, found["peak"] / GIB, MOST)
    else:
        yield Row(resident, found["peak"] / GIB, note="with the libraries of the accelerator")
        yield below(f"{label}: peak memory of the accelerator, GiB", found["device"] / GIB, MOST)


def settings() -> dict[str, Setting]:
    found: dict[str, Setting] = {task: partial(measure, task=task) for task in TASKS}
    return found | {f"{task}{HOME}": partial(measure, task=task, home=True) for task in TASKS[1:]}


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps(work(asked["task"], Options(quick=asked["quick"]))))
