"""Training over time of the infinitely wide network."""

from adakern.trajectories.running import dynamics
from adakern.trajectories.trajectory import Trajectory, load

__all__ = ["Trajectory", "dynamics", "load"]
