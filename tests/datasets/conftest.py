"""Shared by the tests of the data sets: no test sees the user's ADAKERN_DATA, and fake sets to read."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for official_files, whichever way pytest imports the tests


@pytest.fixture(autouse=True)
def no_data_directory(monkeypatch):
    monkeypatch.delenv("ADAKERN_DATA", raising=False)


@pytest.fixture
def digits():
    """Random images of 28 x 28 with labels 0..3: 40 for training, 30 to test."""
    rng = np.random.default_rng(0)
    return tuple((rng.integers(0, 256, (n, 28, 28), dtype=np.uint8), np.arange(n) * 7 % 4) for n in (40, 30))


@pytest.fixture
def photographs():
    """Six batches of 8 random images of 32 x 32 x 3 with labels 0..3."""
    rng = np.random.default_rng(1)
    return [(rng.integers(0, 256, (8, 32, 32, 3), dtype=np.uint8), rng.permutation(8) % 4) for _ in range(6)]
