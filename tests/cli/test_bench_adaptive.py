"""`adakern bench adaptive`: rows, how numbers of several runs come together, the page and the picture. The comparisons at full size are in benchmarks/adaptive.md."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from adakern.benchmarks import adaptive, adaptive_known, adaptive_range, timing
from adakern.errors import ConvergenceError


def comparison(setting, layer, aligned, ok=True, published=None):
    return {
        "setting": setting,
        "points": 50,
        "width": 64,
        "layer": layer,
        "alignment": aligned,
        "published": published,
        "difference": 0.012,
        "joint": 0.01,
        "outputs": 0.002,
        "test": 0.003,
        "test_error": 0.002,
        "theory_s": 3.0,
        "network_s": 30.0,
        "least": 0.9998,
        "bar": "A ≥ 0.9998",
        "ok": ok,
        "note": "",
    }


def race(setting, ratio, bound):
    return {
        "setting": setting,
        "first_s": 9.0,
        "theory_s": 2.0,
        "theory": "error 1.00 %",
        "other_s": 2.0 * ratio,
        "other": "error 0.99 %",
        "ratio": ratio,
        "bound": bound,
        "note": "",
        "ok": None,
        "series": {},
    }


@pytest.fixture
def made_up(monkeypatch):
    """Cases that cost nothing."""
    deep = {
        "a": lambda options: iter([comparison("a", 1, 0.99995, published=0.9)]),
        "b": lambda options: iter([comparison("b", 1, 0.9, ok=options.quick)]),
    }
    speed = {"c": lambda options: iter([race(f"c: within {options.cap:g}", 40.0, bound=True)])}
    cases = {"deep-tanh": adaptive.Case("Deep.", "networks", deep), "speed": adaptive.Case("Fast.", "speed", speed)}
    monkeypatch.setattr(adaptive, "CASES", cases)


def test_runs_come_together_in_one_file(tmp_path, monkeypatch, adakern, made_up):
    monkeypatch.chdir(tmp_path)
    files = "--numbers n.json --markdown p.md --picture p.png"
    assert adakern(f"bench adaptive --only speed --cap 7 {files}").exit_code == 0
    assert adakern(f"bench adaptive --only deep-tanh --setting a {files}").exit_code == 0
    assert adakern(f"bench adaptive --only deep-tanh {files}").exit_code == 1  # b fails
    parts = json.loads((tmp_path / "n.json").read_text())["parts"]
    assert [(part["case"], part["setting"]) for part in parts] == [
        ("deep-tanh", "a"),
        ("deep-tanh", "b"),
        ("speed", "c"),
    ]
    assert parts[2]["command"] == "adakern bench adaptive --only speed --cap 7"
    assert all("cpu" in part["machine"] for part in parts)
    text = (tmp_path / "p.md").read_text()
    assert "| a | 50 | 64 | 1 | 0.99995 (published 0.9) | 1.20 ± 1.00 % |" in text
    assert "| > 40 |" in text and "**1 of 2 judged rows hold.**" in text and "![" in text
    assert Image.open(tmp_path / "p.png").size[0] > 500

    assert adakern("bench adaptive --draw --numbers n.json --markdown again.md").exit_code == 1
    assert (tmp_path / "again.md").read_text() == text.replace("![alignment deficits and speed ratios](p.png)\n\n", "")
    assert adakern("bench adaptive --quick --numbers n.json").exit_code == 2  # of another size


def test_the_size_of_a_deviation_without_that_of_its_noise():
    rng = np.random.default_rng(0)
    signal = np.full((20, 20), 0.01)
    size, error = adaptive_known._deviation(
        signal + 0.02 * rng.normal(size=(12, 20, 20))
    )  # |noise| = 0.4, |signal| = 0.2
    assert abs(size - 0.2) < 3 * error and error < 0.02


def test_the_power_of_a_law_that_bends_over():
    richness = np.array(adaptive_known.LAZY)
    slope, error = adaptive_known._power(6 * richness**2 / (1 + 40 * richness**2) ** 0.6, np.full(len(richness), 1e-4))
    assert slope == pytest.approx(2, abs=1e-3) and 0 < error < 1


@pytest.mark.long
@pytest.mark.slow
def test_a_small_network_against_the_theory(monkeypatch):
    """The comparison itself, on the smallest problem: alignment close to one, and evidence of every kind."""
    monkeypatch.setattr(adaptive, "BETA", 5.0)
    options = adaptive.Options(quick=True, width=128, time=10.0, tolerance=0.1)
    data = adaptive.datasets.mnist(n_train=4, n_test=5)
    (row,) = adaptive.compare(options, "x", lambda quick: data, 1, "tanh", 0.5, adaptive.Bars(0.9999))
    assert row["alignment"] > 0.97 and row["difference"] < 5 * row["joint"]
    assert row["outputs"] < 0.1 and row["test"] < 0.2 and row["test_error"] > 0
    assert row["bar"] == "2 error bars" and row["width"] == 128


def test_a_row_of_the_range_converges_or_says_why(monkeypatch, tmp_path, adakern):
    found = SimpleNamespace(stats={"steps": 300, "step_size": 0.1, "relative_error": 0.01}, residual=0.02)

    def refuse(*_):
        raise ConvergenceError("ANBK did not converge: give more particles")

    problem = adaptive_range.Problem(1, "tanh", 1.0, 50.0, 3)
    monkeypatch.setattr(adaptive_range, "solve", lambda *_: found)
    (good,) = adaptive_range.measure(problem)
    monkeypatch.setattr(adaptive_range, "solve", refuse)
    (bad,) = adaptive_range.measure(problem)
    assert (good["ok"], good["gradients"], good["residual"], good["said"]) == (True, 300, 0.02, "")
    assert (bad["ok"], bad["step"], bad["said"]) == (None, None, "ANBK did not converge: give more particles")
    name = next(iter(adaptive.CASES["range"].settings))
    machine = timing.machine()
    parts = [{"case": "range", "setting": name, "quick": False, "command": "c", "rows": [good, bad], "seconds": 1.0}]
    (tmp_path / "n.json").write_text(json.dumps({"parts": [{**parts[0], "machine": machine}]}))
    result = adakern(f"bench adaptive --draw --numbers {tmp_path}/n.json --markdown {tmp_path}/p.md")
    assert result.exit_code == 0, result.output
    page = (tmp_path / "p.md").read_text(encoding="utf-8")
    assert "| 300 | 0.1 | 0.01 | 0.02 | yes |" in page and "give more particles |" in page
