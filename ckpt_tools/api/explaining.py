"""``ckpt explain``: the page of a code."""

from __future__ import annotations

import difflib
import textwrap

from ckpt_tools.errors import UsageError
from ckpt_tools.render._pages import Page, known_codes, page_of

__all__ = ["Page", "explain", "known_codes", "list_codes", "page", "pages"]


def pages() -> dict[str, Page]:
    """Every code's page, by code."""
    return {code: page(code) for code in known_codes()}


def page(code: str) -> Page:
    """The page of a code.

    Raises:
        UsageError: No such code.
    """
    found = page_of(code)
    if found is not None:
        return found
    near = difflib.get_close_matches(code, known_codes(), 3)
    raise UsageError(
        f"{code}: no such code",
        f"did you mean {', '.join(near)}? `ckpt explain` lists them" if near else "`ckpt explain` lists them",
    )


def unknown_code(code: str) -> str | None:
    """What to say of a code or family prefix that no code begins with; ``None`` for one that is known."""
    if any(known.startswith(code.upper()) for known in known_codes()):
        return None
    near = difflib.get_close_matches(code.upper(), [*known_codes(), *{c[:3] for c in known_codes()}], 3)
    return f"{code}: no code begins so" + (f"; did you mean {', '.join(near)}?" if near else "")


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
