"""Known failures and telling lines: ``serving/data/failures.json``.

A row's pattern is matched against an exception as the engine raised it (``Type: message``, with the lines
that follow it) or against a fatal line, never against arguments, prompts or tracebacks that were handled.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from ckpt_tools.serving.data import load


@dataclass(frozen=True)
class Failure:
    """One way in which a server dies.

    Attributes:
        id: Short and stable; what ``cause`` holds.
        pattern: Searched in the exception or fatal line.
        remedy: What to do; ``{stage}`` and ``{order}`` stand for what was under way when memory ran out.
        reference: Where the engine raises it.
        rank: 0 names the cause itself; 1 is general and gives way to a rank 0 in the same start; 2 follows
            from another failure and decides only when nothing else is there.
    """

    id: str
    pattern: re.Pattern[str]
    remedy: str
    reference: str
    rank: Literal[0, 1, 2]


@dataclass(frozen=True)
class OutOfMemory:
    """Where memory ran out, and what then helps.

    The draft is loaded after the target (and, in older SGLang, after the target's pool), so a fraction that
    suits the target alone leaves nothing for it.
    """

    stage: str
    during: str
    remedy: str


@dataclass(frozen=True)
class NoteRow:
    """A line that is no failure and yet means something; found by ``needle`` in a message."""

    id: str
    needle: str
    severity: Literal["warning", "info"]
    meaning: str


_DATA = load("failures.json")
FAILURES: tuple[Failure, ...] = tuple(
    Failure(row["id"], re.compile(row["pattern"], re.I), row["remedy"], row["reference"], row["rank"])
    for row in _DATA["failures"]
)
OUT_OF_MEMORY: dict[str, OutOfMemory] = {row["stage"]: OutOfMemory(**row) for row in _DATA["out_of_memory"]}
NOTES: tuple[NoteRow, ...] = tuple(NoteRow(**row) for row in _DATA["notes"])


def classify(text: str) -> Failure | None:
    """The row that explains an exception or a fatal line: the best rank, then the table's order."""
    best: Failure | None = None
    for row in FAILURES:
        if (best is None or row.rank < best.rank) and row.pattern.search(text):
            best = row
    return best


def remedy_for(row: Failure, stage: str) -> str:
    """The remedy with the stage at which memory ran out filled in."""
    where = OUT_OF_MEMORY[stage]
    return row.remedy.format(stage=where.during, order=where.remedy)
