"""Figures of convolutional networks, learning curves and finite widths draw small made-up numbers; the losses they share are what they say."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from adakern import figures
from adakern.figures import cnn, cnn_dynamics, finite_width, learning_curves, loss, measuring, style


def losses(*shape: int) -> dict[str, np.ndarray]:
    pairs = {kind: np.full(shape, 0.5) for kind in ("train", "test", "mean", "whole", "nngp", "nngpk", "ntk")}
    return {**pairs, **{f"{kind}_error": np.full(shape, 0.01) for kind in pairs}}


MADE_UP = {
    "cnn-dynamics": (cnn_dynamics.Settings(points=(10, 20), richness=(0.3, 1.0), times=(0.1, 1.0, 10.0)), (3,)),
    "cnn": (cnn.Settings(points=(10, 1000)), (1,)),
    "learning-curves": (learning_curves.Settings(points=(10, 20)), ()),
    "finite-width": (finite_width.Settings(widths=(8, 16), curve=(8, 12, 16)), ()),
}


def made_up(name):
    settings, shape = MADE_UP[name]
    numbers = {part.name: losses(*shape) for part in figures.get(name).parts(settings)}
    for part in numbers:
        if part.startswith("renormalised"):
            many = len(settings.widths if "networks" in part else settings.curve)
            numbers[part] = {"whole": np.full(many, 0.5), "scales": np.ones(many)}
    return settings, numbers


@pytest.mark.parametrize("name", list(MADE_UP))
def test_drawing(name):
    settings, numbers = made_up(name)
    with style.context():
        picture = figures.get(name).draw(settings, numbers)
        picture.canvas.draw()
    assert isinstance(picture, Figure)
    assert picture.axes and all(axes.get_xlabel() and axes.get_ylabel() for axes in picture.axes)
    assert all(axes.containers and axes.get_legend() is not None for axes in picture.axes)


def test_a_network_off_the_curve_is_seen():
    settings, numbers = made_up("learning-curves")
    numbers["rich sampled networks, P 20"]["mean"] = np.array(0.6)  # 0.1 off where the joint error is about 0.036
    with style.context():
        beside = learning_curves.draw(settings, numbers).axes[1]
    words = [text.get_text() for text in beside.get_legend().get_texts()]
    (found,) = (text for text in words if text.startswith("aNBK"))
    expected = 0.1 / np.sqrt(2 * 0.01**2 + (0.1 / 3) ** 2)
    assert f"at most {expected:.1f}" in found and f"alone: {0.1 / (0.01 * np.sqrt(2)):.1f}" in found


def test_the_loss_of_a_mean_has_no_variance_in_it():
    rng = np.random.default_rng(0)
    y, f = rng.standard_normal(20), rng.standard_normal(20)
    found = np.array([loss.of_mean(y, f + rng.standard_normal((4, 20))) for _ in range(2000)])
    mean, error = measuring.over(found[:, 0])
    assert abs(mean - np.mean((y - f) ** 2)) < 4 * error
    # The jackknife tends to be too large where seeds are few, and not by much.
    assert 0.9 < np.sqrt(np.mean(found[:, 1] ** 2)) / found[:, 0].std() < 1.3


def test_what_is_left_of_a_finite_width():
    exact, wide, narrow = 1.0, 1.0 + 1 / 64, 1.0 + 4 / 64
    value, error = loss.wide({"mean": np.array(wide), "mean_error": np.array(0.0)}, {"mean": np.array(narrow)}, "mean")
    assert value == wide and error == pytest.approx(wide - exact)


def test_scores():
    assert measuring.scores([1.0, 2.0], 1.0, [3.0, 3.0], 4.0).tolist() == pytest.approx([0.0, 0.2])
    assert measuring.rms([3.0, 4.0]) == pytest.approx(np.sqrt(12.5))
