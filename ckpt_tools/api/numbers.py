"""Measured numbers as JSON can state them."""

from __future__ import annotations

import math
from typing import Any


def stated(value: Any) -> Any:
    """The same with every number that isn't finite as ``None``: JSON has no word for NaN and infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: stated(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [stated(inner) for inner in value]
    return value
