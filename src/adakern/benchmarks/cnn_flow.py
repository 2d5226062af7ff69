r"""Gradient flow of CNNs against trained networks: losses over time, and where training ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from adakern.benchmarks import flow_networks
from adakern.benchmarks.cnn_tasks import images, shallow, small, two_layers
from adakern.benchmarks.flow_rows import Options, Row, Setting
from adakern.limits import ANTK

DECAY = 0.01
RICHNESS = (0.3, 1.0, 3.0)


def race(options: Options, points: int, richness: float) -> Iterator[Row]:
    """Losses over time. The fastest rate grows with the number of points: times are divided by it. Quick runs leave 1000 points out."""
    if options.quick and points > 100:
        return iter(())
    data = images(options, 20 if options.quick else points, 50 if options.quick else 500)
    limit = ANTK(shallow(options), richness=richness, decay=DECAY)
    times = np.geomspace(0.1, 10.0 if options.quick else 300.0, flow_networks.MOMENTS) / len(data[0])
    label = f"CNN(1) relu, P={len(data[0])}, richness {richness:g}"
    width, copies, accuracy = (128, 8, 1e-3) if options.quick else (1024, 16, 1e-4)
    return flow_networks.race(options, label, limit, data, times, width, copies, accuracy)


def rest_shallow(options: Options) -> Iterator[Row]:
    """One hidden layer of ReLU."""
    data = images(options, 10 if options.quick else 100, 50 if options.quick else 500)
    limit = ANTK(shallow(options), richness=1.0, decay=1.0)
    label = f"CNN(1) relu, P={len(data[0])}, richness 1, decay 1"
    return _compare(options, label, limit, data, (1024, 4096), 1600.0)


def rest_deeper(options: Options) -> Iterator[Row]:
    """Two layers of tanh on small images."""
    data = small(5 if options.quick else 12, 50 if options.quick else 500)
    limit = ANTK(two_layers(), richness=1.0, decay=0.1)
    label = f"CNN(2) tanh, P={len(data[0])}, richness 1, decay 0.1"
    return _compare(options, label, limit, data, (512, 2048), 400.0)


def _compare(
    options: Options, label: str, limit: ANTK, data: flow_networks.Data, widths: tuple[int, int], length: float
) -> Iterator[Row]:
    """Momentum, its step from the fastest rate (windows add up, and so do rates), for so long in 1/decay that outputs are at rest; kinks take longest."""
    how = {"method": "momentum"}
    options = replace(options, time=options.time or (length / 4 if options.quick else length))
    return flow_networks.compare(options, label, limit, data, (64, 128) if options.quick else widths, how)


def dynamics_settings() -> dict[str, Setting]:
    return {
        f"P={points}, richness {richness:g}": partial(race, points=points, richness=richness)
        for points in (100, 1000)
        for richness in RICHNESS
    }


def rest_settings() -> dict[str, Setting]:
    return {"one layer": rest_shallow, "two layers": rest_deeper}
