"""Roots of functions that are known: none is missed, none is invented."""

from __future__ import annotations

import numpy as np
import pytest

from adakern.deep_linear.crossings import crossings


def find(f, df, low, high, slope, curvature, **options):
    return crossings(lambda x: (f(x), df(x)), low, high, lambda x: np.full_like(x, slope), curvature, **options)


def test_all_roots_of_a_sine():
    found = find(np.sin, np.cos, 0.5, 20.0, 1.0, 1.0)
    np.testing.assert_allclose(found.roots, np.pi * np.arange(1, 7), rtol=1e-14)
    assert found.complete


def test_two_roots_that_nearly_meet():
    """A minimum that dips below zero by 1e-10: both roots are found, and above zero none."""

    def dip(by):
        return find(lambda x: (x - 1 / 3) ** 2 - by, lambda x: 2 * (x - 1 / 3), -1.0, 1.0, 3.0, 2.0)

    np.testing.assert_allclose(dip(1e-10).roots, [1 / 3 - 1e-5, 1 / 3 + 1e-5], atol=1e-12)
    assert len(dip(-1e-10).roots) == 0
    np.testing.assert_allclose(dip(0.0).roots, [1 / 3], atol=1e-8)  # touches


def test_without_a_bound_on_the_curvature_close_pairs_count_as_none_or_both():
    found = find(np.sin, lambda x: np.zeros_like(x), 0.5, 20.0, 1.0, None, finest=0.02)
    np.testing.assert_allclose(found.roots, np.pi * np.arange(1, 7), rtol=1e-12)


@pytest.mark.parametrize("place", [0.25, 0.5, 1.0 - 1e-13])
def test_a_root_on_a_border_counts_once(place):
    assert len(find(lambda x: x - place, np.ones_like, 0.0, 1.0, 1.0, 0.1).roots) == 1
