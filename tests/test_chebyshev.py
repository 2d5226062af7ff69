"""The integrator alone: order, stability, and what it costs."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adakern import chebyshev
from adakern.precision import scope

RATES = np.array([0.5, 3.0, 40.0, 4000.0])


def flow(state):
    """Stiff and nonlinear: the gradient flow of rates·y²/2 + y⁴/4 in the first coordinates, which interact."""
    y = state["y"]
    return {"y": -jnp.asarray(RATES, y.dtype) * y - y * jnp.sum(y * y)}


def exact(time):
    from scipy.integrate import solve_ivp

    def right(_, y):
        return -RATES * y - y * (y @ y)

    return solve_ivp(right, (0, time), np.ones(4), method="Radau", rtol=1e-11, atol=1e-13).y[:, -1]


def inspect(accuracy, state, error):
    size = jnp.max(jnp.abs(error["y"])) / accuracy
    return size, jnp.zeros((), size.dtype)


def follow(accuracy, time=1.0, precision="float64"):
    with scope(precision):
        look = functools.partial(inspect, accuracy)
        motion = jax.jit(lambda y: chebyshev.start(flow, look, y))({"y": jnp.ones(4)})
        motion = motion._replace(left=jnp.asarray(time))
        return jax.jit(lambda m: chebyshev.advance(flow, look, m, jnp.asarray(100_000)))(motion)


@pytest.mark.parametrize("stages", [2, 3, 7, 40])
def test_one_step_is_of_second_order(stages):
    """On y' = -y a step is the polynomial 1 - z + z²/2 + O(z³)."""
    with scope("float64"):
        one = {"y": jnp.ones(())}

        def errors(z):
            step = chebyshev._chebyshev(lambda s: {"y": -s["y"]}, one, {"y": -jnp.ones(())}, z, jnp.asarray(stages))
            return float(step["y"]) - np.exp(-float(z))

        ratio = errors(jnp.asarray(0.02)) / errors(jnp.asarray(0.01))
    assert ratio == pytest.approx(8, rel=0.05)


@pytest.mark.parametrize("stages", [2, 5, 30])
def test_steps_are_stable_as_far_as_they_say(stages):
    """|R(z)| < 1 on the whole of the negative axis that this number of stages is used for."""
    reach = ((stages - 1) ** 2 - 1) / chebyshev._REACH if stages > 2 else 1.0
    with scope("float64"):
        z = jnp.linspace(0.01, reach, 500)
        start = {"y": jnp.ones(500)}
        after = chebyshev._chebyshev(
            lambda s: {"y": -z * s["y"]}, start, {"y": -z}, jnp.asarray(1.0), jnp.asarray(stages)
        )
    assert np.abs(np.asarray(after["y"])).max() < 1


def test_error_falls_with_the_accuracy():
    expected = exact(1.0)
    coarse, fine = (follow(accuracy) for accuracy in (1e-4, 1e-7))
    errors = [np.abs(np.asarray(m.state["y"]) - expected).max() for m in (coarse, fine)]
    assert errors[0] < 1e-3 and errors[1] < 2e-6 and errors[1] < errors[0] / 30
    # Accuracy falls with the square root cubed of the step.
    assert 3 < int(fine.steps) / int(coarse.steps) < 20


def test_stiffness_is_found_and_costs_its_root():
    motion = follow(1e-4, time=10.0)
    assert float(motion.rate) == pytest.approx(4000, rel=0.01)
    # A step of a stable explicit pair is below 2.5/4000: 16000 of them, three evaluations each.
    assert int(motion.evaluations) < 2500
    assert float(motion.left) == 0 and not bool(motion.stuck)


def test_single_precision():
    motion = follow(1e-4, precision="float32")
    assert motion.state["y"].dtype == np.float32
    np.testing.assert_allclose(motion.state["y"], exact(1.0), atol=1e-3)


def test_stops_are_met_exactly_and_do_not_change_the_step():
    with scope("float64"):
        look = functools.partial(inspect, 1e-6)
        go = jax.jit(lambda m: chebyshev.advance(flow, look, m, jnp.asarray(100_000)))
        motion = chebyshev.start(flow, look, {"y": jnp.ones(4)})
        for _ in range(20):
            motion = go(motion._replace(left=jnp.asarray(0.05)))
            assert float(motion.left) == 0
    once = follow(1e-6)
    np.testing.assert_allclose(motion.state["y"], once.state["y"], atol=1e-5)
    assert int(motion.steps) < int(once.steps) + 40


def test_a_wall_is_reported():
    """There is no flow beyond y = 2, which is reached at t = 1."""
    with scope("float64"):
        look = functools.partial(inspect, 1e-6)
        right = lambda s: {"y": jnp.where(s["y"] < 2, 1.0, jnp.nan)}  # noqa: E731
        motion = chebyshev.start(right, look, {"y": jnp.ones(1)})._replace(left=jnp.asarray(3.0))
        motion = jax.jit(lambda m: chebyshev.advance(right, look, m, jnp.asarray(1000)))(motion)
    assert bool(motion.stuck)
    assert 3.0 - float(motion.left) == pytest.approx(1.0, abs=1e-6)
