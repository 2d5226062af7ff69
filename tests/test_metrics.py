from __future__ import annotations

import numpy as np
import pytest

import adakern as ak


def test_alignment(rng):
    A, B = rng.standard_normal((2, 4, 4))
    assert ak.alignment(A, 3 * A) == pytest.approx(1.0, abs=1e-15)
    assert ak.alignment(A, -A) == pytest.approx(-1.0, abs=1e-15)
    assert ak.alignment([[1, 0], [0, 0]], [[0, 0], [0, 1]]) == 0.0
    expected = np.trace(A.T @ B) / np.sqrt(np.trace(A.T @ A) * np.trace(B.T @ B))
    assert ak.alignment(A, B) == pytest.approx(expected, rel=1e-13)
    assert isinstance(ak.alignment(A, B), float)


@pytest.mark.parametrize(
    "A, B, kind, message",
    [
        (np.eye(2), np.eye(3), ValueError, r"B must have the shape of A, \(2, 2\), but it has shape \(3, 3\)"),
        (np.eye(2), np.zeros((2, 2)), ValueError, "alignment of a kernel of zeros is not defined"),
        ([[np.nan]], [[1.0]], ValueError, "A must be finite, but it contains NaN"),
        ([[1.0]], [["x"]], TypeError, "B must hold real numbers, but it holds strings"),
    ],
)
def test_alignment_refuses(A, B, kind, message):
    with pytest.raises(kind, match=message):
        ak.alignment(A, B)


def test_mean_squared_error():
    assert ak.mean_squared_error([1, -1], [0.5, -1.0]) == 0.125
    assert ak.mean_squared_error([1, -1], [0.5, -1.0], variance=[0.5, 0.25]) == 0.5
    assert ak.mean_squared_error(np.ones((2, 2)), np.zeros((2, 2))) == 1.0
    with pytest.raises(ValueError, match=r"f must have the shape of y, \(2,\), but it has shape \(2, 1\)"):
        ak.mean_squared_error([1, -1], [[1], [-1]])
