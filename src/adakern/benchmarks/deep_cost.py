r"""What the training dynamics of deep networks cost: seconds and memory over points, time and depth, one of them varied at a time.

`python -m adakern.benchmarks.deep_cost '{"activation": "tanh", "points": 10, "depth": 2, "time": 1.0, "neurons": 1024}'` measures one of them in a process of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import numpy as np

from adakern.benchmarks.flow_rows import Options, Row, Setting, antk
from adakern.benchmarks.timing import alone, device_memory, peak_memory
from adakern.trajectories import dynamics as follow

MIB = 2**20
BASE: dict[str, Any] = {"points": 10, "depth": 2, "time": 1.0}
VARIED: dict[str, tuple[Any, ...]] = {
    "points": (5, 10, 20, 40),
    "time": (1.0, 4.0, 16.0, 64.0),
    "depth": (2, 3, 4, 6),
}
NEURONS, FEW = 8192, 1024
HOME = " on a processor"


def points(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Six numbers each, labelled by the sign of the product of two of them."""
    rng = np.random.default_rng(7)
    X = rng.standard_normal((count, 6))
    return X, np.sign(X[:, 0] * X[:, 1])


def work(activation: str, points_: int, depth: int, time: float, neurons: int) -> dict[str, Any]:
    """One population, twice: the second time everything is compiled."""
    before = peak_memory()
    data = points(points_)
    moments = np.geomspace(0.1, 1.0, 4) * time * 10 / points_
    limit = antk(depth, activation, 1.0, 0.1)
    some: dict[str, Any] = {"neurons": neurons, "replicas": 1, "keep": False, "throw": False}
    follow(limit, *data, moments, **some)
    found = follow(limit, *data, moments, **some)
    s, device = found.stats, device_memory()
    said = "" if found.converged else found.status
    return {
        "seconds": s["seconds"],
        "steps": s["steps"],
        "directions": s["directions"],
        "time": float(found.times[-1]),
        "resident": peak_memory() - before,
        "device": device,
        "kind": jax.devices()[0].device_kind,
        "said": said,
    }


def cost(options: Options, activation: str, home: bool = False) -> Iterator[Row]:
    """On a processor, times as multiples of the smallest problem's, all measured in one run; elsewhere in seconds."""
    neurons = FEW if options.quick else NEURONS
    kept: dict[tuple[Any, ...], dict[str, Any]] = {}
    for what, values in VARIED.items():
        seen: list[tuple[float, ...]] = []
        for value in values[:2] if options.quick else values:
            now = {**BASE, what: value}
            key = tuple(now.values())
            if key not in kept:
                payload = {
                    "activation": activation,
                    "points_": now["points"],
                    "depth": now["depth"],
                    "time": now["time"],
                    "neurons": neurons,
                }
                kept[key] = alone("adakern.benchmarks.deep_cost", payload, f"dynamics, {activation}, {now}", home)
                yield _row(activation, now, neurons, kept[key], kept)
            seen.append((value, kept[key]["steps"], kept[key]["seconds"], _memory(kept[key])))
        yield from _fits(activation, what, seen)


def _memory(found: dict[str, Any]) -> int:
    return found["resident"] if found["device"] is None else found["device"]


def _row(
    activation: str, now: dict[str, Any], neurons: int, found: dict[str, Any], kept: dict[tuple[Any, ...], Any]
) -> Row:
    relative = found["device"] is None
    first = next(iter(kept.values()))
    place = "two processor cores" if relative else found["kind"]
    of = f"times that of P={next(iter(kept))[0]}" if relative else "seconds"
    label = f"{activation}, L={now['depth']}, P={now['points']}, t={found['time']:g}, {neurons} neurons, {place}: {of}"
    what = "resident" if relative else "of the accelerator"
    note = f"{found['steps']} steps, {found['directions']} directions a layer, {_memory(found) / MIB:.0f} MiB {what}"
    series = {**now, **found, "memory": _memory(found)}
    measured = found["seconds"] / first["seconds"] if relative else found["seconds"]
    return Row(label, measured, note=note + (f"; {found['said']}" if found["said"] else ""), series=series)


def _fits(activation: str, what: str, seen: list[tuple[float, ...]]) -> list[Row]:
    """Exponents by least squares on logarithms."""
    values, steps, seconds, memory = (np.log(np.asarray(part, float)) for part in zip(*seen, strict=True))

    def power(x: np.ndarray, y: np.ndarray) -> float:
        return float(np.polyfit(x, y, 1)[0])

    rows = [Row(f"{activation}: seconds as a power of {what}", power(values, seconds))]
    if what == "points":
        rows[0] = Row(rows[0].setting, rows[0].measured, note="published: 3 for a given grid of times")
        rows.append(Row(f"{activation}: seconds of a step as a power of {what}", power(values, seconds - steps)))
    if what == "time":
        rows.append(Row(f"{activation}: steps as a power of {what}", power(values, steps)))
        rows.append(
            Row(f"{activation}: seconds as a power of the number of steps", power(steps, seconds), note="published: 3")
        )
    rows.append(Row(f"{activation}: memory as a power of {what}", power(values, memory)))
    return rows


def settings() -> dict[str, Setting]:
    kinds = "tanh", "relu"
    found: dict[str, Setting] = {kind: partial(cost, activation=kind) for kind in kinds}
    return found | {f"{kind}{HOME}": partial(cost, activation=kind, home=True) for kind in kinds}


if __name__ == "__main__":
    print(json.dumps(work(**json.loads(sys.argv[1]))))
