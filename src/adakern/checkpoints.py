"""Checkpoints: what a long run has done so far, in one file, so that it can go on as if it had not stopped."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from adakern import files

FORMAT = "adakern-checkpoint"
SECONDS = 30.0  # between two writings

Content = tuple[dict[str, np.ndarray], dict[str, Any]]


class Checkpoint:
    """The file of one run. `identity` is everything that determines the run; a file of another run is refused."""

    def __init__(self, path: str | PathLike[str] | None, identity: dict[str, Any]) -> None:
        self._path = None if path is None else files.check_target(path)
        self._identity = json.loads(json.dumps(identity))  # as it looks when read back
        self._written = time.monotonic()

    def load(self) -> Content | None:
        """What an earlier run left, or None if there is no file."""
        if self._path is None or not self._path.exists():
            return None
        arrays, header = files.read(self._path, FORMAT)
        with files.complaints(self._path):
            theirs, content = dict(header["identity"]), dict(header["content"])
        names = [*self._identity, *(name for name in theirs if name not in self._identity)]
        differing = [name for name in names if theirs.get(name) != self._identity.get(name)]
        if differing:
            raise ValueError(
                f"checkpoint {self._path} belongs to a run with another {', '.join(differing)}; "
                "delete it, or give another file"
            )
        return arrays, content

    def save(self, content: Content) -> None:
        if self._path is not None:
            arrays, header = content
            files.write(self._path, FORMAT, arrays, {"identity": self._identity, "content": header})
            self._written = time.monotonic()

    def due(self) -> bool:
        return self._path is not None and time.monotonic() - self._written >= SECONDS

    @contextmanager
    def guarding(self, content: Callable[[], Content]) -> Iterator[Callable[[], None]]:
        """Yields what to call after each stretch of work; whatever breaks in writes the last finished stretch before it goes on its way."""

        def stretch() -> None:
            if self.due():
                self.save(content())

        try:
            yield stretch
        except BaseException:
            self.save(content())
            raise

    def remove(self) -> None:
        """The run is complete, and the file has served."""
        if self._path is not None:
            Path(self._path).unlink(missing_ok=True)
