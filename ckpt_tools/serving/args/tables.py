"""The engines' real argument tables, release by release: what `add_cli_args` of each builds.

Recorded by running the engines' own parsers (``fixtures/args``). A release between two tables is answered by
the older; :func:`known_in` and the engines' history say what is uncertain there.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from ckpt_tools.engines.history import family
from ckpt_tools.engines.versions import nearest, parse
from ckpt_tools.serving.data import load

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["store", "flag", "append"]


@dataclass(frozen=True)
class Option:
    """One row of a parser.

    Attributes:
        flags: All spellings, the first is the one that help shows.
        dest: Field of the parsed arguments.
        kind: ``store`` takes values, ``flag`` none.
        nargs: As argparse: ``None`` for one value, ``?``, ``*``, ``+``, or a number.
        type: ``int``, ``float``, ``json``, ``str``, or vLLM's ``human_int`` (``32k``) and ``human_int_or_auto``.
        choices: Allowed values, or ``None``.
    """

    flags: tuple[str, ...]
    dest: str
    kind: Kind = "store"
    nargs: str | int | None = None
    type: str = "str"
    choices: tuple[str, ...] | None = None
    default: Any = None
    required: bool = False
    deprecated: bool = False

    @property
    def name(self) -> str:
        """The spelling that help shows."""
        return next((flag for flag in self.flags if flag.startswith("--")), self.flags[0])


@dataclass(frozen=True)
class Lookup:
    """What a parser makes of a flag.

    Attributes:
        option: The row, ``None`` when there is none or several fit.
        abbreviated: The flag is a prefix of the row's, which argparse takes.
        candidates: The flags that fit when it is ambiguous.
    """

    option: Option | None
    abbreviated: bool = False
    candidates: tuple[str, ...] = ()


@dataclass(frozen=True)
class ArgTable:
    """A release's options by flag."""

    engine: str
    version: str
    options: Mapping[str, Option]

    def lookup(self, flag: str) -> Lookup:
        """As argparse resolves: exact, else the only flag that begins so.

        vLLM's parser takes underscores for dashes, and ``-O3``; SGLang's doesn't.
        """
        if self.engine == "vllm" and flag.startswith("--"):
            flag = flag.replace("_", "-")
        if flag in self.options:
            return Lookup(self.options[flag])
        if not flag.startswith("--"):
            return Lookup(None)
        fitting = sorted(name for name in self.options if name.startswith(flag))
        if len(fitting) == 1:
            return Lookup(self.options[fitting[0]], abbreviated=True)
        return Lookup(None, candidates=tuple(fitting))

    def closest(self, flag: str) -> str | None:
        """The known flag that looks most like an unknown one."""
        near = difflib.get_close_matches(flag, self.options, n=1, cutoff=0.75)
        return near[0] if near else None


@lru_cache(maxsize=32)
def table(engine: str, version: str | None = None) -> ArgTable:
    """The argument table of a release, or of the nearest older one; the newest without *version*.

    Args:
        engine: ``sglang``, ``sglang-ext`` or ``vllm``.

    Raises:
        KeyError: There is no table for this engine.
    """
    name = family(engine)
    data = _data(name)
    versions = tuple(data["versions"])
    wanted = nearest(versions, version) if version else versions[-1]
    index = versions.index(wanted)
    options: dict[str, Option] = {}
    for row in data["rows"]:
        if index in row["in"]:
            option = _option(row)
            options.update(dict.fromkeys(option.flags, option))
    return ArgTable(name, wanted, options)


def has_table(engine: str) -> bool:
    """Whether this engine's arguments are known."""
    return family(engine) in ("sglang", "vllm")


def versions(engine: str) -> tuple[str, ...]:
    """Releases that there is a table of, oldest first."""
    return tuple(_data(family(engine))["versions"])


def known_in(engine: str, flag: str) -> tuple[str, ...]:
    """Releases with a table whose parser has exactly this flag."""
    return tuple(v for v in versions(engine) if flag in table(engine, v).options)


def certain(engine: str, version: str, flag: str) -> bool:
    """Whether the tables decide that this release lacks *flag*.

    They do when the release has a table, or when the next newer table lacks the flag too.
    """
    newer = [v for v in versions(engine) if parse(v) > parse(version)]
    if table(engine, version).version == version:
        return True
    return bool(newer) and flag not in table(engine, newer[0]).options


def _option(row: Mapping[str, Any]) -> Option:
    choices = row.get("choices")
    return Option(
        flags=tuple(row["flags"]),
        dest=row["dest"],
        kind=row.get("kind", "store"),
        nargs=row.get("nargs"),
        type=row.get("type", "str"),
        choices=None if choices is None else tuple(choices),
        default=row.get("default"),
        required=row.get("required", False),
        deprecated=row.get("deprecated", False),
    )


@lru_cache(maxsize=4)
def _data(engine: str) -> Mapping[str, Any]:
    if not has_table(engine):
        raise KeyError(engine)
    data: Mapping[str, Any] = load(f"args_{engine}.json")
    return data
