"""A solve that is interrupted goes on as if it had not been; solvers and options that do not go together say so."""

import numpy as np
import pytest

import adakern as ak
from adakern import checkpoints
from adakern.solvers import particles


@pytest.fixture
def interrupt(monkeypatch):
    """Make the solver stop after a number of stretches, as by Ctrl-C."""
    go_on = particles._Work.go_on

    def after(count):
        left = [count]

        def stop(self, record):
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            return go_on(self, record)

        monkeypatch.setattr(particles._Work, "go_on", stop)

    yield after
    monkeypatch.undo()


@pytest.mark.parametrize("count", [*(pytest.param(count, marks=pytest.mark.long) for count in (0, 3, 18)), 14])
def test_resuming_is_bit_for_bit(find, tmp_path, monkeypatch, interrupt, count):
    """In the burn-in, while settling, while averaging; and twice."""
    file = tmp_path / "run.checkpoint"
    for more in (count, 1):
        interrupt(more)
        with pytest.raises(KeyboardInterrupt):
            find(checkpoint=file)
        assert file.exists()
        monkeypatch.undo()
    resumed, whole = find(checkpoint=file), find()
    assert not file.exists()
    for name in ("kernels", "kernel_errors", "duals", "draws"):
        for a, b in zip(getattr(resumed, name), getattr(whole, name), strict=True):
            np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(resumed.fitted, whole.fitted)
    assert (resumed.status, resumed.residual) == (whole.status, whole.residual)
    assert resumed.stats["steps"] == whole.stats["steps"]


@pytest.mark.parametrize(
    ("change", "name"),
    [({"richness": 2.0}, "limit"), ({"seed": 1}, "options"), ({"init": [np.eye(8)]}, "init")],
    ids=["limit", "seed", "init"],
)
def test_a_checkpoint_of_another_run_is_refused(find, tmp_path, interrupt, monkeypatch, change, name):
    file = tmp_path / "run.checkpoint"
    interrupt(3)
    with pytest.raises(KeyboardInterrupt):
        find(checkpoint=file)
    monkeypatch.undo()
    with pytest.raises(ValueError, match=f"belongs to a run with another {name}"):
        find(checkpoint=file, **change)
    assert file.exists()


@pytest.mark.parametrize("seconds", [30.0, 0.0], ids=["short run", "written at the end"])
def test_more_steps_go_on(find, apart, tmp_path, monkeypatch, seconds):
    monkeypatch.setattr(checkpoints, "SECONDS", seconds)
    file = tmp_path / "run.checkpoint"
    first = find(checkpoint=file, steps=60, throw=False)
    assert not first.converged and file.exists()
    second = find(checkpoint=file)
    assert second.converged and second.stats["steps"] > first.stats["steps"]
    assert apart(second, find()) < 2 and not file.exists()


@pytest.mark.long
def test_the_published_algorithm_through_solve(points):
    X, y = points
    limit = ak.ANBK(ak.MLP(1, "tanh"), richness=0.3, beta=1.0)
    solution = ak.solve(limit, X, y, solver="minmax", particles=2000, steps=20, throw=False)
    lazy = ak.solve(ak.NNGPK(ak.MLP(1, "tanh"), beta=1.0), X, y)
    assert solution.stats["solver"] == "minmax" and solution.stats["steps"] <= 20
    assert np.linalg.norm(solution.kernel - lazy.kernel) / np.linalg.norm(lazy.kernel) < 0.2
    with pytest.raises(NotImplementedError, match="the published algorithm is for the squared loss"):
        ak.solve(ak.ANBK(ak.MLP(1), loss="logistic"), X, y, solver="minmax")
    with pytest.raises(ValueError, match='checkpoint is for solver="particles"'):
        ak.solve(limit, X, y, solver="minmax", checkpoint="run.checkpoint")


def test_options_that_mean_nothing(points):
    X, y = points
    with pytest.raises(
        ValueError, match="solver must be one of 'particles', 'dual', 'linear', 'minmax', but it is 'newton'"
    ):
        ak.solve(ak.ANBK(ak.MLP(1)), X, y, solver="newton")
    options = {"solver": "particles", "particles": 64, "tolerance": 0.1, "steps": 10, "memory": 1e6, "checkpoint": "x"}
    for name, value in options.items():
        with pytest.raises(ValueError, match=f"{name} has no meaning for NTK, which is solved in closed form"):
            ak.solve(ak.NTK(ak.MLP(1)), X, y, **{name: value})
