"""fit → info → predict gives what the library gives."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

import adakern as ak

NET = ak.MLP(depth=2, activation="relu")
LAZY = {
    "nngp --beta 20 --decay 1,2,0.5": ak.NNGP(NET, beta=20.0, decay=(1.0, 2.0, 0.5)),
    "nngpk": ak.NNGPK(NET),
    "ntk --ridge 0.1": ak.NTK(NET, ridge=0.1),
}


@pytest.mark.parametrize("suffix", ["csv", "npz"])
@pytest.mark.parametrize("options", LAZY)
def test_lazy_limits_agree_with_solve(problem, adakern_json, suffix, options):
    limit = LAZY[options]
    expected = ak.solve(limit, problem.X, problem.y)
    fitted = adakern_json(f"fit train.{suffix} --depth 2 --limit {options} --out run.safetensors")
    assert fitted["limit"] == limit.kind and fitted["converged"] is True
    assert (fitted["points"], fitted["features"], fitted["outputs"]) == (8, 3, 1)
    assert fitted["train_loss"] == pytest.approx(ak.mean_squared_error(problem.y, expected.fitted), rel=1e-9)

    loaded = ak.load("run.safetensors")
    assert loaded.limit == limit
    np.testing.assert_array_equal(loaded.kernel, expected.kernel)

    shown = adakern_json("info run.safetensors")
    assert shown == fitted

    predicted = adakern_json(f"predict run.safetensors test.{suffix} --out p.{suffix}")
    f = expected.predict(problem.X_new)
    variance = expected.variance(problem.X_new) if limit.kind == "NNGP" else None
    columns = read(f"p.{suffix}")
    assert set(columns) == ({"f"} if variance is None else {"f", "variance"})
    np.testing.assert_allclose(columns["f"], f, rtol=1e-12)
    if variance is not None:
        np.testing.assert_allclose(columns["variance"], variance, rtol=1e-12)
    loss = ak.mean_squared_error(problem.y_new, f, 0.0 if variance is None else variance)
    assert predicted["test_loss"] == pytest.approx(loss, rel=1e-9)
    assert predicted["accuracy"] == np.mean(np.sign(f) == problem.y_new)


@pytest.mark.long
def test_adaptive_limit_agrees_with_solve_and_writes_its_error(problem, adakern_json):
    options = {"particles": 2048, "tolerance": 0.05}
    expected = ak.solve(ak.ANBK(ak.MLP(), richness=0.7), problem.X, problem.y, seed=5, **options)
    adakern_json(
        "fit train.csv --limit anbk --richness 0.7 --particles 2048 --tolerance 0.05 --seed 5 --out run.safetensors"
    )
    adakern_json("predict run.safetensors test.csv --std --out p.csv")
    f, std = expected.predict(problem.X_new, return_std=True)
    columns = read("p.csv")
    np.testing.assert_allclose(columns["f"], f, rtol=1e-10)
    np.testing.assert_allclose(columns["std"], std, rtol=1e-6)
    assert (std > 0).all()


@pytest.mark.long
def test_gradient_flow_with_the_logistic_loss(problem, adakern_json):
    numbers = "--richness 3 --decay 0.3,0.2 --particles 64"
    fitted = adakern_json(f"fit train.csv --limit antk --loss logistic {numbers} --out run.safetensors")
    limit = ak.ANTK(ak.MLP(), richness=3.0, decay=(0.3, 0.2), loss="logistic")
    assert fitted["limit"] == "ANTK" and fitted["converged"] is True
    loaded = ak.load("run.safetensors")
    assert loaded.limit == limit and abs(loaded.certificate) <= 1e-4
    # At rest s = Φ¹Δ/λ1 with Δ = y/(1 + exp(y s)), and f is the difference of the two probabilities.
    s = loaded.kernels[0] @ loaded.errors / 0.2
    np.testing.assert_allclose(loaded.errors, problem.y / (1 + np.exp(problem.y * s)), atol=1e-9)
    np.testing.assert_allclose(loaded.fitted, np.tanh(s / 2), atol=1e-9)
    assert adakern_json("info run.safetensors") == fitted
    predicted = adakern_json("predict run.safetensors test.csv --out p.csv")
    f = read("p.csv")["f"]
    np.testing.assert_allclose(f, loaded.predict(problem.X_new), rtol=1e-10)
    assert (np.abs(f) < 1).all() and predicted["accuracy"] == np.mean(np.sign(f) == problem.y_new)


def test_several_targets(problem, adakern_json):
    from .conftest import write_csv

    targets = np.column_stack([problem.y, problem.X[:, 1]])
    write_csv(problem.folder / "two.csv", problem.X, left=targets[:, 0], right=targets[:, 1])
    fitted = adakern_json("fit two.csv --target left --target right --limit nngp --out run.safetensors")
    assert fitted["outputs"] == 2
    write_csv(problem.folder / "new.csv", problem.X_new)
    predicted = adakern_json("predict run.safetensors new.csv --std --out p.csv")
    assert predicted["test_loss"] is None
    columns = read("p.csv")
    assert list(columns) == ["f0", "f1", "std0", "std1", "variance"]
    f = ak.solve(ak.NNGP(ak.MLP()), problem.X, targets).predict(problem.X_new)
    np.testing.assert_allclose(np.column_stack([columns["f0"], columns["f1"]]), f, rtol=1e-12)


def test_unlabelled_and_worded_data_are_predicted_without_a_loss(problem, adakern_json):
    adakern_json("fit train.csv --limit nngpk --out run.safetensors")
    np.savez("bare.npz", X=problem.X_new)
    words = ["a,b,c,y", *(",".join([*map(repr, row), "zero"]) for row in problem.X_new.tolist())]
    (problem.folder / "words.csv").write_text("\n".join(words))
    for name in ("bare.npz", "words.csv"):
        assert adakern_json(f"predict run.safetensors {name} --out p.npz")["test_loss"] is None
        np.testing.assert_array_equal(read("p.npz")["f"], ak.load("run.safetensors").predict(problem.X_new))


def test_precision_and_summary_for_people(problem, adakern):
    result = adakern("fit train.csv --limit ntk --precision float32 --out run.safetensors")
    assert result.exit_code == 0
    assert "8 points, 3 features, 1 output" in result.stdout and "run.safetensors" in result.stdout
    assert ak.load("run.safetensors").precision == "float32"
    shown = adakern("info run.safetensors").stdout
    assert "NTK" in shown and "float32" in shown and ak.__version__ in shown
    assert "test loss" in adakern("predict run.safetensors test.csv --out p.csv").stdout


def read(path: str) -> dict[str, np.ndarray]:
    if path.endswith(".npz"):
        with np.load(path) as file:
            return dict(file)
    with open(path, encoding="utf-8", newline="") as stream:
        header, *rows = csv.reader(stream)
    return dict(zip(header, np.array(rows, dtype=float).T, strict=True))


def test_columns_are_found_by_name(tmp_path, monkeypatch, adakern_json):
    """A table with its columns in another order, and a feature that is called y."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 12))
    z = np.sign(x)
    for name, columns in {"fit": {"x": x, "y": y, "z": z}, "new": {"y": y, "other": z, "x": x}}.items():
        table = np.column_stack(list(columns.values()))
        np.savetxt(f"{name}.csv", table, delimiter=",", header=",".join(columns), comments="", fmt="%.17g")
    adakern_json("fit fit.csv --target z --limit nngpk --out run.safetensors")
    for name in ("fit", "new"):
        adakern_json(f"predict run.safetensors {name}.csv --out f_{name}.csv")
    assert (tmp_path / "f_fit.csv").read_text() == (tmp_path / "f_new.csv").read_text()


def test_info_of_a_network_of_finite_width(tmp_path, monkeypatch, adakern):
    monkeypatch.chdir(tmp_path)
    run = ak.finite.gradient_flow(ak.MLP(1, "erf"), np.eye(3), [1.0, -1.0, 0.5], decay=0.5, width=4, time=1.0)
    run.save("n.safetensors")
    facts = json.loads(adakern("info n.safetensors --json").stdout)
    assert facts["kind"] == "gradient flow" and facts["settings"]["width"] == 4 and facts["points"] == 3
    assert facts["settings"]["decays"] == [0.5, 0.5] and facts["last_loss"] == pytest.approx(run.losses[-1])
    text = adakern("info n.safetensors").stdout
    assert "Networks of finite width" in text and "reached t = 1" in text
    refused = adakern("predict n.safetensors x.csv --out p.csv")
    assert refused.exit_code == 2 and "holds 'adakern-run', not 'adakern-solution'" in refused.stderr


def test_info_of_training_over_time(tmp_path, monkeypatch, adakern):
    monkeypatch.chdir(tmp_path)
    limit = ak.ANTK(ak.MLP(1, "tanh"), richness=2.0, decay=(0.5, 0.2))
    X, y = np.eye(3), [1.0, -1.0, 0.5]
    found = ak.dynamics(limit, X, y, [0.0, 1.0], X_test=-X[:1], y_test=[-1.0], neurons=16, replicas=2)
    found.save("t.safetensors")
    facts = json.loads(adakern("info t.safetensors --json").stdout)
    assert (facts["kind"], facts["limit"]) == ("dynamics", "ANTK") and facts["numbers"]["richness"] == 2.0
    assert (facts["points"], facts["features"], facts["outputs"], facts["times"]) == (3, 3, 1, 2)
    assert facts["last_time"] == 1.0 and facts["last_loss"] == pytest.approx(found.train_loss[-1])
    assert facts["last_test_loss"] == pytest.approx(found.test_loss[-1]) and facts["converged"] is True
    text = adakern("info t.safetensors").stdout
    assert "Training over time" in text and "last test loss" in text and "richness" in text
    refused = adakern("predict t.safetensors x.csv --out p.csv")
    assert refused.exit_code == 2 and "not 'adakern-solution'" in refused.stderr
