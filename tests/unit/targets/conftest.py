"""The user's own registry is never read or written by these tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def user_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config" / "targets.json"
    monkeypatch.setenv("CKPT_TARGETS", str(path))
    return path
