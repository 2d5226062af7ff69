"""Progress bars on standard error, by rich; silent unless asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars


class Progress:
    """Shows a bar per piece of long work if `show`; otherwise costs nothing."""

    def __init__(self, show: bool = False) -> None:
        self._show = bool(show)

    @contextmanager
    def task(self, name: str, total: int) -> Iterator[Callable[..., None]]:
        """A bar of `total` parts; call what it yields after each part, with a note to show beside the bar."""
        if not self._show:
            yield lambda note="", parts=1: None
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
            identity = bars.add_task(name, total=total, note="")

            def advance(note: str = "", parts: int = 1) -> None:
                bars.update(identity, advance=parts, note=note)

            yield advance
