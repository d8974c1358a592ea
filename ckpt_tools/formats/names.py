"""Rows that map a format's tensor names to the canonical ones and back.

A pattern is a tensor name with placeholders: ``{i}`` any layer index, ``{n}`` a layer index from 1 up,
``{j}`` any index, ``**`` the rest of the name. Rows are ordered; the first one that fits wins, in both
directions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_PLACEHOLDER = re.compile(r"\{([inj])\}|\*\*")
_REGEX = {"i": r"(\d+)", "n": r"([1-9]\d*)", "j": r"(\d+)"}


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    out, last = [], 0
    for m in _PLACEHOLDER.finditer(pattern):
        out += [re.escape(pattern[last : m.start()]), _REGEX[m.group(1)] if m.group(1) else r"(.+)"]
        last = m.end()
    return re.compile("".join(out) + re.escape(pattern[last:]) + r"\Z")


@cache
def literal_part(pattern: str) -> str:
    """What a pattern begins with, up to its first placeholder."""
    found = _PLACEHOLDER.search(pattern)
    return pattern if found is None else pattern[: found.start()]


def fits(pattern: str, name: str) -> bool:
    """Whether a tensor name fits a pattern."""
    return _compiled(pattern).match(name) is not None


def any_fits(pattern: str, names: Iterable[str]) -> bool:
    """Whether one of many tensor names fits a pattern."""
    return any(map(_compiled(pattern).match, names))


def _translate(source: str, target: str, name: str) -> str | None:
    m = _compiled(source).match(name)
    if m is None:
        return None
    groups = iter(m.groups())
    return _PLACEHOLDER.sub(lambda _: next(groups), target)


@dataclass(frozen=True)
class Row:
    """One rule of naming.

    Attributes:
        native: Pattern of the format's name.
        canonical: Pattern of the canonical name.
        read_only: The format's readers take this spelling; ckpt doesn't write it.
        also: Further names under which the same data is written (one source, two names).
    """

    native: str
    canonical: str
    read_only: bool = False
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mapped:
    """What :meth:`NameMap.read` made of a set of native names."""

    tensors: Mapping[str, str]  # canonical -> native
    twins: Mapping[str, str]  # native -> the canonical name that another native name already fills
    unknown: tuple[str, ...]


@dataclass(frozen=True)
class NameMap:
    """A format's naming for one algorithm.

    Attributes:
        rows: In order of precedence.
        vocabulary: Patterns of the canonical names that the algorithm has; a name that maps to anything
            else is unknown.
    """

    rows: tuple[Row, ...]
    vocabulary: tuple[str, ...]

    def canonical(self, native: str) -> str | None:
        """Canonical name of a native one; ``None`` if the format has no such tensor."""
        return next((hit[1] for hit in self._readings(native)), None)

    def _readings(self, native: str) -> Iterable[tuple[int, str]]:
        for rank, row in enumerate(self.rows):
            name = _translate(row.native, row.canonical, native)
            if name is not None and any(fits(v, name) for v in self.vocabulary):
                yield rank, name
                return

    def read(self, natives: Iterable[str]) -> Mapped:
        """Map all names of a checkpoint; of two names for one canonical tensor the higher row wins."""
        best: dict[str, tuple[int, str]] = {}
        twins: dict[str, str] = {}
        unknown: list[str] = []
        for native in natives:
            hit = next(iter(self._readings(native)), None)
            if hit is None:
                unknown.append(native)
                continue
            rank, name = hit
            if name not in best:
                best[name] = (rank, native)
            elif rank < best[name][0]:
                twins[best[name][1]] = name
                best[name] = (rank, native)
            else:
                twins[native] = name
        return Mapped({name: native for name, (_, native) in best.items()}, twins, tuple(unknown))

    def natives(self, canonical: str) -> tuple[str, ...]:
        """Names under which a canonical tensor is written: the first, then the copies; empty if it has none."""
        for row in self.rows:
            if row.read_only:
                continue
            name = _translate(row.canonical, row.native, canonical)
            if name is not None:
                copies = (_translate(row.canonical, extra, canonical) for extra in row.also)
                return (name, *(c for c in copies if c is not None))
        return ()
