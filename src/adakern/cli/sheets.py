"""What the commands that check rows of known numbers share: running, keeping, printing, and the page."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from adakern.cli.output import check_target, print_json, replacing

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
    for path in (markdown, numbers, picture):
        if path is not None:
            check_target(path)
    chosen = list(asked.only) if asked.only else list(sheet.checks)
    for name in chosen:
        if name not in sheet.checks:
            raise ValueError(f"--only must be one of {', '.join(sheet.checks)}, but it is {name!r}")
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
        with replacing(picture) as temporary:
            sheet.draw(rows).savefig(temporary, format=picture.suffix.lstrip(".") or "png", dpi=160)
    if markdown is not None:
        with replacing(markdown) as temporary:
            temporary.write_text(_markdown(sheet, facts, picture, markdown), encoding="utf-8")
    if asked.as_json:
        print_json(facts)
    else:
        _print(facts)
    if facts["passed"] < facts["judged"]:
        raise typer.Exit(1)


def _earlier(path: Path | None, quick: bool) -> tuple[dict[str, list[Row]], dict[str, float], dict[str, Any]]:
    """The checks that an earlier command left in a file of numbers."""
    import json

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
    import json

    from adakern.cli.output import plain

    if path is None:
        return
    held = {
        "quick": quick,
        "seconds": seconds,
        "machines": hosts,
        "rows": {k: [row.__dict__ for row in v] for k, v in rows.items()},
    }
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(plain(held), indent=1, allow_nan=False) + "\n", encoding="utf-8")


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
        device = f"{host['device']}, " if host["backend"] != "cpu" else ""
        text = f"{device}{host['cpu']}, {host['cores']} cores, {host['backend']} backend; adakern {host['adakern']}, "
        by.setdefault(text + f"jax {host['jax']}, numpy {host['numpy']}, python {host['python']}", []).append(name)
    several = len(by) > 1
    return " ".join(f"Machine{' of ' + ', '.join(names) if several else ''}: {text}." for text, names in by.items())
