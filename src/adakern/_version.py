"""The version, in the one place that packaging, files and `--version` read it from."""

__version__ = "0.1.0"
