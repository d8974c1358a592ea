"""``ckpt targets``."""

from __future__ import annotations

import json
from typing import Any

import click


@click.group("targets", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """The registry of target models; every value has its source."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_)


@command.command("list")
@click.option("--format", "style", type=click.Choice(("table", "json")), default="table", show_default=True)
@click.argument("text", required=False)
def list_(style: str = "table", text: str | None = None) -> int:
    """List the targets; with TEXT, those whose id, alias or class contains it."""
    from ckpt_tools.targets import all_targets, target_json

    shown = [
        t
        for t in all_targets()
        if text is None or text.lower() in f"{t.id} {t.aliases} {t.architectures}".lower()
    ]
    if style == "json":
        click.echo(json.dumps([target_json(t) for t in shown], indent=2, ensure_ascii=False))
        return 0
    for t in shown:
        click.echo(
            f"{t.id:<34} {(t.architectures or ('?',))[0]:<42} hidden {_or(t.hidden_size)}, {_or(t.num_hidden_layers)} layers, "
            f"vocab {_or(t.vocab_size)}, context {_or(t.max_position_embeddings)}"
        )
    return 0


def _or(value: Any) -> str:
    return "?" if value is None else str(value)


@command.command("show")
@click.option("--format", "style", type=click.Choice(("table", "json")), default="table", show_default=True)
@click.argument("target_id", metavar="ID")
def show(target_id: str, style: str) -> int:
    """Show every value of a target with its source."""
    from ckpt_tools.api.subjects import find_target
    from ckpt_tools.targets import target_json

    data = target_json(find_target(target_id, offline=True))
    if style == "json":
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))
        return 0
    sources = data["sources"]
    for key, value in data.items():
        if key in ("sources", "source_table", "notes", "confidence"):
            continue
        source = f"  ({sources[key]})" if key in sources else ""
        click.echo(f"{key:<28} {json.dumps(value, ensure_ascii=False)}{source}")
    for tag, where in (data.get("source_table") or {}).items():
        click.echo(
            f"source {tag}: {where if isinstance(where, str) else json.dumps(where, ensure_ascii=False)}"
        )
    for note in data.get("notes", []) or []:
        click.echo(f"note: {note}")
    return 0


@command.command("add")
@click.argument("config", metavar="CONFIG")
@click.option("--id", "target_id", help="Id to register it under; default: from the path.")
def add(config: str, target_id: str | None) -> int:
    """Add a target from its folder or config.json to your own registry."""
    from ckpt_tools.targets import add_target

    added = add_target(config, target_id)
    click.echo(f"added {added.id}: ckpt targets show {added.id}")
    return 0
