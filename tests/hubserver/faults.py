"""Faults on demand, and the record of what went over the wire."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Action = Literal["status", "late", "cut", "slow"]


@dataclass
class Fault:
    r"""Something that goes wrong for the requests that it matches.

    Attributes:
        match: Regular expression, searched in ``"METHOD /path?query"``.
        action: ``status`` answers ``status`` instead of doing anything. ``late`` does what was asked and then
            answers ``status`` (a gateway that gives up on a backend that goes on). ``cut`` closes the
            connection: after ``after`` bytes of the request's body, or, when the request has none, of the
            response's. ``slow`` sleeps ``delay`` seconds before each 64 KiB of the body, either way.
        times: How often; -1 for ever.
        skip: How many matching requests pass unharmed first.
    """

    match: str
    action: Action = "status"
    status: int = 500
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    times: int = 1
    skip: int = 0
    after: int = 0
    delay: float = 0.0

    def payload(self) -> bytes:
        """The body to answer."""
        return json.dumps(self.body if self.body is not None else {"error": "fault on demand"}).encode()


@dataclass
class Seen:
    """One request as it was served. The token itself is never kept, only whether there was one."""

    method: str
    path: str
    host: str
    authorized: bool
    range: str | None = None
    status: int = 0
    received: int = 0
    sent: int = 0
    fault: str | None = None


class Faults:
    """The faults that wait for their request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: list[Fault] = []

    def add(self, fault: Fault) -> None:
        """Let a fault wait."""
        re.compile(fault.match)
        with self._lock:
            self._all.append(fault)

    def clear(self) -> None:
        """Nothing goes wrong from here on."""
        with self._lock:
            self._all.clear()

    def take(self, line: str) -> Fault | None:
        """The fault that strikes this request, if any."""
        with self._lock:
            for fault in self._all:
                if fault.times == 0 or not re.search(fault.match, line):
                    continue
                if fault.skip > 0:
                    fault.skip -= 1
                    continue
                if fault.times > 0:
                    fault.times -= 1
                return fault
        return None


class Log:
    """Every request, in the order in which they were finished.

    A client has its answer a moment before the server has counted it, so looking waits for the requests that
    are under way.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._all: list[Seen] = []
        self._begun = 0
        self._running = 0

    def begin(self) -> int:
        """A request has come in; its number."""
        with self._changed:
            self._begun += 1
            self._running += 1
            return self._begun

    def end(self, seen: Seen) -> None:
        """A request was served."""
        with self._changed:
            self._all.append(seen)
            self._running -= 1
            self._changed.notify_all()

    def clear(self) -> None:
        """Forget."""
        self.find()
        with self._changed:
            self._all.clear()

    def find(self, pattern: str = "") -> list[Seen]:
        """The requests whose ``"METHOD /path"`` matches."""
        with self._changed:
            self._changed.wait_for(lambda: self._running == 0, timeout=10)
            return [s for s in self._all if re.search(pattern, f"{s.method} {s.path}")]

    def sent(self, pattern: str = "") -> int:
        """Bytes that the server sent, headers included."""
        return sum(s.sent for s in self.find(pattern))

    def received(self, pattern: str = "") -> int:
        """Bytes of request bodies that the server received."""
        return sum(s.received for s in self.find(pattern))

    def dump(self) -> list[dict[str, Any]]:
        """For the admin endpoint."""
        return [asdict(s) for s in self.find()]
