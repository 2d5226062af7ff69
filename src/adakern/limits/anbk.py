r"""The adaptive Neural Bayesian Kernel: the posterior of an infinitely wide network that learns features.

The action made stationary, with $Z_\ell=E_{h\sim N(0,\Phi^{\ell-1}/\lambda_{\ell-1})}\exp(-\frac12\varphi(h)^\top\hat\Phi^\ell\varphi(h))$:

$$S=-\tfrac12\sum_{\ell=1}^L\mathrm{Tr}\,\Phi^\ell\hat\Phi^\ell+\tfrac{\gamma_0^2}2y^\top\left(\tfrac I\beta+\tfrac{\Phi^L}{\lambda_L}\right)^{-1}y-\sum_{\ell=1}^L\ln Z_\ell .$$
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from adakern import checks, inputs, losses, precision
from adakern.limits import gap, linear_audit
from adakern.limits.audit import Audit, audit
from adakern.limits.base import Answer, Limit, check_network, frozen_decay, relative
from adakern.limits.lazy import NNGPK
from adakern.limits.sites import of
from adakern.networks import Network

_NOISY = 0.05  # Monte-Carlo error of the audit above which it is made again with more particles a group
_AUDITORS = (256, 2048)


@dataclass(frozen=True)
class ANBK(Limit):
    r"""The adaptive Neural Bayesian Kernel.

    $$\Phi^\ell=\langle\varphi\varphi^\top\rangle_\ell,\quad p_\ell(h)\propto N(h;0,\Phi^{\ell-1}/\lambda_{\ell-1})\,e^{-\frac12\varphi^\top\hat\Phi^\ell\varphi},\quad
      \hat\Phi^L=-\tfrac{\gamma_0^2}{\lambda_L}vv^\top,\quad v=\left(\tfrac I\beta+\tfrac{\Phi^L}{\lambda_L}\right)^{-1}y,$$

    $$f(x)=\tfrac1{\lambda_L}\Phi^L(x)^\top v .$$

    Args:
        network: the architecture.
        richness: $\gamma_0\ge0$; 0 is lazy (`NNGPK`), larger learns more features.
        beta: inverse temperature $\beta>0$.
        decay: prior precision $\lambda$ of the weights, one number or one per weight layer ($L+1$).
        loss: "squared", "logistic" (targets ±1) or "softmax" (one-hot rows); then $v=\beta\Delta(s)$ with $s=\Phi^Lv/\lambda_L$, and $f=\sigma(s)$.
    """

    kind: ClassVar[str] = "ANBK"
    network: Network
    richness: float = 1.0
    beta: float = 50.0
    decay: Any = 1.0
    loss: str = "squared"

    def __post_init__(self) -> None:
        check_network(self.network)
        object.__setattr__(self, "richness", checks.nonnegative("richness", self.richness))
        object.__setattr__(self, "beta", checks.positive("beta", self.beta))
        object.__setattr__(self, "decay", frozen_decay(self.decay, self.network))
        losses.get(self.loss)

    def config(self) -> dict[str, Any]:
        return {"richness": self.richness, "beta": self.beta, "decay": self.decay, "loss": self.loss}

    def residual(self, X: np.ndarray, y: np.ndarray, answer: Answer) -> float:
        r"""The largest relative violation of the saddle equations, from the kernels, duals and coefficients alone; see `limits.audit`."""
        return self.audit(X, y, answer)[0]

    def audit(self, X: np.ndarray, y: np.ndarray, answer: Answer) -> tuple[float, dict[str, Any]]:
        """The residual, what it is made of, and the free energy."""
        if self.richness == 0.0:
            lazy = NNGPK(self.network, beta=self.beta, decay=self.decay)
            if self.loss == "squared":
                return lazy.residual(X, y, answer), {}
            s = answer.kernels[-1] @ answer.coefficients
            v = self.beta * np.asarray(losses.get(self.loss).error(jnp.asarray(y), jnp.asarray(s)))
            return relative(s - answer.kernels[-1] @ v / self.decays[-1], np.asarray(y)), {}
        assert answer.duals is not None
        if not answer.draws:
            return self._audit_linear(X, y, answer)
        points = inputs.distinct(X)
        root, _ = inputs.root(self.network, X[points.first], self.decays[0])
        for particles in _AUDITORS:
            found = audit(
                self.network.activation,
                self.decays,
                self.richness,
                self.beta,
                losses.get(self.loss),
                root,
                points,
                y,
                answer.kernels,
                answer.duals,
                answer.kernels[-1] @ answer.coefficients,
                answer.draws,
                particles=particles,
                sites=of(self.network, X.shape),
            )
            if max((value for values in found.noise.values() for value in values), default=0.0) < _NOISY:
                break
        report: dict[str, Any] = {
            "free_energy": found.free_energy if np.isfinite(found.free_energy) else None,
            "free_energy_error": found.free_energy_error if np.isfinite(found.free_energy_error) else None,
            "audit": {
                "doubt": found.doubt if np.isfinite(found.doubt) else None,
                "parts": found.parts,
                "noise": found.noise,
                "acceptance": found.acceptance,
                "stages": found.stages,
                "pulls": [pull if np.isfinite(pull) else None for pull in found.pulls],
            },
        }
        if found.status:
            report["audit"]["status"] = found.status
        if self.network.depth == 1:
            report |= self._certificate(y, answer, found, points)
        return found.residual, report

    def _certificate(self, y: np.ndarray, answer: Answer, found: Audit, points: inputs.Distinct) -> dict[str, Any]:
        r"""The gap at the law tilted by $v$, from the audit's own sample of it; infinite where there is no such law."""
        v = self.decays[-1] * np.asarray(answer.coefficients, np.float64)
        if found.pulls[0] >= 1 or np.isnan(found.pulls[0]):
            return {"certificate": float("inf")}
        if found.moments is None:
            return {}
        if self.loss == "softmax":  # what rounding adds to rows that add up to 0
            v = v - v.mean(axis=1, keepdims=True)
        with precision.scope("float64"):
            moments = found.moments[:, points.member][:, :, points.member]
            value, error = gap.jackknife(self._readout, np.asarray(y, np.float64), v, moments)
        return {"certificate": value, "certificate_error": error if np.isfinite(error) else None}

    @property
    def _readout(self) -> gap.Readout:
        return gap.Readout(losses.get(self.loss), self.richness, self.beta, self.decays[-1])

    def _audit_linear(self, X: np.ndarray, y: np.ndarray, answer: Answer) -> tuple[float, dict[str, Any]]:
        """Of an answer without neurons: every law is Gaussian."""
        assert answer.duals is not None
        rows = inputs.features(self.network, X)
        numbers = (self.decays, self.richness, self.beta, losses.get(self.loss))
        parts = linear_audit.audit(rows, *numbers, y, answer)
        values = [parts["readout"], parts["strengths"], parts["top_dual"], *parts["kernels"], *parts["duals"]]
        worst = max(value if np.isfinite(value) else np.inf for value in values)
        report: dict[str, Any] = {
            "audit": {"parts": parts, "doubt": worst if np.isfinite(worst) else None, "noise": {}}
        }
        if self.network.depth == 1:  # the law tilted by v is Gaussian too
            v = self.decays[-1] * np.asarray(answer.coefficients, np.float64)
            prior = rows @ rows.T / self.decays[0]
            tilt = np.eye(len(y)) - self.richness**2 / self.decays[-1] * prior @ v @ v.T
            kernel = np.linalg.solve(tilt, prior)
            value, rounding = gap.exact(self._readout, np.asarray(y, np.float64), v, kernel)
            # The coefficients are rounded, and what no linear network fits makes them large.
            report |= {"certificate": value, "certificate_error": rounding * float(np.finfo(answer.kernel.dtype).eps)}
        return worst, report
