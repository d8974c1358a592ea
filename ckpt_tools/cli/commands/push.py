"""``ckpt push``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from ckpt_tools.cli.options import Output, output_options, run, target_option

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckpt_tools.model import Report


@click.command("push")
@click.argument("path")
@click.argument("repo_id", metavar="REPO_ID")
@target_option(required=True)
@click.option(
    "--engine", "engines", multiple=True, metavar="ENGINE", help="Engines that it must be right for."
)
@click.option("--license", metavar="ID", help="License for the card, such as apache-2.0.")
@click.option("--private", is_flag=True, help="Make a new repository private.")
@click.option("--revision", metavar="BRANCH", help="Branch to push to.")
@click.option("--create-pr", is_flag=True, help="Propose a pull request instead of committing.")
@click.option(
    "--smoke", "smoked", is_flag=True, help="Run the smoke test first and put its result on the card."
)
@click.option("--dry-run", is_flag=True, help="Print the plan and upload nothing.")
@output_options
def command(path: str, repo_id: str, smoked: bool, output: Output, **options: Any) -> int:
    """Verify a draft, write its model card and report, upload it, and compare what arrived."""
    from ckpt_tools.api.pushing import PushRequest, push

    request = PushRequest(path, repo_id, **options)

    def work() -> Report:
        report = _smoke(path, options["target"]) if smoked else None
        return push(
            request, smoke=report, notify=lambda line: click.echo(line, err=True), progress=_progress(output)
        )

    return run(output, "push", path, work)


def _smoke(path: str, target: str) -> Report:
    from ckpt_tools.api.smoking import SmokeRequest, smoke

    return smoke(SmokeRequest(path, target))


def _progress(output: Output) -> Callable[[int, int], None] | None:
    if not sys.stderr.isatty() or output.verbosity < 0:
        return None

    def show(done: int, total: int) -> None:
        end = "\n" if done >= total else "\r"
        click.echo(f"  {done / 1e6:.0f} of {total / 1e6:.0f} MB{end}", nl=False, err=True)

    return show
