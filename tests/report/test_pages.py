"""A page holds the numbers of its solutions, nothing from elsewhere, and no markup out of a file."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace

import numpy as np
import pytest

import adakern as ak
from adakern.report import Test, page, words

LINEAR = ak.MLP(depth=2, activation="linear")
SIGNS = np.array([1.0, -1.0, 1.0, -1.0, -1.0, 1.0])


@pytest.fixture(scope="module")
def inputs():
    return np.random.default_rng(4).standard_normal((6, 4))


@pytest.fixture(scope="module")
def sweep(inputs):
    """Closed forms: the lazy limit and two of the adaptive one, not in order."""
    limits = (ak.ANBK(LINEAR, richness=2.0), ak.NNGPK(LINEAR), ak.ANBK(LINEAR, richness=0.5))
    return [ak.solve(limit, inputs, SIGNS) for limit in limits]


def data_of(text):
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def floats(text):
    return np.frombuffer(base64.b64decode(text), "<f4")


def kernel_of(packed):
    diagonal = floats(packed["diagonal"])
    codes = np.frombuffer(base64.b64decode(packed["codes"]), "<u2")
    matrix = np.zeros((len(diagonal), len(diagonal)))
    matrix[np.triu_indices(len(diagonal))] = packed["low"] + (packed["high"] - packed["low"]) / 65535 * codes
    return np.maximum(matrix, matrix.T) if packed["low"] >= 0 else np.triu(matrix) + np.triu(matrix, 1).T


def test_a_page_holds_the_numbers_of_a_solution(sweep, inputs):
    solution = sweep[0]
    data = data_of(page(solution))
    (item,) = data["items"]
    assert data["title"] == "ANBK, γ₀ = 2" and data["layers"] == ["Φ⁰", "Φ¹", "Φ²"]
    order = [1, 3, 4, 0, 2, 5]
    assert data["kernel"]["points"] == order and data["kernel"]["classes"] == ["y = −1", "y = 1"]
    for packed, kernel in zip(item["kernels"], (inputs @ inputs.T / 4, *solution.kernels), strict=True):
        size = np.sqrt(np.diag(kernel))
        expected = (kernel / np.outer(size, size))[np.ix_(order, order)]
        np.testing.assert_allclose(kernel_of(packed), expected, atol=2 / 65535)
        np.testing.assert_allclose(floats(packed["diagonal"]), np.diag(kernel)[order], rtol=1e-6)
    labels = np.outer(SIGNS, SIGNS)
    assert item["alignment"][1:] == pytest.approx([ak.alignment(kernel, labels) for kernel in solution.kernels])
    np.testing.assert_allclose(floats(item["train"]["f"]), solution.fitted[data["train"]["index"]], rtol=1e-6)
    assert item["train"]["loss"] == pytest.approx(ak.mean_squared_error(SIGNS, solution.fitted))
    assert item["residual"] == solution.residual and item["converged"] is True
    facts = dict(item["summary"])
    assert facts["network"] == "MLP, 2 hidden layers, linear" and facts["data"] == "6 points, 4 features, 1 output"


def test_densities_have_mass_one_in_bins_that_all_share(sweep):
    data = data_of(page(sweep))
    points, bins = data["density"]["points"], data["density"]["bins"]
    ends = floats(data["density"]["ends"]).reshape(2, len(points), 2)
    for item, solution in zip(data["items"], (sweep[1], sweep[2], sweep[0]), strict=True):
        heights = floats(item["density"]["heights"]).reshape(2, len(points), bins)
        mass = heights.sum(axis=2) * (ends[..., 1] - ends[..., 0]) / bins
        assert (np.abs(mass - 1) < 0.01).all()
        spreads = floats(item["density"]["spreads"]).reshape(2, len(points))
        own = solution.density(2, points[3])[0]
        assert spreads[1, 3] == pytest.approx(own.std(), rel=1e-3)


def test_a_sweep_is_in_the_order_of_its_richness(sweep):
    data = data_of(page(sweep, names=["c", "a", "b"]))
    assert [item["richness"] for item in data["items"]] == [0.0, 0.5, 2.0]
    assert [dict(item["summary"])["file"] for item in data["items"]] == ["a", "b", "c"]
    assert data["title"] == "ANBK, γ₀ from 0 to 2"
    last = [item["alignment"][-1] for item in data["items"]]
    assert last == sorted(last) and last[-1] > last[0] + 0.1  # lazy to rich


def test_what_is_no_sweep_is_refused(sweep, inputs):
    other = ak.solve(ak.NNGPK(LINEAR, beta=5.0), inputs, SIGNS)
    with pytest.raises(ValueError, match="beta is 50.0 in a and 5.0 in b"):
        page([sweep[0], other], names=["a", "b"])
    with pytest.raises(ValueError, match="every richness once, but solution 1 and solution 2 both have 2"):
        page([sweep[0], sweep[0]])
    elsewhere = ak.solve(ak.NNGPK(LINEAR), inputs, -SIGNS)
    with pytest.raises(ValueError, match="y of solution 1 and solution 2 differ"):
        page([sweep[0], elsewhere])
    deeper = ak.solve(ak.NNGPK(ak.MLP(3, "linear")), inputs, SIGNS)
    with pytest.raises(ValueError, match="of one network"):
        page([sweep[0], deeper])
    flow = ak.solve(ak.ANTK(LINEAR, richness=3.0), inputs, SIGNS)
    with pytest.raises(ValueError, match="limit is ANBK in solution 1 and ANTK in solution 2"):
        page([sweep[0], flow])
    for limit in (ak.NTK(LINEAR), ak.NNGP(LINEAR)):
        with pytest.raises(ValueError, match="lazy end of a sweep of ANBK .* must be NNGPK, but solution 2 is N"):
            page([sweep[0], ak.solve(limit, inputs, SIGNS)])
    page([flow, ak.solve(ak.NTK(LINEAR), inputs, SIGNS)])
    with pytest.raises(ValueError, match="lazy end of a sweep of ANTK .* must be NTK, but solution 2 is NNGPK"):
        page([flow, sweep[1]])
    page([ak.solve(ak.VGA(LINEAR, richness=1.0), inputs, SIGNS), sweep[1]])
    with pytest.raises(ValueError, match="at least one"):
        page([])
    with pytest.raises(TypeError, match="this is a str"):
        page(["run"])
    with pytest.raises(ValueError, match="as many as the solutions"):
        page(sweep, names=["one"])


def test_why_there_is_no_certificate(inputs):
    """Not needed, not to be had, or not computed: three things."""

    def said(solution):
        return {name: meaning for name, _, meaning in words.evidence(solution)}["certificate"]

    relu = ak.solve(ak.ANBK(ak.MLP(1, "relu"), richness=0.0), inputs, SIGNS)
    assert said(relu) == "none is needed: lazy, in closed form"
    failed = replace(relu, limit=replace(relu.limit, richness=1.0), stats={"audit": {"status": "layer 1: no law"}})
    assert said(failed) == "none could be computed; layer 1: no law"
    assert said(ak.solve(ak.NTK(LINEAR), inputs, SIGNS)) == "there is none for this limit and network"


def test_words_of_others_stay_words(sweep):
    nasty = '</script><script>alert(1)</script>&"{{data}}'
    text = page(sweep[0], names=[nasty], title=nasty, labels=(nasty, "b"))
    assert "<script>alert" not in text and text.count("<script") == 3 and text.count("</script>") == 3
    data = data_of(text)
    assert data["title"] == nasty and data["kernel"]["classes"][0] == nasty
    assert "&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;&amp;&quot;{{data}}" in text


def test_a_page_asks_for_nothing(sweep):
    text = page(sweep)
    assert re.findall(r"https?://|\bsrc=|url\(|@import|<link|import\(|fetch\(", text) == []
    assert "default-src 'none'" in text


def test_many_points_are_thinned_out_and_the_page_says_so():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((450, 3)), rng.standard_normal(450)
    solution = ak.solve(ak.NNGPK(ak.MLP(5, "linear")), X, y)
    text = page(solution)
    data = data_of(text)
    shown = data["kernel"]["points"]
    assert len(shown) == 400 and len(set(shown)) == 400
    assert np.all(np.diff(y[shown]) > 0) and data["kernel"]["classes"] == []  # real targets: sorted, and no classes
    assert "400 of 450 points" in data["notes"][0]
    assert len(text) < 2e6
    labels = np.outer(y, y)
    assert data["items"][0]["alignment"][-1] == pytest.approx(ak.alignment(solution.kernel, labels))  # of all of them


def test_new_points_have_predictions_scores_and_variances(inputs):
    rng = np.random.default_rng(1)
    X_new, y_new = rng.standard_normal((5, 4)), np.array([1.0, 1.0, -1.0, 1.0, -1.0])
    solution = ak.solve(ak.NNGP(LINEAR), inputs, SIGNS)
    (item,) = (data := data_of(page(solution, test=Test(X_new, y_new, "new.csv"))))["items"]
    f, variance = solution.predict(X_new), solution.variance(X_new)
    index = data["test"]["index"]
    assert index == [2, 4, 0, 1, 3]
    np.testing.assert_allclose(floats(item["test"]["f"]), f[index], rtol=1e-6)
    np.testing.assert_allclose(floats(item["test"]["spread"]), np.sqrt(variance[index]), rtol=1e-6)
    assert item["test"]["loss"] == pytest.approx(ak.mean_squared_error(y_new, f, variance))
    assert item["test"]["accuracy"] == np.mean(np.sign(f) == y_new)
    blind = data_of(page(solution, test=Test(X_new)))
    assert blind["test"]["y"] is None and "loss" not in blind["items"][0]["test"]
    with pytest.raises(ValueError, match="shape"):
        page(solution, test=Test(X_new[:, :2]))
    with pytest.raises(ValueError, match=r"must have shape \(5,\)"):
        page(solution, test=Test(X_new, np.ones((5, 2))))


def test_several_outputs(inputs):
    hot = np.eye(3)[[0, 1, 2, 0, 1, 2]]
    data = data_of(page(ak.solve(ak.ANBK(LINEAR, richness=0.5), inputs, hot), labels=("a", "b", "c")))
    assert data["outputs"] == 3 and data["kernel"]["classes"] == ["a", "b", "c"]
    assert data["kernel"]["points"] == [0, 3, 1, 4, 2, 5]
    assert floats(data["items"][0]["train"]["f"]).shape == (18,)
    assert 0 <= data["items"][0]["train"]["accuracy"] <= 1


def test_nothing_is_left_where_everything_died(inputs):
    solution = ak.solve(ak.ANTK(ak.MLP(1, "relu"), richness=0.01, decay=1.0), inputs, SIGNS)
    assert solution.stats["collapsed"]
    (item,) = (data := data_of(page(solution)))["items"]
    assert data["layers"] == ["Φ⁰", "Φ¹", "K"]
    assert item["alignment"][0] > 0 and item["alignment"][1:] == [None, None]
    assert not kernel_of(item["kernels"][1]).any()
    assert item["density"]["law"] == ["0 neurons with weights"]
    assert ["collapse", "everything died"] in [row[:2] for row in item["evidence"]]


def test_one_point():
    solution = ak.solve(ak.NNGPK(LINEAR), np.ones((1, 3)), np.ones(1))
    data = data_of(page(solution))
    assert data["kernel"]["points"] == [0] and data["items"][0]["alignment"] == pytest.approx([1.0] * 3)


def test_layers_of_a_cnn_are_summed_over_positions():
    X = np.random.default_rng(2).standard_normal((4, 4, 4, 1))
    solution = ak.solve(ak.NNGPK(ak.CNN(2, window=2, activation="linear")), X, np.array([1.0, -1.0, 1.0, -1.0]))
    (item,) = (data := data_of(page(solution)))["items"]
    order = data["kernel"]["points"]
    inner = np.einsum("paqa->pq", solution.kernels[0])
    np.testing.assert_allclose(floats(item["kernels"][1]["diagonal"]), np.diag(inner)[order], rtol=1e-6)
    assert data["density"]["position"] == "at position 4, 2 of the layers"


def test_a_trace_ends_in_its_mean_and_errors_are_told(sweep):
    values = [50.0, 9.0, 5.0, 4.0, 4.2, 4.0, 4.2, 4.0, 4.2]
    trace = [[10.0 * step, value] for step, value in enumerate(values)]
    errors = tuple(0.01 * np.abs(kernel) for kernel in sweep[0].kernels)
    stats = {**sweep[0].stats, "trace": trace, "batches": 6, "relative_error": 0.01, "tolerance": 0.02}
    (item,) = data_of(page(replace(sweep[0], stats=stats, kernel_errors=errors)))["items"]
    (line,) = item["trace"]
    assert line["x"][-1] == 80.0 and line["values"] == values
    assert line["level"] == pytest.approx([4.1, np.std([4, 4.2, 4, 4.2], ddof=1) / 2])  # half of them, no correlation
    facts = {row[0]: row[1] for row in item["evidence"]}
    assert facts["error, layer 1"] == "0.01" and facts["relative error"] == "0.01"


@pytest.mark.slow
@pytest.mark.long
def test_particles_leave_a_trace_and_error_bars(inputs):
    limit = ak.ANBK(ak.MLP(), richness=0.5)
    solution = ak.solve(limit, inputs, SIGNS, particles=64, steps=400, throw=False)
    (item,) = data_of(page(solution))["items"]
    (trace,) = item["trace"]
    assert trace["what"] == "energy" and trace["values"][-1] == pytest.approx(solution.stats["trace"][-1][1])
    mean, error = trace["level"]
    assert error > 0 and abs(mean - solution.stats["energy"]) < 5 * error + 0.05 * abs(mean)
    names = [row[0] for row in item["evidence"]]
    assert "error, layer 1" in names and "relative error" in names
    assert item["density"]["law"][0].endswith("neurons drawn")


def test_outputs_at_training_points_have_their_errors(inputs):
    """Those of a sampled solution its Monte-Carlo error, those of an NNGP the deviation of the posterior, whose variance is in the loss."""
    sampled = ak.solve(ak.ANBK(ak.MLP(1, "tanh"), richness=0.5), inputs, SIGNS, particles=64, steps=400, throw=False)
    data = data_of(page(sampled))
    shown = data["train"]["index"]
    found = floats(data["items"][0]["train"]["std"])
    np.testing.assert_allclose(found, sampled.predict(inputs, return_std=True)[1][shown], rtol=1e-5)
    exact = ak.solve(ak.NNGP(LINEAR), inputs, SIGNS)
    train = data_of(page(exact))["items"][0]["train"]
    variance = exact.variance(inputs)
    np.testing.assert_allclose(floats(train["spread"]), np.sqrt(variance[shown]), rtol=1e-5)
    assert train["std"] is None
    assert train["loss"] == pytest.approx(ak.mean_squared_error(SIGNS, exact.fitted, variance))


def test_several_real_outputs_are_no_classes(inputs):
    targets = np.stack([SIGNS, np.linspace(0.0, 1.0, 6)], axis=1)
    data = data_of(page(ak.solve(ak.NNGPK(LINEAR), inputs, targets)))
    assert data["kernel"]["classes"] == [] and data["kernel"]["points"] == list(range(6))
    assert data["train"]["sorted"] is False and data["train"]["index"] == list(range(6))
    hot = np.eye(2)[(SIGNS > 0).astype(int)]
    data = data_of(page(ak.solve(ak.NNGPK(LINEAR), inputs, hot)))
    assert data["kernel"]["classes"] == ["output 0", "output 1"] and data["train"]["sorted"] is True


@pytest.mark.parametrize("labels", [("a",), ("a", "b", "c")])
def test_names_must_be_as_many_as_the_classes(sweep, labels):
    with pytest.raises(ValueError, match=f"there are 2 classes and {len(labels)} names"):
        page(sweep[0], labels=labels)
