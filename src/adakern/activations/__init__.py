r"""Activations $\varphi$: the function, its derivative, its homogeneity and its Gaussian second moments.

`get("relu")` finds one by name; any jax-differentiable elementwise callable serves as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from adakern.activations.base import Activation, ClosedForm, ClosedRule, MomentRule
from adakern.activations.closed import GELU, Erf, Linear, ReLU, Sine
from adakern.activations.numeric import Numeric, PolarRule, SeriesRule


def _tanh(h: Any) -> Any:  # a plain function, which can be pickled: jnp.tanh cannot
    return jnp.tanh(h)


_REGISTRY: dict[str, Activation] = {
    "linear": Linear(),
    "relu": ReLU(),
    "erf": Erf(),
    "tanh": Numeric(_tanh, "tanh"),
    "gelu": GELU(),
    "sine": Sine(),
}

NAMES = tuple(_REGISTRY)


def get(activation: str | Activation | Callable[[Any], Any]) -> Activation:
    """The activation of that name, or the given function wrapped as one.

    A callable is tried out on a few numbers here, so that one that is not elementwise or cannot be differentiated
    fails when the network is described and not in the middle of a solve.
    """
    if isinstance(activation, Activation):
        return activation
    if isinstance(activation, str):
        if activation not in _REGISTRY:
            raise ValueError(
                f"activation must be one of {', '.join(map(repr, NAMES))} or a callable, but it is {activation!r}"
            )
        return _REGISTRY[activation]
    if not callable(activation):
        raise TypeError(
            f"activation must be one of {', '.join(map(repr, NAMES))} or a callable, but it is {activation!r}"
        )
    if activation is jnp.tanh:
        return _REGISTRY["tanh"]
    try:
        hash(activation)
    except TypeError as error:
        raise TypeError(f"activation must be hashable, but {activation!r} is not; give its class a __hash__") from error
    wrapped = Numeric(activation, getattr(activation, "__name__", "custom"))
    _try_out(wrapped)
    return Numeric(activation, wrapped.name, _degree(wrapped))


def is_builtin(activation: Activation) -> bool:
    """Whether `get(activation.name)` gives this very activation back."""
    return _REGISTRY.get(activation.name) == activation


def _try_out(activation: Activation) -> None:
    points = jnp.asarray([[-1.5, -0.25, 0.5], [0.75, 2.0, 3.0]])
    try:
        value, slope = activation(points), activation.derivative(points)
        single = jnp.stack([activation(x) for x in points.ravel()]).reshape(points.shape)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TypeError(
            f"activation must be an elementwise function of a jax array, but calling {activation.name!r} failed: {reason}"
        ) from error
    if value.shape != points.shape:
        raise ValueError(f"activation must be elementwise, but {activation.name!r} reshapes its inputs")
    if not (np.isfinite(value).all() and np.isfinite(slope).all()):
        raise ValueError(f"activation must be finite for every real input, but {activation.name!r} is not")
    if not np.allclose(value, single, rtol=1e-4, atol=1e-5):
        raise ValueError(f"activation must be elementwise, but {activation.name!r} mixes its inputs")


def _degree(activation: Activation) -> int | None:
    """The homogeneity degree that a function shows at a few points over many scales, or None."""
    points = np.asarray([-2.0, -1.0, -0.3, 0.4, 1.0, 2.5], dtype=np.float32)
    with np.errstate(all="ignore"):
        base = np.asarray(activation(jnp.asarray(points)), dtype=np.float64)
        for degree in (0, 1, 2, 3):
            scaled = [np.asarray(activation(jnp.asarray(c * points)), dtype=np.float64) for c in (1e-3, 8.0, 1e4)]
            wanted = [c**degree * base for c in (1e-3, 8.0, 1e4)]
            if all(np.allclose(a, b, rtol=1e-5, atol=0) for a, b in zip(scaled, wanted, strict=True)):
                return degree
    return None


def fingerprint(activation: Activation) -> list[float]:
    """The activation's values at a few points, by which a file recognises a function that it cannot hold."""
    points = jnp.asarray([-3.0, -1.0, -0.1, 0.2, 1.5, 4.0], dtype=jnp.float32)
    return [float(value) for value in activation(points)]


__all__ = [
    "GELU",
    "NAMES",
    "Activation",
    "ClosedForm",
    "ClosedRule",
    "Erf",
    "Linear",
    "MomentRule",
    "Numeric",
    "PolarRule",
    "ReLU",
    "SeriesRule",
    "Sine",
    "fingerprint",
    "get",
    "is_builtin",
]
