"""Comparing tensors of two checkpoints byte by byte, in chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_tools.container.read import iter_tensor
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
