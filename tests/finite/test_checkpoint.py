"""Interrupted runs go on as if nothing had happened, bit for bit; checkpoints of other runs, and broken ones, are refused."""

from __future__ import annotations

import numpy as np
import pytest

import adakern as ak
from adakern import checkpoints
from adakern.finite import sampler
from adakern.finite import training as flows


def interrupt(monkeypatch, owner, name, calls):
    """Let `name` work `calls` times and then be interrupted, as if by the keyboard."""
    original, count = getattr(owner, name), iter(range(10**6))

    def limited(*args, **kwargs):
        if next(count) >= calls:
            raise KeyboardInterrupt("by hand")
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, limited)


def resumed(run, path, monkeypatch, owner, name, calls, **options):
    """Interrupt a run after so many calls, check that it left a file, and let another process finish it."""
    with monkeypatch.context() as patch:
        interrupt(patch, owner, name, calls)
        with pytest.raises(KeyboardInterrupt, match="by hand"):
            run(checkpoint=path, **options)
    assert path.exists()
    finished = run(checkpoint=path, **options)
    assert not path.exists()
    return finished


def identical(one, other):
    assert len(one.kernels) == len(other.kernels)
    names = ("kernels", "kernel_errors", "weights")
    pairs = [(name, a, b) for name in names for a, b in zip(getattr(one, name), getattr(other, name), strict=True)]
    names = ("losses", "times", "fitted", "fitted_errors", "sample_times", "test_losses", "test_predictions", "fades")
    pairs += [(name, getattr(one, name), getattr(other, name)) for name in names]
    for name, a, b in pairs:
        np.testing.assert_array_equal(a, b, err_msg=name)
    for name in ("steps", "step"):
        assert one.stats[name] == other.stats[name], name


@pytest.fixture(scope="module")
def flow_options(points):
    return {"times": [0.0, 0.5], "X_test": points[2], "y_test": points[3]}


@pytest.fixture(scope="module")
def descended(flow, flow_options):
    return flow(method="descent", step=0.01, **flow_options)


@pytest.mark.parametrize("calls", [0, 1, 5, 40])
def test_langevin(sample, sampled, tmp_path, monkeypatch, calls):
    """In the burn-in (16 stretches) and among the averages."""
    identical(resumed(sample, tmp_path / "c", monkeypatch, sampler, "advance", calls), sampled)


def test_langevin_within_a_stretch_of_the_burn_in(sample, tmp_path, monkeypatch):
    """Three blocks a stretch are done in two calls; an interrupt between them goes back to the start of the stretch."""
    options = {"burn_in": 16 * 0.28, "time": 16 * 0.28 + 32 * 0.19}
    whole = sample(**options)
    identical(resumed(sample, tmp_path / "c", monkeypatch, sampler, "advance", 7, **options), whole)


def test_langevin_in_replicas(sample, tmp_path, monkeypatch):
    whole = sample(replicas=4)
    identical(resumed(sample, tmp_path / "c", monkeypatch, sampler, "advance", 20, replicas=4), whole)


def test_langevin_interrupted_twice(sample, sampled, tmp_path, monkeypatch):
    path = tmp_path / "c"
    for calls in (3, 30):
        with monkeypatch.context() as patch:
            interrupt(patch, sampler, "advance", calls)
            with pytest.raises(KeyboardInterrupt, match="by hand"):
                sample(checkpoint=path)
    identical(sample(checkpoint=path), sampled)


@pytest.mark.parametrize("calls", [0, 1, 33, 60])
def test_flow(flow, flowed, flow_options, tmp_path, monkeypatch, calls):
    identical(resumed(flow, tmp_path / "c", monkeypatch, flows, "_integrate", calls, **flow_options), flowed)


@pytest.mark.parametrize("calls", [0, 33])
def test_descent(flow, descended, flow_options, tmp_path, monkeypatch, calls):
    options = {"method": "descent", "step": 0.01, **flow_options}
    identical(resumed(flow, tmp_path / "c", monkeypatch, flows, "_descend", calls, **options), descended)


def test_momentum(flow, flow_options, tmp_path, monkeypatch):
    options = {"method": "momentum", "step": 0.01, **flow_options}
    identical(resumed(flow, tmp_path / "c", monkeypatch, flows, "_roll", 33, **options), flow(**options))


def test_flow_interrupted_while_recording(flow, descended, flow_options, tmp_path, monkeypatch):
    """After the weights have moved, and before their loss is known."""
    options = {"method": "descent", "step": 0.01, **flow_options}
    identical(resumed(flow, tmp_path / "c", monkeypatch, flows, "_look", 30, **options), descended)


def test_descent_interrupted_while_the_device_works(flow, descended, flow_options, tmp_path, monkeypatch):
    """Compiled code returns before its numbers are there, so that an interrupt mostly strikes where they are first looked at."""
    options, path = {"method": "descent", "step": 0.01, **flow_options}, tmp_path / "c"
    original, steps, count = flows._look, flows._descend, iter(range(10**6))
    begun = []

    def limited(*args):
        begun.append(next(count) >= 50)
        return steps(*args)

    def late(*args):
        if begun and begun[-1]:  # the first look at what the last call of `_descend` will have computed
            raise KeyboardInterrupt("by hand")
        return original(*args)

    with monkeypatch.context() as patch:
        patch.setattr(flows, "_descend", limited)
        patch.setattr(flows, "_look", late)
        with pytest.raises(KeyboardInterrupt, match="by hand"):
            flow(checkpoint=path, **options)
    identical(flow(checkpoint=path, **options), descended)


def test_centred_replicas_of_a_flow(flow, tmp_path, monkeypatch):
    options = {"method": "descent", "step": 0.02, "centred": True, "replicas": 2, "width": 4, "initial": "laplace"}
    whole = flow(**options)
    finished = resumed(flow, tmp_path / "c", monkeypatch, flows, "_descend", 40, **options)
    np.testing.assert_array_equal(finished.fitted, whole.fitted)
    np.testing.assert_array_equal(finished.replica_losses, whole.replica_losses)
    for a, b in zip(finished.initial_weights, whole.initial_weights, strict=True):
        np.testing.assert_array_equal(a, b)


def test_written_from_time_to_time(sample, sampled, tmp_path, monkeypatch):
    """A process that is killed outright leaves what it wrote last."""
    path = tmp_path / "c"
    monkeypatch.setattr(checkpoints, "SECONDS", 0.0)
    with monkeypatch.context() as patch:
        original, count = sampler.advance, iter(range(10**6))

        def killed(*args):
            if next(count) == 30:
                raise SystemExit("killed")  # no interrupt: nothing is written on the way out
            return original(*args)

        patch.setattr(sampler, "advance", killed)
        with pytest.raises(SystemExit, match="killed"):
            sample(checkpoint=path)
    assert path.exists()
    identical(sample(checkpoint=path), sampled)


def test_nothing_is_left_of_an_uninterrupted_run(flow, flowed, flow_options, tmp_path):
    identical(flow(checkpoint=tmp_path / "c", **flow_options), flowed)
    assert list(tmp_path.iterdir()) == []


def test_a_flow_without_labels_is_written_too(flow, tmp_path, monkeypatch):
    # TypeError, and nothing is written.
    options = {"y": np.zeros(5), "method": "descent", "step": 0.01}
    whole = flow(**options)
    finished = resumed(flow, tmp_path / "c", monkeypatch, flows, "_descend", 20, **options)
    np.testing.assert_array_equal(finished.fitted, whole.fitted)


@pytest.fixture
def interrupted(flow, tmp_path, monkeypatch):
    path = tmp_path / "c"
    with monkeypatch.context() as patch:
        interrupt(patch, flows, "_descend", 5)
        with pytest.raises(KeyboardInterrupt, match="by hand"):
            flow(checkpoint=path, method="descent", step=0.01)
    return path


def test_checkpoints_of_other_runs_are_refused(flow, sample, points, interrupted):
    y = points[1]
    before = interrupted.read_bytes()
    cases = {
        "settings": {"seed": 1},
        "plan": {"time": 3.0},
        "data": {"y": -y},
        "network": {"network": ak.MLP(1, "erf")},
        "settings, plan": {"seed": 1, "time": 3.0},
    }
    for what, changed in cases.items():
        with pytest.raises(
            ValueError, match=f"checkpoint .* belongs to a run with another {what}; delete it, or give another file"
        ):
            flow(checkpoint=interrupted, **{"method": "descent", "step": 0.01, **changed})
    with pytest.raises(ValueError, match="belongs to a run with another settings, plan"):
        sample(checkpoint=interrupted)
    assert interrupted.read_bytes() == before


def test_broken_checkpoints(flow, flowed, points, interrupted):
    options = {"method": "descent", "step": 0.01, "checkpoint": interrupted}
    whole = interrupted.read_bytes()
    for length in (0, 10, len(whole) // 2, len(whole) - 1):
        interrupted.write_bytes(whole[:length])
        with pytest.raises(ak.FileFormatError, match="is not a whole safetensors file"):
            flow(**options)
    changed = bytearray(whole)
    changed[-1] ^= 1
    interrupted.write_bytes(changed)
    with pytest.raises(ak.FileFormatError, match="was altered after it was written"):
        flow(**options)
    flowed.save(interrupted)
    with pytest.raises(ak.FileFormatError, match="holds 'adakern-run', not 'adakern-checkpoint'"):
        flow(**options)
    interrupted.write_bytes(whole)
    assert np.isfinite(flow(**options).fitted).all()


@pytest.mark.parametrize("name", ["flow", "sample"])
def test_paths_are_checked_before_work(name, request, tmp_path, monkeypatch):
    def work(*args, **kwargs):
        raise AssertionError("work was done")

    monkeypatch.setattr(flows, "_integrate", work)
    monkeypatch.setattr(sampler, "advance", work)
    run = request.getfixturevalue(name)
    with pytest.raises(FileNotFoundError, match="the folder .*nowhere does not exist; make it first"):
        run(checkpoint=tmp_path / "nowhere" / "c")
    with pytest.raises(IsADirectoryError, match="is a folder; give the name of a file"):
        run(checkpoint=tmp_path)
