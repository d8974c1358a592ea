"""``ckpt push``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from ckpt_tools.cli.options import Output, output_options, run, target_option

if TYPE_CHECKING:
    from collections.abc import Callable


def listed(_ctx: click.Context, _param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """Comma-separated, repeatable words."""
    return tuple(word.strip() for v in value for word in v.split(",") if word.strip())


@click.command("push")
@click.argument("path")
@click.argument("repo_id", metavar="REPO_ID")
@target_option(required=True)
@click.option(
    "--engine", "engines", multiple=True, metavar="ENGINE", help="Engines that it must be right for."
)
@click.option("--license", metavar="ID", help="License for the card, such as apache-2.0.")
@click.option(
    "--base-model", metavar="ID", help="The target's Hub id for the card, if the registry has none."
)
@click.option(
    "--tags",
    multiple=True,
    callback=listed,
    metavar="TAG",
    help="Further tags for the card, comma-separated.",
)
@click.option("--include", multiple=True, metavar="FILE", help="One more file of the folder that goes, too.")
@click.option("--private", is_flag=True, help="Make a new repository private.")
@click.option("--revision", metavar="BRANCH", help="Branch to push to.")
@click.option("--create-pr", is_flag=True, help="Propose a pull request instead of committing.")
@click.option("--smoke", is_flag=True, help="Run the smoke test first and put its result on the card.")
@click.option(
    "--report",
    "reports",
    multiple=True,
    metavar="FILE",
    help="JSON report of smoke (of these very files) or accept, for the card.",
)
@click.option("--dry-run", is_flag=True, help="Print the plan and upload nothing.")
@output_options
def command(path: str, repo_id: str, engines: tuple[str, ...], output: Output, **options: Any) -> int:
    """Verify a draft, write its model card and report, upload it, and compare what arrived."""
    from ckpt_tools.api.policy import find_policy
    from ckpt_tools.api.pushing import PushRequest, push

    policy = find_policy()
    why = "--engine" if engines or not policy.engines else "policy"
    request = PushRequest(
        path, repo_id, engines=engines or policy.engines, why=why, offline=output.offline, **options
    )
    return run(
        output,
        "push",
        path,
        lambda: push(request, notify=lambda line: click.echo(line, err=True), progress=_progress(output)),
    )


def _progress(output: Output) -> Callable[[int, int], None] | None:
    if not sys.stderr.isatty() or output.verbosity < 0:
        return None

    def show(done: int, total: int) -> None:
        end = "\n" if done >= total else "\r"
        click.echo(f"  {done / 1e6:.0f} of {total / 1e6:.0f} MB{end}", nl=False, err=True)

    return show
