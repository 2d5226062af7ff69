"""`adakern report` writes a page that opens, and says on one line what is wrong."""

from __future__ import annotations

import json

import numpy as np
import pytest

import adakern as ak


@pytest.fixture
def solved(problem):
    """A lazy solution and two adaptive ones in closed form, in a folder."""
    net = ak.MLP(1, "linear")
    (problem.folder / "runs").mkdir()
    for name, limit in (("lazy", ak.NNGPK(net)), ("b", ak.ANBK(net, richness=2.0)), ("a", ak.ANBK(net, richness=1.0))):
        ak.solve(limit, problem.X, problem.y).save(problem.folder / "runs" / f"{name}.safetensors")
    return problem


def data_of(path):
    text = path.read_text(encoding="utf-8")
    return json.loads(text.split('id="data">')[1].split("</script>")[0])


def test_one_solution(solved, adakern, adakern_json):
    facts = adakern_json("report runs/a.safetensors --out a.html --title Digits")
    page = solved.folder / "a.html"
    assert facts == {
        "file": "a.html",
        "solutions": ["runs/a.safetensors"],
        "bytes": page.stat().st_size,
        "converged": True,
    }
    assert data_of(page)["title"] == "Digits" and len(data_of(page)["items"]) == 1
    shown = adakern("report runs/a.safetensors")
    assert shown.exit_code == 0 and "adakern-report.html" in shown.stdout and "MB" in shown.stdout
    assert (solved.folder / "adakern-report.html").exists()


@pytest.mark.parametrize("sources", ["runs", "runs/b.safetensors runs/a.safetensors runs/lazy.safetensors"])
def test_a_sweep_with_new_points(solved, adakern_json, sources):
    adakern_json(f"report {sources} --out s.html --test test.csv --label minus --label plus")
    data = data_of(solved.folder / "s.html")
    assert [item["richness"] for item in data["items"]] == [0.0, 1.0, 2.0]
    assert data["kernel"]["classes"] == ["minus", "plus"] and data["test"]["name"] == "test.csv"
    f = ak.load("runs/a.safetensors").predict(solved.X_new)
    assert data["items"][1]["test"]["loss"] == pytest.approx(ak.mean_squared_error(solved.y_new, f))


@pytest.mark.parametrize(
    "line, words",
    [
        ("nothing.safetensors", "there is no file nothing.safetensors"),
        ("train.npz", "train.npz is not a whole safetensors file"),
        ("empty", "no .safetensors file in the folder empty"),
        ("runs/a.safetensors --out a.pdf", "--out must name a .html file, but it is 'a.pdf'"),
        ("runs/a.safetensors --out none/a.html", "--out must lie in an existing folder"),
        ("runs/a.safetensors --target y", "--target needs --test"),
        ("runs/a.safetensors --test missing.csv", "missing.csv"),
        ("runs/a.safetensors --test narrow.npz", "must have the solution's 3 features, but it has 2"),
        ("runs/a.safetensors other.safetensors", "X of a.safetensors and other.safetensors differ"),
        ("path.safetensors", "path.safetensors holds a Trajectory; a report is of solutions"),
    ],
)
def test_what_is_wrong_is_one_line(solved, adakern, line, words):
    (solved.folder / "empty").mkdir()
    np.savez("narrow.npz", X=solved.X_new[:, :2])
    if "other" in line:
        ak.solve(ak.NNGPK(ak.MLP(1, "linear")), 2 * solved.X, solved.y).save("other.safetensors")
    if "path" in line:
        limit = ak.ANTK(ak.MLP(1, "linear"))
        ak.dynamics(limit, solved.X, solved.y, times=[0.01], neurons=8).save("path.safetensors")
    result = adakern(f"report {line} --json")
    assert result.exit_code == 2
    (complaint,) = result.stderr.splitlines()
    assert complaint.startswith("adakern: ") and words in complaint
    assert json.loads(result.stdout) == {"error": complaint.removeprefix("adakern: ")}
    assert not list(solved.folder.glob("*.htm*"))
