"""``ckpt accept``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ckpt_tools.cli.options import Output, convention_option, output_options, run, target_option


@click.command("accept")
@click.option(
    "--states", metavar="FILE", help="Recorded hidden states and tokens of the target: a file or a folder."
)
@click.option("--draft", metavar="PATH", help="The draft, with --states.")
@target_option()
@click.option("--url", metavar="URL", help="A live server: http://127.0.0.1:30000.")
@click.option("--log", metavar="FILE", help="A server's log, or - for stdin.")
@click.option("--engine", metavar="ENGINE", help="Whose semantics, with --states.  [default: sglang]")
@click.option(
    "--depth", type=click.IntRange(1, 64), default=7, show_default=True, help="Most drafted tokens."
)
@click.option(
    "--topk", type=click.IntRange(1, 64), default=1, show_default=True, help="Choices per position."
)
@click.option(
    "--cost-ratio", type=click.FloatRange(min=0.0), help="Time of a draft step over that of a target step."
)
@click.option(
    "--prompts",
    "prompt_file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="Prompts to send with --url, one per line.",
)
@convention_option
@output_options
def command(output: Output, prompt_file: str | None, **options: Any) -> int:
    """Say how much of a draft is accepted, per position and depth, and whether drafting pays.

    From recorded states (needs torch), a server's log, or a live server. A length counts the target's own token: 1.00
    means that nothing is accepted.
    """
    from ckpt_tools.api.accepting import AcceptRequest, accept

    lines = Path(prompt_file).read_text("utf-8").splitlines() if prompt_file is not None else []
    request = AcceptRequest(
        prompts=tuple(line for line in lines if line.strip()), offline=output.offline, **options
    )
    name = options["draft"] or options["url"] or options["log"] or "."
    return run(output, "accept", name, lambda: accept(request))
