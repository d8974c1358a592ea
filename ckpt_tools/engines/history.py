"""What changed at which release of an engine, as data: facts with the file and line that show them.

Every SGLang release from 0.4.6 to 0.5.23 was read, so a SGLang fact's first release is exact. Of vLLM only
some releases were read: a fact's first release is an upper bound, and between the newest release known to
lack it and the first known to have it the answer is ``None``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckpt_tools.engines.versions import nearest, parse
from ckpt_tools.model import EMPTY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from packaging.version import Version

    from ckpt_tools.model import Engine


@dataclass(frozen=True)
class Fact:
    """One thing that is so in a range of an engine's releases.

    Attributes:
        id: Its name, e.g. ``eagle3.names.layers0``; unique over all engines.
        engine: ``sglang`` or ``vllm``.
        first: The first release that has it; ``None`` when none has.
        last: The last release that has it; ``None`` when the newest one read still does.
        exact: Whether the release just before *first* was read and lacks it.
        not_in: The newest release known to lack it.
        evidence: Release -> file:line, below ``sglang/srt/`` or ``vllm/``.
        note: What it means and what happens without it.
        confidence: As the reader of the releases judged it.
        extra: Severity, the flag's own spelling, a release that others report.
    """

    id: str
    engine: str
    first: str | None
    last: str | None
    exact: bool
    not_in: str | None
    evidence: Mapping[str, str]
    note: str
    confidence: str
    extra: Mapping[str, Any] = field(default_factory=lambda: EMPTY)


def facts(engine: str | None = None) -> tuple[Fact, ...]:
    """All facts, or those of one engine (``sglang-ext`` is SGLang)."""
    every = tuple(_history().facts.values())
    return every if engine is None else tuple(fact for fact in every if fact.engine == family(engine))


def fact(fact_id: str) -> Fact:
    """The fact of that id (a KeyError is a programming error)."""
    return _history().facts[fact_id]


def holds(fact_id: str, engine: Engine) -> bool | None:
    """Whether the fact is so at *engine*'s version; ``None`` when the releases read don't decide it.

    A version newer than the newest release read is answered as that one.
    """
    found = fact(fact_id)
    if found.engine != family(engine.name):
        return None
    if found.first is None:
        return False
    releases = _history().releases[found.engine]
    version = min(parse(engine.version), parse(releases[-1]))
    if version < parse(found.first):
        if found.first == releases[0]:
            return None  # older than everything read
        known_without = found.not_in is not None and version <= parse(found.not_in)
        return False if found.exact or known_without else None
    if found.last is None or version <= parse(found.last):
        return True
    return False if version >= _after(found.last, releases) else None


def first_release(fact_id: str) -> str | None:
    """The first release known to have it; ``None`` when no release has."""
    return fact(fact_id).first


def reference(fact_id: str, engine: Engine) -> str:
    """Where the fact is seen: engine, release and file:line, of the release nearest to *engine*'s."""
    found = fact(fact_id)
    if not found.evidence:
        return f"{found.engine}: {found.note}"
    releases = sorted(found.evidence, key=lambda release: parse(release.split()[0]))
    older = [r for r in releases if parse(r.split()[0]) <= parse(engine.version)]
    release = older[-1] if older else releases[0]
    return f"{found.engine} {release} {found.evidence[release]}"


def releases_read(engine: str) -> tuple[str, ...]:
    """The releases of *engine* that were read, oldest first; none for an engine without a history."""
    return _history().releases.get(family(engine), ())


def release_date(engine: Engine) -> str | None:
    """The date (YYYY-MM-DD) on the files of *engine*'s release, when it was read."""
    return _history().dates.get(family(engine.name), EMPTY).get(engine.version)


def transformers_pin(engine: Engine) -> str | None:
    """The transformers version that *engine*'s release pins, from the nearest release that was looked at."""
    pins = _history().transformers.get(family(engine.name), {})
    ordered = tuple(sorted(pins, key=parse))
    return pins[nearest(ordered, engine.version)] if ordered else None


def family(engine: str) -> str:
    """The engine whose releases and targets count: ``sglang-ext`` is SGLang with classes added."""
    return engine.removesuffix("-ext")


@dataclass(frozen=True)
class _History:
    facts: Mapping[str, Fact]
    releases: Mapping[str, tuple[str, ...]]
    dates: Mapping[str, Mapping[str, str]]
    transformers: Mapping[str, Mapping[str, str]]


def _after(last: str, releases: tuple[str, ...]) -> Version:
    """The first release read after *last*; facts that end do so at a release that was read."""
    return next(parse(release) for release in releases if parse(release) > parse(last))


@lru_cache(maxsize=1)
def _history() -> _History:
    data = json.loads((Path(__file__).parent / "data" / "history.json").read_text("utf-8"))
    plain = ("id", "engine", "first", "last", "exact", "not_in", "evidence", "note", "confidence")
    found = {
        row["id"]: Fact(
            **{key: row[key] for key in plain},
            extra={key: value for key, value in row.items() if key not in plain},
        )
        for row in data["facts"]
    }
    releases = {engine: tuple(read) for engine, read in data["releases"].items()}
    return _History(found, releases, data["dates"], data["transformers"])
