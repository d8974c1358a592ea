"""``ckpt watch``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from ckpt_tools.cli.options import Output, output_options, run

if TYPE_CHECKING:
    from ckpt_tools.model import Report
    from ckpt_tools.serving.watch import Watched


def address(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """An http address."""
    if value is not None and not value.startswith(("http://", "https://")):
        raise click.BadParameter(f"{value!r} is no http address; write http://127.0.0.1:30000")
    return value


@click.command("watch")
@click.argument("log", metavar="LOG|-")
@click.option("--url", metavar="URL", callback=address, help="The server, for its health endpoint.")
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
    from ckpt_tools.engines import resolve
    from ckpt_tools.serving.watch import watch

    live = follow and sys.stderr.isatty() and output.verbosity >= 0
    family = resolve(engine, "--engine").name.removesuffix("-ext") if engine else None

    def work() -> Report:
        last: Watched | None = None
        said = ""
        for last in watch(
            sys.stdin.buffer if log == "-" else log,
            follow=follow,
            url=url,
            port=port,
            timeout=timeout,
            engine=family,
        ):
            if live and (line := status_line(last)) != said:
                click.echo(f"\r\x1b[K{line}", nl=False, err=True)
                said = line
        if live:
            click.echo("", err=True)
        assert last is not None
        return watch_report(log, last)

    return run(output, "watch", log, work)
