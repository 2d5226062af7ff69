"""Perturbation theory in the richness squared."""

from adakern.perturbing.theory import Perturbation, perturbation

__all__ = ["Perturbation", "perturbation"]
