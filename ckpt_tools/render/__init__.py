"""Outputs: one module each, found by looking; a renderer takes reports and returns text."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ckpt_tools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckpt_tools.model import Report


@dataclass(frozen=True)
class Style:
    """How much to show and how.

    Attributes:
        verbosity: -1 quiet, 0 usual, 1 with every detail.
        color: Terminal colours are wanted.
        width: Columns.
        many: Several PATHs were given: a list is printed even of one.
    """

    verbosity: int = 0
    color: bool = False
    width: int = 100
    many: bool = False


class Renderer(Protocol):
    """What a module of this package offers as ``render``."""

    def __call__(self, reports: Sequence[Report], style: Style) -> str: ...


def renderers() -> tuple[str, ...]:
    """Names for ``--format``, the table first."""
    names = sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))
    return ("table", *(n for n in names if n != "table"))


def render(name: str, reports: Sequence[Report], style: Style) -> str:
    """Text of the reports.

    Raises:
        UsageError: No such format.
    """
    if name not in renderers():
        raise UsageError(f"--format {name}: no such format", f"formats: {', '.join(renderers())}")
    function: Renderer = importlib.import_module(f"{__name__}.{name}").render
    return function(reports, style)
