"""What an activation is: a function, its derivative, and the second moments of both under a Gaussian."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from adakern.quadrature import shifted_mean


class MomentRule(ABC):
    r"""A way to compute $E[\varphi\varphi]$ and $E[\varphi'\varphi']$ for blocks of pairs of points.

    `resolved` says whether it reached the accuracy asked of it. Hashable, so that a jitted recursion can be specialised to it. `rows` and `columns` are the variances of the two sets of
    points, `block` their covariances.
    """

    resolved: bool = True

    @abstractmethod
    def values(
        self, rows: Float[Array, " n"], columns: Float[Array, " m"], block: Float[Array, "n m"]
    ) -> Float[Array, "n m"]:
        r"""$E[\varphi(u)\varphi(v)]$ for every pair."""

    @abstractmethod
    def slopes(
        self, rows: Float[Array, " n"], columns: Float[Array, " m"], block: Float[Array, "n m"]
    ) -> Float[Array, "n m"]:
        r"""$E[\varphi'(u)\varphi'(v)]$ for every pair."""

    @abstractmethod
    def own_values(self, variance: Float[Array, " n"]) -> Float[Array, " n"]:
        r"""$E[\varphi(u)^2]$ for each point: correlation exactly one."""

    @abstractmethod
    def own_slopes(self, variance: Float[Array, " n"]) -> Float[Array, " n"]:
        r"""$E[\varphi'(u)^2]$ for each point."""


class Activation(ABC):
    r"""An elementwise nonlinearity $\varphi$.

    Attributes:
        name: what `get` finds it by and files store it as.
        degree: $k$ if $\varphi(ch)=c^k\varphi(h)$ for every $c>0$, else None.
    """

    name: str
    degree: int | None

    @abstractmethod
    def __call__(self, h: Float[Array, "*s"]) -> Float[Array, "*s"]:
        r"""$\varphi(h)$, elementwise, differentiable by jax."""

    def derivative(self, h: Float[Array, "*s"]) -> Float[Array, "*s"]:
        r"""$\varphi'(h)$, elementwise."""
        return jax.jvp(self, (h,), (jnp.ones_like(h),))[1]

    def mean(self, centre: Float[Array, "*s"], spread: Float[Array, "*s"]) -> Float[Array, "*s"]:
        r"""$E[\varphi(m+\sigma z)]$, $z\sim N(0,1)$; closed form where there is one, else quadrature."""
        return shifted_mean(self, centre, spread)

    def mean_square(self, centre: Float[Array, "*s"], spread: Float[Array, "*s"]) -> Float[Array, "*s"]:
        r"""$E[\varphi(m+\sigma z)^2]$."""
        return shifted_mean(lambda h: self(h) ** 2, centre, spread)

    @abstractmethod
    def rule(self, variances: np.ndarray, precision: str) -> MomentRule:
        """The moment rule that is accurate for Gaussians with these variances, in this precision.

        Called inside `precision.scope(precision)`. `variances` is concrete: a rule by quadrature picks its order from it.
        """


@dataclass(frozen=True)
class ClosedRule(MomentRule):
    """Closed forms: nothing to choose."""

    form: ClosedForm

    def values(self, rows: Array, columns: Array, block: Array) -> Array:
        return self.form.moment(*_pairs(rows, columns, block))

    def slopes(self, rows: Array, columns: Array, block: Array) -> Array:
        return self.form.slope_moment(*_pairs(rows, columns, block))

    def own_values(self, variance: Array) -> Array:
        return self.form.moment(variance, variance, variance)

    def own_slopes(self, variance: Array) -> Array:
        return self.form.slope_moment(variance, variance, variance)


def _pairs(rows: Array, columns: Array, block: Array) -> tuple[Array, Array, Array]:
    return (
        jnp.broadcast_to(rows[:, None], block.shape),
        jnp.broadcast_to(columns[None, :], block.shape),
        block,
    )


class ClosedForm(Activation):
    r"""An activation whose moments are known in closed form; $(u,v)\sim N(0,[[a,c],[c,b]])$ throughout."""

    @abstractmethod
    def moment(self, a: Float[Array, "*s"], b: Float[Array, "*s"], c: Float[Array, "*s"]) -> Float[Array, "*s"]:
        r"""$E[\varphi(u)\varphi(v)]$, elementwise."""

    @abstractmethod
    def slope_moment(self, a: Float[Array, "*s"], b: Float[Array, "*s"], c: Float[Array, "*s"]) -> Float[Array, "*s"]:
        r"""$E[\varphi'(u)\varphi'(v)]$, elementwise."""

    def rule(self, variances: np.ndarray, precision: str) -> MomentRule:
        return ClosedRule(self)
