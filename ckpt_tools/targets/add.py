"""Adding a target to the user's own registry."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckpt_tools.errors import InputError, UsageError, WriteError
from ckpt_tools.schemas import violations
from ckpt_tools.targets.config import unwrap
from ckpt_tools.targets.local import read_target
from ckpt_tools.targets.registry import PLAIN, load, names_of, target_of
from ckpt_tools.targets.user import registry_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.model import Target

EMBED_SUFFIX = "embed_tokens.weight"


def add_target(config_path: str | Path, target_id: str | None = None) -> Target:
    """Put the target at *config_path* into the user's registry and return it as the registry now has it.

    Args:
        config_path: A folder with config.json, a config.json, or a JSON file that is an entry already
            (it has an ``id``).
        target_id: The id to give it; by default the folder's name in lower case.

    Raises:
        InputError: The path can't be read, or what it says doesn't fit the schema.
        UsageError: The id or an alias belongs to another target.
        WriteError: The registry file can't be written.
    """
    entry = _entry(Path(config_path).expanduser(), target_id)
    _validate(entry, str(config_path))
    registry = load()
    present = registry.entries.get(entry["id"])
    if present == entry:
        return registry.targets[entry["id"]]
    for name in names_of(entry):
        owner = registry.names.get(name)
        if owner is not None:
            raise UsageError(
                f"the registry already has {name!r} (target {owner}), with other facts",
                f"see `ckpt targets show {owner}`; an entry never replaces another, so give this one "
                "another id",
            )
    _append(entry)
    return target_of(entry)


def entry_of(target: Target, target_id: str, where: str) -> dict[str, Any]:
    """The registry entry of a target read from files; *where* is named as the source of each value."""
    source = {
        field: f"{where}: {text}"
        for field, text in target.sources.items()
        if field in PLAIN or field == "rope"
    }
    if "rope" in source:
        text = source.pop("rope")
        source.update(rope_theta=text, rope_scaling=text)
    if "architectures" in target.sources:
        source["architectures"] = f"{where}: {target.sources['architectures']}"
    rope = target.rope
    scaling = dict(rope.scaling or {}) if rope else {}
    if rope is not None and rope.partial_rotary_factor is not None:
        scaling["partial_rotary_factor"] = rope.partial_rotary_factor
    return {
        "id": target_id,
        "aliases": [],
        **{name: getattr(target, name) for name in PLAIN},
        "architectures": list(target.architectures) or None,
        "wrapper": _wrapper(target),
        "rope_theta": rope.theta if rope else None,
        "rope_scaling": scaling or None,
        "source": source,
        "notes": list(target.notes),
    }


def _entry(path: Path, target_id: str | None) -> dict[str, Any]:
    written = _written_entry(path)
    if written is not None:
        return written if target_id is None else {**written, "id": target_id}
    target = read_target(path)
    folder = path if path.is_dir() else path.parent
    name = target_id or folder.resolve().name.lower()
    return entry_of(target, name, str(folder.resolve()))


def _written_entry(path: Path) -> dict[str, Any] | None:
    """The file's own content when it is a registry entry rather than a model's config."""
    if not path.is_file() or path.suffix != ".json":
        return None
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None  # reading it as a config says what is wrong
    if isinstance(data, dict) and isinstance(data.get("id"), str) and "source" in data:
        return data
    return None


def _wrapper(target: Target) -> dict[str, Any] | None:
    path = unwrap(target.config).path if target.config is not None else ""
    if not path:
        return None
    embed = target.embed_tensor
    return {
        "text_config_path": path,
        "text_architectures": list(target.text_architectures) or None,
        "text_model_type": target.text_model_type,
        "tensor_prefix": embed.removesuffix(EMBED_SUFFIX) if embed and embed.endswith(EMBED_SUFFIX) else None,
    }


def _validate(entry: Mapping[str, Any], where: str) -> None:
    for at, message in violations("target.v1.json", entry):
        raise InputError(f"{where}: {at or 'the entry'}: {message}", "see schemas/target.v1.json")


def _append(entry: Mapping[str, Any]) -> None:
    """Rewrite the user's file with one entry more; readers see the old or the new one, never half."""
    path = registry_path()
    try:
        present = json.loads(path.read_text("utf-8"))["targets"] if path.exists() else []
        text = json.dumps({"schema": "ckpt-tools/targets.v1", "targets": [*present, entry]}, indent=1)
        path.parent.mkdir(parents=True, exist_ok=True)
        stage = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with stage.open("w", encoding="utf-8") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
            stage.replace(path)
        finally:
            stage.unlink(missing_ok=True)
    except OSError as error:
        raise WriteError(
            f"{path}: can't write the target registry: {error.strerror}",
            "set CKPT_TARGETS to a file that you can write",
        ) from error
