r"""The aNBK of CNNs against Langevin-sampled networks: kernels, outputs, and kernels between positions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import special, stats

from adakern import finite
from adakern.benchmarks.cnn_tasks import images, scores, shallow, small, two_layers
from adakern.benchmarks.flow_networks import Data
from adakern.benchmarks.flow_rows import Options, Row, Setting, below, relative, rms
from adakern.limits import ANBK, NNGPK
from adakern.metrics import alignment
from adakern.plot import between_positions
from adakern.solution import Solution
from adakern.solving import solve

LEAST = 0.999  # alignment
STEPS = 100_000  # most gradient evaluations of a solve: the tolerance is to end it


def compare(options: Options, label: str, limit: ANBK, data: Data, width: int, replicas: int) -> Iterator[Row]:
    """The theory beside sampled networks, layer by layer; at full size so many networks of so many channels."""
    X, y, X_test, _ = data
    theory = solve(limit, X, y, tolerance=0.05 if options.quick else 0.005, steps=STEPS, throw=False)
    lazy = solve(NNGPK(limit.network, beta=limit.beta, decay=limit.decay), X, y)
    yield Row(
        f"{label}: seconds of the theory",
        float(theory.stats["seconds"]),
        note=_said(theory),
        series={"problem": label, "lazy_space": _space(lazy), "space": _space(theory), "grid": _grid(limit, X)},
    )
    wait = 5.0 if options.quick else 20.0
    run = finite.langevin(
        limit.network,
        X,
        y,
        richness=limit.richness,
        beta=limit.beta,
        decay=limit.decay,
        width=options.width or (128 if options.quick else width),
        replicas=options.replicas or (1 if options.quick else replicas),
        burn_in=wait,
        time=wait + (options.time or (15.0 if options.quick else 100.0)),
        X_test=X_test,
        precision="float32",
        snapshots=8,
        throw=False,
    )
    yield from _kernels(options, label, theory, lazy, run)
    at = f"{label}, N={run.settings.width}"
    for kind, points, found, errors in (
        ("outputs", X, run.fitted, run.fitted_errors),
        ("test outputs", X_test, run.test_predictions, run.test_errors),
    ):
        ours, doubt = theory.predict(points, return_std=True)
        z = scores(ours, found, doubt, errors)
        note = f"{rms(ours - np.asarray(found)):.2g} apart, rms; errors {rms(doubt):.2g} of the theory, {rms(errors):.2g} of the networks"
        yield below(f"{at}: {len(points)} {kind}, rms z", rms(z), 2.0, note=note)
        few = as_gaussian(z, doubt, errors, theory.stats["groups"])
        largest, name = float(np.abs(few).max()), f"{at}: {len(points)} {kind}, largest z"
        said = f"{np.abs(z).max():.3g} in standard errors, which are those of {theory.stats['groups']} groups"
        # The error bars of one short run are noisy themselves: quick runs do not judge the largest of many.
        yield Row(name, largest, note=said) if options.quick else below(name, largest, 4.0, note=said)


def as_gaussian(z: Any, few: Any, known: Any, groups: int) -> np.ndarray:
    r"""Scores of a standard Gaussian that are as rare as these, whose errors are in part estimates of few groups.

    With $e_1$ the scatter of $n$ groups and $e_2$ known, $z$ has Student's law with $(n-1)(1+e_2^2/e_1^2)^2$ degrees of freedom (Welch and Satterthwaite). For eight groups alone one score in 200 is beyond 4.
    """
    few, known = np.asarray(few, np.float64), np.asarray(known, np.float64)
    degrees = (groups - 1) * (1 + np.square(np.minimum(known / np.maximum(few, 1e-300), 1e3))) ** 2
    rare = stats.t.logsf(np.abs(z), np.minimum(degrees, 1e6))
    return np.asarray(np.sign(z) * -special.ndtri_exp(rare))


def _kernels(options: Options, label: str, theory: Solution, lazy: Solution, run: finite.Run) -> Iterator[Row]:
    width, least = run.settings.width, 0.98 if options.quick else LEAST
    fine = theory.converged and run.converged
    for layer, (ours, theirs) in enumerate(zip(theory.kernels, run.kernels, strict=True), 1):
        theirs = theirs.astype(np.float64)
        value = alignment(ours, theirs)
        note = f"{100 * relative(ours, theirs):.2g} % off, errors {_percent(theory, layer)} % and {_percent(run, layer)} %; lazy kernel {alignment(lazy.kernels[layer - 1], theirs):.4f}"
        series = {"problem": label, "layer": layer, "width": width}
        yield Row(
            f"{label}, N={width}: alignment of layer {layer}",
            value,
            f"≥ {least:g}",
            value >= least and fine,
            note=f"{note}; {_said(theory)}{_said(run)}".rstrip("; "),
            series=series,
        )
    space = between_positions(run, 1)
    ours = theory.spatial(1)
    yield Row(
        f"{label}, N={width}: kernels between positions, layer 1, relative difference",
        relative(ours, space),
        note=f"mean over {len(run.sample_times)} draws of a network; lazy {relative(lazy.spatial(1), space):.3g}",
        series={"problem": label, "network_space": space.tolist()},
    )


def _percent(found: Any, layer: int) -> str:
    errors, kernel = found.kernel_errors[layer - 1], found.kernels[layer - 1]
    return f"{100 * float(np.linalg.norm(errors) / np.linalg.norm(kernel)):.2g}"


def _said(found: Any) -> str:
    return "" if found.converged else f"NOT converged: {found.status}; "


def _space(solution: Solution) -> list[list[float]]:
    return solution.spatial(1).tolist()


def _grid(limit: ANBK, X: np.ndarray) -> list[int]:
    return list(limit.network.grids(X.shape)[0])  # type: ignore[attr-defined]  # a CNN


def one_layer(options: Options) -> Iterator[Row]:
    points = 20 if options.quick else 100
    limit = ANBK(shallow(options), richness=1.0, beta=50.0)
    data = images(options, points, 50 if options.quick else 500)
    return compare(options, f"CNN(1) relu, P={points}, richness 1, beta 50", limit, data, 4096, 4)


def deeper(options: Options) -> Iterator[Row]:
    points = 5 if options.quick else 12
    limit = ANBK(two_layers(), richness=1.0, beta=20.0)
    data = small(points, 50 if options.quick else 500)
    return compare(options, f"CNN(2) tanh, P={points}, richness 1, beta 20", limit, data, 1024, 4)


def settings() -> dict[str, Setting]:
    return {"P=100": one_layer, "two layers": deeper}
