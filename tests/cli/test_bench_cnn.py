"""`adakern bench cnn`: its rows, its rules of stopping, what a killed run leaves, and the picture. The checks at full size are in benchmarks/cnn.md."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.stats import norm

import adakern as ak
from adakern.benchmarks import cnn, cnn_bayes, cnn_flow, cnn_lazy, cnn_learning, cnn_memory, cnn_picture
from adakern.benchmarks.flow_rows import Case, Options, Row, below


def test_every_setting_can_be_asked_for():
    assert list(cnn.CASES) == ["lazy", "anbk", "dynamics", "antk", "published", "points", "memory"]
    assert all(case.settings and case.about for case in cnn.CASES.values())


def test_lazy_rows_hold_and_a_wrong_kernel_fails(monkeypatch):
    options = Options(quick=True, width=64, replicas=16)
    assert [row.ok for row in cnn_lazy.compare(options, "CNN(1) relu")] == [True] * 4
    found = cnn_lazy.random_networks
    monkeypatch.setattr(cnn_lazy, "random_networks", lambda *a: {k: 1.5 * v for k, v in found(*a).items()})
    assert False in [row.ok for row in cnn_lazy.compare(options, "CNN(1) relu")]


def test_the_mean_over_patterns_is_the_sum_with_more_decay():
    """The flow of the mean, step by small step from the same neurons."""
    rng = np.random.default_rng(0)
    X, y, richness = rng.standard_normal((5, 3)), rng.standard_normal(5), 0.7
    scaled = ak.dynamics(
        ak.ANTK(ak.MLP(1, "linear"), richness=richness, decay=cnn_learning.DECAY * 5),
        X,
        y,
        [0.0, cnn_learning.LENGTH / 5 / 20],
        neurons=8,
        replicas=1,
    )
    w, a = scaled.weights[0, 0].astype(float), scaled.readouts[0, 0, :, 0].astype(float)
    rows = X / np.sqrt(3) if scaled.basis is None else X / np.sqrt(3) @ scaled.basis
    step, total = 1e-3, cnn_learning.LENGTH / 20
    for _ in range(round(total / step)):
        h = w @ rows.T
        delta = (y - a @ h / 8 / richness) / 5  # the mean
        moved = w + step * (richness * np.outer(a, delta @ rows) - cnn_learning.DECAY * w)
        a = a + step * (richness * h @ delta - cnn_learning.DECAY * a)
        w = moved
    np.testing.assert_allclose(a @ (w @ rows.T) / 8 / richness, scaled.fitted[-1], atol=2e-3)


def test_descent_is_stopped_where_it_has_fitted(monkeypatch):
    """The first recorded moment below the bar, and its test loss; and a note that says when there is none."""
    rng = np.random.default_rng(0)
    data = rng.standard_normal((6, 4)), np.sign(rng.standard_normal(6)), rng.standard_normal((5, 4)), np.ones(5)
    monkeypatch.setattr(cnn_learning, "STEP", 0.05)
    monkeypatch.setattr(cnn_learning, "FITTED", 4e-4)
    end = cnn_learning.by_descent(Options(width=64, time=20.0), ak.MLP(1), 1.0, data)
    times = [float(time) for time in np.linspace(10.0, 20.0, cnn_learning.MOMENTS)]
    X, y, X_test, y_test = data
    way = {"decay": cnn_learning.DECAY, "width": 64, "time": 20.0, "method": "descent", "step": 0.05, "tolerance": 0.0}
    run = ak.finite.gradient_flow(ak.MLP(1), X, y, richness=1.0, centred=True, times=times, **way)
    losses = np.array([np.mean((y - run.at(time).fitted) ** 2) / 2 for time in times])
    first = int(np.argmax(losses <= 4e-4))
    assert 0 < first < len(times) - 1 and losses[first + 1 :].min() < losses[first]  # neither the start nor the least
    assert end.train / 2 == pytest.approx(losses[first], rel=1e-4) and "NOT" not in end.note
    expected = np.mean((y_test - run.at(times[first]).predict(X_test)) ** 2)
    assert end.test == pytest.approx(expected, rel=1e-4)
    early = cnn_learning.by_descent(Options(width=64, time=0.5), ak.MLP(1), 1.0, data)
    assert early.train / 2 > 4e-4 and "NOT below" in early.note


def test_scores_of_few_groups_are_judged_by_students_law():
    """Means of eight Gaussian numbers over their own standard errors: beyond 3 they are seven times as many as Gaussian scores, and as many once converted."""
    rng = np.random.default_rng(0)
    draws = rng.standard_normal((100_000, 8))
    errors = draws.std(axis=1, ddof=1) / np.sqrt(8)
    z = draws.mean(axis=1) / errors
    converted = cnn_bayes.as_gaussian(z, errors, np.zeros_like(errors), 8)
    expected = 100_000 * 2 * norm.sf(3.0)
    assert np.sum(np.abs(z) > 3) > 4 * expected
    assert abs(np.sum(np.abs(converted) > 3) - expected) < 4 * np.sqrt(expected)
    known = cnn_bayes.as_gaussian([-6.0, 3.0], [1e-9, 1e-9], [1.0, 1.0], 8)  # errors that are known leave z as it is
    np.testing.assert_allclose(known, [-6.0, 3.0], rtol=1e-3)


@pytest.fixture
def made_up(monkeypatch):
    """A setting that ends after two rows, or in its middle."""
    state = {"dies": False, "value": 0.0}

    def measure(options):
        yield below("a: first", state["value"], 1.0)
        if state["dies"]:
            raise RuntimeError("killed")
        yield Row("a: second", 2.0)

    monkeypatch.setattr(cnn, "CASES", {"lazy": Case("Rows.", {"a": measure})})
    return state


def test_a_killed_run_keeps_its_rows_but_displaces_no_whole_ones(tmp_path, monkeypatch, adakern, made_up):
    monkeypatch.chdir(tmp_path)

    def held():
        (part,) = json.loads((tmp_path / "n.json").read_text())["parts"]
        return [row["measured"] for row in part["rows"]], part.get("whole", True)

    made_up["dies"] = True
    assert adakern("bench cnn --numbers n.json").exit_code != 0
    assert held() == ([0.0], False)
    assert "Cut short: a." in adakern("bench cnn --draw --numbers n.json").output
    made_up.update(dies=False, value=0.5)
    assert adakern("bench cnn --numbers n.json").exit_code == 0
    assert held() == ([0.5, 2.0], True)
    made_up.update(dies=True, value=0.7)
    assert adakern("bench cnn --numbers n.json").exit_code != 0
    assert held() == ([0.5, 2.0], True)


def test_the_picture_stands_what_was_not_run_and_draws_what_was():
    assert [axes.get_title() for axes in cnn_picture.draw({}).axes] == [""] * 5
    times = [0.1, 1.0]
    race = {"problem": "CNN(1) relu, P=20, richness 1", "kind": "test", "times": times}
    race |= {"theory": [0.5, 0.3], "theory_error": [0.01, 0.01], "network": [0.5, 0.3], "network_error": [0.01, 0.01]}
    points = {"which": "CNN", "richness": 1.0, "points": 20, "test": 0.7, "error": 0.01}
    space = (0.5 * np.eye(4) + 0.5).tolist()
    spaces = {"problem": "x, P=20, richness 1", "lazy_space": space, "space": space, "grid": [2, 2]}
    layer = {"problem": "x, P=20, richness 1", "layer": 1, "width": 8}
    rows = {"dynamics": [race], "points": [points], "anbk": [spaces, layer]}
    figure = cnn_picture.draw({k: [Row("r", 0.9, series=s).plain() for s in v] for k, v in rows.items()})
    titles = [axes.get_title() for axes in figure.axes]
    assert any("P = 20" in title for title in titles) and "learned (aNBK)" in titles


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("setting", [*cnn_bayes.settings().values(), cnn_flow.dynamics_settings()["P=100, richness 1"]])
def test_quick_settings_against_networks(setting):
    rows = list(setting(Options(quick=True)))
    assert rows and all(row.ok is not False for row in rows)


@pytest.mark.long
@pytest.mark.slow
def test_memory_is_that_of_a_process_of_its_own():
    rows = list(cnn_memory.measure(Options(quick=True), "NTK"))
    assert rows[0].measured > 0 and 0.05 < rows[1].measured < 8 and rows[1].ok
