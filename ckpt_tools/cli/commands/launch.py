"""``ckpt launch``."""

from __future__ import annotations

from typing import Any

import click

from ckpt_tools.cli.options import Output, exit_status, output_options, target_option


@click.command("launch", context_settings={"ignore_unknown_options": False})
@click.argument("path")
@target_option(required=True)
@click.option(
    "--engine", metavar="ENGINE", help="sglang, sglang-ext or vllm, with ==VERSION.  [default: sglang]"
)
@click.option("--tp", type=click.IntRange(1), help="Tensor-parallel size.")
@click.option("--steps", type=click.IntRange(1), help="Draft tokens in a chain, or depth of the tree.")
@click.option("--topk", type=click.IntRange(1), help="Branches per step (SGLang).")
@click.option("--draft-tokens", type=click.IntRange(1), help="Tokens verified at once, for a tree.")
@click.option("--context-length", type=click.IntRange(1), help="Length to serve.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port to listen on.")
@click.option(
    "--as",
    "shape",
    type=click.Choice(("shell", "k8s", "compose")),
    default="shell",
    show_default=True,
    help="What to print.",
)
@click.option("--force", is_flag=True, help="Print even what verify fails.")
@click.option(
    "--run", "start", is_flag=True, help="Start the server and watch it until it is ready; Ctrl-C stops it."
)
@click.option("--log-file", metavar="F", help="The server's log with --run.  [default: ckpt-launch.log]")
@click.argument("extra", nargs=-1, type=click.UNPROCESSED, metavar="[-- EXTRA...]")
@output_options
def command(
    path: str,
    output: Output,
    shape: str,
    force: bool,
    start: bool,
    log_file: str | None,
    engine: str | None,
    **options: Any,
) -> int:
    """Print the serving command and its environment, with a reason per flag, once the pair passes verify with it."""
    from ckpt_tools.api.launching import RENDERERS, LaunchRequest, launch

    request = LaunchRequest(
        path,
        engine=engine or "sglang",
        why="--engine" if engine else "default",
        offline=output.offline,
        **options,
    )
    made = launch(request)
    status = exit_status([made.report])
    if output.format != "table":
        output.emit([made.report])
    else:
        serious = [f for f in made.report.findings if f.severity.value != "info"]
        for finding in serious:
            click.echo(f"{finding.severity.value}[{finding.code}]: {finding.message}", err=True)
            if finding.hint:
                click.echo(f"  hint: {finding.hint}", err=True)
        if status and not force:
            click.echo("error: not printed; --force prints it anyway", err=True)
            return status
        if not start:
            click.echo(RENDERERS[shape](made.plan), nl=False)
    if start and (force or not status):
        from ckpt_tools.cli.running import run_server

        return run_server(made.plan, log_file or "ckpt-launch.log")
    return 0 if force else status
