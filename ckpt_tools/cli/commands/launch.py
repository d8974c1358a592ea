"""``ckpt launch``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ckpt_tools.cli.options import Output, exit_status, output_options, run, size, target_option

if TYPE_CHECKING:
    from ckpt_tools.api.launching import Launched
    from ckpt_tools.model import Report


@click.command("launch")
@click.argument("path")
@target_option(required=True)
@click.option(
    "--engine", metavar="ENGINE", help="sglang, sglang-ext or vllm, with ==VERSION.  [default: sglang]"
)
@click.option("--engine-python", metavar="PATH", help="The interpreter that has the engine, for ==installed.")
@click.option("--tp", type=click.IntRange(1), help="Tensor-parallel size.")
@click.option("--steps", type=click.IntRange(1), help="Draft tokens in a chain, or depth of the tree.")
@click.option("--topk", type=click.IntRange(1), help="Branches per step (SGLang).")
@click.option("--draft-tokens", type=click.IntRange(1), help="Tokens verified at once, for a tree.")
@click.option("--context-length", type=click.IntRange(1), help="Length to serve.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port to listen on.")
@click.option(
    "--gpu-memory",
    "gpu_bytes",
    metavar="SIZE",
    callback=size,
    help="Memory of one GPU, such as 80GiB.  [default: that of this machine's]",
)
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
    start: bool,
    log_file: str | None,
    engine: str | None,
    **options: Any,
) -> int:
    """Print the serving command and its environment, with a reason per flag, once the pair passes verify with it."""
    from ckpt_tools.api.launching import LaunchRequest, launch
    from ckpt_tools.api.policy import find_policy
    from ckpt_tools.serving.args.forms import RENDERERS

    if log_file is not None and not start:
        raise click.UsageError("--log-file is the server's log, and only --run starts one.")
    policy = find_policy()
    named, why = policy.engine(engine)
    options["tp"] = options["tp"] or policy.tp
    options["context_length"] = options["context_length"] or policy.context_length
    options["gpu_bytes"] = options["gpu_bytes"] or _gpu_bytes()
    request = LaunchRequest(
        path, engine=named, why=why, offline=output.offline, contained=shape != "shell", **options
    )
    made: list[Launched] = []

    def work() -> Report:
        made.append(launch(request))
        return made[0].report

    if output.format != "table":
        status = run(output, "launch", path, work)
    else:
        status = exit_status([work()])
        _say(made[0].report)
        if status:
            click.echo("error: not printed; --force prints it anyway", err=True)
        elif not start:
            _write(RENDERERS[shape](made[0].plan), output)
    if status or not start:
        return status
    from ckpt_tools.cli.running import run_server

    return run_server(made[0].plan, log_file or "ckpt-launch.log", made[0].weight_bytes)


def _gpu_bytes() -> int | None:
    from ckpt_tools.serving.machine import gpus

    return min((gpu.total for gpu in gpus() or ()), default=None)


def _say(report: Report) -> None:
    for finding in report.findings:
        if finding.severity.value == "info":
            continue
        click.echo(f"{finding.severity.value}[{finding.code}]: {finding.message}", err=True)
        if finding.hint:
            click.echo(f"  hint: {finding.hint}", err=True)


def _write(text: str, output: Output) -> None:
    """To stdout, or to the file of ``--output``."""
    from ckpt_tools.errors import WriteError

    if output.file is None:
        click.echo(text, nl=False)
        return
    try:
        Path(output.file).write_text(text, "utf-8")
    except OSError as error:
        raise WriteError(
            f"{output.file}: can't be written ({error.strerror})", "choose another --output"
        ) from error
