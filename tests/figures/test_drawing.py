"""Figures draw small made-up numbers, and every one says what it is."""

from __future__ import annotations

import numpy as np
import pytest

from adakern import figures
from adakern.figures import densities, dynamics, laplace, linear, single_point, unlearning

EDGES = (-2.0, -1.0, 0.0, 1.0, 2.0)
TIMES = (0.0, 1.0)


def constant(names, shape, value=0.25):
    """Arrays of one value, each with its error."""
    return {key: np.full(shape, value if key == name else 0.01) for name in names for key in (name, f"{name}_error")}


def laws(moments):
    return {"heights": np.full((moments, 4), 0.25), "errors": np.full((moments, 4), 0.01)}


def test_single_point(drawn):
    settings = single_point.Settings(times=TIMES, scan=(0.5, 2.0), edges=tuple(np.linspace(-12, 12, 5)))
    numbers = {
        f"densities of {whose}, richness {richness:g}": laws(2)
        for richness in (settings.alive, settings.dead)
        for whose in ("the theory", "networks")
    }
    numbers["ends of the theory"] = numbers["ends of networks"] = constant(("errors", "moments"), 2)
    picture = drawn("single-point", settings, numbers)
    (survivors,) = [line for line in picture.axes[0].lines if "at rest" in str(line.get_label())]
    h, p = survivors.get_data()
    assert np.trapezoid(p, h) == pytest.approx(3 / 8, abs=0.005)
    assert np.trapezoid(h**2 * p, h) == pytest.approx(settings.alive - settings.decay, rel=0.01)


def test_laplace(drawn):
    settings = laplace.Settings(times=TIMES, shown=TIMES, edges=tuple(np.linspace(-12, 12, 5)))
    held = {**laws(2), **constant(("second", "kurtosis", "outputs"), 2)}
    numbers = {
        f"{whose} from {words} weights": held for whose in ("theory", "networks") for words in laplace.STARTS.values()
    }
    picture = drawn("laplace", settings, numbers)
    for place, kurtosis in zip(picture.axes, (1.5, 0.0), strict=False):
        (law,) = [line for line in place.lines if line.get_label() == "at rest, exactly"]
        h, p = law.get_data()
        moments = [float(np.trapezoid(h**k * p, h)) for k in (0, 2, 4)]
        assert moments[:2] == pytest.approx([1.0, settings.richness - settings.decay], rel=2e-3)
        assert moments[2] / moments[1] ** 2 - 3 == pytest.approx(kurtosis, abs=0.02)


def test_unlearning(drawn):
    settings = unlearning.Settings(times=TIMES, richness=(0.1, 1.0), decays=(0.0, 1.0))
    held = constant(("train", "test", "size", "alignment"), 2)
    numbers = {part.name: held for part in unlearning.parts(settings)}
    drawn("unlearning", settings, numbers)


def test_dynamics(drawn):
    settings = dynamics.Settings(times=TIMES, richness=(0.1, 1.0), edges=EDGES)
    held = {**constant(("train", "test"), 2), **constant(("field", "readout"), 4)}
    drawn("dynamics", settings, {part.name: held for part in dynamics.parts(settings)})


def test_linear(drawn):
    settings = linear.Settings(
        points=4, richness=(1.0, 4.0), depths=(1, 2), depth=2, widths=(8, 16), width=16, layers=(1, 2)
    )
    parts = {part.name: part for part in linear.parts(settings)}
    numbers = {name: {**constant(("overlaps",), 2), "kernels": np.ones((2, 4, 4))} for name in parts}
    numbers["theory"] = parts["theory"].compute(**parts["theory"].arguments)
    numbers["theory, kernels"] = parts["theory, kernels"].compute(**parts["theory, kernels"].arguments)
    X, y = linear.whitened(4)
    np.testing.assert_allclose(X @ X.T / 4, np.eye(4))
    overlaps = [y @ kernel @ y for kernel in numbers["theory, kernels"]["kernels"]]
    np.testing.assert_allclose(overlaps, numbers["theory"]["layers"][1], rtol=1e-9)
    for regime in linear.REGIMES:  # where a form is drawn, it is right to what it says
        form, exact = numbers["theory"][f"by_richness_{regime}"], numbers["theory"]["by_richness"]
        seen = np.isfinite(form)
        assert regime == "deep" or seen.any()
        assert (np.abs(form / exact - 1)[seen] < 0.5).all()
    picture = drawn("linear", settings, numbers)
    assert sum(bool(axes.images) for axes in picture.axes) == 2 * 3
    for place in picture.axes[1:3]:  # curves and regimes are told apart by colour, regimes also by their dashes
        looks = {str(line.get_label()): line for line in place.get_legend().get_lines()}
        assert len({line.get_color() for line in looks.values()}) == len(looks)
        forms = [line for name, line in looks.items() if name.split(":")[0] in linear.REGIMES]
        assert len(forms) >= 2 and len({str(line._dash_pattern) for line in forms}) == len(forms)
        for form in forms:
            drawn_as = [line for line in place.lines if line.get_color() == form.get_color()]
            assert any(np.isfinite(line.get_ydata()).any() for line in drawn_as if len(line.get_ydata()))


def test_densities(drawn):
    settings = densities.Settings(flow=(0.1, 1.0), bayes=(1.0,), humps=(1.0,))
    held = {"heights": np.full(4, 0.25), "errors": np.full(4, 0.01), "edges": np.array(EDGES), "start": np.array(1.0)}
    numbers = {part.name: held for part in densities.parts(settings)}
    numbers["tanh, networks, richness 1"] = {**held, "rhat": np.array(1.5)}
    legends = [axes.get_legend() for axes in drawn("densities", settings, numbers).axes]
    warned = [any("not settled" in text.get_text() for text in legend.get_texts()) for legend in legends]
    assert warned == [False, False, True, False]


@pytest.mark.parametrize("name", figures.NAMES)
def test_every_figure_says_what_it_is_and_plans_both_sizes(name):
    module = figures.get(name)
    assert module.TITLE and module.PAPER and all(claim.endswith(".") for claim in module.PAPER)
    assert type(module.QUICK) is type(module.FULL) and module.QUICK != module.FULL
    for settings in (module.QUICK, module.FULL):
        names = [part.name for part in module.parts(settings)]
        assert names and len(set(names)) == len(names)
