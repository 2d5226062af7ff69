"""The kernel recursion in tiles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import adakern as ak
from adakern import recursion
from adakern.activations import get
from adakern.precision import scope


@given(total=st.integers(1, 60), size=st.integers(1, 70))
@settings(max_examples=100, deadline=None)
def test_spans_cover_every_row_in_equal_lengths(total, size):
    spans = list(recursion.spans(total, size))
    assert {s.stop - s.start for s in spans} == {min(size, total)}
    assert sorted({row for s in spans for row in range(s.start, s.stop)}) == list(range(total))
    assert len(spans) == -(-total // size)


@pytest.mark.parametrize("kind", [ak.NTK, ak.NNGPK])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_tiles_do_not_change_the_kernels(kind, activation, data, solved, monkeypatch):
    limit = kind(ak.MLP(2, activation), decay=(0.5, 2.0, 0.8))
    whole = solved(limit)
    monkeypatch.setattr(recursion, "TILE", 7)  # twelve points: tiles of 7 that overlap
    tiled = ak.solve(limit, data[0], data[1])
    # ReLU's slope kernel turns a rounding error of a correlation near one into its square root; these points are not near.
    for found, expected in zip((*tiled.kernels, tiled.kernel), (*whole.kernels, whole.kernel), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)
        np.testing.assert_array_equal(found, found.T)


def test_variances_are_the_diagonal(data, solved):
    X = data[0]
    solution = solved(ak.NTK(ak.MLP(2, "tanh"), decay=(0.5, 2.0, 0.8)))
    with scope("float64"):
        found = recursion.variances(get("tanh"), 2, (0.5, 2.0, 0.8), X / np.sqrt(5), "float64")
    np.testing.assert_allclose(found.values[0], np.sum(X**2, axis=1) / 5, rtol=1e-14)
    for value, kernel in zip(found.values[1:], solution.kernels, strict=True):
        np.testing.assert_array_equal(value, np.diag(kernel))
    np.testing.assert_allclose(found.slopes[1], np.diag(solution.gradient_kernels[1]), rtol=1e-15)
    first, rest = found.split(5)
    assert [len(v) for v in first.values] == [5, 5, 5] and [len(v) for v in rest.slopes] == [7, 7]


def test_a_second_solve_compiles_nothing(data):
    """Everything that depends on shapes and the network alone is compiled once per process."""
    import jax

    limit = ak.NNGPK(ak.MLP(2, "relu"))
    ak.solve(limit, data[0], data[1])
    compiled = []

    def listen(event, duration, **_):
        if "backend_compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        ak.solve(limit, data[0] + 1.0, data[1])
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert compiled == []
