"""Inputs that are legal and awkward: each is solved, finite, and satisfies its equations."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import adakern as ak

RNG = np.random.default_rng(4)
X, Y, X_NEW = RNG.standard_normal((12, 5)), RNG.standard_normal(12), RNG.standard_normal((5, 5))
LIMITS = [ak.NNGP(ak.MLP(2, "relu")), ak.NNGPK(ak.MLP(2, "erf")), ak.NTK(ak.MLP(2, "relu")), ak.NTK(ak.MLP(2, "erf"))]
each_limit = pytest.mark.parametrize("limit", LIMITS, ids=["NNGP-relu", "NNGPK-erf", "NTK-relu", "NTK-erf"])


def changed(array, index, value):
    result = array.copy()
    result[index] = value
    return result


CASES = {
    "one point": (X[:1], Y[:1]),
    "constant columns": (changed(X, (slice(None), slice(3)), 1.0), Y),
    "all columns constant": (np.ones((12, 5)), Y),
    "all-zero inputs": (np.zeros((12, 5)), Y),
    "a zero row": (changed(X, 2, 0.0), Y),
    "duplicates, equal labels": (changed(X, slice(6, 12), X[:6]), np.tile(Y[:6], 2)),
    "duplicates, different labels": (changed(X, slice(6, 12), X[:6]), Y),
    "antipodes": (changed(X, slice(6, 12), -X[:6]), Y),
    "parallel rows": (changed(X, slice(6, 12), 3 * X[:6]), Y),
    "constant labels": (X, np.ones(12)),
    "zero labels": (X, np.zeros(12)),
    "many features": (RNG.standard_normal((12, 3000)), Y),
    "one feature": (X[:, :1], Y),
    "many points": (RNG.standard_normal((150, 2)), RNG.standard_normal(150)),
    "large inputs": (1e4 * X, Y),
    "small inputs": (1e-4 * X, Y),
    "rows of very different size": (X * np.logspace(-6, 3, 12)[:, None], Y),
}


def check(solution, new):
    assert solution.converged
    assert solution.residual < 1e-7
    for array in (
        *solution.kernels,
        solution.kernel,
        solution.fitted,
        solution.errors,
        *(solution.gradient_kernels or ()),
    ):
        assert np.isfinite(array).all()
    assert np.isfinite(solution.predict(new)).all()
    np.testing.assert_allclose(solution.fitted + solution.errors, solution.y, atol=1e-9)


# An analytic kernel of points this close has a condition number beyond 1e16: without a ridge there is no answer to have.
ILL_POSED = ("one feature", "many points", "rows of very different size")


@each_limit
@pytest.mark.parametrize("case", CASES)
def test_solved(case, limit):
    inputs, targets = CASES[case]
    if case in ILL_POSED and limit == LIMITS[3]:
        limit = ak.NTK(limit.network, ridge=1e-6)
    solution = ak.solve(limit, inputs, targets)
    check(solution, inputs[:1] + 0.1)
    values = np.linalg.eigvalsh(solution.kernel)
    assert values[0] > -1e-12 * max(values[-1], 1e-300)
    if isinstance(limit, ak.NNGP):
        assert np.all(solution.variance(inputs) >= 0)


@each_limit
def test_equal_inputs_have_equal_outputs(limit):
    """f is a function: where labels of the same input differ, the fit is the same number, between them."""
    inputs, targets = CASES["duplicates, different labels"]
    solution = ak.solve(limit, inputs, targets)
    np.testing.assert_allclose(solution.fitted[:6], solution.fitted[6:], atol=1e-6)
    np.testing.assert_allclose(solution.predict(inputs), solution.fitted, atol=1e-6)


@pytest.mark.parametrize("activation", ["relu", "erf"])
def test_duplicates_without_ridge_fit_the_mean_label(activation):
    """The limit ridge → 0⁺: least squares, which is the mean of the labels where they disagree."""
    inputs, targets = CASES["duplicates, different labels"]
    solution = ak.solve(ak.NTK(ak.MLP(2, activation)), inputs, targets)
    mean = (targets[:6] + targets[6:]) / 2
    np.testing.assert_allclose(solution.fitted, np.tile(mean, 2), atol=1e-6)
    halved = ak.solve(ak.NTK(ak.MLP(2, activation)), inputs[:6], mean)
    np.testing.assert_allclose(solution.predict(X_NEW), halved.predict(X_NEW), atol=1e-6)


@pytest.mark.parametrize("limit", LIMITS[:2], ids=["NNGP-relu", "NNGPK-erf"])
def test_a_repeated_point_counts_twice(limit):
    """Two equal observations are one of twice the precision: the same as half the noise at that point."""
    solution = ak.solve(limit, *CASES["duplicates, equal labels"])
    once = ak.solve(type(limit)(limit.network, beta=100.0), X[:6], Y[:6])
    np.testing.assert_allclose(solution.predict(X_NEW), once.predict(X_NEW), atol=1e-10)


@pytest.mark.parametrize("case", ILL_POSED)
def test_an_ill_posed_system_is_solved_or_refused_in_words(case):
    inputs, targets = CASES[case]
    solution = ak.solve(LIMITS[3], inputs, targets, throw=False)
    assert np.isfinite(solution.predict(inputs)).all()
    if solution.converged:
        assert solution.residual < 1e-7
    else:
        assert "larger ridge" in solution.status
        with pytest.raises(ak.ConvergenceError, match="a larger ridge"):
            ak.solve(LIMITS[3], inputs, targets)


@pytest.mark.parametrize("features", [5, 50, 784])
def test_duplicated_images_have_equal_outputs(features):
    """However the matrix product adds up its many terms, a point and its copy stay perfectly correlated."""
    inputs = np.tile(np.random.default_rng(5).standard_normal((6, features)), (2, 1))
    solution = ak.solve(ak.NTK(ak.MLP(2, "relu")), inputs, Y)
    mean = (Y[:6] + Y[6:]) / 2
    np.testing.assert_allclose(solution.fitted, np.tile(mean, 2), atol=1e-6)
    assert solution.stats["linear_system"]["rank"] == 6


@pytest.mark.parametrize("activation", ["erf", "relu"])
def test_pixels_from_0_to_255(activation):
    """Images that nobody has scaled are legal."""
    inputs = np.random.default_rng(6).integers(0, 256, (12, 5))
    check(ak.solve(ak.NNGPK(ak.MLP(1, activation)), inputs, Y), inputs + 1)


def test_zero_labels_give_zero():
    for limit in LIMITS[:3]:
        assert not np.any(ak.solve(limit, X, np.zeros(12)).predict(X_NEW))


def test_one_point_by_hand():
    solution = ak.solve(ak.NNGPK(ak.MLP(1, "relu"), beta=10.0), [[2.0]], [3.0])
    assert solution.kernel[0, 0] == pytest.approx(2.0)  # E[relu(h)²] with variance 4
    assert solution.fitted[0] == pytest.approx(3.0 * 2.0 / (2.0 + 0.1))
    assert solution.predict([[4.0]])[0] == pytest.approx(4.0 / 2.1 * 3.0)
    assert solution.predict([[-1.0]])[0] == pytest.approx(0.0, abs=1e-15)


FORMS = {
    "lists": lambda v: v.tolist(),
    "tuples": lambda v: tuple(map(tuple, v.tolist())) if v.ndim == 2 else tuple(v.tolist()),
    "Fortran order": np.asfortranarray,
    "not contiguous": lambda v: np.repeat(v, 2, axis=0)[::2],
    "reversed twice": lambda v: v[::-1].copy()[::-1],
    "read-only": lambda v: np.lib.stride_tricks.as_strided(v, writeable=False),
    "objects": lambda v: v.astype(object),
    "big endian": lambda v: v.astype(">f8"),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_the_same_numbers(form):
    expected = ak.solve(LIMITS[1], X, Y)
    solution = ak.solve(LIMITS[1], FORMS[form](X), FORMS[form](Y))
    # Another memory layout may add in another order; the condition number (λ_max + 1/β)β is below 300.
    np.testing.assert_allclose(solution.predict(FORMS[form](X_NEW)), expected.predict(X_NEW), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    "cast",
    [np.float32, np.float16, np.int64, np.uint8, bool, jnp.asarray],
    ids=lambda cast: getattr(cast, "__name__", "jax"),
)
def test_other_types_mean_the_same_numbers(cast):
    rounded = np.round(3 * np.abs(X))
    if cast is bool:
        rounded = (rounded > 1).astype(float)
    make = cast if cast is jnp.asarray else (lambda v: v.astype(cast))
    expected = ak.solve(LIMITS[1], rounded, Y)
    solution = ak.solve(LIMITS[1], make(rounded), Y)
    np.testing.assert_array_equal(solution.fitted, expected.fitted)
    assert solution.fitted.dtype == np.float64


def test_torch_tensors():
    torch = pytest.importorskip("torch")
    solution = ak.solve(LIMITS[1], torch.tensor(X, requires_grad=True), torch.tensor(Y))
    np.testing.assert_array_equal(solution.fitted, ak.solve(LIMITS[1], X, Y).fitted)


def test_inputs_that_overflow_are_refused_in_words():
    """Squares beyond float64: no traceback from inside numpy, but a sentence."""
    with pytest.raises((ValueError, ak.AdakernError), match="finite|large|converge"):
        ak.solve(ak.NNGPK(ak.MLP(1, "relu")), 1e200 * X, Y)


ADAPTIVE = [
    "one point",
    "all-zero inputs",
    pytest.param("duplicates, different labels", marks=pytest.mark.long),
    pytest.param("zero labels", marks=pytest.mark.long),
    pytest.param("many features", marks=pytest.mark.long),
]


@pytest.mark.parametrize("case", ADAPTIVE)
def test_adaptive(case):
    """With few particles and a loose tolerance; the residual is an audit's, and shows the answer's own error of up to that tolerance."""
    inputs, targets = CASES[case]
    solution = ak.solve(ak.ANBK(ak.MLP(1, "erf")), inputs, targets, particles=128, tolerance=0.3, throw=False)
    for array in (*solution.kernels, *solution.duals, solution.fitted, solution.predict(inputs[:1] + 0.1)):
        assert np.isfinite(array).all()
    assert solution.converged
    assert solution.residual < 0.3
    member = {tuple(row): i for i, row in reversed(list(enumerate(inputs)))}
    same = [member[tuple(row)] for row in inputs]
    np.testing.assert_allclose(solution.fitted, solution.fitted[same], atol=1e-12)
