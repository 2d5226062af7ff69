r"""Perturbation theory: the adaptive Bayesian kernels to first order in $\gamma_0^2$.

At $\gamma_0=0$ every layer's fields are Gaussian, $\Phi_0^\ell=M(\Phi_0^{\ell-1}/\lambda_{\ell-1})$ with $M(C)=E_{h\sim N(0,C)}\varphi\varphi^\top$. The duals begin at order
$\gamma_0^2$, and tilt each law, $e^{-\frac12\varphi^\top\hat\Phi\varphi}\approx1-\frac12\varphi^\top\hat\Phi\varphi$. With $\hat\Phi^\ell=\gamma_0^2\hat\Phi_1^\ell$ and
$\Phi^\ell=\Phi_0^\ell+\gamma_0^2\Phi_1^\ell+O(\gamma_0^4)$,

$$\hat\Phi_1^L=-\tfrac1{\lambda_L}vv^\top,\qquad
  \hat\Phi_1^\ell=\tfrac1{\lambda_\ell}\left(\langle\varphi'\varphi'^\top\rangle\circ\hat\Phi_1^{\ell+1}+\mathrm{diag}\langle\varphi''\circ\hat\Phi_1^{\ell+1}\varphi\rangle\right)_{\ell+1},$$

$$\Phi_1^\ell=-\tfrac12\left[\langle\varphi\varphi^\top(\varphi^\top\hat\Phi_1^\ell\varphi)\rangle-\Phi_0^\ell\langle\varphi^\top\hat\Phi_1^\ell\varphi\rangle\right]
  +\frac{\partial\Phi_0^\ell}{\partial\Phi_0^{\ell-1}}\cdot\Phi_1^{\ell-1},\qquad\Phi_1^0=0,$$

all means over the lazy laws and $v$ the lazy readout. The second line is the adjoint of the derivative in the third, which also serves ReLU.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from adakern import checks, inputs, losses, memory
from adakern.errors import ConvergenceError
from adakern.limits import ANBK, readout
from adakern.limits.base import relative
from adakern.losses import Loss
from adakern.networks import CNN
from adakern.perturbing.four_point import ROWS, SCRAMBLES, Change, four_point
from adakern.perturbing.response import BLURRED, Response, response
from adakern.precision import scope
from adakern.solvers import closed

_READOUT = 1e-6  # relative residual above which a readout counts as failed


@dataclass(frozen=True, eq=False, repr=False)
class Perturbation:
    r"""Kernels to first order in $\gamma_0^2$. Coefficients do not depend on `limit.richness`; `kernels`, `kernel`, `fitted` do.

    Attributes:
        limit: the `ANBK`.
        X: inputs.
        y: targets.
        lazy: $\Phi_0^1..\Phi_0^L$.
        first: $\Phi_1^1..\Phi_1^L$, so that $\Phi^\ell=\Phi_0^\ell+\gamma_0^2\Phi_1^\ell+O(\gamma_0^4)$.
        errors: of each entry of `first`: standard errors (quasi Monte Carlo), differences of two orders (quadrature), zeros (closed form).
        duals: $\hat\Phi_1^1..\hat\Phi_1^L$, $\hat\Phi^\ell=\gamma_0^2\hat\Phi_1^\ell+O(\gamma_0^4)$.
        methods: how each layer's four-point function was found: "closed form", "quadrature" or "quasi Monte Carlo".
        outputs: $s_0$ on the training inputs, of the lazy readout, in the shape of `y`.
        first_outputs: $s_1$, $s=s_0+\gamma_0^2s_1+O(\gamma_0^4)$.
    """

    limit: ANBK
    X: np.ndarray
    y: np.ndarray
    lazy: tuple[np.ndarray, ...]
    first: tuple[np.ndarray, ...]
    errors: tuple[np.ndarray, ...]
    duals: tuple[np.ndarray, ...]
    methods: tuple[str, ...]
    outputs: np.ndarray
    first_outputs: np.ndarray

    def __post_init__(self) -> None:
        for array in (self.X, self.y, *self.lazy, *self.first, *self.errors, *self.duals):
            array.setflags(write=False)
        self.outputs.setflags(write=False)
        self.first_outputs.setflags(write=False)

    @property
    def kernels(self) -> tuple[np.ndarray, ...]:
        r"""$\Phi_0^\ell+\gamma_0^2\Phi_1^\ell$ at the limit's richness."""
        square = self.limit.richness**2
        return tuple(lazy + square * first for lazy, first in zip(self.lazy, self.first, strict=True))

    @property
    def kernel(self) -> np.ndarray:
        """The last of `kernels`."""
        return self.kernels[-1]

    @property
    def fitted(self) -> np.ndarray:
        r"""$\sigma(s_0+\gamma_0^2s_1)$: the readout expanded to first order as well, not the readout of `kernel`, which need not be positive."""
        s = self.outputs + self.limit.richness**2 * self.first_outputs
        with scope("float64"):
            loss = losses.get(self.limit.loss)
            return np.asarray(loss.link(jnp.asarray(s.reshape(len(s), -1)))).reshape(s.shape)

    @property
    def sizes(self) -> tuple[float, ...]:
        r"""$\gamma_0^2|\Phi_1^\ell|/|\Phi_0^\ell|$ per layer, in the Frobenius norm: the expansion is good where all are small."""
        square = self.limit.richness**2
        return tuple(relative(square * first, lazy) for lazy, first in zip(self.lazy, self.first, strict=True))

    def __repr__(self) -> str:
        sizes = ", ".join(f"{size:.2g}" for size in self.sizes)
        return f"Perturbation({self.limit!r}, {len(self.X)} points, richness² |first|/|lazy| = {sizes})"


def perturbation(limit: ANBK, X: Any, y: Any, *, samples: int = 1 << 18, seed: int = 0) -> Perturbation:
    r"""The kernels of an `ANBK` to first order in $\gamma_0^2$, for any depth, activation and loss, in float64.

    $$\Phi^\ell\approx\Phi_0^\ell+\gamma_0^2\Phi_1^\ell,\qquad
      \Phi_1^\ell=-\tfrac12\left[\langle\varphi\varphi^\top(\varphi^\top\hat\Phi_1^\ell\varphi)\rangle_0-\Phi_0^\ell\langle\varphi^\top\hat\Phi_1^\ell\varphi\rangle_0\right]
      +\frac{\partial\Phi_0^\ell}{\partial\Phi_0^{\ell-1}}\cdot\Phi_1^{\ell-1}$$

    The bracket, a four-point function, is known for linear networks. It is integrated by quadrature where the fields span at most four dimensions
    (ReLU and other functions of a degree: two) and two orders agree, otherwise by quasi Monte Carlo, with standard errors.

    Args:
        limit: `ANBK` of an `MLP`. Its richness matters to the result's `kernels`, `kernel` and `fitted` alone.
        X: inputs, (points, features).
        y: targets, (points,) or (points, outputs); ±1 for the logistic loss, one-hot rows for softmax.
        samples: of the quasi Monte Carlo, in all; rounded down to sixteen times a power of two.
        seed: of its randomisation.
    """
    if not isinstance(limit, ANBK):
        raise TypeError(f"limit must be an ANBK, the limit that has a richness to expand in, but it is {limit!r}")
    if isinstance(limit.network, CNN):
        raise NotImplementedError("perturbation serves MLP networks; CNN networks are described but not solved yet")
    points = checks.inputs("X", X, ndim=limit.network.input_ndim)
    targets = checks.targets("y", y, len(points))
    checks.labels("y", targets, limit.loss)
    with np.errstate(over="ignore"):
        if not np.isfinite(np.square(limit.beta * targets).sum()):
            raise ValueError("y must have squares that fit into float64, but some are too large; rescale it")
    samples = checks.integer("samples", samples, least=2 * SCRAMBLES)
    seed = checks.seed("seed", seed)
    size, depth = len(points), limit.network.depth
    entries = (6 * depth + 2 * SCRAMBLES + 12) * size**2 + 8 * min(ROWS, samples) * size
    memory.require(8 * entries, f"first-order kernels over {size} points")
    with scope("float64"):
        return _expand(limit, points.copy(), targets.copy(), samples, seed)


def _expand(limit: ANBK, X: np.ndarray, y: np.ndarray, samples: int, seed: int) -> Perturbation:
    points, activation, decays = inputs.distinct(X), limit.network.activation, limit.decays
    below = inputs.input_kernel(limit.network, X[points.first])
    kernels = closed.lazy(limit, X[points.first], "float64")
    if kernels is None:
        raise ConvergenceError(BLURRED.format(activation.name))
    fields = [kernel / decay for kernel, decay in zip((below, *kernels), decays[:-1], strict=False)]
    lazy = tuple(points.expand(kernel) for kernel in kernels)
    columns = y if y.ndim == 2 else y[:, None]
    v = _readout(limit, lazy[-1], columns)

    top = -v @ v.T / decays[-1]
    duals = [points.collapse(top)]
    responses: list[Response] = []
    for layer in range(len(kernels) - 1, 0, -1):
        responses.insert(0, response(activation, fields[layer], kernels[layer]))
        duals.insert(0, responses[0].pull(duals[0]) / decays[layer])

    change = Change.none(len(points.first))
    first, errors, methods = [], [], []
    for layer, (kernel, field, dual) in enumerate(zip(kernels, fields, duals, strict=True)):
        own, method = four_point(activation, field, kernel, dual, samples, (seed, layer))
        carried = change.through(responses[layer - 1], decays[layer]) if layer else change
        change = own.scaled(-0.5).plus(carried)
        first.append(points.expand(change.value))
        errors.append(points.expand(change.error))
        methods.append(method)
    outputs, slopes = _outputs(limit, lazy[-1], first[-1], columns)
    return Perturbation(
        limit=limit,
        X=X,
        y=y,
        lazy=lazy,
        first=tuple(first),
        errors=tuple(errors),
        duals=(*(points.spread(dual) for dual in duals[:-1]), top),
        methods=tuple(methods),
        outputs=outputs.reshape(y.shape),
        first_outputs=slopes.reshape(y.shape),
    )


def _readout(limit: ANBK, kernel: np.ndarray, y: np.ndarray) -> np.ndarray:
    found = _solved(losses.get(limit.loss), kernel, y, limit.beta, limit.decays[-1])
    v, rounding = np.asarray(found.v), 4 * np.finfo(float).eps * limit.beta * np.trace(kernel) / limit.decays[-1]
    if not (np.isfinite(v).all() and float(found.residual) <= _READOUT + rounding):
        raise ConvergenceError(
            f"the lazy readout holds to {float(found.residual):.2g} only; use a smaller beta, or rescale X and y to order one"
        )
    return v


_solved = jax.jit(readout.solve, static_argnums=0)


def _outputs(limit: ANBK, kernel: np.ndarray, change: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""$s=\Phi v(\Phi)/\lambda$ and its derivative along `change`."""
    found = _output_slopes(losses.get(limit.loss), kernel, change, y, limit.beta, limit.decays[-1])
    values, slopes = (np.array(part) for part in found)
    return values, slopes


@functools.partial(jax.jit, static_argnums=0)
def _output_slopes(loss: Loss, kernel: Array, change: Array, y: Array, beta: Array, decay: Array) -> Any:
    def outputs(phi: Array) -> Array:
        return jnp.matmul(phi, readout.readout(loss, phi, y, beta, decay), precision="highest") / decay

    return jax.jvp(outputs, (kernel,), (change,))
