"""Files: what comes back is what was written, and nothing else comes back."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

import adakern as ak
from adakern import files

X = np.array([[1.0, 0.5], [-0.3, 2.0], [0.7, -1.0]])
Y = np.array([1.0, -1.0, 0.5])


@pytest.fixture(scope="module")
def small():
    return ak.solve(ak.NTK(ak.MLP(1, "relu"), ridge=0.1), X, Y)


@pytest.fixture
def saved(small, tmp_path):
    path = tmp_path / "run.safetensors"
    small.save(path)
    return path


def same(first, second):
    for field in dataclasses.fields(first):
        a, b = getattr(first, field.name), getattr(second, field.name)
        if field.name == "stats" or not isinstance(a, (tuple, np.ndarray)):
            assert a == b, field.name
            continue
        many = isinstance(a, tuple)
        for left, right in zip(a if many else (a,), b if many else (b,), strict=True):
            assert left.dtype == right.dtype and left.shape == right.shape, field.name
            assert left.tobytes() == right.tobytes(), field.name
            assert not right.flags.writeable


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("y", [Y, np.stack([Y, -Y], axis=1)], ids=["one output", "two outputs"])
@pytest.mark.parametrize(
    "limit",
    [
        ak.NNGP(ak.MLP(1, "relu"), beta=20.0, decay=(1.0, 2.0)),
        ak.NNGPK(ak.MLP(2, "erf"), decay=0.5),
        ak.NTK(ak.MLP(1, "relu"), ridge=0.1),
        ak.ANBK(ak.MLP(1, "erf"), richness=0.0),
    ],
    ids=lambda limit: limit.kind,
)
def test_identity(limit, y, precision, tmp_path):
    solution = ak.solve(limit, X, y, precision=precision, seed=3)
    solution.save(tmp_path / "run.safetensors")
    loaded = ak.load(tmp_path / "run.safetensors")
    same(solution, loaded)
    np.testing.assert_array_equal(loaded.predict(X + 0.1), solution.predict(X + 0.1))


@pytest.mark.long
def test_identity_of_a_sampled_solution(tmp_path):
    solution = ak.solve(ak.ANBK(ak.MLP(1, "erf"), decay=(1.0, 2.0)), X, Y, particles=64, tolerance=0.5, throw=False)
    solution.save(tmp_path / "run.safetensors")
    loaded = ak.load(tmp_path / "run.safetensors")
    same(solution, loaded)
    assert len(loaded.draws) == 1 and loaded.duals is not None
    for found, expected in zip(loaded.predict(X, return_std=True), solution.predict(X, return_std=True), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_an_activation_without_a_name_is_passed_at_load(tmp_path):
    limit = ak.NNGPK(ak.MLP(1, jax.nn.silu))
    solution = ak.solve(limit, X, Y)
    path = tmp_path / "run.safetensors"
    solution.save(path)
    with pytest.raises(
        ValueError, match=r"activation 'silu' is a function .* pass it with load\(path, activation=...\)"
    ):
        ak.load(path)
    loaded = ak.load(path, activation=jax.nn.silu)
    assert loaded.limit == limit
    np.testing.assert_array_equal(loaded.predict(X + 0.1), solution.predict(X + 0.1))


def test_a_function_that_borrows_a_name_is_not_taken_for_it(tmp_path):
    def linear(h):
        return 2 * h

    ak.solve(ak.NNGPK(ak.MLP(1, linear)), X, Y).save(tmp_path / "run")
    with pytest.raises(ValueError, match="pass it with load"):
        ak.load(tmp_path / "run")


def test_truncated_at_many_lengths(saved, tmp_path):
    whole = saved.read_bytes()
    for length in sorted({0, 1, 7, 8, 9, 50, len(whole) - 1, *range(0, len(whole), 37)}):
        cut = tmp_path / "cut.safetensors"
        cut.write_bytes(whole[:length])
        with pytest.raises(ak.FileFormatError, match="is not a whole safetensors file"):
            ak.load(cut)


def test_flipped_bytes(saved, tmp_path):
    """Every byte of the file, with a few of its possible changes: each must be noticed."""
    whole = saved.read_bytes()
    other, rng = tmp_path / "flipped.safetensors", np.random.default_rng(0)
    unnoticed, messages = [], set()
    for position in range(len(whole)):
        for flip in {1 << int(rng.integers(8)), int(rng.integers(1, 256))}:
            changed = bytearray(whole)
            changed[position] ^= flip
            if whole[position] == 0x20 and changed[position] in b"\t\n\r":
                continue  # one blank of the header's padding for another is immaterial
            other.write_bytes(changed)
            try:
                ak.load(other)
                unnoticed.append((position, flip))
            except ak.FileFormatError as error:
                messages.add(str(error).removeprefix(str(other))[:30])
    assert unnoticed == []
    assert messages <= {
        " is not a whole safetensors file (truncated"[:30],
        " was altered after it was written"[:30],
        " is a safetensors file, but not one"[:30],
    }


def test_extra_bytes_at_the_end(saved):
    saved.write_bytes(saved.read_bytes() + b"\0")
    with pytest.raises(ak.FileFormatError, match="is not a whole safetensors file"):
        ak.load(saved)


def test_foreign_files(tmp_path):
    path = tmp_path / "foreign.safetensors"
    save_file({"weights": np.zeros(3)}, path)
    with pytest.raises(ak.FileFormatError, match="is a safetensors file, but not one that adakern wrote"):
        ak.load(path)
    for content in (b"", b"hello\n", b"{}", b"\x89PNG\r\n\x1a\n" + bytes(100), b"\xff" * 64):
        path.write_bytes(content)
        with pytest.raises(ak.FileFormatError, match="is not a whole safetensors file"):
            ak.load(path)


def rewritten(path, change):
    """The file again with an altered header and a digest that fits: the work of another program, not of chance."""
    arrays, header = files.read(path, "adakern-solution")
    change(header)
    text = json.dumps(header, sort_keys=True)
    save_file(arrays, path, metadata={"adakern": text, "sha256": files._digest(text, arrays)})


@pytest.mark.parametrize(
    "change, message",
    [
        (
            lambda h: h.update(format_version=99, version="9.0"),
            "written by adakern 9.0 in a newer format; upgrade adakern",
        ),
        (lambda h: h.update(format="adakern-checkpoint"), "holds 'adakern-checkpoint', not 'adakern-solution'"),
        (lambda h: h.pop("limit"), "ill-formed header"),
        (lambda h: h.pop("format"), "ill-formed header"),
        (lambda h: h.pop("stats"), "ill-formed header"),
        (lambda h: h["limit"].update(kind="ANTK2"), "ill-formed header"),
        (lambda h: h["limit"]["numbers"].update(colour=3), "ill-formed header"),
        (lambda h: h["stacks"].update(kernels=3), "ill-formed header"),
        (lambda h: h["limit"]["network"].update(kind="RNN"), "network kind must be 'MLP' or 'CNN'"),
        (lambda h: h["limit"]["network"].update(activation="swish"), "activation must be one of"),
        (lambda h: h["limit"]["numbers"].update(ridge=-1.0), "ridge must be 0 or greater"),
    ],
    ids=range(11),
)
def test_headers_of_another_kind(change, message, saved):
    rewritten(saved, change)
    with pytest.raises(ak.FileFormatError, match=message):
        ak.load(saved)


def test_arrays_that_do_not_fit_together(saved):
    """Right digest, wrong shapes: twelve coefficients for three points can predict nothing."""
    arrays, header = files.read(saved, "adakern-solution")
    arrays["coefficients"] = np.zeros(12)
    text = json.dumps(header, sort_keys=True)
    save_file(arrays, saved, metadata={"adakern": text, "sha256": files._digest(text, arrays)})
    with pytest.raises(ak.FileFormatError, match="do not fit together"):
        ak.load(saved)


def test_paths(small, tmp_path):
    with pytest.raises(FileNotFoundError, match="the folder .*nowhere does not exist; make it first"):
        small.save(tmp_path / "nowhere" / "run.safetensors")
    with pytest.raises(IsADirectoryError, match="is a folder; give the name of a file"):
        small.save(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no file .*missing"):
        ak.load(tmp_path / "missing.safetensors")
    with pytest.raises(OSError, match=str(tmp_path)):
        ak.load(tmp_path)
    small.save(str(tmp_path / "by name.safetensors"))
    same(small, ak.load(str(tmp_path / "by name.safetensors")))


def test_overwriting(small, saved):
    saved.write_bytes(b"something else")
    small.save(saved)
    same(small, ak.load(saved))
    assert os.listdir(saved.parent) == [saved.name]


def test_a_failing_write_leaves_nothing_behind(small, saved, monkeypatch):
    before = saved.read_bytes()

    def fail(arrays, path, metadata):
        with open(path, "wb") as file:
            file.write(b"half of it")
        raise OSError("no space left on device")

    monkeypatch.setattr(files, "save_file", fail)
    for name in (saved.name, "new.safetensors"):
        with pytest.raises(OSError, match="no space left on device"):
            small.save(saved.parent / name)
    assert os.listdir(saved.parent) == [saved.name]
    assert saved.read_bytes() == before


def test_permissions_are_those_of_an_ordinary_file(saved):
    plain = saved.parent / "plain"
    plain.write_bytes(b"")
    assert saved.stat().st_mode == plain.stat().st_mode


def test_loading_needs_no_pickle(saved):
    """A process in which unpickling is forbidden loads the file."""
    code = (
        "import pickle, sys\n"
        "import adakern as ak\n"
        "def refuse(*a, **k): raise AssertionError('unpickled')\n"
        "pickle.load = pickle.loads = pickle.Unpickler = refuse\n"
        "print(len(ak.load(sys.argv[1]).X))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(saved)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "3\n"
