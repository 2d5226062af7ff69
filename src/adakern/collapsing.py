r"""When gradient flow with weight decay kills a whole network: the richness at which features appear."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adakern import checks, inputs, linear, losses
from adakern.limits import ANTK, sites, unit_search, unit_starts
from adakern.networks import MLP, Network
from adakern.precision import scope

_STARTS = 64


def collapse_threshold(
    limit: ANTK | Network,
    X: Any,
    y: Any,
    *,
    decay: Any = None,
    loss: str | None = None,
    seed: int = 0,
    starts: int = _STARTS,
    precision: str = "float64",
) -> float:
    r"""The richness up to which gradient flow with weight decay ends with all weights zero, and above which it does not, in a network with one hidden layer.

    $$\gamma_0^*=\frac{\sqrt{\lambda_0\lambda_1}}{\max_{|u|=1}|\Delta(0)^\top\varphi(Au)|},\qquad AA^\top=\Phi^0,$$

    with $\Delta(0)$ the error of the output 0 ($y$ for the squared loss): a neuron along $u$ grows from nothing if $\gamma_0|\Delta(0)^\top\varphi(Au)|>\sqrt{\lambda_0\lambda_1}$. The problem is convex, so what
    can grow does, and where nothing can everything dies. Infinite where the inputs say nothing of the labels. The maximum is exact for linear networks; otherwise it is the best that a search from many
    starts finds, and the threshold can only be lower.

    Of a CNN, $|\Delta^\top\varphi|^2=\sum_a|\sum_\mu\Delta_\mu\varphi(A_{\mu a}u)|^2$, or that of the mean over positions $a$.

    Deep linear networks with one output and the squared loss are served by `linear.collapse`: below it nothing else exists; above, death stays stable.

    Args:
        limit: an `ANTK`, whose decay and loss count (its richness does not), or a network.
        X: inputs, (points, features), or (points, height, width, channels) for a CNN.
        y: targets, (points,) or (points, outputs).
        decay: with a network: $\lambda$, one number or one per weight layer; 1 by default.
        loss: with a network: "squared" (the default), "logistic" or "softmax".
        seed: of the starts.
        starts: how many there are.
        precision: "float64" or "float32".
    """
    network, decays, name = _problem(limit, decay, loss)
    points = checks.inputs("X", X, ndim=network.input_ndim)
    targets = checks.labels("y", checks.targets("y", y, len(points)), name)
    seed = checks.seed("seed", seed)
    count = checks.integer("starts", starts, least=1)
    columns = targets if targets.ndim == 2 else targets[:, None]
    if network.depth > 1:
        _check_deep(network, columns.shape[1], name)
        return linear.collapse(network.depth, points, columns, decays)
    size = float(np.prod(np.sqrt(decays)))
    with scope(precision):
        root = inputs.root(network, points, 1.0)[0]
        errors = np.asarray(losses.get(name).error(jnp.asarray(columns), jnp.zeros(columns.shape)))
        factor = sites.of(network, points.shape).pool.factor(errors)
        first, second = jax.random.split(jax.random.key(seed))
        begin = unit_starts.default_starts(root, factor, count, first)
        strongest = float(unit_search.hardest(network.activation, root, factor, begin, second).values[0])
    return size / strongest if strongest > 0 else float("inf")


def _problem(limit: Any, decay: Any, loss: str | None) -> tuple[Network, tuple[float, ...], str]:
    if isinstance(limit, ANTK):
        for given, value in (("decay", decay), ("loss", loss)):
            if value is not None:
                raise ValueError(f"{given} is that of the ANTK; leave it out")
        network, decays, name = limit.network, limit.decays, limit.loss
    elif isinstance(limit, Network):
        network, name = limit, "squared" if loss is None else loss
        decays = checks.decays("decay", 1.0 if decay is None else decay, network.depth + 1)
    else:
        raise TypeError(f"limit must be an ANTK or a network, but it is {limit!r}")
    losses.get(name)
    if network.activation.degree != 1:
        raise ValueError(
            f"limit must have an activation that is homogeneous of degree one, like relu, but it is "
            f"{network.activation.name!r}: its neurons die one size after the other; solve an ANTK and look at its kernels instead"
        )
    return network, decays, name


def _check_deep(network: Network, outputs: int, loss: str) -> None:
    if unit_search.bends(network.activation) != (1.0, 1.0) or not isinstance(network, MLP):
        raise ValueError(
            f"limit must have one hidden layer, but it has {network.depth}: death is stable in a deep network whatever the richness; "
            "solve an ANTK, which compares its answer with the value of the zero predictor"
        )
    if outputs > 1 or loss != "squared":
        raise ValueError(
            f"deep linear networks have a threshold for one output and the squared loss, but there are {outputs} "
            f"and the loss is {loss!r}; solve an ANTK instead, which compares its answer with the value of the zero predictor"
        )
