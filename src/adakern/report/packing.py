"""Arrays as text, for a page: base64 of float32, and of 16 bits for each of a symmetric matrix's entries."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import numpy as np

from adakern.readings import correlations

_LEVELS = 65535


def floats(array: Any) -> str:
    """float32, row by row; what is not finite becomes NaN."""
    values = np.asarray(array, dtype=np.float64)
    with np.errstate(over="ignore"):
        narrow = np.where(np.isfinite(values), values, np.nan).astype("<f4")
    return base64.b64encode(np.ascontiguousarray(narrow).tobytes()).decode("ascii")


def kernel(matrix: np.ndarray) -> dict[str, Any]:
    """A kernel as correlations, whose upper triangle is stored in steps of (high - low)/65535, and its diagonal."""
    shown = correlations(matrix)
    upper = shown[np.triu_indices(len(shown))]
    low, high = float(upper.min()), float(upper.max())
    scale = _LEVELS / (high - low) if high > low else 0.0
    codes = np.rint((upper - low) * scale).astype("<u2")
    text = base64.b64encode(codes.tobytes()).decode("ascii")
    return {"low": low, "high": high, "codes": text, "diagonal": floats(np.diag(matrix))}


def script(data: Any) -> str:
    """JSON that may stand inside of a script element, whatever its strings hold."""
    text = json.dumps(plain(data), allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def plain(value: Any) -> Any:
    """The value in JSON's own types; numbers that are not finite become None."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
