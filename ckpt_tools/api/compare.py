"""Comparing tensors of two checkpoints byte by byte, in chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_tools.container.read import iter_tensor, read_rows
from ckpt_tools.errors import CkptError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckpt_tools.api.subjects import Opened


def comparer(draft: Opened, target: Opened | None) -> Callable[[str, str], bool | None]:
    """A function (draft tensor, target tensor) -> equal, or ``None`` when they can't be compared."""

    def same(mine: str, theirs: str) -> bool | None:
        if target is None:
            return None
        a, b = draft.checkpoint.tensors.get(mine), target.checkpoint.tensors.get(theirs)
        if a is None or b is None or a.dtype != b.dtype:
            return None
        if a.shape != b.shape:
            return False
        try:
            pairs = zip(
                iter_tensor(draft.checkpoint, mine, draft.source),
                iter_tensor(target.checkpoint, theirs, target.source),
                strict=True,
            )
            return all(x == y for x, y in pairs)
        except CkptError:
            return None

    return same


#: Rows that :func:`glancer` compares at each of three places.
GLANCE = 8


def glancer(draft: Opened, target: Opened) -> Callable[[str, str], bool | None]:
    """As :func:`comparer`, by a few rows at the beginning, the middle and the end: ``False`` is certain, ``True`` is likely."""

    def same(mine: str, theirs: str) -> bool | None:
        a, b = draft.checkpoint.tensors.get(mine), target.checkpoint.tensors.get(theirs)
        if a is None or b is None or a.dtype != b.dtype:
            return None
        if a.shape != b.shape:
            return False
        rows = a.shape[0] if a.shape else 0
        try:
            return all(
                read_rows(draft.checkpoint, mine, at, min(rows, at + GLANCE), draft.source)
                == read_rows(target.checkpoint, theirs, at, min(rows, at + GLANCE), target.source)
                for at in {0, rows // 2, max(0, rows - GLANCE)}
            )
        except CkptError:
            return None

    return same
