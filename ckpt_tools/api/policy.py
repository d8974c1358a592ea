"""A team's standing settings: ``ckpt.toml``, or ``[tool.ckpt]`` in pyproject.toml.

Flags win over the launch command, which wins over the policy. Every ignored code has a reason::

    target = "kimi-k2.5"             # or a folder, relative to the policy's own
    engine = "sglang==0.5.23"        # or a list
    tp = 8
    context-length = 131072
    fail-on = "error"
    launch = "serve.sh"              # relative to the policy's folder

    [ignore]
    ROP004 = "trained with base 10000 on purpose"
"""

from __future__ import annotations

import os.path
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckpt_tools.errors import InputError, UsageError
from ckpt_tools.model import EMPTY

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover  # the standard library has it from 3.11 on
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Mapping

FILES = ("ckpt.toml", "pyproject.toml")
KEYS = ("target", "engine", "tp", "context-length", "fail-on", "launch", "ignore")


@dataclass(frozen=True)
class Policy:
    """What a policy file says; what it doesn't say is ``None``.

    Attributes:
        file: Where it was found.
        ignore: Code or family prefix -> why.
    """

    file: Path | None = None
    target: str | None = None
    engines: tuple[str, ...] = ()
    tp: int | None = None
    context_length: int | None = None
    fail_on: str | None = None
    launch: str | None = None
    ignore: Mapping[str, str] = field(default_factory=lambda: EMPTY)

    def engine(self, given: str | None) -> tuple[str, str]:
        """The engine that a command with one takes, and what chose it: its flag, this policy, or the default."""
        if given is not None:
            return given, "--engine"
        return (self.engines[0], "policy") if self.engines else ("sglang", "default")


def find_policy(start: Path | None = None) -> Policy:
    """The policy of the nearest folder upwards that has one, up to a repository's root.

    Raises:
        InputError: The file can't be read or isn't TOML.
        UsageError: A key is unknown or has the wrong kind of value, or an ignore has no reason.
    """
    folder = (start or Path.cwd()).resolve()
    for place in (folder, *folder.parents):
        for name in FILES:
            file = place / name
            if file.is_file():
                table = _table(file)
                if table is not None:
                    return parse_policy(table, file)
        if (place / ".git").exists():
            break
    return Policy()


def _table(file: Path) -> Mapping[str, Any] | None:
    try:
        data = tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"{file}: can't be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        if file.name == "pyproject.toml":
            return None  # somebody else's file to complain about
        raise InputError(f"{file}: not TOML ({error})", "see `ckpt verify --help`") from error
    if file.name == "ckpt.toml":
        whole: Mapping[str, Any] = data
        return whole
    tool = data.get("tool")
    table = tool.get("ckpt") if isinstance(tool, dict) else None
    return table if isinstance(table, dict) else None


def parse_policy(table: Mapping[str, Any], file: Path) -> Policy:
    """A policy from its table.

    Raises:
        UsageError: As :func:`find_policy`.
    """
    unknown = [k for k in table if k not in KEYS]
    if unknown:
        raise UsageError(f"{file}: unknown key {unknown[0]!r}", f"keys: {', '.join(KEYS)}")

    def of(key: str, kind: type, what: str) -> Any:
        value = table.get(key)
        wrong = not isinstance(value, kind) or isinstance(value, bool)
        if value is not None and (wrong or (isinstance(value, int) and value < 1)):
            raise UsageError(f"{file}: {key} is {value!r}, expected {what}")
        return value

    engine = table.get("engine")
    engines = (engine,) if isinstance(engine, str) else tuple(engine) if isinstance(engine, list) else ()
    if engine is not None and (not engines or not all(isinstance(e, str) for e in engines)):
        raise UsageError(f"{file}: engine is {engine!r}, expected text or a list of texts")
    ignore = of("ignore", dict, "a table of codes with a reason each") or {}
    if ignore:
        from ckpt_tools.api.explaining import unknown_code  # it brings every check along
    for code, reason in ignore.items():
        if not isinstance(reason, str) or not reason.strip():
            raise UsageError(f"{file}: ignore.{code} has no reason", f'write {code} = "why"')
        if (said := unknown_code(code)) is not None:
            raise UsageError(f"{file}: ignore.{said}", "`ckpt explain` lists them")
    fail_on = of("fail-on", str, "error, warning or never")
    if fail_on is not None and fail_on not in ("error", "warning", "never"):
        raise UsageError(f"{file}: fail-on is {fail_on!r}, expected error, warning or never")
    launch = of("launch", str, "a file or a command")
    if launch is not None and os.path.isfile(beside := os.path.join(file.parent, launch)):
        launch = beside
    target = of("target", str, "text")
    if target is not None and "/" in target and os.path.exists(beside := os.path.join(file.parent, target)):
        target = beside
    return Policy(
        file,
        target,
        engines,
        of("tp", int, "a number above zero"),
        of("context-length", int, "a number above zero"),
        fail_on,
        launch,
        {code.upper(): reason for code, reason in ignore.items()},
    )
