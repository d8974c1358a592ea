"""What all tests share: where the fixtures are, and terminal settings that don't depend on the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "fixtures"


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("CKPT_TARGETS", str(tmp_path_factory.getbasetemp() / "no-user-targets.json"))


@pytest.fixture
def fixtures() -> Path:
    """The folder of fixtures."""
    return FIXTURES
