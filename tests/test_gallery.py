"""The gallery, docs/figures/: every figure is there with its numbers, the command that made it, and a verdict on every claim of the paper."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import matplotlib as mpl
import matplotlib.image
import numpy as np
import pytest
from PIL import Image

from adakern.figures import NAMES, get, room, running, style

FOLDER = Path(__file__).parent.parent / "docs" / "figures"
PAGE = (FOLDER / "index.md").read_text(encoding="utf-8")
SECTIONS = {part.split("\n", 1)[0]: part for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]}
VERDICTS = ("Reproduced", "Corrected", "Different", "Open")


def _settings(settings: object) -> dict[str, object]:
    return json.loads(json.dumps(asdict(settings)))  # type: ignore[call-overload, no-any-return]


def test_the_page_has_every_figure_and_no_other():
    assert list(SECTIONS) == list(NAMES)
    assert {path.name for path in FOLDER.iterdir()} == {"index.md"} | {
        f"{n}.{end}" for n in NAMES for end in ("png", "npz")
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_claim_has_a_verdict(name):
    claims = re.findall(r"^\* (.*) \*\*(\w+)\.\*\* (.+)$", SECTIONS[name], re.MULTILINE)
    assert [claim for claim, *_ in claims] == list(get(name).PAPER)
    for _, verdict, reason in claims:
        assert verdict in VERDICTS and len(reason) > 20


@pytest.mark.parametrize("name", NAMES)
def test_the_command_is_the_one_that_made_the_numbers(name):
    module = get(name)
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as file:
        held = json.loads(str(file["settings"]))
        parts = {key.rpartition("/")[0] for key in file.files} - {""}
    quick = f"\nadakern figure {name} --quick\n" in SECTIONS[name]
    assert quick != (f"\nadakern figure {name}\n" in SECTIONS[name])
    settings = module.QUICK if quick else module.FULL
    assert held == _settings(settings)
    assert parts == {part.name for part in module.parts(settings)}


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_covered_or_cut_off(name):
    """Drawn again from the numbers: no legend covers data or leaves its panel, no text leaves the page, and the picture is the one that is kept."""
    module = get(name)
    settings, numbers = running.unflatten(module, FOLDER / f"{name}.npz")
    with style.context():
        picture = module.draw(settings, numbers)
        picture.set_dpi(mpl.rcParams["savefig.dpi"])
        picture.canvas.draw()
    for axes in picture.axes:
        if (legend := axes.get_legend()) is not None:
            box, panel = legend.get_window_extent(), axes.get_window_extent()
            assert not room.covered(axes)
            assert box.x0 >= panel.x0 and box.x1 <= panel.x1 and box.y0 >= panel.y0 and box.y1 <= panel.y1
    drawn, (width, height) = picture.get_tightbbox(), picture.get_size_inches()
    assert drawn.x0 >= 0 and drawn.y0 >= 0 and drawn.x1 <= width and drawn.y1 <= height
    with Image.open(FOLDER / f"{name}.png") as kept:
        if mpl.__version__ in kept.info["Software"]:  # other versions set text otherwise
            assert np.array_equal(np.asarray(kept), np.asarray(picture.canvas.buffer_rgba())), "draw it again"


@pytest.mark.parametrize("name", NAMES)
def test_the_pictures_are_pictures(name):
    picture = matplotlib.image.imread(FOLDER / f"{name}.png")
    assert min(picture.shape[:2]) > 500 and picture[..., :3].std() > 0.05
