"""Starting a server in its own log file and watching it; Ctrl-C stops it cleanly."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from ckpt_tools.errors import ExitCode, Unavailable, WriteError

if TYPE_CHECKING:
    from ckpt_tools.serving.args.command import LaunchPlan
    from ckpt_tools.serving.watch import Watched

GRACE_S = 20.0


def run_server(plan: LaunchPlan, log_file: str) -> int:
    """Start the planned server, say what its log says, and stay until it ends.

    Returns:
        The server's own status if it ended by itself, else 130 after Ctrl-C.

    Raises:
        Unavailable: The program isn't there.
        WriteError: The log file can't be written.
    """
    with _opened(log_file) as log:
        try:
            server = subprocess.Popen(
                plan.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **plan.env},
                start_new_session=True,
            )
        except OSError as error:
            raise Unavailable(
                f"{plan.argv[0]}: can't be started ({error.strerror})", "is the engine installed here?"
            ) from error
    click.echo(f"started pid {server.pid}, log {log_file}", err=True)
    try:
        _watch(server, log_file, plan.port)
        return server.wait()
    except KeyboardInterrupt:
        stop(server)
        return int(ExitCode.INTERRUPTED)


def _opened(log_file: str) -> IO[bytes]:
    try:
        return Path(log_file).open("ab")
    except OSError as error:
        raise WriteError(
            f"{log_file}: can't be written ({error.strerror})", "choose another --log-file"
        ) from error


def _watch(server: subprocess.Popen[bytes], log_file: str, port: int) -> None:
    from ckpt_tools.serving.watch import watch

    said = ""
    for seen in watch(log_file, follow=True, url=f"http://127.0.0.1:{port}", pid=server.pid):
        line = status_line(seen)
        if line != said:
            click.echo(line, err=True)
            said = line
        if seen.done:
            break


def status_line(seen: Watched) -> str:
    """State, phase and progress on one line."""
    log = seen.log
    percent = f" {log.progress.percent:.0f} %" if log.progress is not None else ""
    return f"{log.state}: {log.phase}{percent}"


def stop(server: subprocess.Popen[bytes]) -> None:
    """End the server's whole process group: politely, then for good."""
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(server.pid, sign)
        except ProcessLookupError:
            break
        try:
            server.wait(GRACE_S)
            break
        except subprocess.TimeoutExpired:
            continue
    click.echo("stopped", err=True)
