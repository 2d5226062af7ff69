"""Solves and roots of positive semi-definite matrices, singular ones included."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adakern import floors, linalg
from adakern.precision import scope


@pytest.fixture(autouse=True)
def float64():
    with scope("float64"):
        yield


def low_rank(size, rank, seed=0):
    factor = np.random.default_rng(seed).standard_normal((size, rank))
    return factor @ factor.T


def test_solve_by_cholesky(rng):
    kernel, y = low_rank(8, 16), rng.standard_normal((8, 3))
    found = linalg.solve_psd(jnp.asarray(kernel), 0.3, jnp.asarray(y))
    np.testing.assert_allclose(found.x, np.linalg.solve(kernel + 0.3 * np.eye(8), y), rtol=1e-12)
    assert found.report == {"route": "cholesky", "rank": 8, "cutoff": 0.0}


@pytest.mark.parametrize("rank", [0, 1, 3, 7])
def test_solve_of_a_singular_kernel_is_the_minimum_norm_solution(rank, rng):
    kernel, y = low_rank(8, rank), rng.standard_normal((8, 3))
    found = linalg.solve_psd(jnp.asarray(kernel), 0.0, jnp.asarray(y))
    expected = np.linalg.pinv(kernel, rcond=1e-12, hermitian=True) @ y
    np.testing.assert_allclose(found.x, expected, rtol=1e-9, atol=1e-12)  # the condition number is below 1e3
    assert found.report["route"] == "eigenvalues" and found.report["rank"] == rank


def test_a_singular_kernel_with_a_ridge(rng):
    kernel, y = low_rank(8, 3), rng.standard_normal((8, 3))
    found = linalg.solve_psd(jnp.asarray(kernel), 1e-3, jnp.asarray(y))
    np.testing.assert_allclose(found.x, np.linalg.solve(kernel + 1e-3 * np.eye(8), y), rtol=1e-9)
    assert found.report["rank"] == 8


def test_the_limit_of_small_ridge(rng):
    """Ridge → 0⁺ on the range of K is what ridge 0 returns; the difference falls with the ridge."""
    kernel = low_rank(8, 3)
    y = kernel @ rng.standard_normal((8, 1))
    limit = np.asarray(linalg.solve_psd(jnp.asarray(kernel), 0.0, jnp.asarray(y)).x)
    gaps = [
        np.abs(np.asarray(linalg.solve_psd(jnp.asarray(kernel), ridge, jnp.asarray(y)).x) - limit).max()
        for ridge in (1e-2, 1e-3, 1e-4)
    ]
    np.testing.assert_allclose(np.diff(np.log10(gaps)), -1.0, atol=0.02)  # first order in the ridge


@given(size=st.just(8), rank=st.sampled_from([1, 5, 8]), seed=st.integers(0, 99))
@settings(max_examples=12, deadline=None)
def test_root_rebuilds_the_kernel(size, rank, seed):
    with scope("float64"):
        kernel = low_rank(size, rank, seed)
        factor, report = linalg.root(jnp.asarray(kernel))
        assert factor.shape == (size, min(size, rank)) and report["rank"] == min(size, rank)
        np.testing.assert_allclose(factor @ factor.T, kernel, atol=1e-13 * np.abs(kernel).max())
        gram = np.asarray(factor.T @ factor)
        np.testing.assert_allclose(gram - np.diag(np.diag(gram)), 0.0, atol=1e-12 * gram.max())  # orthogonal columns


def test_root_of_zeros_has_one_column():
    factor, report = linalg.root(jnp.zeros((4, 4)))
    assert factor.shape == (4, 1) and report["rank"] == 1
    np.testing.assert_array_equal(factor, 0.0)


@pytest.mark.parametrize("rank", [0, 3, 16])
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_cholesky_root_adds_its_jitter_and_no_more(rank, precision):
    with scope(precision):
        kernel = jnp.asarray(low_rank(8, rank))
        factor = np.asarray(linalg.cholesky_root(kernel))
        kernel = np.asarray(kernel, dtype=np.float64)
    assert np.isfinite(factor).all() and str(factor.dtype) == precision
    np.testing.assert_array_equal(factor, np.tril(factor))
    jitter = floors.JITTER[precision] * np.trace(kernel) / 8
    error = factor.astype(np.float64) @ factor.T.astype(np.float64) - kernel - jitter * np.eye(8)
    assert np.abs(error).max() <= 8 * np.finfo(precision).eps * np.trace(kernel) + 1e-37


def test_eigenvalue_floor():
    assert linalg.eigenvalue_floor(2.0, 10, np.float64) == pytest.approx(20 * 2.0**-52)
    assert linalg.eigenvalue_floor(-1.0, 10, np.float32) == 0.0


@pytest.mark.parametrize("shape", [(12, 5), (5, 12), (30, 8)])
def test_root_of_gram_has_orthogonal_columns_and_the_same_kernel(shape):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal(shape) * 10.0 ** -np.linspace(0, 6, shape[1])[None, :]  # variances down to 1e-12
    rows[-1] = rows[0]
    with scope("float64"):
        factor, report = linalg.root_of_gram(jnp.asarray(rows))
    A = np.asarray(factor)
    assert report["rank"] == A.shape[1] <= min(shape)
    np.testing.assert_allclose(A @ A.T, rows @ rows.T, atol=1e-13)
    lengths = np.sqrt(np.sum(A**2, axis=0))
    np.testing.assert_allclose((A / lengths).T @ (A / lengths), np.eye(A.shape[1]), atol=1e-12)


def test_root_of_gram_of_nothing():
    with scope("float64"):
        factor, report = linalg.root_of_gram(jnp.zeros((4, 2)))
    assert factor.shape == (4, 1) and report["rank"] == 1 and not np.asarray(factor).any()
