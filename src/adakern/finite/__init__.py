"""Networks of finite width, the ground truth: Langevin sampling and gradient flow.

They share the network description, activations and losses with the theory, and nothing of its solvers: agreement is independent evidence.
"""

from adakern.finite.flow import gradient_flow
from adakern.finite.langevin import langevin
from adakern.finite.run import Run, Settings
from adakern.finite.storing import load

__all__ = ["Run", "Settings", "gradient_flow", "langevin", "load"]
