"""``launch --run``: a started server, watched until it ends; Ctrl-C stops it with all that it started."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ckpt_tools.errors import InputError
from ckpt_tools.serving.run import start
from ckpt_tools.serving.watch import watch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckpt_tools.serving.args.command import LaunchPlan
    from ckpt_tools.serving.watch import Watched

_TICK = 0.1  # seconds between looks at a server that is ready
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_server(plan: LaunchPlan, log_file: str, weight_bytes: int | None = None) -> int:
    """Start the planned server, say what its log says, and stay until it ends.

    The log of an earlier start is kept beside it as ``LOG.1``, ``LOG.2``, …: what failed then isn't now's failure.

    Returns:
        The server's own status if it ended by itself, else 130 after Ctrl-C (143 after a SIGTERM).

    Raises:
        Unavailable: The program isn't there.
        InputError: The log file can't be written.
    """
    log = Path(log_file)
    set_aside(log)
    with _stoppable() as came:
        server = start(plan, log)
        try:
            click.echo(f"started pid {server.child.pid}, log {log_file}", err=True)
            said = ""
            url = f"http://127.0.0.1:{plan.port}"
            family = plan.engine.name.removesuffix("-ext")
            for seen in watch(
                log, follow=True, url=url, pid=server.child.pid, engine=family, weight_bytes=weight_bytes
            ):
                said = _say(seen, said)
                if came or server.status is not None:
                    break  # whatever the log still waits for
            while server.status is None and not came:
                time.sleep(_TICK)
            if came:
                click.echo("stopping the server", err=True)
                server.stop(hurry=lambda: len(came) > 1)  # asked twice: not patient any more
                click.echo("stopped", err=True)
                return 128 + came[0]
            for seen in watch(log, engine=family):  # its last words, which may say more than that it is gone
                if seen.log.state in ("failed", "stopped"):
                    _say(seen, said)
            status = server.child.wait()
            return status if status >= 0 else 128 - status
        finally:
            if server.status is None:  # something else went wrong: no server is left that nobody watches
                server.stop()


def _say(seen: Watched, said: str) -> str:
    """Show what the log says, if it isn't what was *said* last."""
    line = status_line(seen)
    if line != said:
        click.echo(line, err=True)
    return line


def set_aside(log: Path) -> Path | None:
    """Give the log of an earlier start another name; that name.

    Raises:
        InputError: It can't be renamed.
    """
    if not log.is_file() or not log.stat().st_size:
        return None
    numbers = (n for n in range(1, 1 << 30) if not log.with_name(f"{log.name}.{n}").exists())
    other = log.with_name(f"{log.name}.{next(numbers)}")
    try:
        return log.rename(other)
    except OSError as error:
        raise InputError(
            f"{log}: an earlier log that can't be renamed ({error.strerror})", "name another with --log-file"
        ) from error


@contextmanager
def _stoppable() -> Iterator[list[int]]:
    """Signals that came, in order. They raise nothing: an exception between any two steps could leave a lock held for ever."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        signal.signal(number, lambda number, _frame: came.append(number))
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def status_line(seen: Watched) -> str:
    """State, phase and progress on one line, with the time left or the cause of a failure."""
    log, progress = seen.log, seen.log.progress
    percent = left = ""
    if progress is not None:
        percent = f" {progress.percent:.0f} %"
        if progress.bytes_per_s:
            left += f", {progress.bytes_per_s / 1e9:.1f} GB/s"
        if progress.remaining_s:
            left += f", {progress.remaining_s:.0f} s left"
    cause = f" ({log.cause}): {log.message}" if log.cause is not None else ""
    return " ".join(f"{log.state}: {log.phase}{percent}{left}{cause}".split())
