"""What the commands print and write: JSON without NaN, tables, files that appear whole or not at all."""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer


def print_json(data: Mapping[str, Any]) -> None:
    """One JSON object on standard output."""
    typer.echo(json.dumps(plain(data), allow_nan=False))


def plain(value: Any) -> Any:
    """The value in JSON's own types; numbers that are not finite become None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # numpy's scalars and arrays
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def print_pairs(pairs: Mapping[str, Any], title: str) -> None:
    """Names and values in two columns."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs.items():
        table.add_row(name.replace("_", " "), Text(_shown(value)))
    console = Console(highlight=False)
    console.print(Text(title, style="bold cyan"))
    console.print(table)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shown(item)}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(_shown(item) for item in value)
    return str(value)


def show_progress(no_progress: bool) -> bool:
    """Bars go to standard error, and only to a person's terminal."""
    return not no_progress and sys.stderr.isatty()


def check_target(path: Path, *sources: Path) -> None:
    """Refuse an output path that cannot be written, or that would overwrite an input, before any work starts."""
    if path.is_dir():
        raise IsADirectoryError(f"--out must name a file, but {path} is a folder")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"--out must lie in an existing folder, but there is no {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(f"--out must lie in a folder that may be written, but {path.parent} may not")
    for source in sources:
        if path.exists() and source.exists() and path.samefile(source):
            raise ValueError(f"--out must not be one of the inputs, but {path} is")


def check_folder(out: Path) -> None:
    """Refuse a folder that is none or cannot be made, before any work starts."""
    for place in (out, *out.parents):
        if place.exists():
            if not place.is_dir():
                raise NotADirectoryError(f"--out must name a folder, but {place} is a file")
            if not os.access(place, os.W_OK):
                raise PermissionError(f"--out must name a folder that may be written, but {place} may not")
            return


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` to write to, which takes its place at the end; nothing is left if writing fails."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)  # mkstemp makes it private; an ordinary file is not
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
