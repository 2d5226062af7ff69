"""The limits: the problems that `solve` solves."""

from adakern.limits.anbk import ANBK
from adakern.limits.antk import ANTK
from adakern.limits.base import Answer, Limit
from adakern.limits.lazy import NNGP, NNGPK, NTK, LazyLimit

ALL = (NNGP, NNGPK, NTK, ANBK, ANTK)

__all__ = ["ALL", "ANBK", "ANTK", "NNGP", "NNGPK", "NTK", "Answer", "LazyLimit", "Limit"]
