r"""How noisy a response function is, estimated by Stein's lemma and by Jacobians from equally many neurons.

The first layer of a network while errors $\Delta$ and kernels are held fixed: $h(t)=u+\gamma_0\int\Phi^0(\Delta\circ g)$, $g=\varphi'(h)z$, $z=r+\gamma_0\int G\,(\Delta\circ\varphi)$, $r=R\zeta$; the response of the
features to $\zeta$ is $\langle\varphi(h(t))\zeta^\top\rangle=\langle\partial\varphi(h(t))/\partial\zeta\rangle$.
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from adakern import precision
from adakern.benchmarks.flow_rows import Options, Row

_STEPS, _LENGTH, _POINTS, _NEURONS = 40, 1.0, 5, 1024


def noise(options: Options) -> Iterator[Row]:
    """Spread over populations, relative to the response."""
    count = 16 if options.quick else 200
    rng = np.random.default_rng(7)
    X = rng.standard_normal((_POINTS, 6)) / np.sqrt(6)
    kernel, delta = X @ X.T, np.sign(rng.standard_normal(_POINTS))
    root = np.linalg.cholesky(kernel)

    def features(u: jax.Array, zeta: jax.Array) -> jax.Array:
        """Of one neuron."""
        h, memory, step = u, jnp.zeros_like(u), _LENGTH / _STEPS
        for index in range(_STEPS):
            fade = jnp.exp(-2.0 * index * step)  # of errors
            g = (1 - jnp.tanh(h) ** 2) * (root @ zeta + memory)
            memory = memory + step * fade * kernel @ (delta * jnp.tanh(h))
            h = h + step * fade * kernel @ (delta * g)
        return jnp.tanh(h)

    found: dict[str, list[np.ndarray]] = {"Stein, independent": [], "Stein, orthogonal": [], "Jacobians": []}
    seconds: dict[str, list[float]] = {name: [] for name in found}

    def timed(name: str, work: Callable[[], np.ndarray]) -> None:
        begun = clock.perf_counter()
        found[name].append(work())
        seconds[name].append(clock.perf_counter() - begun)

    with precision.scope("float64"):
        every = jax.jit(jax.vmap(features))
        jacobians = jax.jit(lambda u, zeta: jnp.mean(jax.vmap(jax.jacfwd(features, 1))(u, zeta), axis=0))
        for _ in range(count):
            u, zeta = rng.standard_normal((_NEURONS, _POINTS)) @ root.T, rng.standard_normal((_NEURONS, _POINTS))
            clean = _orthogonal(u, zeta)
            timed("Stein, independent", partial(_averaged, every, u, zeta))
            timed("Jacobians", partial(_exact, jacobians, u, zeta))
            timed("Stein, orthogonal", partial(_averaged, every, u, clean))
    truth = np.mean(found["Jacobians"], axis=0)
    for way, values in found.items():
        each = np.stack(values)
        spread = float(np.sqrt(np.mean(each.var(axis=0, ddof=1)) / np.mean(truth**2)))
        shift = float(np.linalg.norm(each.mean(axis=0) - truth) / np.linalg.norm(truth))
        times = float(np.median(seconds[way]) / np.median(seconds["Stein, independent"]))
        text = f"mean {100 * shift:.2g} % from that of the Jacobians, {_NEURONS} neurons, {count} populations; {times:.2g} times the seconds of the first"
        yield Row(f"{way}: spread, relative", spread, error=spread / np.sqrt(2 * count * _POINTS), note=text)


def _averaged(every: Callable[..., jax.Array], u: np.ndarray, zeta: np.ndarray) -> np.ndarray:
    """By Stein's lemma."""
    return np.asarray(np.asarray(every(u, zeta)).T @ zeta / len(zeta))


def _exact(jacobians: Callable[..., jax.Array], u: np.ndarray, zeta: np.ndarray) -> np.ndarray:
    return np.asarray(jacobians(u, zeta))


def _orthogonal(u: np.ndarray, zeta: np.ndarray) -> np.ndarray:
    """White, and orthogonal to what is known when it is drawn."""
    basis = np.linalg.qr(np.tanh(u))[0]
    clean = np.linalg.qr(zeta - basis @ (basis.T @ zeta))[0] * np.sqrt(len(zeta))
    return np.asarray(clean * np.sign(np.sum(clean * zeta, axis=0))[None, :])
