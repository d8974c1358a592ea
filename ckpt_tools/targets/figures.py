"""Published accepted lengths of public drafters, each with its source: what to hold a measurement against."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@functools.cache
def figures() -> tuple[Mapping[str, Any], ...]:
    """Rows of ``target``, ``draft``, ``algorithm``, ``benchmark``, ``setting``, ``batch``, ``accept_length``, ``speedup``, ``source``.

    A figure that its source doesn't state is ``None``.
    """
    text = (Path(__file__).parent / "data" / "figures.json").read_text("utf-8")
    return tuple(json.loads(text))
