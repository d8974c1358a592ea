"""The user's own registry file: where it is, and how an entry gets into it."""

from __future__ import annotations

import os
from pathlib import Path


def registry_path() -> Path:
    """``$CKPT_TARGETS``, else ``targets.json`` in ckpt's folder under the user's config directory."""
    stated = os.environ.get("CKPT_TARGETS")
    if stated:
        return Path(stated).expanduser()
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "ckpt" / "targets.json"
