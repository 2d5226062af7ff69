"""What goes wrong becomes one line on standard error and an exit code; a bug keeps its traceback."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import typer

from adakern.cli.output import print_json
from adakern.errors import AdakernError

FAILED = 2
INTERRUPTED = 130  # what a shell reports for a program ended by Ctrl-C

EXPECTED = (ValueError, TypeError, NotImplementedError, OSError, MemoryError, AdakernError)


def one_line(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command so that expected exceptions end it with one line, `adakern: ...`.

    With `as_json` among its arguments and set, standard output gets `{"error": "..."}` as well.
    """

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt:
            _report("interrupted", kwargs)
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            raise
        except EXPECTED as error:
            _report(sentence(error), kwargs)
            raise typer.Exit(FAILED) from error

    return wrapped


def sentence(error: BaseException) -> str:
    """The message of an exception on one line, without an operating system's error number."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def warn(message: str) -> None:
    typer.echo(f"adakern: warning: {message}", err=True)


def _report(message: str, arguments: dict[str, Any]) -> None:
    typer.echo(f"adakern: {message}", err=True)
    if arguments.get("as_json"):
        print_json({"error": message})
