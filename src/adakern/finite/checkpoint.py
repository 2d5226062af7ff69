"""What identifies a run of a network of finite width, and what changes along it, for its checkpoints."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, Self

from adakern import files, networks
from adakern._version import __version__
from adakern.averages import Stream
from adakern.finite.inputs import Inputs
from adakern.networks import Network


def identity(network: Network, settings: Any, plan: Any, data: Inputs) -> dict[str, Any]:
    """Everything that determines a run: `settings` and `plan` are dataclasses of plain values."""
    return {
        "network": networks.describe(network),
        "settings": asdict(settings),
        "plan": asdict(plan),
        "data": files.digest(data.X, data.y, data.X_test, data.y_test),
        "version": __version__,
    }


class Recorded:
    """What changes along a run, a dataclass. A stretch of work goes on with a copy, which takes the record's place when the stretch is complete: an interrupt finds the record whole."""

    def copy(self) -> Self:
        """A record of its own; arrays are shared, and none is ever written to."""
        mutable: dict[str, Any] = {}
        for name, value in self.__dict__.items():
            if isinstance(value, list):
                mutable[name] = list(value)
            elif isinstance(value, dict):
                mutable[name] = {k: v.copy() if isinstance(v, Stream) else v for k, v in value.items()}
        return replace(self, **mutable)  # type: ignore[type-var]
