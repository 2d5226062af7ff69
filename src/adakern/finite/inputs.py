"""What a user passes to a run of finite-width networks, checked before work starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from adakern import checks, losses
from adakern.networks import Network


@dataclass(frozen=True)
class Inputs:
    """Training and test data; targets as columns, and as they were given."""

    X: np.ndarray
    y: np.ndarray  # (points, outputs)
    targets: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray  # zeros if there are none
    labelled: bool

    @property
    def several(self) -> bool:
        return self.targets.ndim == 2


def read(network: Network, X: Any, y: Any, loss: str, X_test: Any, y_test: Any) -> Inputs:
    """Check data for this network and loss."""
    if not isinstance(network, Network):
        raise TypeError(f"network must be an MLP or a CNN, but it is {network!r}")
    checks.choice("loss", loss, losses.NAMES)
    inputs = _small("X", checks.inputs("X", X, ndim=network.input_ndim))
    network.check_inputs(inputs.shape)
    targets = _targets("y", y, len(inputs), loss)
    columns = targets if targets.ndim == 2 else targets[:, None]
    if X_test is None:
        if y_test is not None:
            raise ValueError("y_test must come with X_test")
        tests, labels = inputs[:0], columns[:0]
    else:
        tests = _small("X_test", checks.inputs("X_test", X_test, ndim=network.input_ndim, like=inputs))
        labels = np.zeros((len(tests), columns.shape[1]))
        if y_test is not None:
            given = _targets("y_test", y_test, len(tests), loss)
            labels = given if given.ndim == 2 else given[:, None]
            if labels.shape[1] != columns.shape[1] or given.ndim != targets.ndim:
                raise ValueError(
                    f"y_test must have as many outputs as y, {targets.shape}, but it has shape {given.shape}"
                )
    return Inputs(inputs, columns, targets, tests, labels, y_test is not None)


def _small(name: str, array: np.ndarray) -> np.ndarray:
    if array.size and np.abs(array).max() > 1e9:
        raise ValueError(
            f"{name} must be of moderate size, but it reaches {np.abs(array).max():.2g}; rescale it to order one"
        )
    return array


def _targets(name: str, value: Any, points: int, loss: str) -> np.ndarray:
    return checks.labels(name, _small(name, checks.targets(name, value, points)), loss)
