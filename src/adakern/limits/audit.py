r"""An independent check of the aNBK's saddle equations, and its free energy.

Given kernels and duals, layer $\ell$'s law in white coordinates is a closed problem of its own, which `tempering` samples afresh from the prior: nothing
that a solver drew is used.

Where a law falls into phases with a gap between them (homogeneous activations at large richness: most neurons near the prior, a few very
large ones), tempering may not find the rarer one. Then neurons of the solver's, moved on by Metropolis-corrected dynamics at frozen kernels
and duals, are looked at instead. That checks everything but the phases' weights, and the audit says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

from adakern import inputs, linalg
from adakern.activations import Activation
from adakern.limits import edge
from adakern.limits.base import relative
from adakern.limits.sites import Sites
from adakern.limits.tempering import EDGE, Dual, Law, Outer, sample
from adakern.losses import Loss

SUSPECT = 0.05  # a kernel that tempering finds off by more than this, and by four of its errors, is looked at again
_SAME = 1e-4  # relative difference up to which the last dual is the outer product that it should be
_ALONE = Sites()
MISSED = 0.25  # nats, or a tenth, by which ⟨U⟩ may be off what the kernel says it is
BEYOND = (
    "large neurons are pulled by {:.4g} of what their prior bears, at most 1 at infinite width, so that a few carry a share of the kernel which still grows with "
    "their number; more particles bring it closer"
)
PHASES = "its law has a phase that tempering from the prior does not find, and the phases' weights rest on the solver's own dynamics"


class Audit(NamedTuple):
    r"""How far the saddle equations are from holding, in relative terms.

    Attributes:
        residual: the largest of `parts`; infinite where a layer's law cannot be normalised or was not reached.
        doubt: the same, with the solver's own neurons' word for a kernel where they, moved on at the frozen tilt, agree with it better. A tilt that is known to a
            per cent can move a nearly critical law by ten; only what neither sample bears out speaks against an answer.
        parts: "readout", "top_dual"; "kernels" with one number per layer; "duals" with one per layer below the last.
        noise: Monte-Carlo standard errors of the sampled parts: what right kernels and duals would show.
        free_energy: $F$ at the saddle; `free_energy_error` is its Monte-Carlo standard error.
        log_z: $\ln Z_1..\ln Z_L$.
        acceptance: of the moves, per layer.
        stages: temperatures, per layer.
        pulls: the largest tilt of a large neuron, per layer, see `edge`.
        moments: the last layer's kernel over the distinct points from independent groups, (groups, p, p), where it was sampled from the prior on.
        status: which layers could not be sampled and why, or "".
    """

    residual: float
    doubt: float
    parts: dict[str, float | list[float]]
    noise: dict[str, list[float]]
    free_energy: float
    free_energy_error: float
    log_z: list[float]
    acceptance: list[float]
    stages: list[int]
    pulls: list[float]
    moments: np.ndarray | None = None
    status: str = ""


@np.errstate(over="ignore", invalid="ignore")  # what overflows is an infinite part, not a warning
def audit(
    activation: Activation,
    decays: Sequence[float],
    richness: float,
    beta: float,
    loss: Loss,
    input_root: Any,
    points: inputs.Distinct,
    y: np.ndarray,
    kernels: Sequence[np.ndarray],
    duals: Sequence[np.ndarray],
    fitted: np.ndarray,
    draws: Sequence[np.ndarray] = (),
    *,
    seed: int = 0,
    groups: int = 8,
    particles: int = 256,
    sites: Sites = _ALONE,
) -> Audit:
    r"""Check kernels, duals and outputs $s$ by the saddle equations; called inside `precision.scope`.

    * readout: $s=\Phi^Lv/\lambda_L$ with $v=\beta\Delta(s)$, relative to $|y|$;
    * top dual: $\hat\Phi^L=-\frac{\gamma_0^2}{\lambda_L}vv^\top$;
    * kernels: $\Phi^\ell=\langle\varphi\varphi^\top\rangle_\ell$;
    * duals: $\lambda_\ell\langle hh^\top\rangle_{\ell+1}=\Phi^\ell-\Phi^\ell\hat\Phi^\ell\Phi^\ell$, relative to the larger of the first two. This is $\hat\Phi=\Phi^{-1}-\lambda\Phi^{-1}\langle hh^\top\rangle\Phi^{-1}$ without its inverses.

    $$F=-\tfrac12\sum_\ell\mathrm{Tr}\,\Phi^\ell\hat\Phi^\ell+\beta\gamma_0^2\sum_\mu\ell(y_\mu,s_\mu)+\tfrac{\gamma_0^2}{2\lambda_L}\mathrm{Tr}\,v^\top\Phi^Lv-\sum_\ell\ln Z_\ell$$

    is stationary in kernels and duals, so their errors enter it squared.

    A CNN's windows see $C=\frac1{\lambda_\ell}\sum_bS_b\Phi^\ell S_b^\top$ of the layer below, and its dual equation is $\hat\Phi^\ell=\frac1{\lambda_\ell}\sum_bS_b^\top C^{-1}(C-\langle hh^\top\rangle)C^{-1}S_b$. It is compared
    between $\Phi^\ell$ and $\Phi^\ell$ as well: with $AA^\top=C$, $T_b=A^{-1}S_b\Phi^\ell$ has no large numbers, $\sum_bT_bT_b^\top\le\lambda_\ell\|\Phi^\ell\|$, and
    $\Phi^\ell\hat\Phi^\ell\Phi^\ell=\frac1{\lambda_\ell}\sum_bT_b^\top(I-\langle\varepsilon\varepsilon^\top\rangle)T_b$.

    Args:
        activation: $\varphi$.
        decays: $\lambda_0..\lambda_L$.
        richness: $\gamma_0$.
        beta: $\beta$.
        loss: $\ell$.
        input_root: a root of $\Phi^0/\lambda_0$ over the distinct points.
        points: which points are distinct.
        y: targets, (P, C).
        kernels: $\Phi^1..\Phi^L$, (P, P) each; (P, S, P, S) of a CNN's inner layers.
        duals: $\hat\Phi^1..\hat\Phi^L$, likewise.
        fitted: $s$ on the training inputs, (P, C).
        draws: white coordinates of the solver's neurons, for where tempering misses a phase.
        seed: of the sampling.
        groups: independent groups of particles, for the errors.
        particles: per group.
        sites: positions of a CNN.
    """
    depth, top = len(kernels), decays[-1]
    targets, outputs = jnp.asarray(y), jnp.asarray(fitted)
    v = beta * np.asarray(loss.error(targets, outputs), np.float64)
    scale = float(np.linalg.norm(y)) or 1.0
    top_dual = relative(duals[-1] + richness**2 / top * v @ v.T, duals[-1])
    parts: dict[str, float | list[float]] = {
        "readout": float(np.linalg.norm(fitted - kernels[-1] @ v / top)) / scale,
        "top_dual": top_dual,
    }
    off_kernels, off_duals, noise_kernels, noise_duals = [], [], [], []
    laws: list[Law] = []
    phases: list[int] = []
    kept: dict[int, float] = {}
    pulls: list[float] = []
    root = jnp.asarray(input_root)
    below = dual_below = np.zeros((0, 0))
    for layer in range(depth):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 0xA0D17), layer)  # no solver's stream
        over, pool = sites.over(points, layer, depth), sites.pool_of(layer, depth)
        gathered = over.collapse(duals[layer])
        collapsed = jnp.asarray(gathered)
        kernel = over.pick(kernels[layer])
        target = 0.5 * float(np.sum(kernel * np.asarray(collapsed)))  # ⟨U⟩ of the right law
        tilt: Dual = collapsed
        if layer == depth - 1 and top_dual < _SAME:
            belongs = np.zeros((len(points.first), v.shape[1]))
            np.add.at(belongs, points.member, richness / np.sqrt(top) * v)
            tilt = Outer(jnp.asarray(belongs))
        options: dict[str, Any] = {"groups": groups, "particles": particles, "pool": pool}
        lift = _Lift(sites, layer - 1, decays[layer], np.asarray(root), below) if layer > 0 and sites.counts else None
        law = sample(activation, root, tilt, key, responses=layer > 0, lift=lift, **options)
        tempered = _off(law, law.moment - kernel, kernel)
        missed = abs(law.tilt[0] - target) > max(MISSED, 0.1 * abs(target))
        suspect = not tempered <= SUSPECT + 4 * _off(law, law.moment_error, kernel) or missed
        if draws and suspect:
            again = sample(activation, root, tilt, key, start=draws[layer], responses=layer > 0, lift=lift, **options)
            kept[layer] = _off(again._replace(status=""), again.moment - kernel, kernel)
            if _phase(law, again, kernel):
                law = again._replace(log_z=np.nan, log_z_error=np.inf, status="")
                phases.append(layer + 1)
        own = draws[layer] if draws else np.zeros((0, root.shape[1]))
        pulls.append(edge.pull(activation, root, collapsed, own, jax.random.fold_in(key, 1), pool))
        if np.isinf(pulls[-1]):
            law = law._replace(log_z=np.nan, log_z_error=np.inf, status=EDGE)
            kept.pop(layer, None)
        off_kernels.append(_off(law, law.moment - kernel, kernel))
        noise_kernels.append(_off(law, law.moment_error, kernel))
        if layer > 0:
            decay = decays[layer]
            if lift is None:
                prior, whole = (
                    decay * np.asarray(root @ root.T, np.float64),
                    below,
                )  # with the root's jitter: what was sampled
            else:
                prior, whole = np.asarray(below, np.float64), decay * lift(np.eye(root.shape[1]))
            expected = prior @ dual_below @ prior
            # A difference of terms that can be much larger than Φ itself, at large richness: relative to the largest.
            largest = max(whole, decay * law.second, key=np.linalg.norm)
            off_duals.append(_off(law, decay * law.response - expected, largest))
            noise_duals.append(_off(law, decay * law.response_error, largest))
        laws.append(law)
        below, dual_below = kernel, gathered
        if layer < depth - 1:
            root = linalg.cholesky_root(sites.seen(layer, jnp.asarray(kernel / decays[layer + 1])))
    parts |= {"kernels": off_kernels, "duals": off_duals}
    data = beta * richness**2 * float(jnp.sum(loss.value(targets, outputs)))
    data += 0.5 * richness**2 / top * float(np.sum(v * (kernels[-1] @ v)))
    traces = sum(float(np.sum(kernel * dual)) for kernel, dual in zip(kernels, duals, strict=True))
    milder = [min(value, kept.get(layer, np.inf)) for layer, value in enumerate(off_kernels)]
    return Audit(
        doubt=max(_finite(part) for part in (parts["readout"], parts["top_dual"], *milder, *off_duals)),
        residual=max(_finite(part) for part in (parts["readout"], parts["top_dual"], *off_kernels, *off_duals)),
        parts=parts,
        noise={"kernels": noise_kernels, "duals": noise_duals},
        free_energy=-0.5 * traces + data - sum(law.log_z for law in laws),
        free_energy_error=float(np.linalg.norm([law.log_z_error for law in laws])),
        log_z=[law.log_z for law in laws],
        acceptance=[law.acceptance for law in laws],
        stages=[law.stages for law in laws],
        pulls=pulls,
        moments=None if laws[-1].status or depth in phases else laws[-1].moments,
        status="; ".join(
            [f"layer {i + 1}: {law.status}" for i, law in enumerate(laws) if law.status]
            + [f"layer {layer}: {PHASES}" for layer in phases]
            + [
                f"layer {i + 1}: {BEYOND.format(pull)}"
                for i, pull in enumerate(pulls)
                if 1 < pull < np.inf and not laws[i].status
            ]
        ),
    )


class _Lift:
    r"""$V\to\frac1{\lambda^2}\sum_bT_b^\top VT_b$ with $T_b=A^{-1}S_b\Phi$: what a CNN's windows make of a matrix over white coordinates. One that see all of a layer once: $AVA^\top$."""

    def __init__(self, sites: Sites, layer: int, decay: float, root: np.ndarray, kernel: np.ndarray) -> None:
        lower, rows = np.asarray(root, np.float64), np.asarray(kernel, np.float64)
        self._decay = decay
        self._turned = [
            scipy.linalg.solve_triangular(lower, part, lower=True, check_finite=False)
            for part in sites.shifted(layer, rows)
        ]

    def __call__(self, white: np.ndarray) -> np.ndarray:
        total: np.ndarray = sum(part.T @ (white @ part) for part in self._turned) / self._decay**2
        return total


def _phase(tempered: Law, kept: Law, kernel: np.ndarray) -> bool:
    """Whether neurons of the solver's stay with its kernel, and tempering clearly does not come to where they are.

    Beyond the edge of what can be normalised by less than the tilt is known, they stay as well: dynamics is slow there.
    """
    finite = kept._replace(status="" if kept.status == EDGE else kept.status)
    agrees = _off(finite, kept.moment - kernel, kernel) <= SUSPECT + 4 * _off(finite, kept.moment_error, kernel)
    if tempered.status:
        return agrees and tempered.status == EDGE
    joint = np.hypot(np.linalg.norm(tempered.moment_error), np.linalg.norm(kept.moment_error))
    return agrees and float(np.linalg.norm(kept.moment - tempered.moment)) > 4 * float(joint)


def _off(law: Law, difference: np.ndarray, reference: np.ndarray) -> float:
    return float("inf") if law.status else _finite(relative(difference, reference))


def _finite(value: Any) -> float:
    """A part that is not a number says that its equation does not hold."""
    return float(value) if np.isfinite(value) else float("inf")
