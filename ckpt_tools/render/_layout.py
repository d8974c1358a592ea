"""Lines for a terminal: wrapping, columns, and names that are never cut inside a part that matters."""

from __future__ import annotations

import os
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

GAP = 2
INDENT = "  "


def wrapped(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Text in lines of at most *width* where its words allow; no word is broken, so names and commands stay whole."""
    lines = textwrap.wrap(
        text,
        max(width, len(first) + 20),
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines or [first.rstrip()]


def together(names: Sequence[str]) -> str:
    """Names that differ in one part as one: ``layers.0.self_attn.{q,k,v}_proj.weight``; else a list."""
    if len(names) < 2:
        return "".join(names)
    start = os.path.commonprefix(list(names))
    start = start[: max(start.rfind("."), start.rfind("_")) + 1]
    tails = [n[len(start) :] for n in names]
    end = os.path.commonprefix([t[::-1] for t in tails])[::-1]
    cut = [i for i in (end.find("."), end.find("_")) if i >= 0]
    end = end[min(cut) :] if cut else ""
    middles = [t[: len(t) - len(end)] for t in tails]
    if not all(middles) or any("." in m for m in middles) or not start + end:
        return ", ".join(names)
    return f"{start}{{{','.join(middles)}}}{end}"


def columns(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Rows with their cells under one another, as lines; see :func:`row_lines`."""
    return [text for lines in row_lines(rows, width) for text in lines]


def row_lines(rows: Sequence[Sequence[str]], width: int) -> list[list[str]]:
    """The lines of each row, cells under one another.

    Where a row is too wide, its last cell goes to lines of its own below, indented; the other cells are never cut.
    """
    count = max((len(r) for r in rows), default=0)
    wide = [max((len(r[i]) for r in rows if i < len(r) - 1), default=0) for i in range(count)]
    out = []
    for row in rows:
        head = INDENT + "".join(cell.ljust(wide[i] + GAP) for i, cell in enumerate(row[:-1]))
        one = (head + row[-1]).rstrip()
        if len(one) <= width or len(row) < 2 or not row[-1]:
            out.append([one])
        else:
            below = INDENT + "    "
            out.append([head.rstrip(), *wrapped(row[-1], width, below, below)])
    return out
