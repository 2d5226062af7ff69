r"""Training over time of deep networks: `dynamics` with several hidden layers against networks of two widths, extrapolated to infinite width; against where it ends; the noise of its responses; and its cost."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from adakern import files, finite
from adakern.benchmarks import deep_cost, deep_responses, flow_networks
from adakern.benchmarks.flow_rows import Case, Options, Row, Setting, antk, below, mnist, name, rms
from adakern.limits import ANTK
from adakern.trajectories import Trajectory
from adakern.trajectories import dynamics as follow
from adakern.trajectories.running import without_responses

WIDTHS = 2048, 8192
POINTS = {"synthetic": 10, "mnist": 20}
WORST = 2.0  # rms of z over times, or over entries of kernels
VISIBLE = 2.0  # times the worst, where responses are left out
ROUGH = 1e-3  # accuracy of quick runs, and of what is wrong anyway
_KIND = "adakern-moments"

Data = tuple[np.ndarray, np.ndarray]


def points(source: str, count: int) -> Data:
    if source == "mnist":
        return mnist(count)[:2]
    return deep_cost.points(count)


def sizes(options: Options) -> tuple[tuple[int, int], int, dict[str, Any]]:
    """Widths of the networks and how many of each; neurons and replicas of the theory."""
    few: dict[str, Any] = {"neurons": 1024, "replicas": 4} if options.quick else {"neurons": 8192, "replicas": 8}
    usual = (128, 512) if options.quick else WIDTHS
    widths = usual if options.width is None else (options.width // 4, options.width)
    return widths, options.replicas or (4 if options.quick else 8), few


def trained(options: Options, label: str, limit: ANTK, data: Data, times: np.ndarray, width: int, seed: int) -> Any:
    """Losses, (T,), and kernels, (T, L, P, P), of a network at the times; kept in the folder of runs."""
    key = f"{label}, N={width}, seed {seed}, t={times[-1]:g}x{len(times)}"
    path = (
        None if options.runs is None else Path(options.runs) / f"{key.replace('/', '-').replace(' ', '_')}.safetensors"
    )
    if path is not None and path.exists():
        held, _ = files.read(path, _KIND)
        return held["losses"], held["kernels"]
    run = finite.gradient_flow(
        limit.network,
        *data,
        richness=limit.richness,
        decay=limit.decay,
        width=width,
        time=float(times[-1]),
        times=times.tolist(),
        seed=100 + seed,
        centred=True,
        tolerance=0.0,
        accuracy=1e-4,
        precision="float32",
    )
    rows = [int(np.argmin(np.abs(run.times - moment))) for moment in times]
    kernels = np.stack([np.stack(run.at(float(moment)).kernels) for moment in times]).astype(np.float64)
    found = np.asarray(run.losses[rows], np.float64), kernels
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, _KIND, {"losses": found[0], "kernels": found[1]}, {})
    return found


def infinite(widths: tuple[int, int], found: list[list[np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Of numbers of networks of two widths, (networks, ...): their value at infinite width, linear in 1/N, and its standard error."""
    small, large = (np.stack(each) for each in found)
    n, N = widths
    near, far = N / (N - n), n / (N - n)
    error = np.hypot(
        near * large.std(axis=0, ddof=1) / math.sqrt(len(large)),
        far * small.std(axis=0, ddof=1) / math.sqrt(len(small)),
    )
    return near * large.mean(axis=0) - far * small.mean(axis=0), error


def held(options: Options, source: str, problem: tuple[int, str, float, float]) -> tuple[np.ndarray, ...] | None:
    """Losses, kernels and their errors of networks that a file of extrapolated ones has, where `runs` is one."""
    if options.runs is None or options.runs.suffix != ".npz":
        return None
    depth, activation, richness, decay = problem
    key = f"L{depth}_{activation}_decay{decay:g}"
    with np.load(options.runs) as kept:
        if source != "synthetic" or richness != 1.0 or options.quick or f"{key}/losses" not in kept:
            raise ValueError(f"--runs {options.runs} has no networks of {source} {name(*problem)}; give a folder")
        return tuple(kept[f"{key}/{part}"] for part in ("losses", "losses_errors", "kernels", "kernels_errors"))


def networks(options: Options, source: str, problem: tuple[int, str, float, float]) -> Iterator[Row]:
    """Losses and kernels at several times."""
    widths, copies, many = sizes(options)
    label, limit = f"{source} {name(*problem)}", antk(*problem)
    data = points(source, 5 if options.quick else POINTS[source])
    times = np.geomspace(0.05, 1.0 if options.quick else 4.0, 4 if options.quick else 8) * 10 / len(data[0])
    accuracy = ROUGH if options.quick else 3e-4
    known = held(options, source, problem)
    if known is not None:  # the networks are what they are; replicas and width are the theory's
        given = {"replicas": options.replicas, "neurons": options.width}
        widths, copies, many = WIDTHS, 8, many | {name: value for name, value in given.items() if value is not None}
    theory = follow(limit, *data, times, keep=False, accuracy=accuracy, throw=False, **many)
    if known is None:
        found: list[list[Any]] = [
            [trained(options, label, limit, data, times, width, seed) for seed in range(copies)] for width in widths
        ]
        losses, doubt = infinite(widths, [[one[0] for one in part] for part in found])
        kernels, doubts = infinite(widths, [[one[1] for one in part] for part in found])
    else:
        losses, doubt, kernels, doubts = known
    at = f"{label}, P={len(data[0])}, N={widths[0]} and {widths[1]}, {copies} networks each"
    stats = theory.stats
    note = f"{stats['seconds']:.0f} s for the theory, {stats['steps']} steps, {stats['directions']} directions" + (
        "" if theory.converged else f"; {theory.status}"
    )
    if known is not None:
        note += f", {many['replicas']} populations of {many['neurons']} neurons"
    few: dict[str, Any] = {**many, "accuracy": accuracy}
    if known is not None:  # what is wrong by far needs no sharp error
        few = {"neurons": many["neurons"] // 2, "replicas": 2, "accuracy": ROUGH}
    for good in (True, False):
        way = theory if good else without_responses(limit, *data, times, **few)
        size = len(way.times)
        z = (way.train_loss - losses[:size]) / np.hypot(doubt[:size], way.train_loss_errors)
        Z = (way.kernels - kernels[:size]) / np.hypot(doubts[:size], way.kernel_errors)
        series = _series(label, times[:size], way, losses, doubt, good)
        series["z"] = z.tolist()
        if good:
            yield below(f"{at}: loss, rms z over {size} times", rms(z), WORST, note=note, series=series)
            for layer in range(problem[0]):
                off = np.linalg.norm(way.kernels[-1, layer] - kernels[size - 1, layer]) / np.linalg.norm(
                    kernels[size - 1, layer]
                )
                text = f"{100 * off:.2g} % off at the last time"
                yield below(f"{at}: kernel of layer {layer + 1}, rms z", rms(Z[:, layer]), WORST, note=text)
        else:
            worst = max(rms(z), *(rms(Z[:, layer]) for layer in range(problem[0])))
            text = f"loss {way.train_loss[-1]:.4g} at the end, networks {losses[size - 1]:.4g}"
            bar = VISIBLE * WORST
            yield Row(f"{at}: without responses, rms z", worst, f"≥ {bar:g}", worst >= bar, note=text, series=series)


def _series(
    label: str, times: np.ndarray, way: Trajectory, losses: np.ndarray, doubt: np.ndarray, good: bool
) -> dict[str, Any]:
    return {
        "problem": label,
        "kind": "train" if good else "without responses",
        "times": times.tolist(),
        "theory": way.train_loss.tolist(),
        "theory_error": way.train_loss_errors.tolist(),
        "network": losses[: len(times)].tolist(),
        "network_error": doubt[: len(times)].tolist(),
    }


def end(options: Options, problem: tuple[int, str, float, float]) -> Iterator[Row]:
    """Where training ends, against `solve`."""
    label, limit, data = name(*problem), antk(*problem), points("synthetic", 6)
    last = (60.0 if options.quick else 200.0) / problem[3]
    kinked = problem[1] == "relu"
    # Few neurons tell a smooth network's law, and what is not remembered is all that is left to be wrong. Sharper corners than these would ask for more directions late in training than neurons have room for.
    few, most, accuracy = (1024, 4096, 1e-3) if kinked else (1024, 2048, 1e-3 if options.quick else 3e-4)
    many: dict[str, Any] = {"neurons": few if options.quick else most, "replicas": 4} | (
        {} if kinked else {"resolution": 1e-6}
    )
    theory = follow(limit, *data, [last / 4, last], keep=False, accuracy=accuracy, throw=False, **many)
    rest = flow_networks.rested(limit, *data)
    moved = rms(theory.fitted[-1] - theory.fitted[0])
    note = f"moved by {moved:.2g} since t = {last / 4:g}; {theory.stats['seconds']:.0f} s" + (
        "" if theory.converged else f"; {theory.status}"
    )
    off, error = theory.fitted[-1] - rest.fitted, theory.fitted_errors[-1]
    # What `solve` stops at, its residual; kinks are rounded over thirty times the accuracy.
    least = (3e-3, 0.02) if kinked else (1e-4, 1e-3)
    bar = 3 * rms(error) + least[0]
    yield below(f"{label}: outputs apart at t = {theory.times[-1]:g}, rms", rms(off), bar, error=rms(error), note=note)
    for layer, (ours, theirs) in enumerate(zip(theory.kernels[-1], rest.kernels, strict=True), 1):
        scale = float(np.linalg.norm(theirs))
        doubt = float(np.linalg.norm(theory.kernel_errors[-1][layer - 1])) / scale
        away = float(np.linalg.norm(ours - theirs)) / scale
        yield below(f"{label}: kernel of layer {layer} off, relative", away, 3 * doubt + least[1], error=doubt)


def _network_settings() -> dict[str, Setting]:
    found: dict[str, Setting] = {}
    for source, depth, activation, decay in itertools.product(POINTS, (2, 3), ("tanh", "relu"), (0.0, 0.1)):
        problem = (depth, activation, 1.0, decay)
        found[f"{source} {name(*problem)}"] = partial(networks, source=source, problem=problem)
    return found


def _end_settings() -> dict[str, Setting]:
    problems = [(depth, activation, 1.5, 0.3) for depth in (2, 3) for activation in ("linear", "tanh", "relu")]
    return {name(*problem): partial(end, problem=problem) for problem in problems}


CASES: dict[str, Case] = {
    "networks": Case(
        "Losses and kernels at several times, of `dynamics` and of networks of two widths, extrapolated in 1/N; z is the difference over the joint standard error. Without the response functions the same comparison must fail.",
        _network_settings(),
    ),
    "end": Case("Late in training with weight decay, against `solve`, which knows nothing of time.", _end_settings()),
    "noise": Case(
        "The response function of one moment, tanh, P = 5: spread of its estimates over populations of equal size, relative to it. By Stein's lemma with independent draws; with draws orthogonal to what is known, as `dynamics` does; and by exact Jacobians.",
        {"tanh": deep_responses.noise},
    ),
    "cost": Case(
        "One population, float64, a second run, without compilation, each in a process of its own; memory is the most that it took. The published algorithm costs O(P³T³) and keeps (P·T)² numbers.",
        deep_cost.settings(),
    ),
}
