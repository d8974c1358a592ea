"""``ckpt inspect``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ckpt_tools.cli.options import Output, convention_option, exit_status, output_options, target_option

if TYPE_CHECKING:
    from ckpt_tools.model import Engine, Report


@click.command("inspect")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--engine",
    "engines",
    multiple=True,
    metavar="ENGINE",
    help="Add the load map: what fills every parameter that the engine builds (sglang, vllm==0.33.0 ...).",
)
@click.option("--tensors", is_flag=True, help="List every tensor.")
@click.option("--stats", is_flag=True, help="Read values and show their statistics.")
@target_option()
@convention_option
@output_options
def command(paths: tuple[str, ...], engines: tuple[str, ...], output: Output, **options: Any) -> int:
    """Say what a checkpoint is: format with evidence, algorithm, facts, tensors, defects of the container."""
    from ckpt_tools.api.inspecting import inspect
    from ckpt_tools.api.reports import failed
    from ckpt_tools.cli.failures import say
    from ckpt_tools.errors import CkptError, ExitCode

    resolved: tuple[Engine, ...] = ()
    if engines:
        from ckpt_tools.api.choosing import choose_engine

        resolved = tuple(choose_engine(e, "--engine") for e in engines)
    reports: list[Report] = []
    for path in paths:
        try:
            reports.append(inspect(path, resolved, offline=output.offline, **options))
        except CkptError as error:
            if output.debug or error.exit_code == ExitCode.USAGE:
                raise
            say(error.message, error.hint)
            reports.append(failed("inspect", path, error))
    shown = [r for r in reports if r.error is None or output.format != "table"]
    if shown:
        output.emit(shown, many=len(paths) > 1)
    # inspect describes: what it finds is shown and doesn't fail, except a container that is broken.
    return exit_status(reports)
