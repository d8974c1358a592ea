"""``ckpt watch``."""

from __future__ import annotations

import shutil
import sys
import urllib.parse
from typing import TYPE_CHECKING

import click

from ckpt_tools.cli.options import Output, output_options, run, target_option

if TYPE_CHECKING:
    from ckpt_tools.model import Report
    from ckpt_tools.serving.watch import Watched

ENGINES = ("sglang", "vllm", "trtllm")


def address(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """An http address."""
    if value is not None:
        parts = urllib.parse.urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise click.BadParameter(f"{value!r} is no http address; write http://127.0.0.1:30000")
    return value


def family(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """The engine whose log it is, without a version."""
    if value is None:
        return None
    name = value.partition("==")[0].strip().removesuffix("-ext")
    if name not in ENGINES:
        raise click.BadParameter(f"unknown engine {value!r}; logs are read of {', '.join(ENGINES)}")
    return name


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
@click.option(
    "--engine", metavar="ENGINE", callback=family, help="Whose log it is, if its lines don't show it."
)
@target_option()
@output_options
def command(
    log: str,
    url: str | None,
    port: int | None,
    follow: bool,
    timeout: float | None,
    engine: str | None,
    target: str | None,
    output: Output,
) -> int:
    """Read a start-up log: starting, loading, capturing, ready, or failed with the cause; never by a bare word.

    With the target's folder the rate of loading is known, too.
    """
    from ckpt_tools.api.launching import weight_bytes
    from ckpt_tools.api.subjects import find_target
    from ckpt_tools.api.watching import watch_report
    from ckpt_tools.cli.running import status_line
    from ckpt_tools.serving.watch import watch

    live = follow and sys.stderr.isatty() and output.verbosity >= 0
    width = shutil.get_terminal_size((100, 24)).columns - 1  # a line that wraps can't be wiped

    def work() -> Report:
        size = weight_bytes(find_target(target, offline=output.offline)) if target else None
        last: Watched | None = None
        said = ""
        for last in watch(
            sys.stdin.buffer if log == "-" else log,
            follow=follow,
            url=url,
            port=port,
            timeout=timeout,
            engine=engine,
            weight_bytes=size,
        ):
            if live and (line := status_line(last)[:width]) != said:
                click.echo(f"\r\x1b[K{line}", nl=False, err=True)
                said = line
        if live:
            click.echo("", err=True)
        assert last is not None
        return watch_report(log, last)

    return run(output, "watch", log, work)
