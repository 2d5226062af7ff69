"""Runs the tours of examples/ and writes docs/tours/NAME.md: every cell with what it printed, and the pictures it drew.

    .venv/bin/python tools/run_tours.py              # both
    .venv/bin/python tools/run_tours.py theorists

Cells are those of jupytext's percent format. Numbers that are sampled are those of the same seed on the same machine.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import warnings
from pathlib import Path

os.environ.setdefault("MPLBACKEND", "agg")

import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parent.parent
TOURS = ("theorists", "practitioners")
_CELL = re.compile(r"^# %%( \[markdown\])?\n", re.MULTILINE)


def cells(text: str) -> list[tuple[bool, str]]:
    """`(is it prose, what it holds)` of every cell; what stands before the first is a header."""
    parts = _CELL.split(text)[1:]
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return [(mark is not None, _prose(body) if mark else body.strip("\n")) for mark, body in pairs]


def _prose(body: str) -> str:
    return "\n".join(line.removeprefix("#").removeprefix(" ") for line in body.strip("\n").split("\n"))


def run(name: str, folder: Path) -> Path:
    """One tour, as a page."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    page, pictures = [], 0
    for prose, body in cells((ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")):
        if prose:
            page.append(body)
            continue
        page.append(f"```python\n{body}\n```")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(compile(body, f"{name}.py", "exec"), namespace)
        if printed.getvalue().strip():
            page.append(f"```text\n{printed.getvalue().rstrip()}\n```")
        for number in plt.get_fignums():
            pictures += 1
            picture = folder / f"{name}-{pictures}.png"
            plt.figure(number).savefig(picture, dpi=120, bbox_inches="tight")
            page.append(f"![what the cell drew]({picture.name})")
        plt.close("all")
    head, *rest = page
    source = f"`examples/{name}.py`, run as it stands; jupytext opens it as a notebook."
    path = folder / f"{name}.md"
    path.write_text("\n\n".join([head, source, *rest]) + "\n", encoding="utf-8")
    return path


def main() -> None:
    folder = ROOT / "docs" / "tours"
    folder.mkdir(exist_ok=True)
    for name in sys.argv[1:] or TOURS:
        if name not in TOURS:
            raise SystemExit(f"a tour must be one of {', '.join(TOURS)}, but it is {name!r}")
        print(run(name, folder))


if __name__ == "__main__":
    main()
