"""Watch a server come up: its log, its port, its health endpoint, and whether it still works.

Ready needs two signals where they can be had: the line and the health endpoint or the listening port. Stalled
needs two as well: no output, and no progress of CPU or I/O in the server's processes; a loader that is silent
for ten minutes while it reads half a terabyte isn't stalled.
"""

from __future__ import annotations

import os
import select
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from ckpt_tools.errors import InputError, UsageError
from ckpt_tools.serving import process
from ckpt_tools.serving.logs import LogReader, LogState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ckpt_tools.serving.process import Usage

_CHUNK = 1 << 20
_LAST_WORDS = 1.0  # seconds of silence after which a failing server has said all
_GRACE = 5.0  # seconds of silence after which a traceback at the end of a growing log counts


@dataclass(frozen=True)
class Signals:
    """What was seen beside the log; ``None`` where it wasn't or couldn't be looked at.

    Attributes:
        listening: Whether the port accepts connections.
        healthy: Whether the health endpoint answers 200.
        alive: Whether the server's process is there.
        working: Whether its processes have used CPU or moved bytes since they were last looked at.
    """

    listening: bool | None = None
    healthy: bool | None = None
    alive: bool | None = None
    working: bool | None = None


@dataclass(frozen=True)
class Watched:
    """A look at a server.

    Attributes:
        log: What its log says, with ``state`` and ``phase`` as all signals together give them.
        signals: What was seen beside the log.
        quiet_s: Seconds without output and without work.
        elapsed_s: Seconds since watching began.
        done: Nothing more is waited for: ready, failed or stopped, or the log has ended.
        timed_out: The time is up.
    """

    log: LogState
    signals: Signals
    quiet_s: float
    elapsed_s: float
    done: bool
    timed_out: bool = False


def judge(log: LogState, signals: Signals, quiet_s: float, stall_after: float) -> LogState:
    """What log and signals mean together."""
    if log.state == "failed":
        return log
    gone = signals.alive is False and log.state != "stopped"
    if log.state == "ready" and not (gone and signals.healthy is not True and signals.listening is not True):
        if signals.healthy is False:
            return replace(log, state="starting", phase="the log says ready; the health endpoint doesn't yet")
        if signals.healthy is None and signals.listening is False:
            return replace(log, state="starting", phase="the log says ready; the port isn't open yet")
        return log
    if gone:
        return replace(
            log,
            state="failed",
            cause="process-ended",
            message="the server's process is gone, and its log doesn't say why",
            remedy="look for a kill (`dmesg -T | grep -i -e oom -e killed`), and run it in the foreground once",
            decisive_lines=(log.lines,) if log.lines else (),
        )
    if log.state != "stopped" and signals.working is False and quiet_s >= stall_after:
        return replace(log, state="stalled", phase=f"{log.phase}: no output and no work for {quiet_s:.0f} s")
    return log


class Source(Protocol):
    """Where a log comes from."""

    def read(self) -> bytes | None:
        """What is new: ``b""`` when nothing is, ``None`` at the end."""
        ...

    def rotated(self) -> bool:
        """Whether what :meth:`read` gave last begins another file."""
        ...

    def close(self) -> None:
        """Let it go."""
        ...


class FileSource:
    """A file that may grow, be truncated, or be replaced by its successor."""

    def __init__(self, path: Path, *, follow: bool) -> None:
        self._path, self._follow = path, follow
        self._file = self._open()
        self._new = False

    def _open(self) -> BinaryIO:
        try:
            return self._path.open("rb", buffering=0)
        except OSError as error:
            raise InputError(
                f"{self._path}: {error.strerror}", "give the path of the server's log"
            ) from error

    def read(self) -> bytes | None:
        self._new = False
        data = self._file.read(_CHUNK)
        if data:
            return data
        if not self._follow:
            return None
        return self._reopened()

    def _reopened(self) -> bytes:
        try:
            there = self._path.stat()
        except OSError:  # between a rotation's two renames
            return b""
        mine = os.fstat(self._file.fileno())
        if (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino):
            self._file.close()
            self._file = self._open()
        elif there.st_size < self._file.tell():
            self._file.seek(0)
        else:
            return b""
        self._new = True
        return self._file.read(_CHUNK)

    def rotated(self) -> bool:
        return self._new

    def close(self) -> None:
        self._file.close()


class PipeSource:
    """Standard input, or any stream that ends."""

    def __init__(self, stream: BinaryIO, wait_s: float = 0.2) -> None:
        self._descriptor, self._wait = stream.fileno(), wait_s

    def read(self) -> bytes | None:
        readable, _, _ = select.select([self._descriptor], [], [], self._wait)
        if not readable:
            return b""
        return os.read(self._descriptor, _CHUNK) or None

    def rotated(self) -> bool:
        return False

    def close(self) -> None:
        """The stream is its caller's."""


def listening(host: str, port: int, timeout: float = 1.0) -> bool:
    """Whether something accepts connections there."""
    try:
        with socket.create_connection((host, port), timeout=timeout):
            return True
    except OSError:
        return False


def healthy(url: str, timeout: float = 3.0) -> bool:
    """Whether the server's health endpoint answers 200; ``/health`` is added to a bare address.

    Raises:
        UsageError: It is no http address.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(f"{url!r} is no http address", "write it as http://127.0.0.1:30000")
    if parts.path in ("", "/"):
        parts = parts._replace(path="/health")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.parse.urlunsplit(parts), timeout=timeout) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError, ValueError):
        return False


@dataclass
class _Worker:
    """The server's process and what it had used when it was last looked at."""

    pid: int | None
    path: Path | None
    seen: Usage | None = None
    known: bool = False

    def look(self) -> tuple[bool | None, bool | None]:
        """Alive and working."""
        if self.pid is None and self.path is not None:
            others = [pid for pid in process.writers(self.path) if pid != os.getpid()]
            self.pid = others[0] if others else None
        if self.pid is None:
            return None, None
        now = process.usage(self.pid)
        if now is None:
            return False, False
        before, self.seen = self.seen, now
        return True, before is None or now != before


def watch(
    source: str | Path | BinaryIO,
    *,
    follow: bool = False,
    timeout: float | None = None,
    url: str | None = None,
    port: int | None = None,
    pid: int | None = None,
    engine: str | None = None,
    weight_bytes: int | None = None,
    stall_after: float = 120.0,
    interval: float = 0.5,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Watched]:
    """Look at a log again and again until it is decided; the last item says how it ended.

    Args:
        source: A path, or an open binary stream (standard input), which is read to its end.
        follow: Wait for more at the end of a file.
        timeout: Seconds after which to give up; the last item then has ``timed_out``.
        url: The server, for its health endpoint.
        port: A port to look at on this machine. When following without *url* and *port*, the port is
            taken from the arguments that the log dumps, if its server listens on this machine.
        pid: The server's process; when following a file, the process that writes it is found.
        engine, weight_bytes: See :class:`~ckpt_tools.serving.logs.LogReader`.
        stall_after: Seconds without output and work after which a server counts as stalled.
        interval: Seconds between looks.

    Raises:
        InputError: The path can't be read.
        UsageError: *url* is no http address.
    """
    path: Path | None = None
    reads: Source
    if isinstance(source, (str, Path)):
        path = Path(source)
        reads = FileSource(path, follow=follow)
    else:
        reads = PipeSource(source)
    waits = follow or path is None
    reader = LogReader(engine, weight_bytes)
    worker = _Worker(pid, path if follow else None)
    began = last_output = last_work = clock()
    try:
        while True:
            data = reads.read()
            if data:
                if reads.rotated():
                    reader.rotate()
                reader.feed(data)
                last_output = clock()
                if not waits or len(data) == _CHUNK:
                    continue  # far behind: catch up before looking
            ended = data is None
            now = clock()
            log = reader.snapshot(ended=ended, settled=now - last_output > _GRACE)
            alive, working = worker.look() if waits else (pid and process.alive(pid), None)
            if working:
                last_work = now
            quiet = now - max(last_output, last_work if working is not None else last_output)
            ask_port = port if port is not None else _own_port(log) if follow and url is None else None
            signals = Signals(
                listening=listening("127.0.0.1", ask_port) if ask_port and log.state == "ready" else None,
                healthy=healthy(url) if url and log.state in ("ready", "stopped") else None,
                alive=alive if alive is None else bool(alive),
                working=working,
            )
            log = judge(log, signals, quiet, stall_after)
            timed_out = timeout is not None and now - began >= timeout
            # the first line of a failure seldom names its cause: the next ones do
            told = signals.alive is False or now - last_output >= _LAST_WORDS
            done = (
                ended
                or log.state == "ready"
                or (log.state == "failed" and told)
                or (log.state == "stopped" and signals.alive is not True)
            )
            yield Watched(log, signals, quiet, now - began, done, timed_out and not done)
            if done or timed_out:
                return
            if not data:
                sleep(interval)
    finally:
        reads.close()


def _own_port(log: LogState) -> int | None:
    """The port that the server was told to listen on, when that is on this machine."""
    if log.args.get("host") not in ("127.0.0.1", "localhost", "0.0.0.0", "::", None):
        return None
    port = log.args.get("port")
    if isinstance(port, int):
        return port
    return {"vllm": 8000, "trtllm": 8000}.get(log.engine or "") if log.args else None
