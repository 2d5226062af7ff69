r"""What a limit is: a problem, not an algorithm.

A limit is a frozen record of a network and a few numbers, checked when it is built. It says which equations an answer must satisfy and can
audit any answer by them; it does not know how an answer is found.
"""

from __future__ import annotations

import numbers
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from adakern import checks
from adakern.networks import Network


@dataclass(frozen=True)
class Answer:
    r"""What a solver claims, for the limit to audit. Targets and everything like them have shape (P, C) here.

    Attributes:
        kernels: $\Phi^1..\Phi^L$; of a CNN in a lazy limit $\Phi^L$ alone, summed over positions.
        kernel: the predictor's own, $\Phi^L$ or $K$.
        coefficients: $\alpha$ in $f(x)=\sum_\mu\alpha_\mu\,k(x,x_\mu)$.
        fitted: $f$ on the training inputs.
        errors: $\Delta=-\partial\ell/\partial s$ there.
        kernel_errors: standard error of each entry of `kernels`; zeros in closed form.
        gradient_kernels: $G^1..G^L$, where the limit has them.
        duals: $\hat\Phi^1..\hat\Phi^L$, where the limit has them.
        draws: white coordinates $\varepsilon^1..\varepsilon^L$ of neurons drawn from each layer's law, (draws, rank) each;
            empty in closed form. ANTK: fields $h^1..h^L$ at distinct training points, (draws, points) each.
        slopes: ANTK: $\varphi'(h)$ of those neurons; at kinks the subgradient that stationarity asks for.
        shares: ANTK: how much of the layer each of those neurons stands for, adding up to 1.
    """

    kernels: tuple[np.ndarray, ...]
    kernel: np.ndarray
    coefficients: np.ndarray
    fitted: np.ndarray
    errors: np.ndarray
    kernel_errors: tuple[np.ndarray, ...]
    gradient_kernels: tuple[np.ndarray, ...] | None = None
    duals: tuple[np.ndarray, ...] | None = None
    draws: tuple[np.ndarray, ...] = ()
    slopes: tuple[np.ndarray, ...] = ()
    shares: tuple[np.ndarray, ...] = ()
    converged: bool = True
    status: str = ""
    stats: dict[str, Any] = field(default_factory=dict)


class Limit(ABC):
    """Base of every limit. Final classes are frozen dataclasses with a `network` and their numbers."""

    kind: ClassVar[str]
    network: Network
    decay: Any

    @property
    def decays(self) -> tuple[float, ...]:
        r"""$\lambda_0..\lambda_L$, one per weight layer."""
        return checks.decays("decay", self.decay, self.network.depth + 1)

    @property
    def tangent(self) -> bool:
        r"""Whether the predictor's kernel is the tangent kernel $K$ rather than the feature kernel $\Phi^L$."""
        return False

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """The limit's numbers as plain values, for a file's header."""

    @abstractmethod
    def residual(self, X: np.ndarray, y: np.ndarray, answer: Answer) -> float:
        """How far the limit's equations are from holding for this answer: a relative number, 0 when they hold.

        Called inside `precision.scope`; `y` has shape (points, outputs).
        """

    def audit(self, X: np.ndarray, y: np.ndarray, answer: Answer) -> tuple[float, dict[str, Any]]:
        """The residual, and what else the limit has to say about the answer, for `Solution.stats`."""
        return self.residual(X, y, answer), {}


def relative(difference: np.ndarray, reference: np.ndarray) -> float:
    """|difference| / |reference| in the Frobenius norm; 0/0 counts as 0."""
    size, scale = float(np.linalg.norm(difference)), float(np.linalg.norm(reference))
    return size if scale == 0.0 else size / scale


def check_network(network: Any) -> None:
    if not isinstance(network, Network):
        raise TypeError(f"network must be an MLP or a CNN, but it is {network!r}")


def frozen_decay(decay: Any, network: Network, zero: bool = False) -> float | tuple[float, ...]:
    """The decay as the user gave it, checked: a float, or a tuple of L+1 floats."""
    single = isinstance(decay, numbers.Real) or getattr(decay, "ndim", None) == 0
    values = checks.decays("decay", decay, network.depth + 1, zero=zero)
    return values[0] if single else values
