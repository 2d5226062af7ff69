"""What the particle solver must not claim: accuracy that it does not have, or an answer that the audit does not bear out."""

import functools

import numpy as np
import pytest

import adakern as ak
from adakern.limits import Answer
from adakern.precision import scope
from adakern.solving import _judge


@pytest.fixture(scope="module")
def stiff():
    """Random labels at large richness: many wells that a neuron does not leave."""
    X, y = np.random.default_rng(0).standard_normal((16, 10)), np.sign(np.random.default_rng(1).standard_normal(16))
    limit = ak.ANBK(ak.MLP(1, "tanh"), richness=10.0)
    options = {"particles": 256, "tolerance": 0.02, "throw": False}
    return limit, X, y, functools.cache(lambda seed: ak.solve(limit, X, y, seed=seed, **options))


@pytest.mark.long
def test_neurons_that_stand_still_are_in_the_error(stiff):
    found = [stiff[-1](seed) for seed in range(4)]
    kernels = np.array([solution.kernel for solution in found])
    scatter = np.sqrt(np.sum(kernels.var(axis=0, ddof=1)))
    claimed = np.sqrt(np.mean([np.sum(solution.kernel_errors[0] ** 2) for solution in found]))
    assert min(solution.stats["standing"][0] for solution in found) > 0.6
    assert scatter < 1.5 * claimed
    assert all(not solution.converged and "hardly move" in solution.status for solution in found)


@pytest.mark.long
def test_a_wrong_kernel_is_refused_however_stiff(stiff):
    limit, X, y, find = stiff
    found = find(0)
    assert found.stats["audit"]["doubt"] <= found.residual + 1e-12
    for factor in (0.5, 1.5, 2.0, 3.0):
        kernel = factor * found.kernel
        coefficients = np.linalg.solve(kernel + np.eye(16) / limit.beta, y)[:, None]
        answer = Answer(
            kernels=(kernel,),
            kernel=kernel,
            coefficients=coefficients,
            fitted=kernel @ coefficients,
            errors=y[:, None] - kernel @ coefficients,
            kernel_errors=found.kernel_errors,
            duals=(-(limit.richness**2) * coefficients @ coefficients.T,),
            draws=found.draws,
            converged=True,
            stats={"relative_error": 0.05, "stiffness": 1e4},
        )
        with scope("float64"):
            residual, findings = limit.audit(X, y[:, None], answer)
        judged = _judge(answer, residual, findings, "float64")
        assert not judged.converged
        assert "saddle equations hold to" in judged.status or "audit is too noisy" in judged.status


@pytest.mark.long
def test_the_outputs_too_end_the_probes(points):
    """Outputs far smaller than what the kernel says of them: their share of the probes' noise counts as well."""
    X, y = points
    limit = ak.ANBK(ak.MLP(1, "relu"), richness=1.0, beta=0.1)
    solution = ak.solve(limit, X + 3.0, y, particles=256, tolerance=0.02, throw=False)
    assert solution.stats["output_error"] <= 0.02 and solution.stats["steps"] < 20000


@pytest.mark.long
def test_a_part_of_a_stretch_is_no_batch(find):
    counts = [find(steps=steps, throw=False).stats for steps in (140, 141, 142, 143)]
    assert len({(stats["batches"], stats["probes"]) for stats in counts}) < 4
    assert all(stats["steps"] <= 143 + 5 for stats in counts)


@pytest.mark.parametrize(
    "particles",
    [
        100,
        pytest.param(256, marks=pytest.mark.long),
    ],
)
@pytest.mark.long
def test_memory_does_not_change_the_number_of_particles(find, particles):
    solution = find(particles=particles, memory=2000, tolerance=0.5, throw=False)
    assert solution.stats["chunks"] > 1 and solution.stats["particles"] == -(-particles // 8) * 8


def test_a_path_that_fails_keeps_what_it_has(points):
    with pytest.raises(ak.ConvergenceError, match="^richness 1: ") as caught:
        ak.path(ak.ANBK(ak.MLP(1, "tanh")), *points, richness=[0.0, 1.0], particles=256, tolerance=0.03, steps=40)
    assert [solution.limit.richness for solution in caught.value.result] == [0.0, 1.0]


def test_kernels_of_other_inputs_are_no_start_of_minmax(find, points):
    X, y = points
    with pytest.raises(ValueError, match="init must be a solution on X"):
        ak.solve(ak.ANBK(ak.MLP(1, "tanh")), X + 1.0, y, solver="minmax", init=find())
    with pytest.raises(ValueError, match="positive semi-definite"):
        ak.solve(ak.ANBK(ak.MLP(1, "tanh")), X, y, init=[np.eye(8) - 0.3 * np.ones((8, 8))])


@pytest.mark.long
def test_a_law_that_grows_too_fast_is_refused(points):
    limit = ak.ANBK(ak.MLP(1, lambda h: h * h), richness=0.3)
    solution = ak.solve(limit, *points, particles=64, tolerance=0.3, throw=False)
    assert not solution.converged and "cannot be normalised" in solution.status


@pytest.mark.long
def test_snapshots_are_spread_over_the_run(find):
    """The draws that a long run keeps are not all of its end."""
    solution = find(tolerance=0.008)
    assert solution.stats["batches"] > 20
    draws = solution.draws[0].reshape(256, solution.stats["snapshots"], -1)
    correlation = [np.mean(draws[:, i] * draws[:, i + 1]) for i in range(draws.shape[1] - 1)]
    assert np.max(correlation) < 0.3


def test_an_error_of_the_audit_is_said(stiff):
    _, X, y, _ = stiff
    answer = Answer((), np.eye(2), np.eye(2), y, y, kernel_errors=None, draws=(X,), converged=True)
    findings = {"audit": {"doubt": 0.1, "noise": {"kernels": [0.2]}}}
    assert "too noisy" in _judge(answer, 0.1, findings, "float64").status
