"""`adakern sweep` leaves a folder of solutions that a report opens, goes on where it stopped, and overwrites nothing of others."""

from __future__ import annotations

import json

import numpy as np
import pytest

import adakern as ak
from adakern import solving

LINE = "sweep train.csv --activation linear --out s"


def test_each_richness_is_solved_and_saved(problem, adakern, adakern_json):
    facts = adakern_json(f"{LINE} --richness 2,0,0.5 --test test.csv")
    assert (facts["folder"], facts["limit"]) == ("s", "ANBK")
    assert [row["richness"] for row in facts["solutions"]] == [0.0, 0.5, 2.0]
    for row in facts["solutions"]:
        known = ak.solve(ak.ANBK(ak.MLP(1, "linear"), richness=row["richness"]), problem.X, problem.y)
        found = ak.load(row["file"])
        assert np.allclose(found.kernel, known.kernel) and found.stats["columns"]["features"] == list("abc")
        assert row["test_loss"] == pytest.approx(ak.mean_squared_error(problem.y_new, known.predict(problem.X_new)))
        assert row["alignment"] == pytest.approx(ak.alignment(known.kernel, np.outer(problem.y, problem.y)))
        assert row["converged"] and not row["kept"]
    aligned = [row["alignment"] for row in facts["solutions"]]
    assert aligned == sorted(aligned)
    page = adakern_json("report s --out s.html")
    assert len(page["solutions"]) == 3
    shown = adakern(f"{LINE} --richness 0,0.5,2")
    assert shown.exit_code == 0 and "adakern report s" in shown.stdout and shown.stdout.count("kept") == 3


def test_it_goes_on_where_it_stopped(problem, adakern_json, monkeypatch):
    adakern_json(f"{LINE} --richness 0,1")
    solved, solve = [], solving.solve
    monkeypatch.setattr(
        solving, "solve", lambda limit, *rest, **how: solved.append(limit) or solve(limit, *rest, **how)
    )
    facts = adakern_json(f"{LINE} --richness 0,1,3")
    assert [limit.richness for limit in solved] == [3.0]
    assert [row["kept"] for row in facts["solutions"]] == [True, True, False]


def test_richer_ones_begin_with_the_neurons_before(problem, adakern_json, monkeypatch):
    starts, solve = [], solving.solve
    monkeypatch.setattr(
        solving, "solve", lambda *given, init, **how: starts.append(init) or solve(*given, init=init, **how)
    )
    adakern_json("sweep train.csv --activation tanh --richness 0,0.3,0.6 --particles 64 --tolerance 0.3 --out s")
    assert starts[:2] == [None, None] and starts[2].limit.richness == 0.3


def test_where_training_ends(problem, adakern_json):
    facts = adakern_json("sweep train.csv --limit antk --decay 0.2 --richness 0.01,2 --out s")
    dead, alive = facts["solutions"]
    assert dead["alignment"] is None and dead["train_loss"] == pytest.approx(1.0)
    known = ak.solve(ak.ANTK(ak.MLP(1), richness=2.0, decay=0.2), problem.X, problem.y)
    assert alive["certificate"] < 1e-4
    assert alive["train_loss"] == pytest.approx(ak.mean_squared_error(problem.y, known.fitted)) and known.fitted.any()


def test_every_value_has_a_file_of_its_own(problem, adakern_json):
    """Close values, and zero with a sign."""
    facts = adakern_json(f"{LINE} --richness 0.1,0.1000001 --richness -0")
    assert [row["file"] for row in facts["solutions"]] == [f"s/{x}.safetensors" for x in ("0", "0.1", "0.1000001")]
    assert [ak.load(row["file"]).limit.richness for row in facts["solutions"]] == [0.0, 0.1, 0.1000001]


def test_targets_as_a_column_and_targets_of_zero(problem, adakern_json):
    np.savez("column.npz", X=problem.X, y=problem.y[:, None])
    np.savez("zero.npz", X=problem.X, y=np.zeros(8))
    facts = adakern_json("sweep column.npz --activation linear --richness 1 --test test.csv --out s")
    assert facts["solutions"][0]["test_loss"] > 0
    facts = adakern_json("sweep zero.npz --activation linear --richness 1 --out z")
    assert facts["solutions"][0]["alignment"] is None


@pytest.mark.parametrize(
    "line, words",
    [
        ("train.csv --richness a,b --out s", "richness must be numbers with commas between them, but it is 'a,b'"),
        ("train.csv --richness 1,1 --out s", "richness must have every value once"),
        ("train.csv --richness -1 --out s", "richness"),
        ("train.csv --out train.csv", "--out must name a folder, but train.csv is a file"),
        ("train.csv --limit antk --beta 3 --out s", "--beta has no meaning for antk"),
        ("train.csv --out train.csv/s", "--out must name a folder, but train.csv is a file"),
        ("missing.csv --out s", "missing.csv"),
        ("train.csv --test two.npz --out s", "two.npz must have 1 targets a point, but it has 2"),
        ("train.csv --activation linear --richness 1 --particles 64 --out other", "is not of this sweep"),
        ("train.csv --activation linear --test bare.npz --richness 1 --out s", "bare.npz has no targets"),
        ("train.csv --activation linear --richness 1 --seed 1 --out other", "is not of this sweep"),
        ("train.csv --particles 8 --steps 1 --richness 1 --out s", "richness 1 did not converge"),
    ],
)
def test_what_is_wrong_is_one_line(problem, adakern, line, words):
    np.savez("bare.npz", X=problem.X_new)
    np.savez("two.npz", X=problem.X_new, y=np.stack([problem.y_new] * 2, axis=1))
    if "other" in line:
        assert adakern("sweep train.csv --activation linear --richness 1 --out other").exit_code == 0
    result = adakern(f"sweep {line} --json")
    assert result.exit_code == 2
    (complaint,) = result.stderr.splitlines()
    assert complaint.startswith("adakern: ") and words in complaint
    assert json.loads(result.stdout) == {"error": complaint.removeprefix("adakern: ")}
    assert not (problem.folder / "s").exists()
