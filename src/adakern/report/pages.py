"""A page: the template with its style, its program and its data, all in one file."""

from __future__ import annotations

import html
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import numpy as np

from adakern import checks, readings
from adakern._version import __version__
from adakern.report import packing, panels, words
from adakern.report.panels import Test
from adakern.report.sweeping import ordered
from adakern.solution import Solution

_PROGRAM = ("base.js", "charts.js", "heatmap.js", "panels.js", "page.js")  # in this order


def page(
    solutions: Solution | Sequence[Solution],
    *,
    names: Sequence[str] = (),
    title: str = "",
    labels: Sequence[str] = (),
    test: Test | None = None,
) -> str:
    """One self-contained HTML page of a solution, or of a sweep over the richness; it loads nothing.

    Args:
        solutions: one, or several of the same data and network that differ in the richness, the lazy limit among them if there is one.
        names: where they come from, for instance the names of their files.
        title: above everything.
        labels: names of the classes, in the order of their targets.
        test: new points to predict.
    """
    held = [solutions] if isinstance(solutions, Solution) else list(solutions)
    for one in held:
        if not isinstance(one, Solution):
            raise TypeError(f"a report is of solutions, but this is a {type(one).__name__}")
    given = list(names) or [""] * len(held)
    if len(given) != len(held):
        raise ValueError(f"names must be as many as the solutions, {len(held)}, but they are {len(given)}")
    order = ordered(held, [name or f"solution {index}" for index, name in enumerate(given, start=1)])
    data = _data([held[i] for i in order], [given[i] for i in order], title, labels, test)
    parts = {
        "title": html.escape(data["title"]),
        "style": _text("page.css"),
        "data": packing.script(data),
        "program": "\n".join(_text(name) for name in _PROGRAM),
    }
    return _filled(_text("page.html"), parts)


def _text(name: str) -> str:
    return (files("adakern.report") / "template" / name).read_text(encoding="utf-8")


def _filled(template: str, parts: dict[str, str]) -> str:
    """The template with its marks, `{{name}}`, replaced; what is put in is not searched for marks."""
    pieces = []
    for piece in template.split("{{"):
        name, mark, after = piece.partition("}}")
        pieces.append(parts[name] + after if mark and name in parts else piece)
    return "".join(pieces)


def _data(
    solutions: list[Solution], names: list[str], title: str, labels: Sequence[str], test: Test | None
) -> dict[str, Any]:
    first, rich = solutions[0], solutions[-1]
    y, notes = first.y, []
    shown_layers = max((panels.layers(one) for one in solutions), key=len)
    order = readings.by_class(y)
    shown = order[panels.spaced(len(order), panels.side(len(order), len(shown_layers), len(solutions)))]
    if len(shown) < len(order):
        notes.append(
            f"Kernels show {len(shown)} of {len(order)} points, evenly spaced in their order by class; every number beside them is of all points."
        )
    classes = panels.groups(y, labels)
    train_shown, train = panels.targets(y, len(y))
    test_shown, tested = np.zeros(0, int), None
    if test is not None:
        test = _checked(first, test)
        test_shown, tested = panels.targets(test.y, len(test.X))
        tested["name"] = test.name
    shared, laws = panels.densities(solutions, panels.chosen_points(y))
    items = []
    for solution, name, law in zip(solutions, names, laws, strict=True):
        found = panels.kernels(solution, shown_layers)
        if any(kernel is None for kernel in found[: solution.limit.network.depth + 1]):
            notes.append("Kernels of inner layers that are too large to compute are left out.")
        pictures = [None if kernel is None else packing.kernel(kernel[np.ix_(shown, shown)]) for kernel in found]
        items.append(
            {
                "name": solution.limit.kind,
                "richness": readings.richness(solution),
                "converged": bool(solution.converged),
                "status": solution.status or ("converged" if solution.converged else "not converged"),
                "summary": words.summary(solution, name),
                "evidence": words.evidence(solution),
                "rest": words.rest(solution),
                "residual": solution.residual,
                "kernels": pictures,
                "alignment": panels.alignments(solution, found),
                "density": law,
                "trace": panels.traces(solution),
                "train": panels.training(solution, train_shown),
                "test": None if test is None else panels.testing(solution, test, test_shown),
            }
        )
    return {
        "title": title or _title(first, rich),
        "version": __version__,
        "notes": list(dict.fromkeys(notes)),
        "outputs": 1 if y.ndim == 1 else y.shape[1],
        "layers": shown_layers,
        "kernel": {"points": shown, "member": classes["member"][shown], "classes": classes["names"]},
        "density": {**shared, "classes": [_class(classes, point) for point in shared["points"]]},
        "train": {**train, "member": classes["member"][train_shown]},
        "test": tested,
        "items": items,
    }


def _class(classes: dict[str, Any], point: int) -> str:
    return classes["names"][classes["member"][point]] if classes["names"] else ""


def _title(first: Solution, last: Solution) -> str:
    low, high = (f"{readings.richness(one):g}" for one in (first, last))
    if first is last:
        adaptive = f", γ₀ = {high}" if "richness" in first.limit.config() else ""
        return f"{first.limit.kind}{adaptive}"
    return f"{last.limit.kind}, γ₀ from {low} to {high}"


def _checked(solution: Solution, test: Test) -> Test:
    X = checks.inputs("X of the test points", test.X, ndim=solution.limit.network.input_ndim, like=solution.X)
    if test.y is None:
        return Test(X, None, test.name)
    y = np.asarray(test.y, dtype=np.float64)
    wanted = (len(X), *solution.y.shape[1:])
    if y.size != np.prod(wanted):
        raise ValueError(
            f"y of the test points must have shape {wanted}, as the solution's, but it has shape {y.shape}"
        )
    return Test(X, y.reshape(wanted), test.name)
