"""What a load map leaves unfilled, as several families of checks ask it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckpt_tools.model import LoadMap


def starved(load: LoadMap) -> tuple[str, ...]:
    """Parameters that stay uninitialised, wholly or in part."""
    return tuple(n for n, f in load.parameters.items() if f.filled_by in ("nothing", "partly"))
