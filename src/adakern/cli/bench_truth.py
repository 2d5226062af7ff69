"""`adakern bench truth`: finite-width networks against closed forms, quadrature, lazy limits and other programs' networks."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adakern.cli.output import check_target, print_json, replacing

if TYPE_CHECKING:
    from adakern.benchmarks.truth import Row

EXAMPLE = "adakern bench truth --quick --only single-point"

_HEADER = ("check", "measured", "error", "expected", "sigmas", "")


def run(
    quick: Annotated[bool, typer.Option("--quick", help="Small networks: minutes on two cores.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="Only this check (repeat for several).")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Also write the table to this Markdown file.")] = None,
    numbers: Annotated[
        Path | None, typer.Option(help="Keep the numbers in this .json file; checks that it holds are not run again.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Also draw the checks into this .png, .svg or .pdf file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check Langevin sampling and gradient flow against what is known without them; full size wants a GPU."""
    from adakern.benchmarks import timing, truth

    for path in (markdown, numbers, picture):
        if path is not None:
            check_target(path)
    chosen = list(only) if only else list(truth.CHECKS)
    for name in chosen:
        if name not in truth.CHECKS:
            raise ValueError(f"--only must be one of {', '.join(truth.CHECKS)}, but it is {name!r}")
    rows, seconds, hosts = _earlier(numbers, quick)
    for name in chosen:
        if name in rows:
            continue
        started, found = time.perf_counter(), []
        for row in truth.CHECKS[name](quick):
            found.append(row)
            if sys.stderr.isatty():
                typer.echo(f"{name}: {row.setting}", err=True)
        rows[name], seconds[name] = found, time.perf_counter() - started
        hosts[name] = timing.machine()
        _keep(numbers, quick, rows, seconds, hosts)
    rows = {name: rows[name] for name in truth.CHECKS if name in chosen}
    judged = [row.ok for part in rows.values() for row in part if row.ok is not None]
    facts: dict[str, Any] = {
        "rows": {name: [{**row.__dict__, "sigmas": row.sigmas} for row in part] for name, part in rows.items()},
        "seconds": seconds,
        "passed": sum(judged),
        "judged": len(judged),
        "quick": quick,
        "only": list(only or ()),
        "machines": {name: hosts[name] for name in rows},
    }
    if picture is not None:
        from adakern.benchmarks import picture as drawing

        with replacing(picture) as temporary:
            drawing.truth(rows).savefig(temporary, format=picture.suffix.lstrip(".") or "png", dpi=160)
    if markdown is not None:
        with replacing(markdown) as temporary:
            temporary.write_text(_markdown(facts, picture, markdown), encoding="utf-8")
    if as_json:
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


def _markdown(facts: dict[str, Any], picture: Path | None, target: Path) -> str:
    from adakern.benchmarks import truth

    options = (["--quick"] if facts["quick"] else []) + [f"--only {name}" for name in facts["only"]]
    command = " ".join(["adakern bench truth", *options])
    lines = [
        "# Networks of finite width against what is known without them",
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
        about = (truth.CHECKS[name].__doc__ or "").strip()
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
