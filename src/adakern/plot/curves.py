"""Numbers along something: label alignments over layers, richness or time, and what was recorded while a computation ran."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from adakern import readings
from adakern.finite import Run
from adakern.plot.style import CYCLE, NEUTRAL, name, pale, shade, unbox
from adakern.readings import Subject
from adakern.trajectories import Trajectory

_AGAINST = ("layer", "richness", "time")


def alignment(axes: Axes, *of: Subject, against: str = "layer") -> None:
    r"""Draw $\mathcal A(\Phi^\ell,yy^\top)$, how far the kernel of each hidden layer is aligned with the labels.

    Args:
        axes: where to draw.
        of: solutions and runs; with `against="time"` one trajectory.
        against: "layer", one line for each of `of`, from the lazy colour to the adaptive one as they grow richer; "richness", one line for each layer; or "time".
            Networks of finite width are open dots.
    """
    if against not in _AGAINST:
        raise ValueError(f'against must be "layer", "richness" or "time", but it is {against!r}')
    if not of:
        raise ValueError("alignment needs a solution, a run or a trajectory to draw")
    readings.check(*of)
    if against == "time":
        _over_time(axes, of)
    else:
        (_over_layers if against == "layer" else _over_richness)(axes, of)
    axes.set_ylabel(r"label alignment $\mathcal{A}(\Phi^\ell, yy^\top)$")
    axes.set_ylim(top=1.02)  # a mark at 1 is whole
    axes.legend(frameon=False, handlelength=1.4)
    unbox(axes)


def _marks(of: Subject) -> dict[str, Any]:
    """A line through dots for theory, open dots for networks."""
    return {"marker": "o", "linestyle": "none", "mfc": "white"} if isinstance(of, Run) else {"marker": "o"}


def _over_layers(axes: Axes, of: tuple[Subject, ...]) -> None:
    rungs = sorted({readings.richness(one) for one in of})
    for one in of:
        values = readings.label_alignments(one)
        rank = rungs.index(readings.richness(one)) / max(1, len(rungs) - 1) if len(rungs) > 1 else 1.0
        axes.plot(np.arange(1, len(values) + 1), values, color=shade(rank), label=name(one), **_marks(one))
    axes.set_xticks(range(1, max(readings.network(one).depth for one in of) + 1))
    axes.set_xlabel(r"layer $\ell$")


def _over_richness(axes: Axes, of: tuple[Subject, ...]) -> None:
    if len({readings.network(one).depth for one in of}) > 1:
        raise ValueError("networks over the richness must have the same depth")
    for finite in (False, True):
        chosen = sorted((one for one in of if isinstance(one, Run) == finite), key=readings.richness)
        if not chosen:
            continue
        table = np.array([readings.label_alignments(one) for one in chosen])
        for layer, values in enumerate(table.T, start=1):
            label = rf"$\ell={layer}$" + (", network" if finite else "")
            colour = CYCLE[(layer - 1) % len(CYCLE)]
            places = [readings.richness(one) for one in chosen]
            axes.plot(places, values, color=colour, label=label, **_marks(chosen[0]))
    axes.set_xlabel(r"richness $\gamma_0$")


def _over_time(axes: Axes, of: tuple[Subject, ...]) -> None:
    for index, one in enumerate(of):
        if not isinstance(one, Trajectory):
            raise ValueError('against="time" needs trajectories, which dynamics returns')
        values = [readings.label_alignment(readings.kernel(one, time=time), one.y) for time in one.times]
        axes.plot(one.times, values, "o-", color=CYCLE[index % len(CYCLE)], label=name(one))
    axes.set_xlabel("time")


def trace(axes: Axes, *of: Subject, log: bool | None = None) -> None:
    """Draw how a computation converged, with two standard errors: the energy of particles and where it settles, the duality gap of an aNTK (or how far its weights are from rest), the losses of networks and trajectories.

    Args:
        axes: where to draw.
        of: solutions that particles or descent found, runs, trajectories.
        log: values on a logarithmic axis; by default all but energies.
    """
    readings.check(*of)
    found = [(one, line) for one in of for line in readings.traces(one)]
    if not found:
        raise ValueError(
            "there is no trace to draw: particles, descent, networks and trajectories leave one, closed forms do not"
        )
    kinds = {(line.along, "loss" if line.what.endswith("loss") else line.what) for _, line in found}
    if len(kinds) > 1:
        raise ValueError(
            "traces of different things (energies, gaps, losses) do not belong on one axis; draw them apart"
        )
    for index, (one, line) in enumerate(found):
        colour = CYCLE[index % len(CYCLE)]
        axes.plot(line.x, line.values, color=colour, linewidth=1.6, label=f"{name(one)}, {line.what}")
        if line.errors is not None:
            low, high = line.values - 2 * line.errors, line.values + 2 * line.errors
            axes.fill_between(
                line.x, np.maximum(low, 0.0) if line.what.endswith("loss") else low, high, color=pale(colour)
            )
        if line.level is not None:
            mean, error = line.level
            axes.axhspan(mean - 2 * error, mean + 2 * error, color=pale(colour), zorder=0)
            axes.axhline(mean, color=NEUTRAL, linewidth=1.0, linestyle="--", label=f"mean {mean:.4g} ± {error:.1g}")
    (along, what), *_ = kinds
    positive = all((line.values > 0).all() for _, line in found)
    if (all(line.falls for _, line in found) if log is None else log) and positive:
        axes.set_yscale("log")
    axes.set_xlabel(along)
    axes.set_ylabel(what)
    axes.legend(frameon=False, handlelength=1.4)
    unbox(axes)
