"""``ckpt demo``."""

from __future__ import annotations

import click

from ckpt_tools.cli.options import Output, exit_status, output_options


@click.command("demo")
@click.argument("folder", metavar="[DIR]", default="ckpt-demo", required=False)
@output_options
def command(folder: str, output: Output) -> int:
    """Write a tiny real draft and its target, then inspect, fix-keys, verify and (with torch) smoke them.

    DIR is ckpt-demo by default.
    """
    from ckpt_tools.api.demo import steps, write_pair

    write_pair(folder)
    click.echo(f"wrote a speculators draft, its target and recorded states to {folder}", err=True)
    reports = []
    for step in steps(folder):
        if step.run is None:
            click.echo(f"\n$ {step.line}\n{step.skipped}", err=output.format != "table")
            continue
        report = step.run()
        reports.append(report)
        if output.format == "table":
            click.echo(f"\n$ {step.line}")
            output.emit([report])
    if output.format != "table":
        output.emit(reports, many=True)
    return exit_status(reports)
