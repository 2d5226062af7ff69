r"""Outputs of trained networks at new points, against what kernels predict: those of the start, and those that the network made.

Without decay the infinite network is known by its dynamics alone: the tangent kernel of the end, $f(x)=K(x)^\top K^{-1}y$, does not predict it. With decay the aNTK does, and under Langevin noise the aNBK.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import adakern as ak
from adakern.figures import measuring, style
from adakern.figures.shape import Arrays, Data, Numbers, Part, mlp

TITLE = "Outputs of networks at new images, against kernel predictors"
PAPER = (
    "Without weight decay the end of gradient flow is not a kernel predictor: neither the kernel of the start nor that of the end gives the outputs of the network.",
    "With weight decay the aNTK predicts them well, and the NTK of the start does not.",
    "Under Langevin dynamics the aNBK predicts the mean output well, and the kernel of the start does not.",
    "Agreement with the adaptive kernels is expected to be exact at infinite width.",
)

FREE, DECAYED, NOISY = "no decay", "decay", "Langevin"
COLOURS = {"lazy": style.BLUE, "end": style.ORANGE, "adaptive": style.VERMILION}


@dataclass(frozen=True)
class Settings:
    """Sizes. Richness of the three panels, in their order."""

    points: int = 300
    test: int = 600
    # At 0.3, few large neurons carry the aNBK of 300 photographs, and how many hangs on the width of theory and networks alike.
    richness: tuple[float, float, float] = (1.0, 0.3, 0.1)
    decay: float = 1.0
    beta: float = 50.0
    way: float = 10.0  # time without decay
    neurons: int = 2048
    flow: float = 400.0  # with it, in units of 1/decay
    particles: int = 16384
    tolerance: float = 0.05
    solves: int = 6
    free: int = 8192  # neurons of networks without decay, whose flow is followed and not only its end
    width: int = 16384
    networks: int = 2  # of those that are trained
    sampled: int = 3  # of those under Langevin dynamics
    burn_in: float = 20.0
    time: float = 40.0


FULL = Settings()
QUICK = Settings(
    points=50,
    test=200,
    richness=(1.0, 0.3, 0.3),
    way=8.0,
    neurons=2048,
    flow=300.0,
    particles=4096,
    solves=2,
    free=4096,
    width=4096,
    networks=2,
    sampled=2,
    burn_in=8.0,
    time=12.0,
)


def parts(settings: Settings) -> Iterator[Part]:
    data = Data("cifar10", settings.points, settings.test)
    free, decayed, noisy = settings.richness
    decay, beta, width = settings.decay, settings.beta, settings.width
    yield Part("kernels of the start", lazy, {"data": data, "decay": decay, "beta": beta})
    yield Part(
        "dynamics", dynamics, {"data": data, "richness": free, "time": settings.way, "neurons": settings.neurons}
    )
    yield Part("aNTK", resting, {"data": data, "richness": decayed, "decay": decay})
    bayes = {"data": data, "richness": noisy, "decay": decay, "beta": beta}
    for seed in range(settings.solves):
        how = {"particles": settings.particles, "tolerance": settings.tolerance, "seed": seed}
        yield Part(f"aNBK {seed}", bayesian, {**bayes, **how})
    for seed in range(settings.networks):
        shared: dict[str, Any] = {"data": data, "width": width, "seed": seed}
        way = {"richness": free, "decay": 0.0, "time": settings.way, "width": settings.free}
        yield Part(f"{FREE} {seed}", trained, {**shared, **way})
        flow = {"richness": decayed, "decay": decay, "time": settings.flow / decay}
        yield Part(f"{DECAYED} {seed}", trained, {**shared, **flow})
    times = {"burn_in": settings.burn_in, "time": settings.burn_in + settings.time}
    for seed in range(settings.sampled):
        yield Part(f"{NOISY} {seed}", sampled, {**bayes, **times, "width": width, "seed": seed})


def lazy(data: Data, decay: float, beta: float) -> Arrays:
    """Predictors of the start: NTK without and with the ridge that decay makes, and NNGPK."""
    X, y, new, _ = data.load()
    net = mlp(1, "relu")
    limits = {FREE: ak.NTK(net), DECAYED: ak.NTK(net, ridge=2 * decay), NOISY: ak.NNGPK(net, beta=beta, decay=decay)}
    return {name: ak.solve(limit, X, y).predict(new) for name, limit in limits.items()}


def dynamics(data: Data, richness: float, time: float, neurons: int) -> Arrays:
    """The infinite network without decay at the end of its way, and what the tangent kernel that it has there would predict."""
    X, y, new, _ = data.load()
    net = mlp(1, "relu")
    limit = ak.ANTK(net, richness=richness, decay=0.0)
    way = ak.dynamics(limit, X, y, [time], X_test=new, neurons=neurons, accuracy=1e-4)
    assert way.predictions is not None and way.prediction_errors is not None
    end, error = way.tangent_regression(new)
    return {
        "f": way.predictions[-1],
        "error": way.prediction_errors[-1],
        "end": end,
        "end_error": error,
        "loss": way.train_loss[-1],
    }


def resting(data: Data, richness: float, decay: float) -> Arrays:
    """The aNTK's predictor."""
    X, y, new, _ = data.load()
    end = ak.solve(ak.ANTK(mlp(1, "relu"), richness=richness, decay=decay), X, y)
    assert end.certificate is not None
    return {"f": end.predict(new), "gap": np.array(end.certificate)}


def bayesian(
    data: Data, richness: float, decay: float, beta: float, particles: int, tolerance: float, seed: int
) -> Arrays:
    """The aNBK's predictor, from one seed."""
    X, y, new, _ = data.load()
    limit = ak.ANBK(mlp(1, "relu"), richness=richness, beta=beta, decay=decay)
    how: dict[str, Any] = {"solver": "particles", "particles": particles, "tolerance": tolerance, "seed": seed}
    return {"f": ak.solve(limit, X, y, steps=100_000, **how).predict(new)}


def trained(data: Data, richness: float, decay: float, time: float, width: int, seed: int) -> Arrays:
    """Outputs of a network at the end of gradient flow; without decay, which would have it forgotten, less those of its start."""
    X, y, new, _ = data.load()
    free = decay == 0
    run = ak.finite.gradient_flow(
        mlp(1, "relu"),
        X,
        y,
        richness=richness,
        decay=decay,
        width=width,
        time=time,
        method="chebyshev" if free else "momentum",
        centred=free,
        tolerance=0.0 if free else 1e-6,
        X_test=new,
        seed=seed,
    )
    assert run.test_predictions is not None
    return {"f": run.test_predictions, "loss": run.losses[-1], "motion": np.array(run.stats["rate"] or np.nan)}


def sampled(
    data: Data,
    richness: float,
    decay: float,
    beta: float,
    burn_in: float,
    time: float,
    width: int,
    seed: int,
) -> Arrays:
    """Mean outputs of a network under Langevin dynamics."""
    X, y, new, _ = data.load()
    run = ak.finite.langevin(
        mlp(1, "relu"),
        X,
        y,
        richness=richness,
        decay=decay,
        beta=beta,
        burn_in=burn_in,
        time=time,
        width=width,
        X_test=new,
        snapshots=1,
        seed=seed,
    )
    assert run.test_predictions is not None
    return {"f": run.test_predictions, "loss": run.losses[-1]}


@dataclass(frozen=True)
class _Panel:
    """A panel: networks with standard errors, predictors by what they are, and the standard error of the adaptive one."""

    title: str
    networks: tuple[np.ndarray, np.ndarray]
    predictors: dict[str, tuple[str, np.ndarray]]
    doubt: np.ndarray
    note: str | None = None

    def missed(self, kind: str) -> float:
        """1 − R²."""
        f = self.networks[0]
        return float(np.mean((f - self.predictors[kind][1]) ** 2) / np.var(f))

    @property
    def noise(self) -> float:
        """What the standard errors alone leave of 1 − R²."""
        return float(np.mean(np.nan_to_num(self.networks[1]) ** 2 + self.doubt**2) / np.var(self.networks[0]))


def _panels(settings: Settings, numbers: Numbers) -> list[_Panel]:
    start, way = numbers["kernels of the start"], numbers["dynamics"]
    solved, doubt = _gathered(numbers, "aNBK", settings.solves)
    moving = max(float(np.max(numbers[f"{DECAYED} {seed}"]["motion"])) for seed in range(settings.networks))
    free, decayed, noisy = (rf"richness $\gamma_0={value:g}$" for value in settings.richness)
    return [
        _Panel(
            rf"Gradient flow, no decay, {free}",
            _gathered(numbers, FREE, settings.networks),
            {
                "lazy": ("NTK of the start", start[FREE]),
                "end": ("tangent kernel of the end", way["end"]),  # its error is far below what it misses
                "adaptive": ("infinite network over time (no kernel)", way["f"]),
            },
            way["error"],
            f"training loss {float(np.max(way['loss'])):.0e} at t = {settings.way:g}",
        ),
        _Panel(
            rf"Gradient flow, decay $\lambda={settings.decay:g}$, {decayed}",
            _gathered(numbers, DECAYED, settings.networks),
            {"lazy": ("NTK of the start", start[DECAYED]), "adaptive": ("aNTK", numbers["aNTK"]["f"])},
            np.zeros(settings.test),
            f"networks still move by {100 * moving:.2g} % per unit of time",
        ),
        _Panel(
            rf"Langevin, $\beta={settings.beta:g}$, $\lambda={settings.decay:g}$, {noisy}",
            _gathered(numbers, NOISY, settings.sampled),
            {"lazy": ("NNGP kernel of the start", start[NOISY]), "adaptive": ("aNBK", solved)},
            doubt,
        ),
    ]


def _gathered(numbers: Numbers, name: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    mean, error = measuring.over(np.stack([numbers[f"{name} {seed}"]["f"] for seed in range(count)]))
    return mean, np.nan_to_num(error)


def draw(settings: Settings, numbers: Numbers) -> Figure:
    figure, axes = style.panels(2, 2, TITLE, size=(4.4, 3.9))
    panels = _panels(settings, numbers)
    for place, panel in zip(axes.flat, panels, strict=False):
        _scatter(place, panel)
    _verdict(axes[1, 1], panels, settings)
    return figure


def _scatter(axes: Axes, panel: _Panel) -> None:
    f, error = panel.networks
    ends = np.array([f.min(), f.max()])
    axes.plot(ends, ends, color=style.GREY, linewidth=1, zorder=1)
    for kind, (label, predicted) in panel.predictors.items():
        words = f"{label}: $R^2$ = {1 - panel.missed(kind):.5f}"
        bars: dict[str, Any] = {"xerr": 2 * error, "elinewidth": 0.6, "capsize": 0} if kind == "adaptive" else {}
        axes.errorbar(
            f, predicted, fmt=".", markersize=4, color=COLOURS[kind], label=words, alpha=0.75, zorder=2, **bars
        )
    axes.set(xlabel="output of the networks (bars: 2 standard errors)", ylabel="output predicted")
    axes.set_title(panel.title)
    style.legend(axes, panel.note, loc="upper left")


def _verdict(axes: Axes, panels: Sequence[_Panel], settings: Settings) -> None:
    names = {"lazy": "kernel of the start", "end": "kernel of the end", "adaptive": "adaptive theory"}
    for kind, mark in (("lazy", "o"), ("end", "s"), ("adaptive", "D")):
        held = [(place, panel.missed(kind)) for place, panel in enumerate(panels) if kind in panel.predictors]
        axes.plot(*np.array(held).T, mark, color=COLOURS[kind], markersize=7, label=names[kind])
    noise = [panel.noise for panel in panels]
    axes.plot(range(3), noise, "_", color=style.BLACK, markersize=26, label="standard errors alone")
    axes.axhline(1e-3, color=style.GREY, linestyle="--", linewidth=1, label="$R^2$ = 0.999")
    axes.set_xticks(range(3), ["no decay", "decay", "Langevin"])
    axes.set(yscale="log", xlim=(-0.5, 2.5), ylim=(1e-5, 1), xlabel="training", ylabel="what is missed, $1-R^2$")
    widths = f"{settings.width} neurons" + (f" (no decay: {settings.free})" if settings.free != settings.width else "")
    counts = f"{settings.networks} trained and {settings.sampled} sampled networks"
    axes.set_title(f"What predictors miss at {settings.test} new images")
    style.legend(
        axes, f"{settings.points} training images; {counts}\nof {widths}", ncols=2, handlelength=2.6, columnspacing=1.2
    )
