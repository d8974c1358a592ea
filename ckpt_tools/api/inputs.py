"""``--launch X`` and ``--log X``: ``-`` is stdin, an existing file is read, else X is the text itself."""

from __future__ import annotations

import os.path
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckpt_tools.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ckpt_tools.model import Draft, Engine, Target
    from ckpt_tools.serving.args.launch import Launch
    from ckpt_tools.serving.args.problem import Problem
    from ckpt_tools.serving.logs.state import Acceptance, LogState

_BLOCK = 1 << 20


def read_bytes(text: str) -> bytes:
    """Bytes of ``-``, of a file, or of the text itself.

    Raises:
        InputError: The file can't be read.
    """
    if text == "-":
        return sys.stdin.buffer.read()
    if not os.path.isfile(
        text
    ):  # a command is often longer than a path may be, which `Path.is_file` raises at
        return text.encode()
    try:
        return Path(text).read_bytes()
    except OSError as error:
        raise InputError(f"{text}: can't be read ({error.strerror})") from error


def read_launch(text: str) -> Launch:
    """A launch command: a shell line, a script, a compose or k8s file.

    Raises:
        UsageError: It starts no engine that ckpt knows.
    """
    from ckpt_tools.serving.args.launch import parse_launch

    return parse_launch(read_bytes(text).decode("utf-8", "replace"))


def read_log_text(text: str) -> LogState:
    """A start-up log, as far as it goes, read in flat memory.

    Raises:
        InputError: The file can't be read, or the text is a path and nothing is there.
    """
    from ckpt_tools.serving.logs import LogReader

    reader = LogReader()
    for block in _blocks(text):
        reader.feed(block)
    return reader.snapshot()


def _blocks(text: str) -> Iterator[bytes]:
    if text == "-":
        yield from iter(lambda: sys.stdin.buffer.read(_BLOCK), b"")
    elif os.path.isfile(text):
        try:
            with open(text, "rb") as file:
                yield from iter(lambda: file.read(_BLOCK), b"")
        except OSError as error:
            raise InputError(f"{text}: can't be read ({error.strerror})") from error
    elif not text.split()[1:]:  # one word is no line of a log
        raise InputError(f"{text}: no such file", "--log takes a server's log, or - for stdin")
    else:
        yield text.encode()


def launch_problems_of(
    launch: Launch | None,
    engine: Engine,
    draft: Draft | None,
    target: Target | None,
    config: Mapping[str, Any] | None,
) -> tuple[Problem, ...] | None:
    """What is wrong with a launch command on an engine for this draft and target; ``None`` without a command."""
    if launch is None:
        return None
    from ckpt_tools.serving.args.problems import launch_problems

    return launch_problems(launch, engine, draft, target, config=config)


def rate_note(engine: Engine, log: LogState | None) -> str | None:
    """What the accept rate of a log means in the engine's release, with a useless draft's rate in numbers."""
    if log is None or log.acceptance is None:
        return None
    from ckpt_tools.serving.logs.acceptance import rate_formula

    formula = rate_formula(log.engine or engine.name, log.version or engine.version)
    if formula is None:
        return None
    drafts = log.args.get("speculative_num_draft_tokens")
    steps = log.args.get("speculative_num_steps")
    drafts = drafts if isinstance(drafts, int) else _from_figures(log.acceptance)
    useless = formula.useless_rate(drafts, steps if isinstance(steps, int) else None)
    shown = f"; a useless draft would show {useless:.2f}" if useless is not None else ""
    return f" ({formula.text}{shown})"


def _from_figures(acceptance: Acceptance) -> int | None:
    """Number of draft tokens that length and rate imply, where the arguments aren't in the log."""
    if not acceptance.mean_accept_rate:
        return None
    return round(acceptance.mean_accept_len / acceptance.mean_accept_rate)
