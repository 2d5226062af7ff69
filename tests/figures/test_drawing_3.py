"""The figures of kernels and predictors draw small made-up numbers, and what they measure is right where it is known."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from adakern.figures import alignment, comparing, deep, kernels, predictors
from adakern.figures.shape import Data

Y = np.array([-1.0, 1.0, -1.0, 1.0])
POINTS = len(Y)


def layers(depth: int, error: float = 0.01) -> dict[str, np.ndarray]:
    one = np.eye(POINTS) + 0.5 * np.outer(Y, Y)
    return {
        "kernels": np.stack([one] * depth),
        "errors": np.full(depth, error),
        "label": np.linspace(0.3, 0.6, depth),
        "label_error": np.full(depth, error),
    }


def start(depth: int) -> dict[str, np.ndarray]:
    return {"y": Y, "inputs": np.eye(POINTS), **layers(depth, 0.0)}


def learned():
    settings = kernels.Settings(
        cases=(("ANBK", "cifar10", POINTS, "relu", (0.1, 1.0)), ("ANTK", "mnist", POINTS, "tanh", (0.5,)))
    )
    numbers = {}
    for kind, source, _, _, scan in settings.cases:
        numbers[f"lazy, {kind}, {source}"] = start(1)
        for richness in scan:
            for whose in ("theory", "networks"):
                moving = {"motion": np.array([0.001])} if (whose, kind) == ("networks", "ANTK") else {}
                numbers[f"{whose}, {kind}, {source}, richness {richness:g}"] = {**layers(1), **moving}
    return settings, numbers


def layered():
    settings = deep.Settings(points=POINTS)
    return settings, {"lazy": start(4), "theory": layers(4), "networks": layers(4)}


def aligned():
    settings = alignment.Settings(points=POINTS, depth=2, scan=(0.1, 1.0), keep=POINTS)
    numbers = {"lazy": start(2)}
    for richness in settings.scan:
        for whose in ("theory", "networks"):
            numbers[f"{whose}, richness {richness:g}"] = layers(2)
    return settings, numbers


def predicted():
    settings = predictors.Settings(points=POINTS, test=5, solves=2, networks=2, sampled=2)
    f = np.linspace(-1, 1, 5)
    numbers = {
        "kernels of the start": dict.fromkeys(("no decay", "decay", "Langevin"), 0.5 * f),
        "dynamics": {"f": f, "error": np.full(5, 0.01), "end": 0.8 * f, "loss": np.array(0.0)},
        "aNTK": {"f": f, "gap": np.array(0.0)},
    }
    for seed in range(2):
        numbers[f"aNBK {seed}"] = {"f": f + 0.01 * seed}
        for whose in ("no decay", "decay", "Langevin"):
            numbers[f"{whose} {seed}"] = {"f": f + 0.02 * seed, "loss": np.array(0.0), "motion": np.array(0.001)}
    return settings, numbers


MADE_UP = {"kernels": learned, "deep": layered, "alignment": aligned, "predictors": predicted}


@pytest.mark.parametrize("name", list(MADE_UP))
def test_drawing(name, drawn):
    drawn(name, *MADE_UP[name]())


FEATURES = {"no": (0.0, 0.0), "small": (-0.2, -1.0), "rounding": (-1e-8, 0.0)}  # least correlation, dark end


@pytest.mark.parametrize("name", list(FEATURES))
def test_kernels_that_are_compared_have_one_scale_of_colours(name):
    """That of the features: negative correlations of inputs do not count, and the bar says that they are there."""
    least, dark = FEATURES[name]
    inputs, features, others = (np.array([[1.0, low], [low, 1.0]]) for low in (-0.5, least, 0.5))
    figure = Figure()
    axes = figure.subplots(2, 2)
    rows = [[comparing.Panel(inputs, "inputs", True), comparing.Panel(features, "a")], [comparing.Panel(others, "b")]]
    comparing.show(axes, rows, np.array([-1.0, 1.0]), ("minus", "plus"))
    images = [image for place in axes.flat for image in place.images]
    assert len(images) == 3 and {image.get_clim() for image in images} == {(dark, 1.0)}
    assert [label.get_text() for label in axes[0, 0].get_xticklabels()] == ["minus", "plus"]
    (bar,) = (image.colorbar for image in images if image.colorbar is not None)
    assert (bar.vmin, bar.vmax) == (dark, 1.0) and bar.extend == ("min" if dark == 0 else "neither")


def test_what_is_missed_is_one_minus_r_squared():
    panels = predictors._panels(*predicted())
    f = np.linspace(-1, 1, 5) + 0.01  # the mean of the networks
    for kind, guess in (("lazy", 0.5 * (f - 0.01)), ("end", 0.8 * (f - 0.01))):
        assert panels[0].missed(kind) == pytest.approx(np.sum((f - guess) ** 2) / np.sum((f - f.mean()) ** 2))
    assert panels[1].noise == pytest.approx(0.01**2 / np.var(f))  # two networks, 0.02 apart
    assert panels[2].noise == pytest.approx((0.01**2 + 0.005**2) / np.var(f))


def test_distances_are_relative_and_errors_add_in_squares():
    ours, theirs = layers(2, 0.03), layers(2, 0.04)
    off, joint = comparing.apart({**ours, "kernels": 1.1 * ours["kernels"]}, theirs)
    assert off == pytest.approx(0.1) and joint == pytest.approx(0.05)
    assert comparing.aligned({**ours, "kernels": 1.1 * ours["kernels"]}, theirs) == pytest.approx(1.0)


def test_the_jackknife_knows_the_scatter_of_an_alignment(rng):
    labels = np.outer(Y, Y)
    truth = 2 * np.eye(POINTS) + labels

    def once() -> tuple[float, float]:
        noise = 0.3 * rng.standard_normal((6, POINTS, POINTS))
        return comparing.jackknife(truth + noise, labels)

    values, errors = np.array([once() for _ in range(300)]).T
    # The spread of 300 values is known to 4 %, the rms of errors with five degrees of freedom to 2 %; the statistic is curved.
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(values.std(), rel=0.15)
    assert comparing.jackknife(truth[None], labels) == (pytest.approx(values.mean(), rel=0.02), 0.0)


def test_the_kernel_of_the_end_is_that_of_the_start_in_a_lazy_network():
    """At a small richness nothing moves, and both are the NTK; the slowest direction of these images has a rate of 0.16."""
    data = Data("cifar10", 6, 20)
    lazy = predictors.lazy(data, decay=1.0, beta=50.0)["no decay"]
    way = predictors.dynamics(data, richness=0.01, time=80.0, neurons=2048)
    assert way["loss"] < 1e-8
    for name, error in (("f", "error"), ("end", "end_error")):
        scatter = np.sqrt(
            np.mean(way[error] ** 2)
        )  # of four replicas and shared by points: over 16 seeds f was up to 2.9 off
        assert np.sqrt(np.mean((way[name] - lazy) ** 2)) < 4 * scatter < 0.1 * np.abs(lazy).max()
