"""``ckpt explain``."""

from __future__ import annotations

import click


@click.command("explain")
@click.argument("code", required=False)
def command(code: str | None) -> int:
    """Show the page of a check code; without CODE, list them all."""
    from ckpt_tools.api.explaining import explain, list_codes

    click.echo(explain(code) if code else list_codes())
    return 0
