"""The MNIST loader, from the bundle and from official files."""

from __future__ import annotations

import numpy as np
import pytest
from official_files import idx_bytes, write_mnist

from adakern.datasets import bundled, mnist
from adakern.errors import FileFormatError


def same(ours, theirs):
    return all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_default_task():
    X, y, X_test, y_test = mnist()
    assert [part.shape for part in (X, y, X_test, y_test)] == [(50, 784), (50,), (600, 784), (600,)]
    assert all(part.dtype == np.float64 for part in (X, y, X_test, y_test))
    assert set(y) == {-1.0, 1.0}
    assert y_test.sum() == 0  # 300 of each
    assert X.min() == pytest.approx(-0.1307 / 0.3081, rel=1e-12)
    assert X.max() == pytest.approx((1 - 0.1307) / 0.3081, rel=1e-12)


def test_the_first_images_are_the_first_of_the_data_set():
    _, y, X_test, y_test = mnist()
    assert y[:8].tolist() == [
        -1,
        1,
        1,
        1,
        1,
        -1,
        1,
        1,
    ]  # MNIST begins 5 0 4 1 9 2 1 3 1 4 3 5 3 6 1 7 2 8 6 9 4 0 9 1 1
    assert y_test[:8].tolist() == [
        1,
        -1,
        1,
        -1,
        -1,
        1,
        -1,
        -1,
    ]  # and its test set 7 2 1 0 4 1 4 9 5 9 0 6 9 0 1 5 9 7 ... 0
    _, test = bundled.mnist()
    row = np.flatnonzero(test.labels == 1)[0]
    np.testing.assert_allclose(X_test[0], (test.images[row].ravel() / 255 - 0.1307) / 0.3081, rtol=1e-14)


def test_shorter_calls_are_prefixes_of_longer_ones():
    X, y, X_test, y_test = mnist(n_train=1000, n_test=1000)
    short = mnist(n_train=70, n_test=650)
    assert same(short, (X[:70], y[:70], X_test[:650], y_test[:650]))
    assert len(np.unique(X_test, axis=0)) == 1000


def test_swapping_the_classes_swaps_the_signs():
    X, y, X_test, y_test = mnist((3, 8), n_train=20, n_test=30)
    assert same(mnist((8, 3), n_train=20, n_test=30), (X, -y, X_test, -y_test))


def test_more_classes_are_one_hot():
    _, y, _, y_test = mnist((7, 0, 4), n_train=60, n_test=30)
    assert y.shape == (60, 3) and y_test.shape == (30, 3)
    assert set(y.ravel()) == {0.0, 1.0} and (y.sum(axis=1) == 1).all()
    train, _ = bundled.mnist()
    labels = train.labels[np.isin(train.labels, (7, 0, 4))][:60]
    assert np.array_equal(np.array([7, 0, 4])[y.argmax(axis=1)], labels)


def test_groups_take_one_sign():
    _, y, _, _ = mnist(((0, 2, 4, 6, 8), (1, 3, 5, 7, 9)), n_train=100, n_test=1)
    train, _ = bundled.mnist()
    assert y.tolist() == [1.0 if label % 2 else -1.0 for label in train.labels[:100]]


def test_images_that_are_not_flat():
    flat, image = mnist(n_train=3, n_test=2), mnist(n_train=3, n_test=2, flat=False)
    assert image[0].shape == (3, 28, 28, 1)
    assert same((flat[0], flat[2]), (image[0].reshape(3, -1), image[2].reshape(2, -1)))


@pytest.mark.parametrize(("classes", "y_shape"), [((0, 1), (0,)), ((0, 1, 2), (0, 3))])
@pytest.mark.parametrize(("flat", "shape"), [(True, (0, 784)), (False, (0, 28, 28, 1))])
def test_no_test_images(classes, y_shape, flat, shape):
    _, _, X_test, y_test = mnist(classes, n_test=0, flat=flat)
    assert X_test.shape == shape and y_test.shape == y_shape


def test_the_answer_is_the_callers_own():
    X, *_ = mnist(n_train=5, n_test=0)
    X[:] = 0
    assert mnist(n_train=5, n_test=0)[0].any()


@pytest.mark.parametrize(
    ("folder", "joint", "gz"), [("", "-", False), ("", ".", True), ("MNIST/raw", "-", True), ("mnist", ".", False)]
)
def test_official_files(tmp_path, digits, folder, joint, gz):
    (images, labels), (test_images, test_labels) = digits
    write_mnist(tmp_path / folder, *digits, joint=joint, gz=gz)
    X, y, X_test, y_test = mnist((1, 3), n_train=20, n_test=14, directory=tmp_path)
    chosen, test_chosen = labels % 2 == 1, test_labels % 2 == 1
    np.testing.assert_allclose(X, (images[chosen].reshape(20, 784) / 255 - 0.1307) / 0.3081, rtol=1e-13)
    np.testing.assert_allclose(X_test, (test_images[test_chosen][:14].reshape(14, 784) / 255 - 0.1307) / 0.3081)
    assert np.array_equal(y, labels[chosen] - 2.0) and np.array_equal(y_test, test_labels[test_chosen][:14] - 2.0)


def test_official_files_follow_the_order_of_the_bundle(tmp_path):
    """The bundled images written as official files, so complete up to where the bundle ends, give the same calls."""
    halves = []
    for split in bundled.mnist():
        kept = np.isin(split.labels, (0, 1))
        halves.append((split.images[kept][..., 0], split.labels[kept]))
    write_mnist(tmp_path, *halves)
    assert same(mnist(n_train=900, n_test=1000), mnist(n_train=900, n_test=1000, directory=tmp_path))


def test_environment_variable(tmp_path, digits, monkeypatch):
    bundle = mnist(n_train=5, n_test=5)
    monkeypatch.setenv("ADAKERN_DATA", str(tmp_path))
    assert same(mnist(n_train=5, n_test=5), bundle)  # no MNIST there: the bundle
    with pytest.raises(ValueError, match="n_train must be at most 1869, .* which has no complete MNIST"):
        mnist(n_train=5000)
    write_mnist(tmp_path, *digits)
    assert not same(mnist(n_train=5, n_test=5), bundle)
    with pytest.raises(ValueError, match=r"n_train must be at most 20, .* MNIST in .* but it is 21$"):
        mnist(n_train=21, n_test=5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_train": 1870}, "n_train must be at most 1869, .* bundled MNIST .* directory= .* ADAKERN_DATA"),
        (
            {"classes": (2, 3), "n_test": 601},
            "n_test must be at most 600, the number of test images of the classes 2, 3",
        ),
        ({"n_train": 0}, "n_train must be at least 1"),
        ({"n_test": -1}, "n_test must be at least 0"),
        ({"classes": (0, 10)}, "classes must be numbers from 0 to 9, but one is 10"),
        ({"classes": (0, -1)}, r"classes\[1\] must be at least 0"),
        ({"classes": (0, 0)}, "classes must name each class once, but 0 is named 2 times"),
        ({"classes": ((0, 1), (1, 2))}, "classes must name each class once, but 1 is named 2 times"),
        ({"classes": (4,)}, "classes must name at least two classes or groups, but it names 1"),
        ({"classes": ((0, 1, 2),)}, "classes must name at least two classes or groups, but it names 1"),
        ({"classes": ((), (1,))}, r"classes\[0\] must name at least one class"),
    ],
)
def test_bad_values(arguments, message):
    with pytest.raises(ValueError, match=message):
        mnist(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_train": 5.0}, "n_train must be an integer"),
        ({"classes": 3}, "classes must be a sequence"),
        ({"classes": "01"}, "classes must be a sequence"),
        ({"classes": {0, 1}}, "classes must be a sequence"),
        ({"classes": (0, 1.0)}, r"classes\[1\] must be an integer"),
        ({"directory": 3}, "directory must be a path or None, but it is 3"),
    ],
)
def test_bad_types(arguments, message):
    with pytest.raises(TypeError, match=message):
        mnist(**arguments)


def test_a_directory_without_mnist(tmp_path, digits):
    with pytest.raises(FileNotFoundError, match="has no complete MNIST: looked for train-images-idx3-ubyte"):
        mnist(directory=tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere' does not exist"):
        mnist(directory=tmp_path / "nowhere")
    write_mnist(tmp_path, *digits)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(FileNotFoundError, match="has no complete MNIST"):
        mnist(directory=tmp_path)


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("train-images-idx3-ubyte", lambda b: b[:-1], "train-images-idx3-ubyte is truncated: its header announces"),
        ("train-images-idx3-ubyte", lambda b: b[:9], "train-images-idx3-ubyte is truncated: it ends inside its header"),
        ("train-images-idx3-ubyte", lambda b: b + b"x", "train-images-idx3-ubyte has bytes after its end"),
        ("t10k-images-idx3-ubyte", lambda b: b"", "t10k-images-idx3-ubyte is not an idx file"),
        ("t10k-images-idx3-ubyte", lambda b: b"<html>" + b, "t10k-images-idx3-ubyte is not an idx file"),
        ("t10k-labels-idx1-ubyte", lambda b: b[:8] + b"\x0a" + b[9:], "must hold labels from 0 to 9, but one is 10"),
        ("t10k-labels-idx1-ubyte", lambda b: idx_bytes(np.zeros(3)), "has 3 labels for the 30 images"),
        ("train-images-idx3-ubyte", lambda b: idx_bytes(np.zeros((40, 8, 8))), "must hold images of 28 x 28 pixels"),
    ],
)
def test_damaged_files(tmp_path, digits, name, damage, message):
    write_mnist(tmp_path, *digits)
    (tmp_path / name).write_bytes(damage((tmp_path / name).read_bytes()))
    with pytest.raises(FileFormatError, match=message):
        mnist(n_train=5, n_test=5, directory=tmp_path)


@pytest.mark.parametrize("damage", [lambda b: b[:-20], lambda b: b"no gzip", lambda b: b[:30] + b"\xff" * 9 + b[39:]])
def test_damaged_gzip(tmp_path, digits, damage):
    write_mnist(tmp_path, *digits, gz=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(FileFormatError, match="train-images-idx3-ubyte.gz is not a complete gzip file"):
        mnist(n_train=5, n_test=5, directory=tmp_path)
