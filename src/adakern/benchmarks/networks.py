r"""What a Langevin step of a finite-width network costs against its bare matrix products.

A step needs, per point, the products $XW^0$ and $X^\top\delta$ of the first layer and three (width, width) products for each further one. They are timed by
themselves, with the same backend and in the same process: once with the inputs as they are, (points, features), and once in the coordinates that the simulation
uses, (points, rank).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from adakern.benchmarks.timing import Stopwatch
from adakern.finite.stepping import Stepper
from adakern.networks import MLP
from adakern.precision import scope


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    depth: int
    width: int = 1024
    points: int = 300
    features: int = 784
    steps: int = 64
    repeat: int = 5
    matmul: str = "highest"

    @property
    def coordinates(self) -> int:
        return min(self.points, self.features)

    def flops(self, features: int) -> float:
        """Floating-point operations of the matrix products of one step."""
        first = 2 * 2 * self.points * features * self.width
        inner = 3 * 2 * self.points * self.width**2
        return first + (self.depth - 1) * inner + 3 * 2 * self.points * self.width


def cases(width: int, points: int, features: int, steps: int, repeat: int, matmuls: tuple[str, ...]) -> list[Case]:
    return [Case(depth, width, points, features, steps, repeat, m) for m in matmuls for depth in (1, 3)]


def row(case: Case) -> dict[str, Any]:
    """The numbers of one row: milliseconds per step, best of the repeats; simulation and bare products take turns."""
    with scope("float32"):
        runs = {
            "step": _simulation(case),
            "bare": _bare(case, case.features),
            "bare_reduced": _bare(case, case.coordinates),
        }
        best = dict.fromkeys(runs, np.inf)
        for run in runs.values():
            run()  # compiles
        for _ in range(case.repeat):
            for name, run in runs.items():
                with Stopwatch() as watch:
                    run()
                best[name] = min(best[name], watch.wall / case.steps)
    rates = {name: case.flops(case.features if name == "bare" else case.coordinates) / best[name] for name in runs}
    return {
        **asdict(case),
        **{f"{name}_ms": 1e3 * seconds for name, seconds in best.items()},
        "steps_per_second": 1 / best["step"],
        "ratio": best["step"] / best["bare"],
        "ratio_reduced": best["step"] / best["bare_reduced"],
        "share": rates["step"] / rates["bare_reduced"],
        "tflops": rates["step"] / 1e12,
        "bare_tflops": rates["bare_reduced"] / 1e12,
    }


def _simulation(case: Case) -> Callable[[], Any]:
    """Langevin steps as `finite.langevin` makes them, measurements of kernels and outputs included."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((case.points, case.features))
    stepper = Stepper(MLP(case.depth), X, np.sign(X[:, 0]), width=case.width, matmul=case.matmul)
    leap = min(16, case.steps)
    return lambda: jax.block_until_ready(stepper.advance(step=1e-5, leap=leap, blocks=case.steps // leap))


def _bare(case: Case, features: int) -> Callable[[], Any]:
    """The matrix products of as many steps, one after the other, in one compiled loop."""

    def matrix(*shape: int) -> Array:
        return jax.random.normal(jax.random.key(sum(shape)), shape) / np.sqrt(shape[0])

    X, first, readout = matrix(case.points, features), matrix(features, case.width), matrix(case.width, 1)
    inner = [matrix(case.width, case.width) for _ in range(case.depth - 1)]

    def product(a: Array, b: Array) -> Array:
        return jnp.matmul(a, b, precision=case.matmul)

    def step(_: Any, touch: Array) -> Array:
        """Forward and backward products. One entry of each result, behind a barrier that keeps the rest of it, enters the next step, so that none is left out."""
        inputs = X + touch
        fields = [product(inputs, first)]
        for weight in inner:
            fields.append(product(fields[-1], weight))
        outputs = product(fields[-1], readout)
        delta = product(outputs, readout.T)
        gradients = [product(fields[-1].T, outputs)]
        for weight, below in zip(inner[::-1], fields[-2::-1], strict=True):
            gradients.append(product(below.T, delta))
            delta = product(delta, weight.T)
        gradients.append(product(inputs.T, delta))
        whole = jax.lax.optimization_barrier(tuple(gradients))
        return 1e-12 * sum(gradient[0, 0] for gradient in whole)

    @jax.jit
    def loop(touch: Array) -> Array:
        return jax.lax.fori_loop(0, case.steps, step, touch)

    return lambda: jax.block_until_ready(loop(jnp.zeros(())))
