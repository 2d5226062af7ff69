"""A limit audits answers by its own equations: small for right answers, large for altered ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import adakern as ak
from adakern import solving
from adakern.limits import Answer
from adakern.precision import scope

NETWORK = ak.MLP(2, "erf")
LIMITS = [ak.NNGP(NETWORK), ak.NNGPK(NETWORK), ak.NTK(NETWORK), ak.NTK(NETWORK, ridge=0.1)]
each_limit = pytest.mark.parametrize("limit", LIMITS, ids=["NNGP", "NNGPK", "NTK", "NTK-ridge"])


def answer_of(solution):
    def columns(values):
        return np.array(values)[:, None]

    return Answer(
        kernels=tuple(map(np.array, solution.kernels)),
        kernel=np.array(solution.kernel),
        coefficients=columns(solution.coefficients),
        fitted=columns(solution.fitted),
        errors=columns(solution.errors),
        kernel_errors=solution.kernel_errors,
        gradient_kernels=solution.gradient_kernels,
    )


def audit(solution, answer):
    with scope("float64"):
        return solution.limit.residual(solution.X, solution.y[:, None], answer)


@each_limit
def test_right_answers(limit, solved):
    solution = solved(limit)
    assert solution.residual < 1e-11
    assert audit(solution, answer_of(solution)) == pytest.approx(solution.residual, rel=1e-6, abs=1e-15)


@each_limit
@pytest.mark.parametrize("name", ["fitted", "coefficients"])
def test_altered_readout(limit, name, solved):
    solution = solved(limit)
    answer = answer_of(solution)
    changed = getattr(answer, name).copy()
    changed[3] += 0.01
    assert audit(solution, replace(answer, **{name: changed})) > 1e-5


@each_limit
@pytest.mark.parametrize("layer", [0, 1])
def test_altered_kernels(limit, layer, solved):
    """One per cent on one layer."""
    solution = solved(limit)
    answer = answer_of(solution)
    kernels = [kernel * (1.01 if index == layer else 1.0) for index, kernel in enumerate(answer.kernels)]
    assert audit(solution, replace(answer, kernels=tuple(kernels))) > 1e-3


@each_limit
def test_one_altered_entry_of_the_predictor_kernel(limit, solved):
    """The predictor's kernel enters f = Kα at every entry, so that a single wrong one shows."""
    solution = solved(limit)
    answer = answer_of(solution)
    for i, j in ((0, 5), (7, 7), (11, 2)):
        kernel = answer.kernel.copy()
        kernel[i, j] += 0.01
        kernel[j, i] = kernel[i, j]
        assert audit(solution, replace(answer, kernel=kernel)) > 1e-5


def test_altered_errors_are_noticed(solved):
    """Δ = y − f is part of the answer."""
    solution = solved(ak.NNGPK(NETWORK))
    answer = answer_of(solution)
    assert audit(solution, replace(answer, errors=answer.errors + 0.1)) > 1e-3


def test_an_altered_tangent_kernel_is_noticed(solved):
    """K, α and f that agree with each other but not with the recursion: K = ΣG∘Φ is an equation of the limit."""
    solution = solved(ak.NTK(NETWORK, ridge=0.1))
    kernel = 1.5 * solution.kernel
    alpha = np.linalg.solve(kernel + 0.1 * np.eye(12), solution.y[:, None])
    fitted = kernel @ alpha
    forged = replace(
        answer_of(solution), kernel=kernel, coefficients=alpha, fitted=fitted, errors=solution.y[:, None] - fitted
    )
    assert audit(solution, forged) > 1e-3


def test_a_predictor_kernel_that_is_not_the_last_layer_is_noticed(solved):
    """Likewise for NNGPK, whose predictor's kernel is Φ^L."""
    solution = solved(ak.NNGPK(NETWORK))
    kernel = np.eye(12)
    alpha = solution.y[:, None] / (1 + 1 / 50)
    forged = replace(
        answer_of(solution), kernel=kernel, coefficients=alpha, fitted=alpha, errors=solution.y[:, None] - alpha
    )
    assert audit(solution, forged) > 1e-3


def test_a_bad_residual_is_not_convergence(data, monkeypatch):
    monkeypatch.setattr(solving, "_CLOSED_TOLERANCE", {"float64": 0.0, "float32": 0.0})
    with pytest.raises(ak.ConvergenceError, match="NNGPK did not converge: the equations hold to .* only; use"):
        ak.solve(ak.NNGPK(NETWORK), data[0], data[1])
    solution = ak.solve(ak.NNGPK(NETWORK), data[0], data[1], throw=False)
    assert not solution.converged
    assert "NOT converged" in repr(solution) and "the equations hold to" in solution.status
