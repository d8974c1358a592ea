"""``ckpt explain``: the page of a code."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

from ckpt_tools.checks.base import checks, emitted, names_of_codes
from ckpt_tools.errors import UsageError

SECTIONS = (
    ("Checks", "What it checks"),
    ("Why", "Why it breaks serving"),
    ("Example", "Example"),
    ("Fix", "How to fix"),
    ("References", "References"),
)


@dataclass(frozen=True)
class Page:
    """A code's page.

    Attributes:
        sections: Heading -> text, in order.
    """

    code: str
    name: str
    severity: str
    title: str
    sections: tuple[tuple[str, str], ...]


def pages() -> dict[str, Page]:
    """Every code's page, by code."""
    return {code: page(code) for code in known_codes()}


def known_codes() -> tuple[str, ...]:
    """Every code, sorted."""
    return tuple(sorted({*names_of_codes(), *_hub()}))


def _hub() -> dict[str, tuple[str, str]]:
    from ckpt_tools.hub.codes import CODES

    return {code: (row.name, row.severity.value) for code, row in CODES.items()}


def page(code: str) -> Page:
    """The page of a code.

    Raises:
        UsageError: No such code.
    """
    registered = checks().get(code)
    if registered is not None:
        title, sections = _parsed(registered.page)
        return Page(code, registered.name, registered.severity.value, title, sections)
    row = emitted().get(code)
    if row is None:
        from ckpt_tools.hub.codes import CODES

        row = CODES.get(code)
    if row is None:
        import difflib

        near = difflib.get_close_matches(code, known_codes(), 3)
        raise UsageError(
            f"{code}: no such code",
            f"did you mean {', '.join(near)}? `ckpt explain` lists them"
            if near
            else "`ckpt explain` lists them",
        )
    sections = (
        ("What it checks", row.checks),
        ("Why it breaks serving", row.why),
        ("Example", row.example),
        ("How to fix", row.fix),
        ("References", "; ".join(row.references)),
    )
    return Page(code, row.name, row.severity.value, row.title, tuple(s for s in sections if s[1]))


def _parsed(docstring: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    title, _, body = docstring.partition("\n")
    parts = re.split(r"^\s*(Checks|Why|Example|Fix|References): ", body, flags=re.MULTILINE)
    found = {parts[i]: " ".join(parts[i + 1].split()) for i in range(1, len(parts) - 1, 2)}
    return title.strip(), tuple((heading, found[key]) for key, heading in SECTIONS if key in found)


def explain(code: str, width: int = 100) -> str:
    """A page as text for a terminal."""
    shown = page(code.upper())
    lines = [f"{shown.code}  {shown.name}  ({shown.severity})", shown.title, ""]
    for heading, body in shown.sections:
        lines += [heading, textwrap.fill(body, width, initial_indent="  ", subsequent_indent="  "), ""]
    return "\n".join(lines).rstrip()


def list_codes() -> str:
    """All codes, a line each."""
    rows = [page(code) for code in known_codes()]
    wide = max(len(r.name) for r in rows)
    return "\n".join(f"{r.code}  {r.severity:<7}  {r.name:<{wide}}  {r.title}" for r in rows)
