r"""Gradient flow with weight decay: the aNTK against closed forms, wide networks, its own certificate, the aNBK at low temperature, and other ways of finding it.

A case is a handful of settings; a setting, run, gives rows (`flow_rows.Row`).
"""

from __future__ import annotations

from adakern.benchmarks import flow_known, flow_networks, flow_solver
from adakern.benchmarks.flow_rows import Case

CASES: dict[str, Case] = {
    "one-point": Case(
        "One point, x = y = 1, decay 1: everything dies up to richness 1; above, Δ = 1/richness and ⟨φ²⟩ = richness − 1. Laplace-distributed weights end in the same place with another law: excess kurtosis 3/2, that of the sum of two.",
        flow_known.one_point_settings(),
    ),
    "clarke": Case(
        "ReLU, MNIST 0/1, P = 50, richness 1: outputs from the gradient kernels, KΔ/κ, against the outputs. At a kink (fields below 1e-3 of a neuron's largest) the slope is the subgradient that stationarity asks for; "
        "1[h > 0] of whatever sign the field has there is shown beside.",
        flow_known.clarke_settings(),
    ),
    "networks": Case(
        "Networks trained by `ak.finite.gradient_flow`, MNIST 0/1, P = 50, and CIFAR-10 airplane/automobile in grey, P = 300: kernels' alignment layer by layer, the value that the flow lowers, outputs and test outputs. "
        "Outputs are held against the differences among the networks, or 1e-3. With one hidden layer of ReLU the note says what the network's own value leaves it, |f − f*|² ≤ 2 (p − p*), as the problem is convex.",
        flow_networks.network_settings(),
    ),
    "certificate": Case(
        f"The duality gap, ReLU, one hidden layer, richness 1; and seconds, without compilation, of {flow_solver.flow_plain.NEURONS} neurons under plain gradient flow to the same gap (or {flow_solver.FINEST:g}), in the best of three fixed steps: the largest is what is stable, smaller ones chatter less at kinks. "
        "The seconds of that step alone count; where there is a GPU it takes the steps, and their number times the processor's seconds for one counts. On the way its gap is looked at with a small search; where that says it has arrived, with the certificate's own.",
        flow_solver.certificate_settings(),
    ),
    "zero-temperature": Case(
        "The aNBK with beta = b and decay b·λ, MNIST 0/1, P = 20, richness 1, against the aNTK with decay λ; errors are those of the aNBK. The difference falls as 1/b.",
        flow_known.cold_settings(),
    ),
    "dynamics": Case(
        "`dynamics` against centred networks, MNIST 0/1, P = 50: losses at twelve times, both with standard errors over independent replicas.",
        flow_networks.dynamics_settings(),
    ),
    "speed": Case(
        f"Seconds on one machine, without compilation, MNIST 0/1, P = 50, richness 1, against a network of width {flow_solver.WIDTH} that is trained until kernels and outputs move by less than {flow_solver.MOTION:g} in a time of 1/decay.",
        flow_solver.speed_settings(),
    ),
    "starts": Case(
        "Does the flow end in the same place from every start? Four seeds, MNIST 0/1, P = 20, richness 1.",
        flow_solver.starts_settings(),
    ),
    "range": Case(
        "MNIST 0/1, every option of the solver at its default. Where it does not converge it says what to change.",
        flow_solver.range_settings(),
    ),
}
