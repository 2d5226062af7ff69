r"""Test losses, means of $(y-f)^2$, of two-layer ReLU networks: of theories, and of networks of finite width with standard errors over seeds.

At infinite width and in mean-field parameterisation, outputs do not fluctuate. Those of networks and of sampled theories do. Their mean has the loss $\langle r_sr_{s'}\rangle$ over pairs of different
seeds, $r_s=y-f_s$: no variance in it, however few seeds there are; `mean` in what follows. `whole` is what one network or draw has, variance included.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import adakern as ak
from adakern.figures import measuring
from adakern.figures.shape import Arrays, Data, mlp

NETWORK = mlp(1, "relu")
_STEP, _FEW = 0.03, 100  # of training with decay, over the number of points, but for fewer than this as for so many


def of_mean(y: np.ndarray, f: np.ndarray) -> tuple[float, float]:
    """Loss of the mean of predictions (seeds, points) that are independent and unbiased, and its jackknife standard error: at least three seeds."""
    residuals = np.asarray(y, np.float64)[None] - np.asarray(f, np.float64)
    seeds = len(residuals)

    def pairs(r: np.ndarray) -> float:
        return float(np.mean(r.sum(axis=0) ** 2 - (r**2).sum(axis=0)) / (len(r) * (len(r) - 1)))

    without = np.array([pairs(np.delete(residuals, seed, axis=0)) for seed in range(seeds)])
    return pairs(residuals), float(np.sqrt((seeds - 1) * without.var()))


def _named(**pairs: tuple[Any, Any]) -> Arrays:
    return {
        f"{name}{end}": np.asarray(x)
        for name, pair in pairs.items()
        for end, x in zip(("", "_error"), pair, strict=True)
    }


def lazy(data: Data, beta: float, decay: float) -> Arrays:
    """`nngp`, whose variance counts, `nngpk`, its mean alone, and `ntk`."""
    X, y, X_test, y_test = data.load()
    bayes, flow = (ak.solve(limit, X, y) for limit in (ak.NNGP(NETWORK, beta=beta, decay=decay), ak.NTK(NETWORK)))
    mean = ak.mean_squared_error(y_test, bayes.predict(X_test))
    return _named(
        nngp=(mean + float(bayes.variance(X_test).mean()), 0.0),
        nngpk=(mean, 0.0),
        ntk=(ak.mean_squared_error(y_test, flow.predict(X_test)), 0.0),
    )


def renormalized(data: Data, beta: float, decay: float, widths: tuple[int, ...]) -> Arrays:
    """`whole` loss of the NNGP renormalised for finite widths, and its `scales`."""
    X, y, X_test, y_test = data.load()
    found = [ak.renormalize(ak.NNGP(NETWORK, beta=beta, decay=decay), X, y, width=width) for width in widths]
    ends = [ak.solve(one.limit, X, y) for one in found]
    losses = [ak.mean_squared_error(y_test, end.predict(X_test), end.variance(X_test)) for end in ends]
    return {"whole": np.array(losses), "scales": np.array([one.scales[0] for one in found])}


def anbk(
    data: Data, richness: float, beta: float, decay: float, particles: int, tolerance: float, seeds: int
) -> Arrays:
    """`mean`: the infinite Bayesian network that learned features; Monte-Carlo errors over seeds."""
    X, y, X_test, y_test = data.load()
    limit = ak.ANBK(NETWORK, richness=richness, beta=beta, decay=decay)
    options: dict[str, Any] = {"particles": particles, "tolerance": tolerance}
    found = [ak.solve(limit, X, y, seed=seed, **options).predict(X_test) for seed in range(seeds)]
    return _named(mean=of_mean(y_test, np.stack(found)))


def antk(data: Data, richness: float, decay: float) -> Arrays:
    """`mean`: the infinite network at the end of gradient flow with decay, and the `gap` that certifies it."""
    X, y, X_test, y_test = data.load()
    end = ak.solve(ak.ANTK(NETWORK, richness=richness, decay=decay), X, y)
    gap = np.nan if end.certificate is None else end.certificate
    return {**_named(mean=(ak.mean_squared_error(y_test, end.predict(X_test)), 0.0)), "gap": np.asarray(gap)}


def sampled(
    data: Data,
    parameterization: str,
    richness: float,
    beta: float,
    decay: float,
    width: int,
    time: float,
    burn_in: float,
    seeds: int,
) -> Arrays:
    """`mean` and `whole`: networks drawn from their posterior by Langevin dynamics."""
    X, y, X_test, y_test = data.load()
    runs = [
        ak.finite.langevin(
            NETWORK,
            X,
            y,
            parameterization=parameterization,
            richness=richness,
            beta=beta,
            decay=decay,
            width=width,
            time=time,
            burn_in=burn_in,
            seed=100 + seed,
            snapshots=1,
            X_test=X_test,
            y_test=y_test,
        )
        for seed in range(seeds)
    ]
    whole = measuring.over(np.array([2 * np.mean(np.asarray(run.test_losses)) for run in runs]))
    return _named(mean=of_mean(y_test, np.stack([np.asarray(run.test_predictions) for run in runs])), whole=whole)


def trained(
    data: Data, parameterization: str, richness: float, decay: float, width: int, time: float, seeds: int
) -> Arrays:
    """`mean` and `whole`: networks trained by gradient flow; errors have in them what the loss has left to go, which is about what the last half of the time has changed.

    Without decay networks remember what they said at the start, and it is subtracted.
    """
    X, y, X_test, y_test = data.load()
    runs = [
        ak.finite.gradient_flow(
            NETWORK,
            X,
            y,
            parameterization=parameterization,
            richness=richness,
            decay=decay,
            width=width,
            time=time,
            method="momentum",
            # With decay, neurons come to rest on kinks, and tremble there unless steps are short; the fastest rate grows with the number of points, and with few of them the test loss feels how short.
            step=_STEP / max(len(X), _FEW) if decay else None,
            centred=decay == 0,
            tolerance=1e-6,
            seed=100 + seed,
            X_test=X_test,
            y_test=y_test,
        )
        for seed in range(seeds)
    ]
    predictions = np.stack([np.asarray(run.test_predictions) for run in runs])
    losses = np.mean((y_test - predictions) ** 2, axis=1)
    left = losses.mean() - np.mean([2 * _halfway(run) for run in runs])
    (mean, error), (whole, scatter) = of_mean(y_test, predictions), measuring.over(losses)
    return _named(mean=(mean, np.hypot(error, left)), whole=(whole, np.hypot(scatter, left)))


def _halfway(run: Any) -> float:
    """The test loss at half of the time."""
    return float(np.asarray(run.test_losses)[int(np.argmin(np.abs(run.times - run.times[-1] / 2)))])


def wide(found: Arrays, narrow: Arrays, name: str) -> tuple[float, float]:
    r"""A loss of networks and its error: that over seeds, and what is left of the finite width, of order $1/N$: a third of what networks of a quarter of the width differ by."""
    value, error, other = (one.item() for one in (found[name], found[f"{name}_error"], narrow[name]))
    return value, float(np.hypot(error, (value - other) / 3))
