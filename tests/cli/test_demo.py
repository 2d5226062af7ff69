"""The demo and the benchmark, at sizes that are over in seconds."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

import adakern as ak


@pytest.mark.slow
def test_demo_writes_a_picture_and_true_numbers(tmp_path, monkeypatch, adakern):
    monkeypatch.chdir(tmp_path)
    result = adakern("demo --out d.png --n-train 10 --n-test 40 --particles 128 --width 64 --json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    rows = {row["predictor"]: row for row in facts["predictors"]}
    adaptive = ["ANTK, richness 1", "ANBK, richness 1", "ANBK, richness 3"]
    assert list(rows) == ["NNGP", "NNGPK", "NTK", *adaptive, "network, richness 3"]
    assert abs(rows["ANTK, richness 1"]["certificate"]) <= 1e-4 and rows["ANTK, richness 1"]["accuracy"] > 0.5
    assert facts["network"]["width"] == 64 and 0.9 < facts["network"]["alignment"] <= 1

    X, y, X_test, y_test = ak.datasets.mnist(n_train=10, n_test=40)
    solution = ak.solve(ak.NNGP(ak.MLP(), beta=50.0), X, y)
    f, variance = solution.predict(X_test), solution.variance(X_test)
    assert rows["NNGP"]["test_loss"] == pytest.approx(np.mean((y_test - f) ** 2 + variance), rel=1e-9)
    assert rows["NNGPK"]["test_loss"] == pytest.approx(np.mean((y_test - f) ** 2), rel=1e-9)
    assert rows["NTK"]["accuracy"] == np.mean(np.sign(ak.solve(ak.NTK(ak.MLP()), X, y).predict(X_test)) == y_test)
    with Image.open("d.png") as picture:
        assert picture.format == "PNG" and min(picture.size) > 1000
        assert len(np.unique(np.asarray(picture.convert("L")))) > 50
    assert [path.name for path in tmp_path.iterdir()] == ["d.png"]


def test_demo_refuses_a_folder_and_an_unknown_kind_before_it_works(tmp_path, monkeypatch, adakern):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.png").mkdir()
    assert "folder.png is a folder" in adakern("demo --out folder.png").stderr
    assert "must name a .png, .pdf or .svg file" in adakern("demo --out d.bmp").stderr


@pytest.mark.slow
def test_bench_measures_every_row(tmp_path, monkeypatch, adakern):
    from adakern.benchmarks import lazy as benchmarks

    monkeypatch.chdir(tmp_path)
    real = benchmarks.cases
    monkeypatch.setattr(benchmarks, "cases", lambda **sizes: real(**sizes)[:1])
    result = adakern("bench lazy --points 60 --new 40 --features 9 --depth 2 --repeat 1 --markdown t.md --json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    (row,) = facts["rows"]
    assert row["ratio"] == pytest.approx((row["solve_s"] + row["predict_s"]) / row["bare_s"])
    assert 50 * 1024**2 < row["peak_bytes"] < facts["limit_bytes"] and facts["within_limit"] is True
    text = (tmp_path / "t.md").read_text()
    assert "--points 60 --new 40 --features 9 --depth 2 --repeat 1" in text
    assert f"| NNGP | relu | {row['ratio']:.1f} | {row['cpu_ratio']:.1f} |" in text and "limit 2 GiB: ok" in text
