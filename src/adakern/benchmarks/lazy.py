r"""What the lazy limits cost against the matrix products that no implementation can avoid.

`python -m adakern.benchmarks.lazy '{"limit": "NTK", ...}'` measures one row in a process of its own, so that its peak memory is its own too.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adakern.benchmarks.timing import Stopwatch, alone, peak_memory
from adakern.limits import NNGP, NTK
from adakern.networks import MLP
from adakern.precision import scope
from adakern.solving import solve

GIB = 1024**3
MEMORY_LIMIT = 2 * GIB


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    limit: str
    activation: str
    depth: int = 3
    points: int = 2000
    new: int = 2000
    features: int = 784
    repeat: int = 3


def cases(**sizes: int) -> list[Case]:
    """The rows: both lazy limits, an activation in closed form, one more, and one by quadrature."""
    return [Case(limit, activation, **sizes) for activation in ("relu", "erf", "tanh") for limit in ("NNGP", "NTK")]


def measure(case: Case) -> dict[str, Any]:
    """Run one row in a fresh process and return its numbers."""
    return alone("adakern.benchmarks.lazy", asdict(case), f"{case.limit} with {case.activation}")


def row(case: Case) -> dict[str, Any]:
    """The numbers of one row, measured in this process: seconds, best of the repeats, and bytes.

    The memory is read before the bare products run for the first time: it is that of `solve` and `predict` alone. Then library and
    bare products take turns, so that both meet the machine in the same moods.
    """
    rng = np.random.default_rng(0)
    X, X_new = (rng.standard_normal((count, case.features)) for count in (case.points, case.new))
    y = np.sign(X[:, 0])
    network = MLP(case.depth, case.activation)  # type: ignore[arg-type]  # a name
    limit = NNGP(network) if case.limit == "NNGP" else NTK(network)

    started = time.perf_counter()
    solution = solve(limit, X, y)
    solution.predict(X_new)
    first = time.perf_counter() - started
    peak, route = peak_memory(), solution.stats["linear_system"]["route"]
    with scope("float64"):
        bare = _bare(solution.kernel, X, X_new)
    del solution
    bare()  # compiles
    solving, predicting, products = [], [], []
    for _ in range(case.repeat):
        with Stopwatch() as watch:
            solution = solve(limit, X, y)
        solving.append(watch)
        with Stopwatch() as watch:
            solution.predict(X_new)
        predicting.append(watch)
        del solution
        for _ in range(2):
            with Stopwatch() as watch:
                bare()
            products.append(watch)

    def best(watches: list[Stopwatch], clock: str) -> float:
        return min(getattr(watch, clock) for watch in watches)

    total, processor = (best(solving, clock) + best(predicting, clock) for clock in ("wall", "processor"))
    return {
        **asdict(case),
        "solve_s": best(solving, "wall"),
        "predict_s": best(predicting, "wall"),
        "bare_s": best(products, "wall"),
        "compile_s": max(0.0, first - total),
        "ratio": total / best(products, "wall"),
        "cpu_ratio": processor / best(products, "processor"),
        "peak_bytes": peak,
        "route": route,
    }


def _bare(kernel: np.ndarray, X: np.ndarray, X_new: np.ndarray) -> Callable[[], Any]:
    """X Xᵀ, X_new Xᵀ, one Cholesky factorisation (P, P), and one product (Q, P)·(P, 1), ready to run."""
    rows, new = jnp.asarray(X), jnp.asarray(X_new)
    matrix = jnp.asarray(kernel) + 0.02 * jnp.eye(len(kernel))
    column = jnp.ones((len(X), 1))

    gram, cholesky = jax.jit(lambda a: a @ a.T), jax.jit(jnp.linalg.cholesky)
    cross, apply = jax.jit(lambda a, b: a @ b.T), jax.jit(lambda a, b: a @ b)

    def run() -> Any:
        with scope("float64"):
            return jax.block_until_ready((gram(rows), cholesky(matrix), apply(cross(new, rows), column)))

    return run


if __name__ == "__main__":
    print(json.dumps(row(Case(**json.loads(sys.argv[1])))))
