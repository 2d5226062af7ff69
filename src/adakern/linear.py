r"""Closed forms of deep linear networks: label overlaps of whitened data, their asymptotic regimes, the ultra-rich limit, and when gradient flow dies.

`solve` takes the closed recursion of a linear network by itself; what is here are the numbers that a theorist wants without data.

    >>> import adakern as ak
    >>> [round(float(c), 3) for c in ak.linear.overlaps(depth=2, richness=1.0, beta=50.0)]
    [1.46, 2.132]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import lambertw

from adakern import checks, inputs
from adakern.deep_linear import bayes, flow, spectra
from adakern.losses import Squared
from adakern.networks import MLP

__all__ = ["Regime", "collapse", "overlaps", "regimes", "ultra_rich"]


def overlaps(depth: int, richness: float, beta: float) -> np.ndarray:
    r"""$c_\ell=y^\top\Phi^\ell y$, $\ell=1..L$, of the aNBK of a linear network on whitened data ($\Phi^0=I$, $|y|=1$, $\lambda=1$).

    $$c_\ell=\left(1+\frac{\gamma_0^2c_L}{(1/\beta+c_L)^2}\right)^\ell$$

    Where several solutions exist (small $\beta$, deep), it is the one of least free energy.
    """
    depth = checks.integer("depth", depth, least=1)
    richness, beta = checks.nonnegative("richness", richness), checks.positive("beta", beta)
    one = np.ones((1, 1))
    problem = bayes.Problem(depth, richness, beta, Squared(), one)
    spectrum = spectra.Spectrum(one, np.ones(1), one, np.zeros((1, 1)))
    t = float(bayes.solve(problem, spectrum).found[0].strengths[0])
    result: np.ndarray = np.exp(np.arange(1, depth + 1) * np.log1p(t))
    return result


@dataclass(frozen=True)
class Regime:
    r"""An asymptotic form of $c_L$ at $\beta\gg1$.

    Attributes:
        name: "lazy", "rich" or "deep".
        value: what it says $c_L$ is.
        correction: the relative size of the first term that it leaves out; it is valid where this is small beside 1.
        condition: where that is, in words.
    """

    name: str
    value: float
    correction: float
    condition: str


def regimes(depth: int, richness: float, beta: float = np.inf) -> tuple[Regime, Regime, Regime]:
    r"""The three asymptotic regimes of the last overlap of whitened data, with their range of validity.

    * lazy, $L\gamma_0^2\ll1$: $c_L\simeq1+L\gamma_0^2$; left out are terms of order $(L\gamma_0^2)^2$, and $2L\gamma_0^2/\beta$.
    * rich, $\gamma_0^{2/(L+1)}\gg1$: $c_L\simeq\gamma_0^{2L/(L+1)}$; left out is $\frac L{L+1}\gamma_0^{-2/(L+1)}$, and $\frac{2L}{L+1}/(\beta c_L)$.
    * deep, $L\to\infty$ at $\gamma_0^2\ll c_L$, $L\gamma_0^2\gg1$: $c_L\ln c_L=L\gamma_0^2$, to leading logarithm $c_L\simeq L\gamma_0^2/\ln(L\gamma_0^2)$; left out are $\ln\ln(L\gamma_0^2)/\ln(L\gamma_0^2)$, $\gamma_0^2/2c_L$ and $2/(\beta c_L)$.
    """
    depth = checks.integer("depth", depth, least=1)
    richness = checks.positive("richness", richness)
    beta = beta if beta == np.inf else checks.positive("beta", beta)
    load = depth * richness**2
    lazy = 1 + load
    rich = richness ** (2 * depth / (depth + 1))
    implicit = float(np.exp(lambertw(load).real))  # c ln c = Lγ0²
    logarithm = float(np.log(load)) if load > 1 else 0.0
    deep = load / logarithm if logarithm > 0 else np.inf
    return (
        Regime("lazy", lazy, (load**2 + 2 * load / beta) / lazy, "depth * richness^2 small"),
        Regime(
            "rich",
            rich,
            depth / (depth + 1) * (richness ** (-2 / (depth + 1)) + 2 / (beta * rich)),
            "richness^(2/(depth+1)) large",
        ),
        Regime(
            "deep",
            deep,
            abs(deep / implicit - 1) + richness**2 / (2 * implicit) + 2 / (beta * implicit)
            if deep < np.inf
            else np.inf,
            "depth * richness^2 and its logarithm large, richness^2 small beside the overlap",
        ),
    )


def ultra_rich(depth: int, X: Any, y: Any, decay: Any = 1.0) -> tuple[np.ndarray, ...]:
    r"""$\bar\Phi^\ell=\lim_{\gamma_0\to\infty}\Phi^\ell/\gamma_0^{2\ell/(L+1)}$, $\ell=1..L$, of the aNBK of a linear network.

    $$\bar\Phi^\ell=\frac{1}{\lambda_0\cdots\lambda_{\ell-1}}\,y\,a^{-1}(\lambda_0\cdots\lambda_L\,a)^{\ell/(L+1)}\,y^\top,\qquad a=y^\top(\Phi^0)^{-1}y$$

    (with the pseudo-inverse, and $y$ projected onto the range of $\Phi^0$, where inputs do not determine all labels). One output, $L=1$, $\lambda=1$: $yy^\top/\sqrt a$.
    With as many independent outputs as points, $L=1$: $\bar\Phi^{-1}yy^\top\bar\Phi^{-1}=(\Phi^0)^{-1}$ (Yang et al. 2023).
    """
    depth = checks.integer("depth", depth, least=1)
    network = MLP(depth, "linear")  # type: ignore[arg-type]  # a name
    points = checks.inputs("X", X, ndim=2)
    targets = checks.targets("y", y, len(points))
    decays = np.asarray(checks.decays("decay", decay, depth + 1))
    columns = targets if targets.ndim == 2 else targets[:, None]
    spectrum = spectra.dense(inputs.features(network, points), columns)
    a, directions = np.linalg.eigh(spectrum.targets.T @ (spectrum.targets / spectrum.values[:, None]))
    fitted = spectrum.vectors @ spectrum.targets @ directions
    keep = a > 1e-12 * max(float(a.max()), 1e-300)
    fitted, a = fitted[:, keep], a[keep]
    return tuple(
        (fitted * ((np.prod(decays) * a) ** (layer / (depth + 1)) / a)[None, :]) @ fitted.T / np.prod(decays[:layer])
        for layer in range(1, depth + 1)
    )


def collapse(depth: int, X: Any, y: Any, decay: Any = 1.0) -> float:
    r"""The richness below which gradient flow with weight decay ends with all weights zero, in a linear network with one output.

    $$\gamma_c^2=\frac{\Lambda^2}{\max_\tau\,\tau^{L-1}\Delta^\top\Phi^0\Delta},\qquad\Delta=\left(I+\tfrac{\tau^L}\Lambda\Phi^0\right)^{-1}y,\quad\Lambda^{L+1}=\lambda_0\cdots\lambda_L;\qquad L=1:\ \gamma_c=\sqrt{\frac{\lambda_0\lambda_1}{y^\top\Phi^0y}} .$$

    For one hidden layer it is also the richness above which nothing dies; for more, death stays a stable fixed point. Infinite where the inputs say nothing of the labels.
    """
    depth = checks.integer("depth", depth, least=1)
    points = checks.inputs("X", X, ndim=2)
    targets = checks.targets("y", y, len(points))
    columns = targets if targets.ndim == 2 else targets[:, None]
    if columns.shape[1] != 1:
        raise ValueError(f"y must have one output, but it has {columns.shape[1]}")
    decays = checks.decays("decay", decay, depth + 1)
    rows = inputs.features(MLP(depth, "linear"), points)  # type: ignore[arg-type]  # a name
    return flow.collapse(spectra.dense(rows, columns), depth, float(np.exp(np.mean(np.log(decays)))))
