"""Lazy kernels of CNNs against wide random networks, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import jax.numpy as jnp
import numpy as np

from adakern import losses
from adakern.benchmarks.cnn_tasks import scores, small, two_layers
from adakern.benchmarks.flow_rows import Options, Row, Setting, below, relative, rms
from adakern.finite import measure, model
from adakern.limits import NNGPK, NTK
from adakern.networks import CNN
from adakern.precision import scope
from adakern.solving import solve

NETWORKS = {
    "CNN(1) relu": CNN(1, 3, 3),
    "CNN(2) tanh": two_layers(),
    "CNN(2) relu, same, mean": CNN(2, ((3, 3), (2, 2)), ((1, 1), (2, 2)), padding="same", readout="mean"),
}


def random_networks(network: CNN, X: np.ndarray, width: int, count: int) -> dict[str, np.ndarray]:
    """Last kernels and tangent kernels of independent networks at the start, (count, P, P) each."""
    net = model.build(network, X, losses.get("squared"), width, 1, "highest")
    rows = model.rows_of(network, X)
    found: dict[str, list[np.ndarray]] = {"NNGPK": [], "NTK": []}
    with scope("float32"):
        arrays, scales = jnp.asarray(rows), jnp.asarray(net.scales(math.sqrt(width)))
        for seed in range(count):
            rng = np.random.default_rng([seed, width])
            weights = tuple(jnp.asarray(w) for w in model.draw(rng, net.shapes(rows.shape[1])))
            found["NNGPK"].append(np.asarray(measure.kernels(net, weights, arrays, scales)[-1], np.float64))
            tangent = measure.tangents(net, weights, arrays, scales).tangent[:, 0, :, 0]
            found["NTK"].append(np.asarray(tangent, np.float64))
    return {kind: np.stack(stack) for kind, stack in found.items()}


def compare(options: Options, label: str) -> Iterator[Row]:
    """Kernels of the lazy limits beside means over networks, whose scatter gives the errors."""
    network = NETWORKS[label]
    X, y, *_ = small(6 if options.quick else 12)
    width = options.width or (256 if options.quick else 2048)
    count = options.replicas or (16 if options.quick else 64)
    stacks = random_networks(network, X, width, count)
    upper = np.triu_indices(len(X))
    for limit in (NNGPK(network), NTK(network)):
        stack, ours = stacks[limit.kind], solve(limit, X, y).kernel
        mean, error = stack.mean(axis=0), stack.std(axis=0, ddof=1) / math.sqrt(count)
        z = scores(ours, mean, error)[upper]
        at = f"{label}, {limit.kind}, {count} networks of N={width}"
        doubt = float(np.linalg.norm(error) / np.linalg.norm(mean))
        note = f"{100 * relative(ours, mean):.2g} % off, errors {100 * doubt:.2g} %"
        yield below(f"{at}: rms z over {len(z)} entries", rms(z), 2.0, note=note)
        yield below(f"{at}: largest z", float(np.abs(z).max()), 5.0)


def settings() -> dict[str, Setting]:
    return {label: partial(compare, label=label) for label in NETWORKS}
