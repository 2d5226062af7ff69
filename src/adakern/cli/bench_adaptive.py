"""`adakern bench adaptive`: the aNBK solver against Langevin-sampled wide networks, closed forms and limits, and its speed."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from adakern.cli.output import check_target, plain, print_json, replacing

EXAMPLE = "adakern bench adaptive --quick --only two-layer"

_HEADERS = {
    "networks": (
        "setting",
        "P",
        "N",
        "layer",
        "alignment",
        "difference",
        "outputs",
        "test rms",
        "theory s",
        "network s",
        "bar",
        "holds?",
    ),
    "known": ("setting", "measured", "error", "expected", "sigmas", "holds?"),
    "range": ("setting", "seconds", "gradients", "step", "error", "residual", "holds?", "says"),
    "speed": ("setting", "first s", "solver s", "solver reached", "other s", "other reached", "ratio", "note"),
}
_WIDE = ("P", "N", "theory s", "network s", "bar", "first s", "solver reached", "other reached")  # for the page alone
_TEXT = ("setting", "bar", "holds?", "solver reached", "other reached", "note", "says")  # columns aligned to the left


def run(
    quick: Annotated[bool, typer.Option("--quick", help="Small networks, for two cores.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="Only this case (repeat for several).")] = None,
    setting: Annotated[str, typer.Option(help="Only settings whose name contains this.")] = "",
    width: Annotated[int | None, typer.Option(min=1, help="Width of the networks.")] = None,
    length: Annotated[float | None, typer.Option("--time", min=2, help="Their time after burn-in.")] = None,
    replicas: Annotated[int | None, typer.Option(min=1, help="Networks side by side.")] = None,
    tolerance: Annotated[float | None, typer.Option(min=1e-4, help="Of the solver.")] = None,
    cap: Annotated[float, typer.Option(min=1, help="speed: most seconds for a network.")] = 600.0,
    budget: Annotated[float, typer.Option(min=1, help="speed: seconds for the published algorithm.")] = 120.0,
    draw: Annotated[bool, typer.Option("--draw", help="Run nothing: tables and picture of --numbers.")] = False,
    markdown: Annotated[Path | None, typer.Option(help="Also write the tables to this Markdown file.")] = None,
    numbers: Annotated[
        Path | None, typer.Option(help="Keep the numbers in this .json file; what is run replaces what it holds.")
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Also draw them into this .png, .svg or .pdf file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check the aNBK solver against sampled networks, closed forms and limits, and time it; full size wants a GPU."""
    from adakern.benchmarks import adaptive, timing

    for path in (markdown, numbers, picture):
        if path is not None:
            check_target(path)
    for name in only or ():
        if name not in adaptive.CASES:
            raise ValueError(f"--only must be one of {', '.join(adaptive.CASES)}, but it is {name!r}")
    if draw and (numbers is None or not numbers.exists()):
        raise ValueError("--draw needs --numbers with a file of an earlier run")
    parts = _earlier(numbers, None if draw else quick)
    options = adaptive.Options(quick, width, length, replicas, tolerance, cap, budget)
    command = _command(options, only or [], setting)
    chosen = {} if draw else {name: adaptive.CASES[name].settings for name in only or adaptive.CASES}
    chosen = {name: {k: f for k, f in settings.items() if setting in k} for name, settings in chosen.items()}
    if not draw and not any(chosen.values()):
        raise ValueError(f"no setting of {', '.join(chosen)} contains {setting!r}")
    for name, settings in chosen.items():
        for key, measure in settings.items():
            if sys.stderr.isatty():
                typer.echo(f"{name}: {key} ...", err=True)
            started = time.perf_counter()
            part = {"case": name, "setting": key, "quick": quick, "command": command, "rows": list(measure(options))}
            part |= {"seconds": time.perf_counter() - started, "machine": timing.machine()}
            parts = _merged(parts, plain(part), adaptive.CASES)
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
    words = ["adakern bench adaptive", *(["--quick"] if options.quick else [])]
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
    from adakern.benchmarks import adaptive, adaptive_picture

    compared: dict[str, list[dict[str, Any]]] = {}
    races: list[dict[str, Any]] = []
    for part in parts:
        table = adaptive.CASES[part["case"]].table
        if table == "networks":
            compared.setdefault(part["case"], []).extend(part["rows"])
        elif table == "speed":
            races.extend(part["rows"])
    with replacing(picture) as temporary:
        figure = adaptive_picture.draw(compared, races)
        figure.savefig(temporary, format=picture.suffix.lstrip(".") or "png", dpi=160)


def _cells(row: dict[str, Any], table: str) -> tuple[str, ...]:
    holds = {True: "yes", False: "NO", None: ""}[row["ok"]]
    if table == "known":
        known, error = row["expected"] is not None, row["error"]
        sigmas = f"{row['sigmas']:.1f}" if known and row["sigmas"] is not None else ""
        expected = f"{row['expected']:.5g}" if known else ""
        return row["setting"], f"{row['measured']:.5g}", f"{error:.2g}", expected, sigmas, holds
    if table == "range":
        numbers = (row["step"], row["error"], row["residual"])
        told = ("" if value is None else f"{value:.2g}" for value in numbers)
        return row["setting"], f"{row['seconds']:.0f}", str(row["gradients"]), *told, holds, row["said"]
    if table == "speed":
        ratio = ("> " if row["bound"] else "") + f"{row['ratio']:.3g}"
        seconds = (
            f"{row[name]:.0f}" if row[name] >= 100 else f"{row[name]:.3g}"
            for name in ("first_s", "theory_s", "other_s")
        )
        first, theory, other = seconds
        return row["setting"], first, theory, row["theory"], other, row["other"], ratio, row["note"]
    aligned = f"{row['alignment']:.5f}" + (f" (published {row['published']:g})" if row["published"] else "")
    test = "" if row["test"] is None else f"{row['test']:.2g} ± {row['test_error']:.2g}"
    return (
        row["setting"] + (f" ({row['note']})" if row["note"] else ""),
        str(row["points"]),
        str(row["width"]),
        str(row["layer"]),
        aligned,
        f"{100 * row['difference']:.2f} ± {100 * row['joint']:.2f} %",
        "" if row["outputs"] is None else f"{row['outputs']:.2g}",
        test,
        f"{row['theory_s']:.0f}",
        f"{row['network_s']:.0f}",
        row["bar"],
        holds,
    )


def _print(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from adakern.benchmarks import adaptive

    console = Console(highlight=False)
    for name, parts in _by_case(facts["parts"]).items():
        kind = adaptive.CASES[name].table
        seconds = sum(part["seconds"] for part in parts)
        table = Table(title=f"{name}, {seconds:.0f} s", title_justify="left")
        kept = [i for i, column in enumerate(_HEADERS[kind]) if column not in _WIDE]
        for column in (_HEADERS[kind][i] for i in kept):
            table.add_column(column, justify="left" if column in _TEXT else "right")
        for row in (row for part in parts for row in part["rows"]):
            cells = _cells(row, kind)
            table.add_row(*(cells[i] for i in kept))
        console.print(table)
    console.print(f"{facts['passed']} of {facts['judged']} judged rows hold")


_LEGEND = (
    "Alignment is the cosine between the kernels of theory and network, layer by layer; difference their relative Frobenius distance ± the joint standard error of the two; "
    "outputs the largest difference at the training points; test rms that of the predictions at 600 test points ± what the standard errors of the two amount to. "
    "Seconds of theory and of network include compilation, those of the table of speeds do not (but `first s` does). Theory is in float64, networks in float32."
)


def page(facts: dict[str, Any], picture: Path | None, target: Path) -> str:
    """The Markdown page of stored numbers."""
    from adakern.benchmarks import adaptive

    lines = ["# The adaptive kernel against wide networks", ""]
    lines += [f"`{command}`\n" for command in dict.fromkeys(part["command"] for part in facts["parts"])]
    lines += [f"{_LEGEND} **{facts['passed']} of {facts['judged']} judged rows hold.**", ""]
    if any(part["quick"] for part in facts["parts"]):
        lines += [
            "These are quick runs, of small networks: judged by their error bars alone, which do not hold what a finite width changes, of order 1/N.",
            "",
        ]
    if picture is not None and picture.parent == target.parent:
        lines += [f"![alignment deficits and speed ratios]({picture.name})", ""]
    for name, parts in _by_case(facts["parts"]).items():
        case = adaptive.CASES[name]
        header = _HEADERS[case.table]
        lines += [f"## {name}", "", f"{case.about} {sum(part['seconds'] for part in parts):.0f} s in all.", ""]
        lines += ["| " + " | ".join(header) + " |"]
        lines += ["| " + " | ".join("---" if column in _TEXT else "---:" for column in header) + " |"]
        lines += ["| " + " | ".join(_cells(row, case.table)) + " |" for part in parts for row in part["rows"]]
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
