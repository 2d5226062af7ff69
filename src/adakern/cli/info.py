"""`adakern info`: what is in a solution file, or what is installed."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Annotated, Any

import typer

from adakern._version import __version__
from adakern.cli.describe import describe, describe_run, describe_trajectory, labelled
from adakern.cli.output import print_json, print_pairs

EXAMPLE = "adakern info run.safetensors"


def run(
    solution: Annotated[
        Path | None,
        typer.Argument(help="A file that 'adakern fit', or the save of a Solution, Run or Trajectory wrote."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what a file of a solution, a trajectory or finite-width networks holds; without one, what is installed and what it can do."""
    if solution is None:
        facts = installed()
        pairs, title = facts, f"adakern {__version__}"
    else:
        from adakern.loading import load
        from adakern.solution import Solution
        from adakern.trajectories import Trajectory

        held = load(solution)
        if isinstance(held, Solution):
            facts = describe(held, solution)
            pairs, title = {**labelled(facts), "version": facts["version"], **facts["stats"]}, "Solution"
        elif isinstance(held, Trajectory):
            facts = describe_trajectory(held, solution)
            pairs, title = flat({**facts, **facts["numbers"], **facts["stats"]}), "Training over time"
        else:
            facts = describe_run(held, solution)
            pairs, title = flat({**facts, **facts["settings"], **facts["stats"]}), "Networks of finite width"
    if as_json:
        print_json(facts)
    else:
        print_pairs(pairs, title)


def flat(facts: dict[str, Any]) -> dict[str, Any]:
    """For reading: without the groups that were taken apart, and what is absent."""
    groups = ("settings", "numbers", "stats")
    return {name: value for name, value in facts.items() if name not in groups and value is not None}


def installed() -> dict[str, Any]:
    """Versions, devices, and the names that the library answers to."""
    import jax
    import numpy as np

    from adakern import activations, limits

    return {
        "adakern": __version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "devices": [str(device) for device in jax.devices()],
        "limits": [kind.kind for kind in limits.ALL],
        "activations": list(activations.NAMES),
        "datasets": ["mnist", "cifar10"],
    }
