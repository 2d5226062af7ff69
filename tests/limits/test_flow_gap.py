"""The duality gap of two-layer gradient flow with weight decay."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq

from adakern import activations, losses
from adakern.limits import flow_gap, unit_starts
from adakern.precision import scope

RELU = activations.get("relu")
PRICE = 0.3


def problem(loss, seed=0):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(12, 3))
    if loss == "squared":
        return root, rng.normal(size=(12, 1))
    if loss == "logistic":
        return root, rng.choice([-1.0, 1.0], size=(12, 1))
    return root, np.eye(3)[rng.integers(3, size=12)]


def judge(loss, root, y, outputs, cost, price=PRICE, activation=RELU):
    starts = unit_starts.default_starts(root, y, 16, jax.random.key(0))
    name = losses.get(loss)
    return flow_gap.gap(
        name, activation, root, y, outputs, cost=cost, price=price, starts=starts, key=jax.random.key(1)
    )


def optimum(loss):
    """Independent points, A = I, whose best networks are known: the problem, outputs, and what they cost."""
    root = np.eye(7)
    if loss == "squared":
        # One neuron for each sign of the labels, with all other points on its kinks: a soft threshold on each.
        y = np.random.default_rng(0).normal(size=(7, 1))
        parts = [np.maximum(y, 0), np.minimum(y, 0)]
        sizes = [float(np.linalg.norm(part)) for part in parts]
        outputs = sum(part * (1 - PRICE / size) for part, size in zip(parts, sizes, strict=True))
        return root, y, outputs, sum(sizes) - 2 * PRICE
    # Equal points: one neuron that is equal on all of them, and its one size.
    outputs = 1 if loss == "logistic" else 2
    way = np.ones((7, 1)) / np.sqrt(7) if outputs == 1 else np.outer(np.ones(7), [1, -1]) / np.sqrt(14)
    y = np.tile([[1.0, 0.0]], (7, 1))[:, :outputs]
    slope = losses.get(loss)
    size = brentq(lambda t: float(np.sum(slope.error(y, t * way) * way)) - PRICE, 0, 50, xtol=1e-13)
    return root, y, size * way, size


@pytest.mark.parametrize("loss", ["squared", "logistic", pytest.param("softmax", marks=pytest.mark.long)])
def test_no_gap_at_the_optimum_and_one_elsewhere(loss):
    with scope("float64"):
        root, y, outputs, cost = optimum(loss)
        best = judge(loss, root, y, outputs, cost)
        assert cost > 0
        assert abs(best.relative) < 1e-10
        assert best.largest == pytest.approx(1, abs=1e-10)
        rng = np.random.default_rng(1)
        for richness in (0.5, 3.0):
            # A random network. Its value is above the optimum, and what its dual says is below.
            neurons, readouts = rng.normal(size=(40, 7)), rng.normal(size=(40, y.shape[1]))
            s = np.maximum(neurons @ root.T, 0).T @ readouts / (40 * richness)
            lengths = np.linalg.norm(neurons, axis=1) * np.linalg.norm(readouts, axis=1)
            other = judge(loss, root, y, s, lengths.mean() / richness)
            assert other.primal > best.primal and best.dual > other.dual
            assert other.relative > 1e-2
        too_dear = judge(loss, root, y, outputs, 1.1 * cost)
    assert too_dear.relative == pytest.approx(0.1 * PRICE * cost / too_dear.primal, rel=1e-6)


@pytest.mark.parametrize("loss", ["squared", "logistic", pytest.param("softmax", marks=pytest.mark.long)])
def test_never_below_zero(loss):
    """Networks trained a little and a lot, on points that are not independent."""
    root, y = problem(loss)
    rng, of = np.random.default_rng(2), losses.get(loss)
    with scope("float64"):
        neurons, readouts = (jnp.asarray(rng.normal(size=(30, size)) / 5) for size in (3, y.shape[1]))

        def outputs(neurons, readouts):
            return jnp.matmul(jax.nn.relu(neurons @ root.T).T, readouts)

        def objective(weights):
            decay = 0.5 * PRICE * sum(jnp.sum(part**2) for part in weights)
            return jnp.sum(of.value(jnp.asarray(y), outputs(*weights))) + decay

        @jax.jit
        def train(weights, steps):
            def step(_, weights):
                return tuple(w - 0.01 * up for w, up in zip(weights, jax.grad(objective)(weights), strict=True))

            return jax.lax.fori_loop(0, steps, step, weights)

        weights, gaps = (neurons, readouts), []
        for steps in (0, 100, 1500):
            weights = train(weights, steps)
            lengths = jnp.linalg.norm(weights[0], axis=1) * jnp.linalg.norm(weights[1], axis=1)
            gaps.append(judge(loss, root, y, outputs(*weights), float(lengths.sum())).relative)
    assert gaps[0] > gaps[1] > gaps[2] > -1e-12
    assert gaps[2] < 0.1  # thirty neurons are few


def test_one_point_in_closed_form():
    """x = y = 1: Δ = λ/γ0."""
    with scope("float64"):
        price = 0.25
        alive = judge("squared", np.ones((1, 1)), np.ones((1, 1)), np.full((1, 1), 1 - price), 1 - price, price)
        dead = judge("squared", np.ones((1, 1)), np.ones((1, 1)), np.zeros((1, 1)), 0.0, 2.0)
        wrong = judge("squared", np.ones((1, 1)), np.ones((1, 1)), np.zeros((1, 1)), 0.0, price)
    assert alive.primal == pytest.approx(price**2 / 2 + price * (1 - price))
    assert abs(alive.relative) < 1e-14 and alive.largest == pytest.approx(1, abs=1e-14)
    assert abs(dead.relative) < 1e-14 and dead.largest == pytest.approx(0.5)
    assert wrong.largest == pytest.approx(4) and wrong.relative > 0.1
    np.testing.assert_allclose(wrong.direction, [1.0])


def test_the_scale_of_the_dual_for_the_squared_loss():
    """d = y·α - |α|²/2 at α = tΔ, with the best t that is allowed."""
    root, y = problem("squared")
    with scope("float64"):
        found = judge("squared", root, y, 0.3 * y, 1.0)
        delta = 0.7 * y
        pull = found.largest * PRICE
        direction = found.direction
    assert np.linalg.norm(np.maximum(root @ direction, 0) @ delta) == pytest.approx(pull, rel=1e-12)
    t = min(np.sum(y * delta) / np.sum(delta**2), PRICE / pull)
    assert found.dual == pytest.approx(t * np.sum(y * delta) - t**2 * np.sum(delta**2) / 2, rel=1e-12)


@pytest.mark.parametrize("loss", ["squared", "logistic", "softmax"])
@pytest.mark.parametrize("price", [1e6, np.inf])
def test_death(loss, price):
    """Where every neuron costs too much, nothing is the optimum; richness 0 is a price without end."""
    root, y = problem(loss)
    with scope("float64"):
        found = judge(loss, root, y, np.zeros_like(y), 0.0, price)
    assert abs(found.relative) < 1e-12 and found.largest < 1


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_the_dual_uses_all_the_room(loss):
    """Outputs that are too large have errors that are too small: a multiple above one is better than Δ itself."""
    y = problem(loss)[1]
    with scope("float64"):
        outputs = 3.0 * y
        of = losses.get(loss)
        errors = of.error(jnp.asarray(y), jnp.asarray(outputs))
        found = flow_gap.measured(of, y, outputs, errors, 1.0, PRICE, 1e-9)
        plain = -float(jnp.sum(of.conjugate(jnp.asarray(y), -errors)))
        scan = [
            -float(jnp.sum(of.conjugate(jnp.asarray(y), -t * errors)))
            for t in np.linspace(0, 1 / np.abs(errors).max(), 201)
        ]
    assert found.dual > plain + 0.1
    assert found.dual >= max(scan) - 1e-12 and found.dual == pytest.approx(max(scan), rel=1e-3)
    assert found.direction is None


def test_nothing_to_learn():
    with scope("float64"):
        found = judge("squared", np.ones((2, 1)), np.zeros((2, 1)), np.zeros((2, 1)), 0.0)
        free = judge("squared", np.ones((2, 1)), np.ones((2, 1)), np.zeros((2, 1)), 0.0, 0.0)
    assert (found.primal, found.dual, found.relative, found.largest) == (0, 0, 0, 0)
    assert free.largest == np.inf and free.relative == 1
