"""Build the bundled images of `adakern.datasets` from the full data sets.

    python tools/build_datasets.py --mnist DIR --cifar10 DIR [--out src/adakern/datasets/data]

`--mnist` names a directory with the four official idx files, `--cifar10` one with the official batches (pickled or
binary), or with six lossless PNG sheets of them (data_batch_1.png .. test_batch.png: one image per row, 1024 RGB
pixels) and their labels as JSON lists (train_labels.json, test_labels.json; "lables" is accepted too).

What is kept, always from the beginning of each class and without gaps (see `adakern.datasets.order`):
MNIST: the first 1000 training and 300 test images of each digit, and of 0 and 1 as many test images more as make
1000 in order and at least 500 of each.
CIFAR-10: the training images that classes 0, 1 need for 1000 in order, and the beginning of the data set as far as
the animate task needs it for 1000; test images likewise, 1000 and 500.
CIFAR-10 as in the paper's published program: the first 1000 training and 500 test images of the animate task in the
order of TensorFlow Datasets.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from PIL import Image

from adakern.datasets import batches, codec, idx
from adakern.datasets._cifar10 import ANIMATE, INANIMATE
from adakern.datasets.order import CLASSES, FIRST_TEST_BLOCK, HASHED, NEVER, Split, ordered_test_rows, ranks

HOME = Path(__file__).resolve().parent.parent / "src" / "adakern" / "datasets" / "data"


def build_mnist(train: Split, test: Split) -> dict[str, np.ndarray]:
    binary = np.isin(test.labels, (0, 1))
    keep = (ranks(test.labels) < FIRST_TEST_BLOCK) | (binary & (ranks(test.labels) < 500))
    keep[ordered_test_rows(test, (0, 1))[:1000]] = True
    halves = {"train": (train, ranks(train.labels) < 1000), "test": (test, keep)}
    arrays = {}
    for part, (split, kept) in halves.items():
        arrays[f"{part}_x"] = split.images[kept][..., 0]
        arrays |= describe(part, split.labels, kept)
    return arrays


def build_cifar10(train: Split, test: Split) -> dict[str, np.ndarray]:
    task = (*INANIMATE, *ANIMATE)
    keep_train = beginning(train.labels, task, 1000)
    keep_train[np.flatnonzero(np.isin(train.labels, (0, 1)))[:1000]] = True
    keep_test = beginning(test.labels, task, 500)
    keep_test[ordered_test_rows(test, (0, 1))[:1000]] = True
    arrays = {}
    for part, split, kept in (("train", train, keep_train), ("test", test, keep_test)):
        arrays[f"{part}_differences"] = codec.encode(split.images[kept])
        arrays |= describe(part, split.labels, kept)
    return arrays


def build_published(train: Split, test: Split) -> dict[str, np.ndarray]:
    task = (*INANIMATE, *ANIMATE)
    arrays = {}
    for part, split, rows, n in (("train", train, HASHED.train, 1000), ("test", test, HASHED.test, 500)):
        kept = np.sort(rows(split, task)[:n])
        arrays[f"{part}_differences"] = codec.encode(split.images[kept])
        arrays[f"{part}_y"] = split.labels[kept].astype(np.uint8)
        arrays[f"{part}_idx"] = kept.astype(np.int32)
        arrays[f"{part}_absent_from"] = np.full(CLASSES, NEVER)  # which images come next, a hash says
    return arrays


def beginning(labels: np.ndarray, classes: tuple[int, ...], n: int) -> np.ndarray:
    """Marks the beginning of the data set, all classes of it, up to the n-th image of `classes`."""
    return np.arange(len(labels)) <= np.flatnonzero(np.isin(labels, classes))[n - 1]


def describe(part: str, labels: np.ndarray, kept: np.ndarray) -> dict[str, np.ndarray]:
    """Labels, original positions, and where each class breaks off."""
    missing = [np.flatnonzero(~kept & (labels == c)) for c in range(CLASSES)]
    absent_from = np.array([rows[0] if len(rows) else NEVER for rows in missing], dtype=np.int64)
    for c in range(CLASSES):
        held = np.flatnonzero(kept & (labels == c))
        if len(held) and held[-1] > absent_from[c]:
            raise AssertionError(f"class {c} has a gap before position {held[-1]}")
    return {
        f"{part}_y": labels[kept].astype(np.uint8),
        f"{part}_idx": np.flatnonzero(kept).astype(np.int32),
        f"{part}_absent_from": absent_from,
    }


def read_cifar10(directory: Path) -> tuple[Split, Split]:
    found = batches.find(directory)
    if found is not None:
        return found
    train = np.concatenate([read_sheet(directory / f"data_batch_{i}.png") for i in range(1, 6)])
    test = read_sheet(directory / "test_batch.png")
    return Split.complete(train, read_labels(directory, "train")), Split.complete(test, read_labels(directory, "test"))


def read_sheet(path: Path) -> np.ndarray:
    with Image.open(path) as sheet:
        if sheet.mode != "RGB" or sheet.width != 1024:
            raise SystemExit(f"{path} must be an RGB sheet of 1024 pixels width, one image per row")
        return np.asarray(sheet).reshape(-1, 32, 32, 3)


def read_labels(directory: Path, part: str) -> np.ndarray:
    names = [directory / f"{part}_{word}.json" for word in ("labels", "lables")]
    path = next((name for name in names if name.is_file()), names[0])
    return np.array(json.loads(path.read_text()), dtype=np.uint8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", type=Path, required=True, help="directory with the official idx files")
    parser.add_argument("--cifar10", type=Path, required=True, help="directory with the official batches")
    parser.add_argument("--out", type=Path, default=HOME, help="where the .npz files go")
    options = parser.parse_args()
    mnist = idx.find(options.mnist)
    if mnist is None:
        raise SystemExit(f"--mnist {options.mnist} has no MNIST: looked for {idx.LOOKED_FOR}")
    cifar10 = read_cifar10(options.cifar10)
    bundles = {"mnist": build_mnist(*mnist), "cifar10": build_cifar10(*cifar10)}
    for name, arrays in {**bundles, "cifar10_published": build_published(*cifar10)}.items():
        path = options.out / f"{name}.npz"
        np.savez_compressed(path, **arrays)  # type: ignore[arg-type]  # numpy's stub sees allow_pickle in them
        print(f"{path}: {path.stat().st_size} bytes, {len(arrays['train_y'])} + {len(arrays['test_y'])} images")


if __name__ == "__main__":
    main()
