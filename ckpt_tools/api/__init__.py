"""The commands as functions: each takes plain arguments and returns a report; nothing here prints."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckpt_tools.api.converting import Request, fix_keys
    from ckpt_tools.api.inspecting import inspect

_HOME = {"Request": "converting", "fix_keys": "converting", "inspect": "inspecting"}

__all__ = ["Request", "fix_keys", "inspect"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
