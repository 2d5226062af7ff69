r"""Minima over the end-to-end map of a deep linear network with several outputs.

$$J(z)=\beta\,\mathcal L(Az)+\gamma_0^{-2}\,\mathrm{Tr}\,\psi(\gamma_0^2z^\top z),\qquad K=AA^\top,\quad\nabla J=-\beta A^\top\Delta+z\,g(\gamma_0^2z^\top z),\quad g=2\psi'=(1+t)^{-L}.$$

scipy's trust-region Newton method with Hessian products does the work; Newton's own steps polish its answer below what differences of $J$ resolve.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy.linalg
from scipy.optimize import minimize
from scipy.sparse.linalg import LinearOperator, minres

from adakern.deep_linear.spectra import Spectrum
from adakern.losses import Loss, Squared

_CURVATURE = {"squared": 1.0, "logistic": 0.25, "softmax": 0.5}  # largest of a loss
_STEPS = 400  # of the trust region
_POLISH = 12
_SMALL = 400  # unknowns up to which a Newton step factorises the Hessian
_DIRECTIONS = 8  # of the outputs, from which mixtures of two ends are tried
_GENTLE = 0.3  # richness from which a path rises
_SAME = 1e-6  # relative distance below which two ends are one


def strength(n: np.ndarray, depth: int) -> np.ndarray:
    r"""$t\ge0$ with $t(1+t)^L=n$, by Newton's method in logarithms, where it is convex."""
    with np.errstate(divide="ignore"):
        goal = np.log(np.maximum(n, 0.0))
    x = np.minimum(goal, np.maximum(goal, 0.0) / (depth + 1) + 1.0)
    x = np.where(np.isfinite(goal), x, 0.0)
    for _ in range(60):
        excess = x + depth * np.logaddexp(0.0, x) - goal
        change = excess / (1 + depth / (1 + np.exp(-x)))
        change = np.where(np.isfinite(change), change, 0.0)
        x = x - change
        if np.all(np.abs(change) <= 4e-16 * np.maximum(1.0, np.abs(x))):
            break
    return np.where(np.isfinite(goal), np.exp(x), 0.0)


def response(
    z: np.ndarray, directions: np.ndarray, g: np.ndarray, quotient: np.ndarray
) -> Callable[[np.ndarray], np.ndarray]:
    """dz ↦ d(z g(zᵀz)) by the divided differences of g, in the eigenvectors of zᵀz."""
    turned = z @ directions

    def apply(dz: np.ndarray) -> np.ndarray:
        inner = directions.T @ (dz.T @ z + z.T @ dz) @ directions
        return dz @ (directions * g[None, :]) @ directions.T + turned @ (quotient * inner) @ directions.T

    return apply


class Penalty(NamedTuple):
    r"""$\gamma_0^{-2}\mathrm{Tr}\,\psi(\gamma_0^2z^\top z)$ of the Bayesian limit."""

    depth: int
    richness: float

    def strengths(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Eigenvalues of T and its eigenvectors."""
        n, directions = np.linalg.eigh(self.richness**2 * z.T @ z)
        return strength(np.maximum(n, 0.0), self.depth), directions

    def value(self, z: np.ndarray) -> float:
        t, _ = self.strengths(z)
        return float(np.sum(0.5 * self.depth * (t - np.log1p(t)) + 0.5 * t)) / self.richness**2

    def weights(self, t: np.ndarray) -> np.ndarray:
        return np.exp(-self.depth * np.log1p(t))

    def slopes(self, t: np.ndarray) -> np.ndarray:
        """dg/dn."""
        depth = self.depth
        return -depth * np.exp(-2 * depth * np.log1p(t)) / (1 + t + depth * t)

    def local(self, z: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """dz ↦ d(z g(γ0² zᵀz))."""
        t, directions = self.strengths(z)
        g, n = self.weights(t), t * np.exp(self.depth * np.log1p(t))
        gap = n[:, None] - n[None, :]
        middle = strength(0.5 * (n[:, None] + n[None, :]), self.depth)
        near = np.abs(gap) <= 1e-6 * (n[:, None] + n[None, :]) + 1e-300
        quotient = np.where(near, self.slopes(middle), (g[:, None] - g[None, :]) / np.where(near, 1.0, gap))
        return response(z, directions, g, quotient * self.richness**2)

    def gradient(self, z: np.ndarray) -> np.ndarray:
        t, directions = self.strengths(z)
        return z @ (directions * self.weights(t)[None, :]) @ directions.T


class Ends(NamedTuple):
    """Minima z, (r, C), each with the Hessian products it took."""

    points: list[tuple[np.ndarray, int]]


def minima(loss: Loss, y: np.ndarray, beta: float, spectrum: Spectrum, penalty: Penalty) -> Ends:
    """Descend from the lazy network's outputs, and from those of a network that fits as well as it can; where the two ends differ, also from mixtures of them.

    Each direction of the outputs can be rich or lazy on its own: mixtures take one direction of an end from the other.
    """
    work = _Work(loss, y, beta, spectrum, penalty)
    ends: list[tuple[np.ndarray, int]] = []

    def add(start: np.ndarray, way: Callable[[np.ndarray], tuple[np.ndarray, int]] = work.follow) -> None:
        z, count = way(start)
        same = any(np.linalg.norm(z - other) <= _SAME * (np.linalg.norm(other) + _SAME) for other, _ in ends)
        if np.isfinite(z).all() and not same:
            ends.append((z, count))

    for ridge in (1.0, 1e-9):
        add(work.start(ridge))
    if not work.squared and penalty.depth > 1 and penalty.richness > 1:
        add(work.start(1.0), work.path)
    if len(ends) > 1:
        (first, _), (second, _) = ends[:2]
        for here, there in ((first, second), (second, first)):
            _, directions = penalty.strengths(here)
            for direction in directions.T[:_DIRECTIONS]:
                projector = np.outer(direction, direction)
                add(here - here @ projector + there @ projector)
    return Ends([(z @ work.turn.T, count) for z, count in ends])


def descend(
    loss: Loss, y: np.ndarray, beta: float, spectrum: Spectrum, penalty: Any, z: np.ndarray
) -> tuple[np.ndarray, int]:
    """The minimum below z, and the Hessian products it took."""
    return _Work(loss, y, beta, spectrum, penalty).descend(z)[:2]


class _Work:
    def __init__(self, loss: Loss, y: np.ndarray, beta: float, spectrum: Spectrum, penalty: Any) -> None:
        self.loss, self.y, self.beta, self.penalty = loss, jnp.asarray(y), beta, penalty
        self.root = spectrum.vectors * np.sqrt(spectrum.values)[None, :]
        self.spectrum = spectrum
        self.squared = isinstance(loss, Squared)
        # Coordinates in which the loss's curvature is about one.
        self.scale = 1 / np.sqrt(1 + beta * _CURVATURE[loss.name] * spectrum.values)[:, None]
        # Softmax does not see what all outputs share, so the minimum has none of it: one dimension less, and the worst conditioned.
        self.turn = scipy.linalg.null_space(np.ones((1, y.shape[1]))) if loss.name == "softmax" else np.eye(y.shape[1])
        self.shape = (len(spectrum.values), self.turn.shape[1])

    def start(self, ridge: float) -> np.ndarray:
        """Ridge regression on the targets, centred where a loss has no scale of its own."""
        k = self.spectrum.values[:, None]
        reach = 1.0 if self.squared else 2.0
        return reach * np.sqrt(k) * (self.spectrum.targets @ self.turn) / (k + ridge / self.beta)

    def _outputs(self, z: np.ndarray) -> np.ndarray:
        return self.root @ z @ self.turn.T

    def value(self, z: np.ndarray) -> float:
        data = float(jnp.sum(self.loss.value(self.y, jnp.asarray(self._outputs(z)))))
        return self.beta * data + self.penalty.value(z)

    def gradient(self, z: np.ndarray) -> np.ndarray:
        if self.squared:
            k = self.spectrum.values[:, None]
            data = np.sqrt(k) * self.spectrum.targets - k * z
        else:
            error = np.asarray(self.loss.error(self.y, jnp.asarray(self._outputs(z))), np.float64)
            data = self.root.T @ error @ self.turn
        return -self.beta * data + self.penalty.gradient(z)

    def hessian(self, z: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        local = self.penalty.local(z)
        if self.squared:
            k = self.spectrum.values[:, None]
            return lambda dz: self.beta * k * dz + local(dz)
        curvature = np.asarray(self.loss.curvature(self.y, jnp.asarray(self._outputs(z))), np.float64)

        def apply(dz: np.ndarray) -> np.ndarray:
            ds = self.root @ dz @ self.turn.T
            answer = curvature * ds if curvature.ndim == 2 else np.einsum("pij,pj->pi", curvature, ds)
            return self.beta * (self.root.T @ answer @ self.turn) + local(dz)

        return apply

    def follow(self, z: np.ndarray) -> tuple[np.ndarray, int]:
        """Descend; where that ends nowhere, on a path of rising richness."""
        found, count, settled = self.descend(z)
        return (found, count) if settled else self.path(z)

    def path(self, z: np.ndarray) -> tuple[np.ndarray, int]:
        """Descend at a small richness, and follow the minimum as it rises."""
        goal, total = self.penalty.richness, 0
        for richness in np.geomspace(min(_GENTLE, goal), goal, 2 + int(np.ceil(np.log2(max(goal / _GENTLE, 1.0))))):
            self.penalty = Penalty(self.penalty.depth, float(richness))
            z, count, _ = self.descend(z)
            total += count
        self.penalty = Penalty(self.penalty.depth, goal)
        return z, total

    def descend(self, z: np.ndarray) -> tuple[np.ndarray, int, bool]:
        """The minimum below z, the Hessian products it took, and whether the gradient vanishes there to rounding."""
        count = 0

        def inward(x: np.ndarray) -> np.ndarray:
            return self.scale * x.reshape(self.shape)

        held: list[tuple[bytes, Callable[[np.ndarray], np.ndarray]]] = []

        def product(x: np.ndarray, p: np.ndarray) -> np.ndarray:
            nonlocal count
            count += 1
            mark = x.tobytes()
            if not held or held[0][0] != mark:
                held[:] = [(mark, self.hessian(inward(x)))]
            return (self.scale * held[0][1](inward(p))).ravel()

        def slope(x: np.ndarray) -> np.ndarray:
            return (self.scale * self.gradient(inward(x))).ravel()

        def size(x: np.ndarray) -> float:
            """Of the penalty's own gradient: what the sum is to be small beside."""
            return float(np.linalg.norm(self.scale * self.penalty.gradient(inward(x)))) + 1e-300

        x = (z / self.scale).ravel()
        for fraction in (1e-3, 1e-6, 1e-9):
            if np.linalg.norm(slope(x)) <= fraction * size(x):
                continue
            try:
                with np.errstate(all="ignore"):
                    found = minimize(
                        lambda x: self.value(inward(x)),
                        x,
                        jac=slope,
                        hessp=product,
                        method="trust-krylov",
                        options={"gtol": fraction * size(x), "maxiter": _STEPS},
                    )
            except (ArithmeticError, ValueError, np.linalg.LinAlgError):  # a trial step beyond what numbers hold
                break
            if not np.isfinite(found.x).all():
                break
            x = found.x
        here = slope(x)
        for _ in range(_POLISH):
            operator = LinearOperator((x.size, x.size), lambda p, x=x: product(x, p), dtype=np.float64)
            if x.size <= _SMALL:
                step = np.linalg.lstsq(operator @ np.eye(x.size), -here, rcond=1e-15)[0]
            else:
                step, _ = minres(operator, -here, rtol=1e-12, maxiter=500)
            if not np.isfinite(step).all():
                break
            there = slope(x + step)
            if not np.linalg.norm(there) < 0.5 * np.linalg.norm(here):
                break
            x, here = x + step, there
        rounding = 1e-14 * (1 + self.beta)  # of the loss's gradient, which the penalty's balances
        return inward(x), count, bool(np.linalg.norm(here) <= 1e-9 * size(x) + rounding)
