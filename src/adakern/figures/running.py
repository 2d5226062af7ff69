"""Making figures: compute what is missing, draw, go on after a failure."""

from __future__ import annotations

import json
import time
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from adakern.figures import get
from adakern.figures.cache import Cache, Kept, check
from adakern.figures.jobs import Job, fill
from adakern.figures.shape import Module, Numbers, Part
from adakern.figures.style import context
from adakern.progress import Progress

Save = Callable[[str, Figure, Mapping[str, np.ndarray]], list[str]]
_SETTINGS = "settings"  # the name in a file of numbers under which the settings stand, as JSON


@dataclass(frozen=True)
class Outcome:
    """What became of one figure.

    Attributes:
        name: of the figure.
        seconds: that this run took, of all its processes together.
        computed: seconds of all its computations, those of earlier runs too.
        parts, cached, done: how many computations there are, how many an earlier run had done, and how many are done now.
        files: what was written.
        error: what went wrong, or None.
    """

    name: str
    seconds: float = 0.0
    computed: float = 0.0
    parts: int = 0
    cached: int = 0
    done: int = 0
    files: list[str] = field(default_factory=list)
    error: Exception | None = None

    @property
    def state(self) -> str:
        if self.error is not None:
            return "failed"
        return "ok" if self.done == self.parts else "incomplete"


def run(
    names: Sequence[str],
    save: Save,
    cache: Cache,
    *,
    quick: bool = False,
    only: Sequence[str] = (),
    jobs: int = 1,
    progress: bool = False,
) -> list[Outcome]:
    """Make figures one after the other; one that fails does not stop the next.

    Args:
        names: of the figures.
        save: writes a picture and its numbers, and returns the names of the files.
        cache: where numbers are kept.
        quick: small settings.
        only: compute only parts whose name contains one of these; a figure whose other parts are not in the cache is not drawn.
        jobs: how many computations at once, in processes of their own.
        progress: one bar for everything.
    """
    plans = [_plan(name, quick, only) for name in names]
    total = sum(len(plan.chosen) for plan in plans)
    if only and not total and all(plan.error is None for plan in plans):
        have = ", ".join(part.name for plan in plans for part in plan.parts)
        raise ValueError(f"--only must be part of the name of a computation ({have}), but it is {', '.join(only)}")
    with Progress(progress).task("figures", total) as advance:
        if jobs == 1:
            return [_make(plan, save, cache, advance) for plan in plans]
        computed, failed = fill(cache, jobs, [(plan.name, part) for plan in plans for part in plan.chosen], advance)
        filled = replace(cache, fresh=False)
        return [_make(plan, save, filled, lambda *_: None, computed, failed) for plan in plans]


@dataclass(frozen=True)
class _Plan:
    name: str
    quick: bool
    parts: list[Part]
    chosen: list[Part]
    error: Exception | None = None

    @property
    def module(self) -> Module[Any]:
        return get(self.name)

    @property
    def settings(self) -> Any:
        return self.module.QUICK if self.quick else self.module.FULL


def _plan(name: str, quick: bool, only: Sequence[str]) -> _Plan:
    bare = _Plan(name, quick, [], [])
    try:
        parts = check(bare.module.parts(bare.settings))
    except Exception as failure:
        return replace(bare, error=failure)
    chosen = [part for part in parts if not only or any(text in part.name for text in only)]
    return replace(bare, parts=parts, chosen=chosen)


def _make(
    plan: _Plan,
    save: Save,
    cache: Cache,
    advance: Callable[..., None],
    computed: Collection[Job] = (),
    failed: Mapping[Job, Exception] | None = None,
) -> Outcome:
    """One figure; `computed`, `failed`: what other processes have just computed for it, and what went wrong there."""
    if plan.error is not None:
        return Outcome(plan.name, error=plan.error)
    begun, left = time.perf_counter(), len(plan.chosen)
    kept: dict[str, Kept] = {}
    written: list[str] = []
    error: Exception | None = None
    try:
        for part in plan.chosen:
            advance(f"{plan.name}: {part.name}", 0)
            job = (plan.name, part.name)
            if failed and job in failed:
                raise failed[job]
            held = cache.get(plan.name, part)
            kept[part.name] = replace(held, cached=False) if job in computed else held
            left -= 1
            advance(f"{plan.name}: {part.name}")
        for part in plan.parts:
            if part.name not in kept and (found := cache.find(plan.name, part)) is not None:
                kept[part.name] = found
        if len(kept) == len(plan.parts):
            numbers = {part.name: kept[part.name].arrays for part in plan.parts}
            written = _show(plan.name, plan.module, plan.settings, numbers, save)
    except Exception as failure:  # whatever it is, the other figures are wanted
        error = failure
        advance(f"{plan.name}: failed", left)
    elsewhere = sum(one.seconds for name, one in kept.items() if (plan.name, name) in computed)
    return Outcome(
        plan.name,
        time.perf_counter() - begun + elsewhere,
        sum(one.seconds for one in kept.values()),
        len(plan.parts),
        sum(one.cached for one in kept.values()),
        len(kept),
        written,
        error,
    )


def _show(name: str, module: Module[Any], settings: Any, numbers: Numbers, save: Save) -> list[str]:
    with context():
        return save(name, module.draw(settings, numbers), flatten(settings, numbers))


def redraw(name: str, path: Path, save: Save) -> Outcome:
    """Draw a figure from the file of its numbers, computing nothing; no numbers are written."""
    begun = time.perf_counter()
    try:
        module = get(name)
        settings, numbers = unflatten(module, path)
        with context():
            written = save(name, module.draw(settings, numbers), {})
    except Exception as failure:  # the other figures are wanted here, too
        return Outcome(name, time.perf_counter() - begun, error=failure)
    return Outcome(name, time.perf_counter() - begun, 0.0, len(numbers), len(numbers), len(numbers), written)


def flatten(settings: Any, numbers: Numbers) -> dict[str, np.ndarray]:
    """Numbers and settings as the arrays of one .npz file: `computation/name`, and the settings as JSON."""
    arrays = {f"{part}/{name}": array for part, held in numbers.items() for name, array in held.items()}
    return {_SETTINGS: np.array(json.dumps(asdict(settings))), **arrays}


def unflatten(module: Module[Any], path: Path) -> tuple[Any, Numbers]:
    """Settings and numbers from the .npz file of a figure."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path} with the numbers to draw; make the figure first")
    numbers: dict[str, dict[str, np.ndarray]] = {}
    wanted = f"{path} must be a file of numbers that `adakern figure` wrote"
    try:
        file = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as failure:
        raise ValueError(f"{wanted}, but it cannot be read as one") from failure
    if not isinstance(file, np.lib.npyio.NpzFile):
        raise ValueError(f"{wanted}, but it holds a single array")
    with file:
        if _SETTINGS not in file.files:
            raise ValueError(f"{wanted}, but it has no settings")
        try:
            held = dict(json.loads(str(file[_SETTINGS])))
            for key in file.files:
                if key != _SETTINGS:
                    part, _, name = key.rpartition("/")
                    numbers.setdefault(part, {})[name] = file[key]
        except (TypeError, ValueError, zipfile.BadZipFile, zlib.error) as failure:
            raise ValueError(f"{wanted}, but it cannot be read as one") from failure
    values, kind = {name: _tuples(value) for name, value in held.items()}, type(module.FULL)
    if set(values) != {one.name for one in fields(kind)}:
        raise ValueError(f"{wanted} for this figure, but its settings are those of another, or of another version")
    settings = kind(**values)
    missing = [part.name for part in module.parts(settings) if part.name not in numbers]
    if missing:
        raise ValueError(f"{wanted}, but it has no numbers of {', '.join(missing)}")
    return settings, numbers


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
