"""`adakern figure`: the paper's figures, one name each."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adakern.cli.failures import EXPECTED, FAILED, sentence
from adakern.cli.output import check_folder, print_json, replacing, show_progress

if TYPE_CHECKING:
    from adakern.figures.running import Outcome, Save

EXAMPLE = "adakern figure single-point --quick --out figures"
_ALL = "all"


def run(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Of a figure (several, if you like), or all.")
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List the figures.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="A minute or two on two cores, with the bundled data.")
    ] = False,
    out: Annotated[Path, typer.Option(help="The folder to write to; it is made if need be.")] = Path("figures"),
    cache: Annotated[
        Path | None, typer.Option(help="The folder of finished computations; by default the user's own cache.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Compute only parts whose name contains this (repeat for several).")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Compute again what the cache has.")] = False,
    jobs: Annotated[
        int, typer.Option(min=1, help="Computations at once; on a GPU, where compiling takes longest, 4 or more pay.")
    ] = 1,
    redraw: Annotated[bool, typer.Option("--redraw", help="Compute nothing: draw from NAME.npz in --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="No progress bar.")] = False,
) -> None:
    """Make figures of the paper: NAME.png, NAME.svg, and NAME.npz with the numbers behind them."""
    if listing:
        _list(as_json)
        return
    from adakern import figures
    from adakern.figures import running
    from adakern.figures.cache import Cache, folder

    chosen = _chosen(names or [], figures.NAMES)
    if redraw and (fresh or only or quick):
        raise ValueError("--redraw computes nothing, so --fresh, --only and --quick have no meaning beside it")
    check_folder(out)
    begun = time.perf_counter()
    if redraw:
        outcomes = [running.redraw(name, out / f"{name}.npz", _saver(out)) for name in chosen]
    else:
        kept = folder() if cache is None else cache
        try:
            outcomes = running.run(
                chosen,
                _saver(out),
                Cache(kept, fresh),
                quick=quick,
                only=tuple(only or ()),
                jobs=jobs,
                progress=show_progress(no_progress),
            )
        except KeyboardInterrupt:
            again = (
                "without --fresh the same command goes on, with what was there before"
                if fresh
                else "the same command goes on"
            )
            typer.echo(f"adakern: finished computations are kept in {kept}; {again}", err=True)
            raise
    _report(outcomes, time.perf_counter() - begun, as_json)


def _chosen(names: Sequence[str], known: Sequence[str]) -> list[str]:
    if not names:
        raise ValueError(
            f"NAME must be one of {', '.join(known)}, or {_ALL} (adakern figure --list says what they are)"
        )
    for name in names:
        if name not in (*known, _ALL):
            raise ValueError(f"NAME must be one of {', '.join(known)}, or {_ALL}, but it is {name!r}")
    return list(known) if _ALL in names else list(dict.fromkeys(names))


def _saver(out: Path) -> Save:
    """What writes a picture, twice, and its numbers."""
    import numpy as np

    def save(name: str, picture: Any, numbers: Mapping[str, Any]) -> list[str]:
        out.mkdir(parents=True, exist_ok=True)
        paths = [out / f"{name}.{kind}" for kind in ("png", "svg")]
        for path in paths:
            with replacing(path) as temporary:
                picture.savefig(temporary, metadata={"Date": None} if path.suffix == ".svg" else None)
        if numbers:
            paths.append(out / f"{name}.npz")
            with replacing(paths[-1]) as temporary:
                np.savez_compressed(temporary, **numbers)
        return [str(path) for path in paths]

    return save


def _list(as_json: bool) -> None:
    from adakern import figures

    titles = {name: figures.get(name).TITLE for name in figures.NAMES}
    if as_json:
        print_json({"figures": titles})
        return
    width = max(map(len, titles))
    for name, title in titles.items():
        typer.echo(f"{name:<{width}}  {title}")


def _report(outcomes: Sequence[Outcome], seconds: float, as_json: bool) -> None:
    """The summary; then a line for every figure that failed, and an exit code that says so."""
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    if as_json:
        print_json({"figures": [_facts(outcome) for outcome in outcomes], "failed": len(failed), "seconds": seconds})
    else:
        _print(outcomes, seconds)
    for outcome in failed:
        assert outcome.error is not None
        if not isinstance(outcome.error, EXPECTED):  # a bug keeps its traceback
            traceback.print_exception(outcome.error)
        typer.echo(f"adakern: {outcome.name}: {sentence(outcome.error)}", err=True)
    if failed:
        raise typer.Exit(FAILED)


def _facts(outcome: Outcome) -> dict[str, Any]:
    return {
        "name": outcome.name,
        "state": outcome.state,
        "seconds": outcome.seconds,
        "computed_seconds": outcome.computed,
        "parts": outcome.parts,
        "done": outcome.done,
        "cached": outcome.cached,
        "files": outcome.files,
        "error": None if outcome.error is None else sentence(outcome.error),
    }


def _print(outcomes: Sequence[Outcome], seconds: float) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    table.add_column("figure", no_wrap=True)
    for column in ("seconds", "computations", "cached"):
        table.add_column(column, justify="right")
    table.add_column("result", overflow="fold")
    for outcome in outcomes:
        result = {"ok": "ok", "incomplete": "not drawn: computations are missing"}.get(outcome.state)
        if outcome.error is not None:
            result = f"failed: {sentence(outcome.error)}"
        counts = f"{outcome.done} of {outcome.parts}", f"{outcome.cached}"
        table.add_row(outcome.name, f"{outcome.seconds:.1f}", *counts, result)
    console = Console(highlight=False)
    console.print(table)
    for outcome in outcomes:
        if outcome.files:
            console.print(", ".join(outcome.files), markup=False, soft_wrap=True)
    console.print(f"{seconds:.0f} s in all")
