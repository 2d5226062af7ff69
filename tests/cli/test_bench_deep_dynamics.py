"""`adakern bench deep-dynamics`: extrapolation in width, its rows and its picture. The checks at full size are in benchmarks/."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from adakern.benchmarks import deep_dynamics, deep_picture, deep_responses
from adakern.benchmarks.flow_rows import Options
from adakern.cli import app


def test_every_setting_can_be_asked_for():
    assert list(deep_dynamics.CASES) == ["networks", "end", "noise", "cost"]
    assert len(deep_dynamics.CASES["networks"].settings) == 16


def test_extrapolation_is_exact_for_what_is_linear_in_one_over_width(rng):
    widths, value = (64, 256), 1.7
    noise = rng.standard_normal((2, 5))
    noise -= noise.mean(axis=1, keepdims=True)
    found = [[np.array([value + 3 / width + x]) for x in part] for width, part in zip(widths, noise, strict=True)]
    mean, error = deep_dynamics.infinite(widths, found)
    assert mean[0] == pytest.approx(value)
    each = noise.std(axis=1, ddof=1) / np.sqrt(5)
    assert error[0] == pytest.approx(np.hypot(4 / 3 * each[1], 1 / 3 * each[0]))


def test_three_estimates_of_one_response():
    stein, clean, exact = deep_responses.noise(Options(quick=True))
    assert exact.measured < clean.measured < stein.measured


def test_networks_that_a_file_has(fixtures, tmp_path):
    """Extrapolated ones, instead of a folder of trained ones."""
    file = Options(runs=fixtures / "deep_networks.npz")
    losses, doubt, kernels, doubts = deep_dynamics.held(file, "synthetic", (3, "relu", 1.0, 0.1))
    assert losses.shape == doubt.shape == (8,) and kernels.shape == doubts.shape == (8, 3, 10, 10)
    assert losses[0] > 10 * losses[-1] > 0 and (doubt > 0).all()
    assert deep_dynamics.held(Options(runs=tmp_path), "synthetic", (3, "relu", 1.0, 0.1)) is None
    with pytest.raises(ValueError, match="has no networks of mnist L=3 relu"):
        deep_dynamics.held(file, "mnist", (3, "relu", 1.0, 0.1))


@pytest.mark.long
def test_rows_and_picture(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = "--quick --only networks --width 128 --replicas 2 --numbers n.json --picture p.png --runs runs"
    setting = "synthetic L=2 tanh, richness 1, decay 0.1"
    CliRunner().invoke(app, ["bench", "deep-dynamics", *options.split(), "--setting", setting])
    [part] = json.loads((tmp_path / "n.json").read_text(encoding="utf-8"))["parts"]
    assert [row["bar"] for row in part["rows"]] == ["≤ 2", "≤ 2", "≤ 2", "≥ 4"]
    assert (tmp_path / "p.png").exists() and len(list((tmp_path / "runs").iterdir())) == 4


def test_a_picture_of_nothing():
    assert len(deep_picture.draw({}).axes) == 1
