"""The framework of the figures, with a toy figure: the cache, interruptions, failures, files."""

from __future__ import annotations

import multiprocessing
import sys
import time
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np
import pytest

from adakern import figures
from adakern.errors import ConvergenceError
from adakern.figures import cache as caches
from adakern.figures import jobs, measuring, running, style
from adakern.figures.cache import Cache
from adakern.figures.shape import Data, Part


@dataclass(frozen=True)
class Settings:
    slopes: tuple[float, ...] = (1.0, 2.0)
    count: int = 5


CALLS: list[float] = []
TROUBLE: list[BaseException] = []  # raised by the second computation


def compute(slope: float, count: int):
    if slope == 2.0 and TROUBLE:
        raise TROUBLE[0]
    CALLS.append(slope)
    return {"x": np.arange(count), "y": slope * np.arange(count, dtype=np.float64), "slope": slope}


def parts(settings):
    for slope in settings.slopes:
        yield Part(f"slope {slope:g}", compute, {"slope": slope, "count": settings.count})


def draw(settings, numbers):
    figure, axes = style.panels(1, 1, "toy")
    for slope in settings.slopes:
        held = numbers[f"slope {slope:g}"]
        style.line(axes[0, 0], held["x"], held["y"], style.BLUE)
    return figure


@pytest.fixture(autouse=True)
def toys(monkeypatch):
    """Two toy figures in the place of the real ones."""
    CALLS.clear()
    TROUBLE.clear()
    for name in ("toy", "other"):
        module = ModuleType(f"adakern.figures.{name}")
        module.TITLE, module.PAPER = f"the {name}", ("a claim",)
        module.FULL, module.QUICK = Settings(count=50), Settings()
        module.parts, module.draw = parts, draw
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(figures, "NAMES", ("toy", "other"))


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


class Saved(dict):
    """Keeps pictures and numbers instead of writing them."""

    def __call__(self, name, picture, numbers):
        self[name] = picture, numbers
        return [f"{name}.png"]


def run(cache, names=("toy",), **options):
    saved = Saved()
    return running.run(names, saved, cache, quick=True, **options), saved


def test_a_second_run_computes_nothing_and_has_the_same_numbers(cache):
    (first,), saved = run(cache)
    assert CALLS == [1.0, 2.0] and (first.state, first.parts, first.cached) == ("ok", 2, 0)
    (second,), again = run(cache)
    assert CALLS == [1.0, 2.0] and (second.state, second.cached, second.done) == ("ok", 2, 2)
    for key, array in saved["toy"][1].items():
        np.testing.assert_array_equal(array, again["toy"][1][key], strict=True)
    np.testing.assert_array_equal(again["toy"][1]["slope 2/y"], 2.0 * np.arange(5))


@pytest.mark.parametrize(
    "other",
    [
        Part("slope 2", compute, {"slope": 1.0, "count": 5}),
        Part("slope 1", compute, {"slope": 1.5, "count": 5}),
        Part("slope 1", compute, {"slope": 1.0, "count": 5, "data": Data("mnist", 2)}),
        Part("slope 1", lambda slope, count: {"x": np.ones(count)}, {"slope": 1.0, "count": 5}),
    ],
    ids=["name", "argument", "data", "code"],
)
def test_the_key_knows_name_arguments_data_and_code(cache, other):
    first = Part("slope 1", compute, {"slope": 1.0, "count": 5})
    assert cache.path("toy", first) == cache.path("toy", replace(first))
    assert cache.path("toy", first) != cache.path("toy", other)
    assert cache.path("toy", first) != cache.path("other", first)


def test_the_key_knows_the_version_and_the_content_of_images(cache, monkeypatch):
    images = Data("mnist", 2)
    part = Part("slope 1", compute, {"data": images})
    before = cache.path("toy", part)
    monkeypatch.setattr(caches, "__version__", "99")
    assert cache.path("toy", part) != before
    monkeypatch.undo()
    monkeypatch.setattr("adakern.figures.shape._digest", lambda data: "other images")
    assert cache.path("toy", part) != before


def test_an_interrupted_run_goes_on_where_it_stopped(cache):
    TROUBLE.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run(cache)
    assert CALLS == [1.0]
    TROUBLE.clear()
    (outcome,), _ = run(cache)
    assert CALLS == [1.0, 2.0] and (outcome.cached, outcome.done) == (1, 2)


def test_files_appear_whole_and_a_spoilt_one_is_computed_again(cache, monkeypatch):
    part = Part("slope 1", compute, {"slope": 1.0, "count": 5})

    def halfway(arrays, path, metadata):
        with open(path, "wb") as file:
            file.write(b"half")
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr("adakern.files.save_file", halfway)
        with pytest.raises(OSError, match="disk full"):
            cache.get("toy", part)
    assert [path for path in cache.folder.rglob("*") if path.is_file()] == []
    assert not cache.get("toy", part).cached and cache.get("toy", part).cached
    path = cache.path("toy", part)
    path.write_bytes(path.read_bytes()[:-1])
    assert not cache.get("toy", part).cached and cache.get("toy", part).cached


def test_fresh_computes_again(cache):
    run(cache)
    run(replace(cache, fresh=True))
    assert CALLS == [1.0, 2.0, 1.0, 2.0]


def not_even(slope: float, count: int):
    if slope == 2.0:
        raise ConvergenceError("the slope is even", result=np.zeros(3))
    return {"slope": slope}


def test_several_computations_at_once(cache, monkeypatch):
    """In processes of their own; one that fails is its figure's failure and no other's."""

    def other(settings):
        yield from (Part(f"slope {slope:g}", not_even, {"slope": slope, "count": 3}) for slope in (1.0, 2.0))

    monkeypatch.setattr(sys.modules["adakern.figures.other"], "parts", other)
    (toy, failed), saved = run(cache, ("toy", "other"), jobs=2)
    assert (toy.state, toy.cached, toy.done, CALLS) == ("ok", 0, 2, []) and failed.state == "failed"
    assert isinstance(failed.error, ConvergenceError) and str(failed.error) == "the slope is even"
    np.testing.assert_array_equal(saved["toy"][1]["slope 2/y"], 2.0 * np.arange(5))
    before = [path.stat().st_mtime_ns for path in sorted(cache.folder.rglob("*slope-1*"))]
    (again,), _ = run(cache, jobs=2)
    assert again.cached == 2
    assert [path.stat().st_mtime_ns for path in sorted(cache.folder.rglob("*slope-1*"))] == before


def dawdle(slope: float):
    if slope == 2.0:
        time.sleep(600)
    return {"slope": slope}


def test_an_interruption_leaves_no_process_behind(cache):
    """One computation is done, the other under way: that one's process must not outlive this one."""

    def interrupt(what, amount=1):
        raise KeyboardInterrupt

    slow = [("toy", Part(f"slope {slope:g}", dawdle, {"slope": slope})) for slope in (1.0, 2.0)]
    with pytest.raises(KeyboardInterrupt):
        jobs.fill(cache, 2, slow, interrupt)
    assert multiprocessing.active_children() == []
    (kept,) = (path for path in cache.folder.rglob("*slope-*") if path.is_file())
    assert "slope-1" in kept.name


def test_a_figure_that_fails_does_not_stop_the_others(cache, monkeypatch):
    def broken(settings, numbers):
        raise ZeroDivisionError("no picture")

    monkeypatch.setattr(sys.modules["adakern.figures.toy"], "draw", broken)
    (toy, other), saved = run(cache, ("toy", "other"))
    assert (toy.state, str(toy.error), toy.files) == ("failed", "no picture", [])
    assert other.state == "ok" and list(saved) == ["other"]
    assert toy.done == 2  # the numbers are kept, and only the drawing is to be mended


def test_a_module_that_cannot_plan_fails_alone(cache, monkeypatch):
    twice = [Part("same", compute, {}), Part("same", compute, {})]
    monkeypatch.setattr(sys.modules["adakern.figures.toy"], "parts", lambda settings: twice)
    (toy, other), _ = run(cache, ("toy", "other"))
    assert toy.state == "failed" and "different names" in str(toy.error) and other.state == "ok"


def test_only_computes_what_was_asked_for_and_draws_when_all_is_there(cache):
    (outcome,), saved = run(cache, only=("slope 2",))
    assert CALLS == [2.0] and outcome.state == "incomplete" and not saved
    (outcome,), saved = run(cache, only=("slope 1",))
    assert CALLS == [2.0, 1.0] and outcome.state == "ok" and list(saved) == ["toy"]
    with pytest.raises(ValueError, match="--only must be part of the name of a computation .slope 1, slope 2."):
        run(cache, only=("slope 7",))


def test_numbers_and_settings_survive_their_file(cache, tmp_path):
    _, saved = run(cache)
    np.savez(tmp_path / "toy.npz", **saved["toy"][1])
    settings, numbers = running.unflatten(figures.get("toy"), tmp_path / "toy.npz")
    assert settings == Settings() and list(numbers) == ["slope 1", "slope 2"]
    np.testing.assert_array_equal(numbers["slope 2"]["y"], 2.0 * np.arange(5))
    CALLS.clear()
    outcome = running.redraw("toy", tmp_path / "toy.npz", saved)
    assert outcome.state == "ok" and saved["toy"][1] == {} and CALLS == []
    np.savez(tmp_path / "toy.npz", x=np.ones(2))
    assert "has no settings" in str(running.redraw("toy", tmp_path / "toy.npz", saved).error)
    (tmp_path / "toy.npz").write_bytes(b"nothing of the kind")
    assert "cannot be read as one" in str(running.redraw("toy", tmp_path / "toy.npz", saved).error)
    with (tmp_path / "toy.npz").open("wb") as file:
        np.save(file, np.ones(3))
    assert "a single array" in str(running.redraw("toy", tmp_path / "toy.npz", saved).error)
    np.savez(tmp_path / "toy.npz", settings=np.array('{"other": 1}'))
    whole = (tmp_path / "toy.npz").read_bytes()
    (tmp_path / "toy.npz").write_bytes(whole[: len(whole) // 2])
    assert "cannot be read as one" in str(running.redraw("toy", tmp_path / "toy.npz", saved).error)
    (tmp_path / "toy.npz").write_bytes(whole)
    assert "settings are those of another" in str(running.redraw("toy", tmp_path / "toy.npz", saved).error)
    for spoilt in ('{"count": [', "[1, 2]", "7"):
        np.savez(tmp_path / "toy.npz", settings=np.array(spoilt))
        assert "cannot be read as one" in str(running.redraw("toy", tmp_path / "toy.npz", saved).error)
    _, saved = run(cache)
    lacking = {key: value for key, value in saved["toy"][1].items() if not key.startswith("slope 2")}
    np.savez(tmp_path / "toy.npz", **lacking)
    assert "no numbers of slope 2" in str(running.redraw("toy", tmp_path / "toy.npz", saved).error)
    assert "make the figure first" in str(running.redraw("toy", tmp_path / "none.npz", saved).error)


@pytest.mark.parametrize(
    "part, match",
    [
        (Part("a", lambda: {"x": np.array(["word"])}), "a must return numbers, but 'x' has type"),
        (Part("a", compute, {"slope": object()}), "must be plain values or Data"),
    ],
)
def test_what_cannot_be_kept_is_refused(cache, part, match):
    with pytest.raises(TypeError, match=match):
        cache.get("toy", part)


def test_histograms_count_what_is_outside_and_know_their_error(rng):
    values = rng.standard_normal(64 * 4000)
    heights, errors = measuring.histogram(values, (-1.0, 0.0, 1.0), groups=64)
    share = 0.341344746
    assert (np.abs(heights - share) < 4 * errors).all()
    np.testing.assert_allclose(errors, np.sqrt(share * (1 - share) / values.size), rtol=0.4)
    assert np.isnan(measuring.histogram(values, (-1.0, 0.0), groups=1)[1]).all()
