"""``ckpt fix-keys``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from ckpt_tools.cli.options import Output, codes, convention_option, output_options, run, size, target_option

if TYPE_CHECKING:
    from collections.abc import Callable


def _formats() -> tuple[str, ...]:
    from ckpt_tools.api.converting import writable_formats

    return writable_formats()


class _Formats(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.3 on
    """Choices that are looked up when they are needed."""

    name = "format"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in _formats():
            self.fail(f"{value!r} is not one of {', '.join(_formats())}", param, ctx)
        return str(value)

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:  # noqa: ARG002
        return "FORMAT"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:  # noqa: ARG002
        from click.shell_completion import CompletionItem

        return [CompletionItem(n) for n in _formats() if n.startswith(incomplete)]


@click.command("fix-keys")
@click.argument("source", metavar="IN")
@click.argument("out", metavar="OUT")
@click.option("--to", type=_Formats(), default="sglang", show_default=True, help="Format to write.")
@target_option()
@click.option("--dry-run", is_flag=True, help="Print the plan and write nothing.")
@click.option("--force", is_flag=True, help="Replace OUT if it is a checkpoint.")
@click.option("--allow", multiple=True, callback=codes, metavar="CODE", help="Accept a named loss.")
@click.option(
    "--repair",
    "repairs",
    multiple=True,
    metavar="NAME",
    help="Opt into a documented repair: docs/repairs.md lists them.",
)
@click.option("--checksum", is_flag=True, help="Compare every byte after writing.")
@click.option(
    "--prove",
    is_flag=True,
    help="Run source and result and write only if they compute the same. Needs torch.",
)
@click.option("--dtype", type=click.Choice(("bf16", "fp16", "fp32")), help="Cast floating-point tensors.")
@click.option(
    "--max-shard-size", callback=size, metavar="SIZE", help="Reshard, for example 5GB; default: as the input."
)
@convention_option
@output_options
def command(source: str, out: str, output: Output, **options: Any) -> int:
    """Rewrite the tensor names and the config of draft IN for another framework, as folder OUT.

    OUT is there as a whole or not at all. What the format can't carry is refused with a code; --allow CODE writes it anyway.
    """
    from ckpt_tools.api.converting import Request, fix_keys

    request = Request(source, out, offline=output.offline, **options)
    return run(output, "fix-keys", source, lambda: fix_keys(request, _progress(output)))


def _progress(output: Output) -> Callable[[int, int], None] | None:
    """A line on a terminal's stderr for long writes."""
    if not sys.stderr.isatty() or output.verbosity < 0:
        return None

    def show(done: int, total: int) -> None:
        if total > 1 << 28:
            end = "\n" if done >= total else "\r"
            click.echo(f"  {done / 1e9:.2f} of {total / 1e9:.2f} GB{end}", nl=False, err=True)

    return show
