"""The order rule on splits small enough to order by hand."""

from __future__ import annotations

import numpy as np
import pytest

from adakern.datasets import order
from adakern.datasets.order import NEVER, Split


def split(labels, positions=None, absent_from=None):
    labels = np.array(labels)
    complete = Split.complete(np.zeros((len(labels), 1, 1, 1), np.uint8), labels)
    if positions is None:
        return complete
    ends = np.full(10, NEVER)
    for c, end in absent_from.items():
        ends[c] = end
    return Split(complete.images, labels, np.array(positions), ends)


def test_training_images_keep_the_original_order():
    assert order.ordered_training_rows(split([1, 0, 2, 0, 1, 2, 0]), (0, 1)).tolist() == [0, 1, 3, 4, 6]


def test_test_images_come_in_two_blocks():
    labels = [1, 1, 1, 2, 0, 0, 1, 0, 0]
    assert order.ordered_test_rows(split(labels), (0, 1), first_block=2).tolist() == [0, 1, 4, 5, 2, 6, 7, 8]


def test_a_complete_class_smaller_than_the_first_block_stops_nothing():
    assert order.ordered_test_rows(split([1, 1, 1, 0, 1]), (0, 1), first_block=2).tolist() == [0, 1, 3, 2, 4]


def test_training_stops_before_the_first_absent_image():
    # original: 0 1 0 1 0 1 with the 1 at position 3 absent: the 0 at position 4 is held, but cannot be in order
    part = split([0, 1, 0, 0], [0, 1, 2, 4], {1: 3})
    assert order.ordered_training_rows(part, (0, 1)).tolist() == [0, 1, 2]
    assert order.ordered_training_rows(part, (0,)).tolist() == [0, 2, 3]


def test_a_broken_first_block_is_followed_by_nothing():
    # class 1 has one image of its first block of two
    part = split([0, 1, 0, 0, 0], [0, 1, 2, 4, 5], {1: 3})
    assert order.ordered_test_rows(part, (0, 1), first_block=2).tolist() == [0, 1, 2]
    assert order.ordered_test_rows(part, (0,), first_block=2).tolist() == [0, 2, 3, 4]


def test_the_second_block_stops_before_the_first_absent_image():
    part = split([0, 1, 0, 1, 0, 0], [0, 1, 2, 3, 4, 8], {0: 9, 1: 6})
    assert order.ordered_test_rows(part, (0, 1), first_block=2).tolist() == [0, 1, 2, 3, 4]


def test_block_one_ignores_where_the_second_block_breaks_off():
    # class 1 breaks off at 3, before the second 0 of the first block at 4: the first block is whole all the same
    part = split([1, 1, 0, 0], [0, 1, 2, 4], {1: 3})
    assert order.ordered_test_rows(part, (0, 1), first_block=2).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("block", [1, 2, 300])
def test_every_image_comes_once(block):
    labels = np.random.default_rng(2).integers(0, 3, 50)
    rows = order.ordered_test_rows(split(labels), (0, 2), first_block=block)
    assert sorted(rows.tolist()) == np.flatnonzero(labels != 1).tolist()


@pytest.mark.parametrize(
    ("half", "size", "first"),
    [("train", 50000, [16399, 1680, 47917, 17307, 27051]), ("test", 10000, [9933, 5669, 163, 6686, 4747])],
)
def test_the_order_of_tensorflow_datasets(half, size, first):
    """The example that its catalogue shows first is `train_16399`."""
    rows = getattr(order.HASHED, half)(split(np.zeros(size, int)), (0,))
    assert rows[:5].tolist() == first
    assert sorted(rows.tolist()) == list(range(size))


def test_the_hashed_order_is_that_of_positions():
    """A part of the data set, and some of its classes, come in the order that they have in the whole."""
    labels = np.arange(60) % 3
    whole = order.HASHED.train(split(labels), (0, 2))
    held = np.flatnonzero(np.random.default_rng(4).random(60) < 0.5)
    part = Split(np.zeros((len(held), 1, 1, 1), np.uint8), labels[held], held, np.full(10, NEVER))
    assert held[order.HASHED.train(part, (0, 2))].tolist() == [row for row in whole if row in held]
