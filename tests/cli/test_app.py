"""The program as a whole: help, version, examples, and what is installed."""

from __future__ import annotations

import shlex

import pytest
import typer

import adakern as ak
from adakern.cli import app
from adakern.cli.output import plain

COMMANDS = ["demo", "fit", "predict", "info", "bench lazy", "bench networks", "bench truth", "bench adaptive"]


def test_alone_it_shows_help(adakern):
    result = adakern("")
    assert result.exit_code == 0
    assert all(name.split()[0] in result.stdout for name in COMMANDS)


def test_version(adakern):
    assert adakern("--version").stdout == f"adakern {ak.__version__}\n"


def test_unknown_options_and_commands(adakern):
    assert adakern("fit --colour red").exit_code == 2
    assert adakern("paint").exit_code == 2


def command(name):
    found = typer.main.get_command(app)
    for part in name.split():
        found = found.commands[part]
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_an_example_that_parses(adakern, name):
    example = command(name).epilog.removeprefix("Example: ")
    shown = " ".join(adakern(f"{name} --help").stdout.split())
    assert shown.endswith(f"Example: {example}")
    words = shlex.split(example)
    assert words[: 1 + len(name.split())] == ["adakern", *name.split()]
    context = command(name).make_context(name, words[1 + len(name.split()) :])
    assert context.params


def test_the_examples_run_one_after_another(problem, adakern):
    for name in ("fit", "info", "predict", "info"):
        line = command(name).epilog.removeprefix("Example: adakern ")
        assert adakern(line).exit_code == 0, line
    assert (problem.folder / "predictions.csv").read_text().startswith("f,variance\n")


def test_info_without_a_file(adakern, adakern_json):
    facts = adakern_json("info")
    assert facts["adakern"] == ak.__version__
    assert set(facts["limits"]) >= {"NNGP", "NNGPK", "NTK", "ANBK"}
    assert facts["activations"] == list(ak.activations.NAMES)
    assert all(callable(getattr(ak.datasets, name)) for name in facts["datasets"])
    assert "relu" in adakern("info").stdout


def test_json_has_no_nan():
    import numpy as np

    given = {"a": float("nan"), "b": [np.float64("inf"), np.int64(3)], "c": {"d": np.array([1.0, np.nan])}, "e": True}
    assert plain(given) == {"a": None, "b": [None, 3], "c": {"d": [1.0, None]}, "e": True}
