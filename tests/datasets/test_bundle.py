"""What the package carries: size, content, and that it is what the build script made of the originals."""

from __future__ import annotations

import hashlib
from importlib.resources import files

import numpy as np
import pytest

from adakern.datasets import bundled, codec
from adakern.datasets.order import NEVER

LOADERS = {"mnist": bundled.mnist, "cifar10": bundled.cifar10}

PUBLISHED = {"cifar10_published": bundled.cifar10_published}

SHA256 = {
    ("mnist", "train"): "151f718f0a24487bb9302d56588f1bac1720eb301c2b042f976d63de11a77c8c",
    ("mnist", "test"): "c924b84850aeea808c05b81f878b6d43445f648533ae03893791c95dc5cbb65b",
    ("cifar10", "train"): "058fa681baaa8961e721f149cd3e91367ddb8a089f1efe91706c31a1d98a4a3a",
    ("cifar10", "test"): "91719d002cf1904d5a605d0cd2b515acfd15f3598c50dccb404a3fc419141e2b",
    ("cifar10_published", "train"): "eb20d7ef51abd9e0f07231b3d591363eabccc27c92be2da177624438255f5524",
    ("cifar10_published", "test"): "06986be134bc422c52b3ae73769208a6cb16777be9963ee809fd6b107300fd93",
}


@pytest.mark.parametrize(("name", "part"), SHA256)
def test_content_is_the_original(name, part):
    split = (LOADERS | PUBLISHED)[name]()[part == "test"]
    digest = hashlib.sha256()
    for array in (split.images, split.labels.astype("u1"), split.positions.astype("<i4")):
        digest.update(np.ascontiguousarray(array).tobytes())
    assert digest.hexdigest() == SHA256[name, part]


def test_the_bundle_is_small_and_names_its_origin():
    folder = files("adakern.datasets").joinpath("data")
    sizes = {item.name: len(item.read_bytes()) for item in folder.iterdir()}
    assert sum(sizes.values()) < 12_000_000
    readme = folder.joinpath("README.md").read_text(encoding="utf-8")
    for word in ("LeCun", "Krizhevsky", "CC BY-SA 3.0", "without a formal licence"):
        assert word in readme


@pytest.mark.parametrize("name", LOADERS)
def test_positions_increase_and_classes_have_no_gaps_where_it_can_be_seen(name):
    for split in LOADERS[name]():
        assert (np.diff(split.positions) > 0).all()
        assert (split.absent_from < NEVER).all()
        for label in range(10):
            assert split.positions[split.labels == label].max() < split.absent_from[label]


def test_mnist_holds_the_first_of_each_digit():
    train, test = bundled.mnist()
    assert train.images.shape == (10000, 28, 28, 1)
    assert np.bincount(train.labels).tolist() == [1000] * 10
    assert (np.bincount(test.labels)[:2] >= 500).all()
    assert np.bincount(test.labels)[2:].tolist() == [300] * 8


@pytest.mark.parametrize("name", LOADERS | PUBLISHED)
def test_no_image_is_in_both_halves_or_twice(name):
    images = [image.tobytes() for split in (LOADERS | PUBLISHED)[name]() for image in split.images]
    assert len(set(images)) == len(images)


def test_an_image_of_both_bundles_is_the_same():
    """The published order is a random one: some of its 1000 are among the first 1265."""
    for ours, theirs in zip(bundled.cifar10(), bundled.cifar10_published(), strict=True):
        assert (np.diff(theirs.positions) > 0).all()
        _, here, there = np.intersect1d(ours.positions, theirs.positions, return_indices=True)
        assert len(here) >= 10
        assert np.array_equal(ours.images[here], theirs.images[there])
        assert np.array_equal(ours.labels[here], theirs.labels[there])


def test_the_shared_arrays_cannot_be_written():
    for split in (*bundled.mnist(), *bundled.cifar10(), *bundled.cifar10_published()):
        with pytest.raises(ValueError, match="read-only"):
            split.images[0] = 0


def test_recoding_loses_nothing():
    images = np.random.default_rng(3).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    before = images.copy()
    assert (codec.decode(codec.encode(images)) == images).all()
    assert (images == before).all()


def test_recoding_by_hand():
    image = np.array([[[10, 20, 30], [11, 22, 33]], [[12, 24, 36], [250, 0, 1]]], dtype=np.uint8)[None]
    green = [[20, 2], [4, 230]]  # 0 - 22 - 24 + 20 modulo 256
    assert codec.encode(image)[0, 1].tolist() == green
    assert codec.encode(image)[0, 0, 0].tolist() == [246, 255]  # 10 - 20, then (11 - 22) - (10 - 20)
