"""``launch --run``: a started server, watched until it ends; Ctrl-C stops it with all that it started."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ckpt_tools.errors import ExitCode
from ckpt_tools.serving.run import start
from ckpt_tools.serving.watch import watch

if TYPE_CHECKING:
    from ckpt_tools.serving.args.command import LaunchPlan
    from ckpt_tools.serving.watch import Watched


def run_server(plan: LaunchPlan, log_file: str) -> int:
    """Start the planned server, say what its log says, and stay until it ends.

    Returns:
        The server's own status if it ended by itself, else 130 after Ctrl-C.

    Raises:
        Unavailable: The program isn't there.
        InputError: The log file can't be written.
    """
    server = start(plan, Path(log_file))
    click.echo(f"started pid {server.child.pid}, log {log_file}", err=True)
    try:
        said = ""
        url = f"http://127.0.0.1:{plan.port}"
        for seen in watch(log_file, follow=True, url=url, pid=server.child.pid):
            line = status_line(seen)
            if line != said:
                click.echo(line, err=True)
                said = line
        status = server.child.wait()
        return status if status >= 0 else 128 - status
    except KeyboardInterrupt:
        server.stop()
        click.echo("stopped", err=True)
        return int(ExitCode.INTERRUPTED)


def status_line(seen: Watched) -> str:
    """State, phase and progress on one line, with the cause of a failure."""
    log = seen.log
    percent = f" {log.progress.percent:.0f} %" if log.progress is not None else ""
    cause = f" ({log.cause}): {log.message}" if log.cause is not None else ""
    return f"{log.state}: {log.phase}{percent}{cause}"
