"""Set-up that every test shares: strict JAX, shapes checked at run time, and small data.

The import hook has to be in place before the library's first import, which is why it is installed here.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
from jaxtyping import install_import_hook

# The modules whose functions carry shapes. Those that check a user's arguments are left out: their own messages are tested.
CHECKED = tuple(f"adakern.{name}" for name in ("quadrature", "linalg", "recursion"))

if not any(name in sys.modules for name in CHECKED):
    install_import_hook(CHECKED, "beartype.beartype")

jax.config.update("jax_numpy_rank_promotion", "raise")

FIXTURES = Path(__file__).parent / "fixtures"
MAPS = Path("/proc/self/maps")
MOST_MAPS = 20_000  # a Linux process may have 65 530


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest tests first, so that no worker is left alone with one; those marked long where they are asked for."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    if not os.environ.get("ADAKERN_LONG"):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="make test-long runs it"))


@pytest.fixture(autouse=True, scope="module")
def _forget() -> Iterator[None]:
    """Every compiled function keeps several memory maps, and the compiler crashes where a process may have no more of them."""
    yield
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()
        gc.collect()


@pytest.fixture(scope="session")
def fixtures() -> Path:
    return FIXTURES


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20251115)


@pytest.fixture(scope="session")
def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """X (12, 5), y (12,) of order one, and five new points. Shapes are shared, so that JAX compiles once."""
    rng = np.random.default_rng(7)
    X, X_new = rng.standard_normal((12, 5)), rng.standard_normal((5, 5))
    return X, np.sin(X[:, 0]) + 0.1 * rng.standard_normal(12), X_new


@pytest.fixture(scope="session")
def solved(data):
    """Solutions of limits on `data`, each solved once however many tests look at it."""
    import adakern as ak

    found: dict = {}

    def find(limit, precision: str = "float64"):
        if (limit, precision) not in found:
            found[limit, precision] = ak.solve(limit, data[0], data[1], precision=precision)
        return found[limit, precision]

    return find
