r"""Losses over time of the infinitely wide network with one hidden layer and of networks of finite width.

Losses are means of $\Delta^2$, with standard errors over independent replicas.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import adakern as ak
from adakern.figures import measuring
from adakern.figures.shape import Arrays, Data

WINDOW = 8  # pixels a side, side by side: the paper's
KINDS = ("train", "test")


def architecture(name: str) -> tuple[Any, bool]:
    """ "MLP" or "CNN", one hidden layer of ReLU, and whether its inputs are flat."""
    return {"MLP": (ak.MLP(1), True), "CNN": (ak.CNN(1, WINDOW, WINDOW), False)}[name]


def load(name: str, data: Data) -> tuple[Any, tuple[np.ndarray, ...]]:
    """A network, and images as it sees them."""
    network, flat = architecture(name)
    X, y, X_test, y_test = data.load()
    return network, (X.reshape(len(X), -1), y, X_test.reshape(len(X_test), -1), y_test) if flat else (
        X,
        y,
        X_test,
        y_test,
    )


def theory(
    network: str,
    data: Data,
    richness: float,
    decay: float,
    times: tuple[float, ...],
    neurons: int,
    replicas: int,
    accuracy: float,
) -> Arrays:
    """Losses of the infinite network."""
    model, (X, y, X_test, y_test) = load(network, data)
    path = ak.dynamics(
        ak.ANTK(model, richness=richness, decay=decay),
        X,
        y,
        times,
        X_test=X_test,
        y_test=y_test,
        neurons=neurons,
        replicas=replicas,
        accuracy=accuracy,
        keep=False,
        precision="float32",
    )
    assert path.test_loss is not None and path.test_loss_errors is not None
    return {
        "train": 2 * path.train_loss,
        "train_error": 2 * path.train_loss_errors,
        "test": 2 * path.test_loss,
        "test_error": 2 * path.test_loss_errors,
    }


def networks(
    network: str,
    data: Data,
    richness: float,
    decay: float,
    times: tuple[float, ...],
    width: int,
    replicas: int,
    accuracy: float,
    centred: bool,
) -> Arrays:
    """Losses of networks, one seed each.

    Centred or not: a centred network starts at zero, but goes on subtracting what it said at the start after weight decay has made it forget that.
    """
    model, (X, y, X_test, y_test) = load(network, data)
    found: dict[str, list[np.ndarray]] = {kind: [] for kind in KINDS}
    runs = ak.finite.gradient_flow(
        model,
        X,
        y,
        richness=richness,
        decay=decay,
        width=width,
        time=max(times),
        times=times,
        seed=100,
        replicas=replicas,
        centred=centred,
        tolerance=0.0,
        accuracy=accuracy,
    )
    for seed in range(replicas):
        run = runs.replica(seed)
        moments = [run.at(moment) for moment in times]
        found["train"].append(np.array([np.mean((y - at.fitted) ** 2) for at in moments]))
        found["test"].append(np.array([np.mean((y_test - at.predict(X_test)) ** 2) for at in moments]))
    pairs = {kind: measuring.over(np.stack(values)) for kind, values in found.items()}
    return {kind + suffix: pair[place] for kind, pair in pairs.items() for place, suffix in enumerate(("", "_error"))}


def scores(ours: Arrays, theirs: Arrays, kind: str) -> np.ndarray:
    """Differences of a loss over joint standard errors."""
    error = f"{kind}_error"
    return measuring.scores(ours[kind], theirs[kind], ours[error], theirs[error])
