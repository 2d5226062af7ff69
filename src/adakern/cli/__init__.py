"""The command line, `adakern`: one command a file, heavy imports inside the commands."""

from adakern.cli.app import app, main

__all__ = ["app", "main"]
