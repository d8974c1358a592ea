from __future__ import annotations

from tests.hubserver.fixture import hub

__all__ = ["hub"]
