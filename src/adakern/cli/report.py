"""`adakern report`: saved solutions in, one HTML page out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adakern.cli import data
from adakern.cli.output import check_target, print_json, print_pairs, replacing

if TYPE_CHECKING:
    from adakern.report import Test
    from adakern.solution import Solution

EXAMPLE = "adakern report run.safetensors --out run.html"


def run(
    solution: Annotated[
        list[Path],
        typer.Argument(
            help="A file that 'adakern fit' or Solution.save wrote; several, or a folder of them, are a sweep over the richness."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("adakern-report.html"),
    test: Annotated[Path | None, typer.Option(help="New points to predict, .csv or .npz.")] = None,
    target: Annotated[
        list[str] | None, typer.Option(help="Target column of the new points (repeat for several), if any.")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(help="Name of a class, in the order of the targets (repeat for each).")
    ] = None,
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write one self-contained HTML page of a saved solution, or of a sweep over the richness: kernels, densities, alignments, evidence, predictions."""
    from adakern.report import page

    if out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--out must name a .html file, but it is {str(out)!r}")
    if target and test is None:
        raise ValueError("--target needs --test: it names a column of the new points")
    sources = _files(solution)
    check_target(out, *sources, *([] if test is None else [test]))
    solutions = [_read(path) for path in sources]
    new = None if test is None else _new(test, target, solutions[0])
    names = [path.name for path in sources]
    text = page(solutions, names=names, title=title, labels=label or (), test=new)
    with replacing(out) as temporary:
        temporary.write_text(text, encoding="utf-8")
    facts = {
        "file": str(out),
        "solutions": [str(path) for path in sources],
        "bytes": len(text.encode()),
        "converged": all(one.converged for one in solutions),
    }
    if as_json:
        print_json(facts)
    else:
        count = len(sources)
        shown = sources[0] if count == 1 else f"{count}, a sweep over the richness"
        print_pairs({"solution" if count == 1 else "solutions": shown, "page": out, "size": _size(facts)}, "Reported")


def _files(given: list[Path]) -> list[Path]:
    """The files that were named, and those in the folders that were."""
    found: list[Path] = []
    for path in given:
        if path.is_dir():
            inside = sorted(path.glob("*.safetensors"))
            if not inside:
                raise FileNotFoundError(f"there is no .safetensors file in the folder {path}")
            found += inside
        else:
            found.append(path)
    return found


def _read(path: Path) -> Solution:
    from adakern.loading import load
    from adakern.solution import Solution

    held = load(path)
    if not isinstance(held, Solution):
        raise ValueError(f"{path} holds a {type(held).__name__}; a report is of solutions, which 'adakern fit' writes")
    return held


def _new(path: Path, target: list[str] | None, solution: Solution) -> Test:
    from adakern.report import Test

    X, y = data.new(path, target, solution)
    return Test(X, y, path.name)


def _size(facts: dict[str, object]) -> str:
    return f"{int(str(facts['bytes'])) / 1e6:.2f} MB"
