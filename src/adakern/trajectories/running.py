r"""`dynamics`: training over time of the infinitely wide network."""

from __future__ import annotations

import time as clock
from os import PathLike
from typing import Any

import numpy as np

from adakern import checks, files
from adakern import memory as memories
from adakern import precision as precisions
from adakern.errors import ConvergenceError
from adakern.limits import ANTK
from adakern.networks import CNN
from adakern.progress import Progress
from adakern.trajectories import deep_following
from adakern.trajectories.following import Data, Settings, Task
from adakern.trajectories.population import INITIAL
from adakern.trajectories.trajectory import Trajectory

_FINEST = 16  # units of rounding that an accuracy may ask for
_ACCURACY = 1e-5  # of the default
_ROUGH = 1e-3  # with several hidden layers, whose Monte-Carlo errors are larger
_RESOLUTION = 1e-3


def dynamics(
    limit: ANTK,
    X: Any,
    y: Any,
    times: Any,
    *,
    X_test: Any = None,
    y_test: Any = None,
    neurons: int = 2048,
    replicas: int = 4,
    initial: str = "normal",
    seed: int = 0,
    accuracy: float | None = None,
    resolution: float | None = None,
    keep: bool = True,
    pairs: bool = False,
    precision: str = "float64",
    memory: float | None = None,
    progress: bool = False,
    checkpoint: str | PathLike[str] | None = None,
    throw: bool = True,
) -> Trajectory:
    r"""Follow the training of an infinitely wide network: gradient flow with weight decay. With one hidden layer,

    $$\dot w=\gamma_0\sum_\mu(a\cdot\Delta_\mu)\,\varphi'(h_\mu)\,\tilde x_\mu-\lambda_0w,\qquad\dot a=\gamma_0\sum_\mu\Delta_\mu\varphi(h_\mu)-\lambda_1a,\qquad
      s_\mu=\langle a\,\varphi(h_\mu)\rangle/\gamma_0,$$

    with $h_\mu=w\cdot\tilde x_\mu$, $\tilde x=x/\sqrt D$ and $\Delta=-\partial\ell/\partial s$, from weights of variance one. The average is over `neurons` drawn in pairs $(w,a)$, $(w,-a)$: the output at the
    start is zero at every point. Neurons interact through $\Delta$ alone, so the law of an infinite network comes with a Monte-Carlo error, which independent replicas measure, and a bias of order
    1/neurons.

    A neuron of a CNN is a filter $w$ with a field $h_{\mu q}=w\cdot\tilde x_{\mu q}$ at each position $q$, $\tilde x_{\mu q}$ the patch over the root of its size, and one readout weight per position,
    $s_\mu=\langle\sum_qa_q\varphi(h_{\mu q})\rangle/\gamma_0$, or with `readout="mean"` one for all, $s_\mu=\langle a\,\frac1S\sum_q\varphi(h_{\mu q})\rangle/\gamma_0$.

    An `MLP` of several hidden layers has in its fields, besides what training adds, Gaussian processes from the initial weights and their responses to the training,

    $$h^{\ell+1}_\mu(t)=e^{-\lambda_\ell t}\Big[u_\mu(t)+\gamma_0\int_0^tds\sum_\nu A^\ell_{\mu\nu}(t,s)g^{\ell+1}_\nu(s)\Big]+\gamma_0\int_0^tds\,e^{-\lambda_\ell(t-s)}\sum_\nu\Delta_\nu(s)\Phi^\ell_{\mu\nu}(t,s)g^{\ell+1}_\nu(s),$$

    and likewise for gradients. Time only runs forward: each of `replicas` populations, of `neurons` neurons a layer, draws its Gaussians where the flow first asks for them, and there is nothing to iterate (module `deep_weights`).
    Populations are independent and share no kernels, so that standard errors over them are honest; each has a bias of order directions/neurons. Linear networks need no neurons and have no such errors.

    Args:
        limit: an `ANTK` of an `MLP`, or of a `CNN` with depth 1: network, richness $\gamma_0>0$, decay $\lambda_\ell\ge0$ and loss.
        X, y: training inputs and targets, (points,) or (points, outputs); ±1 for "logistic", one-hot rows for "softmax".
        times: when to look, increasing, 0 or later.
        X_test, y_test: points whose outputs (and loss) are followed.
        neurons: per replica, both members of a pair counted; of several hidden layers, in each of them.
        replicas: independent populations; standard errors are over them.
        initial: "normal" or "laplace" weights, of unit variance; "normal" alone with several hidden layers.
        seed: of the initial weights.
        accuracy: error of outputs per step, relative to the targets, by default 1e-5, with several hidden layers that are not linear 1e-3; outputs end up right to a few times this at ordinary scales. Kinks of the activation are rounded over 30 times this, relative to the inputs: that error is in no error bar, and with inputs of size 1e4 it was 50 times this.
            Where the standard errors are larger anyway, 1e-4 takes a fifth of the evaluations.
        resolution: with several hidden layers, the share of their largest mean square so far that features or gradients must have outside of all directions met so far for a new one to be remembered, 1e-3 by default; what
            is smaller keeps its variance and loses its correlations in time. More directions want more neurons.
        keep: keep the neurons of every time, which `Trajectory.density` reads.
        pairs: with several hidden layers and one output, also keep what all pairs of `times` have, kernels and responses: some $4L(PT)^2$ numbers for every replica, counted before the start.
        precision: "float64" or "float32".
        memory: bytes for the temporary arrays of one step, 1 GiB by default; what does not fit is taken in blocks of neurons.
        progress: show a progress bar with the loss on standard error.
        checkpoint: file to continue from if it exists, written every half minute and on an interrupt, removed at the end.
        throw: raise `ConvergenceError` if the integration fails; otherwise the trajectory ends at the last time that was reached, and says so.

    Returns:
        A `Trajectory`: losses, outputs, kernels and densities over time, with standard errors.
    """
    _check_limit(limit)
    data = _read(limit, X, y, X_test, y_test)
    deep = limit.network.depth > 1
    precision = checks.choice("precision", precision, precisions.PRECISIONS)
    usual = _ROUGH if deep and limit.network.activation.name != "linear" else _ACCURACY
    numbers: dict[str, Any] = {
        "neurons": checks.integer("neurons", neurons, least=2) if deep else _even(neurons),
        "replicas": checks.integer("replicas", replicas, least=1),
        "initial": checks.choice("initial", initial, INITIAL),
        "seed": checks.seed("seed", seed),
        "accuracy": _accuracy(usual if accuracy is None else accuracy, precision),
        "precision": precision,
        "keep": bool(keep),
        "times": _moments(times),
    }
    if deep:
        numbers |= {"resolution": _resolution(resolution), "pairs": bool(pairs)}
        if pairs and data.y.shape[1] > 1:
            raise ValueError("pairs needs one output: gradients of several have no kernel of their own")
        if initial != "normal":
            raise ValueError("initial must be 'normal' with several hidden layers, whose fields are Gaussian processes")
    elif pairs:
        raise ValueError("pairs has no meaning with one hidden layer, where nothing responds")
    elif resolution is not None:
        raise ValueError("resolution has no meaning with one hidden layer, whose neurons are followed as they are")
    return _follow(limit, data, numbers, memory, progress, checkpoint, throw)


def without_responses(limit: ANTK, X: Any, y: Any, times: Any, **numbers: Any) -> Trajectory:
    """Several hidden layers as if forward and backward fields were independent, which is wrong and cheaper by nothing: it shows what the responses are for."""
    _check_limit(limit)
    data, plain = (
        _read(limit, X, y, None, None),
        {"initial": "normal", "seed": 0, "precision": "float64", "keep": False},
    )
    usual = {"neurons": 2048, "replicas": 4, "accuracy": _ROUGH, "resolution": _RESOLUTION, "times": _moments(times)}
    return _follow(limit, data, {**plain, **usual, **numbers, "responses": False}, None, False, None, True)


def _follow(
    limit: ANTK,
    data: Data,
    numbers: dict[str, Any],
    memory: float | None,
    progress: bool,
    checkpoint: str | PathLike[str] | None,
    throw: bool,
) -> Trajectory:
    if checkpoint is not None:
        files.check_target(checkpoint)
    budget, begun = memories.budget(memory), clock.perf_counter()
    with precisions.scope(numbers["precision"]):
        task: Task | deep_following.Task
        if "resolution" in numbers:
            task = deep_following.Task(limit, data, deep_following.DeepSettings(**numbers), budget)
        else:
            task = Task(limit, data, Settings(**numbers), budget)
        trajectory = task.run(checkpoint, Progress(progress), begun)
    if throw and not trajectory.converged:
        raise ConvergenceError(
            f"the dynamics could not be followed: {trajectory.status} (throw=False returns it as it is)", trajectory
        )
    return trajectory


def _check_limit(limit: Any) -> None:
    if not isinstance(limit, ANTK):
        raise TypeError(f"limit must be an ANTK, whose dynamics this is, but it is {limit!r}")
    if limit.network.depth > 1 and isinstance(limit.network, CNN):
        raise NotImplementedError(
            "dynamics serves CNNs with one hidden layer; train a deeper one with adakern.finite.gradient_flow"
        )
    if limit.richness == 0:
        raise ValueError("richness must be greater than 0 for dynamics; a small one, like 0.01, is the lazy limit")


def _read(limit: ANTK, X: Any, y: Any, X_test: Any, y_test: Any) -> Data:
    points = checks.inputs("X", X, ndim=limit.network.input_ndim)
    targets = checks.labels("y", checks.targets("y", y, len(points)), limit.loss)
    columns = targets if targets.ndim == 2 else targets[:, None]
    tests, labels = points[:0], columns[:0]
    if X_test is None and y_test is not None:
        raise ValueError("y_test must come with X_test")
    if X_test is not None:
        tests = checks.inputs("X_test", X_test, ndim=limit.network.input_ndim, like=points)
        labels = np.zeros((len(tests), columns.shape[1]))
    if y_test is not None:
        given = checks.labels("y_test", checks.targets("y_test", y_test, len(tests)), limit.loss)
        if given.shape[1:] != targets.shape[1:]:
            raise ValueError(f"y_test must have as many outputs as y, {targets.shape}, but it has shape {given.shape}")
        labels = given if given.ndim == 2 else given[:, None]
    return Data(points, columns, tests, labels, targets.ndim == 1, y_test is not None)


def _even(neurons: Any) -> int:
    count = checks.integer("neurons", neurons, least=2)
    if count % 2:
        raise ValueError(f"neurons must be even, since they are drawn in pairs, but it is {count}")
    return count


def _accuracy(value: Any, precision: str) -> float:
    accuracy, finest = checks.positive("accuracy", value), _FINEST * float(np.finfo(precision).eps)
    if not finest <= accuracy < 0.1:
        raise ValueError(f"accuracy must be between {finest:.2g} ({precision}) and 0.1, but it is {accuracy:g}")
    return accuracy


def _resolution(value: Any) -> float:
    resolution = checks.positive("resolution", _RESOLUTION if value is None else value)
    if resolution >= 1:
        raise ValueError(f"resolution must be below 1, but it is {resolution:g}")
    return resolution


def _moments(times: Any) -> tuple[float, ...]:
    moments = checks.finite("times", np.atleast_1d(checks.as_array("times", times)))
    if moments.ndim != 1 or not len(moments):
        raise ValueError(f"times must be a list of at least one number, but it has shape {moments.shape}")
    if moments[0] < 0 or (np.diff(moments) <= 0).any():
        raise ValueError(
            f"times must increase from 0 or later, but they are {', '.join(f'{t:g}' for t in moments[:8])}"
        )
    return tuple(moments.tolist())
