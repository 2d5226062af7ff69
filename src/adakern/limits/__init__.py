"""The limits: the problems that `solve` solves."""

from adakern.limits.anbk import ANBK
from adakern.limits.antk import ANTK
from adakern.limits.base import Answer, Limit
from adakern.limits.lazy import NNGP, NNGPK, NTK, LazyLimit
from adakern.limits.vga import VGA

ALL = (NNGP, NNGPK, NTK, ANBK, ANTK, VGA)

__all__ = ["ALL", "ANBK", "ANTK", "NNGP", "NNGPK", "NTK", "VGA", "Answer", "LazyLimit", "Limit"]
