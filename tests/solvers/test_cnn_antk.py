"""Convolutional networks at the end of gradient flow with weight decay: against MLPs, symmetries, brute force and networks of finite width."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

import adakern as ak
from adakern.precision import scope
from adakern.solvers import atoms, rest_task

RNG = np.random.default_rng(11)
IMAGES, LABELS = RNG.normal(size=(6, 3, 3, 2)), np.array([1.0, -1.0, 1.0, 1.0, -1.0, -1.0])
NEW = RNG.normal(size=(4, 3, 3, 2))


def limit(readout="flatten", *, activation="relu", depth=1, window=2, padding="valid", **numbers):
    network = ak.CNN(depth, window=window, activation=activation, padding=padding, readout=readout)
    return ak.ANTK(network, **{"richness": 2.0, "decay": 0.3, **numbers})


@pytest.fixture(scope="module")
def find():
    """Solutions on `IMAGES`, each solved once."""
    found: dict = {}

    def find(readout="flatten", **options):
        key = (readout, *sorted(options.items()))
        if key not in found:
            found[key] = ak.solve(limit(readout, **options), IMAGES, LABELS)
        return found[key]

    return find


@pytest.mark.parametrize("readout", ["flatten", "mean"])
@pytest.mark.parametrize("padding", ["valid", "same", "circular"])
def test_gradient_is_that_of_the_objective(readout, padding):
    """Windows, padding, pooling, rounded corners and merging, by finite differences."""
    rng, counts = np.random.default_rng(0), (4, 3)
    network = ak.CNN(2, window=2, stride=((1, 1), (2, 2)), padding=padding, readout=readout)
    with ak.precision.scope("float64"):
        task = rest_task.problem(ak.ANTK(network, decay=(0.1, 0.2, 0.3)), IMAGES, rng.normal(size=(6, 2)), "float64", 1)
    sizes = (task.shape.root.shape[1], counts[0] * 4)
    weights = [rng.normal(size=shape) for shape in zip(counts, sizes, strict=True)]
    found = atoms.Atoms(tuple(weights), tuple(np.full(n, 1 / n) for n in counts), 0.3)
    value, gradients = atoms.value_and_gradient(task.shape, found)
    for layer, gradient in enumerate(gradients):
        direction = rng.normal(size=gradient.shape)

        def moved(step, layer=layer, direction=direction):
            there = list(weights)
            there[layer] = weights[layer] + step * direction
            return atoms.value_and_gradient(task.shape, replace(found, incoming=tuple(there)))[0]

        np.testing.assert_allclose((moved(1e-5) - moved(-1e-5)) / 2e-5, np.sum(gradient * direction), rtol=1e-5)
    twice = replace(
        found,
        incoming=(np.repeat(weights[0], 2, axis=0), np.repeat(weights[1].reshape(3, 4, 4), 2, axis=1).reshape(3, -1)),
        shares=(np.full(8, 1 / 8), found.shares[1]),
    )
    twice = replace(twice, incoming=(twice.incoming[0], twice.incoming[1] / np.sqrt(2)))
    merged = atoms.merge(task.shape, twice, 1e-9)
    assert merged.counts == counts
    np.testing.assert_allclose(atoms.value_and_gradient(task.shape, merged)[0], value, rtol=1e-12)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_a_window_of_the_whole_image_is_an_mlp(activation):
    flat = ak.solve(ak.ANTK(ak.MLP(1, activation), richness=2.0, decay=0.3), IMAGES.reshape(6, -1), LABELS)
    for readout in ("flatten", "mean"):
        whole = ak.solve(limit(readout, activation=activation, window=3), IMAGES, LABELS)
        np.testing.assert_allclose(whole.fitted, flat.fitted, atol=1e-12)
        np.testing.assert_allclose(whole.kernels[0], flat.kernels[0], atol=1e-12)
        np.testing.assert_allclose(whole.predict(NEW), flat.predict(NEW.reshape(4, -1)), atol=1e-12)


@pytest.mark.parametrize("readout", ["flatten", "mean"])
def test_one_image(readout):
    r"""$\Delta=\mu/\max_u|\varphi|$, with $u$ the best unit neuron: here by brute force over the sphere."""
    solution = ak.solve(limit(readout), IMAGES[:1], LABELS[:1])
    rows = np.stack([IMAGES[0, i : i + 2, j : j + 2].ravel() for i in range(2) for j in range(2)]) / np.sqrt(8)

    def pull(u):
        phi = np.maximum(rows @ u / np.linalg.norm(u), 0.0)
        return -(phi.mean() if readout == "mean" else np.linalg.norm(phi))

    rng = np.random.default_rng(0)
    strongest = -min(minimize(pull, rng.normal(size=8)).fun for _ in range(40))
    np.testing.assert_allclose(solution.errors, 0.3 / 2.0 / strongest * LABELS[0], rtol=1e-4)
    np.testing.assert_allclose(
        ak.collapse_threshold(solution.limit, IMAGES[:1], LABELS[:1]), 0.3 / strongest, rtol=1e-6
    )


@pytest.mark.parametrize("readout", ["flatten", "mean"])
def test_certificate_and_equations(find, readout):
    solution = find(readout)
    assert solution.converged and 0 <= solution.certificate + 1e-9 < 1e-4 and solution.residual < 1e-3
    # s = ΦΔ/λ_L = KΔ/κ
    np.testing.assert_allclose(solution.kernels[-1] @ solution.errors / 0.3, solution.fitted, atol=1e-6)
    np.testing.assert_allclose(solution.kernel @ solution.errors / 0.6, solution.fitted, atol=1e-3)
    np.testing.assert_allclose(solution.predict(IMAGES), solution.fitted, atol=1e-3)
    # The value is that of a wide network at rest by plain descent from many neurons: convex, so no less and hardly more.
    with ak.precision.scope("float64"):
        task = rest_task.problem(solution.limit, IMAGES, LABELS[:, None], "float64", 1)
    rng, shape = np.random.default_rng(1), (48, task.shape.root.shape[1])

    def value(z):
        found = atoms.Atoms((z.reshape(shape),), (np.full(48, 1 / 48),), 0.0)
        value, (gradient,) = atoms.value_and_gradient(task.shape, found)
        return value, gradient.ravel()

    with ak.precision.scope("float64"):
        end = minimize(value, rng.normal(size=shape).ravel(), jac=True, method="L-BFGS-B", options={"maxiter": 3000})
    value_found = solution.stats["objective"]
    assert value_found * (1 - 1e-4) <= end.fun <= value_found * (1 + 5e-3)


def claimed(solution, **changes):
    """The answer that a solution claims, with something else in it."""
    held = {
        name: getattr(solution, name) for name in ("kernels", "kernel", "kernel_errors", "draws", "slopes", "shares")
    }
    columns = {name: getattr(solution, name)[:, None] for name in ("coefficients", "fitted", "errors")}
    return ak.limits.Answer(**(held | columns | changes))


def test_a_spoilt_answer_has_a_large_residual(find):
    solution = find("flatten")
    spoilt = claimed(solution, draws=(solution.draws[0] * np.array([1.0, 1.0, 1.0, 1.1] * 6)[None, :],))
    assert solution.limit.residual(IMAGES, LABELS[:, None], spoilt) > 0.01


def test_a_missing_neuron_spoils_the_certificate(find):
    """Without the neuron that does most, something pulls harder than its price; the certificate of the whole is small."""
    solution = find("flatten")
    assert solution.certificate < 1e-3
    most = int(np.argmax(solution.shares[0] * np.sum(solution.draws[0] ** 2, axis=1)))
    left = np.arange(len(solution.shares[0])) != most
    parts = {name: tuple(part[left] for part in getattr(solution, name)) for name in ("draws", "shares", "slopes")}
    with scope("float64"):
        spoilt = solution.limit.audit(IMAGES, LABELS[:, None], claimed(solution, **parts))[1]["certificate"]
    assert spoilt > 0.05


def test_channels_and_images_may_be_permuted(find):
    solution, order = find("flatten"), np.array([3, 1, 5, 0, 2, 4])
    other = ak.solve(solution.limit, IMAGES[order][..., ::-1], LABELS[order])
    np.testing.assert_allclose(other.fitted, solution.fitted[order], atol=2e-3)


@pytest.mark.long
def test_what_wraps_around_and_is_averaged_does_not_see_where_things_are(find):
    around = find("mean", padding="circular")
    moved = ak.solve(around.limit, np.roll(IMAGES, 1, axis=2), LABELS)
    np.testing.assert_allclose(moved.fitted, around.fitted, atol=2e-3)
    np.testing.assert_allclose(around.predict(np.roll(NEW, 1, axis=1)), around.predict(NEW), atol=1e-12)


def test_two_layers_save_and_load(find, tmp_path):
    solution = find("flatten", depth=2, activation="tanh")
    assert [kernel.shape for kernel in solution.kernels] == [(6, 4, 6, 4), (6, 6)]
    assert solution.converged and solution.residual < 1e-3 and solution.certificate is None
    np.testing.assert_allclose(solution.predict(IMAGES), solution.fitted, atol=1e-3)
    values, shares = solution.density(1, 2, 3)
    square = np.sum(shares * np.tanh(values) ** 2)
    np.testing.assert_allclose(square, solution.kernels[0][2, 3, 2, 3], rtol=1e-8)
    solution.save(tmp_path / "rest.safetensors")
    again = ak.load(tmp_path / "rest.safetensors")
    np.testing.assert_array_equal(again.predict(NEW), solution.predict(NEW))
    np.testing.assert_array_equal(again.kernels[0], solution.kernels[0])


@pytest.mark.long
def test_several_outputs_and_other_losses():
    targets = np.eye(3)[[0, 1, 2, 0, 1, 2]]
    for name, y in (("softmax", targets), ("logistic", LABELS), ("squared", targets)):
        solution = ak.solve(limit("flatten", loss=name, decay=0.1), IMAGES, y)
        assert solution.converged and solution.certificate < 1e-4
        assert solution.predict(NEW).shape == (4, *y.shape[1:])


def test_everything_dies_below_the_threshold():
    threshold = ak.collapse_threshold(limit("flatten"), IMAGES, LABELS)
    dead = ak.solve(limit("flatten", richness=0.99 * threshold), IMAGES, LABELS)
    assert dead.stats["collapsed"] and not dead.predict(NEW).any()
    alive = ak.solve(limit("flatten", richness=1.05 * threshold), IMAGES, LABELS)
    assert np.abs(alive.fitted).max() > 0


def test_starts_of_other_windows_are_refused(find):
    with pytest.raises(ValueError, match="init must have .* positions"):
        ak.solve(limit("flatten", window=1), IMAGES, LABELS, init=find("flatten"))


@pytest.mark.long
def test_networks_of_finite_width_end_there():
    """Outputs and kernels of trained networks, one layer of ReLU and two of tanh."""
    for problem in (limit("flatten"), limit("flatten", depth=2, activation="tanh")):
        solution = ak.solve(problem, IMAGES, LABELS)
        numbers = {"richness": 2.0, "decay": 0.3, "width": 512, "time": 500.0, "method": "chebyshev"}
        run = ak.finite.gradient_flow(problem.network, IMAGES, LABELS, **numbers)
        assert np.abs(run.fitted - solution.fitted).max() < 1e-3
        for found, kernel in zip(run.kernels, solution.kernels, strict=True):
            size = int(np.sqrt(kernel.size))
            assert ak.alignment(found.reshape(size, size), kernel.reshape(size, size)) > 0.999
