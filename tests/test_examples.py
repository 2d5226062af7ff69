"""The tours of examples/ run as they stand, and what they say about their own numbers is so."""

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_every_tour_is_run():
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == ["practitioners.py", "theorists.py"]


@pytest.mark.parametrize("name", ["theorists", "practitioners"])
def test_the_executed_page_is_that_of_the_script(name):
    """`tools/run_tours.py` writes it: every cell is there, in order, and the pictures are."""
    cells = runpy.run_path(str(EXAMPLES.parent / "tools" / "run_tours.py"))["cells"]
    folder = EXAMPLES.parent / "docs" / "tours"
    page, place = (folder / f"{name}.md").read_text(encoding="utf-8"), 0
    for prose, body in cells((EXAMPLES / f"{name}.py").read_text(encoding="utf-8")):
        place = page.index(body if prose else f"```python\n{body}\n```", place)
    assert all((folder / picture).exists() for picture in re.findall(r"!\[.*\]\((.*)\)", page))


def test_theorists():
    found = runpy.run_path(str(EXAMPLES / "theorists.py"))
    assert found["nngp"].residual < 1e-10 and found["end"].certificate < 1e-4
    assert min(found["agreement"]) > 0.98 and found["arrived"] < 0.01
    turned = [found["ak"].alignment(kernel, found["labels"]) for kernel in found["rich"].kernels]
    assert turned[1] > turned[0] > found["ak"].alignment(found["nngp"].kernels[0], found["labels"])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_practitioners():
    found = runpy.run_path(str(EXAMPLES / "practitioners.py"))
    assert found["scores"][1.0] > 0.5 > found["scores"][0.0] and found["scores"][1.0] > found["rbf_score"]
    assert found["best"] > 0 and int(max(range(12), key=lambda column: found["losses"][column])) == 0
    assert found["right"][1.0] > found["right"][0.0] + 0.02
    assert min(found["accuracies"].values()) > 0.9 and found["accuracies"][0.5] < found["accuracies"][0.0]
