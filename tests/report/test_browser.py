"""The page in a real browser: it loads without complaint, the slider changes the picture, keys and wheel work, narrow and dark."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import adakern as ak
from adakern.report import Test, page

NET = ak.MLP(depth=2, activation="linear")
LAST = 2
NAMES = ("airplane", "automobile", "bird", "a very long name that nobody needs", "deer", "dog")
COUNTS = (12, 3, 9, 1, 14, 11)
BOX = "(() => { const b = document.getElementById('map').getBoundingClientRect(); return [b.left, b.top, b.width]; })()"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    rng = np.random.default_rng(5)
    X, X_new = rng.standard_normal((30, 6)), rng.standard_normal((9, 6))
    y = np.sign(X[:, 0])
    limits = (ak.NNGPK(NET), ak.ANBK(NET, richness=0.5), ak.ANBK(NET, richness=3.0))
    solutions = [ak.solve(limit, X, y) for limit in limits]
    hot = np.eye(len(NAMES))[np.repeat(np.arange(len(NAMES)), COUNTS)]
    folder = tmp_path_factory.mktemp("pages")
    texts = {
        "sweep": page(solutions, names=["a", "b", "c"], test=Test(X_new, np.sign(X_new[:, 0]))),
        "single": page(ak.solve(ak.NTK(NET), X[:1], y[:1])),
        "outputs": page(ak.solve(ak.NNGP(NET), X, np.stack([y, -y], axis=1)), test=Test(X_new)),
        "classes": page(ak.solve(ak.NNGPK(NET), rng.standard_normal((len(hot), 6)), hot), labels=NAMES),
        "dead": page(ak.solve(ak.ANTK(NET, richness=1e-6), X, y)),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


@pytest.fixture
def opened(browser, pages):
    """Open a page at its usual size, and see at the end that nothing was complained about."""
    browser.complaints.clear()
    browser.size(1200)
    browser.media(prefers_color_scheme="light", prefers_reduced_motion="reduce")

    def go(name, fragment=""):
        browser.open(pages[name], fragment)
        return browser

    yield go
    assert browser.complaints == []
    assert browser.ask("document.documentElement.dataset.errors || ''") == ""


def text(browser, name):
    return browser.ask(f"document.getElementById('{name}').textContent")


@pytest.mark.parametrize("name", ["sweep", "single", "outputs", "classes", "dead"])
@pytest.mark.parametrize("width", [1200, 400])
def test_a_page_loads_and_fits(opened, name, width):
    browser = opened(name)
    browser.size(width)
    browser.wait(f"innerWidth === {width}")
    assert browser.ask("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert (
        browser.ask("[...document.querySelectorAll('svg')].filter(s => s.clientWidth && !s.childElementCount).length")
        == 0
    )
    assert text(browser, "badge") == "converged"
    assert browser.ask("document.querySelectorAll('#summary tr').length") >= 8
    assert browser.ask("document.getElementById('sweep').hidden") is (name != "sweep")


def test_the_complaints_of_a_page_are_heard(browser, tmp_path):
    """Otherwise the other tests could not fail."""
    bad = tmp_path / "bad.html"
    bad.write_text("<html data-ready=yes><body><script>console.error('oh'); missing();</script>", encoding="utf-8")
    browser.complaints.clear()
    browser.open(bad)
    heard = " ".join(browser.complaints)
    assert "oh" in heard and "missing is not defined" in heard


def test_the_slider_changes_every_picture(opened):
    seen = {}
    for index in range(LAST + 1):
        browser = opened("sweep", f"#sweep={index}")
        assert browser.ask("document.getElementById('slider').value") == str(index)
        seen[index] = {name: browser.ask(f"document.getElementById('{name}').innerHTML") for name in CHANGING}
        seen[index]["map"] = browser.ask("document.getElementById('map').toDataURL()")
    for name in (*CHANGING, "map"):
        assert len({seen[index][name] for index in seen}) == LAST + 1, name


CHANGING = ("density", "alignment", "predictions", "along-chart", "richness", "evidence", "summary")


def test_the_slider_moves_by_keys_and_morphs(opened):
    browser = opened("sweep")
    browser.media(prefers_color_scheme="light", prefers_reduced_motion="no-preference")
    browser.ask("document.getElementById('slider').focus()")
    before = browser.picture()
    browser.press("ArrowRight")
    assert text(browser, "richness") == "γ₀ = 0.5 (ANBK)"
    assert browser.ask("document.getElementById('slider').getAttribute('aria-valuetext')") == "γ₀ = 0.5, ANBK"
    browser.wait("place === 1")
    browser.press("End")
    browser.wait(f"place === {LAST}")
    assert browser.ask("location.hash") == f"#sweep={LAST}"
    after = browser.picture()
    assert np.mean(np.abs(before.astype(float) - after).max(axis=2) > 16) > 0.05  # of the pixels
    outline = browser.ask("getComputedStyle(document.getElementById('slider')).outlineStyle")
    assert outline == "solid"  # the focus is seen


def test_the_map_is_read_zoomed_and_moved(opened):
    browser = opened("sweep", "#sweep=1")
    browser.ask("document.getElementById('map').focus(); scrollTo(0, 0)")
    browser.press("ArrowDown", 2)
    browser.press("ArrowRight", 3)
    points = browser.ask("DATA.kernel.points")
    value = browser.ask("correlations(ITEMS[1].kernels[2])[2 * 30 + 3]")
    reading = text(browser, "reading")
    assert f"point {points[2]} (y = −1) with point {points[3]}" in reading
    assert f"correlation {value:.4g}".replace("-", "−") in reading
    whole = browser.ask("document.getElementById('map').toDataURL()")
    browser.press("+", 2)
    assert browser.ask("document.getElementById('map').toDataURL()") != whole
    assert browser.ask("document.getElementById('map').classList.contains('zoomed')")
    browser.press("0")
    assert browser.ask("document.getElementById('map').toDataURL()") == whole
    left, top, width = browser.ask(BOX)
    browser.wheel(left + width / 4, top + width / 4, -300)
    browser.wait("document.getElementById('map').classList.contains('zoomed')")
    browser.press("0")
    browser.hover(left + 0.99 * width, top + 0.01 * width)
    browser.wait(
        f"document.getElementById('reading').textContent.includes('point {points[0]} (y = −1) with point {points[-1]}')"
    )


def names_on(browser, edge):
    """Names of classes that are seen on an edge of the map: text, and the ends along it and across it, in pixels from the map's corner."""
    return browser.ask(f"""(() => {{ const map = document.getElementById('map').getBoundingClientRect(), below = '{edge}' === 'map-below';
        return [...document.querySelectorAll('#{edge} span')].filter(e => e.checkVisibility()).map(e => {{
            const box = e.getBoundingClientRect(), x = [box.left - map.left, box.right - map.left], y = [box.top - map.top, box.bottom - map.top];
            return [e.textContent, ...(below ? [x, y] : [y, x])]; }}); }})()""")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 400])
@pytest.mark.parametrize("name", ["sweep", "classes"])
def test_classes_are_named_along_the_edges_of_the_map(opened, name, width, scheme):
    browser = opened(name)
    browser.media(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
    browser.size(width)
    browser.wait(f"innerWidth === {width}")
    browser.wait("document.getElementById('map').width === document.getElementById('map').clientWidth")
    side, member = browser.ask(BOX)[2], np.array(browser.ask("DATA.kernel.member"))
    classes = browser.ask("DATA.kernel.classes")
    for edge, before in (("map-left", True), ("map-below", False)):
        found = names_on(browser, edge)
        assert {seen for seen, *_ in found} >= {c for c, count in zip(classes, COUNTS, strict=False) if count > 2}
        for seen, along, across in found:
            block = np.flatnonzero(member == classes.index(seen))
            assert sum(along) / 2 == pytest.approx((block[0] + block[-1] + 1) / 2 / len(member) * side, abs=2)
            assert across[1] < 0 if before else across[0] > side
        for one, other in pairwise(found):
            assert one[1][1] <= other[1][0] + 1
        colour = f"getComputedStyle(document.querySelector('#{edge} span'))"
        assert browser.ask(f"parseFloat({colour}.fontSize)") >= 12
        assert browser.ask(f"{colour}.color") == browser.ask("getComputedStyle(document.body).color")


def test_the_names_follow_the_view(opened):
    browser = opened("sweep")
    browser.ask("document.getElementById('map').focus(); scrollTo(0, 0)")
    assert [seen for seen, *_ in names_on(browser, "map-left")] == ["y = −1", "y = 1"]
    browser.press("+", 8)  # around the first point
    ((seen, along, _),) = names_on(browser, "map-left")
    assert seen == "y = −1" and sum(along) / 2 == pytest.approx(browser.ask(BOX)[2] / 2, abs=2)
    browser.press("End")
    assert [seen for seen, *_ in names_on(browser, "map-below")] == ["y = 1"]
    browser.press("0")
    assert len(names_on(browser, "map-below")) == 2


def test_names_that_have_no_room_stand_and_long_ones_are_cut(opened):
    browser = opened("classes")
    names = names_on(browser, "map-below")
    assert all(along[1] - along[0] < across[1] - across[0] for seen, along, across in names if len(seen) > 3)
    assert "automobile" in [seen for seen, *_ in names]
    lengths = [across[1] - across[0] for _, _, across in names_on(browser, "map-left")]
    assert max(lengths) < 110
    assert browser.ask(BOX)[2] > 300  # what is left for the map


def test_pale_lines_are_explained(opened):
    browser = opened("sweep", "#sweep=1")
    words = "[...document.querySelectorAll('#alignment-legend span')].map(e => e.textContent)"
    assert browser.ask(words) == ["this solution", "the whole sweep, γ₀ = 0 to 3"]
    pale = browser.ask(
        "[...document.querySelectorAll('#alignment path')].slice(0, -1).map(e => getComputedStyle(e).stroke)"
    )
    swatch = browser.ask(
        "getComputedStyle(document.querySelector('#alignment-legend .pale'), '::before').backgroundImage"
    )
    assert len(pale) == LAST + 1 and swatch == f"linear-gradient(to right, {', '.join(pale)})"
    assert browser.ask("document.querySelector('#along-legend .ring').textContent") == "this solution"
    browser = opened("single")
    assert browser.ask(words) == []


def test_the_wheel_scrolls_past_a_map_without_focus(opened):
    browser = opened("sweep")
    left, top, width = browser.ask(BOX)
    browser.wheel(left + width / 2, top + 50, 200)
    browser.wait("scrollY > 50")
    assert not browser.ask("document.getElementById('map').classList.contains('zoomed')")


def test_tabs_go_by_arrow_keys(opened):
    browser = opened("sweep")
    browser.ask("document.querySelector('#layers [aria-selected=true]').focus()")
    browser.press("ArrowUp")
    assert browser.ask("document.activeElement.id") == "layer-1"
    assert browser.ask("document.getElementById('map').getAttribute('aria-label')") == "Kernel Φ¹, 30 by 30 points"
    assert browser.ask("document.querySelectorAll('#layers [tabindex=\"0\"]').length") == 1
    browser.ask("document.getElementById('tab-train').focus()")
    browser.press("ArrowRight")
    assert browser.ask("document.activeElement.id") == "tab-test"
    assert text(browser, "scores").startswith("Test points: mean squared error")


def test_everything_is_reached_by_tab_and_has_a_name(opened):
    browser = opened("sweep")
    reached = set()
    for _ in range(40):
        browser.press("Tab")
        reached.add(browser.ask("document.activeElement.id || document.activeElement.tagName"))
    wanted = {
        "slider",
        "play",
        "map",
        "closer",
        "whole",
        "density-layer",
        "density-point",
        "density-log",
        "tab-train",
        "along-what",
    }
    assert wanted <= reached
    unnamed = """[...document.querySelectorAll('button, select, input, canvas[tabindex], svg')].filter(e => e.checkVisibility()
        && !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length)).map(e => e.id)"""
    assert browser.ask(unnamed) == []


def test_dark_where_the_reader_prefers_it(opened):
    browser = opened("sweep")
    light = browser.picture().mean()
    browser.media(prefers_color_scheme="dark", prefers_reduced_motion="reduce")
    browser.wait("getComputedStyle(document.documentElement).backgroundColor === 'rgb(18, 22, 27)'")
    assert browser.picture().mean() < light - 60
    contrast = """(() => { const lum = (c) => { const [r, g, b] = c.match(/\\d+/g).map(v => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
        const of = (id, what) => lum(getComputedStyle(document.getElementById(id))[what]);
        return (of('density-law', 'color') + 0.05) / (lum(getComputedStyle(document.querySelector('.panel')).backgroundColor) + 0.05); })()"""
    assert browser.ask(contrast) > 4.5


def test_the_slider_plays(opened):
    browser = opened("sweep", "#sweep=1")
    browser.ask("document.getElementById('play').focus()")
    browser.press("Enter")
    assert text(browser, "play") == "Stop"
    browser.wait(f"document.getElementById('slider').value === '{LAST}'")
    assert text(browser, "play") == "Play"
