"""What comes out: the same for the same seed, immutable, stored, resumed; and bad input."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import adakern as ak
from adakern import checkpoints, files
from adakern.trajectories import Trajectory, dynamics, following, load

LIMIT = ak.ANTK(ak.MLP(1, "relu"), richness=1.0, decay=0.1)
TIMES = [0.0, 0.3, 1.0, 2.0]
FIELDS = ("times", "train_loss", "train_loss_errors", "test_loss", "test_loss_errors", "fitted", "fitted_errors")
FIELDS += ("predictions", "prediction_errors", "kernels", "kernel_errors", "gradient_kernels", "weights", "readouts")


@pytest.fixture(scope="module")
def points():
    rng = np.random.default_rng(11)
    X, X_test = rng.standard_normal((4, 6)), rng.standard_normal((3, 6))
    return X, np.array([1.0, -1.0, 1.0, -1.0]), X_test, np.array([1.0, 1.0, -1.0])


@pytest.fixture(scope="module")
def follow(points):
    X, y, X_test, y_test = points

    def call(**changed):
        options = {"X_test": X_test, "y_test": y_test, "neurons": 32, "replicas": 2, **changed}
        return dynamics(options.pop("limit", LIMIT), X, y, options.pop("times", TIMES), **options)

    return call


@pytest.fixture(scope="module")
def found(follow):
    return follow()


def same(a, b):
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)


def test_shapes(found):
    shapes = {name: getattr(found, name).shape for name in FIELDS}
    assert {shapes[name] for name in FIELDS[:5]} == {(4,)}
    assert shapes["fitted"] == shapes["fitted_errors"] == (4, 4)
    assert shapes["predictions"] == shapes["prediction_errors"] == (4, 3)
    assert shapes["kernels"] == shapes["kernel_errors"] == shapes["gradient_kernels"] == (4, 4, 4)
    assert shapes["weights"] == (4, 2, 32, 4) and shapes["readouts"] == (4, 2, 32, 1)
    assert found.converged and "reached t = 2" in found.status and "4 points" in repr(found)
    assert found.stats["steps"] > 0 and found.stats["seed"] == 0 and found.stats["precision"] == "float64"


def test_same_seed_same_answer(found, follow):
    same(found, follow())
    assert np.abs(follow(seed=1).fitted - found.fitted).max() > 1e-3


def test_blocks_of_neurons_change_nothing(follow):
    """Sums in another order may be rounded to other steps: both runs are more accurate than what is asked of them."""
    blocked, found = (follow(memory=memory, accuracy=1e-7) for memory in (6 * 2 * 32 * 4 * 8 / 4, None))
    assert blocked.stats["blocks"] == 4 and found.stats["blocks"] == 1
    for name in ("train_loss", "test_loss", "fitted", "predictions", "kernels"):
        np.testing.assert_allclose(getattr(blocked, name), getattr(found, name), atol=2e-6)
    # A neuron that is just crossing a kink has a slope of its own.
    np.testing.assert_allclose(blocked.gradient_kernels, found.gradient_kernels, atol=0.05)


def test_memory_of_test_points_drawn_again(follow):
    limit = ak.ANTK(ak.MLP(1, "relu"), decay=0.1)
    kept, again = (follow(limit=limit, initial="laplace", memory=memory) for memory in (None, 800))
    np.testing.assert_allclose(kept.predictions, again.predictions, atol=2e-5)


def test_single_precision(follow):
    rough, found = (follow(precision=precision, accuracy=1e-4) for precision in ("float32", "float64"))
    for name in ("train_loss", "test_loss", "fitted", "predictions"):
        np.testing.assert_allclose(getattr(rough, name), getattr(found, name), atol=3e-4)
    assert rough.stats["precision"] == "float32"


def test_read_only(found):
    for name in FIELDS:
        with pytest.raises(ValueError, match="read-only"):
            getattr(found, name)[...] = 0
    with pytest.raises(ValueError, match="read-only"):
        copy.deepcopy(found).fitted[...] = 0


def test_save_and_load(found, tmp_path):
    path = tmp_path / "trajectory.safetensors"
    found.save(path)
    again = load(path)
    assert isinstance(again, Trajectory) and again.limit == found.limit and again.stats == found.stats
    same(again, found)
    for mine, theirs in zip(again.density(1.0, 1, 2), found.density(1.0, 1, 2), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_save_and_load_without_the_optional(follow, tmp_path):
    bare = follow(X_test=None, y_test=None, keep=False, replicas=1)
    assert bare.test_loss is None and bare.predictions is None and bare.weights is None
    assert np.isnan(bare.train_loss_errors).all()
    bare.save(tmp_path / "bare")
    again = load(tmp_path / "bare")
    assert again.predictions is None and again.weights is None
    np.testing.assert_array_equal(again.train_loss, bare.train_loss)
    with pytest.raises(ValueError, match="keep=True"):
        bare.density(0.0, 1, 0)
    unlabelled = follow(y_test=None)
    assert unlabelled.test_loss is None and unlabelled.predictions is not None


def test_files_that_do_not_fit_are_refused(found, tmp_path):
    path = tmp_path / "trajectory.safetensors"
    found.save(path)
    arrays, header = files.read(path, "adakern-trajectory")
    kept = {k: v for k, v in header.items() if k not in ("format", "format_version", "version")}
    for name in ("fitted", "kernels", "weights", "prediction_errors", "basis"):
        files.write(path, "adakern-trajectory", {**arrays, name: arrays[name][..., 1:]}, kept)
        with pytest.raises(ak.FileFormatError, match="do not fit together"):
            load(path)


def test_density(found, points):
    values, weights = found.density(0.3, 1, 1)
    assert values.shape == weights.shape == (64,) and weights.sum() == pytest.approx(1)
    np.testing.assert_allclose(weights @ np.maximum(values, 0) ** 2, found.kernels[1, 1, 1], rtol=1e-5)
    for arguments, message in (
        ((0.5, 1, 0), r"one of the times of the trajectory \(0, 0.3, 1, 2\)"),
        ((0.3, 2, 0), "layer must be 1"),
        ((0.3, 0, 0), "layer must be at least 1"),
        ((0.3, 1, 4), "point must be at most 3"),
    ):
        with pytest.raises(ValueError, match=message):
            found.density(*arguments)


@pytest.mark.parametrize("stretches", [1, 3])
def test_a_run_goes_on_from_its_checkpoint(found, follow, tmp_path, monkeypatch, stretches):
    path = tmp_path / "checkpoint"
    plain, count = following.Task._stretch, 0

    def interrupted(self, now):
        nonlocal count
        count += 1
        if count > stretches:
            raise KeyboardInterrupt
        return plain(self, now)

    monkeypatch.setattr(following, "_CALL", 3)  # stops between times too
    monkeypatch.setattr(following.Task, "_stretch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        follow(checkpoint=path)
    assert path.exists()
    monkeypatch.setattr(following.Task, "_stretch", plain)
    with pytest.raises(ValueError, match="another settings"):
        follow(checkpoint=path, seed=3)
    same(follow(checkpoint=path), found)
    assert not path.exists()


def test_a_checkpoint_is_written_when_it_is_due(follow, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "SECONDS", 0.0)
    written = []
    monkeypatch.setattr(checkpoints.Checkpoint, "save", lambda self, content: written.append(content))
    follow(checkpoint=tmp_path / "checkpoint")
    assert len(written) >= len(TIMES)


def test_failure_is_raised_or_recorded(follow, found, monkeypatch):
    monkeypatch.setattr(following, "_MOST_STEPS", 12)
    monkeypatch.setattr(following, "_CALL", 4)
    with pytest.raises(ak.ConvergenceError, match="steps led to t = .*larger accuracy") as caught:
        follow()
    partial = follow(throw=False)
    assert not partial.converged and "FAILED" in repr(partial)
    assert 0 < len(partial.times) < len(TIMES) and caught.value.result.status == partial.status
    np.testing.assert_array_equal(partial.fitted, found.fitted[: len(partial.times)])
    nothing = follow(throw=False, times=[1.9])
    assert nothing.times.shape == (0,) and nothing.fitted.shape == (0, 4) and nothing.kernels.shape == (0, 4, 4)
    with pytest.raises(ValueError, match="none was"):
        nothing.density(1.9, 1, 0)


@pytest.mark.parametrize(
    "changed, error, message",
    [
        ({"limit": ak.NTK(ak.MLP(1))}, TypeError, "limit must be an ANTK"),
        ({"limit": ak.ANTK(ak.CNN(2, window=2))}, NotImplementedError, "CNNs with one hidden layer"),
        ({"limit": ak.ANTK(ak.CNN(1, window=2))}, ValueError, "X must be 4-D"),
        ({"limit": ak.ANTK(ak.MLP(1), richness=0.0)}, ValueError, "richness must be greater than 0"),
        ({"limit": ak.ANTK(ak.MLP(1), loss="softmax")}, ValueError, "one-hot"),
        ({"times": []}, ValueError, "at least one number"),
        ({"times": [1.0, 0.5]}, ValueError, "times must increase"),
        ({"times": [1.0, 1.0]}, ValueError, "times must increase"),
        ({"times": [-1.0, 0.5]}, ValueError, "times must increase from 0"),
        ({"times": [0.0, np.inf]}, ValueError, "times must be finite"),
        ({"neurons": 31}, ValueError, "neurons must be even"),
        ({"neurons": 0}, ValueError, "neurons must be at least 2"),
        ({"replicas": 0}, ValueError, "replicas must be at least 1"),
        ({"initial": "cauchy"}, ValueError, "initial must be one of"),
        ({"accuracy": 0.0}, ValueError, "accuracy must be greater than 0"),
        ({"accuracy": 0.5}, ValueError, "accuracy must be between"),
        ({"accuracy": 1e-7, "precision": "float32"}, ValueError, "accuracy must be between"),
        ({"precision": "float16"}, ValueError, "precision must be one of"),
        ({"X_test": None}, ValueError, "y_test must come with X_test"),
        ({"X_test": np.ones((3, 2))}, ValueError, "X_test must have points of shape"),
        ({"y_test": np.ones((3, 2))}, ValueError, "as many outputs as y"),
        ({"y_test": np.ones(2)}, ValueError, "one row per point"),
        ({"seed": -1}, ValueError, "seed must be at least 0"),
        ({"memory": 0}, ValueError, "memory must be greater than 0"),
        ({"checkpoint": "/nowhere/at/all"}, FileNotFoundError, "does not exist"),
    ],
)
def test_bad_input(follow, changed, error, message):
    with pytest.raises(error, match=message):
        follow(**changed)


def test_too_large_is_refused(follow):
    with pytest.raises(ak.TooLargeError, match="fewer neurons"):
        follow(neurons=2**40)
