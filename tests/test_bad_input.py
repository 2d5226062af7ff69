"""Everything a user can get wrong: the error names the argument and says what it may be."""

from __future__ import annotations

import numpy as np
import pytest

import adakern as ak
from adakern import memory
from adakern.solvers import closed

X = np.random.default_rng(0).standard_normal((6, 3))
Y = np.sign(X[:, 0])
NETWORK = ak.MLP(2, "relu")
LIMIT = ak.NNGPK(NETWORK)
LIMITS = (ak.NNGP, ak.NNGPK, ak.NTK, ak.ANBK)


def with_value(value):
    changed = X.copy()
    changed[2, 1] = value
    return changed


def solve(X=X, y=Y, limit=LIMIT, **options):
    return lambda: ak.solve(limit, X, y, **options)


CASES = {
    # inputs
    "X holds NaN": (solve(with_value(np.nan)), ValueError, "X", "must be finite, but it contains NaN"),
    "X holds infinity": (solve(with_value(np.inf)), ValueError, "X", "must be finite, but it contains infinity"),
    "X holds -infinity": (solve(with_value(-np.inf)), ValueError, "X", "must be finite, but it contains infinity"),
    "X has no points": (solve(np.zeros((0, 3)), []), ValueError, "X", "must have at least one point"),
    "X has no features": (solve(np.zeros((6, 0))), ValueError, "X", "must have at least one feature"),
    "X is 1-D": (solve(X[:, 0]), ValueError, "X", r"must be 2-D \(points, features\).*reshape"),
    "X is 3-D": (solve(X[:, :, None]), ValueError, "X", r"must be 2-D \(points, features\)"),
    "X is a number": (solve(3.0), ValueError, "X", r"must be 2-D \(points, features\)"),
    "X is nothing": (solve(None), ValueError, "X", "must be"),
    "X holds strings": (solve([["a", "b"]] * 6), TypeError, "X", "must hold real numbers, but it holds strings"),
    "X holds objects": (solve([[object()] * 3] * 6), TypeError, "X", "must hold numbers, but it holds object objects"),
    "X is ragged": (solve([[1, 2], [3]]), ValueError, "X", "must be a rectangular array of numbers"),
    "X is complex": (solve(X + 1j), TypeError, "X", "must hold real numbers, but it holds values of type complex128"),
    "X holds dates": (solve(np.full((6, 3), np.datetime64("2025-01-01"))), TypeError, "X", "must hold real numbers"),
    "X holds integers beyond float": (solve([[10**400] * 3] * 6), ValueError, "X", "fit into float64"),
    # targets
    "y is shorter": (solve(y=Y[:5]), ValueError, "y", "must have one row per point of X: X has 6, y has 5"),
    "y is longer": (solve(y=np.ones(7)), ValueError, "y", "must have one row per point of X: X has 6, y has 7"),
    "y holds NaN": (solve(y=[1, np.nan, 1, 1, 1, 1]), ValueError, "y", "must be finite, but it contains NaN"),
    "y holds infinity": (solve(y=[1, np.inf, 1, 1, 1, 1]), ValueError, "y", "must be finite, but it contains infinity"),
    "y is a number": (solve(y=1.0), ValueError, "y", r"must be 1-D \(points,\) or 2-D \(points, outputs\)"),
    "y is 3-D": (solve(y=np.ones((6, 1, 1))), ValueError, "y", r"must be 1-D \(points,\) or 2-D \(points, outputs\)"),
    "y has no outputs": (solve(y=np.ones((6, 0))), ValueError, "y", "must have at least one output"),
    "y holds strings": (solve(y=list("abcdef")), TypeError, "y", "must hold real numbers, but it holds strings"),
    "y is complex": (solve(y=1j * Y), TypeError, "y", "must hold real numbers"),
    "y is ragged": (solve(y=[[1], [2, 3]] * 3), ValueError, "y", "must be a rectangular array of numbers"),
    # options of solve
    "precision is unknown": (solve(precision="half"), ValueError, "precision", "must be one of 'float32', 'float64'"),
    "precision is a type": (solve(precision=np.float32), TypeError, "precision", "must be one of 'float32', 'float64'"),
    "seed is negative": (solve(seed=-1), ValueError, "seed", "must be at least 0, but it is -1"),
    "seed is a float": (solve(seed=0.5), TypeError, "seed", "must be an integer, but it is 0.5"),
    "particles of a closed form": (solve(particles=10), ValueError, "particles", "no meaning for NNGPK.*leave it out"),
    "tolerance of a closed form": (solve(tolerance=0.1), ValueError, "tolerance", "no meaning for NNGPK"),
    "steps of a closed form": (solve(steps=10), ValueError, "steps", "no meaning for NNGPK"),
    "one particle": (solve(limit=ak.ANBK(NETWORK), particles=1), ValueError, "particles", "must be at least 2"),
    "particles is a float": (
        solve(limit=ak.ANBK(NETWORK), particles=1e3),
        TypeError,
        "particles",
        "must be an integer",
    ),
    "tolerance is zero": (
        solve(limit=ak.ANBK(NETWORK), tolerance=0),
        ValueError,
        "tolerance",
        "must be greater than 0",
    ),
    "no steps": (solve(limit=ak.ANBK(NETWORK), steps=0), ValueError, "steps", "must be at least 1"),
    "limit is a name": (solve(limit="nngp"), TypeError, "limit", "must be one of NNGP, NNGPK, NTK, ANBK"),
    "limit is a class": (solve(limit=ak.NNGP), TypeError, "limit", "must be one of NNGP, NNGPK, NTK, ANBK"),
    "limit is a network": (solve(limit=NETWORK), TypeError, "limit", "must be one of NNGP, NNGPK, NTK, ANBK"),
    # networks
    "depth is zero": (lambda: ak.MLP(0), ValueError, "depth", "must be at least 1, but it is 0"),
    "depth is a fraction": (lambda: ak.MLP(1.5), TypeError, "depth", "must be an integer, but it is 1.5"),
    "depth is True": (lambda: ak.MLP(True), TypeError, "depth", "must be an integer, but it is True"),
    "depth is a string": (lambda: ak.CNN("2"), TypeError, "depth", "must be an integer, but it is '2'"),
    "activation is unknown": (
        lambda: ak.MLP(1, "swish"),
        ValueError,
        "activation",
        "must be one of 'linear'.*callable",
    ),
    "activation is a number": (lambda: ak.MLP(1, 3), TypeError, "activation", "must be one of 'linear'.*callable"),
    "window is too large": (
        lambda: ak.CNN(1, window=9).check_inputs((2, 8, 8, 1)),
        ValueError,
        "window",
        r"must fit into the image \(at most 8x8\)",
    ),
    # numbers of limits
    "ridge is negative": (
        lambda: ak.NTK(NETWORK, ridge=-0.1),
        ValueError,
        "ridge",
        "must be 0 or greater, but it is -0.1",
    ),
    "ridge is NaN": (lambda: ak.NTK(NETWORK, ridge=np.nan), ValueError, "ridge", "must be finite"),
    "richness is negative": (lambda: ak.ANBK(NETWORK, richness=-1), ValueError, "richness", "must be 0 or greater"),
    "richness is None": (lambda: ak.ANBK(NETWORK, richness=None), TypeError, "richness", "must be a number"),
    "loss is unknown": (
        lambda: ak.ANBK(NETWORK, loss="hinge"),
        ValueError,
        "loss",
        "must be one of 'squared', 'logistic'",
    ),
    "loss is a function": (
        lambda: ak.ANBK(NETWORK, loss=abs),
        TypeError,
        "loss",
        "must be one of 'squared', 'logistic'",
    ),
}
for kind in LIMITS:
    name = kind.kind

    def make(kind=kind, network=NETWORK, **numbers):
        return lambda: kind(network, **numbers)

    CASES |= {
        f"{name}: network is a name": (make(network="mlp"), TypeError, "network", "must be an MLP or a CNN"),
        f"{name}: network is a class": (make(network=ak.MLP), TypeError, "network", "must be an MLP or a CNN"),
        f"{name}: decay is negative": (make(decay=-1), ValueError, "decay", "must be greater than 0, but it is -1"),
        f"{name}: decay is zero": (make(decay=0.0), ValueError, "decay", "must be greater than 0, but it is 0"),
        f"{name}: decay is NaN": (make(decay=np.nan), ValueError, "decay", "must be finite, but it is nan"),
        f"{name}: decay is a string": (make(decay="1"), TypeError, "decay", "must be a number, but it is '1'"),
        f"{name}: decay is short": (
            make(decay=(1, 1)),
            ValueError,
            "decay",
            r"must be one number or 3 of them .* has 2",
        ),
        f"{name}: decay is empty": (make(decay=[]), ValueError, "decay", r"must be one number or 3 of them .* has 0"),
        f"{name}: one decay is zero": (make(decay=(1, 0, 1)), ValueError, r"decay\[1\]", "must be greater than 0"),
        f"{name}: decay is 2-D": (make(decay=np.ones((3, 1))), TypeError, r"decay\[0\]", "must be a number"),
    }
    if kind is not ak.NTK:
        CASES |= {
            f"{name}: beta is zero": (make(beta=0), ValueError, "beta", "must be greater than 0, but it is 0"),
            f"{name}: beta is negative": (make(beta=-5.0), ValueError, "beta", "must be greater than 0, but it is -5"),
            f"{name}: beta is NaN": (make(beta=np.nan), ValueError, "beta", "must be finite, but it is nan"),
            f"{name}: beta is infinite": (make(beta=np.inf), ValueError, "beta", "must be finite, but it is inf"),
            f"{name}: beta is a string": (make(beta="50"), TypeError, "beta", "must be a number, but it is '50'"),
            f"{name}: beta is True": (make(beta=True), TypeError, "beta", "must be a number, but it is True"),
        }


@pytest.mark.parametrize("call, kind, argument, rule", CASES.values(), ids=CASES)
def test_refused(call, kind, argument, rule):
    with pytest.raises(kind, match=rf"^{argument}(?!\w).*{rule}"):
        call()


@pytest.mark.parametrize("limit", [ak.NNGP(NETWORK), ak.NTK(NETWORK), ak.ANBK(NETWORK)], ids=lambda limit: limit.kind)
def test_too_large_is_refused_before_work_starts(limit, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 1000)
    monkeypatch.setattr(closed, "_kernels", lambda *_: pytest.fail("work started"))
    with pytest.raises(
        ak.TooLargeError, match=r"6 points needs about .* GiB of memory, but only .* GiB are free; use fewer"
    ):
        ak.solve(limit, X, Y)


def test_the_refusal_counts_every_matrix(monkeypatch):
    """Ten thousand points, two layers: two kernels and a workspace of four matrices of 0.75 GiB each."""
    monkeypatch.setattr(memory, "available", lambda: 4 * memory.GIB)
    with pytest.raises(ak.TooLargeError, match="a kernel over 10000 points needs about 4.5 GiB"):
        ak.solve(LIMIT, np.ones((10000, 1)), np.ones(10000))


def test_memory_is_measured():
    assert memory.available() > 64 * 1024**2
    assert memory.budget(None) == memory.GIB and memory.budget(1e6) == 10**6
    assert memory.rows_per_batch(100, 1000, 50) == 10
    assert memory.rows_per_batch(100, 1, 50) == 1
    assert memory.rows_per_batch(100, 10**9, 50) == 50


def test_errors_have_a_common_base():
    for kind, builtin in (
        (ak.ConvergenceError, RuntimeError),
        (ak.FileFormatError, ValueError),
        (ak.TooLargeError, MemoryError),
    ):
        assert issubclass(kind, ak.AdakernError) and issubclass(kind, builtin)


def test_what_is_not_solved_yet_says_so():
    with pytest.raises(NotImplementedError, match="solve serves CNN networks in all limits but VGA"):
        ak.solve(ak.VGA(ak.CNN(1)), np.zeros((2, 4, 4, 1)), [0, 1])
