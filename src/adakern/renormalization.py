r"""Networks of finite width in the proportional limit: kernels renormalised by one scale per layer (Pacelli et al. 2023).

A network in NTK parameterisation, $s=N^{-1/2}w\cdot\varphi(h^L)$, has outputs of variance $\tfrac1{\lambda_LN}\sum_i\varphi(h_i)\varphi(h_i)^\top$, which fluctuates at finite $N$. If
$\bar s\cdot\varphi(h)$ is taken to be Gaussian for every direction $\bar s$ and neuron (exact for linear networks), only its scale does: $s\sim N(0,QK/\lambda_L)$ with
$Q\sim\mathrm{Gamma}(\tfrac N2,\tfrac N2)$. Layer by layer, with $K[C]=E_{h\sim N(0,C)}\varphi\varphi^\top$ and $K^R_0=\Phi^0/\lambda_0$,

$$K^R_\ell=\tfrac{Q_\ell}{\lambda_\ell}K[K^R_{\ell-1}],\qquad
  S(Q)=\sum_{\ell=1}^L(Q_\ell-\ln Q_\ell)+\tfrac1N\left[\ln\det\left(\tfrac1\beta I+K^R_L\right)+y^\top\left(\tfrac1\beta I+K^R_L\right)^{-1}y\right],$$

and the posterior $\propto e^{-NS/2}$ concentrates where $S$ is least, for large $P$ and $N$ at fixed $\alpha=P/N$. The result is the NNGP whose decays are $\lambda_\ell/Q_\ell$.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy import optimize
from scipy.special import expit

from adakern import checks, linalg, precision
from adakern.activations import MomentRule
from adakern.errors import ConvergenceError
from adakern.limits import NNGP, NNGPK
from adakern.networks import CNN, MLP
from adakern.progress import Progress
from adakern.solvers import closed

_TOLERANCE = 1e-8  # of the stationarity conditions, relative to 1 + Q
_STEP = 0.01  # in ln Q, of differences of kernels, which vary over order one
_FOURTH = ((1, 8 / 12), (2, -1 / 12))  # central differences of fourth and of sixth order
_SIXTH = ((1, 45 / 60), (2, -9 / 60), (3, 1 / 60))
_SCAN = {True: 241, False: 7}  # equal scales tried for starts, where one costs O(P) and where it costs a kernel
_REACH = 2.5  # |ln Q| of those scales, where every one costs a kernel
_NOISE = 4.0  # machine epsilons by which an entry of a kernel is off
_NEARBY = 0.01  # in ln Q, within which two minima count as one
_DESCENT = {"gtol": 1e-5, "ftol": 0.0}  # far enough for a root finder
_FARTHEST = 6.0  # ln Q at which fields are too large for the quadrature of a sigmoid

Value = Callable[[np.ndarray], float]
Slope = Callable[[np.ndarray], tuple[float, np.ndarray]]


@dataclass(frozen=True)
class Renormalization:
    r"""Where the action of a finite width is least.

    Attributes:
        limit: the limit given, with decays $\lambda_0,\lambda_1/Q_1,\dots,\lambda_L/Q_L$: `solve` it for predictions and variances.
        scales: $Q_1..Q_L$.
        alpha: $P/N$.
        action: $S(Q)$.
        residual: the largest $|Q_\ell\,\partial S/\partial Q_\ell|$, computed from `limit` alone.
        converged: whether the residual is zero up to tolerance and rounding.
        status: how it went, in a sentence.
    """

    limit: NNGP | NNGPK
    scales: tuple[float, ...]
    alpha: float
    action: float
    residual: float
    converged: bool
    status: str


def renormalize(
    limit: NNGP | NNGPK, X: Any, y: Any, *, width: int, precision: str = "float64", throw: bool = True
) -> Renormalization:
    r"""The NNGP that stands for a Bayesian network of finite width $N$, with scales $Q_\ell$ that make $S(Q)$ least.

    $$f(x)=Q\,k(x)^\top\left[QK+\tfrac1\beta I\right]^{-1}y\quad(L=1,\ K=\Phi^1/\lambda_1)$$

    $N\to\infty$ gives $Q_\ell=1$, the NNGP itself. There can be several minima when $L>1$; the lowest one found is returned.

    Args:
        limit: `NNGP` or `NNGPK` of an `MLP` (a `CNN` has a scale per pair of positions: `NotImplementedError`).
        X: inputs, (points, features).
        y: targets, (points,) or (points, 1).
        width: $N$, of every hidden layer.
        precision: "float64" or "float32", of the kernels.
        throw: raise `ConvergenceError` if no minimum is found to tolerance; otherwise the result says so.
    """
    if not isinstance(limit, (NNGP, NNGPK)):
        raise TypeError(f"limit must be NNGP or NNGPK, the limits of wide Bayesian networks, but it is {limit!r}")
    if isinstance(limit.network, CNN):
        raise NotImplementedError("renormalize serves MLP networks; a CNN has a scale per pair of positions")
    inputs = checks.inputs("X", X, ndim=limit.network.input_ndim)
    targets = checks.targets("y", y, len(inputs))
    if targets.ndim == 2 and targets.shape[1] > 1:
        raise ValueError(
            f"y must have one output, but it has {targets.shape[1]}; several outputs need a matrix of scales per layer: "
            "renormalize one column at a time"
        )
    width = checks.integer("width", width, least=1)
    with np.errstate(over="ignore"):
        if not np.isfinite(limit.beta * np.square(targets).sum()):
            raise ValueError("y must have squares that fit into float64, but some are too large; rescale it")
    with _scope(precision) as dtype:
        problem = _Problem(limit, inputs, targets.reshape(-1), width, str(dtype))
        result = _least(problem)
    if throw and not result.converged:
        raise ConvergenceError(
            f"the scales of {limit.kind} did not converge: {result.status} (throw=False returns them)"
        )
    return result


_scope = precision.scope  # `renormalize` has an argument of the module's name


@dataclass(frozen=True)
class _Problem:
    """The data of one call, and the kernels that belong to given scales."""

    limit: NNGP | NNGPK
    X: np.ndarray
    y: np.ndarray
    width: int
    precision: str

    @property
    def powers(self) -> np.ndarray | None:
        r"""$k^{L-\ell}$ where $K^R_L\propto\prod_\ell Q_\ell^{k^{L-\ell}}$: one layer, or $\varphi$ of degree $k$; otherwise None."""
        depth, degree = self.limit.network.depth, self.limit.network.activation.degree
        if depth > 1 and degree is None:
            return None
        return (1.0 if degree is None else float(degree)) ** np.arange(depth - 1, -1, -1)

    def effective(self, logs: np.ndarray) -> NNGP | NNGPK:
        r"""The limit with decays $\lambda_\ell/Q_\ell$, $\ell\ge1$."""
        first, *rest = self.limit.decays
        return replace(self.limit, decay=(first, *(np.array(rest) * np.exp(-logs)).tolist()))

    def kernel(self, logs: np.ndarray) -> tuple[np.ndarray, bool]:
        """K^R_L, and whether the quadrature resolved it."""
        limit = self.effective(logs)
        answer = closed.solve(limit, self.X, self.y[:, None], precision=self.precision, progress=Progress(False))
        return answer.kernel.astype(np.float64) / limit.decays[-1], answer.converged

    def spectrum(self, kernel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        r"""$\ln\beta\kappa_i$ and the eigenvectors; a rounding error of zero counts as zero, since unfitted targets weigh it by $\beta^2$."""
        values, vectors = np.linalg.eigh(kernel)
        floor = linalg.eigenvalue_floor(float(values[-1]), len(values), self.precision)
        with np.errstate(divide="ignore"):
            return np.log(self.limit.beta * np.where(values > floor, values, 0.0)), vectors

    def action(self, logs: np.ndarray, sizes: np.ndarray, squares: np.ndarray) -> float:
        r"""$S$ from $\ln\beta\kappa_i$ and the squared targets along the eigenvectors."""
        beta = self.limit.beta
        evidence = np.logaddexp(0.0, sizes).sum() - len(sizes) * np.log(beta) + beta * squares @ expit(-sizes)
        return float((np.exp(logs) - logs).sum() + evidence / self.width)


def _change(
    kernel: Callable[[np.ndarray], np.ndarray], logs: np.ndarray, layer: int, stencil: tuple[tuple[int, float], ...]
) -> np.ndarray:
    """∂K^R_L/∂ln Q of a layer by differences: jax's derivatives of the moments are NaN at correlation one."""
    shift = np.where(np.arange(len(logs)) == layer, _STEP, 0.0)
    parts = (weight * (kernel(logs + n * shift) - kernel(logs - n * shift)) for n, weight in stencil)
    return sum(parts, np.zeros(())) / _STEP


def _scaling(problem: _Problem, powers: np.ndarray) -> tuple[Value, Slope]:
    r"""$S$, and $S$ with $\partial S/\partial\ln Q$, where scales only multiply the kernel: one eigendecomposition serves all."""
    base, vectors = problem.spectrum(problem.kernel(np.zeros_like(powers))[0])
    squares = (vectors.T @ problem.y) ** 2

    def value(logs: np.ndarray) -> float:
        return problem.action(logs, base + powers @ logs, squares)

    def slope(logs: np.ndarray) -> tuple[float, np.ndarray]:
        sizes = base + powers @ logs
        along = expit(sizes).sum() - problem.limit.beta * squares @ (expit(sizes) * expit(-sizes))
        return value(logs), np.exp(logs) - 1 + powers * along / problem.width

    return value, slope


@functools.partial(jax.jit, static_argnames="rule")
def _layer(rule: MomentRule, variance: Array, field: Array) -> Array:
    block = rule.values(variance, variance, field)
    return jnp.fill_diagonal((block + block.T) / 2, rule.own_values(variance), inplace=False)


def _general(problem: _Problem) -> tuple[Value, Slope]:
    r"""The same for any activation: $\partial\ln\det M=\mathrm{tr}M^{-1}\partial K$, $\partial(y^\top M^{-1}y)=-a^\top\partial K\,a$, $a=M^{-1}y$."""
    activation, decays = problem.limit.network.activation, np.array(problem.limit.decays[1:])
    # The first layer's kernel, often the costliest, does not depend on the scales.
    shallow = replace(problem.limit, network=MLP(1, activation), decay=problem.limit.decays[:2])
    first = replace(problem, limit=shallow).kernel(np.zeros(1))[0] * decays[0]

    def kernel(logs: np.ndarray) -> np.ndarray:
        result = first
        for factor in (np.exp(logs) / decays)[:-1]:
            field = (result * factor).astype(problem.precision)
            rule = activation.rule(np.diagonal(field), problem.precision)
            result = np.asarray(_layer(rule, jnp.asarray(np.diagonal(field)), jnp.asarray(field)), dtype=np.float64)
        return result * np.exp(logs[-1]) / decays[-1]

    def value(logs: np.ndarray) -> float:
        sizes, vectors = problem.spectrum(kernel(logs))
        return problem.action(logs, sizes, (vectors.T @ problem.y) ** 2)

    def slope(logs: np.ndarray) -> tuple[float, np.ndarray]:
        here = kernel(logs)
        sizes, vectors = problem.spectrum(here)
        along = vectors.T @ problem.y
        inverse = np.where(np.isfinite(sizes), problem.limit.beta * expit(-sizes), 0.0)  # on the kernel's range
        a = vectors @ (inverse * along)
        weights = (vectors * inverse) @ vectors.T - np.outer(a, a)
        changes = [*(_change(kernel, logs, layer, _FOURTH) for layer in range(len(logs) - 1)), here]
        slopes = np.array([np.vdot(weights, change) for change in changes])
        return problem.action(logs, sizes, along**2), np.exp(logs) - 1 + slopes / problem.width

    return value, slope


def _audit(problem: _Problem, logs: np.ndarray) -> tuple[float, float]:
    r"""The largest $|Q\,\partial S/\partial Q|$, and what rounding makes of it.

    From the kernels of `solve`, with no homogeneity and no $P\times P$ inverse: with $K=AA^\top$, $\partial K=AB_\ell A^\top$ and $H=I+\beta A^\top A$ it is
    $Q_\ell-1+\tfrac1N[\mathrm{tr}(I-H^{-1})B_\ell-\beta^2c^\top B_\ell c]$, $c=H^{-1}A^\top y$.
    """
    kernel, _ = problem.kernel(logs)
    beta = problem.limit.beta
    root = np.asarray(linalg.root(jnp.asarray(kernel, problem.precision))[0], dtype=np.float64)
    gram = root.T @ root
    inverse = np.linalg.inv(np.eye(len(gram)) + beta * gram)
    c = inverse @ (root.T @ problem.y)
    weights = np.eye(len(gram)) - inverse - beta**2 * np.outer(c, c)
    left = np.linalg.pinv(root)
    worst = 0.0
    for layer, scale in enumerate(np.exp(logs)):
        inner = left @ _change(lambda x: problem.kernel(x)[0], logs, layer, _SIXTH) @ left.T
        worst = max(worst, abs(float(scale - 1 + np.vdot(weights, inner) / problem.width)))
    noise = _NOISE * float(np.finfo(problem.precision).eps) / _STEP  # of a difference, relative to the kernel
    rounding = noise * beta * float(np.trace(kernel)) / problem.width
    return worst, rounding


def _starts(value: Value, problem: _Problem) -> list[np.ndarray]:
    """Q = 1, and the minima along equal scales: for φ of degree one every stationary point has equal scales."""
    depth, beta, fast = problem.limit.network.depth, problem.limit.beta, problem.powers is not None
    # There, 1 - Q is at most βQ tr K/N where Q < 1, and Q - 1 at most β|y|²/4N.
    low = -np.log1p(beta * np.trace(problem.kernel(np.zeros(depth))[0]) / problem.width)
    high = np.log1p(beta * problem.y @ problem.y / (4 * problem.width))
    reach = np.inf if fast else _REACH
    line = np.linspace(max(low, -reach) - 0.1, min(high, reach) + 0.1, _SCAN[fast])
    values = np.array([np.inf, *(value(np.full(depth, x)) for x in line), np.inf])
    dips = line[(values[1:-1] <= values[:-2]) & (values[1:-1] <= values[2:])]
    return [np.zeros(depth), *(np.full(depth, x) for x in dips if abs(x) > line[1] - line[0])]


def _descend(slope: Slope, start: np.ndarray, highest: float) -> tuple[float, np.ndarray]:
    """A minimum: L-BFGS, which rounding of S stops at half the digits, then the root of the gradient next to it."""
    bounds = [*[(None, highest)] * (len(start) - 1), (None, None)]  # the last scale moves no field
    found = optimize.minimize(slope, start, jac=True, method="L-BFGS-B", bounds=bounds, options=_DESCENT)
    polished = optimize.root(lambda logs: slope(logs)[1], found.x, tol=1e-11)
    value = slope(polished.x)[0]
    lower = value <= found.fun + 1e-12 * (1 + abs(found.fun))  # and not a saddle elsewhere
    if lower and np.abs(polished.fun).max() < np.abs(found.jac).max():
        return value, polished.x
    return float(found.fun), found.x


def _least(problem: _Problem) -> Renormalization:
    powers = problem.powers
    value, slope = _general(problem) if powers is None else _scaling(problem, powers)
    starts = _starts(value, problem)
    highest = _FARTHEST if powers is None else np.inf
    minima = sorted((_descend(slope, start, highest) for start in starts), key=lambda minimum: minimum[0])
    action, logs = minima[0]
    residual, rounding = _audit(problem, logs)
    scales = np.exp(logs)
    apart = sum(all(np.abs(x - other).max() > _NEARBY for _, other in minima[:i]) for i, (_, x) in enumerate(minima))
    converged = residual <= _TOLERANCE * (1 + scales.max()) + rounding
    status = f"{f'the lowest of {apart} minima' if apart > 1 else 'one minimum'} (starts: {len(starts)})"
    if not problem.kernel(logs)[1]:
        converged, status = False, "quadrature cannot resolve the activation at these scales; rescale X to order one"
    elif not converged:
        status = f"the action is stationary to {residual:.2g} only; use a smaller beta or rescale X and y to order one"
    return Renormalization(
        limit=problem.effective(logs),
        scales=tuple(scales.tolist()),
        alpha=len(problem.y) / problem.width,
        action=action,
        residual=residual,
        converged=bool(converged),
        status=status,
    )
