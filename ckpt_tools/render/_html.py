"""Building HTML in which no text can become markup: whatever isn't :class:`Html` is escaped."""

from __future__ import annotations

import html
import re

from ckpt_tools.render._text import visible

_VOID = frozenset({"meta", "link", "br", "wbr"})


class Html(str):
    """Markup that is safe to put into a page as it is."""

    __slots__ = ()


def text(value: str) -> Html:
    """Text as markup."""
    return value if isinstance(value, Html) else Html(html.escape(visible(value), quote=True))


def name(value: str) -> Html:
    """A tensor's name or a path as code, which may break after its dots and slashes only."""
    parts = re.split(r"(?<=[./])", visible(value))
    return el("code", Html("<wbr>".join(html.escape(p, quote=True) for p in parts)))


def join(*parts: str | None) -> Html:
    """Parts one after another; ``None`` is left out."""
    return Html("".join(text(p) for p in parts if p is not None))


def el(
    name: str, /, *children: str | None, cls: str | None = None, **attributes: str | float | bool | None
) -> Html:
    """An element.

    Args:
        name: Tag.
        children: Text, which is escaped, or markup.
        cls: The ``class`` attribute.
        attributes: ``_`` in a name stands for ``-``; ``None`` and ``False`` are left out, ``True`` has no value.
    """
    given = {"class": cls, **{k.replace("_", "-"): v for k, v in attributes.items()}}
    shown = "".join(
        f" {k}" if v is True else f' {k}="{text(_number(v))}"'
        for k, v in given.items()
        if v is not None and v is not False
    )
    if name in _VOID:
        return Html(f"<{name}{shown}>")
    return Html(f"<{name}{shown}>{join(*children)}</{name}>")


def _number(value: str | float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
