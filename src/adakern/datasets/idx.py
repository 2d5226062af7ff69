"""MNIST as officially distributed: four idx files, plain or gzipped."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from adakern.datasets.order import CLASSES, Split
from adakern.errors import FileFormatError

LOOKED_FOR = (
    "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte "
    "(or with .idx for -idx, each plain or .gz), there or in MNIST/raw, MNIST, mnist, mnist/raw or raw"
)
_FOLDERS = ("", "MNIST/raw", "MNIST", "mnist", "mnist/raw", "raw")
_PIXELS = (28, 28)


def find(directory: Path) -> tuple[Split, Split] | None:
    """Read MNIST from `directory` or a customary sub-folder; None where no folder has all four files."""
    for folder in _FOLDERS:
        train = _pair(directory / folder, "train")
        test = _pair(directory / folder, "t10k")
        if train and test:
            return _read_split(*train), _read_split(*test)
    return None


def read(path: Path, ndim: int) -> np.ndarray:
    """Read one idx file of bytes with `ndim` dimensions."""
    content = _content(path)
    if len(content) < 4 or content[:4] != bytes([0, 0, 8, ndim]):
        raise FileFormatError(f"{path} is not an idx file of bytes with {ndim} dimension{'s' if ndim > 1 else ''}")
    start = 4 + 4 * ndim
    if len(content) < start:
        raise FileFormatError(f"{path} is truncated: it ends inside its header")
    shape = tuple(int(n) for n in np.frombuffer(content, ">u4", count=ndim, offset=4))
    expected = start + math.prod(shape)
    if len(content) != expected:
        state = "is truncated" if len(content) < expected else "has bytes after its end"
        raise FileFormatError(f"{path} {state}: its header announces {expected} bytes, but it has {len(content)}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _content(path: Path) -> bytes:
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        with gzip.open(path) as stream:
            return stream.read()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FileFormatError(f"{path} is not a complete gzip file: {error}") from error


def _pair(folder: Path, part: str) -> tuple[Path, Path] | None:
    images = _existing(folder, f"{part}-images", "idx3-ubyte")
    labels = _existing(folder, f"{part}-labels", "idx1-ubyte")
    return (images, labels) if images and labels else None


def _existing(folder: Path, stem: str, ending: str) -> Path | None:
    names = [f"{stem}{joint}{ending}{suffix}" for suffix in ("", ".gz") for joint in ("-", ".")]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _read_split(image_path: Path, label_path: Path) -> Split:
    images, labels = read(image_path, 3), read(label_path, 1)
    if images.shape[1:] != _PIXELS:
        raise FileFormatError(f"{image_path} must hold images of 28 x 28 pixels, but they have {images.shape[1:]}")
    if len(images) != len(labels):
        raise FileFormatError(f"{label_path} has {len(labels)} labels for the {len(images)} images of {image_path}")
    if len(labels) and labels.max() >= CLASSES:
        raise FileFormatError(f"{label_path} must hold labels from 0 to 9, but one is {labels.max()}")
    return Split.complete(images[..., None], labels)
