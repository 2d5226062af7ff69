"""Runs in files, and back."""

from __future__ import annotations

from os import PathLike
from typing import Any

import numpy as np

from adakern import files, networks
from adakern.finite.run import Run, Settings

FORMAT = "adakern-run"

_STACKS = ("kernels", "kernel_errors", "weights", "initial_weights")
_OPTIONAL = ("spread", "test_times", "test_losses", "test_predictions", "test_errors", "test_spread", "basis")
_ARRAYS = ("X", "y", "fitted", "fitted_errors", "times", "replica_losses", "sample_times", "sample_replicas", "fades")


def save(run: Run, path: str | PathLike[str]) -> None:
    """Write a run to a safetensors file."""
    files.write(path, FORMAT, *_pack(run))


def _pack(run: Run) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    arrays = {name: getattr(run, name) for name in (*_ARRAYS, *_OPTIONAL) if getattr(run, name) is not None}
    lengths: dict[str, int | None] = {}
    for name in _STACKS:
        stack = getattr(run, name)
        lengths[name] = None if stack is None else len(stack)
        arrays.update({f"{name}.{i}": array for i, array in enumerate(stack or ())})
    header = {
        "network": networks.describe(run.network),
        "settings": {**run.settings.__dict__, "decays": list(run.settings.decays)},
        "stacks": lengths,
        "converged": run.converged,
        "status": run.status,
        "stats": run.stats,
    }
    return arrays, header


def load(path: str | PathLike[str], *, activation: Any = None) -> Run:
    """Read a run that `Run.save` wrote.

    Args:
        path: the file.
        activation: the callable of a network whose activation has no name of its own; files hold no code.
    """
    arrays, header = files.read(path, FORMAT)
    with files.complaints(path):
        values: dict[str, Any] = {name: arrays[name] for name in _ARRAYS}
        values.update({name: arrays.get(name) for name in _OPTIONAL})
        for name in _STACKS:
            length = header["stacks"][name]
            values[name] = None if length is None else tuple(arrays[f"{name}.{i}"] for i in range(length))
        numbers = {**header["settings"], "decays": tuple(header["settings"]["decays"])}
        run = Run(
            network=networks.recognise(header["network"], activation),
            settings=Settings(**numbers),
            converged=header["converged"],
            status=header["status"],
            stats=header["stats"],
            **values,
        )
        _check_shapes(run)
        return run


def _check_shapes(run: Run) -> None:
    """Refuse arrays that do not belong together."""
    net, points, samples = run._model, len(run.X), len(run.sample_times)
    rank = run._coordinates.rank
    wanted = net.shapes(rank)
    sites = [
        1 if layer == net.depth - 1 or not net.convolutional else net.positions[layer] for layer in range(net.depth)
    ]
    sizes = [(points * count) ** 2 for count in sites]
    if (
        [w.shape for w in run.weights] != [(samples, *shape) for shape in wanted]
        or [k.size for k in run.kernels] != sizes
        or [k.shape for k in run.kernel_errors] != [k.shape for k in run.kernels]
        or any(len(array) != points for array in (run.y, run.fitted, run.fitted_errors))
        or len(run.sample_replicas) != samples
        or len(run.fades) != samples
        or len(run.times) != len(run.replica_losses)
    ):
        raise ValueError("its arrays do not fit together")
