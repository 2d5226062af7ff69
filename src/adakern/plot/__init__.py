r"""Pictures of solutions. Every function draws into an `Axes` or returns a `Figure`; none touches pyplot's global state. Colours are told apart by every eye."""

from adakern.plot.curves import alignment, trace
from adakern.plot.densities import density
from adakern.plot.kernels import kernel
from adakern.plot.portraits import losses, portrait
from adakern.plot.positions import between_positions, spatial
from adakern.plot.style import ADAPTIVE, LAZY, NEUTRAL, name
from adakern.readings import by_class, correlations

__all__ = [
    "ADAPTIVE",
    "LAZY",
    "NEUTRAL",
    "alignment",
    "between_positions",
    "by_class",
    "correlations",
    "density",
    "kernel",
    "losses",
    "name",
    "portrait",
    "spatial",
    "trace",
]
