from __future__ import annotations

from tests.cli.conftest import served

__all__ = ["served"]
