r"""Gradient flow and gradient descent of networks of finite width, with weight decay.

$$\dot W^\ell=-\gamma^2\nabla_{W^\ell}\mathcal L-\lambda_\ell W^\ell,\qquad\gamma=\gamma_0\sqrt N\ \text{(mean field)},\quad\gamma=\gamma_0\ \text{(NTK)}.$$
"""

from __future__ import annotations

import time as clock
from collections.abc import Sequence
from os import PathLike
from typing import Any

from adakern import checks
from adakern import precision as precisions
from adakern.errors import ConvergenceError
from adakern.finite import model
from adakern.finite.inputs import read
from adakern.finite.run import Run, Settings
from adakern.finite.training import METHODS, STEPPED, Plan, Task
from adakern.networks import Network
from adakern.progress import Progress

INITIAL = ("normal", "laplace")


def gradient_flow(
    network: Network,
    X: Any,
    y: Any,
    *,
    richness: float = 1.0,
    decay: Any = 1.0,
    width: int = 1024,
    time: float = 20.0,
    seed: int = 0,
    loss: str = "squared",
    parameterization: str = "mean-field",
    method: str = "ode",
    step: float | None = None,
    accuracy: float | None = None,
    initial: str = "normal",
    centred: bool = False,
    times: Sequence[float] | None = None,
    tolerance: float = 1e-4,
    replicas: int = 1,
    X_test: Any = None,
    y_test: Any = None,
    precision: str = "float32",
    matmul: str = "highest",
    progress: bool = False,
    checkpoint: str | PathLike[str] | None = None,
    throw: bool = True,
) -> Run:
    r"""Train a network of finite width by gradient flow with weight decay.

    Args:
        network: the architecture, an `MLP` or a `CNN`.
        X, y: training inputs and targets, (points,) or (points, outputs); ±1 for "logistic", one-hot rows for "softmax".
        richness: $\gamma_0$; in NTK parameterisation $\gamma$.
        decay: weight decay $\lambda\ge0$, one number or one per layer ($L+1$).
        width: neurons (channels) per hidden layer.
        time: most time to run.
        seed: of the initial weights.
        loss: "squared", "logistic" or "softmax".
        parameterization: "mean-field" ($\gamma=\gamma_0\sqrt N$) or "ntk" ($\gamma=\gamma_0$).
        method: "ode", the flow by an adaptive Runge–Kutta pair; "chebyshev", by stabilised steps, which are longer than the fastest rate allows the former: for what is
            trained to its end; "descent", gradient descent with a step; or "momentum", descent whose inertia is a hundredth of the time passed, which is the flow up to that and
            takes fewer, longer steps the later it is.
        step: of gradient descent, the first one of momentum; by default from the largest eigenvalue of the tangent kernel, found by power iteration at the start and at every recorded moment.
        accuracy: error per step of the integrator: "ode": relative and absolute, 1e-5 by default; at kinks the flow slides along them in steps of this size,
            and where a ReLU network's last digits matter, ask for less. "chebyshev": relative to the weights of each layer, 1e-3 by default.
        initial: "normal" or "laplace" weights, of unit variance.
        centred: subtract the outputs that the network has at the start, at every point.
        times: moments whose weights to keep, for `run.at(time)`; the last moment is always kept.
        tolerance: the flow stops when kernels and outputs move by less than this, relatively, per unit of time, or per $1/\lambda$ for a decay below one, which is how
            long the flow remembers (and all `times` are past); 0 never.
        replicas: independent initialisations, run side by side.
        X_test, y_test: points whose outputs (and loss) are recorded along the way.
        precision: "float32" or "float64".
        matmul: precision of matrix products on a GPU: "highest", "high" or "default" (TF32: faster, three digits).
        progress: show a progress bar with the loss on standard error.
        checkpoint: file to continue from if it exists, written every half minute and on an interrupt, removed at the end.
        throw: raise `ConvergenceError` if the integration fails; otherwise the run says so. To reach `time` before the tolerance is no failure:
            `run.stats["stationary"]` tells.

    Returns:
        A `Run`: kernels, outputs, losses over time, predictions, densities.
    """
    data = read(network, X, y, loss, X_test, y_test)
    settings = Settings(
        kind="gradient flow",
        width=checks.integer("width", width, least=1),
        richness=checks.positive("richness", richness),
        decays=checks.decays("decay", decay, network.depth + 1, zero=True),
        beta=None,
        parameterization=checks.choice("parameterization", parameterization, model.PARAMETERIZATIONS),
        loss=loss,
        centred=bool(centred),
        initial=checks.choice("initial", initial, INITIAL),
        replicas=checks.integer("replicas", replicas, least=1),
        seed=checks.seed("seed", seed),
        precision=checks.choice("precision", precision, precisions.PRECISIONS),
        matmul=matmul,
    )
    total = checks.positive("time", time)
    plan = Plan(
        method=checks.choice("method", method, tuple(METHODS)),
        step=None if step is None else checks.positive("step", step),
        accuracy=METHODS[method] if accuracy is None else checks.positive("accuracy", accuracy),
        tolerance=checks.nonnegative("tolerance", tolerance),
        time=total,
        times=_moments(times, total),
    )
    if plan.step is not None and plan.method not in STEPPED:
        raise ValueError(
            f"step has no meaning for method={plan.method!r}, whose step adapts; leave it out or use method='descent'"
        )
    if plan.step is not None and plan.step > total:
        raise ValueError(f"step must be at most time, {total:g}, but it is {plan.step:g}")
    begun = clock.perf_counter()
    with precisions.scope(precision):
        task = Task(network, data, settings, plan)
        run = task.run(checkpoint, Progress(progress), begun)
    if throw and not run.converged:
        raise ConvergenceError(f"gradient flow failed: {run.status} (throw=False returns it as it is)", run)
    return run


def _moments(times: Sequence[float] | None, total: float) -> tuple[float, ...]:
    if times is None:
        return ()
    moments = checks.finite("times", checks.as_array("times", times)).ravel()
    if len(moments) and (moments.min() < 0 or moments.max() > total * (1 + 1e-9)):
        raise ValueError(
            f"times must lie between 0 and time, {total:g}, but they are {moments.min():g} to {moments.max():g}"
        )
    kept: list[float] = []
    for moment in sorted(min(float(moment), total) for moment in moments):
        if not kept or moment - kept[-1] > 1e-9 * total:  # closer ones are the same
            kept.append(moment)
    return tuple(kept)
