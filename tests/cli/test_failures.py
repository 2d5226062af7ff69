"""What goes wrong: one line, exit code 2, nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from adakern.cli import fit as fit_command
from adakern.cli import predict as predict_command

FIT_FAILURES = {
    "missing.csv --limit ntk --out run.safetensors": "there is no 'missing.csv'",
    "train.txt --limit ntk --out run.safetensors": "must name a .npz or a .csv file",
    "nan.csv --limit ntk --out run.safetensors": r"finite number in row 2 .*column 'a', but it is missing",
    "words.csv --limit ntk --out run.safetensors": "encode them as numbers",
    "bare.npz --limit ntk --out run.safetensors": "has no targets",
    "train.csv --limit ntk --activation swish --out run.safetensors": "activation must be one of .*'swish'",
    "train.csv --limit nngp --decay 1,x --out run.safetensors": "decay must be a number, or several.*'1,x'",
    "train.csv --limit nngp --decay 1,2,3 --out run.safetensors": "decay must be one number or 2 of them",
    "train.csv --limit nngp --beta nan --out run.safetensors": "beta must be finite",
    "train.csv --limit nngp --depth 0 --out run.safetensors": "depth must be at least 1",
    "train.csv --limit ntk --richness 2 --out run.safetensors": "--richness has no meaning for ntk",
    "train.csv --limit nngp --particles 9 --out run.safetensors": "particles has no meaning for NNGP",
    "train.csv --limit ntk --target q --out run.safetensors": "target must name columns of train.csv.*'q'",
    "train.csv --limit ntk --out folder": "--out must name a file, but folder is a folder",
    "train.csv --limit ntk --out nowhere/run.safetensors": "there is no nowhere",
    "train.csv --limit ntk --out train.csv": "--out must not be one of the inputs",
    "train.csv --particles 8 --steps 1 --out run.safetensors": r"ANBK did not converge: .*\(--keep saves it as it is\)",
}

PREDICT_FAILURES = {
    "missing.safetensors test.csv --out p.csv": "there is no file missing.safetensors",
    "corrupt.safetensors test.csv --out p.csv": "is not a whole safetensors file",
    "run.safetensors missing.csv --out p.csv": "there is no 'missing.csv'",
    "run.safetensors other.csv --out p.csv": "must have the feature columns 'a', 'b', 'c', but it lacks 'c'",
    "run.safetensors two.npz --out p.csv": "must have the solution's 1 outputs as targets, but it has 2",
    "run.safetensors test.csv --out p.txt": r"--out must name a \.csv or a \.npz file",
    "run.safetensors test.csv --out folder.csv": "folder.csv is a folder",
    "run.safetensors test.csv --out test.csv": "--out must not be one of the inputs",
}


@pytest.fixture
def trouble(problem):
    """Files with something wrong in them, beside the good ones."""
    folder = problem.folder
    (folder / "train.txt").write_text("a,y\n1,2\n")
    (folder / "nan.csv").write_text("a,y\n1,2\nnan,3\n")
    (folder / "words.csv").write_text("a,y\n1,cat\n2,dog\n")
    (folder / "other.csv").write_text("a,b,d,label\n1,2,3,4\n")
    (folder / "corrupt.safetensors").write_bytes(b"no tensors here")
    np.savez(folder / "bare.npz", X=problem.X)
    np.savez(folder / "two.npz", X=problem.X_new, y=np.ones((5, 2)))
    (folder / "folder").mkdir()
    (folder / "folder.csv").mkdir()
    return problem


@pytest.mark.parametrize("arguments", FIT_FAILURES)
def test_fit_fails_with_one_line(trouble, adakern, arguments):
    check(trouble, adakern, f"fit {arguments}", FIT_FAILURES[arguments])


@pytest.mark.parametrize("arguments", PREDICT_FAILURES)
def test_predict_fails_with_one_line(trouble, adakern, arguments):
    assert adakern("fit train.csv --limit ntk --out run.safetensors").exit_code == 0
    check(trouble, adakern, f"predict {arguments}", PREDICT_FAILURES[arguments])


def check(problem, adakern, line, pattern):
    before = contents(problem.folder)
    result = adakern(line)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert_matches(result.stderr, rf"adakern: .*{pattern}")
    assert contents(problem.folder) == before
    told = adakern(f"{line} --json")
    assert told.exit_code == 2
    assert json.loads(told.stdout) == {"error": result.stderr.removeprefix("adakern: ").strip()}


def assert_matches(text, pattern):
    assert re.match(pattern, text), f"{text!r} does not match {pattern!r}"


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_info_of_a_corrupt_file(trouble, adakern):
    check(trouble, adakern, "info corrupt.safetensors", "corrupt.safetensors is not a whole safetensors file")


def test_keep_saves_what_did_not_converge(problem, adakern):
    result = adakern("fit train.csv --particles 8 --steps 1 --keep --json --out run.safetensors")
    assert result.exit_code == 0
    assert_matches(result.stderr, "adakern: warning: ANBK did not converge: ")
    assert json.loads(result.stdout)["converged"] is False
    assert "NO: " in adakern("info run.safetensors").stdout


def test_a_failing_write_leaves_the_old_file(problem, adakern, monkeypatch):
    assert adakern("fit train.csv --limit ntk --out run.safetensors").exit_code == 0
    assert adakern("predict run.safetensors test.csv --out p.csv").exit_code == 0
    before = contents(problem.folder)

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device", "p.csv")

    monkeypatch.setattr(predict_command.csv, "writer", full)
    result = adakern("predict run.safetensors test.csv --out p.csv")
    assert result.exit_code == 2 and result.stderr == "adakern: p.csv: No space left on device\n"
    assert contents(problem.folder) == before


@pytest.mark.parametrize("moment", ["solving", "writing"])
def test_interruption_exits_130_and_leaves_nothing(problem, adakern, monkeypatch, moment):
    def interrupt(*_args, **_kwargs):
        raise KeyboardInterrupt

    target = "adakern.solving.solve" if moment == "solving" else "adakern.files.save_file"
    monkeypatch.setattr(target, interrupt)
    before = contents(problem.folder)
    result = adakern("fit train.csv --limit ntk --out run.safetensors --json")
    assert result.exit_code == 130
    assert result.stderr == "adakern: interrupted\n"
    assert contents(problem.folder) == before


def test_a_bug_keeps_its_traceback(problem, adakern, monkeypatch):
    def bug(*_args):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(fit_command.data, "training", bug)
    result = adakern("fit train.csv --limit ntk --out run.safetensors")
    assert isinstance(result.exception, ZeroDivisionError)


def test_the_program_itself(trouble):
    """Exit codes and streams as a shell sees them."""
    good = shell("fit", "train.csv", "--limit", "ntk", "--out", "run.safetensors", "--json")
    assert good.returncode == 0 and good.stderr == ""
    assert json.loads(good.stdout)["limit"] == "NTK"
    bad = shell("fit", "nan.csv", "--limit", "ntk", "--out", "x.safetensors", "--json")
    assert bad.returncode == 2 and "Traceback" not in bad.stderr and bad.stderr.count("\n") == 1
    assert list(json.loads(bad.stdout)) == ["error"]


@pytest.mark.skipif(os.name != "posix", reason="sends a POSIX signal")
def test_ctrl_c_in_the_middle_of_a_solve(problem):
    before = contents(problem.folder)
    heeding = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # which jobs of a script do not
    command = f"{heeding}; from adakern.cli import main; print('ready', flush=True); main()"
    options = ["fit", "train.csv", "--tolerance", "1e-9", "--steps", "100000000", "--out", "run.safetensors"]
    with subprocess.Popen(
        [sys.executable, "-c", command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        stderr = ""
        try:
            for _ in range(20):  # an interrupt inside a callback of compiled code is lost, and a user presses again
                time.sleep(2.0)
                process.send_signal(signal.SIGINT)
                try:
                    _, stderr = process.communicate(timeout=4)
                    break
                except subprocess.TimeoutExpired:
                    continue
        finally:
            process.kill()
    assert process.returncode == 130
    assert stderr == "adakern: interrupted\n"
    assert contents(problem.folder) == before


def shell(*arguments):
    command = [sys.executable, "-m", "adakern", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
