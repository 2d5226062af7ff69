"""Where gradient flow with weight decay ends: the solver against closed forms, convexity, symmetry and networks."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import adakern as ak
from adakern import losses, precision
from adakern.limits import resting
from adakern.solvers import rest

TOLERANCE, PARTICLES = 1e-4, 256
RNG = np.random.default_rng(5)
X = RNG.normal(size=(10, 4))  # fewer features than points
Y = np.sign(X[:, 0] * X[:, 1])
NEW = RNG.normal(size=(7, 4))
TWO = RNG.normal(size=(4, 2))
HOT = np.eye(2)[[0, 1, 1, 0]]
RELU = ak.ANTK(ak.MLP(1, "relu"), richness=2.0, decay=0.3)
TANH = ak.ANTK(ak.MLP(2, "tanh"), richness=2.0, decay=(0.3, 0.2, 0.25))
DEEP = ak.ANTK(ak.MLP(3, "relu"), richness=4.0, decay=(0.2, 0.25, 0.15, 0.2))
SOFTMAX = ak.ANTK(ak.MLP(1, "relu"), richness=2.0, decay=0.5, loss="softmax")
LOGISTIC = replace(RELU, loss="logistic")


def solve(limit, inputs=X, y=Y, **options):
    return ak.solve(limit, inputs, y, particles=PARTICLES, tolerance=options.pop("tolerance", TOLERANCE), **options)


@pytest.fixture(scope="module")
def relu():
    return solve(RELU)


@pytest.fixture(scope="module")
def tanh():
    return solve(TANH)


@pytest.fixture(scope="module")
def two():
    return solve(replace(RELU, decay=(0.9, 1.1)), X[:4], TWO)


@pytest.fixture(scope="module")
def softmax():
    return solve(SOFTMAX, X[:4], HOT)


@pytest.fixture(scope="module")
def logistic():
    return solve(LOGISTIC)


def columns(values):
    return values if values.ndim == 2 else values[:, None]


def kernels(solution):
    """Φ⁰..Φ^L."""
    return [solution.X @ solution.X.T / solution.X.shape[1], *solution.kernels]


def objective(limit, root, incoming, shares, y):
    """F of weights, squared loss, from its definition: decay of every layer and the readout solved."""
    below, cost = root, 0.0
    for weights, share, decay in zip(incoming, shares, limit.decays, strict=False):
        cost += 0.5 * decay * float(np.sum(share[:, None] * weights**2))
        fields = weights @ below.T
        phi = np.tanh(fields) if limit.network.activation.name == "tanh" else np.maximum(fields, 0.0)
        below = (np.sqrt(share)[:, None] * phi).T
    decay, kernel = limit.decays[-1], below @ below.T
    return cost + limit.richness**2 * decay / 2 * float(y @ np.linalg.solve(kernel + decay * np.eye(len(y)), y))


def shortest(solution):
    """The root of Φ⁰ and the shortest weights that make the fields."""
    root = solution.X / np.sqrt(solution.X.shape[1])
    below, incoming = root, []
    for fields, share in zip(solution.draws, solution.shares, strict=True):
        incoming.append(np.linalg.lstsq(below, fields.T, rcond=1e-9)[0].T)
        tanh = solution.limit.network.activation.name == "tanh"
        phi = np.tanh(fields) if tanh else np.maximum(fields, 0.0)
        below = (np.sqrt(share)[:, None] * phi).T
    return root, incoming


def bound(solution):
    """Outputs differ from the optimum's by at most √(2 gap), since the squared loss is strongly convex. The audit's gap is exact to its residual."""
    gap = (max(solution.certificate, 0.0) + solution.residual) * solution.stats["value"]
    return float(np.sqrt(2 * gap))


def same(first, second):
    for field in dataclasses.fields(first):
        a, b = getattr(first, field.name), getattr(second, field.name)
        if field.name == "stats" or not isinstance(a, (tuple, np.ndarray)):
            assert a == b, field.name
            continue
        many = isinstance(a, tuple)
        for left, right in zip(a if many else (a,), b if many else (b,), strict=True):
            assert left.dtype == right.dtype and left.tobytes() == right.tobytes(), field.name


def reads_back(solution, folder):
    solution.save(folder / "a.safetensors")
    again = ak.load(folder / "a.safetensors")
    same(solution, again)
    assert len(again.slopes) == len(again.shares) == len(again.draws) == solution.limit.network.depth
    np.testing.assert_array_equal(again.predict(NEW), solution.predict(NEW))


def in_batches(solution):
    """Predictions for nothing, and in batches that fit a small budget."""
    assert solution.predict(np.empty((0, 4))).shape == (0,)
    assert solution.cross_kernel(np.empty((0, 4))).shape == (0, len(solution.X))
    many = np.random.default_rng(6).normal(size=(50, 4))
    whole = solution.predict(many)
    few = 3 * solution._extension.bytes_per_point()
    np.testing.assert_allclose(solution.predict(many, memory=few), whole, atol=1e-12)
    np.testing.assert_allclose(solution.cross_kernel(many, memory=few), solution.cross_kernel(many), atol=1e-12)
    f, spread = solution.predict(many, return_std=True)
    np.testing.assert_array_equal(f, whole)
    assert not spread.any()


# ---------------------------------------------------------------------------------------------------------------------
# One point


@pytest.mark.parametrize("activation", ["relu", "linear"])
def test_one_point(activation):
    """x = y = 1: Δ = λ/γ0, <h²> = γ0 - λ, and nothing where that is negative."""
    network, options = ak.MLP(1, activation), {} if activation == "linear" else {"particles": 64, "tolerance": 1e-7}
    for richness in (0.7, 2.0):
        alive = ak.solve(ak.ANTK(network, richness=richness, decay=0.5), [[1.0]], [1.0], **options)
        assert alive.errors[0] == pytest.approx(0.5 / richness, abs=1e-6)
        assert alive.kernels[0][0, 0] == pytest.approx(richness - 0.5, abs=1e-6)
        assert alive.fitted[0] == pytest.approx(1 - 0.5 / richness, abs=1e-6)
        assert alive.predict([[2.0]])[0] == pytest.approx(2 * (1 - 0.5 / richness), abs=1e-5)
        opposite = 0.0 if activation == "relu" else -alive.predict([[1.0]])[0]
        assert alive.predict([[-1.0]])[0] == pytest.approx(opposite, abs=1e-6)
        assert alive.converged and "dies" not in alive.status
    dead = ak.solve(ak.ANTK(network, richness=0.4, decay=0.5), [[1.0]], [1.0], **options)
    assert dead.kernels[0][0, 0] == 0 and dead.errors[0] == 1 and dead.predict([[3.0]])[0] == 0
    assert "everything dies" in dead.status and dead.converged
    assert dead.residual == 0 and dead.certificate in (0.0, None)
    layered = ak.solve(ak.ANTK(network, richness=2.0, decay=(0.5, 0.8)), [[1.0]], [1.0], **options)
    delta = np.sqrt(0.4) / 2
    assert layered.errors[0] == pytest.approx(delta, abs=1e-6)
    assert layered.kernels[0][0, 0] == pytest.approx(0.8 * (1 - delta) / delta, abs=1e-5)


# ---------------------------------------------------------------------------------------------------------------------
# One hidden layer of ReLU


def test_at_rest(relu):
    assert relu.converged and relu.residual < 10 * TOLERANCE
    assert abs(relu.certificate) <= TOLERANCE
    assert relu.stats["objective"] == pytest.approx(4 * relu.stats["value"], rel=1e-4)
    assert relu.stats["largest_pull"] == pytest.approx(1, abs=1e-3)
    np.testing.assert_allclose(relu.fitted, Y - relu.errors, atol=1e-9)


def test_the_certificate_is_no_less_than_the_truth(relu):
    """A gap below zero would be one that is too small: weights that make the fields cost at least what it says."""
    _, incoming = shortest(relu)
    readouts = 2.0 / 0.3 * np.maximum(relu.draws[0], 0) @ relu.errors
    cost = float(np.sum(relu.shares[0] * np.linalg.norm(incoming[0], axis=1) * np.abs(readouts))) / 2.0
    outputs = (relu.shares[0][:, None] * np.maximum(relu.draws[0], 0)).T @ readouts / 2.0
    value = 0.5 * float(np.sum((Y - outputs) ** 2)) + 0.15 * cost
    assert relu.stats["value"] >= value * (1 - 1e-9)
    assert relu.stats["value"] == pytest.approx(value, rel=TOLERANCE)
    assert relu.certificate > -1e-9


def test_the_tangent_kernel_predicts(relu):
    """K Δ/κ = f, at new points as well, where the slopes at kinks are those that stationarity asks for."""
    kappa = 0.6
    np.testing.assert_allclose(relu.kernel @ relu.errors / kappa, relu.fitted, atol=2e-4)
    np.testing.assert_allclose(relu.coefficients, relu.errors / kappa)
    ridge = np.linalg.solve(relu.kernel + kappa * np.eye(10), Y)
    np.testing.assert_allclose(relu.kernel @ ridge, relu.fitted, atol=2e-4)
    np.testing.assert_allclose(relu.kernels[0] @ relu.errors / 0.3, relu.fitted, atol=1e-9)
    np.testing.assert_allclose(relu.cross_kernel(NEW) @ relu.coefficients, relu.predict(NEW), atol=5e-4)
    np.testing.assert_allclose(relu.predict(X), relu.fitted, atol=2e-4)
    naive = (relu.draws[0] > 0) * (2.0 / 0.3 * np.maximum(relu.draws[0], 0) @ relu.errors)[:, None]
    on = (relu.slopes[0] > 1e-3) & (relu.slopes[0] < 1 - 1e-3)
    assert on.any()  # or there would be nothing to see
    wrong = relu.kernels[0] + (X @ X.T / 4) * ((naive.T * relu.shares[0]) @ naive)
    assert np.abs(wrong @ relu.errors / kappa - relu.fitted).max() > 0.01


def test_kernels_are_made_of_the_neurons(relu):
    phi = np.maximum(relu.draws[0], 0)
    np.testing.assert_allclose((phi.T * relu.shares[0]) @ phi, relu.kernels[0], atol=1e-4)
    readouts = 2.0 / 0.3 * phi @ relu.errors
    g = relu.slopes[0] * readouts[:, None]
    np.testing.assert_allclose((g.T * relu.shares[0]) @ g, relu.gradient_kernels[0], atol=1e-3)
    np.testing.assert_allclose(relu.kernel, relu.kernels[0] + relu.gradient_kernels[0] * (X @ X.T / 4), atol=1e-12)


def test_nothing_near_or_far_is_lower(relu):
    """Perturbed weights, more neurons and fewer: F falls by no more than the gap."""
    root, incoming = shortest(relu)
    shares, rng = relu.shares, np.random.default_rng(0)
    value = objective(RELU, root, incoming, shares, Y)
    assert value == pytest.approx(relu.stats["objective"], rel=1e-4)
    least = value * (1 - max(relu.certificate, 0.0) - relu.residual)
    changes = []
    for size in (1e-3, 1e-2, 0.1):
        for _ in range(20):
            moved = [w + size * np.linalg.norm(w) * rng.normal(size=w.shape) / np.sqrt(w.size) for w in incoming]
            new = size * rng.normal(size=(1, 4))
            count = len(new) + len(moved[0])
            more = np.concatenate([incoming[0] * np.sqrt(shares[0] * count)[:, None], new])
            changes.append(objective(RELU, root, moved, shares, Y))
            changes.append(objective(RELU, root, [more], [np.full(count, 1 / count)], Y))
    for index in range(len(shares[0])):
        changes.append(objective(RELU, root, [np.delete(incoming[0], index, 0)], [np.delete(shares[0], index)], Y))
    assert min(changes) > least
    assert max(changes) > 1.01 * value


def test_files_batches_density(relu, tmp_path):
    reads_back(relu, tmp_path)
    in_batches(relu)
    values, weights = relu.density(1, 3)
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    assert weights @ np.maximum(values, 0) ** 2 == pytest.approx(relu.kernels[0][3, 3], rel=1e-3)


def test_too_few_steps_for_the_gap():
    with pytest.raises(ak.ConvergenceError, match="duality gap.*more steps"):
        solve(RELU, steps=3)


def test_the_same_seed_gives_the_same_bits(relu):
    again = solve(RELU)
    for name in ("kernel", "errors", "coefficients", "fitted"):
        assert getattr(again, name).tobytes() == getattr(relu, name).tobytes()
    assert again.draws[0].tobytes() == relu.draws[0].tobytes()


def test_seeds_and_symmetry(relu):
    """Another seed, other signs of the labels, another order of the points, other axes: the same place, to what the gaps allow."""
    order = np.random.default_rng(1).permutation(10)
    turn = np.linalg.qr(np.random.default_rng(2).normal(size=(4, 4)))[0]
    other = solve(RELU, X[order] @ turn, -Y[order], seed=1)
    assert np.linalg.norm(other.fitted + relu.fitted[order]) <= bound(other) + bound(relu)
    np.testing.assert_allclose(other.predict(NEW @ turn), -relu.predict(NEW), atol=0.01)
    for ours, theirs in ((other.kernel, relu.kernel), (other.kernels[0], relu.kernels[0])):
        assert np.linalg.norm(ours - theirs[order][:, order]) < 0.01 * np.linalg.norm(theirs)


def test_points_given_twice(relu):
    """Twice the data is half the decay, and of two labels the mean counts."""
    spread = 0.3 * np.random.default_rng(3).normal(size=10)
    twice = solve(replace(RELU, decay=0.6), np.concatenate([X, X]), np.concatenate([Y + spread, Y - spread]))
    np.testing.assert_array_equal(twice.kernel[:10], twice.kernel[10:])
    np.testing.assert_array_equal(twice.kernel[:, :10], twice.kernel[:, 10:])
    np.testing.assert_allclose(twice.fitted[:10], twice.fitted[10:], rtol=1e-12)
    assert twice.draws[0].shape[1] == 10
    assert np.linalg.norm(twice.fitted[:10] - relu.fitted) <= bound(twice) + bound(relu)
    assert np.linalg.norm(twice.kernels[0][:10, :10] - relu.kernels[0]) < 0.01 * np.linalg.norm(relu.kernels[0])
    np.testing.assert_allclose(twice.predict(NEW), relu.predict(NEW), atol=0.01)
    np.testing.assert_allclose(twice.predict(X), twice.predict(twice.X)[10:], rtol=1e-12)
    values, weights = twice.density(1, 12)
    np.testing.assert_array_equal(values, twice.draws[0][:, 2])
    assert weights.sum() == pytest.approx(1)


@pytest.mark.parametrize("activation", [pytest.param("relu", marks=pytest.mark.long), "tanh"])
def test_constant_labels(activation):
    solution = solve(replace(RELU, network=ak.MLP(1, activation)), y=np.ones(10))
    assert solution.converged and abs(solution.certificate or 0.0) <= TOLERANCE
    np.testing.assert_allclose(solution.predict(X), solution.fitted, atol=5e-4)
    assert solution.fitted.mean() > 0.1


def test_labels_of_zero():
    solution = solve(RELU, y=np.zeros(10))
    assert solution.converged and not solution.fitted.any() and not solution.predict(NEW).any()
    assert solution.residual == 0 and "dies" in solution.status


# ---------------------------------------------------------------------------------------------------------------------
# Other losses and outputs


@pytest.mark.parametrize("name", ["two", pytest.param("softmax", marks=pytest.mark.long)])
def test_several_outputs(name, request):
    solution = request.getfixturevalue(name)
    last = solution.limit.decays[-1]
    assert solution.converged and abs(solution.certificate) <= TOLERANCE
    assert solution.gradient_kernels is None
    np.testing.assert_array_equal(solution.kernel, solution.kernels[-1])
    np.testing.assert_allclose(solution.coefficients, solution.errors / last)
    np.testing.assert_allclose(solution.predict(solution.X), solution.fitted, atol=5e-4)
    s = solution.cross_kernel(NEW) @ solution.coefficients
    predicted = np.exp(s) / np.exp(s).sum(axis=1, keepdims=True) if name == "softmax" else s
    np.testing.assert_allclose(solution.predict(NEW), predicted, atol=1e-9)
    y = HOT if name == "softmax" else TWO
    np.testing.assert_allclose(solution.errors, y - solution.fitted, atol=1e-9)


@pytest.mark.long
def test_logistic(logistic):
    s = logistic.kernels[0] @ logistic.errors / 0.3
    assert logistic.converged and abs(logistic.certificate) <= TOLERANCE
    np.testing.assert_allclose(logistic.errors, Y / (1 + np.exp(Y * s)), atol=1e-9)
    np.testing.assert_allclose(logistic.kernel @ logistic.errors / 0.6, s, atol=1e-3)
    with precision.scope("float64"):
        link = np.asarray(losses.get("logistic").link(jnp.asarray(s)))
    np.testing.assert_allclose(logistic.fitted, link, atol=1e-9)
    np.testing.assert_allclose(logistic.predict(X), link, atol=5e-4)


@pytest.mark.parametrize("name", ["logistic", "two", pytest.param("softmax", marks=pytest.mark.long)])
def test_the_energy_of_the_last_kernel(name, request):
    """E at the solution against its definition, and dE/dΦ = -½VVᵀ against differences."""
    solution = request.getfixturevalue(name)
    limit, y, delta = solution.limit, columns(solution.y), columns(solution.errors)
    with precision.scope("float64"):
        energy = rest.problem(limit, solution.X, y, "float64", 1).shape.energy
    kernel = solution.kernels[-1]
    value, v = energy(kernel)
    s = kernel @ delta / limit.decays[-1]
    with precision.scope("float64"):
        loss = float(np.sum(losses.get(limit.loss).value(jnp.asarray(y), jnp.asarray(s))))
    assert value == pytest.approx(limit.richness**2 * (loss + 0.5 * float(np.sum(delta * s))), rel=1e-9)
    half = np.random.default_rng(4).normal(size=kernel.shape) / 3
    way, step = half @ half.T, 1e-5
    slope = (energy(kernel + 2 * step * way)[0] - energy(kernel)[0]) / (2 * step)
    middle = energy(kernel + step * way)[1]
    assert slope == pytest.approx(-0.5 * float(np.sum(way * (middle @ middle.T))), rel=1e-5)
    np.testing.assert_allclose(v, limit.richness / np.sqrt(limit.decays[-1]) * delta, atol=1e-6)


# ---------------------------------------------------------------------------------------------------------------------
# Smooth and deep networks


def test_smooth_and_deep(tanh):
    """Stationarity in full: every equation, from the fields alone; the kernel is Φ^L."""
    assert tanh.converged and tanh.residual < 10 * TOLERANCE and tanh.certificate is None
    np.testing.assert_array_equal(tanh.kernel, tanh.kernels[-1])
    np.testing.assert_allclose(tanh.coefficients, tanh.errors / 0.25)
    np.testing.assert_allclose(tanh.kernel @ tanh.coefficients, tanh.fitted, atol=1e-9)
    np.testing.assert_allclose(tanh.cross_kernel(NEW) @ tanh.coefficients, tanh.predict(NEW), atol=1e-9)
    for slopes, fields in zip(tanh.slopes, tanh.draws, strict=True):
        np.testing.assert_allclose(slopes, 1 / np.cosh(fields) ** 2, atol=1e-12)
    above = np.ones((10, 10))
    for layer in (2, 1):
        phi, prime = np.tanh(tanh.draws[layer - 1]), tanh.slopes[layer - 1]
        g = prime * (2.0 / TANH.decays[layer] * (phi * tanh.errors) @ above)
        below = kernels(tanh)[layer - 1]
        error = tanh.draws[layer - 1] - 2.0 / TANH.decays[layer - 1] * (g * tanh.errors) @ below
        root = np.sqrt(tanh.shares[layer - 1])[:, None]
        assert np.linalg.norm(root * error) < 1e-3 * np.linalg.norm(root * tanh.draws[layer - 1])
        above = (g.T * tanh.shares[layer - 1]) @ g
        np.testing.assert_allclose(above, tanh.gradient_kernels[layer - 1], atol=1e-9)


def lowest(solution):
    """The least and the largest relative change of F when all weights move by 2 % at random, from where the forces on them hold them."""
    phi = [np.tanh(h) if solution.limit is TANH else np.maximum(h, 0.0) for h in solution.draws]
    layers = [resting.Neurons(*parts) for parts in zip(solution.shares, phi, solution.slopes, strict=True)]
    at = resting.recursion(layers, solution.errors[:, None], solution.limit.richness, solution.limit.decays)
    below = [solution.X / np.sqrt(solution.X.shape[1])]
    below += [(np.sqrt(n.weights)[:, None] * n.features).T for n in layers[:-1]]
    incoming = [b @ root for b, root in zip(at.coefficients, below, strict=True)]
    value = objective(solution.limit, below[0], incoming, solution.shares, solution.y)
    assert value == pytest.approx(solution.stats["objective"], rel=2e-3)
    rng, changes = np.random.default_rng(0), []
    for _ in range(30):
        moved = [w + 0.02 * np.linalg.norm(w) * rng.normal(size=w.shape) / np.sqrt(w.size) for w in incoming]
        changes.append(objective(solution.limit, below[0], moved, solution.shares, solution.y) / value - 1)
    return min(changes), max(changes)


def test_a_minimum_at_depth(tanh):
    least, most = lowest(tanh)
    assert least > -1e-5 and most > 1e-4


@pytest.mark.long
def test_three_layers_of_relu(tmp_path):
    deep = solve(DEEP, X[:4], Y[:4])
    assert deep.converged and deep.residual < 10 * TOLERANCE and deep.certificate is None
    kappa = sum(DEEP.decays)
    np.testing.assert_allclose(deep.kernel @ deep.errors / kappa, deep.fitted, atol=2e-3)
    np.testing.assert_allclose(deep.kernels[-1] @ deep.errors / DEEP.decays[-1], deep.fitted, atol=1e-9)
    total = deep.kernels[-1].copy()
    for kernel, gradient in zip(kernels(deep)[:-1], deep.gradient_kernels, strict=True):
        total += kernel * gradient
    np.testing.assert_allclose(deep.kernel, total, atol=1e-10)
    np.testing.assert_allclose(deep.cross_kernel(NEW) @ deep.coefficients, deep.predict(NEW), atol=0.01)
    np.testing.assert_allclose(deep.predict(deep.X), deep.fitted, atol=2e-3)
    reads_back(deep, tmp_path)
    in_batches(deep)
    least, most = lowest(deep)
    assert least > -1e-4 and most > 1e-4


def test_a_network_ends_there():
    """Gradient flow of a finite network, tanh, one hidden layer."""
    limit = ak.ANTK(ak.MLP(1, "tanh"), richness=2.0, decay=1.0)
    theory = solve(limit, tolerance=1e-6)
    run = ak.finite.gradient_flow(
        limit.network, X, Y, richness=2.0, decay=1.0, width=256, time=200.0, precision="float64", throw=False
    )
    assert np.abs(theory.fitted).max() > 0.3  # alive
    np.testing.assert_allclose(run.fitted, theory.fitted, atol=1e-3)
    np.testing.assert_allclose(run.kernels[0], theory.kernels[0], atol=2e-3)
    np.testing.assert_allclose(run.predict(NEW), theory.predict(NEW), atol=1e-3)


def test_float32(tanh):
    single = solve(TANH, precision="float32")
    assert single.converged
    arrays = (single.kernel, single.errors, single.fitted, *single.draws, *single.slopes, *single.shares)
    assert {array.dtype for array in arrays} == {np.dtype("float32")}
    np.testing.assert_allclose(single.predict(X), single.fitted, atol=2e-3)
    np.testing.assert_allclose(single.fitted, tanh.fitted, atol=0.01)
    assert single.predict(NEW).dtype == np.float32


# ---------------------------------------------------------------------------------------------------------------------
# The solution as an object


def test_files(tanh, tmp_path):
    reads_back(tanh, tmp_path)


def test_densities(tanh):
    for layer in (1, 2):
        values, weights = tanh.density(layer, 3)
        assert weights.sum() == pytest.approx(1, abs=1e-12) and len(values) == len(weights)
        assert weights @ np.tanh(values) ** 2 == pytest.approx(tanh.kernels[layer - 1][3, 3], rel=1e-3)
    with pytest.raises(ValueError, match="layer must be at most 2"):
        tanh.density(3, 0)


def test_predictions_in_batches(tanh):
    in_batches(tanh)


def test_the_solver_in_chunks(tanh):
    """A budget that holds few neurons: the same descent up to rounding."""
    size = 12 * 8 * 10
    small = solve(TANH, memory=float(size * PARTICLES // 4))
    np.testing.assert_allclose(small.fitted, tanh.fitted, atol=0.01)
    assert small.converged


def test_too_few_steps():
    limit = replace(TANH, network=ak.MLP(1, "tanh"), decay=(0.3, 0.2))
    with pytest.raises(ak.ConvergenceError, match="ANTK did not converge.*throw=False") as caught:
        solve(limit, steps=3)
    assert not caught.value.result.converged
    kept = solve(limit, steps=3, throw=False)
    assert not kept.converged and "more steps" in kept.status
    assert kept.residual > 10 * TOLERANCE


# ---------------------------------------------------------------------------------------------------------------------
# Long


@pytest.mark.long
@pytest.mark.slow
def test_zero_temperature():
    """ANBK at beta b and decay bλ has the same predictor as b grows: thermal spread falls as 1/b."""
    limit = ak.ANTK(ak.MLP(1, "tanh"), richness=2.0, decay=0.5)
    inputs, y = X[:3], np.array([1.0, -1.0, 0.5])
    cold = solve(limit, inputs, y, tolerance=1e-6)
    off = []
    for b in (4.0, 64.0):
        warm = ak.solve(
            ak.ANBK(limit.network, richness=2.0, beta=b, decay=b * 0.5),
            inputs,
            y,
            solver="particles",
            particles=2048,
            tolerance=0.01,
        )
        off.append(np.linalg.norm(warm.kernels[0] - cold.kernels[0]) / np.linalg.norm(cold.kernels[0]))
        np.testing.assert_allclose(warm.fitted, cold.fitted, atol=3 / b + 0.02)
    assert off[1] < 0.3 * off[0] and off[1] < 0.1


@pytest.mark.long
@pytest.mark.slow
def test_relu_in_float32(relu):
    single = solve(RELU, precision="float32")
    assert single.converged and single.kernel.dtype == np.float32
    assert np.linalg.norm(single.fitted - relu.fitted) <= bound(single) + bound(relu) + 1e-3


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("features", [1, 2])
def test_few_features(features):
    solution = solve(RELU, X[:, :features])
    assert solution.converged and abs(solution.certificate) <= TOLERANCE
    np.testing.assert_allclose(solution.predict(X[:, :features]), solution.fitted, atol=1e-3)


@pytest.mark.long
@pytest.mark.slow
def test_seeds_agree_at_depth():
    """Nothing promises one end for all starts, but these find the same value, or say that they do not."""
    ends = [solve(replace(DEEP, network=ak.MLP(2, "relu"), decay=0.3), seed=seed) for seed in (0, 1)]
    values = [end.stats["objective"] for end in ends]
    assert abs(values[0] - values[1]) < 1e-3 * values[0] or any("different places" in end.status for end in ends)
    for end in ends:
        assert end.residual < 10 * TOLERANCE
        np.testing.assert_allclose(end.kernel @ end.errors / 0.9, end.fitted, atol=2e-3)


@pytest.mark.long
@pytest.mark.slow
def test_many_neurons_are_the_infinite_network():
    """tanh, one hidden layer: where a neuron ends depends on its start, and what few neurons make of that differs; many agree with each other and with wide networks."""
    limit = ak.ANTK(ak.MLP(1, "tanh"), richness=2.0, decay=(0.3, 0.5))
    ends = [ak.solve(limit, X, Y, seed=seed) for seed in range(3)]
    assert np.ptp([end.fitted for end in ends], axis=0).max() < 4e-3
    run = ak.finite.gradient_flow(
        limit.network, X, Y, richness=2.0, decay=(0.3, 0.5), width=2048, time=400.0, precision="float64", throw=False
    )
    np.testing.assert_allclose(run.fitted, np.mean([end.fitted for end in ends], axis=0), atol=2e-3)
