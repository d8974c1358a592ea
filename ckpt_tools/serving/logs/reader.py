"""Read a log as the engine's own records, streaming, in flat memory.

Bytes go in through :meth:`LogReader.feed`; :meth:`LogReader.snapshot` says what they mean so far. A failure
is taken only from where an engine puts one: the exception line of a fatal record or of a traceback that ends
the process. What users send, dumped arguments, and tracebacks after which the server went on, are never failures.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ckpt_tools.model import EMPTY
from ckpt_tools.serving.logs.failures import NOTES, Failure, NoteRow, classify, remedy_for
from ckpt_tools.serving.logs.scan import Block, scan, without_colours
from ckpt_tools.serving.logs.state import Acceptance, LogState, Note, Progress, State
from ckpt_tools.serving.logs.text import Record, decode, parse_bar, parse_record, segments

if TYPE_CHECKING:
    from collections.abc import Mapping

_BLOCK = 1 << 19
_MAX_LINE = 4 << 20  # a line beyond this is a bar or garbage: its head is read, the rest skipped
_MAX_SUSPECTS = 64
_STARTUP = 32 << 20  # a start says less than this before it serves; beyond it only telling lines are read
_CLOSERS = (b")", b"}")
_FOLLOWING = 6  # lines after an exception that belong to its message

_EXCEPTION = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|KeyboardInterrupt|SystemExit|Timeout|Expired))"
    r"(?:: (?P<message>.*)|:?\s*)$",
    re.S,
)
# Behind a traceback's frames any class can be what was raised (torch._dynamo.exc.Unsupported, …).
_RAISED = re.compile(r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w+)(?:: (?P<message>.*)|:?\s*)$", re.S)
# What decides when a start has several: a known cause, a general one, an exception that isn't known, a consequence.
_ORDER = {0: 0, 1: 1, 2: 3}
_RANK_OF_UNKNOWN = 2
_TRACEBACK = "Traceback (most recent call last):"
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
_USAGE = re.compile(
    r"[\w./ -]{1,80}: error: "
    r"(unrecognized arguments|argument |the following arguments|ambiguous option|no such option)"
)
_SHELL = re.compile(
    r"(\S*(ba|z|da)?sh: (line \d+: )?.*(command not found|Killed)|\S*python[\d.]*: No module named|"
    r"\S*python[\d.]*: Error while finding module specification|Killed$|.*\bKilled +\S*python|"
    r"\[E\d{3,4} .*ProcessGroupNCCL.*Watchdog caught|Segmentation fault|Fatal Python error|terminate called after throwing|Bus error)"
)
# Records that say that a process is lost. The first group of each engine's list carries its traceback.
_FATAL = re.compile(
    r"\w+ hit an exception: |Received sigquit from a child process|SIGQUIT received\.|"
    r"Rank \d+ scheduler died|Subprocess .* crashed with exit code|Initialization failed\.|"
    r"Capture cuda graph failed: |Engine core proc \S+ died|Worker proc \S+ died|"
    r"WorkerProc (failed|hit an exception)|"
    r"EngineCore (failed to start|encountered a fatal error|hit an exception)|"
    r"AsyncLLM output_handler failed|Scheduler watchdog timeout|Watchdog Timeout"
)
_STOP = re.compile(
    r"SIGTERM received\.|Gracefully exiting|Signal SIGTERM received|Shutting down|Finished server process|"
    r"Received SIGINT|\[shutdown\]|Shutdown initiated|vLLM shutdown|Waiting for application shutdown"
)
_DUMP = re.compile(
    r"server_args=|ServerArgs\(|non-default args: |Receive: |Finish: |Received request |Generated response |"
    r"Using (supplied|default|fallback) chat template|Initializing an? (V\d )?LLM engine|"
    r"Chat template|Request dump|LLM Args|Namespace\("
)
_VERSION = re.compile(
    r"vLLM (?:API )?server version (?P<api>[\w.+]+)|█.* version {1,3}(?P<logo>\d[\w.+]+)$|"
    r"LLM engine \(v(?P<engine>\d[\w.+-]*)\)|TensorRT-LLM version: (?P<trt>[\w.+]+)"
)
_ACCEPT_SGLANG = re.compile(r"accept len: (\d+\.\d+)(?:, accept rate: (\d+\.\d+))?")
_ACCEPT_VLLM_LEN = re.compile(r"Mean acceptance length: (\d+\.\d+)")
_ACCEPT_VLLM_RATE = re.compile(r"[Dd]raft acceptance rate: (\d+\.\d+)%")
_CAPTURE = re.compile(r"Capture (?P<what>.*?)(?: CUDA graph| cuda graph| graph)? (?P<edge>begin|end)\.")
_LOADED = re.compile(r"Load weight end\..*?type=(?P<type>\w+)")

_POOLS = ("KV Cache is allocated", "Full KV Cache", "SWA KV Cache", "KV Cache VA", "Memory pool end")
_MILESTONES = ("Load weight ", "Capture ", "Init torch", "Init parallel", "max_total_num_tokens=", *_POOLS)
_VLLM_COMPILES = ("Dynamo bytecode transform", "torch.compile takes", "Compiling a graph", "Cache the graph")
_VLLM_SERVES = ("init engine (", "Starting vLLM API server", "Starting vLLM server", "Available routes")
_UVICORN_STARTS = ("Started server process", "Waiting for application startup", "Uvicorn running")

# Lines whose wording came or went with a release: (needle, first release, last release).
_SGLANG_MARKS: tuple[tuple[str, str | None, str | None], ...] = (
    ("Capture cuda graph begin", None, "0.5.13.post1"),
    ("Capture draft cuda graph begin", None, "0.5.13.post1"),
    ("Capture target verify CUDA graph begin", "0.5.14", None),
    ("Capture target prefill CUDA graph begin", "0.5.14", None),
    ("Init parallel begin", "0.5.17", None),
    ("Decode batch. ", None, "0.5.3.post3"),
)


@dataclass
class _Exception:
    """An exception line with the lines that follow it, and whether the server is known to have died of it."""

    line: int
    text: str
    type: str
    stage: str
    block: int  # tracebacks that belong together have one number
    fatal: bool
    following: int = 0


@dataclass
class _Start:
    """What is known of one start."""

    state: State = "starting"
    phase: str = "waiting for the engine"
    progress: Progress | None = None
    args: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    version: str | None = None
    since: str | None = None
    until: str | None = None
    marked: bool = False
    advanced: bool = False  # something but its arguments has been said
    loads: dict[str, int] = field(default_factory=dict)
    classes: list[str] = field(default_factory=list)
    pools: int = 0
    exceptions: list[_Exception] = field(default_factory=list)
    fatal: list[tuple[int, str]] = field(default_factory=list)
    stopping: int | None = None
    ready: tuple[int, str | None] | None = None
    served: bool = False
    notes: dict[str, Note] = field(default_factory=dict)
    size: int = 0
    n: int = 0
    sum_len: int = 0  # in hundredths
    rated: int = 0
    sum_rate: int = 0  # in ten-thousandths
    first_stat: int = 0
    last_stat: int = 0
    line: int | None = None
    started_at: str | None = None


class LogReader:
    """A growing log, read as records.

    Args:
        engine: ``sglang``, ``vllm`` or ``trtllm`` when it is known; else the first telling record decides.
        weight_bytes: Size of the weights that are loaded; gives a throughput and a time left.
    """

    def __init__(self, engine: str | None = None, weight_bytes: int | None = None) -> None:
        self._engine = "sglang" if engine == "sglang-ext" else engine
        self._weight_bytes = weight_bytes
        self._carry = b""
        self._skipping = False
        self._line = 0  # whole lines read
        self._start = _Start()
        self._starts = 0
        self._ranks: dict[str, None] = {}
        self._last_at: str | None = None
        self._dump_line = -1  # the record whose continuation is a user's or an argument's text
        self._dump_closes = False
        self._closed_line = -1  # a dump whose brackets are closed: what follows it is the engine's again
        self._owner_line = 0
        self._block = 0  # number of the traceback being read
        self._block_fatal = False
        self._block_source: tuple[str, str] | None = None
        self._open: _Exception | None = None
        self._in_traceback = False

    def feed(self, data: bytes) -> None:
        """Take more of the log; lines may be cut anywhere."""
        position = 0
        while position < len(data):
            piece = data[position : position + _BLOCK]
            position += len(piece)
            end = piece.rfind(b"\n") + 1
            if not end:
                self._grow(piece)
                continue
            whole = self._carry + piece[:end]
            self._carry = piece[end:]
            if self._skipping:
                cut = whole.index(b"\n") + 1
                whole, self._skipping = whole[cut:], False
                self._line += 1
            if whole:
                self._read(whole)

    def _grow(self, piece: bytes) -> None:
        if self._skipping:
            return
        self._carry += piece
        if len(self._carry) > _MAX_LINE:
            self._one(self._line + 1, self._carry[: 1 << 16])
            self._carry, self._skipping = b"", True

    def snapshot(self, *, ended: bool = True, settled: bool = False) -> LogState:
        """What the log means.

        Args:
            ended: Nothing more will come. A traceback at the end then counts as the failure that it looks
                like; while the log grows, it waits for a line that shows whether the server died of it.
            settled: More may come, but has not for a while: a traceback at the end counts.
        """
        last = self._carry if ended else b""
        if last and not self._skipping:
            self._carry = b""
            self._read(last + b"\n")
        elif self._carry and not self._skipping:
            self._peek(self._carry)
        return self._state(ended or settled)

    def rotate(self) -> None:
        """The file was rotated or truncated: what comes next is its successor, whose lines count from 1."""
        if self._carry and not self._skipping:
            self._read(self._carry + b"\n")
        self._carry, self._skipping = b"", False
        self._line = 0
        self._owner_line, self._dump_line, self._closed_line = 0, -1, -1

    # ---- lines

    def _read(self, block: bytes) -> None:
        block = without_colours(block) if b"\x1b" in block else block
        seen = scan(block, in_traceback=self._in_traceback)
        base = self._line
        previous = -1
        accept_from = 0
        self._start.size += len(block)
        serving = self._start.ready is not None or self._start.served or self._start.size > _STARTUP
        lines = (seen.telling if serving else seen.keep).tolist()
        while lines:
            restarted = None
            for index in lines:
                self._between(seen, previous, index)
                previous = index
                start = self._start
                self._line_of(seen, block, index, base)
                if (
                    self._start is not start
                ):  # what was counted before this line belongs to the start before it
                    accept_from = int(np.searchsorted(seen.accept_at, seen.starts[index]))
                    if serving:
                        restarted = index
                        break
            # Once another start begins, its every line may mean something again.
            lines = [] if restarted is None else seen.keep[seen.keep > restarted].tolist()
            serving = False
        self._between(seen, previous, len(seen.starts))
        if len(seen.owner) and seen.owner[-1] >= 0:
            self._own(seen, int(seen.owner[-1]), base)
        if seen.last_stamped >= 0:
            at = int(seen.starts[seen.last_stamped])
            self._last_at = parse_record(0, decode(block[at : at + 200])).time or self._last_at
        self._count(seen, accept_from, base)
        self._line += len(seen.starts)

    def _line_of(self, seen: Block, block: bytes, index: int, base: int) -> None:
        """Read one line, unless it is what a user sent."""
        raw = block[seen.starts[index] : seen.stops[index]]
        owner = int(seen.owner[index])
        if owner >= 0:
            self._own(seen, owner, base)
        if owner != index and self._owner_line == self._dump_line:
            if self._dump_closes and raw.rstrip().endswith(_CLOSERS):
                self._dump_line, self._closed_line = -1, self._owner_line
            return
        self._one(base + index + 1, raw)

    def _own(self, seen: Block, owner: int, base: int) -> None:
        """The record that the lines from here on belong to."""
        self._owner_line = base + owner + 1
        if self._owner_line != self._closed_line and _contains(seen.dumps, owner):
            self._dump_line, self._dump_closes = self._owner_line, True

    def _between(self, seen: Block, after: int, before: int) -> None:
        """Statistics and access lines between two lines that were read: the server works."""
        low, high = np.searchsorted(seen.served, (after + 1, before))
        if high > low:
            self._advance()
            self._start.served = True

    def _count(self, seen: Block, accept_from: int, base: int) -> None:
        lengths, rates = seen.accept_len[accept_from:], seen.accept_rate[accept_from:]
        if not len(lengths):
            return
        lines = np.searchsorted(seen.starts, seen.accept_at[accept_from:], "right") + base
        rates = rates[rates >= 0]
        self._add_stats(
            len(lengths),
            int(lengths.sum()),
            len(rates),
            int(rates.sum()),
            int(lines[0]),
            int(lines[-1]),
        )

    def _add_stats(self, n: int, lengths: int, rated: int, rates: int, first: int, last: int) -> None:
        start = self._start
        start.first_stat = start.first_stat or first
        start.last_stat = last
        start.n += n
        start.sum_len += lengths
        start.rated += rated
        start.sum_rate += rates

    def _one(self, line: int, raw: bytes) -> None:
        for part in segments(decode(raw)):
            self._segment(parse_record(line, part))

    def _peek(self, raw: bytes) -> None:
        """The unfinished last line of a growing log: only a bar says something before its end."""
        parts = segments(decode(raw[-4096:]))
        if parts and (bar := parse_bar(parts[-1])):
            self._bar(bar.description, bar.percent, bar.done, bar.total, bar.elapsed_s, bar.remaining_s)

    # ---- records

    def _segment(self, record: Record) -> None:
        text = record.text
        if record.rank:
            self._ranks.setdefault(record.rank, None)
        if record.time:
            self._last_at = record.time
        if record.kind == "plain":
            self._plain(record)
            return
        if self._engine is None and record.kind in ("vllm", "trtllm"):
            self._engine = record.kind
        if self._continues(record):
            self._plain(record)
            return
        self._close_block()
        if hit := _DUMP.match(text):
            self._dumped(record, hit.group())
            return
        self._message(record)

    def _continues(self, record: Record) -> bool:
        """vLLM repeats a record's prefix on every line of a traceback."""
        return (
            record.level == "ERROR"
            and self._block_source is not None
            and (record.rank, record.source) == self._block_source
            and bool(record.source)
        )

    def _message(self, record: Record) -> None:
        text = record.text
        if _FATAL.match(text):
            self._fatal(record)
            return
        if record.level == "ERROR" and text.startswith(_TRACEBACK):
            self._open_block(record, fatal=False)
            self._in_traceback = True
            return
        if _STOP.match(text) and "profiler" not in text:
            if self._start.stopping is None:
                self._start.stopping = record.line
            return
        if record.kind == "uvicorn":
            self._uvicorn(record)
        else:
            self._milestone(record)
        self._note(record)
        if _USAGE.match(text) or "address already in use" in text.lower():
            self._exception(record.line, text, "", fatal=True)

    def _plain(self, record: Record) -> None:
        text = record.text
        bare = text.strip()
        if not bare:
            return
        if self._open is not None and not bare.startswith((_TRACEBACK, *_CHAIN)):
            if _EXCEPTION.match(text) is None and self._open.following < _FOLLOWING:
                self._open.text += "\n" + bare[:400]
                self._open.following += 1
                return
            self._open = None
        if bare.startswith(_TRACEBACK):
            if not self._in_traceback and self._block_source is None:
                self._open_block(record, fatal=False)
            self._in_traceback = True
            return
        if bare.startswith(_CHAIN):
            return
        if bar := parse_bar(text):
            self._bar(bar.description, bar.percent, bar.done, bar.total, bar.elapsed_s, bar.remaining_s)
            return
        raised = _RAISED if self._in_traceback else _EXCEPTION
        if text[0] not in " \t" and (hit := raised.match(text)):
            if not self._in_traceback and self._block_source is None:
                self._open_block(record, fatal=False)
            self._exception(
                record.line, text, hit["type"], fatal=self._block_fatal or bool(self._start.fatal)
            )
            return
        usage = _USAGE.match(text)
        if usage or _SHELL.match(text):
            # Taken back like a traceback when the server goes on: a client's output may stand in the same log.
            if usage:
                self._begin_unmarked()
            self._exception(record.line, text, "", fatal=bool(self._start.fatal))
            return
        if hit := _VERSION.search(text):
            self._versioned(next(filter(None, hit.groups())))
        if text.startswith(("Decode batch", "SpecDecoding metrics")):
            self._statistics(record)
        elif hit := _DUMP.match(text):
            self._dumped(record, hit.group())
        elif _FATAL.match(text):
            self._fatal(record)
        elif text.startswith("The server is fired up") or self._fragment(text):
            self._milestone(record)
        self._note(record)

    @staticmethod
    def _fragment(text: str) -> bool:
        """Milestones of logs whose time stamps were cut off."""
        return text.startswith(_MILESTONES)

    # ---- failures

    def _open_block(self, record: Record, *, fatal: bool) -> None:
        self._block += 1
        self._block_fatal = fatal
        self._block_source = (record.rank, record.source) if record.source else None

    def _close_block(self) -> None:
        self._block_fatal = False
        self._block_source = None
        self._in_traceback = False
        self._open = None

    def _fatal(self, record: Record) -> None:
        self._open_block(record, fatal=True)
        self._start.advanced = True
        if self._start.stopping is None:
            if len(self._start.fatal) < _MAX_SUSPECTS:
                self._start.fatal.append((record.line, record.text))
            for exception in self._start.exceptions:
                exception.fatal = True  # the tracebacks before it are what it speaks of
        if _TRACEBACK in record.text:
            self._in_traceback = True
        elif hit := _EXCEPTION.search(record.text.split(": ", 1)[-1]):
            self._exception(record.line, record.text.split(": ", 1)[-1], hit["type"], fatal=True)

    def _exception(self, line: int, text: str, kind: str, *, fatal: bool) -> None:
        start = self._start
        if start.stopping is not None or kind.endswith(("KeyboardInterrupt", "SystemExit", "CancelledError")):
            if kind.endswith("KeyboardInterrupt") and start.stopping is None:
                start.stopping = line
            return
        self._open = _Exception(line, text.strip()[:4000], kind, self._stage(), self._block, fatal)
        self._in_traceback = True  # a chained traceback may follow
        if len(start.exceptions) < _MAX_SUSPECTS:
            start.exceptions.append(self._open)

    def _advance(self) -> None:
        """The server went on: tracebacks that nothing fatal followed were handled."""
        start = self._start
        start.advanced = True
        if start.exceptions and not all(e.fatal for e in start.exceptions):
            start.exceptions = [e for e in start.exceptions if e.fatal]

    def _stage(self) -> str:
        start = self._start
        if start.ready is not None:
            return "serving"
        if start.state == "capturing":
            return "capture"
        if start.phase == "allocating memory pools":
            return "pool"
        if start.state == "loading":
            return "draft" if start.phase.endswith("draft weights") else "target"
        return ""

    # ---- starts

    def _begin(self, record: Record) -> None:
        """A start marker. The lines since the last one that said nothing of a server belong to it."""
        if self._start.marked and not self._start.advanced:
            return  # the second marker of the same start
        version = None if self._start.marked else self._start.version
        self._start = _Start(marked=True, version=version, line=record.line, started_at=record.time)
        self._starts += 1

    def _begin_unmarked(self) -> None:
        """A start that dies before it says anything of itself: argparse refuses its arguments."""
        if self._start.marked and self._start.advanced:
            self._start = _Start()
        if not self._start.marked:
            self._starts += 1
            self._start.marked = True
        self._start.advanced = True

    def _versioned(self, version: str) -> None:
        self._start.version = version

    def _dumped(self, record: Record, head: str) -> None:
        text = record.text
        self._dump_closes = "template" not in head
        if not (self._dump_closes and text.rstrip().endswith((")", "}", "."))):
            self._dump_line = record.line
        if head == "server_args=" or text.startswith("ServerArgs("):
            self._engine = self._engine or "sglang"
            self._begin(record)
            self._start.args = parse_repr(text.partition("(")[2])
            self._start.phase = "arguments read"
        elif head == "non-default args: ":
            self._begin(record)
            self._start.args = parse_dict(text[len(head) :])
            self._start.phase = "arguments read"
        elif "LLM engine" in head:
            if hit := _VERSION.search(text):
                self._versioned(next(filter(None, hit.groups())))
            self._phase("starting", "building the engine")

    # ---- milestones

    def _milestone(self, record: Record) -> None:
        text = record.text
        if text.startswith(("Decode batch", "Prefill batch", "SpecDecoding metrics")):
            self._statistics(record)
        elif self._engine == "vllm" or record.kind == "vllm":
            self._vllm(record)
        elif self._engine == "trtllm" or record.kind == "trtllm":
            self._trtllm(record)
        else:
            self._sglang(record)

    def _phase(self, state: State, phase: str, *, progress: Progress | None = None) -> None:
        self._advance()
        start = self._start
        if start.ready is None:
            start.state, start.phase, start.progress = state, phase, progress

    def _sglang(self, record: Record) -> None:
        text = record.text
        start = self._start
        for needle, first, last in _SGLANG_MARKS:
            if text.startswith(needle):
                start.since = first or start.since
                start.until = last or start.until
        if text.startswith("The server is fired up and ready to roll"):
            self._engine = self._engine or "sglang"
            self._ready(record)
        elif text.startswith(("Init torch distributed begin", "Init parallel begin")):
            self._engine = self._engine or "sglang"
            if start.state == "starting":
                self._phase("starting", "setting up the ranks")
        elif text.startswith("Load weight begin"):
            self._engine = self._engine or "sglang"
            count = start.loads.get(record.rank, 0) + 1
            start.loads[record.rank] = count
            # A pool before the first load that is seen: the target's own load was cut off the log.
            which = "draft" if count > 1 or start.classes or start.pools else "target"
            self._phase("loading", f"loading {which} weights")
        elif hit := _LOADED.match(text):
            self._phase("loading", start.phase)
            if hit["type"] not in start.classes:
                start.classes.append(hit["type"])
        elif text.startswith(_POOLS):
            start.pools += 1
            self._phase("loading", "allocating memory pools")
        elif (hit := _CAPTURE.match(text)) is not None:
            what = hit["what"].replace("cuda graph", "").strip() or "target"
            if hit["edge"] == "begin":
                self._phase("capturing", f"capturing {what} graphs")
            else:
                self._phase("capturing", f"captured {what} graphs")
        elif text.startswith("max_total_num_tokens="):
            self._phase(start.state if start.state != "starting" else "loading", "starting the HTTP server")

    def _vllm(self, record: Record) -> None:
        text = record.text
        start = self._start
        if hit := _VERSION.search(text):
            if not start.marked or (start.advanced and ("server version" in text or "█" in text)):
                self._begin(record)
            self._versioned(next(filter(None, hit.groups())))
        elif text.startswith("Resolved architecture: "):
            name = text.split(": ", 1)[1].strip()
            if name not in start.classes:
                start.classes.append(name)
            self._phase("starting", "reading the configs")
        elif text.startswith("Starting to load model"):
            self._phase("loading", "loading target weights")
        elif text.startswith("Loading drafter model"):
            self._phase("loading", "loading draft weights")
        elif text.startswith(("Loading weights took", "Model loading took", "Loading model weights took")):
            self._phase("loading", start.phase if start.state == "loading" else "loading target weights")
        elif text.startswith(("Available KV cache memory", "GPU KV cache size", "# GPU blocks")):
            self._phase("loading", "allocating memory pools")
        elif text.startswith(_VLLM_COMPILES):
            self._phase("loading", "compiling")
        elif text.startswith("Graph capturing finished"):
            self._phase("capturing", "captured graphs")
        elif text.startswith(_VLLM_SERVES):
            self._phase(start.state if start.state != "starting" else "loading", "starting the HTTP server")

    def _trtllm(self, record: Record) -> None:
        text = record.text
        self._engine = self._engine or "trtllm"
        start = self._start
        if hit := _VERSION.search(text):
            self._begin(record)
            self._versioned(next(filter(None, hit.groups())))
        elif text.startswith(("Starting TensorRT", "Using LLM with", "Set PluginConfig")):
            if not start.marked or start.state != "starting":
                self._begin(record)
            self._phase("starting", "building the engine")
        elif re.match(r"(Loading|Rank \d+ .*load|Prefetching|Use .* to load|Load engine)", text):
            self._phase("loading", "loading target weights")
        elif re.match(r"(Allocated|Max KV cache|\[MemUsageChange\]|Estimated max memory|KV cache)", text):
            self._phase("loading", "allocating memory pools")
        elif re.match(r"(Creating CUDA graph|Run .*CUDA graph|Run .*warmup|\[Autotuner\])", text):
            self._phase("capturing", "capturing graphs")
        elif start.state == "starting":
            self._advance()

    def _uvicorn(self, record: Record) -> None:
        text = record.text
        if text.startswith("Application startup complete") and self._engine in ("vllm", "trtllm"):
            self._ready(record)
        elif text.startswith(_UVICORN_STARTS):
            state = self._start.state
            self._phase(state if state != "starting" else "loading", "starting the HTTP server")
        elif text.startswith("Application startup failed"):
            self._start.fatal.append((record.line, text))
        elif re.match(r'\d[\d.:a-f]* - "', text):
            self._advance()
            self._start.served = True

    def _ready(self, record: Record) -> None:
        self._advance()
        start = self._start
        if start.ready is None:
            start.ready = (record.line, record.time or self._last_at)
            start.state, start.phase, start.progress = "ready", "serving", None

    def _bar(
        self, description: str, percent: float, done: int, total: int, elapsed: float, remaining: float | None
    ) -> None:
        start = self._start
        if start.ready is not None:
            return
        words = description.lower()
        rate = None
        if any(w in words for w in ("shard", "loading", "weight", "download", "fetching")):
            phase = start.phase if start.phase.startswith("loading ") else "loading weights"
            if "download" in words or "fetching" in words:
                phase = "downloading"
            if self._weight_bytes and elapsed > 0 and percent > 0:
                rate = self._weight_bytes * percent / 100 / elapsed
                remaining = elapsed * (100 - percent) / percent
            self._phase("loading", phase, progress=Progress(percent, done, total, elapsed, remaining, rate))
        elif any(w in words for w in ("captur", "compil", "graph")) or start.state == "capturing":
            phase = start.phase if start.state == "capturing" else "capturing graphs"
            self._phase("capturing", phase, progress=Progress(percent, done, total, elapsed, remaining))

    def _statistics(self, record: Record) -> None:
        """Statistics that the block scan doesn't count: vLLM's, and lines behind a container's prefix."""
        text = record.text
        self._advance()
        self._start.served = True
        if text.startswith("SpecDecoding"):
            self._engine = self._engine or "vllm"
            length, rate = _ACCEPT_VLLM_LEN.search(text), _ACCEPT_VLLM_RATE.search(text)
            if length:
                percent = float(rate[1]) if rate else 0.0
                hundredths = round(float(length[1]) * 100)
                self._add_stats(
                    1, hundredths, int(rate is not None), round(percent * 100), record.line, record.line
                )
        elif hit := _ACCEPT_SGLANG.search(text):
            hundredths, rate_sum = round(float(hit[1]) * 100), round(float(hit[2] or 0) * 10_000)
            self._add_stats(1, hundredths, int(hit[2] is not None), rate_sum, record.line, record.line)

    def _note(self, record: Record) -> None:
        text = record.text
        for row in NOTES:
            if row.needle in text:
                self._keep_note(row, record)
                return

    def _keep_note(self, row: NoteRow, record: Record) -> None:
        notes = self._start.notes
        old = notes.get(row.id)
        text = old.text if old else record.text.strip()[:400]
        line = old.line if old else record.line
        notes[row.id] = Note(row.id, line, text, old.count + 1 if old else 1, row.severity, row.meaning)

    # ---- the answer

    def _state(self, ended: bool) -> LogState:
        start = self._start
        decided = self._decide(ended)
        state: State = start.state
        phase = start.phase
        cause = message = remedy = reference = None
        lines: tuple[int, ...] = ()
        if decided is not None:
            state, (cause, message, remedy, reference, lines) = "failed", decided
        elif start.stopping is not None:
            state, phase = "stopped", "stopped"
        elif start.ready is None and not start.marked and start.served:
            state, phase = "ready", "serving"
        classes = start.classes
        return LogState(
            state=state,
            phase=phase,
            engine=self._engine,
            version=start.version,
            version_range=(start.since, start.until),
            progress=start.progress if state in ("starting", "loading", "capturing") else None,
            cause=cause,
            message=message,
            decisive_lines=lines,
            remedy=remedy,
            reference=reference,
            starts=self._starts,
            args=start.args,
            target_class=classes[0] if classes else None,
            draft_class=classes[1] if len(classes) > 1 else None,
            acceptance=_acceptance(start),
            notes=tuple(sorted(start.notes.values(), key=lambda note: note.line)),
            started_at=start.started_at,
            last_at=self._last_at,
            ready_at=start.ready[1] if start.ready else None,
            start_line=start.line,
            ready_line=start.ready[0] if start.ready else None,
            was_ready=start.ready is not None,
            ranks=tuple(self._ranks),
            lines=self._line,
        )

    def _decide(self, ended: bool) -> tuple[str, str, str | None, str | None, tuple[int, ...]] | None:
        """Cause, message, remedy, reference and decisive lines of the failure, if there is one."""
        start = self._start
        exceptions = [e for e in start.exceptions if e.fatal or ended]
        if not exceptions and not start.fatal:
            return None
        rows: list[tuple[int, int, _Exception, Failure | None]] = []
        for order, exception in enumerate(exceptions):
            row = classify(exception.text)
            rows.append((_RANK_OF_UNKNOWN if row is None else _ORDER[row.rank], order, exception, row))
        rows += self._fatal_rows(len(rows))
        rank = min(row[0] for row in rows)
        best = [row for row in rows if row[0] == rank]
        # In one chain of exceptions the last is what was raised; of several chains the first began it.
        chosen = [row for row in best if row[2].block == best[0][2].block][-1] if rank != 0 else best[0]
        _, _, exception, row = chosen
        fatal_lines = [line for line, _ in start.fatal]
        lines = tuple(sorted({*fatal_lines[:2], exception.line}))
        if row is None:
            name = exception.type.rpartition(".")[2] or "exception"
            text = f"no known failure: read the traceback that ends with this {name}"
            return "exception", exception.text, text, None, lines
        return row.id, exception.text, remedy_for(row, exception.stage), row.reference, lines

    def _fatal_rows(self, order: int) -> list[tuple[int, int, _Exception, Failure | None]]:
        out: list[tuple[int, int, _Exception, Failure | None]] = []
        for line, text in self._start.fatal:
            row = classify(text)
            stand_in = _Exception(line, text.split("\n")[0][:2000], "", self._stage(), -line, fatal=True)
            out.append((4 if row is None else _ORDER[row.rank], order + len(out), stand_in, row))
        return out


def _contains(rows: np.ndarray[Any, np.dtype[np.int64]], value: int) -> bool:
    at = int(np.searchsorted(rows, value))
    return at < len(rows) and int(rows[at]) == value


def _acceptance(start: _Start) -> Acceptance | None:
    if not start.n:
        return None
    rate = start.sum_rate / start.rated / 10_000 if start.rated else None
    return Acceptance(start.n, start.sum_len / start.n / 100, rate, start.first_stat, start.last_stat)


def parse_repr(body: str) -> Mapping[str, Any]:
    """The fields of ``ServerArgs(a=1, b='x', …)`` from behind the bracket; what isn't a literal stays text.

    Python's own parser reads it, so quotes, brackets and words inside values are what they are.
    """
    closed = body if body.rstrip().endswith(")") else body + ")"
    try:
        call = ast.parse(f"f({closed.rstrip()}", mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        return MappingProxyType(_loose(body))
    out: dict[str, Any] = {}
    if isinstance(call, ast.Call):
        for word in call.keywords:
            if word.arg is not None:
                out[word.arg] = _literal(word.value)
    return MappingProxyType(out)


def parse_dict(text: str) -> Mapping[str, Any]:
    """vLLM's ``{'model': …}`` with its arguments; values that aren't literals stay text."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        return EMPTY
    if not isinstance(tree, ast.Dict):
        return EMPTY
    pairs = zip(tree.keys, tree.values, strict=True)
    return MappingProxyType({str(_literal(k)): _literal(v) for k, v in pairs if k is not None})


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, MemoryError, RecursionError):
        return ast.unparse(node)


_FIELD = re.compile(
    r"(?P<name>[a-z_]\w*)=(?P<value>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[\w.+-]+)(?=, |\)|$)"
)


def _loose(body: str) -> dict[str, Any]:
    """A dump with values that Python's grammar refuses (``<object …>``): its simple fields."""
    out: dict[str, Any] = {}
    for hit in _FIELD.finditer(body):
        try:
            out.setdefault(hit["name"], ast.literal_eval(hit["value"]))
        except (ValueError, SyntaxError):
            out.setdefault(hit["name"], hit["value"])
    return out
