"""``ckpt completion``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def command(shell: str) -> int:
    """Print a completion script; for bash: eval "$(ckpt completion bash)"."""
    from ckpt_tools.cli.root import main

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(main, {}, "ckpt", "_CKPT_COMPLETE").source())
    return 0
