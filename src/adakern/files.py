"""Files: arrays in safetensors, everything else in a JSON header, a digest over both. Never pickle."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from adakern._version import __version__
from adakern.errors import FileFormatError

FORMAT_VERSION = 1


def check_target(path: str | PathLike[str]) -> Path:
    """The path as one that a file can be written to, or an error before any work is done."""
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"the folder {target.parent} does not exist; make it first")
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder; give the name of a file")
    if not os.access(target.parent, os.W_OK):
        raise PermissionError(f"the folder {target.parent} may not be written to; give another one")
    return target


def write(path: str | PathLike[str], kind: str, arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
    """Write arrays and header as a file of this kind; the file appears whole or not at all."""
    target = check_target(path)
    whole = {"format": kind, "format_version": FORMAT_VERSION, "version": __version__, **header}
    text = json.dumps(whole, sort_keys=True)
    packed = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    metadata = {"adakern": text, "sha256": _digest(text, packed)}
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    os.close(handle)
    try:
        save_file(packed, temporary, metadata=metadata)
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp makes it private; an ordinary file is not
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read(path: str | PathLike[str], *kinds: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read a file of one of these kinds, or raise `FileFormatError` with a sentence that says what is wrong with it."""
    source = Path(path)
    if not source.is_file():
        raise FileNotFoundError(f"there is no file {source}")
    try:
        with safe_open(source, framework="numpy") as file:
            metadata = file.metadata() or {}
            if "adakern" not in metadata:
                raise FileFormatError(f"{source} is a safetensors file, but not one that adakern wrote")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(
            f"{source} is not a whole safetensors file (truncated, or of another kind): {error}"
        ) from error
    text = metadata["adakern"]
    if _digest(text, arrays) != metadata.get("sha256"):
        raise FileFormatError(f"{source} was altered after it was written: its digest does not match")
    with complaints(source):
        header = json.loads(text)
        if header["format"] not in kinds:
            wanted = " or ".join(map(repr, kinds))
            raise FileFormatError(f"{source} holds {header['format']!r}, not {wanted}")
        if header["format_version"] > FORMAT_VERSION:
            raise FileFormatError(
                f"{source} was written by adakern {header['version']} in a newer format; upgrade adakern to read it"
            )
    return arrays, header


def kind(path: str | PathLike[str], *kinds: str) -> str:
    """Which of these kinds a file is, from its header alone; one that is none of them is left for `read` to complain about."""
    try:
        with safe_open(Path(path), framework="numpy") as file:
            found = json.loads((file.metadata() or {})["adakern"])["format"]
    except (SafetensorError, OSError, ValueError, KeyError, TypeError):
        return kinds[0]
    return found if found in kinds else kinds[0]


@contextmanager
def complaints(path: str | PathLike[str]) -> Iterator[None]:
    """Turn what goes wrong in an ill-formed header into one clear error."""
    try:
        yield
    except FileFormatError:
        raise
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:  # JSON's own errors are ValueErrors
        raise FileFormatError(f"{path} has an ill-formed header ({type(error).__name__}: {error})") from error


def digest(*arrays: np.ndarray) -> str:
    """A fingerprint of arrays, by which a checkpoint knows its data again."""
    return _digest("", {str(i): array for i, array in enumerate(arrays)})


def _digest(text: str, arrays: dict[str, np.ndarray]) -> str:
    state = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = arrays[name]
        state.update(f"\0{name}\0{array.dtype}\0{array.shape}\0".encode())
        state.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return state.hexdigest()


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
