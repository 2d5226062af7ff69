"""The closed-form solver of the lazy limits: kernels tile by tile, then one linear system."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adakern import inputs, linalg, losses, memory, recursion
from adakern.activations import MomentRule
from adakern.errors import TooLargeError
from adakern.limits import readout
from adakern.limits.anbk import ANBK
from adakern.limits.base import Answer, Limit
from adakern.limits.lazy import NNGPK, LazyLimit
from adakern.networks import CNN
from adakern.progress import Progress
from adakern.recursion_cnn import Convolution


def solve(limit: LazyLimit, X: np.ndarray, y: np.ndarray, *, precision: str, progress: Progress) -> Answer:
    """Solve a lazy limit; `y` has shape (points, outputs). Called inside `precision.scope`."""
    network, points = limit.network, X.shape[0]
    if isinstance(network, CNN):
        convolution = Convolution(network, limit.decays, X.shape[1:], precision)
        kernels, kernel, rules = _convolutional(convolution, limit.tangent, X, progress)
        gradients = None
    else:
        matrices = network.depth * (2 if limit.tangent else 1) + 4  # kernels, K, and the linear system's workspace
        memory.require(matrices * points**2 * np.dtype(precision).itemsize, f"a kernel over {points} points")
        features = inputs.features(network, X)
        variances = recursion.variances(network.activation, network.depth, limit.decays, features, precision)
        kernels, gradients, kernel = _kernels(limit, features, variances, precision, progress)
        rules = variances.rules

    solved = linalg.solve_psd(jnp.asarray(kernel), limit.shrinkage, jnp.asarray(y))
    coefficients = np.asarray(solved.x)
    fitted = np.asarray(jnp.matmul(jnp.asarray(kernel), solved.x, precision="highest"))
    stats: dict[str, Any] = {"solver": "closed", "linear_system": solved.report}
    blurred = [layer for layer, rule in enumerate(rules, start=1) if not rule.resolved]
    status = "closed form"
    if blurred:
        status = (
            f"quadrature cannot resolve the activation {network.activation.name!r} at the size of layer {blurred[0]}'s fields; "
            "rescale X to order one, or use a smooth activation"
        )
    zero = np.zeros((points, points), dtype=precision)
    return Answer(
        kernels=kernels,
        kernel=kernel,
        coefficients=coefficients,
        fitted=fitted,
        errors=y - fitted,
        kernel_errors=(zero,) * len(kernels),
        gradient_kernels=gradients,
        converged=not blurred,
        status=status,
        stats=stats,
    )


def with_loss(limit: ANBK, y: np.ndarray, answer: Answer) -> Answer:
    """The same kernels with the readout of another loss."""
    loss = losses.get(limit.loss)
    solve = jax.jit(readout.solve, static_argnums=0)
    found = solve(loss, jnp.asarray(answer.kernel), jnp.asarray(y), limit.beta, limit.decays[-1])
    coefficients = np.asarray(found.v) / limit.decays[-1]
    outputs = jnp.asarray(answer.kernel @ coefficients)
    return replace(
        answer,
        coefficients=coefficients,
        fitted=np.asarray(loss.link(outputs)),
        errors=np.asarray(found.v) / limit.beta,
        stats={"solver": "closed", "newton": {"steps": int(found.steps), "residual": float(found.residual)}},
    )


def lazy(limit: Limit, X: np.ndarray, precision: str) -> tuple[np.ndarray, ...] | None:
    """The kernels of the same network at its prior in float64, or None where quadrature cannot resolve the activation.

    Those of a CNN's inner layers are matrices over (point, position); None also where they do not fit into memory.
    """
    network = limit.network
    if isinstance(network, CNN):
        return _lazy_convolution(Convolution(network, limit.decays, X.shape[1:], precision), X)
    features = inputs.features(network, X)
    try:
        variances = recursion.variances(network.activation, network.depth, limit.decays, features, precision)
    except ValueError:
        return None
    if not all(rule.resolved for rule in variances.rules):
        return None
    prior = NNGPK(network, decay=limit.decays)
    kernels, _, _ = _kernels(prior, features, variances, precision, Progress())
    return tuple(kernel.astype(np.float64) for kernel in kernels)


def _lazy_convolution(convolution: Convolution, X: np.ndarray) -> tuple[np.ndarray, ...] | None:
    try:
        kernels, _, rules = _convolutional(convolution, False, X, Progress())
        if not all(rule.resolved for rule in rules):
            return None
        inner = [convolution.inner(X, layer) for layer in range(1, convolution.network.depth)]
    except (ValueError, TooLargeError):
        return None
    sizes = [len(X) * sites for sites in convolution.sites[:-1]]
    flat = [kernel.reshape(size, size) for kernel, size in zip(inner, sizes, strict=True)]
    return tuple(kernel.astype(np.float64) for kernel in (*flat, *kernels))


def _kernels(
    limit: LazyLimit, features: np.ndarray, variances: recursion.Variances, precision: str, progress: Progress
) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...] | None, np.ndarray]:
    """All P×P kernels. Tiles on and above the diagonal are computed and mirrored; diagonals are set from the variances."""
    depth, points = limit.network.depth, len(features)
    shape = (points, points)
    kernels = tuple(np.empty(shape, dtype=precision) for _ in range(depth))
    gradients = tuple(np.empty(shape, dtype=precision) for _ in range(depth)) if limit.tangent else ()
    tangent = np.empty(shape, dtype=precision) if limit.tangent else None
    values = variances.values[:-1]
    decay = jnp.asarray(limit.decays)
    tiles = list(recursion.spans(points, recursion.TILE))
    pairs = [(rows, columns) for i, rows in enumerate(tiles) for columns in tiles[i:]]
    with progress.task("kernels", total=len(pairs)) as advance:
        for rows, columns in pairs:
            result = recursion.tile(
                variances.rules,
                limit.tangent,
                decay,
                tuple(jnp.asarray(v[rows]) for v in values),
                tuple(jnp.asarray(v[columns]) for v in values),
                jnp.asarray(features[rows]),
                jnp.asarray(features[columns]),
            )
            targets = (*kernels, *gradients) if tangent is None else (*kernels, *gradients, tangent)
            blocks = (*result.kernels, *result.gradients) + (() if result.tangent is None else (result.tangent,))
            for target, block in zip(targets, blocks, strict=True):
                part = np.asarray(block)
                if rows == columns:
                    part = (part + part.T) / 2  # a matrix product is symmetric only up to rounding
                target[rows, columns] = part
                target[columns, rows] = part.T
            advance()
    _set_diagonals(kernels, gradients, tangent, variances)
    return kernels, (gradients if limit.tangent else None), (kernels[-1] if tangent is None else tangent)


def _convolutional(
    convolution: Convolution, tangent: bool, X: np.ndarray, progress: Progress
) -> tuple[tuple[np.ndarray, ...], np.ndarray, tuple[MomentRule, ...]]:
    r"""$\Phi^L$ and the predictor's kernel of a CNN, tile by tile, and the rules; what lies between positions is not kept."""
    points = len(X)
    convolution.require(points, tangent)
    variances = convolution.variances(X)
    top = np.empty((points, points), dtype=convolution.precision)
    total = np.empty_like(top) if tangent else None
    tiles = list(recursion.spans(points, convolution.side(points)))
    pairs = [(rows, columns) for i, rows in enumerate(tiles) for columns in tiles[i:]]
    with progress.task("kernels", total=len(pairs)) as advance:
        for rows, columns in pairs:
            blocks = convolution.tile(tangent, variances.pick(rows), X[rows], variances.pick(columns), X[columns])
            for target, block in zip((top, total), blocks, strict=True):
                if target is None or block is None:
                    continue
                part = (block + block.T) / 2 if rows == columns else block
                target[rows, columns] = part
                target[columns, rows] = part.T
            advance()
    if not convolution.pooled:  # a mean has pairs of different positions on its diagonal
        np.fill_diagonal(top, variances.kernel)
        if total is not None:
            np.fill_diagonal(total, variances.tangent)
    return (top,), top if total is None else total, variances.rules


def _set_diagonals(
    kernels: tuple[np.ndarray, ...],
    gradients: tuple[np.ndarray, ...],
    tangent: np.ndarray | None,
    variances: recursion.Variances,
) -> None:
    """Correlation one is known exactly on the diagonal, where rounding costs ReLU's slope kernel half its digits."""
    for kernel, value in zip(kernels, variances.values[1:], strict=True):
        np.fill_diagonal(kernel, value)
    if tangent is None:
        return
    gradient, total = np.ones(len(tangent)), variances.values[-1]
    for layer in range(len(kernels), 0, -1):
        gradient = gradient * variances.slopes[layer - 1]
        np.fill_diagonal(gradients[layer - 1], gradient)
        total = total + gradient * variances.values[layer - 1]
    np.fill_diagonal(tangent, total)
