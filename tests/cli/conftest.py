"""Drafts that the tests of commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.server import RAW, TARGET, ckpt

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained draft, in the form that SGLang serves."""
    out = tmp_path_factory.mktemp("served") / "draft"
    done = ckpt("fix-keys", RAW, out, "--target", TARGET)
    assert done.exit_code == 0, done.output
    return out
