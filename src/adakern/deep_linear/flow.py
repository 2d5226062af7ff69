r"""The aNTK of a deep linear network: where gradient flow with weight decay ends.

The end-to-end map $f=\Phi^0w$ of weights of least norm minimises

$$J=\mathcal L(\Phi^0w)+\tfrac{(L+1)\Lambda}{2\gamma_0^2}\,\mathrm{Tr}\,N^{1/(L+1)},\qquad N=\gamma_0^2w^\top\Phi^0w,\quad\Lambda=(\lambda_0\cdots\lambda_L)^{1/(L+1)},$$

so that $\Delta=w\,\Lambda\mathcal T^{-L}$ with $\mathcal T=N^{1/(L+1)}$, and the weights are balanced: the squared singular values of layer $\ell$ are $\Lambda\mathcal T/\lambda_\ell$. With one output, $\rho=\tau^L/\Lambda$ and $\Delta=(I+\rho\Phi^0)^{-1}y$,

$$\gamma_0^2\tau^{L-1}\,\Delta^\top\Phi^0\Delta=\Lambda^2 .$$

$w=0$, $\Delta=y$ is a fixed point too. For $L=1$ the problem is convex, and everything dies if $\gamma_0^2\,y^\top\Phi^0y\le\lambda_0\lambda_1$; for $L\ge2$ nothing else exists below a richness at which two
solutions meet (`collapse`), and above it death stays stable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares, minimize_scalar

from adakern.deep_linear import minimising
from adakern.deep_linear.crossings import crossings
from adakern.deep_linear.spectra import Spectrum
from adakern.losses import Squared

_DEAD = 1e-6  # of the largest strength, below which a direction of several has died
_SMOOTH = (1e-1, 1e-3, 1e-5, 1e-7, 1e-9, 1e-11, 1e-13, 1e-15)  # of the largest N, in turn


class Problem(NamedTuple):
    r"""Depth $L$, $\gamma_0$, the decays' geometric mean $\Lambda$, and the targets, (P, C)."""

    depth: int
    richness: float
    decay: float
    y: np.ndarray


class Rest(NamedTuple):
    r"""One fixed point.

    Attributes:
        strengths: eigenvalues $\tau\ge0$ of $\mathcal T$, (C,).
        directions: its eigenvectors, in columns.
        map: $w$, (P, C).
        errors: $\Delta$, (P, C).
        outputs: $f$, (P, C).
        objective: $J$.
        stable: whether it is a minimum.
    """

    strengths: np.ndarray
    directions: np.ndarray
    map: np.ndarray
    errors: np.ndarray
    outputs: np.ndarray
    objective: float
    stable: bool


class Rests(NamedTuple):
    """Fixed points that do not vanish, by their objective, that of death, and whether there can be no others."""

    found: list[Rest]
    dead: Rest
    complete: bool


def objective(problem: Problem, strengths: np.ndarray, outputs: np.ndarray) -> float:
    size = (problem.depth + 1) * problem.decay / 2 / problem.richness**2 if problem.richness else 0.0
    return 0.5 * float(np.sum((problem.y - outputs) ** 2)) + size * float(np.sum(strengths))


def solve(problem: Problem, spectrum: Spectrum) -> Rests:
    """All fixed points for one output; for several, the one that descent from a fit finds."""
    zero, outputs = np.zeros_like(problem.y), problem.y.shape[1]
    none = np.zeros(outputs)
    dead = Rest(none, np.eye(outputs), zero, problem.y, zero, objective(problem, none, zero), True)
    if problem.richness == 0.0 or not np.any(spectrum.targets):
        return Rests([], dead, True)
    if outputs == 1:
        found, complete, doomed = _single(problem, spectrum)
        return Rests(found, dead._replace(stable=doomed), complete)
    edge = collapse(spectrum, 1, problem.decay) if problem.depth == 1 else np.inf
    stable = problem.depth > 1 or problem.richness <= edge
    found = [] if problem.depth == 1 and stable else _several(problem, spectrum)
    return Rests(found, dead._replace(stable=stable), problem.depth == 1)  # one layer: convex


def collapse(spectrum: Spectrum, depth: int, decay: float) -> float:
    r"""The richness below which nothing but death exists: $\gamma_c^2=\Lambda^2/\max_\tau\tau^{L-1}\Delta^\top\Phi^0\Delta$; with several outputs for $L=1$ alone."""
    k, y2 = spectrum.values, spectrum.targets[:, 0] ** 2
    first = float(np.linalg.norm(np.sqrt(k)[:, None] * spectrum.targets, 2)) ** 2 if len(k) else 0.0
    if first == 0.0:
        return np.inf
    if depth == 1:
        return float(decay / np.sqrt(first))

    def height(x: float) -> float:
        """ln τ^{L-1} g at x = ln τ."""
        return float((depth - 1) * x + _energy(k, y2, np.array([depth * x - np.log(decay)]))[0][0])

    # The height rises with slope L-1 and falls with slope -(L+1): its maximum is where ρk is of order one for some k.
    low = (np.log(decay) - np.log(k.max()) - 8) / depth
    high = (np.log(decay) - np.log(k.min()) + 8) / depth
    grid = np.linspace(low, high, 4001)
    best = grid[int(np.argmax([height(x) for x in grid]))]
    gap = grid[1] - grid[0]
    found = minimize_scalar(lambda x: -height(x), bounds=(best - gap, best + gap), method="bounded")
    return float(decay * np.exp(-0.5 * max(height(best), -found.fun)))


def _energy(k: np.ndarray, y2: np.ndarray, rho: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""$\ln\Delta^\top\Phi^0\Delta$ at $\ln\rho$, and its slope there."""
    with np.errstate(divide="ignore"):
        weights = np.log(k) + np.log(y2)
    z = np.log(k)[None, :] + rho[:, None]
    terms = weights[None, :] - 2 * np.logaddexp(0.0, z)
    top = terms.max(axis=1, keepdims=True)
    share = np.exp(terms - top)
    total = share.sum(axis=1)
    return top[:, 0] + np.log(total), -2 * (share / (1 + np.exp(-z))).sum(axis=1) / total


def _single(problem: Problem, spectrum: Spectrum) -> tuple[list[Rest], bool, bool]:
    depth, decay, richness = problem.depth, problem.decay, problem.richness
    k, y2 = spectrum.values, spectrum.targets[:, 0] ** 2
    first = richness**2 * float(np.sum(k * y2))
    doomed = depth > 1 or first <= decay**2
    if depth == 1 and doomed:
        return [], True, True

    def curve(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        parts = [_energy(k, y2, depth * p - np.log(decay)) for p in np.array_split(x, max(1, len(x) // 64))]
        value, slope = (np.concatenate(part) for part in zip(*parts, strict=True))
        return 2 * np.log(richness / decay) + (depth - 1) * x + value, depth - 1 + depth * slope

    high = np.log(richness**2 * float(np.sum(y2)) / (4 * decay)) + 1e-6  # as k/(1+ρk)² ≤ 1/4ρ
    if depth == 1:
        low = np.log(max((np.sqrt(first) / decay - 1) * decay / k.max(), 1e-300)) - 1e-6
    else:
        low = 2 * (np.log(decay) - 0.5 * np.log(first)) / (depth - 1) - 1e-6
    if low >= high:
        return [], True, doomed
    bound = float(depth + 1)
    found = crossings(curve, low, high, lambda x: np.full_like(x, bound), float(depth**2))
    rests = [_rest(problem, spectrum, np.exp(x), bool(curve(np.array([x]))[1][0] < 0)) for x in found.roots]
    return sorted(rests, key=lambda part: part.objective), found.complete, doomed


def _rest(problem: Problem, spectrum: Spectrum, tau: float, stable: bool) -> Rest:
    rho = tau**problem.depth / problem.decay
    inside = spectrum.targets / (1 + rho * spectrum.values[:, None])
    errors = spectrum.vectors @ inside + spectrum.rest
    outputs = spectrum.vectors @ (rho * spectrum.values[:, None] * inside)
    strengths = np.array([tau])
    return Rest(strengths, np.eye(1), rho * errors, errors, outputs, objective(problem, strengths, outputs), stable)


# ---------------------------------------------------------------------------------------------------------------------
# Several outputs


class _Penalty(NamedTuple):
    r"""$\frac{(L+1)\Lambda}{2\gamma_0^2}\mathrm{Tr}(\gamma_0^2z^\top z+\delta)^{1/(L+1)}$."""

    depth: int
    richness: float
    decay: float
    smooth: float

    def strengths(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n, directions = np.linalg.eigh(self.richness**2 * z.T @ z)
        return np.maximum(n, 0.0), directions

    def value(self, z: np.ndarray) -> float:
        n, _ = self.strengths(z)
        power = float(np.sum((n + self.smooth) ** (1 / (self.depth + 1))))
        return (self.depth + 1) * self.decay / 2 / self.richness**2 * power

    def weights(self, n: np.ndarray) -> np.ndarray:
        return self.decay * (n + self.smooth) ** (-self.depth / (self.depth + 1))

    def slopes(self, n: np.ndarray) -> np.ndarray:
        return -self.depth / (self.depth + 1) * self.weights(n) / (n + self.smooth)

    def local(self, z: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        n, directions = self.strengths(z)
        g = self.weights(n)
        gap = n[:, None] - n[None, :]
        near = np.abs(gap) <= 1e-6 * (n[:, None] + n[None, :]) + 1e-300
        middle = self.slopes(0.5 * (n[:, None] + n[None, :]))
        quotient = np.where(near, middle, (g[:, None] - g[None, :]) / np.where(near, 1.0, gap))
        return minimising.response(z, directions, g, quotient * self.richness**2)

    def gradient(self, z: np.ndarray) -> np.ndarray:
        n, directions = self.strengths(z)
        return z @ (directions * self.weights(n)[None, :]) @ directions.T


def _several(problem: Problem, spectrum: Spectrum) -> list[Rest]:
    depth, richness = problem.depth, problem.richness
    k = spectrum.values[:, None]
    z = np.sqrt(k) * spectrum.targets / (k + 1e-3 * k.max())
    for smooth in _SMOOTH:
        size = richness**2 * float(np.linalg.norm(z, 2)) ** 2
        penalty = _Penalty(depth, richness, problem.decay, max(smooth * size, 1e-200))
        z, _ = minimising.descend(Squared(), problem.y, 1.0, spectrum, penalty, z)
    n, directions = np.linalg.eigh(richness**2 * z.T @ z)
    tau = np.maximum(n, 0.0) ** (1 / (depth + 1))
    alive = tau > _DEAD ** (1 / (depth + 1)) * max(float(tau.max()), 1e-300)
    if not alive.any() or tau.max() ** (depth + 1) < 1e-12 * richness**2 * float(np.sum(problem.y**2)):
        return []
    tau, directions = _polished(problem, spectrum, directions[:, alive] * np.sqrt(tau[alive])[None, :])
    rho = tau**depth / problem.decay
    turned = spectrum.targets @ directions
    inside = turned / (1 + rho[None, :] * k)
    errors = spectrum.vectors @ (inside @ directions.T) + spectrum.rest
    outputs = spectrum.vectors @ ((rho[None, :] * k * inside) @ directions.T)
    w = spectrum.vectors @ ((rho[None, :] * inside) @ directions.T) + (spectrum.rest @ directions * rho) @ directions.T
    return [Rest(tau, directions, w, errors, outputs, objective(problem, tau, outputs), True)]


def _polished(problem: Problem, spectrum: Spectrum, factor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""$\mathcal T=ZZ^\top$ of the surviving directions without the smoothing: least squares on $\gamma_0^2\Delta^\top f=\Lambda\mathcal T$, from next to it."""
    depth, k = problem.depth, spectrum.values[:, None]

    def split(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        tau, directions = np.linalg.eigh(z @ z.T)
        return np.where(np.arange(len(tau)) < len(tau) - z.shape[1], 0.0, np.maximum(tau, 0.0)), directions

    def excess(x: np.ndarray) -> np.ndarray:
        tau, directions = split(x.reshape(factor.shape))
        rho = tau**depth / problem.decay
        errors = (spectrum.targets @ directions) / (1 + rho[None, :] * k)
        outputs = rho[None, :] * k * errors
        difference = problem.richness**2 * errors.T @ outputs - problem.decay * np.diag(tau)
        return ((directions @ difference @ directions.T) / scale).ravel()

    scale = problem.decay * float(np.linalg.norm(factor, 2)) ** 2
    found = least_squares(excess, factor.ravel(), method="trf", xtol=1e-15, ftol=1e-15, gtol=1e-15, max_nfev=50)
    better = np.linalg.norm(found.fun) < np.linalg.norm(excess(factor.ravel()))
    return split(found.x.reshape(factor.shape) if better else factor)
