"""The ``ckpt`` group. Commands are modules of ``cli/commands`` and are imported when they are called."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from typing import Any

import click

import ckpt_tools
from ckpt_tools.cli import commands
from ckpt_tools.cli.failures import EPILOG, guarded


class Lazy(click.Group):
    """A group that knows its commands by file name and imports one only to run it or show its help."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return sorted(m.name.replace("_", "-") for m in pkgutil.iter_modules(commands.__path__))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"{commands.__name__}.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            near = difflib.get_close_matches(args[0], self.list_commands(ctx), 1)
            if not near:
                raise
            raise click.UsageError(f"{error.message} Did you mean '{near[0]}'?", ctx) from error

    def main(self, *args: Any, **kwargs: Any) -> Any:
        return guarded(lambda: super(Lazy, self).main(*args, **{**kwargs, "standalone_mode": False}))


@click.group(cls=Lazy, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(ckpt_tools.__version__, prog_name="ckpt")
def main() -> None:
    """Convert and validate speculative-decoding draft checkpoints before they are served."""


if __name__ == "__main__":
    sys.exit(main())
