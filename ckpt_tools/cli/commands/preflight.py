"""``ckpt preflight``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ckpt_tools.cli.options import Output, output_options, run, target_option

if TYPE_CHECKING:
    from pathlib import Path


@click.command("preflight")
@click.argument("path", required=False)
@target_option()
@click.option("--engine", metavar="ENGINE", help="Engine that will be launched.  [default: sglang]")
@click.option("--engine-python", metavar="PATH", help="The interpreter that has the engine.")
@click.option("--tp", type=click.IntRange(1), help="GPUs that are needed.")
@click.option(
    "--port", type=click.IntRange(1, 65535), default=30000, show_default=True, help="Port that is needed."
)
@click.option("--clean", is_flag=True, help="Offer to delete what a dead server left; asks for each file.")
@output_options
def command(path: str | None, clean: bool, engine: str | None, output: Output, **options: Any) -> int:
    """Say whether this machine is ready: GPUs, shared memory, port, memory, disk, the installed engine and its hooks."""
    from ckpt_tools.api.policy import find_policy
    from ckpt_tools.api.preflighting import PreflightRequest, look

    policy = find_policy()
    named, why = policy.engine(engine)
    options["tp"] = options["tp"] or policy.tp
    options["target"] = options["target"] or policy.target
    request = PreflightRequest(path, engine=named, why=why, offline=output.offline, **options)
    return run(output, "preflight", path or ".", lambda: look(request, _ask if clean else None))


def _ask(file: Path) -> bool:
    return click.confirm(f"delete {file}?", default=False, err=True)
