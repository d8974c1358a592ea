"""Container manifests as commands: docker compose and Kubernetes YAML."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import yaml

from ckpt_tools.serving.args.shell import Word, commands

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Container:
    """One container: its image, the words that it runs, and its environment."""

    image: str
    words: tuple[Word, ...]
    env: dict[str, str]


def containers(text: str) -> list[Container]:
    """Every container of every document; empty when *text* is no such YAML."""
    out: list[Container] = []
    try:
        for node in yaml.compose_all(text, Loader=yaml.SafeLoader):
            out += [_container(found) for found in _walk(node)]
    except yaml.YAMLError:
        return []
    return [container for container in out if container.words or container.image]


def _walk(node: yaml.Node | None) -> Iterator[yaml.MappingNode]:
    if isinstance(node, yaml.MappingNode):
        names = {key.value for key, _ in node.value}
        if names & {"command", "args", "entrypoint"} and (
            "image" in names or names & {"env", "environment", "name"}
        ):
            yield node
            return
        for _, value in node.value:
            yield from _walk(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _walk(value)


def _container(node: yaml.MappingNode) -> Container:
    fields = {key.value: value for key, value in node.value}
    words: list[Word] = []
    for name in ("entrypoint", "command", "args"):
        if name in fields:
            words += _words(fields[name])
    env = _environment(fields.get("environment")) | _environment(fields.get("env"))
    image = fields.get("image")
    return Container(image.value if isinstance(image, yaml.ScalarNode) else "", tuple(words), env)


def _words(node: yaml.Node) -> list[Word]:
    if isinstance(node, yaml.SequenceNode):
        return [Word(_text(item), _first_line(item)) for item in node.value]
    if not isinstance(node, yaml.ScalarNode):
        return []
    # compose splits a string as a shell would; a block scalar's text begins on the line after its mark
    first = node.start_mark.line + 1 + (node.style in ("|", ">"))
    text = node.value if node.style == "|" else node.value.replace("\n", " ")
    return [
        word for command in commands(text, first) for word in _spelled(command.assignments, command.words)
    ]


def _first_line(node: yaml.Node) -> int:
    """Where a scalar's text begins: a block's on the line after its mark."""
    block = isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")
    return int(node.start_mark.line) + 1 + block


def _spelled(assignments: dict[str, str], words: tuple[Word, ...]) -> list[Word]:
    line = words[0].line if words else 1
    return [*(Word(f"{name}={value}", line) for name, value in assignments.items()), *words]


def _text(node: yaml.Node) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""


def _environment(node: yaml.Node | None) -> dict[str, str]:
    """``{K: V}``, ``["K=V"]`` and ``[{name: K, value: V}]``."""
    out: dict[str, str] = {}
    if isinstance(node, yaml.MappingNode):
        out = {_text(key): _text(value) for key, value in node.value}
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            if isinstance(item, yaml.ScalarNode):
                name, _, value = item.value.partition("=")
                out[name] = value
            elif isinstance(item, yaml.MappingNode):
                pair = {key.value: _text(value) for key, value in item.value}
                if "name" in pair:
                    out[pair["name"]] = pair.get("value", "")
    return out
