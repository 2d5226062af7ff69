r"""Langevin sampling of networks of finite width: draws from their posterior.

$$p(\theta|\mathcal D)\propto\exp\Big(-\beta\gamma^2\mathcal L-\sum_\ell\tfrac12\lambda_\ell|W^\ell|^2\Big),\qquad
  \gamma=\gamma_0\sqrt N\ \text{(mean field)},\quad\gamma=\gamma_0\ \text{(NTK)}.$$
"""

from __future__ import annotations

import time as clock
from os import PathLike
from typing import Any

from adakern import checks
from adakern import precision as precisions
from adakern.errors import ConvergenceError
from adakern.finite import model
from adakern.finite.inputs import read
from adakern.finite.run import Run, Settings
from adakern.finite.sampler import SAMPLERS
from adakern.finite.sampling import Plan, Task
from adakern.networks import Network
from adakern.progress import Progress


def langevin(
    network: Network,
    X: Any,
    y: Any,
    *,
    richness: float = 1.0,
    beta: float = 50.0,
    decay: Any = 1.0,
    width: int = 1024,
    time: float = 10.0,
    seed: int = 0,
    loss: str = "squared",
    parameterization: str = "mean-field",
    sampler: str = "baoab",
    step: float | None = None,
    burn_in: float | None = None,
    replicas: int = 1,
    friction: float = 1.0,
    snapshots: int = 32,
    tolerance: float = 0.2,
    X_test: Any = None,
    y_test: Any = None,
    precision: str = "float32",
    matmul: str = "highest",
    progress: bool = False,
    checkpoint: str | PathLike[str] | None = None,
    throw: bool = True,
) -> Run:
    r"""Sample the posterior of a network of finite width by Langevin dynamics, and average.

    Args:
        network: the architecture, an `MLP` or a `CNN`.
        X, y: training inputs and targets, (points,) or (points, outputs); ±1 for "logistic", one-hot rows for "softmax".
        richness: $\gamma_0$; in NTK parameterisation $\gamma$.
        beta: inverse temperature $\beta$.
        decay: prior precision of the weights, one number or one per layer ($L+1$).
        width: neurons (channels) per hidden layer.
        time: length of the run in rescaled time $\tau=t/\beta$, in which a weight forgets its prior value within $\tau\sim1$ (underdamped: at unit decay).
        seed: of every random number.
        loss: "squared", "logistic" or "softmax".
        parameterization: "mean-field" ($\gamma=\gamma_0\sqrt N$) or "ntk" ($\gamma=\gamma_0$).
        sampler: "baoab", underdamped, or "euler", the plain Euler-Maruyama scheme of the overdamped dynamics.
        step: time step; by default from the largest eigenvalue of the tangent kernel, found by power iteration.
        burn_in: time before averaging starts; half of `time` by default.
        replicas: independent networks, run side by side.
        friction: of the underdamped dynamics.
        snapshots: most weights to keep per replica, for predictions at new points, densities and tangent kernels; fewer if 1 GiB does not hold them.
        tolerance: relative error of the kernels up to which the averages count as converged.
        X_test, y_test: points whose outputs (and loss) are averaged along the way.
        precision: "float32" or "float64".
        matmul: precision of matrix products on a GPU: "highest", "high" or "default" (TF32: faster, three digits).
        progress: show a progress bar with the loss on standard error.
        checkpoint: file to continue from if it exists, written every half minute and on an interrupt, removed at the end.
        throw: raise `ConvergenceError` if the averages are not converged, with the run in its `result`; otherwise the run says so. A run that fails before there
            is anything to average raises in any case.

    Returns:
        A `Run`: kernels with standard errors, outputs, losses, predictions, densities.
    """
    data = read(network, X, y, loss, X_test, y_test)
    settings = Settings(
        kind="langevin",
        width=checks.integer("width", width, least=1),
        richness=checks.positive("richness", richness),
        decays=checks.decays("decay", decay, network.depth + 1),
        beta=checks.positive("beta", beta),
        parameterization=checks.choice("parameterization", parameterization, model.PARAMETERIZATIONS),
        loss=loss,
        centred=False,
        initial="normal",
        replicas=checks.integer("replicas", replicas, least=1),
        seed=checks.seed("seed", seed),
        precision=checks.choice("precision", precision, precisions.PRECISIONS),
        matmul=matmul,
    )
    total = checks.positive("time", time)
    wait = total / 2 if burn_in is None else checks.nonnegative("burn_in", burn_in)
    if wait >= total:
        raise ValueError(f"burn_in must be less than time, {total:g}, but it is {wait:g}")
    plan = Plan(
        sampler=checks.choice("sampler", sampler, SAMPLERS),
        time=total,
        burn_in=wait,
        friction=checks.positive("friction", friction),
        step=None if step is None else checks.positive("step", step),
        snapshots=checks.integer("snapshots", snapshots, least=1),
        tolerance=checks.positive("tolerance", tolerance),
    )
    begun = clock.perf_counter()
    with precisions.scope(precision):
        task = Task(network, data, settings, plan)
        run = task.run(checkpoint, Progress(progress), begun)
    if throw and not run.converged:
        raise ConvergenceError(
            f"Langevin sampling did not converge: {run.status} (throw=False returns it as it is)", run
        )
    return run
