"""Whether the numbers that the particle solver gives with its answer are right: errors, biases, when it is done, and what a bad step does."""

from dataclasses import replace

import numpy as np
import pytest

import adakern as ak
from adakern.solvers import answering, clock, particles, tally


@pytest.fixture
def tallies(monkeypatch):
    """What the solver had counted when it made its answer."""
    seen, answer = [], answering.answer

    def watch(limit, clock, points, record, *rest):
        seen.append(record.tally)
        return answer(limit, clock, points, record, *rest)

    monkeypatch.setattr(answering, "answer", watch)
    return seen


def size(array):
    return float(np.linalg.norm(array))


@pytest.fixture(scope="module")
def precise(find):
    return find(particles=4096, tolerance=0.006)


@pytest.mark.long
def test_errors_are_the_scatter_over_seeds(find, precise):
    runs = [find(seed=seed) for seed in range(10)]
    kernels = np.array([run.kernel for run in runs])
    claimed = np.sqrt(np.mean([size(run.kernel_errors[0]) ** 2 for run in runs]))
    assert 0.6 < size(kernels.std(axis=0, ddof=1)) / claimed < 1.6
    joint = np.hypot(claimed / np.sqrt(10), size(precise.kernel_errors[0]))
    assert size(kernels.mean(axis=0) - precise.kernel) < 2 * joint


@pytest.mark.long
@pytest.mark.slow
def test_the_bias_of_few_particles_is_taken_out(find, points, precise, tallies, monkeypatch):
    """Along the labels, where the force of 32 particles overshoots."""
    audited = {"audit": {"doubt": 0.0, "noise": {}}}  # takes longer than so small a solve
    monkeypatch.setattr(ak.ANBK, "audit", lambda *_: (0.0, audited))
    for seed in range(64):
        find(particles=32, tolerance=0.1, seed=seed, throw=False)
    direction = np.outer(points[1], points[1]) / 8

    def off(kernels):
        values = [np.sum(direction * (kernel - precise.kernel)) for kernel in kernels]
        return np.mean(values), np.std(values, ddof=1) / 8

    corrected, error = off([tally.kernel(0).mean for tally in tallies])
    assert abs(corrected) < 3 * error
    plain, error = off([replace(tally, probes=()).kernel(0).mean for tally in tallies])
    assert plain > 3 * error


@pytest.mark.long
def test_the_shadow_takes_the_noise_out_at_small_richness(find, tallies):
    lazy = find(richness=0.0)
    rich = find(richness=0.02, tolerance=0.02, fresh=True)
    counted = tallies[-1]
    assert rich.stats["control"][0] > 0.9
    # Batches alone, without the two corrections, whose noise has no shadow.
    batches = replace(counted, probes=())
    uncontrolled = replace(batches, lazy=None).kernel(0)
    assert size(batches.kernel(0).error) < 0.25 * size(uncontrolled.error)
    assert size(batches.kernel(0).mean - lazy.kernel) < 0.25 * size(uncontrolled.mean - lazy.kernel)
    assert size(rich.kernel - lazy.kernel) < 2 * size(rich.kernel_errors[0])


@pytest.mark.long
def test_the_step_has_a_small_bias_that_is_known(precise):
    assert 0 < precise.stats["bias"]["step"][0] < 0.01
    assert precise.stats["bias"]["particles"][0] < 0.003
    assert 0.05 < precise.stats["step_size"] <= 0.25


@pytest.mark.long
def test_the_bias_of_a_long_step_is_taken_out(one_point, monkeypatch, tallies):
    """One point, whose kernel is known: the coarse system is close to where BAOAB loses its stability. The bias grows as the step squared."""
    X, exact = np.array([[1.0, -0.5]]), one_point(2.0, 10.0, 0.625)[0]
    limit = ak.ANBK(ak.MLP(1, "tanh"), richness=2.0, beta=10.0)
    monkeypatch.setattr(clock, "_LONGEST_STEP", 2.0)
    sizes, biases, errors = [], [], []
    for courant in (0.5, 0.95):
        monkeypatch.setattr(particles, "COURANT", courant)
        solution = ak.solve(limit, X, [1.0], particles=8192, tolerance=0.002)
        assert abs(solution.kernel[0, 0] - exact) < 3 * solution.kernel_errors[0][0, 0]
        counted = tallies[-1]
        sizes.append(solution.stats["step_size"])
        biases.append(counted.kernel(0).step[0, 0])
        errors.append(tally.error(np.array([probe.step[0][0] for probe in counted.probes]))[0, 0])
    growth = (sizes[1] / sizes[0]) ** 2
    assert growth > 3 and biases[1] < -4 * errors[1]
    assert abs(biases[1] - growth * biases[0]) < 3 * np.hypot(errors[1], growth * errors[0])


@pytest.mark.long
def test_a_step_that_heats_is_shortened(find, precise, monkeypatch, apart):
    monkeypatch.setattr(clock, "_LONGEST_STEP", 5.0)
    monkeypatch.setattr(particles, "COURANT", 4.0)
    solution = find(fresh=True)
    assert solution.stats["retries"] > 0 and solution.converged
    assert solution.stats["temperature"] < 1.2
    assert apart(solution, precise) < 2


@pytest.mark.parametrize(
    "problem",
    [pytest.param({"richness": 0.01}, marks=pytest.mark.long), {"richness": 10.0}, {"beta": 1.0}, {"beta": 1e4}],
    ids=str,
)
def test_the_robust_range(find, problem):
    solution = find(**problem)
    assert solution.converged and solution.residual < 0.15
    for array in (*solution.kernels, *solution.duals, solution.fitted):
        assert np.isfinite(array).all()


@pytest.mark.long
def test_six_layers(find):
    solution = find(6, tolerance=0.1)
    assert solution.converged and len(solution.kernels) == 6
    assert all(np.linalg.eigvalsh(kernel)[0] > 0 for kernel in solution.kernels)
    assert np.corrcoef(solution.fitted, solution.y)[0, 1] > 0.95


@pytest.mark.parametrize("problem", [{}, {"richness": 3.0}, {"beta": 1.0}], ids=str)
def test_the_tolerance_is_met(find, problem):
    loose, tight = find(tolerance=0.1, **problem), find(tolerance=0.02, **problem)
    for solution, asked in ((loose, 0.1), (tight, 0.02)):
        relative = size(solution.kernel_errors[0]) / size(solution.kernel)
        assert 0 < relative <= asked * (1 + 1e-9) and solution.stats["output_error"] <= asked
        assert solution.stats["relative_error"] == pytest.approx(max(relative, solution.stats["output_error"]))
    assert tight.stats["steps"] >= loose.stats["steps"]
    assert tight.stats["relative_error"] <= loose.stats["relative_error"]


def test_a_smaller_tolerance_gives_smaller_errors(find):
    errors = [find(tolerance=tolerance, particles=256).stats["relative_error"] for tolerance in (0.1, 0.03, 0.015)]
    assert errors[0] > errors[1] > errors[2]


def test_too_few_steps(find):
    with pytest.raises(ak.ConvergenceError, match="still burning in after .* give more steps") as caught:
        find(steps=20)
    assert not caught.value.result.converged
    with pytest.raises(ak.ConvergenceError, match="gave .* batches of the least .* give more steps, more particles"):
        find(steps=150)
    recorded = find(steps=20, throw=False)
    assert not recorded.converged and "still burning in" in recorded.status and "NOT converged" in repr(recorded)
    assert np.isfinite(recorded.kernel).all() and np.isfinite(recorded.predict(recorded.X)).all()


@pytest.mark.long
def test_chunks_change_nothing(find, monkeypatch):
    whole, parts = find(), find(memory=4 * 256 * 8 * 8 // 2)
    assert (whole.stats["chunks"], parts.stats["chunks"]) == (1, 4)
    np.testing.assert_allclose(parts.kernel, whole.kernel, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(parts.fitted, whole.fitted, rtol=1e-6)


def test_what_does_not_fit_is_refused_before_it_starts(find, monkeypatch):
    def never(*_):
        raise AssertionError("work has begun")

    monkeypatch.setattr(particles, "_start", never)
    with pytest.raises(ak.TooLargeError, match=r"particles of 8 points needs about .* GiB .* fewer particles"):
        find(particles=10**11)


def test_images_are_held_in_the_coordinates_of_a_window(monkeypatch):
    """1000 images of 16 positions: 8000 neurons with as many fields each would be 32 GiB, but a neuron has 192 weights."""
    asked = []
    monkeypatch.setattr(particles.memory, "require", lambda needed, *_: asked.append(needed))
    monkeypatch.setattr(particles.inputs, "root", lambda *_: 1 / 0)  # nothing is computed
    X = np.random.default_rng(0).normal(size=(1000, 32, 32, 3))
    with pytest.raises(ZeroDivisionError):
        ak.solve(ak.ANBK(ak.CNN(1, 8, 8)), X, X[:, 0, 0, 0])
    assert max(asked) < 3 * 1024**3
