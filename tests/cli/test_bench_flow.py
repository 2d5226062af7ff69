"""`adakern bench flow`: rows, how numbers of several runs come together, the page and the picture. The checks at full size are in benchmarks/flow.md."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from adakern.benchmarks import flow, flow_known, flow_networks, flow_picture, flow_plain, flow_rows, flow_runs
from adakern.benchmarks.flow_rows import Case, Options, Row, below
from adakern.errors import ConvergenceError


@pytest.fixture
def made_up(monkeypatch):
    """Cases that cost nothing."""
    track = {"problem": "p", "solver": [1.0, 1e-5], "seconds": [1.0, 2.0], "gaps": [0.1, 0.01], "bound": True}
    known = {
        "a": lambda options: iter([below("a: off", 1e-7, 1e-6, error=0.5)]),
        "b": lambda options: iter([below("b: off |x|, 1[h > 0]", 0.1 if not options.quick else 0.0, 1e-6)]),
    }
    other = {"c": lambda options: iter([Row(f"c: within {options.cap:g}", 3.0, note="> 3", series=track)])}
    monkeypatch.setattr(flow, "CASES", {"one-point": Case("Points.", known), "certificate": Case("Gaps.", other)})


def test_runs_come_together_in_one_file(tmp_path, monkeypatch, adakern, made_up):
    monkeypatch.chdir(tmp_path)
    files = "--numbers n.json --markdown p.md --picture p.png"
    assert adakern(f"bench flow --only certificate --cap 7 {files}").exit_code == 0
    assert adakern(f"bench flow --only one-point --setting a {files}").exit_code == 0
    assert adakern(f"bench flow --only one-point {files}").exit_code == 1  # b fails
    parts = json.loads((tmp_path / "n.json").read_text())["parts"]
    places = [(part["case"], part["setting"]) for part in parts]
    assert places == [("one-point", "a"), ("one-point", "b"), ("certificate", "c")]
    assert parts[2]["command"] == "adakern bench flow --only certificate --cap 7"
    assert all("cpu" in part["machine"] for part in parts)
    text = (tmp_path / "p.md").read_text()
    assert "| a: off | 1e-07 | 0.5 | ≤ 1e-06 | yes |  |" in text
    assert r"| b: off \|x\|, 1[h > 0] | 0.1 |  | ≤ 1e-06 | NO |  |" in text
    assert "| c: within 7 | 3 |  |  |  | > 3 |" in text
    assert "**1 of 2 judged rows hold.**" in text and "![" in text
    assert Image.open(tmp_path / "p.png").size[0] > 500

    result = adakern("bench flow --draw --numbers n.json --markdown again.md")
    assert result.exit_code == 1 and "1[h > 0]" in result.output
    assert (tmp_path / "again.md").read_text() == text.replace("![the checks](p.png)\n\n", "")
    assert adakern("bench flow --quick --numbers n.json").exit_code == 2  # of another size


@pytest.mark.parametrize(
    "words, message",
    [
        ("--only nothing", "--only must be one of"),
        ("--draw", "--draw needs --numbers"),
        ("--only one-point --setting zzz", "no setting of one-point contains 'zzz'"),
    ],
)
def test_what_is_not_there_is_named(adakern, made_up, words, message):
    result = adakern(f"bench flow {words}")
    assert result.exit_code == 2 and message in result.output


def test_every_setting_can_be_asked_for():
    assert list(flow.CASES) == [
        "one-point",
        "clarke",
        "networks",
        "certificate",
        "zero-temperature",
        "dynamics",
        "speed",
        "starts",
        "range",
    ]
    assert all(case.settings and case.about for case in flow.CASES.values())


def test_one_point_holds_and_a_wrong_number_fails(monkeypatch):
    rows = list(flow_known.one_point(Options(), "linear", 2.0)) + list(flow_known.one_point(Options(), "linear", 0.5))
    assert [row.ok for row in rows] == [True] * 5
    monkeypatch.setattr(flow_known, "Y1", np.array([1.1]))
    assert False in [row.ok for row in flow_known.one_point(Options(), "linear", 2.0)]


def test_plain_flow_reaches_a_gap_or_says_that_it_did_not(monkeypatch):
    """Linear, one point: the flow ends at gap 0."""
    monkeypatch.setattr(flow_plain, "FIRST", 4)
    limit = flow_rows.antk(1, "linear", 2.0, 1.0)
    X, y = np.ones((1, 1)), np.ones(1)
    best, tried = flow_plain.race(limit, X, y, 1e-5, 20.0)
    assert best.reached and best.gaps[-1] <= 1e-5 < best.gaps[0] and len(tried) == len(flow_plain.REACHES)
    short = flow_plain.run(limit, X, y, -1.0, 1e-9, 0.5)
    assert not short.reached and short.steps == flow_plain.FIRST


def test_steps_of_plain_flow_are_kept_for_a_coarser_gap(monkeypatch, tmp_path):
    monkeypatch.setattr(flow_plain, "FIRST", 4)
    limit, kept = flow_rows.antk(1, "linear", 2.0, 1.0), tmp_path / "runs" / "plain.json"
    X, y = np.ones((1, 1)), np.ones(1)
    _, fine = flow_plain.race(limit, X, y, 1e-5, 20.0, kept)
    best, again = flow_plain.race(limit, X, y, 1e-5, 1e-9, kept)  # no time for steps: those of the file
    assert best.reached and [(t.looks, t.gaps) for t in again] == [(t.looks, t.gaps) for t in fine]
    coarse, others = flow_plain.race(limit, X, y, 1e-2, 1e-9, kept)
    assert coarse.reached and coarse.gaps[-1] <= 1e-2
    assert all(short.steps < long.steps for short, long in zip(others, fine, strict=True))
    finer, _ = flow_plain.race(limit, X, y, 1e-9, 1e-9, kept)
    assert not finer.reached
    with pytest.raises(ValueError, match="another problem"):
        flow_plain.race(flow_rows.antk(1, "linear", 3.0, 1.0), X, y, 1e-5, 1.0, kept)


def test_the_value_of_a_network_is_what_its_flow_lowers():
    """One point, linear, at rest: γ0² Δ²/2 + λ(γ0 - λ), with Δ = λ/γ0."""
    run = flow_networks.finite.gradient_flow(
        flow_rows.mlp(1, "linear"), np.ones((1, 1)), np.ones(1), richness=2.0, width=64, time=40.0, precision="float64"
    )
    assert flow_runs.value(run) == pytest.approx(4 * 0.5**2 / 2 + 1.0, abs=1e-3)


def test_a_row_of_the_range_converges_or_says_why(monkeypatch):
    from adakern.benchmarks import flow_solver

    def refuse(*_):
        raise ConvergenceError("ANTK did not converge: give more steps")

    monkeypatch.setattr(flow_solver, "solve", refuse)
    (bad,) = flow_solver.reach(Options(quick=True), 1, "relu", 1.0, 1.0, 3)
    assert bad.ok is None and bad.note == "ANTK did not converge: give more steps"


def test_the_picture_stands_what_was_not_run():
    assert len(flow_picture.draw({}).axes) == 6
