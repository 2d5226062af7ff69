"""Small files in the official formats, written from known arrays, for the tests."""

from __future__ import annotations

import gzip
import pickle
import struct
from collections.abc import Iterable
from pathlib import Path

import numpy as np

BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")


def idx_bytes(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(struct.pack(">I", n) for n in array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_mnist(
    folder: Path, train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray], *, joint="-", gz=False
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part, (images, labels) in (("train", train), ("t10k", test)):
        for kind, array in (("images", images), ("labels", labels)):
            name = f"{part}-{kind}{joint}idx{array.ndim}-ubyte"
            if gz:
                (folder / f"{name}.gz").write_bytes(gzip.compress(idx_bytes(array)))
            else:
                (folder / name).write_bytes(idx_bytes(array))


def stored(images: np.ndarray) -> np.ndarray:
    """(n, 32, 32, 3) to the rows of CIFAR-10 files: red, green, blue planes."""
    return np.ascontiguousarray(np.moveaxis(images, 3, 1).reshape(len(images), -1))


def binary_batch(images: np.ndarray, labels: np.ndarray) -> bytes:
    return np.concatenate([labels[:, None].astype(np.uint8), stored(images)], axis=1).tobytes()


def pickled_batch(images: np.ndarray, labels: np.ndarray) -> bytes:
    """As Python 3 pickles it in an old protocol."""
    content = {b"data": stored(images), b"labels": [int(c) for c in labels], b"batch_label": b"a batch"}
    return pickle.dumps(content, protocol=2)


def python2_batch(images: np.ndarray, labels: np.ndarray) -> bytes:
    """As Python 2 with an early numpy pickled it, which is what the official files are; assembled by hand."""
    raw = stored(images).tobytes()
    state = b"".join(
        [
            b"(K\x01",  # version
            b"M" + struct.pack("<H", len(labels)) + b"M" + struct.pack("<H", 3072) + b"\x86",  # shape
            b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb",
            b"\x89T" + struct.pack("<i", len(raw)) + raw + b"tb",  # row order, bytes
        ]
    )
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R" + state
    listing = b"](" + b"".join(b"K" + bytes([int(c)]) for c in labels) + b"e"
    return b"\x80\x02}(U\x04data" + array + b"U\x06labels" + listing + b"U\x0bbatch_labelU\x05batchu."


def write_cifar10(folder: Path, batches: Iterable[tuple[np.ndarray, np.ndarray]], form=binary_batch) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    suffix = ".bin" if form is binary_batch else ""
    for name, (images, labels) in zip(BATCHES, batches, strict=True):
        (folder / f"{name}{suffix}").write_bytes(form(images, labels))
