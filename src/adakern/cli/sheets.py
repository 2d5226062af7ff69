"""What the commands that check rows of known numbers share: running, keeping, printing, and the page.

A `Sheet` is a list of checks that all have the same columns. A `Book` has cases with tables of their own and settings that are run one at a time, here or on
another machine, into one file of numbers.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import typer

from adakern.cli.output import check_target, plain, print_json, replacing

if TYPE_CHECKING:
    from adakern.benchmarks.truth import Row

_HEADER = ("check", "measured", "error", "expected", "sigmas", "")


@dataclass(frozen=True)
class Sheet:
    """A command's checks, the title of its page, and how its picture is drawn."""

    command: str
    title: str
    checks: dict[str, Callable[[bool], Iterator[Row]]]
    draw: Callable[[dict[str, list[Row]]], Any]


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    quick: bool
    only: list[str] | None
    markdown: Path | None
    numbers: Path | None
    picture: Path | None
    as_json: bool


def run(sheet: Sheet, asked: Request) -> None:
    """Run the checks that a file of numbers does not hold, and show all of them."""
    from adakern.benchmarks import timing

    markdown, numbers, picture = asked.markdown, asked.numbers, asked.picture
    _check(asked, sheet.checks)
    chosen = list(asked.only) if asked.only else list(sheet.checks)
    rows, seconds, hosts = _earlier(numbers, asked.quick)
    for name in chosen:
        if name in rows:
            continue
        started, found = time.perf_counter(), []
        for row in sheet.checks[name](asked.quick):
            found.append(row)
            if sys.stderr.isatty():
                typer.echo(f"{name}: {row.setting}", err=True)
        rows[name], seconds[name] = found, time.perf_counter() - started
        hosts[name] = timing.machine()
        _keep(numbers, asked.quick, rows, seconds, hosts)
    rows = {name: rows[name] for name in sheet.checks if name in chosen and name in rows}
    judged = [row.ok for part in rows.values() for row in part if row.ok is not None]
    facts: dict[str, Any] = {
        "rows": {name: [{**row.__dict__, "sigmas": row.sigmas} for row in part] for name, part in rows.items()},
        "seconds": seconds,
        "passed": sum(judged),
        "judged": len(judged),
        "quick": asked.quick,
        "only": list(asked.only or ()),
        "machines": {name: hosts[name] for name in rows},
    }
    if picture is not None:
        _save(sheet.draw(rows), picture)
    if markdown is not None:
        _write(_markdown(sheet, facts, picture, markdown), markdown)
    if asked.as_json:
        print_json(facts)
    else:
        _print(facts)
    if facts["passed"] < facts["judged"]:
        raise typer.Exit(1)


def _check(asked: Request, known: Mapping[str, Any]) -> None:
    """Refuse files that cannot be written and names that nothing has, before any work starts."""
    for path in (asked.markdown, asked.numbers, asked.picture):
        if path is not None:
            check_target(path)
    for name in asked.only or ():
        if name not in known:
            raise ValueError(f"--only must be one of {', '.join(known)}, but it is {name!r}")


def _save(figure: Any, picture: Path) -> None:
    with replacing(picture) as temporary:
        figure.savefig(temporary, format=picture.suffix.lstrip(".") or "png", dpi=160)


def _write(text: str, path: Path) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _earlier(path: Path | None, quick: bool) -> tuple[dict[str, list[Row]], dict[str, float], dict[str, Any]]:
    """The checks that an earlier command left in a file of numbers."""
    from adakern.benchmarks.truth import Row

    if path is None or not path.exists():
        return {}, {}, {}
    held = json.loads(path.read_text(encoding="utf-8"))
    if held["quick"] != quick:
        raise ValueError(
            f"--numbers {path} holds {'quick' if held['quick'] else 'full-size'} checks; give another file"
        )
    rows = {name: [Row(**row) for row in part] for name, part in held["rows"].items()}
    return rows, held["seconds"], held["machines"]


def _keep(
    path: Path | None, quick: bool, rows: dict[str, list[Row]], seconds: dict[str, float], hosts: dict[str, Any]
) -> None:
    if path is None:
        return
    held = {
        "quick": quick,
        "seconds": seconds,
        "machines": hosts,
        "rows": {k: [row.__dict__ for row in v] for k, v in rows.items()},
    }
    _write(json.dumps(plain(held), indent=1, allow_nan=False) + "\n", path)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    error = f"{row['error']:.2g}" if row["error"] else ""
    joint = row["error"] or row["doubt"]
    verdict = {True: "ok", False: "FAILED", None: ""}[row["ok"]]
    known = row["expected"] is not None
    sigmas = f"{row['sigmas']:.1f}" if joint and known else ""
    expected = (f"{row['expected']:.5g}" if known else "") + (f" ± {row['doubt']:.2g}" if row["doubt"] else "")
    return row["setting"], f"{row['measured']:.5g}", error, expected, sigmas, verdict


def _print(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    for name, rows in facts["rows"].items():
        table = Table(title=f"{name}, {facts['seconds'][name]:.0f} s", title_justify="left")
        for index, column in enumerate(_HEADER):
            table.add_column(column, justify="left" if index == 0 else "right")
        for row in rows:
            table.add_row(*_cells(row))
        console.print(table)
    console.print(f"{facts['passed']} of {facts['judged']} judged rows hold")


def _markdown(sheet: Sheet, facts: dict[str, Any], picture: Path | None, target: Path) -> str:
    options = (["--quick"] if facts["quick"] else []) + [f"--only {name}" for name in facts["only"]]
    command = " ".join([sheet.command, *options])
    lines = [
        f"# {sheet.title}",
        "",
        f"`{command}`",
        "",
        "Errors are standard errors; sigmas the difference over the joint standard error. Rows without a verdict inform. "
        f"**{facts['passed']} of {facts['judged']} judged rows hold.**",
        "",
    ]
    if picture is not None and picture.parent == target.parent:
        lines += [f"![the checks]({picture.name})", ""]
    for name, rows in facts["rows"].items():
        about = (sheet.checks[name].__doc__ or "").strip()
        lines += [f"## {name}", "", f"{about} {facts['seconds'][name]:.0f} s.", ""]
        lines += ["| " + " | ".join(_HEADER) + " |", "| --- | ---: | ---: | ---: | ---: | --- |"]
        lines += ["| " + " | ".join(_cells(row)) + " |" for row in rows]
        lines += [""]
    lines += [_machines(facts["machines"])]
    return "\n".join(lines) + "\n"


def _machines(hosts: dict[str, Any]) -> str:
    """Where the numbers come from, each machine once."""
    by: dict[str, list[str]] = {}
    for name, host in hosts.items():
        by.setdefault(_host(host), []).append(name)
    several = len(by) > 1
    return " ".join(f"Machine{' of ' + ', '.join(names) if several else ''}: {text}." for text, names in by.items())


def _host(host: dict[str, Any]) -> str:
    device = f"{host['device']}, " if host["backend"] != "cpu" else ""
    text = f"{device}{host['cpu']}, {host['cores']} cores, {host['backend']} backend; adakern {host['adakern']}, "
    return text + f"jax {host['jax']}, numpy {host['numpy']}, python {host['python']}"


class Case(Protocol):
    """Settings that make one table: each measures rows, given the options."""

    @property
    def about(self) -> str: ...
    @property
    def settings(self) -> Mapping[str, Callable[[Any], Iterator[Any]]]: ...


@dataclass(frozen=True)
class Book:
    """A command's cases, the words of its page, and how a row becomes a line and all of them a picture."""

    command: str
    title: str
    legend: str  # stands above the tables
    small: str  # what the page says of quick runs
    caption: str  # of the picture
    cases: Mapping[str, Case]
    header: Callable[[str], tuple[str, ...]]  # the columns of a case
    cells: Callable[[str, dict[str, Any]], tuple[str, ...]]  # those of a row of a case
    draw: Callable[[dict[str, list[dict[str, Any]]]], Any]  # from the rows of every case
    left: tuple[str, ...]  # columns aligned to the left
    wide: tuple[str, ...] = ()  # columns for the page alone


_ROW_HEADER = ("setting", "measured", "error", "bar", "holds?", "note")
_ROW_LEGEND = "Rows without a verdict inform. Errors are standard errors. Theory is in float64, networks in float32; seconds include compilation where not said otherwise."


def row_book(command: str, title: str, cases: Mapping[str, Case], draw: Callable[[dict[str, list[Any]]], Any]) -> Book:
    """A book whose cases all give one number a row (`benchmarks.flow_rows.Row`)."""
    small = "These are quick runs, of small problems and networks."
    text = ("setting", "bar", "holds?", "note")
    return Book(command, title, _ROW_LEGEND, small, "the checks", cases, lambda _: _ROW_HEADER, _row_cells, draw, text)


def _row_cells(case: str, row: dict[str, Any]) -> tuple[str, ...]:
    holds = {True: "yes", False: "NO", None: ""}[row["ok"]]
    measured = "" if row["measured"] is None else f"{row['measured']:.5g}"
    error = "" if row["error"] is None else f"{row['error']:.2g}"
    return row["setting"], measured, error, row["bar"], holds, row["note"]


def run_book(book: Book, asked: Request, options: Any, setting: str, draw: bool) -> None:
    """Run the settings whose name contains `setting`, or none of them to draw, put them among those that a file of numbers holds, and show all."""
    _check(asked, book.cases)
    numbers = asked.numbers
    if draw and (numbers is None or not numbers.exists()):
        raise ValueError("--draw needs --numbers with a file of an earlier run")
    parts = _parts(numbers, None if draw else asked.quick)
    command = _command(book.command, options, asked.only or [], setting)
    chosen = {} if draw else {name: book.cases[name].settings for name in asked.only or book.cases}
    chosen = {name: {k: f for k, f in settings.items() if setting in k} for name, settings in chosen.items()}
    if not draw and not any(chosen.values()):
        raise ValueError(f"no setting of {', '.join(chosen)} contains {setting!r}")
    for name, settings in chosen.items():
        for key, measure in settings.items():
            if sys.stderr.isatty():
                typer.echo(f"{name}: {key} ...", err=True)
            place = {"case": name, "setting": key, "quick": asked.quick, "command": command}
            held = parts
            for part in _growing(place, measure(options)):
                parts = _merged(held, part, book.cases)
                if numbers is not None:
                    _write(json.dumps({"parts": parts}, indent=1, allow_nan=False) + "\n", numbers)
    rows = [row for part in parts for row in part["rows"] if row["ok"] is not None]
    facts = {"parts": parts, "passed": sum(row["ok"] for row in rows), "judged": len(rows)}
    if asked.picture is not None:
        found = {name: [row for part in held for row in part["rows"]] for name, held in _by_case(parts).items()}
        _save(book.draw(found), asked.picture)
    if asked.markdown is not None:
        _write(_page(book, facts, asked.picture, asked.markdown), asked.markdown)
    if asked.as_json:
        print_json(facts)
    else:
        _print_book(book, facts)
    if facts["passed"] < facts["judged"]:
        raise typer.Exit(1)


def _growing(place: dict[str, Any], rows: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """A setting's part after each of its rows, so that a run that is killed keeps what it has, and at its end."""
    started = time.perf_counter()
    part: dict[str, Any] = {**place, "rows": [], "whole": False}
    for row in rows:
        part["rows"].append(plain(row if isinstance(row, dict) else row.plain()))
        yield _timed(part, started)
    del part["whole"]
    yield _timed(part, started)


def _timed(part: dict[str, Any], started: float) -> dict[str, Any]:
    from adakern.benchmarks import timing

    return plain({**part, "seconds": time.perf_counter() - started, "machine": timing.machine()})


def _command(command: str, options: Any, only: list[str], setting: str) -> str:
    """The command that gives these numbers, without the files."""
    words = [command, *(["--quick"] if options.quick else [])]
    words += [f"--only {name}" for name in only] + ([f'--setting "{setting}"'] if setting else [])
    for name, default in type(options)().__dict__.items():
        value = getattr(options, name)
        if name not in ("quick", "runs") and value != default:
            words.append(f"--{name} {value:g}")
    return " ".join(words)


def _parts(path: Path | None, quick: bool | None) -> list[dict[str, Any]]:
    """What earlier commands left in a file of numbers."""
    if path is None or not path.exists():
        return []
    parts: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["parts"]
    if quick is not None and any(part["quick"] != quick for part in parts):
        raise ValueError(f"--numbers {path} holds {'full-size' if quick else 'quick'} cases; give another file")
    return parts


def _merged(parts: list[dict[str, Any]], fresh: dict[str, Any], cases: Mapping[str, Case]) -> list[dict[str, Any]]:
    """The parts with a fresh one in its place, in the order of the cases. One that is not whole does not displace one that is."""
    places = [(name, key) for name, case in cases.items() for key in case.settings]
    held = {(part["case"], part["setting"]): part for part in parts}
    place = fresh["case"], fresh["setting"]
    if fresh.get("whole", True) or not held.get(place, {"whole": False}).get("whole", True):
        held[place] = fresh
    return [held[place] for place in places if place in held]


def _by_case(parts: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for part in parts:
        found.setdefault(part["case"], []).append(part)
    return found


def _print_book(book: Book, facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    for name, parts in _by_case(facts["parts"]).items():
        header = book.header(name)
        seconds = sum(part["seconds"] for part in parts)
        table = Table(title=f"{name}, {seconds:.0f} s", title_justify="left")
        kept = [i for i, column in enumerate(header) if column not in book.wide]
        for column in (header[i] for i in kept):
            table.add_column(column, justify="left" if column in book.left else "right")
        for row in (row for part in parts for row in part["rows"]):
            cells = book.cells(name, row)
            table.add_row(*(Text(cells[i]) for i in kept))  # brackets are no markup
        console.print(table)
        for text in _cut(parts):
            console.print(text)
    console.print(f"{facts['passed']} of {facts['judged']} judged rows hold")


def _cut(parts: list[dict[str, Any]]) -> list[str]:
    """What was not run to its end."""
    names = [part["setting"] for part in parts if not part.get("whole", True)]
    return [f"Cut short: {', '.join(names)}."] if names else []


def _page(book: Book, facts: dict[str, Any], picture: Path | None, target: Path) -> str:
    """The Markdown page of stored numbers."""
    lines = [f"# {book.title}", ""]
    lines += [f"`{command}`\n" for command in dict.fromkeys(part["command"] for part in facts["parts"])]
    lines += [f"{book.legend} **{facts['passed']} of {facts['judged']} judged rows hold.**", ""]
    if any(part["quick"] for part in facts["parts"]):
        lines += [book.small, ""]
    if picture is not None and picture.parent == target.parent:
        lines += [f"![{book.caption}]({picture.name})", ""]
    for name, parts in _by_case(facts["parts"]).items():
        header, seconds = book.header(name), sum(part["seconds"] for part in parts)
        lines += [f"## {name}", "", f"{book.cases[name].about} {seconds:.0f} s in all.", ""]
        lines += ["| " + " | ".join(header) + " |"]
        lines += ["| " + " | ".join("---" if column in book.left else "---:" for column in header) + " |"]
        for row in (row for part in parts for row in part["rows"]):
            lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in book.cells(name, row)) + " |"]
        machines = dict.fromkeys(f"Machine: {_host(part['machine'])}." for part in parts)
        lines += ["", " ".join([*machines, *_cut(parts)]), ""]
    return "\n".join(lines).rstrip() + "\n"
