"""The readout at a given kernel: the minimum itself, its derivatives, and the corners (singular kernels, extreme scales)."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from adakern import losses
from adakern.limits import readout as inner
from adakern.precision import scope

NAMES = losses.NAMES
CURVED = ("logistic", "softmax")
G, BETA, DECAY = 0.7, 8.0, 1.3

compiled = jax.jit(inner.solve, static_argnums=0)
values = jax.jit(jax.value_and_grad(inner.energy_and_readout, argnums=1, has_aux=True), static_argnums=0)


def solve(loss, kernel, y, beta, decay, start=None):
    """Always with a start, so that each shape is compiled once."""
    return compiled(loss, kernel, y, beta, decay, jnp.zeros_like(y) if start is None else start)


def energy(*problem):
    return values(*problem)[0][0]


def gradient(*problem):
    return values(*problem)[1]


@functools.partial(jax.jit, static_argnums=0)
def hessian_vectors(loss, kernel, along, y, beta):
    """Forward over reverse, and reverse over reverse."""
    grad = jax.grad(inner.energy, argnums=1)
    _, push = jax.linearize(lambda kernel: grad(loss, kernel, y, G, beta, DECAY), kernel)
    return push(along), jax.linear_transpose(push, kernel)(along)[0]


@pytest.fixture(autouse=True)
def float64():
    with scope("float64"):
        yield


def targets(name, size, outputs, rng):
    return {
        "squared": rng.standard_normal((size, outputs)),
        "logistic": rng.choice([-1.0, 1.0], size=(size, outputs)),
        "softmax": np.eye(outputs)[rng.integers(outputs, size=size)],
    }[name]


def problem(name, size=7, outputs=3, features=30, seed=0):
    """A kernel of rank min(size, features), its targets, and a symmetric direction."""
    rng = np.random.default_rng(seed)
    Z = rng.standard_normal((size, features))
    direction = rng.standard_normal((size, size))
    arrays = Z @ Z.T / features, targets(name, size, outputs, rng), direction + direction.T
    return losses.get(name), *(jnp.asarray(a) for a in arrays)


def by_scipy(loss, kernel, y, richness, beta, decay):
    """The minimum over the coordinates of s in the kernel's range: s = A u with A Aᵀ = Φ/λ."""
    values, vectors = np.linalg.eigh(np.asarray(kernel) / decay)
    keep = values > 1e-10 * values[-1]
    A = vectors[:, keep] * np.sqrt(values[keep])
    shape = (A.shape[1], y.shape[1])
    evaluate = jax.jit(lambda s: (jnp.sum(loss.value(y, s)), loss.error(y, s)))

    def objective(u):
        u = u.reshape(shape)
        value, error = evaluate(A @ u)
        return beta * float(value) + 0.5 * np.sum(u * u), (u - beta * A.T @ np.asarray(error)).ravel()

    found = minimize(objective, np.zeros(np.prod(shape)), jac=True, method="BFGS", options={"gtol": 1e-9})
    return richness**2 * found.fun, A @ found.x.reshape(shape)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_the_minimum_that_scipy_finds(name):
    for features in (30, 3):  # full rank, and rank 3 of 7
        loss, kernel, y, _ = problem(name, features=features)
        value, s = by_scipy(loss, kernel, y, G, BETA, DECAY)
        answer = solve(loss, kernel, y, BETA, DECAY)
        assert float(answer.residual) < 1e-10
        np.testing.assert_allclose(kernel @ answer.v / DECAY, s, atol=1e-6)
        np.testing.assert_allclose(energy(loss, kernel, y, G, BETA, DECAY), value, rtol=1e-9)


def test_squared_is_the_closed_formula():
    loss, kernel, y, _ = problem("squared")
    v = np.linalg.solve(np.asarray(kernel) / DECAY + np.eye(7) / BETA, y)
    answer = solve(loss, kernel, y, BETA, DECAY)
    np.testing.assert_allclose(answer.v, v, rtol=1e-10)
    assert int(answer.steps) == 0
    np.testing.assert_allclose(energy(loss, kernel, y, G, BETA, DECAY), 0.5 * G**2 * np.sum(y * v), rtol=1e-12)


@pytest.mark.parametrize("outputs", [1, 4])
@pytest.mark.parametrize("name", NAMES)
def test_every_number_of_outputs(name, outputs):
    loss, kernel, y, _ = problem(name, outputs=outputs)
    answer = solve(loss, kernel, y, BETA, DECAY)
    assert answer.v.shape == y.shape
    np.testing.assert_allclose(answer.v, BETA * loss.error(y, kernel @ answer.v / DECAY), rtol=1e-9, atol=1e-11)
    if name != "softmax":  # outputs do not interact
        alone = solve(loss, kernel, y[:, -1:], BETA, DECAY)
        np.testing.assert_allclose(answer.v[:, -1:], alone.v, rtol=1e-9)
    elif outputs == 1:
        assert not np.any(answer.v)


def test_two_classes_are_the_logistic_loss_at_twice_the_kernel():
    logistic, kernel, sign, _ = problem("logistic", outputs=1)
    y = jnp.concatenate([(1 + sign) / 2, (1 - sign) / 2], axis=1)
    v = solve(losses.get("softmax"), kernel, y, BETA, DECAY).v
    np.testing.assert_allclose(v[:, :1], solve(logistic, 2 * kernel, sign, BETA, DECAY).v, rtol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_curvature_is_minus_the_derivative_of_the_error(name):
    loss, _, y, _ = problem(name)
    s = jnp.asarray(np.random.default_rng(1).standard_normal(y.shape))
    full = -jax.vmap(jax.jacfwd(lambda target, at: loss.error(target[None], at[None])[0], argnums=1))(y, s)
    found = inner.hessian(loss, y, s)
    if found.ndim == 2:
        found = found[:, :, None] * jnp.eye(3)[None]
    np.testing.assert_allclose(found, full, atol=1e-14)


# --- derivatives


@pytest.mark.parametrize("features", [30, 3])
@pytest.mark.parametrize("name", NAMES)
def test_gradient_of_the_energy(name, features):
    loss, kernel, y, direction = problem(name, features=features)
    (_, v), found = values(loss, kernel, y, G, BETA, DECAY)
    np.testing.assert_allclose(v, solve(loss, kernel, y, BETA, DECAY).v, rtol=1e-11)
    np.testing.assert_allclose(found, -(G**2) / (2 * DECAY) * v @ v.T, rtol=1e-13)
    if features < len(kernel):  # along a direction that keeps the kernel semi-definite
        direction = direction @ direction
        kernel = kernel + 1e-2 * direction
        found = gradient(loss, kernel, y, G, BETA, DECAY)
    h = 1e-5
    up, down = (energy(loss, kernel + sign * h * direction, y, G, BETA, DECAY) for sign in (1, -1))
    np.testing.assert_allclose(jnp.sum(found * direction), (up - down) / (2 * h), rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_second_derivatives(name):
    loss, kernel, y, _ = problem(name)
    weight = jnp.asarray(np.random.default_rng(3).standard_normal(kernel.shape))  # not symmetric

    def grad(kernel):
        return gradient(loss, kernel, y, G, BETA, DECAY)

    forward, backward = hessian_vectors(loss, kernel, weight, y, BETA)
    h = 1e-5
    finite = (grad(kernel + h * weight) - grad(kernel - h * weight)) / (2 * h)
    np.testing.assert_allclose(forward, finite, atol=1e-7 * float(jnp.max(jnp.abs(forward))))
    np.testing.assert_allclose(backward, forward, atol=1e-12 * float(jnp.max(jnp.abs(forward))))
    np.testing.assert_allclose(forward, forward.T, atol=1e-12 * float(jnp.max(jnp.abs(forward))))


@pytest.mark.parametrize("name", NAMES)
def test_derivatives_of_the_readout(name):
    """jvp against finite differences, vjp against jvp, at full rank and with a point three times in the data."""
    loss, kernel, y, direction = problem(name)
    cotangent = jnp.asarray(np.random.default_rng(5).standard_normal(y.shape))

    def solution(kernel):
        return inner.readout(loss, kernel, y, BETA, DECAY)

    @jax.jit
    def both(kernel, along):
        _, push = jax.linearize(solution, kernel)
        return push(along), jax.linear_transpose(push, kernel)(cotangent)[0]

    for pick in (jnp.arange(7), jnp.asarray([0, 1, 2, 3, 4, 0, 0])):
        at, along = kernel[pick][:, pick], (direction @ direction)[pick][:, pick]
        dv, pulled = both(at, along)
        h = 1e-6
        finite = (solve(loss, at + h * along, y, BETA, DECAY).v - solve(loss, at - h * along, y, BETA, DECAY).v) / (
            2 * h
        )
        np.testing.assert_allclose(dv, finite, atol=1e-6 * float(jnp.max(jnp.abs(dv))))
        np.testing.assert_allclose(jnp.sum(pulled * along), jnp.sum(cotangent * dv), rtol=1e-10)
        if name == "softmax":
            np.testing.assert_allclose(jnp.sum(dv, axis=1), 0.0, atol=1e-11 * float(jnp.max(jnp.abs(dv))))


@pytest.mark.parametrize("name", NAMES)
def test_derivatives_in_the_scalars(name):
    """In richness, beta and decay; a start has none."""
    loss, kernel, y, _ = problem(name)
    at, start = jnp.asarray([G, BETA, DECAY]), jnp.ones_like(y) * jnp.arange(3.0)[None]

    def both(scalars, start):
        return inner.energy_and_readout(loss, kernel, y, *scalars, start)

    @jax.jit
    def everything(scalars, start):
        value, push = jax.linearize(both, scalars, start)
        return value, [push(unit, 0 * start) for unit in jnp.eye(3)], push(0 * at, start)

    _, slopes, (energies, none) = everything(at, start)
    for slot in range(3):
        step = 1e-5 * jnp.eye(3)[slot]
        around = everything(at + step, start)[0], everything(at - step, start)[0]
        for slope, up, down in zip(slopes[slot], *around, strict=True):
            np.testing.assert_allclose(slope, (up - down) / 2e-5, rtol=1e-6, atol=1e-7)
    assert float(energies) == 0
    assert not np.any(none)


@pytest.mark.parametrize("name", NAMES)
def test_compiled_and_eager_agree(name):
    loss, kernel, y, _ = problem(name)
    eager = inner.solve(loss, kernel, y, BETA, DECAY)
    answer = solve(loss, kernel, y, BETA, DECAY)
    np.testing.assert_allclose(eager.v, answer.v, rtol=1e-10)
    assert int(eager.steps) == int(answer.steps)


# --- corners


@pytest.mark.parametrize("name", NAMES)
def test_duplicated_points_share_their_readout(name):
    """Three copies of a point with one label are that point at three times the weight: equal v, equal outputs."""
    loss, kernel, y, _ = problem(name)
    pick = jnp.asarray([0, 1, 2, 3, 4, 0, 0])
    kernel, y = kernel[pick][:, pick], y[pick]
    answer = solve(loss, kernel, y, BETA, DECAY)
    assert float(answer.residual) < 1e-10
    np.testing.assert_allclose(answer.v[5:], jnp.broadcast_to(answer.v[:1], (2, 3)), rtol=1e-9)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("features", [1, 2])
def test_low_rank_kernels(name, features):
    loss, kernel, y, direction = problem(name, features=features)
    answer = solve(loss, kernel, y, 1e3, DECAY)
    assert float(answer.residual) < 1e-10
    assert np.all(np.isfinite(hessian_vectors(loss, kernel, direction, y, BETA)[0]))


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_of_zeros(name):
    loss, kernel, y, _ = problem(name)
    answer = solve(loss, 0 * kernel, y, BETA, DECAY)
    np.testing.assert_allclose(answer.v, BETA * loss.error(y, 0 * y), rtol=1e-14)


@pytest.mark.parametrize("features", [3, 30])
@pytest.mark.parametrize("name", CURVED)
def test_extreme_temperatures_and_scales(name, features):
    rng = np.random.default_rng(11)
    for beta in (1.0, 50.0, 1e4):
        for scale in (1e-3, 1.0, 1e3):
            loss, kernel, y, _ = problem(name, features=features)
            bad = jnp.asarray(1e3 * beta * rng.standard_normal(y.shape))
            cold = solve(loss, scale * kernel, y, beta, 1.0, jnp.zeros_like(y))
            off = solve(loss, scale * kernel, y, beta, 1.0, bad)
            lost = solve(loss, scale * kernel, y, beta, 1.0, jnp.full_like(y, jnp.nan))
            mirrored = solve(loss, scale * kernel, y, beta, 1.0, -cold.v)
            for answer in (cold, off, lost, mirrored):
                assert float(answer.residual) < max(1e-10, 1e-16 * beta * scale)
                assert int(answer.steps) <= 40
                np.testing.assert_allclose(answer.v, cold.v, atol=1e-6 * float(jnp.max(jnp.abs(cold.v))))


def test_extreme_temperatures_and_scales_of_the_squared_loss():
    """The residual cannot be below the rounding of β (y - s)."""
    for beta in (1.0, 50.0, 1e4):
        for scale in (1e-3, 1.0, 1e3):
            loss, kernel, y, _ = problem("squared", features=3)
            answer = solve(loss, scale * kernel, y, beta, 1.0)
            rounding = 1e-14 * beta * float(jnp.linalg.norm(kernel)) * scale
            assert float(answer.residual) < max(1e-12, rounding)


@pytest.mark.parametrize("name", CURVED)
def test_a_point_with_a_wild_label_is_met_from_any_start(name):
    """One contradicted point among copies: its curvature is far below the others' on the way."""
    loss, kernel, y, _ = problem(name, features=1)
    kernel = jnp.ones_like(kernel) * 1e3
    y = jnp.broadcast_to(y[:1], y.shape).at[-1].set(-y[0] if name == "logistic" else jnp.roll(y[0], 1))
    for start in (None, 1e4 * y, -1e4 * y):
        answer = solve(loss, kernel, y, 1e3, 1.0, start)
        assert float(answer.residual) < 1e-10


@pytest.mark.parametrize("name", NAMES)
def test_one_point_and_equal_labels(name):
    loss, kernel, y, _ = problem(name)
    single = solve(loss, kernel[:1, :1], y[:1], BETA, DECAY)
    np.testing.assert_allclose(single.v, BETA * loss.error(y[:1], kernel[:1, :1] @ single.v / DECAY), rtol=1e-9)
    equal = jnp.broadcast_to(y[:1], y.shape)
    assert float(solve(loss, kernel, equal, BETA, DECAY).residual) < 1e-10


@pytest.mark.parametrize("name", NAMES)
def test_softmax_rows_sum_to_zero_and_signs_follow_labels(name):
    loss, kernel, y, _ = problem(name)
    v = solve(loss, kernel, y, 1e3, DECAY, jnp.ones_like(y)).v
    if name == "softmax":
        np.testing.assert_allclose(jnp.sum(v, axis=1), 0.0, atol=1e-12 * float(jnp.max(jnp.abs(v))))
        assert bool(jnp.all(v * (2 * y - 1) > 0))
    elif name == "logistic":
        assert bool(jnp.all(v * y > 0))


@pytest.mark.parametrize("name", CURVED)
def test_a_nearby_start_saves_steps(name):
    loss, kernel, y, direction = problem(name)
    cold = solve(loss, kernel, y, 50.0, 1.0)
    assert 4 <= int(cold.steps) <= 12
    again = solve(loss, kernel, y, 50.0, 1.0, cold.v)
    near = solve(loss, kernel + 1e-3 * jnp.diag(jnp.abs(direction[0])), y, 50.0, 1.0, cold.v)
    assert int(again.steps) <= 1
    assert 1 <= int(near.steps) <= 3
    assert float(near.residual) < 1e-10


@pytest.mark.parametrize("name", NAMES)
def test_single_precision(name):
    loss, kernel, y, direction = problem(name)
    kept = [np.asarray(a) for a in (kernel, y, direction)]
    v = np.asarray(solve(loss, kernel, y, 50.0, DECAY).v)
    hvp, _ = hessian_vectors(loss, kernel, direction, y, 50.0)
    with scope("float32"):
        kernel, y, direction = (jnp.asarray(a, jnp.float32) for a in kept)
        answer = solve(loss, kernel, y, 50.0, DECAY)
        assert answer.v.dtype == jnp.float32
        assert float(answer.residual) < 3e-5
        np.testing.assert_allclose(answer.v, v, atol=1e-4 * np.max(np.abs(v)))
        single, _ = hessian_vectors(loss, kernel, direction, y, 50.0)
        np.testing.assert_allclose(single, hvp, atol=1e-3 * float(np.max(np.abs(hvp))))
        hardest = solve(
            loss, 1e3 * kernel, y, 1e4, 1.0
        )  # no digits are left in β|K|: finite, and where Newton corrects itself, right
        assert np.all(np.isfinite(hardest.v))
        if name != "squared":
            assert float(hardest.residual) < 1e-4
