"""`adakern figure`: files, summary, failures."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from adakern import figures
from adakern.errors import ConvergenceError
from adakern.figures import running, single_point

TINY = single_point.Settings(
    times=(0.0, 1.0),
    scan=(0.5, 2.0),
    rest=30.0,
    neurons=256,
    width=64,
    replicas=2,
    edges=tuple(np.linspace(-4, 4, 9).tolist()),
)


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    monkeypatch.setattr(single_point, "QUICK", TINY)
    monkeypatch.chdir(tmp_path)
    return "--quick --out pictures --cache cache"


@pytest.mark.slow
def test_one_figure_from_end_to_end(tiny, tmp_path, adakern, adakern_json):
    facts = adakern_json(f"figure single-point {tiny}")
    (row,) = facts["figures"]
    assert (row["state"], row["error"], facts["failed"]) == ("ok", None, 0) and row["done"] == row["parts"] > 2
    files = [tmp_path / "pictures" / f"single-point.{kind}" for kind in ("png", "svg", "npz")]
    assert sorted((tmp_path / "pictures").iterdir()) == sorted(files)
    with Image.open(files[0]) as picture:
        assert len(np.unique(np.asarray(picture.convert("L")))) > 50
    first = files[1].read_bytes()
    with np.load(files[2]) as numbers:
        np.testing.assert_allclose(numbers["ends of the theory/errors"], [1.0, 0.5], atol=1e-3)
        np.testing.assert_allclose(numbers["ends of networks/errors"], [1.0, 0.5], atol=1e-2)
        np.testing.assert_allclose(numbers["ends of the theory/moments"], [0.0, 1.0], atol=1e-3)

    again = adakern_json(f"figure single-point {tiny}")
    assert again["figures"][0]["cached"] == row["parts"] and files[1].read_bytes() == first
    result = adakern("figure single-point --redraw --out pictures")
    assert result.exit_code == 0 and "single-point.png" in result.stdout and files[1].read_bytes() == first


def test_a_failure_is_a_row_a_line_and_an_exit_code(tiny, monkeypatch, adakern):
    def fail(settings):
        raise ConvergenceError("the flow\ndid not rest")

    monkeypatch.setattr(single_point, "parts", fail)
    monkeypatch.setattr(figures, "NAMES", ("single-point",))
    result = adakern(f"figure all {tiny}")
    assert result.exit_code == 2 and "failed: the flow" in result.stdout
    assert result.stderr.splitlines() == ["adakern: single-point: the flow did not rest"]
    facts = json.loads(adakern(f"figure all {tiny} --json").stdout)
    assert facts["failed"] == 1 and facts["figures"][0]["error"] == "the flow did not rest"


@pytest.mark.parametrize("line, words", [("", "the same command goes on"), (" --fresh", "without --fresh the same")])
def test_an_interruption_says_what_is_kept(tiny, tmp_path, monkeypatch, adakern, line, words):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "run", interrupted)
    result = adakern(f"figure single-point --cache {tmp_path / 'kept'} --out {tmp_path / 'out'}{line}")
    assert result.exit_code == 130 and f"are kept in {tmp_path / 'kept'}; {words}" in result.stderr


def test_a_bug_keeps_its_traceback(tiny, monkeypatch, adakern):
    monkeypatch.setattr(single_point, "parts", lambda settings: 1 / 0)
    result = adakern(f"figure single-point {tiny}")
    assert result.exit_code == 2 and "ZeroDivisionError" in result.stderr and "Traceback" in result.stderr


def test_the_list_has_every_figure(adakern, adakern_json):
    titles = adakern_json("figure --list")["figures"]
    assert list(titles) == list(figures.NAMES) and all(titles.values())
    assert all(name in adakern("figure --list").stdout for name in figures.NAMES)


@pytest.mark.parametrize(
    "line, words",
    [
        ("figure", "NAME must be one of single-point"),
        ("figure magic", "or all, but it is 'magic'"),
        ("figure single-point --redraw --fresh", "--redraw computes nothing"),
        ("figure single-point --out taken", "--out must name a folder, but taken is a file"),
        ("figure single-point --quick --out taken/deeper", "--out must name a folder, but taken is a file"),
        ("figure single-point --redraw", "make the figure first"),
    ],
)
def test_mistakes_end_before_any_work(tmp_path, monkeypatch, adakern, line, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("a file")
    result = adakern(line)
    assert result.exit_code == 2 and words in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
