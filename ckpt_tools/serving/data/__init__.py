"""Tables that the package ships: argument parsers, failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def load(name: str) -> Any:
    """A table by file name, parsed."""
    return json.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))
