"""CIFAR-10 as officially distributed: six batches, pickled ("python version") or binary.

A pickle may run any code when it is loaded. The reader here admits nothing but what the official files need
(numpy arrays, bytes, str, dict, list, numbers) and refuses the rest.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from adakern.datasets.order import CLASSES, Split
from adakern.errors import FileFormatError

LOOKED_FOR = (
    "data_batch_1 to data_batch_5 and test_batch (pickled, or .bin), there or in "
    "cifar-10-batches-py or cifar-10-batches-bin, also inside CIFAR10, cifar10 or cifar-10"
)
_FOLDERS = tuple(
    f"{base}{folder}"
    for base in ("", "CIFAR10/", "cifar10/", "cifar-10/")
    for folder in ("cifar-10-batches-py", "cifar-10-batches-bin", "")
)
_TRAIN = tuple(f"data_batch_{i}" for i in range(1, 6))
_BYTES = 3 * 32 * 32

Batch = tuple[np.ndarray, np.ndarray]  # (n, 3072) bytes as stored and (n,) labels


def find(directory: Path) -> tuple[Split, Split] | None:
    """Read CIFAR-10 from `directory` or a customary sub-folder; None where no folder has all six batches."""
    for folder in _FOLDERS:
        for suffix, reader in (("", read_pickled), (".bin", read_binary)):
            paths = [directory / folder / f"{name}{suffix}" for name in (*_TRAIN, "test_batch")]
            if all(path.is_file() for path in paths):
                return _assemble(paths, reader)
    return None


def read_binary(path: Path) -> Batch:
    """Read a batch of records of one label byte and 3072 colour bytes."""
    content = np.frombuffer(path.read_bytes(), np.uint8)
    if content.size == 0 or content.size % (1 + _BYTES):
        raise FileFormatError(
            f"{path} is truncated or no CIFAR-10 batch: its {content.size} bytes are no number of records of 3073"
        )
    records = content.reshape(-1, 1 + _BYTES)
    return _checked(path, records[:, 1:], records[:, 0])


def read_pickled(path: Path) -> Batch:
    """Read a pickled batch, a dict of `data` (n, 3072) and `labels`, without running any code it may carry."""
    raw = path.read_bytes()
    try:
        content = _Restricted(io.BytesIO(raw), encoding="bytes").load()
    except FileFormatError as error:
        raise FileFormatError(f"{path} {error}") from error
    except Exception as error:  # a damaged pickle may fail in any way
        raise FileFormatError(f"{path} is truncated or no CIFAR-10 batch: {error}") from error
    if not isinstance(content, dict):
        raise FileFormatError(f"{path} is no CIFAR-10 batch: it holds a {type(content).__name__}, not a dict")
    data, labels = (content.get(key.encode(), content.get(key)) for key in ("data", "labels"))
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != _BYTES:
        raise FileFormatError(f"{path} is no CIFAR-10 batch: its 'data' is not an array of rows of 3072 bytes")
    if not isinstance(labels, list) or not all(isinstance(label, int) for label in labels):
        raise FileFormatError(f"{path} is no CIFAR-10 batch: its 'labels' are not a list of integers")
    return _checked(path, data, np.asarray(labels, dtype=np.int64))


def _checked(path: Path, data: np.ndarray, labels: np.ndarray) -> Batch:
    if len(data) != len(labels) or len(data) == 0:
        raise FileFormatError(f"{path} is no CIFAR-10 batch: it has {len(labels)} labels for {len(data)} images")
    if labels.min() < 0 or labels.max() >= CLASSES:
        raise FileFormatError(f"{path} is no CIFAR-10 batch: its labels must be from 0 to 9")
    return data, labels.astype(np.uint8)


def _assemble(paths: list[Path], reader: Callable[[Path], Batch]) -> tuple[Split, Split]:
    batches = [reader(path) for path in paths]
    for path, (data, _) in zip(paths, batches, strict=True):
        if len(data) != len(batches[0][0]):  # the official batches are alike: one that is short was cut
            raise FileFormatError(
                f"{path} has {len(data)} images, but {paths[0].name} has {len(batches[0][0])}: one is truncated"
            )
    return _as_split(batches[:-1]), _as_split(batches[-1:])


def _as_split(batches: list[Batch]) -> Split:
    data = np.concatenate([data for data, _ in batches])
    images = np.moveaxis(data.reshape(-1, 3, 32, 32), 1, 3)
    return Split.complete(images, np.concatenate([labels for _, labels in batches]))


def _new_array(kind: type, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Stands in for numpy's `_reconstruct`, for plain arrays only."""
    if kind is not np.ndarray:
        raise FileFormatError("is refused: it asks for an array of a foreign class")
    return np.ndarray.__new__(np.ndarray, shape, dtype)


def _latin1(text: str, encoding: str | bytes) -> bytes:
    """Stands in for `_codecs.encode`, with which Python 3 writes bytes in the old pickle protocols."""
    if encoding not in ("latin1", b"latin1"):
        raise FileFormatError(f"is refused: it asks for the encoding {encoding!r}")
    return text.encode("latin1")


class _Restricted(pickle.Unpickler):
    """An unpickler that can make what CIFAR-10 files hold and nothing else."""

    _ADMITTED: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("numpy.core.multiarray", "_reconstruct"): _new_array,
        ("numpy._core.multiarray", "_reconstruct"): _new_array,
        ("_codecs", "encode"): _latin1,
    }

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._ADMITTED[module, name]
        except KeyError:
            raise FileFormatError(f"is refused: it asks for {module}.{name}, which no CIFAR-10 batch needs") from None
