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

from adakern import activations, limits, networks
from adakern._version import __version__
from adakern.errors import FileFormatError
from adakern.limits import Limit

FORMAT = "adakern-solution"
FORMAT_VERSION = 1


def write(path: str | PathLike[str], arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
    """Write arrays and header; the file appears whole or not at all."""
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"the folder {target.parent} does not exist; make it first")
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder; give the name of a file")
    whole = {"format": FORMAT, "format_version": FORMAT_VERSION, "version": __version__, **header}
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


def read(path: str | PathLike[str]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read what `write` wrote, or raise `FileFormatError` with a sentence that says what is wrong with the file."""
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
        if header["format"] != FORMAT:
            raise FileFormatError(f"{source} holds {header['format']!r}, not {FORMAT!r}")
        if header["format_version"] > FORMAT_VERSION:
            raise FileFormatError(
                f"{source} was written by adakern {header['version']} in a newer format; upgrade adakern to read it"
            )
    return arrays, header


@contextmanager
def complaints(path: str | PathLike[str]) -> Iterator[None]:
    """Turn what goes wrong in an ill-formed header into one clear error."""
    try:
        yield
    except FileFormatError:
        raise
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:  # JSON's own errors are ValueErrors
        raise FileFormatError(f"{path} has an ill-formed header ({type(error).__name__}: {error})") from error


def limit_config(limit: Limit) -> dict[str, Any]:
    """A limit and its network as plain values."""
    network = limit.network.config()
    network["builtin"] = activations.is_builtin(limit.network.activation)
    network["values"] = activations.fingerprint(limit.network.activation)
    return {"kind": limit.kind, "network": network, "numbers": limit.config()}


def limit_from_config(config: dict[str, Any], activation: Any = None) -> Limit:
    """The limit that `limit_config` described."""
    network = config["network"]
    if not network["builtin"] and activation is None:
        raise FileFormatError(
            f"the network's activation {network['activation']!r} is a function of its author's, and files hold no code; "
            "pass it with load(path, activation=...)"
        )
    kinds: dict[str, Any] = {kind.kind: kind for kind in limits.ALL}
    numbers = {k: tuple(v) if isinstance(v, list) else v for k, v in config["numbers"].items()}
    built = networks.from_config(network, None if network["builtin"] else activation)
    if not np.allclose(activations.fingerprint(built.activation), network["values"], rtol=1e-4, atol=1e-6):
        raise FileFormatError(
            f"the activation given is not the one that the file was made with ({network['activation']!r}): their values differ"
        )
    return kinds[config["kind"]](built, **numbers)


def _digest(text: str, arrays: dict[str, np.ndarray]) -> str:
    state = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = arrays[name]
        state.update(f"\0{name}\0{array.dtype}\0{array.shape}\0".encode())
        state.update(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data)
    return state.hexdigest()


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
