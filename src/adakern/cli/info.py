"""`adakern info`: what is in a solution file, or what is installed."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Annotated, Any

import typer

from adakern._version import __version__
from adakern.cli.describe import describe, describe_run, labelled
from adakern.cli.output import print_json, print_pairs

EXAMPLE = "adakern info run.safetensors"


def run(
    solution: Annotated[
        Path | None, typer.Argument(help="A file that 'adakern fit', Solution.save or Run.save wrote.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what a file of a solution or of finite-width networks holds; without one, what is installed and what it can do."""
    if solution is None:
        facts = installed()
        pairs, title = facts, f"adakern {__version__}"
    else:
        from adakern.loading import load
        from adakern.solution import Solution

        held = load(solution)
        if isinstance(held, Solution):
            facts = describe(held, solution)
            pairs, title = {**labelled(facts), "version": facts["version"], **facts["stats"]}, "Solution"
        else:
            facts = describe_run(held, solution)
            pairs, title = {**facts, **facts["settings"], **facts["stats"]}, "Networks of finite width"
            pairs = {
                name: value for name, value in pairs.items() if name not in ("settings", "stats") and value is not None
            }
    if as_json:
        print_json(facts)
    else:
        print_pairs(pairs, title)


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
