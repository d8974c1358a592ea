"""Vocabulary tables that trainers leave in a file beside the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckpt_tools.container.pickle import BARE
from ckpt_tools.errors import CkptError
from ckpt_tools.formats.tables import offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True)
class Beside:
    """Tables of a file beside the weights.

    Attributes:
        file: Its name.
        d2t: Offsets.
        t2d: The mask, as zeros and ones.
        damage: Why it can't be read, or ``None``.
    """

    file: str
    d2t: tuple[int, ...] | None = None
    t2d: tuple[int, ...] | None = None
    damage: str | None = None


def _pair(tables: Mapping[str, tuple[int, ...]]) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    return tables.get("d2t"), tables.get("t2d")


def _bare(tables: Mapping[str, tuple[int, ...]]) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """Model-Optimizer's offsets, pickled by themselves."""
    return tables.get(BARE), None


def _selected(tables: Mapping[str, tuple[int, ...]]) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """NeMo's absolute ids, in the order of the head's rows."""
    ids = tables.get("selected_token_ids")
    return (offsets(ids) if ids is not None else None), None


#: File -> how its tables become offsets and a mask: SpecForge's, EAGLE's, AngelSlim's, Model-Optimizer's and NeMo's.
SIDECARS: Mapping[
    str, Callable[[Mapping[str, tuple[int, ...]]], tuple[tuple[int, ...] | None, tuple[int, ...] | None]]
] = {
    "vocab_mapping.pt": _pair,
    "cache.pt": _pair,
    "vocab_mapping_cache.pt": _pair,
    "d2t.pt": _bare,
    "eagle_meta.pt": _selected,
}


def tables_beside(
    names: tuple[str, ...], read: Callable[[str], Mapping[str, tuple[int, ...]]]
) -> Beside | None:
    """The first file among the names that holds tables, else the first that can't be read.

    Args:
        names: Files beside the weights.
        read: Integer tensors of such a file, by name; raises :class:`~ckpt_tools.errors.CkptError` when it can't.
    """
    unread: Beside | None = None
    for name, meaning in SIDECARS.items():
        if name not in names:
            continue
        try:
            d2t, t2d = meaning(read(name))
        except CkptError as error:
            unread = unread or Beside(name, damage=error.message)
            continue
        if d2t is not None or t2d is not None:
            return Beside(name, d2t, t2d)
    return unread
