r"""Gradient flow with weight decay: the aNTK against closed forms, wide networks, its own certificate, the aNBK at low temperature, and other ways of finding it.

A case is a handful of settings; a setting, run, gives rows (`flow_rows.Row`).
"""

from __future__ import annotations

from adakern.benchmarks import flow_networks
from adakern.benchmarks.flow_rows import Case

CASES: dict[str, Case] = {
    "networks": Case(
        "Networks trained by `ak.finite.gradient_flow`, MNIST 0/1, P = 50, and CIFAR-10 airplane/automobile in grey, P = 300: kernels' alignment layer by layer, outputs and test outputs.",
        flow_networks.network_settings(),
    ),
    "dynamics": Case(
        "`ak.dynamics` against centred networks, MNIST 0/1, P = 50: losses at twelve times, both with standard errors.",
        flow_networks.dynamics_settings(),
    ),
}
