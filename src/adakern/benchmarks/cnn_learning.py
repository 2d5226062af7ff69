r"""Test losses of CNN and MLP on the paper's task: its published numbers, and over the number of training points.

The library's flow has the loss summed over patterns. A flow with the mean, $\dot\theta=-\frac{\gamma^2}P\nabla\mathcal L-\lambda\theta$, followed for a time $T$, is the flow with the sum and decay $\lambda P$,
followed for $T/P$: divide the equation by $1/P$ and count time in units of $P$. No factor of two comes with it: the published gradient is that of $\frac12\gamma_0^2N$ times a mean of squares, which is $\gamma_0^2N$ times the mean of
$\ell=\frac12\Delta^2$, as here.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from adakern import finite
from adakern.benchmarks.cnn_flow import DECAY, RICHNESS
from adakern.benchmarks.cnn_tasks import architectures
from adakern.benchmarks.flow_networks import Data, rested, trained
from adakern.benchmarks.flow_rows import Options, Row, Setting, below
from adakern.benchmarks.flow_runs import ended
from adakern.limits import ANTK
from adakern.trajectories import dynamics

LENGTH = 200.0  # 200000 steps of 0.001
FITTED = 1e-5  # of the mean of ℓ at the training points
LONGEST = 64.0  # time for it
STEP = 1e-3  # of the published descent of the sum
FURTHEST, WIDE = 12.0, 5000  # how long it is followed here, and its neurons
MOMENTS = 161  # of the later half, in which it is looked at
PUBLISHED = {
    ("CNN", "mean"): (0.4609, 0.4640),
    ("MLP", "sum"): (0.5683, 0.5700),
    ("MLP", "descent"): (0.5683, 0.5700),
}  # test losses: theory of 10000 neurons, and a network (1024 channels, 5000 neurons)
PUBLISHED_TRAIN = {("CNN", "mean"): (0.1883, 0.1881)}  # ½⟨Δ²⟩ likewise
CLOSE = 0.01
GAPS = {
    ("MLP", 1000): 0.05,
    ("CNN", 1000): 0.02,
}  # of the value, at rest: in as many dimensions as there are images, pulls of very many unit neurons are close to the strongest, and the last percents of the gap take hours
GAP = 0.01  # elsewhere
AGES, WIDTH = 40.0, 2048  # of a network that is trained to its rest: time in 1/decay, and neurons
POINTS = (50, 100, 200, 500, 1000)


class End(NamedTuple):
    """Means of Δ² where a rule stopped, with standard errors over replicas."""

    train: float
    test: float
    error: float
    scatter: float  # standard error of the test loss over test points
    note: str


def _follow(options: Options, limit: ANTK, data: Data, times: Any) -> Any:
    X, y, X_test, y_test = data
    return dynamics(
        limit,
        X,
        y,
        times,
        X_test=X_test,
        y_test=y_test,
        neurons=options.width or (128 if options.quick else 2048),
        replicas=options.replicas or (2 if options.quick else 4),
        accuracy=1e-3 if options.quick else 1e-4,
        keep=False,
        precision="float32",
        throw=False,
    )


def _scatter(y: np.ndarray, f: np.ndarray) -> float:
    return float(np.std((y - f) ** 2, ddof=1) / math.sqrt(len(y)))


def _told(path: Any) -> str:
    said = "" if path.converged else f"FAILED: {path.status}; "
    return f"{said}{path.stats['evaluations']} evaluations, {path.stats['seconds']:.0f} s"


def by_mean(options: Options, network: Any, richness: float, data: Data) -> End:
    """The mean over patterns, for a given time."""
    points = len(data[0])
    limit = ANTK(network, richness=richness, decay=DECAY * points)
    path = _follow(options, limit, data, [LENGTH / points])
    if not len(path.times):
        return End(math.nan, math.nan, math.nan, math.nan, _told(path))
    scatter = _scatter(data[3], path.predictions[-1])
    train, test, error = (2 * float(x[-1]) for x in (path.train_loss, path.test_loss, path.test_loss_errors))
    return End(
        train, test, error, scatter, f"Σ with decay {DECAY * points:g} to t = {LENGTH / points:g}; {_told(path)}"
    )


def by_sum(options: Options, network: Any, richness: float, data: Data) -> End:
    """The sum over patterns, until the training points are fitted: longer and longer runs, and the first moment that is far enough in the last one, or the best."""
    limit, length = ANTK(network, richness=richness, decay=DECAY), LONGEST / 16
    while True:
        path = _follow(options, limit, data, np.geomspace(length / 8, length, 10))
        fitted = path.train_loss <= FITTED
        if fitted.any() or not path.converged or length >= LONGEST:
            break
        length *= 4
    if not len(path.times):
        return End(math.nan, math.nan, math.nan, math.nan, _told(path))
    place = int(np.argmax(fitted) if fitted.any() else np.argmin(path.train_loss))
    train, test, error = (2 * float(x[place]) for x in (path.train_loss, path.test_loss, path.test_loss_errors))
    reached = f"mean of ℓ {train / 2:.2g} at t = {path.times[place]:.3g}" + ("" if fitted.any() else ": NOT fitted")
    return End(train, test, error, _scatter(data[3], path.predictions[place]), f"{reached}; {_told(path)}")


def by_descent(options: Options, network: Any, richness: float, data: Data) -> End:
    """A network of finite width by the published program's own steps, with the sum over patterns. They are no flow: the loss jumps again and again, at a fastest rate close to 2/step."""
    X, y, X_test, y_test = data
    moments = np.linspace(0.5, 1.0, MOMENTS) * (options.time or FURTHEST)
    run = finite.gradient_flow(
        network,
        X,
        y,
        richness=richness,
        decay=DECAY,
        width=options.width or WIDE,
        time=float(moments[-1]),
        method="descent",
        step=STEP,
        centred=True,
        tolerance=0.0,
        times=moments.tolist(),
        X_test=X_test,
        y_test=y_test,
        throw=False,
    )
    kept = np.unique(run.sample_times)
    losses = np.array([run.losses[np.argmin(np.abs(run.times - time))] for time in kept])
    fitted = losses <= FITTED
    place = int(np.argmax(fitted) if fitted.any() else np.argmin(losses))
    there = run.at(kept[place])
    predicted = np.ravel(there.predict(X_test))
    rates = [np.linalg.eigvalsh(run.at(time).tangent_kernel)[-1] for time in kept[:: max(1, len(kept) // 5)]]
    said = f"N={run.settings.width}, mean of ℓ {losses[place]:.3g} at t = {kept[place]:.3g}" + (
        "" if fitted.any() else f", the least of {len(kept)} moments: NOT below {FITTED:g} at any"
    )
    jumps = int(np.count_nonzero(np.diff(run.losses) > 0.5 * run.losses[:-1]))
    jumped = f"rises by half or more in {jumps} of {len(run.losses) - 1} intervals; step times the fastest rate {STEP * min(rates):.3g} to {STEP * max(rates):.3g} at {len(rates)} moments; {run.status}"
    test = float(np.mean((y_test - predicted) ** 2))
    return End(2 * float(losses[place]), test, math.nan, _scatter(y_test, predicted), f"{said}; {jumped}")


def at_rest(options: Options, network: Any, richness: float, data: Data) -> End:
    """Where the flow with the sum ends."""
    X, y, X_test, y_test = data
    limit, which = ANTK(network, richness=richness, decay=DECAY), type(network).__name__
    images = f"{zlib.crc32(np.asarray(X).tobytes()):08x}"  # those of the data set's order and the published program's are as many
    checkpoint = options.checkpoint(f"{which}, P={len(X)}, images {images}, at rest")
    theory = rested(limit, X, y, tolerance=GAPS.get((which, len(X)), GAP), checkpoint=checkpoint)
    predicted = theory.predict(X_test)
    train, test = (float(np.mean((a - b) ** 2)) for a, b in ((y, theory.fitted), (y_test, predicted)))
    said = "" if theory.converged else "NOT converged: "
    value = float(theory.stats["objective"])
    note = f"{said}{theory.status}; value {value:.6g}; {theory.stats['seconds']:.0f} s"
    return End(train, test, 0.0, _scatter(y_test, predicted), note)


def network_at_rest(options: Options, network: Any, data: Data, name: str) -> End:
    """The same of a network of finite width, richness 1."""
    options = replace(options, time=options.time or AGES)
    width, y_test = options.width or WIDTH, data[3]
    train = partial(trained, options, ANTK(network, richness=1.0, decay=DECAY), data, {"method": "momentum"}, width, 0)
    run = ended(train, network, data[0], options.runs, f"{name}, N={width}, seed 0, time {options.time:g}", False)
    f, predicted = np.ravel(run.fitted), np.ravel(run.test_predictions)
    train_loss, test_loss = (float(np.mean((a - b) ** 2)) for a, b in ((data[1], f), (y_test, predicted)))
    note = f"N={width}, value {run.facts['value']:.6g}, moves by {run.facts['rate']:.2g} per unit of time; {run.facts['how']}"
    return End(train_loss, test_loss, 0.0, _scatter(y_test, predicted), note)


RULES = {"sum": by_sum, "mean": by_mean, "rest": at_rest, "descent": by_descent}
WORDS = {
    "sum": f"sum over patterns until the mean of ℓ is {FITTED:g}",
    "mean": f"mean over patterns, time {LENGTH:g}",
    "rest": "at rest",
    "descent": f"network by gradient descent of the sum, step {STEP:g}, until the mean of ℓ is {FITTED:g}",
}


def published(
    options: Options, rule: str, points: int = 1000, only: str | None = None, theirs: bool = False
) -> Iterator[Row]:
    """CNN and MLP, or one of them, by one rule, richness 1; `theirs`: on the images of the published program. Quick runs leave these out, and rest: `antk` compares it with networks. Of 1000 points networks are brought to rest on a GPU alone."""
    if options.quick and (rule == "rest" or theirs):
        return
    points, tests = (40, 100) if options.quick else (points, 500)
    ends = {}
    for which, (network, data) in architectures(options, points, tests, theirs).items():
        if only not in (None, which):
            continue
        end = ends[which] = RULES[rule](options, network, 1.0, data)
        label = f"{which}, P={points}, {'their images, ' if theirs else ''}{WORDS[rule]}"
        note = f"{end.scatter:.2g} over the choice of test images; {end.note}"
        yield Row(f"{label}: test loss ⟨Δ²⟩", end.test, error=end.error, note=note)
        yield Row(f"{label}: train loss ⟨Δ²⟩", end.train)
        if theirs and (which, rule) in PUBLISHED:
            yield from _beside(label, which, rule, end)
        if rule == "rest" and (points < 1000 or jax.default_backend() != "cpu"):
            trained_end = network_at_rest(options, network, data, f"{which}, P={points}, richness 1, decay {DECAY:g}")
            said = f"train {trained_end.train:.3g}; {trained_end.note}"
            yield Row(f"{label}, network: test loss ⟨Δ²⟩", trained_end.test, note=said)
    if only is None:
        yield _wins(f"P={points}, {WORDS[rule]}", ends, None if options.quick else True)


def _beside(label: str, which: str, rule: str, end: End) -> Iterator[Row]:
    """Test and train loss less the published ones."""
    test, network = PUBLISHED[which, rule]
    note = f"published: theory {test:.4f}, network {network:.4f}; of one population of 10000 neurons, and one network"
    yield below(
        f"{label}: distance from the published test loss", abs(end.test - test), CLOSE, error=end.error, note=note
    )
    if (which, rule) in PUBLISHED_TRAIN:
        train, network = PUBLISHED_TRAIN[which, rule]
        note = f"½⟨Δ²⟩ is {end.train / 2:.4f}; published: theory {train:.4f}, network {network:.4f}"
        yield below(f"{label}: distance from the published ½⟨Δ²⟩", abs(end.train / 2 - train), CLOSE, note=note)


def _wins(label: str, ends: dict[str, End], judged: bool | None) -> Row:
    """The CNN is better than the MLP."""
    row = below(f"{label}: test loss of the CNN over the MLP's", ends["CNN"].test / ends["MLP"].test, 1.0)
    return row if judged else Row(row.setting, row.measured)


def growing(options: Options, richness: float) -> Iterator[Row]:
    """Test losses over the number of points, with the mean over patterns."""
    chosen = (20, 40) if options.quick else POINTS
    for points in chosen:
        ends = {}
        for which, (network, data) in architectures(options, points, 100 if options.quick else 500).items():
            end = ends[which] = by_mean(options, network, richness, data)
            series = {"which": which, "richness": richness, "points": points, "test": end.test, "error": end.error}
            at = f"{which}, richness {richness:g}, P={points}: test loss ⟨Δ²⟩"
            yield Row(at, end.test, error=end.error, note=f"train {end.train:.3g}; {end.note}", series=series)
    yield _wins(f"richness {richness:g}, P={chosen[-1]}", ends, None if options.quick else True)


def published_settings() -> dict[str, Setting]:
    found: dict[str, Setting] = {rule: partial(published, rule=rule) for rule in ("sum", "mean")}
    words = {"sum": "fitted", "mean": "timed", "rest": "resting"}  # of their own: a name is found by its parts
    for rule, word in words.items():
        for which in ("MLP", "CNN"):
            found[f"their images, {word}, {which}"] = partial(published, rule=rule, only=which, theirs=True)
    found["their images, descended, MLP"] = partial(published, rule="descent", only="MLP", theirs=True)
    for points in (100, 1000):  # each takes long
        for which in ("MLP", "CNN"):
            found[f"rest, P={points}, {which}"] = partial(published, rule="rest", points=points, only=which)
    return found


def points_settings() -> dict[str, Setting]:
    return {f"richness {richness:g}": partial(growing, richness=richness) for richness in RICHNESS}
