"""A check of drawings that every figure's test shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from adakern import figures
from adakern.figures import style
from adakern.figures.room import covered


@pytest.fixture
def drawn() -> Callable[..., Figure]:
    """Draw a figure from made-up numbers, which must be those of its computations: axes are labelled, something has error bars, something a legend."""

    def check(name: str, settings: Any, numbers: Mapping[str, Mapping[str, np.ndarray]]) -> Figure:
        module = figures.get(name)
        assert {part.name for part in module.parts(settings)} == set(numbers)
        with style.context():
            picture = module.draw(settings, numbers)
            picture.canvas.draw()
        charts = [axes for axes in picture.axes if axes.has_data() and not axes.images and not _bar(axes)]
        assert charts and all(axes.get_xlabel() and axes.get_ylabel() for axes in charts)
        assert any(axes.containers for axes in charts)
        assert any(axes.get_legend() is not None for axes in charts) or picture.legends
        title = picture._suptitle
        assert title is not None and _inside(title.get_window_extent(), picture.bbox)
        assert not any(covered(axes) for axes in charts if axes.get_legend() is not None)
        return picture

    return check


def _inside(box: Any, page: Any) -> bool:
    return box.x0 >= page.x0 and box.x1 <= page.x1


def _bar(axes: Any) -> bool:
    return axes.get_label() == "<colorbar>"
