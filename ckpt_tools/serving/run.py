"""Start a server in its own log file, and stop it cleanly with everything that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckpt_tools.errors import InputError, Unavailable
from ckpt_tools.serving import process

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ckpt_tools.serving.args.command import LaunchPlan


_TICK = 0.05  # seconds between looks at a process that is to end


@dataclass(frozen=True)
class Server:
    """A server that was started.

    Attributes:
        child: Its process, the leader of a session of its own.
        log: Where its output goes.
    """

    child: subprocess.Popen[bytes]
    log: Path

    @property
    def status(self) -> int | None:
        """Its exit status (negative for a signal), ``None`` while it runs."""
        return self.child.poll()

    def stop(self, patience: float = 30.0, hurry: Callable[[], bool] = lambda: False) -> int:
        """Ask it to end, and after *patience* seconds, or once in a hurry, kill what is left of its session; its exit status."""
        members = process.tree(self.child.pid)
        _signal(self.child.pid, signal.SIGTERM)
        end = time.monotonic() + patience
        while self.status is None and time.monotonic() < end and not hurry():
            time.sleep(_TICK)
        _signal(self.child.pid, signal.SIGKILL)
        for pid in members:  # a child may have left the session
            if pid != self.child.pid and process.alive(pid):
                _kill(pid)
        return self.child.wait()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass


def start(plan: LaunchPlan, log: Path) -> Server:
    """Start the command of *plan*; its output is appended to *log*.

    Raises:
        InputError: *log* can't be written.
        Unavailable: The engine's program isn't there.
    """
    try:
        output = log.open("ab")
    except OSError as error:
        raise InputError(f"{log}: {error.strerror}", "name another file with --log-file") from error
    with output:
        try:
            child = subprocess.Popen(
                plan.argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | dict(plan.env),
                start_new_session=True,
            )
        except OSError as error:
            raise Unavailable(
                f"{plan.program[0]} can't be started: {error.strerror}",
                "run this in the engine's own environment",
            ) from error
    return Server(child, log)
