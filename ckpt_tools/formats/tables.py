"""d2t and t2d: the vocabulary tables, derived from one another and checked against each other.

``d2t`` holds offsets: the target id of draft row i is ``i + d2t[i]`` (SGLang 0.5.23 models/llama_eagle3.py:350-353,
vLLM 0.33.0 model_executor/models/llama_eagle3.py:385-394, speculators 0.9.0 train/vocab_mapping.py:98-101). ``t2d`` is a
mask over the target's vocabulary. Writers that use the mask keep the rows in ascending order of target id.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class TableProblem:
    """One thing that is wrong with the tables.

    Attributes:
        kind: ``absolute``, ``range``, ``duplicate``, ``length``, ``mask`` or ``order``.
        message: What was found and expected.
    """

    kind: str
    message: str


def target_ids(d2t: tuple[int, ...]) -> tuple[int, ...]:
    """Target id of every draft row."""
    return tuple(i + offset for i, offset in enumerate(d2t))


def offsets(ids: tuple[int, ...]) -> tuple[int, ...]:
    """The d2t table of a list of target ids."""
    return tuple(t - i for i, t in enumerate(ids))


def d2t_from_mask(t2d: tuple[int, ...]) -> tuple[int, ...]:
    """Offsets of the ids that a mask selects, in ascending order."""
    return offsets(tuple(i for i, on in enumerate(t2d) if on))


def mask_from_d2t(d2t: tuple[int, ...], vocab_size: int) -> bytes:
    """The mask, one byte per target id. Raises ``IndexError`` for an id outside the vocabulary."""
    mask = bytearray(vocab_size)
    for t in target_ids(d2t):
        if t < 0:
            raise IndexError(t)
        mask[t] = 1
    return bytes(mask)


def is_ascending(d2t: tuple[int, ...]) -> bool:
    """Whether the target ids ascend strictly, as a mask implies."""
    ids = target_ids(d2t)
    return all(a < b for a, b in pairwise(ids))


def is_identity(d2t: tuple[int, ...]) -> bool:
    """Whether every draft row is the target id of the same number."""
    return not any(d2t)


def looks_absolute(d2t: tuple[int, ...], vocab_size: int | None, t2d: tuple[int, ...] | None) -> bool:
    """Whether the table holds target ids where offsets belong.

    Certain when the mask selects exactly the stored values, or when they ascend strictly as ids do and, read as
    offsets, would leave the vocabulary. An offset table of a sorted map never ascends strictly at every step
    unless every other id is skipped.
    """
    if len(d2t) < 2 or is_identity(d2t):
        return False
    if t2d is not None and tuple(i for i, on in enumerate(t2d) if on) == d2t:
        return target_ids(d2t) != d2t
    strictly = all(a < b for a, b in pairwise(d2t))
    top = d2t[-1] + len(d2t) - 1
    return strictly and d2t[0] >= 0 and vocab_size is not None and top >= vocab_size > d2t[-1]


def problems(
    d2t: tuple[int, ...], vocab_size: int | None, draft_vocab_size: int | None, t2d: tuple[int, ...] | None
) -> tuple[TableProblem, ...]:
    """What is wrong with the tables; the first cause only where one explains the next."""
    found: list[TableProblem] = []
    if draft_vocab_size is not None and len(d2t) != draft_vocab_size:
        found.append(
            TableProblem("length", f"d2t has {len(d2t)} rows, the draft's vocabulary has {draft_vocab_size}")
        )
    if looks_absolute(d2t, vocab_size, t2d):
        found.append(
            TableProblem(
                "absolute",
                f"d2t holds absolute target ids ({d2t[0]}, {d2t[1]}, … {d2t[-1]}) where offsets belong: engines add the "
                f"row number, so row {len(d2t) - 1} would mean target id {d2t[-1] + len(d2t) - 1}",
            )
        )
        return tuple(found)
    ids = target_ids(d2t)
    if ids and (min(ids) < 0 or (vocab_size is not None and max(ids) >= vocab_size)):
        row, worst = next(
            (i, t) for i, t in enumerate(ids) if t < 0 or (vocab_size is not None and t >= vocab_size)
        )
        found.append(
            TableProblem("range", f"d2t[{row}] maps to target id {worst}, outside 0..{(vocab_size or 0) - 1}")
        )
    if len(set(ids)) != len(ids):
        seen: set[int] = set()
        twice = next(t for t in ids if t in seen or seen.add(t))  # type: ignore[func-returns-value]
        found.append(
            TableProblem(
                "duplicate",
                f"{len(ids) - len(set(ids))} rows of d2t map to a target id already taken (such as {twice})",
            )
        )
    if t2d is not None:
        if vocab_size is not None and len(t2d) != vocab_size:
            found.append(
                TableProblem("mask", f"t2d has {len(t2d)} rows, the target's vocabulary has {vocab_size}")
            )
        elif sum(map(bool, t2d)) != len(set(ids)):
            found.append(
                TableProblem(
                    "mask", f"t2d selects {sum(map(bool, t2d))} target ids, d2t maps to {len(set(ids))}"
                )
            )
        elif {i for i, on in enumerate(t2d) if on} != set(ids):
            found.append(TableProblem("mask", "t2d and d2t select different target ids"))
    return tuple(found)


def int64_bytes(values: tuple[int, ...]) -> bytes:
    """Little-endian int64 bytes of a table."""
    import sys

    table = array("q", values)
    if sys.byteorder == "big":
        table.byteswap()
    return table.tobytes()
