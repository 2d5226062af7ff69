"""The exceptions that adakern raises on its own account.

Bad arguments raise the built-in `ValueError` and `TypeError`, with a sentence that names the argument
and what it may be. The classes here mark what is no argument's fault.
"""


class AdakernError(Exception):
    """Base of every exception that belongs to adakern."""


class ConvergenceError(AdakernError, RuntimeError):
    """A solver stopped before its answer met the tolerance; the message says what to change.

    Attributes:
        result: the answer as far as it came, where there is one, else None: long work is not lost.
    """

    def __init__(self, message: str, result: object = None) -> None:
        super().__init__(message)
        self.result = result


class FileFormatError(AdakernError, ValueError):
    """A file is truncated, foreign, altered, or from a version this one cannot read."""


class TooLargeError(AdakernError, MemoryError):
    """The problem needs more memory than it may use; raised before any work starts."""
