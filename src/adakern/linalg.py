r"""Roots and solves of positive semi-definite matrices.

Every function returns a report of what it did beside its answer, and the report ends up in `Solution.stats`.
scipy's and jax's own Cholesky and eigendecomposition do the work; what is added is the choice between them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from adakern import floors


class Solve(NamedTuple):
    r"""$x$ with $(K+\text{ridge}\,I)x=y$, and how it was found: `route`, numerical `rank`, `cutoff` on eigenvalues."""

    x: Array
    report: dict[str, Any]


def eigenvalue_floor(largest: float, size: int, dtype: Any) -> float:
    """Eigenvalues below this are rounding errors of zero: size × machine epsilon × the largest."""
    return float(floors.EIGENVALUES * size * np.finfo(dtype).eps * max(largest, 0.0))


@jax.jit
def _cholesky(kernel: Array, ridge: Array, y: Array) -> tuple[Array, Array]:
    size = kernel.shape[0]
    factor = jnp.linalg.cholesky(kernel + ridge * jnp.eye(size, dtype=kernel.dtype))
    x = jax.scipy.linalg.cho_solve((factor, True), y)
    pivots = jnp.diagonal(factor)
    return x, (jnp.min(pivots) / jnp.max(pivots)) ** 2


@jax.jit
def _eigen(kernel: Array) -> tuple[Array, Array]:
    return jnp.linalg.eigh(kernel)


def solve_psd(kernel: Float[Array, "p p"], ridge: float, y: Float[Array, "p c"]) -> Solve:
    r"""Solve $(K+\text{ridge}\,I)x=y$ by Cholesky, or through the eigenvalues where $K$ is singular.

    With `ridge` 0 and a singular $K$ (duplicated points, a linear kernel with more points than features) the answer is the
    limit ridge → 0⁺ on the range of $K$, i.e. the minimum-norm least-squares solution: eigenvalues below `eigenvalue_floor` are left out.
    """
    size, dtype = kernel.shape[0], kernel.dtype
    x, conditioning = _cholesky(kernel, jnp.asarray(ridge, dtype), y)
    # The pivot ratio bounds the reciprocal condition number from above: below this the digits of x are noise.
    if bool(jnp.all(jnp.isfinite(x))) and float(conditioning) > floors.PIVOTS * size * np.finfo(dtype).eps:
        return Solve(x, {"route": "cholesky", "rank": size, "cutoff": 0.0})
    values, vectors = _eigen(kernel)
    floor = eigenvalue_floor(float(values[-1]), size, dtype)
    shifted = jnp.maximum(values, 0.0) + ridge
    keep = shifted > floor
    inverse = jnp.where(keep, 1.0 / jnp.where(keep, shifted, 1.0), 0.0)
    x = vectors @ (inverse[:, None] * (vectors.T @ y))
    return Solve(x, {"route": "eigenvalues", "rank": int(jnp.sum(keep)), "cutoff": floor})


def root(kernel: Float[Array, "p p"]) -> tuple[Float[Array, "p r"], dict[str, Any]]:
    r"""A rank-revealing $A$ with $AA^\top=K$ to rounding error, $r\le p$ orthogonal columns.

    Concrete arrays only: the number of columns depends on the eigenvalues. Duplicated points and $D<P$ give $r<p$.
    """
    values, vectors = _eigen(kernel)
    floor = eigenvalue_floor(float(values[-1]), kernel.shape[0], kernel.dtype)
    keep = np.flatnonzero(np.asarray(values) > floor)
    if keep.size == 0:  # a kernel of zeros: one column, so that shapes stay regular
        keep = np.array([kernel.shape[0] - 1])
    return _columns(vectors[:, keep], values[keep]), {"rank": int(keep.size), "cutoff": floor}


def root_of_gram(rows: Float[Array, "p d"]) -> tuple[Float[Array, "p r"], dict[str, Any]]:
    r"""The same of $K=XX^\top$, from the eigenvectors of the smaller of $XX^\top$ and $X^\top X$."""
    points, size = rows.shape
    if size >= points:
        return root(jnp.matmul(rows, rows.T, precision="highest"))
    values, right = _eigen(jnp.matmul(rows.T, rows, precision="highest"))
    floor = eigenvalue_floor(float(values[-1]), points, rows.dtype)
    keep = np.flatnonzero(np.asarray(values) > floor)[::-1]  # the largest first
    if keep.size == 0:
        return jnp.zeros((points, 1), rows.dtype), {"rank": 1, "cutoff": floor}
    # Eigenvectors are good to rounding of the largest: the columns of small ones are cleaned of those before them.
    vectors = jnp.linalg.qr(jnp.matmul(rows, right[:, keep], precision="highest") / jnp.sqrt(values[keep])[None, :])[0]
    return _columns(vectors, values[keep])[:, ::-1], {"rank": int(keep.size), "cutoff": floor}


def _columns(vectors: Array, values: Array) -> Array:
    """Eigenvectors times roots of eigenvalues. A vector's sign is the linear algebra library's whim: coordinates that are stored need one that is not."""
    largest = jnp.take_along_axis(vectors, jnp.argmax(jnp.abs(vectors), axis=0)[None, :], axis=0)
    scales = jnp.sqrt(jnp.maximum(values, 0.0))
    return vectors * jnp.where(largest < 0, -1.0, 1.0) * scales[None, :]


def cholesky_root(kernel: Float[Array, "p p"]) -> Float[Array, "p p"]:
    r"""A differentiable triangular $A$ with $AA^\top=K+\text{jitter}\cdot\overline{K_{\mu\mu}}\,I$.

    For kernels that change during a solve, where `root`'s changing number of columns cannot be compiled.
    """
    size = kernel.shape[0]
    floor = floors.JITTER[str(kernel.dtype)] * jnp.trace(kernel) / size + jnp.finfo(kernel.dtype).tiny
    return jnp.linalg.cholesky(kernel + floor * jnp.eye(size, dtype=kernel.dtype))


def each(function: Callable[..., Any], *stacks: Array) -> Any:
    """`function` of every member of the stacks (along their first axis), one after the other: the `vmap` for what factorises matrices.

    On a CPU, LAPACK calls that JAX has batched hand their matrices to the threads they themselves run on, and wait. As many of them at once as
    there are threads wait for ever.
    """
    return jax.lax.map(lambda members: function(*members), stacks)
