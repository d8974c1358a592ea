"""``ckpt watch``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from ckpt_tools.cli.options import Output, exit_status, output_options

if TYPE_CHECKING:
    from ckpt_tools.serving.watch import Watched


@click.command("watch")
@click.argument("log", metavar="LOG|-")
@click.option("--url", metavar="URL", help="The server, for its health endpoint.")
@click.option("--port", type=click.IntRange(1, 65535), help="The server's port on this machine.")
@click.option("--follow", is_flag=True, help="Wait for more until it is ready or has failed.")
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    metavar="S",
    help="Give up after S seconds (exit 4).",
)
@click.option("--engine", metavar="ENGINE", help="Whose log it is, if its lines don't show it.")
@output_options
def command(
    log: str,
    url: str | None,
    port: int | None,
    follow: bool,
    timeout: float | None,
    engine: str | None,
    output: Output,
) -> int:
    """Read a start-up log: starting, loading, capturing, ready, or failed with the cause; never by a bare word."""
    from ckpt_tools.api.watching import watch_report
    from ckpt_tools.cli.running import status_line
    from ckpt_tools.errors import ExitCode
    from ckpt_tools.serving.watch import watch

    live = follow and sys.stderr.isatty() and output.verbosity >= 0
    last: Watched | None = None
    said = ""
    for last in watch(
        sys.stdin.buffer if log == "-" else log,
        follow=follow,
        url=url,
        port=port,
        timeout=timeout,
        engine=engine.partition("==")[0].removesuffix("-ext") if engine else None,
    ):
        if live and (line := status_line(last)) != said:
            click.echo(f"\r\x1b[K{line}", nl=False, err=True)
            said = line
    if live:
        click.echo("", err=True)
    assert last is not None
    report = watch_report("-" if log == "-" else log, last)
    output.emit([report])
    if last.timed_out and last.log.state != "failed":
        return int(ExitCode.UNAVAILABLE)
    return exit_status([report])
