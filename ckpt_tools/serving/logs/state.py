"""What a start-up log says, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ckpt_tools.model import EMPTY

if TYPE_CHECKING:
    from collections.abc import Mapping

State = Literal["starting", "loading", "capturing", "ready", "failed", "stalled", "stopped"]


@dataclass(frozen=True)
class Progress:
    """How far the current step is.

    Attributes:
        percent: 0 to 100.
        done, total: In the step's own units (shards, batches).
        elapsed_s, remaining_s: Seconds, as the engine's bar states them; for weights whose size is known,
            ``remaining_s`` is reckoned from the rate so far.
        bytes_per_s: Rate of weight loading, when the size of the weights is known.
    """

    percent: float
    done: int
    total: int
    elapsed_s: float | None = None
    remaining_s: float | None = None
    bytes_per_s: float | None = None


@dataclass(frozen=True)
class Acceptance:
    """Mean over the statistics lines of the last start.

    Attributes:
        n: Number of lines.
        mean_accept_len: Tokens per verification, the bonus token counted: 1.0 means that nothing is accepted.
        mean_accept_rate: As the engine printed it, 0 to 1; ``None`` where the release prints none. What it
            means depends on the release: see :func:`ckpt_tools.serving.logs.acceptance.rate_formula`.
        first_line, last_line: 1-based lines of the first and the last statistic.
    """

    n: int
    mean_accept_len: float
    mean_accept_rate: float | None
    first_line: int
    last_line: int


@dataclass(frozen=True)
class Note:
    """A line that is no failure and yet means something.

    Attributes:
        id: Short name: a row of ``serving/data/failures.json``.
        line: 1-based line of the first occurrence.
        text: That line's message.
        count: How often it occurs in this start.
        severity: ``warning`` when drafting may suffer, else ``info``.
        meaning: What it says about the draft or the server.
    """

    id: str
    line: int
    text: str
    count: int
    severity: Literal["warning", "info"]
    meaning: str


@dataclass(frozen=True)
class LogState:
    """What a log says of its last start.

    Attributes:
        engine: ``sglang``, ``vllm``, ``trtllm``, or ``None`` while nothing shows it.
        version: As the log states it; SGLang's doesn't.
        version_range: First and last release that write lines like these (``None``: open).
        state: See :data:`State`. ``stalled`` is never read from a log alone; a watcher sets it.
        phase: What the engine is doing, in words.
        cause: Short id of a failure: a row of ``serving/data/failures.json``, or ``exception``.
        message: The exception or the line that decided it.
        decisive_lines: 1-based numbers of the lines that show the failure.
        remedy: What to do about it.
        reference: Where the engine raises it.
        starts: Starts that the log holds; the last one decides.
        args: The server's arguments, from its own dump.
        target_class, draft_class: Model classes that the engine says it loaded.
        notes: Soft failures and facts, by line.
        started_at, last_at, ready_at: Time stamps as the log spells them.
        start_line, ready_line: 1-based lines.
        was_ready: Whether this start reached ready (a stopped server may have).
        ranks: Rank labels seen.
        lines: Lines read.
    """

    state: State
    phase: str
    engine: str | None = None
    version: str | None = None
    version_range: tuple[str | None, str | None] = (None, None)
    progress: Progress | None = None
    cause: str | None = None
    message: str | None = None
    decisive_lines: tuple[int, ...] = ()
    remedy: str | None = None
    reference: str | None = None
    starts: int = 0
    args: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    target_class: str | None = None
    draft_class: str | None = None
    acceptance: Acceptance | None = None
    notes: tuple[Note, ...] = ()
    started_at: str | None = None
    last_at: str | None = None
    ready_at: str | None = None
    start_line: int | None = None
    ready_line: int | None = None
    was_ready: bool = False
    ranks: tuple[str, ...] = ()
    lines: int = 0
