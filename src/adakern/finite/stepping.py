"""Bare Langevin steps, for timing: what `langevin` does between two looks at its results."""

from __future__ import annotations

from typing import Any

import numpy as np

from adakern.finite.inputs import read
from adakern.finite.record import Stride
from adakern.finite.run import Settings
from adakern.finite.sampling import Plan, Task
from adakern.networks import Network


class Stepper:
    """A network started from its prior, ready to be advanced. Used inside `precision.scope`."""

    def __init__(
        self, network: Network, X: np.ndarray, y: np.ndarray, *, width: int, matmul: str = "highest", replicas: int = 1
    ) -> None:
        settings = Settings(
            kind="langevin",
            width=width,
            richness=1.0,
            decays=(1.0,) * (network.depth + 1),
            beta=50.0,
            parameterization="mean-field",
            loss="squared",
            centred=False,
            initial="normal",
            replicas=replicas,
            seed=0,
            precision="float32",
            matmul=matmul,
        )
        plan = Plan("baoab", time=1.0, burn_in=0.5, friction=2.0, step=None, snapshots=1, tolerance=0.05)
        self._task = Task(network, read(network, X, y, "squared", None, None), settings, plan)

    def advance(self, step: float, leap: int, blocks: int) -> Any:
        """The state after `blocks` blocks of `leap` steps."""
        return self._task.advance(self._task.record.state, Stride(step, leap, blocks), 2.0)[0].weights
