"""`adakern bench flow`: gradient flow with weight decay, against closed forms, wide networks, certificates and other ways."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from adakern.cli.output import check_target, plain, print_json, replacing

EXAMPLE = "adakern bench flow --quick --only one-point"

_HEADER = ("setting", "measured", "error", "bar", "holds?", "note")
_TEXT = ("setting", "bar", "holds?", "note")  # columns aligned to the left


def run(
    quick: Annotated[bool, typer.Option("--quick", help="Small problems, for two cores.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="Only this case (repeat for several).")] = None,
    setting: Annotated[str, typer.Option(help="Only settings whose name contains this.")] = "",
    width: Annotated[int | None, typer.Option(min=2, help="Width of the networks.")] = None,
    length: Annotated[float | None, typer.Option("--time", min=0, help="Theirs to train, in 1/decay.")] = None,
    replicas: Annotated[int | None, typer.Option(min=2, help="dynamics: networks.")] = None,
    cap: Annotated[float, typer.Option(min=1, help="Most seconds for what is raced against.")] = 120.0,
    draw: Annotated[bool, typer.Option("--draw", help="Run nothing: tables and picture of --numbers.")] = False,
    markdown: Annotated[Path | None, typer.Option(help="Also write the tables to this Markdown file.")] = None,
    numbers: Annotated[
        Path | None, typer.Option(help="Keep the numbers in this .json file; what is run replaces what it holds.")
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Also draw them into this .png, .svg or .pdf file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check where gradient flow with weight decay ends, and how it gets there; networks at full size want a GPU."""
    from adakern.benchmarks import flow, timing
    from adakern.benchmarks.flow_rows import Options

    for path in (markdown, numbers, picture):
        if path is not None:
            check_target(path)
    for name in only or ():
        if name not in flow.CASES:
            raise ValueError(f"--only must be one of {', '.join(flow.CASES)}, but it is {name!r}")
    if draw and (numbers is None or not numbers.exists()):
        raise ValueError("--draw needs --numbers with a file of an earlier run")
    parts = _earlier(numbers, None if draw else quick)
    options = Options(quick, width, length or None, replicas, cap)
    command = _command(options, only or [], setting)
    chosen = {} if draw else {name: flow.CASES[name].settings for name in only or flow.CASES}
    chosen = {name: {k: f for k, f in settings.items() if setting in k} for name, settings in chosen.items()}
    if not draw and not any(chosen.values()):
        raise ValueError(f"no setting of {', '.join(chosen)} contains {setting!r}")
    for name, settings in chosen.items():
        for key, measure in settings.items():
            if sys.stderr.isatty():
                typer.echo(f"{name}: {key} ...", err=True)
            started = time.perf_counter()
            part = {"case": name, "setting": key, "quick": quick, "command": command}
            part |= {"rows": [row.plain() for row in measure(options)]}
            part |= {"seconds": time.perf_counter() - started, "machine": timing.machine()}
            parts = _merged(parts, plain(part), flow.CASES)
            _keep(numbers, parts)
    rows = [row for part in parts for row in part["rows"] if row["ok"] is not None]
    facts = {"parts": parts, "passed": sum(row["ok"] for row in rows), "judged": len(rows)}
    if picture is not None:
        _draw(parts, picture)
    if markdown is not None:
        with replacing(markdown) as temporary:
            temporary.write_text(page(facts, picture, markdown), encoding="utf-8")
    if as_json:
        print_json(facts)
    else:
        _print(facts)
    if facts["passed"] < facts["judged"]:
        raise typer.Exit(1)


def _command(options: Any, only: list[str], setting: str) -> str:
    """The command that gives these numbers, without the files."""
    words = ["adakern bench flow", *(["--quick"] if options.quick else [])]
    words += [f"--only {name}" for name in only] + ([f'--setting "{setting}"'] if setting else [])
    for name, default in type(options)().__dict__.items():
        value = getattr(options, name)
        if name != "quick" and value != default:
            words.append(f"--{name} {value:g}")
    return " ".join(words)


def _earlier(path: Path | None, quick: bool | None) -> list[dict[str, Any]]:
    """What earlier commands left in a file of numbers."""
    if path is None or not path.exists():
        return []
    parts: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["parts"]
    if quick is not None and any(part["quick"] != quick for part in parts):
        raise ValueError(f"--numbers {path} holds {'full-size' if quick else 'quick'} cases; give another file")
    return parts


def _merged(parts: list[dict[str, Any]], fresh: dict[str, Any], cases: dict[str, Any]) -> list[dict[str, Any]]:
    """The parts with a fresh one in its place, in the order of the cases."""
    places = [(name, key) for name, case in cases.items() for key in case.settings]
    held = {(part["case"], part["setting"]): part for part in [*parts, fresh]}
    return [held[place] for place in places if place in held]


def _keep(path: Path | None, parts: list[dict[str, Any]]) -> None:
    if path is None:
        return
    with replacing(path) as temporary:
        temporary.write_text(json.dumps({"parts": parts}, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _by_case(parts: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for part in parts:
        found.setdefault(part["case"], []).append(part)
    return found


def _draw(parts: list[dict[str, Any]], picture: Path) -> None:
    from adakern.benchmarks import flow_picture

    rows = {name: [row for part in held for row in part["rows"]] for name, held in _by_case(parts).items()}
    with replacing(picture) as temporary:
        figure = flow_picture.draw(rows)
        figure.savefig(temporary, format=picture.suffix.lstrip(".") or "png", dpi=160)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    holds = {True: "yes", False: "NO", None: ""}[row["ok"]]
    measured = "" if row["measured"] is None else f"{row['measured']:.5g}"
    error = "" if row["error"] is None else f"{row['error']:.2g}"
    return row["setting"], measured, error, row["bar"], holds, row["note"]


def _print(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    for name, parts in _by_case(facts["parts"]).items():
        seconds = sum(part["seconds"] for part in parts)
        table = Table(title=f"{name}, {seconds:.0f} s", title_justify="left")
        for column in _HEADER:
            table.add_column(column, justify="left" if column in _TEXT else "right")
        for row in (row for part in parts for row in part["rows"]):
            table.add_row(*(Text(cell) for cell in _cells(row)))  # brackets are no markup
        console.print(table)
    console.print(f"{facts['passed']} of {facts['judged']} judged rows hold")


def page(facts: dict[str, Any], picture: Path | None, target: Path) -> str:
    """The Markdown page of stored numbers."""
    from adakern.benchmarks import flow

    lines = ["# Gradient flow with weight decay", ""]
    lines += [f"`{command}`\n" for command in dict.fromkeys(part["command"] for part in facts["parts"])]
    lines += [
        "Rows without a verdict inform. Errors are standard errors. Theory is in float64, networks in float32; seconds include compilation where not said otherwise. "
        f"**{facts['passed']} of {facts['judged']} judged rows hold.**",
        "",
    ]
    if any(part["quick"] for part in facts["parts"]):
        lines += ["These are quick runs, of small problems and networks.", ""]
    if picture is not None and picture.parent == target.parent:
        lines += [f"![the checks]({picture.name})", ""]
    for name, parts in _by_case(facts["parts"]).items():
        about = flow.CASES[name].about
        lines += [f"## {name}", "", f"{about} {sum(part['seconds'] for part in parts):.0f} s in all.", ""]
        lines += ["| " + " | ".join(_HEADER) + " |"]
        lines += ["| " + " | ".join("---" if column in _TEXT else "---:" for column in _HEADER) + " |"]
        lines += [
            "| " + " | ".join(cell.replace("|", "\\|") for cell in _cells(row)) + " |"
            for part in parts
            for row in part["rows"]
        ]
        lines += ["", f"{_machines(parts)}", ""]
    return "\n".join(lines).rstrip() + "\n"


def _machines(parts: list[dict[str, Any]]) -> str:
    """Where the numbers of a case come from, each machine once."""
    found = []
    for part in parts:
        host = part["machine"]
        device = f"{host['device']}, " if host["backend"] != "cpu" else ""
        text = f"{device}{host['cpu']}, {host['cores']} cores, {host['backend']} backend; adakern {host['adakern']}, "
        found.append(f"Machine: {text}jax {host['jax']}, numpy {host['numpy']}, python {host['python']}.")
    return " ".join(dict.fromkeys(found))
