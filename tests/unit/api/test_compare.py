"""Whether two tensors hold the same: every byte, or a glance at a few rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from ckpt_tools.api.compare import GLANCE, comparer, glancer
from ckpt_tools.api.subjects import open_draft

ROWS = 10 * GLANCE


def _pair(tmp_path: Path, row: int | None, shape: tuple[int, ...] = (ROWS, 4)) -> tuple[str, str]:
    table = np.arange(ROWS * 4, dtype=np.float32).reshape(ROWS, 4)
    other = np.zeros(shape, np.float32) if shape != table.shape else table.copy()
    if row is not None:
        other[row, 1] += 1
    for name, values in (("a", table), ("b", other)):
        (tmp_path / name).mkdir()
        save_file({"x": values}, tmp_path / name / "model.safetensors")
    return str(tmp_path / "a"), str(tmp_path / "b")


@pytest.mark.parametrize(
    ("row", "whole", "glance"),
    [
        (None, True, True),
        (0, False, False),
        (ROWS // 2, False, False),
        (ROWS - 1, False, False),
        (2 * GLANCE, False, True),  # between the places that are looked at
    ],
)
def test_a_glance_finds_what_differs_where_it_looks(
    tmp_path: Path, row: int | None, whole: bool, glance: bool
) -> None:
    a, b = (open_draft(path) for path in _pair(tmp_path, row))
    assert comparer(a, b)("x", "x") is whole
    assert glancer(a, b)("x", "x") is glance


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    a, b = (open_draft(path) for path in _pair(tmp_path, None, (ROWS // 2, 4)))
    for same in (comparer(a, b), glancer(a, b)):
        assert same("x", "x") is False
        assert same("x", "absent") is None
