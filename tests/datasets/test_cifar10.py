"""The CIFAR-10 loaders, from the bundle and from official files."""

from __future__ import annotations

import hashlib
import os
import pickle

import numpy as np
import pytest
from official_files import binary_batch, pickled_batch, python2_batch, stored, write_cifar10
from PIL import Image

from adakern.datasets import animate, bundled, cifar10
from adakern.errors import FileFormatError

MEAN, STD = np.array([0.4914, 0.4822, 0.4465]), np.array([0.2470, 0.2435, 0.2616])
FORMS = {"cifar-10-batches-bin": binary_batch, "cifar-10-batches-py": pickled_batch, "CIFAR10": python2_batch}


def same(ours, theirs):
    return all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_default_task():
    X, y, X_test, y_test = cifar10()
    assert [part.shape for part in (X, y, X_test, y_test)] == [(300, 784), (300,), (600, 784), (600,)]
    assert all(part.dtype == np.float64 for part in (X, y, X_test, y_test))
    assert y_test.sum() == 0  # 300 of each
    levels = (X * 0.2396 + 0.4799) * 255
    np.testing.assert_allclose(levels, np.rint(levels), atol=1e-9)
    assert levels.min() > -0.5 and levels.max() < 255.5


def test_grey_pixels_by_hand():
    """At size 32 nothing is resized, and the luminance is the ITU-R 601 sum in Pillow's fixed point."""
    X, *_ = cifar10(n_train=4, n_test=0, size=32)
    train, _ = bundled.cifar10()
    red, green, blue = train.images[np.isin(train.labels, (0, 1))][2, 5, 7].astype(int)
    luminance = (19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16
    assert X[2, 5 * 32 + 7] == pytest.approx((luminance / 255 - 0.4799) / 0.2396, rel=1e-12)


def test_resized_before_turned_grey():
    X, *_ = cifar10(n_train=4, n_test=0)
    train, _ = bundled.cifar10()
    image = Image.fromarray(train.images[np.isin(train.labels, (0, 1))][3])
    expected = np.asarray(image.resize((28, 28), Image.Resampling.BILINEAR).convert("L")).ravel()
    np.testing.assert_allclose(X[3], (expected / 255 - 0.4799) / 0.2396, rtol=1e-12)


def test_resizing_keeps_a_constant_and_a_ramp(tmp_path):
    """Bilinear in space: a ramp along the columns stays a ramp, sampled at the centres of the new pixels."""
    ramp = np.broadcast_to((np.arange(32) * 8)[None, :, None], (32, 32, 3)).astype(np.uint8)
    level = np.full((32, 32, 3), 77, np.uint8)
    batch = (np.stack([ramp, level]), np.array([0, 1]))
    write_cifar10(tmp_path, [batch] * 6)
    X, *_ = cifar10(n_train=2, n_test=0, size=28, flat=False, directory=tmp_path)
    pixels = (X[..., 0] * 0.2396 + 0.4799) * 255
    np.testing.assert_allclose(pixels[1], 77, atol=1e-9)
    centres = ((np.arange(28) + 0.5) * 32 / 28 - 0.5) * 8
    np.testing.assert_allclose(pixels[0, :, 1:-1], np.tile(centres[1:-1], (28, 1)), atol=1.0)


def test_colour():
    X, _, X_test, _ = cifar10(grey=False, size=32, n_train=3, n_test=2, flat=False)
    assert X.shape == (3, 32, 32, 3) and X_test.shape == (2, 32, 32, 3)
    train, _ = bundled.cifar10()
    pixel = train.images[np.isin(train.labels, (0, 1))][1, 4, 9]
    np.testing.assert_allclose(X[1, 4, 9], (pixel / 255 - MEAN) / STD, rtol=1e-12)
    flat, *_ = cifar10(grey=False, size=32, n_train=3, n_test=0)
    assert np.array_equal(flat, X.reshape(3, 3072))
    assert cifar10(grey=False, size=8, n_train=1, n_test=0)[0].shape == (1, 192)


def test_the_bundle_meets_the_published_tasks():
    X, y, X_test, y_test = cifar10(n_train=1000, n_test=1000)
    assert X.shape == (1000, 784) and X_test.shape == (1000, 784)
    assert same(cifar10(n_train=300, n_test=600), (X[:300], y[:300], X_test[:600], y_test[:600]))
    X, y, X_test, y_test = animate()
    assert X.shape == (1000, 32, 32, 3) and X_test.shape == (500, 32, 32, 3)
    assert set(y) == set(y_test) == {-1.0, 1.0}


def test_animate_is_plus_one():
    X, y, _, y_test = animate(n_train=40, n_test=30)
    train, test = bundled.cifar10()
    for split, targets in ((train, y), (test, y_test)):
        labels = split.labels[~np.isin(split.labels, (6, 7))][: len(targets)]  # all classes begin together
        assert targets.tolist() == [1.0 if label in (2, 3, 4, 5) else -1.0 for label in labels]
    assert np.array_equal(animate(n_train=40, n_test=0, flat=True)[0], X.reshape(40, 3072))


def test_published_images():
    """In the order of their numbers' hashes, and less one mean over one standard deviation for all of a half."""
    X, y, X_test, y_test = animate(published=True)
    assert X.shape == (1000, 32, 32, 3) and X_test.shape == (500, 32, 32, 3)
    for split, images, targets, salt, mean, std in zip(
        bundled.cifar10_published(), (X, X_test), (y, y_test), ("train", "test"), (120.7, 121.5), (64.15, 64.06), strict=True
    ):  # fmt: skip
        hashes = [hashlib.md5(f"{salt}{position}".encode()).hexdigest() for position in split.positions]
        place = sorted(range(len(hashes)), key=hashes.__getitem__)
        np.testing.assert_allclose(images, (split.images[place] - mean) / std, atol=3e-3)
        assert targets.tolist() == [1.0 if label in (2, 3, 4, 5) else -1.0 for label in split.labels[place]]
    first = animate(7, 3, published=True, flat=True)
    assert same(first, (X[:7].reshape(7, -1), y[:7], X_test[:3].reshape(3, -1), y_test[:3]))
    with pytest.raises(ValueError, match="n_test must be at most 500, .* bundled CIFAR-10"):
        animate(n_test=501, published=True)


def test_published_order_of_official_files(tmp_path, photographs):
    write_cifar10(tmp_path, photographs)
    X, y, X_test, _ = animate(6, 5, published=True, directory=tmp_path)
    images = np.concatenate([images for images, _ in photographs[:5]])
    labels = np.concatenate([labels for _, labels in photographs[:5]])
    place = sorted(range(40), key=lambda row: hashlib.md5(f"train{row}".encode()).hexdigest())[:6]
    np.testing.assert_allclose(X, (images[place] - 120.707565) / 64.150076, atol=1e-6)
    assert y.tolist() == [1.0 if label in (2, 3) else -1.0 for label in labels[place]]
    place = sorted(range(8), key=lambda row: hashlib.md5(f"test{row}".encode()).hexdigest())[:5]
    np.testing.assert_allclose(X_test, (photographs[5][0][place] - 121.529155) / 64.06097, atol=1e-6)


def test_the_first_labels_are_those_of_the_data_set():
    classes = tuple(range(10))
    _, y, _, y_test = cifar10(classes, n_train=12, n_test=12)
    assert y.argmax(axis=1).tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3, 4, 7]
    assert y_test.argmax(axis=1).tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1, 0, 9]


@pytest.mark.parametrize(("folder", "form"), FORMS.items())
def test_official_files(tmp_path, photographs, folder, form):
    write_cifar10(tmp_path / folder, photographs, form)
    X, y, X_test, y_test = cifar10((1, 3), False, 32, 20, 4, flat=False, directory=tmp_path)
    images = np.concatenate([images for images, _ in photographs[:5]])
    labels = np.concatenate([labels for _, labels in photographs[:5]])
    test_images, test_labels = photographs[5]
    np.testing.assert_allclose(X, (images[labels % 2 == 1] / 255 - MEAN) / STD, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(X_test, (test_images[test_labels % 2 == 1] / 255 - MEAN) / STD, rtol=1e-12, atol=1e-12)
    assert np.array_equal(y, labels[labels % 2 == 1] - 2.0)
    assert np.array_equal(y_test, test_labels[test_labels % 2 == 1] - 2.0)


def test_official_files_follow_the_order_of_the_bundle(tmp_path):
    """The bundled images of two classes written as official files give the same call, in both test blocks."""
    train, test = bundled.cifar10()
    batches = []
    for split in (train, test):
        kept = np.isin(split.labels, (0, 1))
        batches.append((split.images[kept], split.labels[kept]))
    (images, labels), (test_images, test_labels) = batches
    assert len(labels) == len(test_labels) == 1000
    filler = np.full(800, 9)  # batches are alike in size: the training set is filled up with trucks
    parts = [
        (np.concatenate([images[i : i + 200], images[:800]]), np.concatenate([labels[i : i + 200], filler]))
        for i in range(0, 1000, 200)
    ]
    write_cifar10(tmp_path, [*parts, (test_images, test_labels)])
    call = {"n_train": 1000, "n_test": 1000, "size": 4}
    assert same(cifar10(**call), cifar10(**call, directory=tmp_path))


def test_environment_variable(tmp_path, photographs, monkeypatch):
    write_cifar10(tmp_path / "cifar-10-batches-py", photographs, pickled_batch)
    monkeypatch.setenv("ADAKERN_DATA", str(tmp_path))
    assert same(cifar10(n_train=9, n_test=3), cifar10(n_train=9, n_test=3, directory=tmp_path))
    monkeypatch.setenv("ADAKERN_DATA", "")
    assert cifar10(n_train=300, n_test=3)[0].shape == (300, 784)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_train": 1001}, "n_train must be at most 1000, .* bundled CIFAR-10 .* directory= .* ADAKERN_DATA"),
        ({"n_test": 1001}, "n_test must be at most 1000"),
        ({"classes": (3, 5), "n_train": 9, "n_test": 200}, "n_test must be at most 123"),
        ({"classes": (0, 8), "n_train": 500, "n_test": 1}, "n_train must be at most 259"),
        ({"size": 0}, "size must be at least 1"),
        ({"classes": (0, 12)}, "classes must be numbers from 0 to 9"),
    ],
)
def test_bad_values(arguments, message):
    with pytest.raises(ValueError, match=message):
        cifar10(**arguments)


def test_a_directory_without_cifar10(tmp_path, photographs):
    write_cifar10(tmp_path, photographs)
    (tmp_path / "data_batch_3.bin").unlink()
    with pytest.raises(FileNotFoundError, match="has no complete CIFAR-10: looked for data_batch_1"):
        cifar10(directory=tmp_path)
    with pytest.raises(FileNotFoundError, match="has no complete CIFAR-10"):
        animate(directory=tmp_path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda b: b[:-1], "data_batch_2.bin is truncated or no CIFAR-10 batch"),
        (lambda b: b"", "data_batch_2.bin is truncated or no CIFAR-10 batch"),
        (lambda b: b[:-3073], "data_batch_2.bin has 7 images, but data_batch_1.bin has 8: one is truncated"),
        (lambda b: b"\x0b" + b[1:], "data_batch_2.bin is no CIFAR-10 batch: its labels must be from 0 to 9"),
    ],
)
def test_damaged_binary_files(tmp_path, photographs, damage, message):
    write_cifar10(tmp_path, photographs)
    path = tmp_path / "data_batch_2.bin"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(FileFormatError, match=message):
        cifar10(n_train=5, n_test=1, directory=tmp_path)


def _content(photographs, **changes):
    images, labels = photographs[1]
    return {"data": stored(images), "labels": [int(c) for c in labels], **changes}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: pickled_batch(*p[1])[:-50], "data_batch_2 is truncated or no CIFAR-10 batch"),
        (lambda p: python2_batch(*p[1])[:2000], "data_batch_2 is truncated or no CIFAR-10 batch"),
        (lambda p: b"", "data_batch_2 is truncated or no CIFAR-10 batch"),
        (lambda p: b"PNG and so on", "data_batch_2 is truncated or no CIFAR-10 batch"),
        (lambda p: pickle.dumps([1, 2], 2), "it holds a list, not a dict"),
        (lambda p: pickle.dumps({"data": 3}, 2), "its 'data' is not an array of rows of 3072 bytes"),
        (lambda p: pickle.dumps(_content(p, data=stored(p[1][0])[:, 1:]), 2), "its 'data' is not an array of rows"),
        (lambda p: pickle.dumps(_content(p, labels=None), 2), "its 'labels' are not a list of integers"),
        (lambda p: pickle.dumps(_content(p, labels=["a"] * 8), 2), "its 'labels' are not a list of integers"),
        (lambda p: pickle.dumps(_content(p, labels=[0] * 7), 2), "it has 7 labels for 8 images"),
        (lambda p: pickle.dumps(_content(p, labels=[-1] * 8), 2), "its labels must be from 0 to 9"),
    ],
)
def test_damaged_pickles(tmp_path, photographs, make, message):
    write_cifar10(tmp_path, photographs, pickled_batch)
    (tmp_path / "data_batch_2").write_bytes(make(photographs))
    with pytest.raises(FileFormatError, match=message):
        cifar10(n_train=5, n_test=1, directory=tmp_path)


class _Runs:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_runs_code_is_refused(tmp_path, photographs, protocol):
    write_cifar10(tmp_path, photographs, pickled_batch)
    trace = tmp_path / "trace"
    for function, arguments in ((os.mkdir, (str(trace),)), (eval, (f"__import__('os').mkdir({str(trace)!r})",))):
        attack = pickle.dumps(_content(photographs, extra=_Runs(function, *arguments)), protocol)
        (tmp_path / "data_batch_2").write_bytes(attack)
        with pytest.raises(FileFormatError, match="data_batch_2 is refused: it asks for .*(mkdir|eval)"):
            cifar10(n_train=5, n_test=1, directory=tmp_path)
        assert not trace.exists()
        pickle.loads(attack)  # the attack is real: an ordinary reader runs it
        assert trace.is_dir()
        trace.rmdir()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93.", "it asks for numpy.ndarray.tofile"),
        (b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\ndtype\n(I0\ntS'b'\ntR.", "an array of a foreign class"),
        (b"c_codecs\nencode\n(Vabc\nVrot13\ntR.", "it asks for the encoding 'rot13'"),
    ],
)
def test_other_ways_around_are_refused(tmp_path, photographs, code, message):
    write_cifar10(tmp_path, photographs, pickled_batch)
    (tmp_path / "test_batch").write_bytes(code)
    with pytest.raises(FileFormatError, match=f"test_batch is refused: .*{message}"):
        cifar10(n_train=5, n_test=1, directory=tmp_path)
