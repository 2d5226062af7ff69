"""Data to learn from: bundled images of MNIST and CIFAR-10, the official full sets, and the user's own tables.

The bundled images are read only when a loader asks for them. `adakern/datasets/data/README.md` names their origin.
"""

from adakern.datasets._cifar10 import animate, cifar10
from adakern.datasets._mnist import mnist
from adakern.datasets.tables import load_table

__all__ = ["animate", "cifar10", "load_table", "mnist"]
