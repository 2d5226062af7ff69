r"""How close a layer's law is to the edge of what can be normalised.

An activation that grows linearly gives a large neuron $\varepsilon=R\omega$ the exponent $-\frac12R^2(1-s(\omega))$ with
$s(\omega)=-\varphi(A\omega)^\top\hat\Phi\varphi(A\omega)$ of large fields. Where $s<1$ in every direction the law exists. At infinite width it always does: where $s$ would pass 1,
a vanishing share of neurons of unbounded size adds to the kernel along that direction until $s=1$. A finite number of neurons stands for that share by a few large
ones. To point there costs each of them an entropy of order 1 a dimension, so that $s$ settles above 1, and what they add comes up short, by a multiple of points / neurons.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from adakern.activations import Activation
from adakern.limits.sites import Pool

FAR = 1e4  # × √rank: where an activation has its asymptotic form
STARTS = 32
CLIMBS = 150
_ALONE = Pool()


def pull(
    activation: Activation,
    root: Float[Array, "p r"],
    dual: Float[Array, "q q"],
    draws: np.ndarray,
    key: Array,
    pool: Pool = _ALONE,
) -> float:
    r"""The largest $s(\omega)$ that climbing from the largest of the draws and from random directions finds; a lower bound of the maximum.

    0 for an activation that grows less than linearly, infinite where one grows more. Called inside `precision.scope`. At a CNN's last layer $\varphi$ stands for
    the rows that the readout's `pool` makes of the features.
    """
    rank = root.shape[1]
    random = np.asarray(jax.random.normal(key, (STARTS // 2, rank), root.dtype))
    sizes = np.linalg.norm(draws, axis=1) if len(draws) else np.zeros(0)
    largest = np.argsort(sizes)[::-1][: STARTS - len(random)]
    starts = np.concatenate([random, np.asarray(draws, random.dtype)[largest]]) if len(draws) else random
    here, farther = (float(value) for value in _climb(activation, pool, root, dual, jnp.asarray(starts)))
    if here <= 0 or farther < 0.5 * here:
        return 0.0
    return here if farther < 2 * here else float("inf")


@functools.partial(jax.jit, static_argnums=(0, 1))
def _climb(activation: Activation, pool: Pool, root: Array, dual: Array, starts: Array) -> tuple[Array, Array]:
    """The largest pull, and that in the same direction ten times as far."""
    far = FAR * jnp.sqrt(jnp.asarray(root.shape[1], root.dtype))
    tiny = jnp.finfo(root.dtype).tiny

    def unit(vectors: Array) -> Array:
        return vectors * jax.lax.rsqrt(jnp.sum(vectors * vectors, axis=1, keepdims=True) + tiny)

    def pulls(directions: Array, far: Array = far) -> tuple[Array, Array]:
        count = len(directions)
        features = pool.rows(activation(far * jnp.matmul(directions, root.T, precision="highest")) / far)
        forces = -jnp.matmul(features, dual, precision="highest")
        return pool.totals(jnp.sum(features * forces, axis=1), count), pool.transpose(forces, count)

    uphill = jax.grad(lambda directions: jnp.sum(pulls(directions)[0]))

    def climb(_: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        here, value, rate = carry
        # Along the gradient, and as if every unit were active: one that is off has no gradient to be switched on by.
        ways = (uphill(here), jnp.matmul(pulls(here)[1], root, precision="highest"))
        there, new = here, value
        for way in ways:
            place = unit(here + rate[:, None] * unit(way))
            height = pulls(place)[0]
            there, new = jnp.where((height > new)[:, None], place, there), jnp.maximum(height, new)
        better = new > value
        return there, new, jnp.where(better, jnp.minimum(1.5 * rate, 10.0), 0.5 * rate)

    first = unit(starts)
    begin = (first, pulls(first)[0], jnp.ones(len(starts), root.dtype))
    places, values, _ = jax.lax.fori_loop(0, CLIMBS, climb, begin)
    best = jnp.argmax(values)
    return values[best], pulls(places[best][None], 10 * far)[0][0]
