r"""The aNBK of a deep linear network, reduced to one C×C matrix.

With $K=\Phi^0/(\lambda_0\cdots\lambda_L)$ every layer's dual is $-vM_\ell v^\top$, and $T=M_\ell\,v^\top\Phi^\ell v$ is the same at every layer. The recursion then sums up to

$$v=\beta\Delta(s),\qquad s=K\,v\,(I+T)^L,\qquad T=\gamma_0^2\,v^\top s,$$

$$\Phi^\ell=\tfrac1{\lambda_0\cdots\lambda_{\ell-1}}\left[\Phi^0+\Phi^0v\,A_\ell\,v^\top\Phi^0\right],\quad
  A_\ell=\tfrac{\gamma_0^2}{\lambda_0\cdots\lambda_L}(I+T)^L\,\frac{(I+T)^\ell-I}T,\qquad \hat\Phi^\ell=-\tfrac{\gamma_0^2}{\lambda_\ell\cdots\lambda_L}\,v\,(I+T)^{L-\ell}\,v^\top .$$

It is the stationary point of $\beta\mathcal L(Kw)+\gamma_0^{-2}\,\mathrm{Tr}\,\psi(\gamma_0^2w^\top Kw)$ over $w=v(I+T)^L$, with $\psi(n)=\frac L2(t-\ln(1+t))+\frac t2$ and $n=t(1+t)^L$: a penalty on the singular
values of the end-to-end map, quadratic for small ones and of power $2/(L+1)$ for large ones. It is convex for $L=1$; for $L\ge2$ there can be several minima.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from adakern.deep_linear import minimising
from adakern.deep_linear.crossings import Crossings, crossings
from adakern.deep_linear.spectra import Spectrum
from adakern.limits import readout
from adakern.losses import Loss, Squared

_ASIDE = 1e-5  # of ln t, from where a solution's stability is seen
_CLOSE = 0.02  # of ln t: solutions closer than this are told apart for the squared loss alone

_LAZY = 1e-60  # γ0²β below which squares of what is learned underflow

_readout = jax.jit(readout.solve, static_argnums=0)


class Problem(NamedTuple):
    r"""Depth $L$, $\gamma_0$, $\beta$, the loss and the targets, (P, C)."""

    depth: int
    richness: float
    beta: float
    loss: Loss
    y: np.ndarray


class Saddle(NamedTuple):
    r"""One solution.

    Attributes:
        strengths: eigenvalues $t\ge0$ of $T$, (C,).
        directions: its eigenvectors, (C, C), in columns.
        v: (P, C).
        outputs: $s$, (P, C).
        free_energy: nats per neuron.
        stable: whether it is a minimum.
    """

    strengths: np.ndarray
    directions: np.ndarray
    v: np.ndarray
    outputs: np.ndarray
    free_energy: float
    stable: bool

    def of(self, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """A function of T."""
        return (self.directions * function(self.strengths)[None, :]) @ self.directions.T

    def image(self, depth: int) -> np.ndarray:
        r"""$Kv=s(I+T)^{-L}$: without what $v$ has outside of the range of $K$, which rounding would let in."""
        return self.outputs @ self.of(lambda t: np.exp(-depth * np.log1p(t)))

    def feature_weights(self, depth: int, layer: int) -> np.ndarray:
        r"""$(I+T)^L((I+T)^\ell-I)/T$."""
        return self.of(lambda t: np.exp(depth * np.log1p(t)) * growth(t, layer))

    def dual_weights(self, depth: int, layer: int) -> np.ndarray:
        r"""$(I+T)^{L-\ell}$."""
        return self.of(lambda t: np.exp((depth - layer) * np.log1p(t)))


class Saddles(NamedTuple):
    """All solutions that were found, by free energy. `complete`: whether there can be no others."""

    found: list[Saddle]
    complete: bool
    evaluations: int


def growth(t: np.ndarray, layers: int) -> np.ndarray:
    r"""$((1+t)^\ell-1)/t$."""
    small = np.abs(t) < 1e-12
    safe = np.where(small, 1.0, t)
    return np.where(small, float(layers), np.expm1(layers * np.log1p(safe)) / safe)


def free_energy(problem: Problem, t: np.ndarray, outputs: np.ndarray) -> float:
    r"""$\sum_i\frac L2(t_i-\ln(1+t_i))+\frac{t_i}2+\beta\gamma_0^2\mathcal L(s)$."""
    data = float(np.sum(np.asarray(problem.loss.value(jnp.asarray(problem.y), jnp.asarray(outputs)))))
    kinetic = float(np.sum(0.5 * problem.depth * (t - np.log1p(t)) + 0.5 * t))
    return kinetic + problem.beta * problem.richness**2 * data


def solve(problem: Problem, spectrum: Spectrum) -> Saddles:
    """Every solution for one output; for several, those that descent from small and from large networks finds."""
    nothing = not np.any(problem.y) and isinstance(problem.loss, Squared)
    if nothing or problem.richness**2 * problem.beta < _LAZY or len(spectrum.values) == 0:
        return Saddles([_lazy(problem, spectrum)], True, 0)
    if problem.y.shape[1] == 1:
        return _single(problem, spectrum)
    return _several(problem, spectrum)


def _lazy(problem: Problem, spectrum: Spectrum) -> Saddle:
    outputs = problem.y.shape[1]
    zero = np.zeros(outputs)
    v, s = _at(problem, spectrum, zero, np.eye(outputs))
    return Saddle(zero, np.eye(outputs), v, s, free_energy(problem, zero, s), True)


def _at(problem: Problem, spectrum: Spectrum, t: np.ndarray, directions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """v and s at a given T; where the loss couples outputs, T must be a multiple of one (or there is one output)."""
    r = np.exp(problem.depth * np.log1p(t))
    if isinstance(problem.loss, Squared):
        turned = spectrum.targets @ directions
        v = turned / (1 / problem.beta + spectrum.values[:, None] * r[None, :])
        s = spectrum.values[:, None] * r[None, :] * v
        return (
            spectrum.vectors @ (v @ directions.T) + problem.beta * spectrum.rest,
            spectrum.vectors @ (s @ directions.T),
        )
    kernel = (spectrum.vectors * (spectrum.values * float(r[0]))[None, :]) @ spectrum.vectors.T
    v = np.asarray(_readout(problem.loss, jnp.asarray(kernel), jnp.asarray(problem.y), problem.beta, 1.0).v, np.float64)
    return v, kernel @ v


# ---------------------------------------------------------------------------------------------------------------------
# One output: a scalar equation


def _single(problem: Problem, spectrum: Spectrum) -> Saddles:
    r"""Roots of $\ln\gamma_0^2rv^\top Kv-\ln t$ in $x=\ln t$, $r=(1+t)^L$.

    $rv^\top Kv$ has a logarithmic slope between -1 and 1 in $r$ for every convex loss: with $e(r)=\min_s\beta\mathcal L(s)+\frac1{2r}s^\top K^{-1}s$, $v^\top Kv=-2e'(r)$ falls because $e$ is
    convex in $r$, and $r^2v^\top Kv=2\,de/d(1/r)$ rises because it is concave in $1/r$.
    """
    depth = problem.depth
    curve, first = _curve(problem, spectrum)
    nothing = float(np.sum(np.asarray(problem.loss.value(jnp.asarray(problem.y), jnp.zeros_like(problem.y)))))
    high = np.log(2 * problem.richness**2 * problem.beta * nothing)  # as β𝓛(s) + vᵀs/2 ≤ β𝓛(0)
    if not np.isfinite(first):  # y does not touch the range of K
        return Saddles([_lazy(problem, spectrum)], True, 0)
    low = float(_below(first, depth)) - 1e-6

    def slope(x: np.ndarray) -> np.ndarray:
        return 1 + depth / (1 + np.exp(-x))

    squared = isinstance(problem.loss, Squared)
    high = max(high, low) + 1e-6
    if depth == 1 and not squared:  # convex: one root
        found = _bracketed(curve, low, high)
    else:
        found = crossings(
            curve, low, high, slope, depth**2 + depth / 4 if squared else None, 1e-9 if squared else _CLOSE
        )
    saddles = []
    for x in found.roots:
        t = np.exp(np.array([x]))
        v, s = _at(problem, spectrum, t, np.eye(1))
        sides = curve(np.array([x - _ASIDE, x + _ASIDE]))[0]
        stable = bool(sides[0] > sides[1])
        saddles.append(Saddle(t, np.eye(1), v, s, free_energy(problem, t, s), stable))
    return Saddles(sorted(saddles, key=lambda part: part.free_energy), found.complete, found.evaluations)


def _below(first: float, depth: int) -> float:
    r"""ln of the $t$ with $t(1+t)^L=a$, given $\ln a$: no root lies below."""
    return (
        float(np.log(minimising.strength(np.exp(np.array([first])), depth)[0])) if first < 600 else first / (depth + 1)
    )


def _curve(problem: Problem, spectrum: Spectrum) -> tuple[Callable[..., tuple[np.ndarray, np.ndarray]], float]:
    """f and f' in x = ln t, and ln γ0² vᵀKv at r = 1."""
    depth, scale = problem.depth, 2 * np.log(problem.richness)

    def slopes(x: np.ndarray, logarithmic: np.ndarray) -> np.ndarray:
        return logarithmic * depth / (1 + np.exp(-x)) - 1

    if isinstance(problem.loss, Squared):
        with np.errstate(divide="ignore"):
            weights = np.log(spectrum.values) + 2 * np.log(np.abs(spectrum.targets[:, 0]))
        keep = np.isfinite(weights)
        weights, k = weights[keep], np.log(spectrum.values[keep])

        def total(r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            """ln γ0² r vᵀKv at ln r, and its slope."""
            z = k[None, :] + r[:, None] + np.log(problem.beta)
            terms = weights[None, :] + r[:, None] + 2 * np.log(problem.beta) - 2 * np.logaddexp(0.0, z)
            top = terms.max(axis=1, keepdims=True)
            share = np.exp(terms - top)
            sums = share.sum(axis=1)
            return scale + top[:, 0] + np.log(sums), -(share * np.tanh(z / 2)).sum(axis=1) / sums

        if not keep.any():
            return lambda x: (np.full_like(x, -np.inf), np.zeros_like(x)), -np.inf

        def curve(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            parts = [total(depth * np.logaddexp(0.0, piece)) for piece in np.array_split(x, max(1, len(x) // 64))]
            values, steep = (np.concatenate(part) for part in zip(*parts, strict=True))
            return values - x, slopes(x, steep)

        return curve, float(total(np.zeros(1))[0][0])

    @functools.lru_cache(maxsize=4096)
    def one(x: float) -> float:
        t = np.exp(np.array([x]))
        v, s = _at(problem, spectrum, t, np.eye(1))
        product = float(np.sum(v * s))
        return scale + np.log(product) if product > 0 else -np.inf

    def general(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.array([one(float(place)) - place for place in x]), np.zeros_like(x)

    return general, one(-80.0)


def _bracketed(curve: Callable[..., tuple[np.ndarray, np.ndarray]], low: float, high: float) -> Crossings:
    from scipy.optimize import brentq

    root = brentq(lambda x: float(curve(np.array([x]))[0][0]), low, high, xtol=1e-14)
    return Crossings(np.array([root]), 0, True)


# ---------------------------------------------------------------------------------------------------------------------
# Several outputs: descent


def _several(problem: Problem, spectrum: Spectrum) -> Saddles:
    penalty = minimising.Penalty(problem.depth, problem.richness)
    ends = minimising.minima(problem.loss, problem.y, problem.beta, spectrum, penalty)
    saddles: list[Saddle] = []
    evaluations = 0
    for z, steps in ends.points:
        evaluations += steps
        t, directions = penalty.strengths(z)
        if isinstance(problem.loss, Squared):
            v, s = _at(problem, spectrum, t, directions)
        else:
            s = spectrum.vectors @ (np.sqrt(spectrum.values)[:, None] * z)
            v = problem.beta * np.asarray(problem.loss.error(jnp.asarray(problem.y), jnp.asarray(s)), np.float64)
        saddles.append(Saddle(t, directions, v, s, free_energy(problem, t, s), True))
    return Saddles(sorted(saddles, key=lambda part: part.free_energy), False, evaluations)
