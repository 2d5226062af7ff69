"""Gradient flow and descent: another integrator, conserved quantities, closed forms, symmetries."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import adakern as ak
from adakern import losses
from adakern.finite import coordinates, model
from adakern.precision import scope

TINY = ak.MLP(2, "tanh")
X_TINY = np.random.default_rng(0).standard_normal((4, 2))
Y_TINY = np.random.default_rng(1).standard_normal((4, 2))
DECAYS = (0.1, 0.4, 0.2)
TIMES = (0.0, 0.3, 1.0)


def tiny(**options):
    changed = {"width": 3, "decay": DECAYS, "richness": 0.8, "time": 1.0, "times": TIMES, "precision": "float64"}
    return ak.finite.gradient_flow(TINY, X_TINY, Y_TINY, **{**changed, **options})


@pytest.fixture(scope="module")
def exact():
    return tiny(accuracy=1e-9, tolerance=0.0)


def forward(weights, X, gamma):
    features = np.tanh(X @ weights[0] / np.sqrt(X.shape[1]))
    features = np.tanh(features @ weights[1] / np.sqrt(3))
    return features @ weights[2] / (gamma * np.sqrt(3))


def velocity(weights, gamma):
    """Written out layer by layer, for two hidden tanh layers of width 3."""
    first = np.tanh(X_TINY @ weights[0] / np.sqrt(2))
    second = np.tanh(first @ weights[1] / np.sqrt(3))
    delta = Y_TINY - second @ weights[2] / (gamma * np.sqrt(3))
    above = (delta @ weights[2].T) / (gamma * np.sqrt(3)) * (1 - second**2)
    below = (above @ weights[1].T) / np.sqrt(3) * (1 - first**2)
    gradients = X_TINY.T @ below / np.sqrt(2), first.T @ above / np.sqrt(3), second.T @ delta / (gamma * np.sqrt(3))
    return [gamma**2 * g - rate * w for g, w, rate in zip(gradients, weights, DECAYS, strict=True)]


def test_ode_against_another_integrator(exact):
    gamma = 0.8 * np.sqrt(3)
    start = [w[0] for w in exact.weights]
    sizes = np.cumsum([w.size for w in start])[:-1]

    def unpack(flat):
        return [part.reshape(w.shape) for part, w in zip(np.split(flat, sizes), start, strict=True)]

    def right(_, flat):
        return np.concatenate([v.ravel() for v in velocity(unpack(flat), gamma)])

    flat = np.concatenate([w.ravel() for w in start])
    solution = solve_ivp(right, (0, 1), flat, t_eval=TIMES, rtol=1e-11, atol=1e-12, method="DOP853")
    np.testing.assert_array_equal(exact.sample_times, TIMES)
    for index, values in enumerate(solution.y.T):
        for found, expected in zip(exact.weights, unpack(values), strict=True):
            np.testing.assert_allclose(found[index], expected, atol=1e-7)
    np.testing.assert_allclose(exact.fitted, forward(unpack(solution.y[:, -1]), X_TINY, gamma), atol=1e-7)
    assert np.linalg.norm(exact.weights[0][-1] - start[0]) > 0.1


def test_stabilised_steps_follow_the_same_flow(exact):
    fine = tiny(method="chebyshev", accuracy=1e-7, tolerance=0.0)
    for found, expected in zip(fine.weights, exact.weights, strict=True):
        np.testing.assert_allclose(found, expected, atol=3e-6)
    assert fine.stats["evaluations"] > fine.stats["steps"] > 0


def test_stabilised_steps_reach_the_end_with_fewer_evaluations():
    X, y = np.random.default_rng(0).standard_normal((30, 4)), np.sign(np.random.default_rng(1).standard_normal(30))
    options = {"width": 64, "decay": 0.3, "richness": 2.0, "time": 40.0, "tolerance": 0.0}
    runs = [
        ak.finite.gradient_flow(ak.MLP(2, "tanh"), X, y, method=method, **options) for method in ("ode", "chebyshev")
    ]
    assert runs[1].stats["evaluations"] < 0.6 * runs[0].stats["evaluations"]
    np.testing.assert_allclose(runs[1].fitted, runs[0].fitted, atol=2e-3)
    np.testing.assert_allclose(runs[1].kernel, runs[0].kernel, atol=5e-3 * np.abs(runs[0].kernel).max())


def test_momentum_follows_the_flow_of_a_kinked_network_with_few_gradients():
    X, y = np.random.default_rng(0).standard_normal((12, 4)), np.sign(np.random.default_rng(1).standard_normal(12))
    options = {"width": 64, "decay": 0.1, "richness": 2.0, "tolerance": 0.0, "time": 60.0, "times": [6.0]}
    ways = {"ode": {"method": "ode"}, **{way: {"method": way, "step": 0.01} for way in ("descent", "momentum")}}
    runs = {way: ak.finite.gradient_flow(ak.MLP(2, "relu"), X, y, **how, **options) for way, how in ways.items()}
    assert runs["momentum"].stats["evaluations"] < runs["descent"].stats["evaluations"] / 4
    assert runs["momentum"].times[-1] == 60.0
    for moment, accuracy in ((6.0, 0.02), (60.0, 0.003)):
        flow, descent, rolled = (runs[way].at(moment) for way in ("ode", "descent", "momentum"))
        error = np.abs(rolled.fitted - flow.fitted).max()
        assert error < max(accuracy, 2 * np.abs(descent.fitted - flow.fitted).max())
        np.testing.assert_allclose(rolled.kernel, flow.kernel, atol=2 * accuracy * np.abs(flow.kernel).max())


def test_initial_weights_are_the_seeds(exact):
    drawn = model.draw(np.random.default_rng([0, 0, 0]), ((2, 3), (3, 3), (3, 2)))
    for found, expected in zip(exact.weights, drawn, strict=True):
        np.testing.assert_array_equal(found[0], expected)


def test_descent_approaches_the_flow_linearly(exact):
    errors = [
        np.linalg.norm(tiny(method="descent", step=step, times=None, tolerance=0.0).fitted - exact.fitted)
        for step in (0.008, 0.004, 0.002)
    ]
    assert errors[0] / errors[1] == pytest.approx(2, abs=0.15) and errors[1] / errors[2] == pytest.approx(2, abs=0.1)
    assert errors[2] < 0.01


def by_hand(step, count):
    weights = model.draw(np.random.default_rng([0, 0, 0]), ((2, 3), (3, 3), (3, 2)))
    for _ in range(count):
        weights = [w + step * v for w, v in zip(weights, velocity(weights, 0.8 * np.sqrt(3)), strict=True)]
    return weights


@pytest.mark.parametrize("step, count", [(0.005, 200), (0.1, 10)])
def test_descent_takes_the_steps_it_is_given(step, count):
    run = tiny(method="descent", step=step, times=None, tolerance=0.0)
    assert run.stats["steps"] == count and run.stats["step"] == step
    for found, expected in zip(run.weights, by_hand(step, count), strict=True):
        np.testing.assert_allclose(found[0], expected, rtol=1e-10, atol=1e-12)


def test_descent_keeps_the_moments_that_were_asked_for():
    run = tiny(method="descent", step=0.01, times=[0.01, 0.1, 1.0], tolerance=0.0)
    np.testing.assert_allclose(run.sample_times, [0.01, 0.1, 1.0])
    for index, count in enumerate((1, 10, 100)):
        np.testing.assert_allclose(run.weights[2][index], by_hand(0.01, count)[2], rtol=1e-9)


def test_descent_of_a_cnn(cnn, images):
    """Against descent on jax.grad of the loss, with a decay per layer."""
    X, y, _ = images
    options = {"width": 4, "decay": (0.3, 0.0, 0.7), "method": "descent", "step": 0.01, "time": 1.0, "tolerance": 0.0}
    run = ak.finite.gradient_flow(cnn, X, y, precision="float64", richness=0.6, **options)
    net = model.build(cnn, X, losses.get("squared"), 4, 3, "highest")
    rows = model.rows_of(cnn, X)
    gamma = 0.6 * np.sqrt(4)
    with scope("float64"):
        weights = [jnp.asarray(w) for w in model.draw(np.random.default_rng([0, 0, 0]), net.shapes(rows.shape[1]))]
        arguments = jnp.asarray(rows), jnp.asarray(net.scales(gamma))
        slope = jax.jit(jax.grad(lambda w: jnp.sum((y - net.outputs_of(w, *arguments)) ** 2) / 2))
        for _ in range(100):
            moves = zip(weights, slope(weights), (0.3, 0.0, 0.7), strict=True)
            weights = [w - 0.01 * (gamma**2 * g + rate * w) for w, g, rate in moves]
        np.testing.assert_allclose(run.fitted, net.outputs_of(weights, *arguments), rtol=1e-8)
    assert run.stats["steps"] == 100


def test_without_decay_the_data_are_fitted(flow, points):
    run = flow(decay=0.0, time=60.0, tolerance=0.0)
    assert run.losses[-1] < 1e-6 < 1e-2 < run.losses[0]
    np.testing.assert_allclose(run.fitted, points[1], atol=2e-3)


def test_the_loss_never_rises_without_decay(flow):
    run = flow(decay=0.0, time=20.0)
    assert np.all(np.diff(run.losses) < 1e-5 * run.losses[0])


@pytest.mark.long
def test_wide_networks_in_ntk_parameterisation_are_linear(flow, points):
    """f(t) = y + e^{−Kt}(f(0) − y) with K of the start; what is missing falls like one over the width."""
    misses, moved = [], []
    for width in (24, 1536):
        squares = []
        for seed in range(4):
            run = flow(width=width, seed=seed, parameterization="ntk", decay=0.0, time=1.0, times=[0.0], tolerance=0.0)
            start = run.at(0.0)
            values, vectors = np.linalg.eigh(start.tangent_kernel)
            linear = points[1] + vectors @ (np.exp(-values) * (vectors.T @ (start.fitted - points[1])))
            squares.append(np.mean((run.fitted - linear) ** 2))
            moved.append(np.mean((run.fitted - start.fitted) ** 2))
        misses.append(np.sqrt(np.mean(squares)))
    # 64 times as wide, and as many times less, give or take the scatter of four seeds.
    assert 20 < misses[0] / misses[1] < 160
    assert misses[1] < 0.1 * np.sqrt(np.mean(moved))


@pytest.fixture(scope="module")
def one_relu():
    def run(richness):
        options = {"richness": richness, "decay": 1.0, "width": 200, "time": 80.0, "precision": "float64"}
        return ak.finite.gradient_flow(ak.MLP(1, "relu"), [[1.0]], [1.0], tolerance=0.0, accuracy=1e-6, **options)

    return run


@pytest.mark.parametrize("richness", [1.5, 2.5])
def test_one_relu_point_with_decay(one_relu, richness):
    run = one_relu(richness)
    assert run.kernel[0, 0] == pytest.approx(richness - 1, abs=2e-4)
    assert run.fitted[0] == pytest.approx(1 - 1 / richness, abs=2e-4)
    fields, weights = run.density(1, 0)
    assert np.sum(weights * fields**2) == pytest.approx(richness - 1, abs=2e-4)


def test_one_relu_point_dies_below_the_transition(one_relu):
    run = one_relu(0.5)
    assert run.kernel[0, 0] < 1e-10 and abs(run.fitted[0]) < 1e-8


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_linear_layers_stay_balanced(decay):
    """Neighbouring layers: MᵀM of one less MMᵀ of the next is conserved, and with decay fades like e^{−2λt}."""
    X, y = X_TINY, Y_TINY[:, 0]
    options = {"decay": decay, "width": 4, "time": 2.0, "times": [0.0, 2.0], "accuracy": 1e-8, "tolerance": 0.0}
    run = ak.finite.gradient_flow(ak.MLP(2, "linear"), X, y, precision="float64", **options)
    for lower, upper in zip(run.weights[:-1], run.weights[1:], strict=True):
        start, end = (lower[i].T @ lower[i] - upper[i] @ upper[i].T for i in (0, 1))
        np.testing.assert_allclose(end, np.exp(-2 * decay * 2.0) * start, atol=1e-6)
        moved = np.abs(lower[1].T @ lower[1] - lower[0].T @ lower[0]).max()
        assert moved > 0.05


def test_decay_alone_fades_each_layer_at_its_own_rate():
    """With zero inputs and zero labels nothing but decay acts."""
    options = {"width": 4, "decay": (0.5, 2.0), "time": 1.0, "times": [0.0, 1.0], "method": "descent", "step": 1e-3}
    run = ak.finite.gradient_flow(
        ak.MLP(1, "linear"), np.zeros((2, 3)), [0.0, 0.0], precision="float64", tolerance=0.0, **options
    )
    for layer, rate in enumerate((0.5, 2.0)):
        expected = (1 - 1e-3 * rate) ** 1000 * run.weights[layer][0]
        np.testing.assert_allclose(run.weights[layer][1], expected, rtol=1e-10)


@pytest.mark.parametrize("loss", ["logistic", pytest.param("softmax", marks=pytest.mark.long)])
def test_other_losses_fall(flow, points, loss):
    labels = np.sign(points[1]) if loss == "logistic" else np.eye(3)[[0, 1, 2, 0, 1]]
    run = flow(y=labels, loss=loss, decay=0.0, time=30.0, method="descent", tolerance=0.0)
    assert np.all(np.diff(run.losses) < 1e-9)
    assert run.losses[-1] < 0.1 * run.losses[0]
    if loss == "logistic":
        np.testing.assert_array_equal(np.sign(run.fitted), labels)
    else:
        np.testing.assert_allclose(run.fitted.sum(axis=1), 1, rtol=1e-12)
        np.testing.assert_array_equal(run.fitted.argmax(axis=1), labels.argmax(axis=1))


def test_recorded_loss_is_the_mean_over_points(flowed, points):
    assert flowed.losses[-1] == pytest.approx(np.mean((points[1] - flowed.fitted) ** 2) / 2, rel=1e-10)
    assert flowed.losses[0] == pytest.approx(np.mean((points[1] - flowed.at(0.0).fitted) ** 2) / 2, rel=1e-10)


def test_unstable_descent(flow):
    options = {"method": "descent", "step": 50.0, "decay": 1.0, "time": 20000.0}
    with pytest.raises(ak.ConvergenceError, match="gradient descent is unstable at step 50; give a smaller step"):
        flow(**options)
    run = flow(throw=False, **options)
    assert run.converged is False and "unstable at step 50" in run.status and "NOT converged" in repr(run)
    assert np.isfinite(run.fitted).all() and np.isfinite(run.losses).all()
    assert len(run.times) == len(run.losses) and run.times[-1] < 20000
    assert run.sample_times[-1] == run.times[-1]


def test_stops_when_nothing_moves(flow):
    run = flow(decay=1.0, time=400.0)
    assert run.stats["stationary"] and run.times[-1] < 300 and run.status.startswith("stationary at t =")
    assert not flow(decay=1.0, time=1.0).stats["stationary"]
    longer = flow(decay=1.0, time=400.0, times=[350.0])  # moments that were asked for are reached
    assert 350.0 in longer.sample_times


def test_permuting_points(flow, points):
    X, y, X_new, _ = points
    order = [3, 0, 4, 1, 2]
    whole, permuted = flow(accuracy=1e-4), flow(X=X[order], y=y[order])
    np.testing.assert_allclose(permuted.fitted, whole.fitted[order], atol=1e-9)
    np.testing.assert_allclose(permuted.kernel, whole.kernel[np.ix_(order, order)], atol=1e-9)
    np.testing.assert_allclose(permuted.predict(X_new), whole.predict(X_new), atol=1e-9)


def test_sign_of_labels(flow, points, monkeypatch):
    """Labels and readout weights with the other sign: outputs change theirs, kernels do not."""
    plain = flow()
    draw = model.draw

    def flipped(rng, shapes, distribution="normal"):
        drawn = draw(rng, shapes, distribution)
        return [*drawn[:-1], -drawn[-1]] if len(drawn) > 1 else drawn  # the first layer alone is drawn again later

    monkeypatch.setattr(model, "draw", flipped)
    other = flow(y=-points[1])
    np.testing.assert_allclose(other.fitted, -plain.fitted, rtol=1e-9)
    np.testing.assert_allclose(other.kernel, plain.kernel, rtol=1e-9)
    np.testing.assert_allclose(other.predict(points[2]), -plain.predict(points[2]), rtol=1e-9)


@pytest.mark.parametrize("method, centred", [("descent", False), ("descent", True), ("ode", True)])
def test_projected_inputs_change_nothing(flow, points, monkeypatch, method, centred):
    """Fewer points than features: simulating all weights gives the same outputs, at new points too."""
    X_new = points[2]
    options = {"centred": centred, "X_test": X_new, "y_test": points[3], "decay": 0.5, "tolerance": 0.0}
    small = {"method": "descent", "step": 5e-4}
    reduced = flow(**options, **(small if method == "descent" else {}))
    monkeypatch.setattr(coordinates, "of_rows", lambda rows: coordinates.Coordinates(rows.shape[1], None))
    full = flow(**options, **small)
    assert reduced.weights[0].shape[1] == 5 and full.weights[0].shape[1] == 7
    close = {"rtol": 0, "atol": 1e-10 if method == "descent" else 1e-3}
    np.testing.assert_allclose(reduced.fitted, full.fitted, **close)
    np.testing.assert_allclose(reduced.test_predictions, full.test_predictions, **close)
    np.testing.assert_allclose(reduced.test_losses, full.test_losses, **close)
    np.testing.assert_allclose(reduced.tangent_kernel, full.tangent_kernel, rtol=0, atol=10 * close["atol"])


def test_projected_patches_change_nothing(monkeypatch):
    """The same for a CNN whose patches span less than their space: four of them, of nine pixels."""
    rng = np.random.default_rng(2)
    X, X_new = rng.standard_normal((2, 4, 3, 1)), rng.standard_normal((2, 4, 3, 1))
    network = ak.CNN(2, window=((3, 3), (2, 1)), activation="tanh")
    options = {"width": 4, "method": "descent", "step": 0.01, "time": 1.0, "decay": 0.5, "precision": "float64"}
    options |= {"centred": True, "tolerance": 0.0}
    reduced = ak.finite.gradient_flow(network, X, [1.0, -1.0], **options)
    monkeypatch.setattr(coordinates, "of_rows", lambda rows: coordinates.Coordinates(rows.shape[1], None))
    full = ak.finite.gradient_flow(network, X, [1.0, -1.0], **options)
    assert reduced.weights[0].shape[1] == 4 and full.weights[0].shape[1] == 9
    np.testing.assert_allclose(reduced.fitted, full.fitted, atol=1e-12)
    # two layers then mixes both in a convolution and fails with a TypeError.
    np.testing.assert_allclose(reduced.predict(X_new), full.predict(X_new), rtol=0, atol=1e-12)


def test_stationarity_is_measured_against_the_decay():
    """With little decay the flow is slow for long; what is left to go is the rate over the decay."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((10, 6))
    y = np.sign(X[:, 0])
    run = ak.finite.gradient_flow(ak.MLP(1, "tanh"), X, y, decay=0.05, width=64, time=1000.0, tolerance=1e-3)
    assert run.stats["stationary"] and run.stats["rate"] < 0.05 * 1e-3
    readout = run.kernel.astype(np.float64) @ (y - run.fitted) / 0.05
    assert np.abs(readout - run.fitted).max() < 2e-3
    short = ak.finite.gradient_flow(ak.MLP(1, "tanh"), X, y, width=64, time=1e-5)
    assert not short.stats["stationary"]  # what moves by less than rounding has not come to rest


def test_descent_that_ran_away_is_no_answer():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((6, 4))
    y = np.sign(X[:, 0])
    options = {"width": 16, "time": 50.0, "method": "descent", "step": 5.0}
    with pytest.raises(ak.ConvergenceError, match="unstable at step 5"):
        ak.finite.gradient_flow(ak.MLP(1, "tanh"), X, y, **options)
    with pytest.raises(ValueError, match="step must be at most time, 2, but it is 100"):
        ak.finite.gradient_flow(ak.MLP(1, "tanh"), X, y, width=16, time=2.0, method="descent", step=100.0)
