"""The page of every code: what it checks, why it matters, an example, the fix, the references."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckpt_tools.checks.base import checks, emitted, names_of_codes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.container.codes import Code

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
        severity: What a finding has unless its circumstances say otherwise.
        sections: Heading -> text, in order.
    """

    code: str
    name: str
    severity: str
    title: str
    sections: tuple[tuple[str, str], ...]


def known_codes() -> tuple[str, ...]:
    """Every code, sorted."""
    return tuple(sorted({*names_of_codes(), *_pushes()}))


def _pushes() -> Mapping[str, Code]:
    from ckpt_tools.hub.codes import CODES

    return CODES


def page_of(code: str) -> Page | None:
    """The page of a code; ``None`` when there is no such code."""
    registered = checks().get(code)
    if registered is not None:
        title, sections = _parsed(registered.page)
        return Page(code, registered.name, registered.severity.value, title, sections)
    row = emitted().get(code) or _pushes().get(code)
    if row is None:
        return None
    texts = (row.checks, row.why, row.example, row.fix, "; ".join(row.references))
    named = tuple((heading, text) for (_, heading), text in zip(SECTIONS, texts, strict=True) if text)
    return Page(code, row.name, row.severity.value, row.title, named)


def _parsed(docstring: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    title, _, body = docstring.partition("\n")
    parts = re.split(r"^\s*(Checks|Why|Example|Fix|References): ", body, flags=re.MULTILINE)
    found = {parts[i]: " ".join(parts[i + 1].split()) for i in range(1, len(parts) - 1, 2)}
    return title.strip(), tuple((heading, found[key]) for key, heading in SECTIONS if key in found)
