"""``ckpt smoke``."""

from __future__ import annotations

from typing import Any

import click

from ckpt_tools.cli.options import Output, convention_option, exit_status, output_options, run, target_option


@click.command("smoke")
@click.argument("path")
@target_option(required=True)
@click.option("--engine", metavar="ENGINE", help="Whose semantics and loader.  [default: sglang]")
@click.option(
    "--device", default="auto", show_default=True, metavar="auto|cpu|cuda[:N]", help="Where to run."
)
@click.option(
    "--dtype",
    type=click.Choice(("bf16", "fp16", "fp32")),
    help="Precision to compare with float32.  [default: the weights' own]",
)
@click.option(
    "--steps", type=click.IntRange(1, 64), default=5, show_default=True, help="Recursive draft steps."
)
@click.option(
    "--tokens", type=click.IntRange(2), default=32, show_default=True, help="Tokens of the prefill."
)
@click.option("--batch", type=click.IntRange(1), default=2, show_default=True, help="Sequences at a time.")
@click.option("--states", metavar="FILE", help="Recorded hidden states of the target to run on.")
@click.option("--tp", type=click.IntRange(1), default=1, show_default=True, help="Ranks, under torchrun.")
@click.option("--bench", is_flag=True, help="Time a draft step carefully.")
@convention_option
@output_options
def command(path: str, target: str, output: Output, **options: Any) -> int:
    """Run the draft head as the engine would and check what it computes: finite, alive, stable, trained.

    Of the target only the rows that are needed are read. Needs torch.
    """
    from ckpt_tools.api.smoking import SmokeRequest, is_first_rank, smoke

    request = SmokeRequest(path, target, offline=output.offline, **options)
    if not is_first_rank():
        return int(exit_status([smoke(request)]))
    return run(output, "smoke", path, lambda: smoke(request))
