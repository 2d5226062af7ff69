"""Warm starts and paths change the way, not the answer; neither does the order of points or a rotation of inputs."""

import numpy as np
import pytest

import adakern as ak

LIMIT = ak.ANBK(ak.MLP(1, "tanh"))
OPTIONS = {"particles": 256, "tolerance": 0.03}


def solve(X, y, limit=LIMIT, **options):
    return ak.solve(limit, X, y, **{**OPTIONS, **options})


@pytest.fixture(scope="module")
def cold(find):
    return find(seed=100, tolerance=0.015)


@pytest.mark.parametrize(
    "neighbour",
    [{"richness": 0.5}, {"richness": 3.0}, {"beta": 5.0}, {"decay": (2.0, 0.5)}, {"richness": 0.0}],
    ids=str,
)
def test_from_a_neighbour(find, cold, apart, neighbour):
    warm = find(init=find(**neighbour))
    assert warm.converged and apart(warm, cold) < 2


@pytest.mark.long
def test_from_fewer_points_and_back(points, cold, apart):
    X, y = points
    few = solve(X[:6], y[:6])
    assert apart(solve(X, y, init=few), cold) < 2
    assert apart(solve(X[:6], y[:6], init=cold, seed=1), few) < 2


def test_from_another_order(points, cold, apart):
    X, y = points
    order = np.random.default_rng(0).permutation(8)
    shuffled = solve(X[order], y[order], init=cold)
    assert apart(shuffled, cold, order) < 2


@pytest.mark.long
def test_from_more_particles_and_to_more(find, cold, apart):
    few = find(particles=32, tolerance=0.1)
    assert apart(find(init=few), cold) < 2


@pytest.mark.long
def test_two_layers_from_fewer_points(points, find, apart):
    X, y = points
    deep = ak.ANBK(ak.MLP(2, "tanh"))
    few = solve(X[:6], y[:6], deep)
    assert apart(solve(X, y, deep, init=few), find(2, seed=3)) < 2


@pytest.mark.long
def test_from_kernels_and_from_a_network(points, find, cold, apart):
    X, y = points
    assert apart(find(init=[2.0 * np.eye(8)]), cold) < 2
    run = ak.finite.langevin(ak.MLP(1, "tanh"), X, y, width=64, time=2.0, throw=False)
    assert apart(find(init=run), cold) < 2


def test_what_cannot_be_started_from(points, find):
    X, y = points
    with pytest.raises(ValueError, match="init must have 1 hidden layers like the limit's network, but it has 2"):
        find(init=ak.solve(ak.NNGPK(ak.MLP(2, "tanh")), X, y))
    with pytest.raises(ValueError, match=r"init must hold 1 kernels of shape \(8, 8\)"):
        find(init=[np.eye(7)])
    with pytest.raises(ValueError, match=r"init must hold 1 kernels of shape \(8, 8\)"):
        find(init=[np.eye(8), np.eye(8)])
    with pytest.raises(ValueError, match="init must be finite"):
        find(init=[np.full((8, 8), np.nan)])
    with pytest.raises(TypeError, match="init must be a Solution, a Run, or a list of kernels"):
        find(init=3)
    with pytest.raises(ValueError, match=r"init must have inputs of shape \(9,\) like X"):
        solve(X[:, :9], y, init=find())
    with pytest.raises(ValueError, match="init has no meaning for NNGPK"):
        ak.solve(ak.NNGPK(ak.MLP(1)), X, y, init=[np.eye(8)])


@pytest.mark.long
def test_a_path_is_its_single_solves(points, find, apart):
    """And dF/d(γ0²) = E/γ0² = ½ yᵀv along it: Simpson's rule over γ0² = ½..2 against the free energies at the ends."""
    X, y = points
    squares = np.linspace(0.5, 2.0, 5)
    solutions = ak.path(LIMIT, X, y, np.sqrt(squares), **OPTIONS)
    assert [s.limit.richness for s in solutions] == pytest.approx(np.sqrt(squares))
    assert apart(solutions[2], find(seed=7, richness=np.sqrt(1.25))) < 2
    assert apart(solutions[4], find(richness=np.sqrt(2.0))) < 2
    slopes = np.array([0.5 * 50.0 * y @ s.errors for s in solutions])
    integral = 0.375 / 3 * (slopes @ [1.0, 4.0, 2.0, 4.0, 1.0])
    first, last = solutions[0], solutions[4]
    error = np.hypot(first.stats["free_energy_error"], last.stats["free_energy_error"])
    assert last.free_energy - first.free_energy > 20 * error
    assert abs(last.free_energy - first.free_energy - integral) < 4 * error + 0.01 * integral


def test_bad_paths(points):
    X, y = points
    with pytest.raises(TypeError, match="limit must be an ANBK"):
        ak.path(ak.NNGPK(ak.MLP(1)), X, y, [1.0])
    with pytest.raises(ValueError, match="richness must hold at least one value"):
        ak.path(LIMIT, X, y, [])
    with pytest.raises(ValueError, match="richness must be 0 or greater"):
        ak.path(LIMIT, X, y, [1.0, -1.0])
    with pytest.raises(ValueError, match="path has none, leave it out"):
        ak.path(LIMIT, X, y, [1.0], checkpoint="run.ckpt")


def test_a_rotation_of_inputs_changes_nothing(points, find):
    X, y = points
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(10, 10)))[0]
    turned = solve(X @ turn, y)
    np.testing.assert_allclose(turned.kernel, find().kernel, rtol=1e-5, atol=1e-7)


def test_a_permutation_of_points_permutes_kernels(points, cold, apart):
    X, y = points
    order = np.random.default_rng(2).permutation(8)
    shuffled = solve(X[order], y[order])
    assert apart(shuffled, cold, order) < 2
    np.testing.assert_allclose(shuffled.fitted, cold.fitted[order], atol=0.02)
