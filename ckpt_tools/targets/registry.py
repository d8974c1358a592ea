"""The registry: packaged data and the user's own entries, looked up by id, alias or Hub name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from ckpt_tools.errors import InputError
from ckpt_tools.model import Rope, Target
from ckpt_tools.targets.rope import canonical_rope
from ckpt_tools.targets.user import registry_path

# Fields of an entry that carry over into a Target under the same name.
PLAIN = (
    "model_type",
    "hidden_size",
    "num_hidden_layers",
    "vocab_size",
    "max_position_embeddings",
    "tie_word_embeddings",
    "dtype",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "rms_norm_eps",
    "quantization",
    "num_nextn_predict_layers",
    "embed_tensor",
    "lm_head_tensor",
    "hf_repo",
)


@dataclass(frozen=True)
class Registry:
    """Entries as written, the targets made of them, and the names that find them (lower case)."""

    entries: Mapping[str, Mapping[str, Any]]
    targets: Mapping[str, Target]
    names: Mapping[str, str]
    sources: Mapping[str, str]


def find(text: str) -> Target | None:
    """The registry's target of this id, alias or Hub name, in any case; ``None`` when there is none.

    A revision (``@main``) is ignored. A path (absolute, ``./``, ``~``, a Hub cache folder, or more than one
    slash) finds by its last part, as verifiers are often recorded by the path they were trained from. The
    file system isn't looked at: a caller that prefers an existing path does so first.
    """
    registry = load()
    for name in _readings(text):
        found = registry.names.get(name)
        if found is not None:
            return registry.targets[found]
    return None


def all_targets() -> tuple[Target, ...]:
    """Every target, packaged ones first, in the registry's order."""
    return tuple(load().targets.values())


def suggest(text: str, limit: int = 3) -> tuple[str, ...]:
    """Ids of the targets whose names come nearest to *text*, best first."""
    registry = load()
    wanted = text.strip().lower().rpartition("/")[2]
    import difflib  # for what isn't found alone

    close = difflib.get_close_matches(wanted, list(registry.names), n=4 * limit, cutoff=0.55)
    starts = sorted(name for name in registry.names if wanted and name.startswith(wanted))
    return tuple(dict.fromkeys(registry.names[name] for name in [*close, *starts]))[:limit]


def target_json(target: Target) -> dict[str, Any]:
    """Everything known about *target* for ``ckpt targets show``: values, sources, notes.

    ``source_table`` explains the tags that ``sources`` uses (repository, commit, path).
    """
    data: dict[str, Any] = {
        f.name: _plain(getattr(target, f.name)) for f in fields(target) if f.name != "config"
    }
    registry = load()
    entry = registry.entries.get(target.id) if target.origin == "registry" else None
    if entry is not None:
        for key in ("wrapper", "mla", "bos_token_id", "eos_token_id", "pad_token_id", "confidence"):
            data[key] = entry.get(key)
        used = " ; ".join(target.sources.values())
        data["source_table"] = {tag: text for tag, text in registry.sources.items() if tag in used}
    return data


def target_of(entry: Mapping[str, Any]) -> Target:
    """The Target of one registry entry (``schemas/target.v1.json``)."""
    wrapper = entry.get("wrapper") or {}
    architectures = tuple(entry.get("architectures") or ())
    text_architectures = tuple(wrapper.get("text_architectures") or ()) if wrapper else architectures
    source = dict(entry.get("source") or {})
    if "rope_theta" in source or "rope_scaling" in source:
        source["rope"] = " ; ".join(
            dict.fromkeys(source.pop(key) for key in ("rope_theta", "rope_scaling") if key in source)
        )
    return Target(
        id=entry["id"],
        origin="registry",
        architectures=architectures,
        text_architectures=text_architectures,
        text_model_type=wrapper.get("text_model_type") if wrapper else entry.get("model_type"),
        rope=_rope(entry),
        aliases=tuple(entry.get("aliases") or ()),
        sources=source,
        notes=tuple(entry.get("notes") or ()),
        **{name: entry.get(name) for name in PLAIN},
    )


def names_of(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Every name that finds *entry*, in lower case."""
    names = [entry["id"], entry.get("hf_repo"), *(entry.get("aliases") or ())]
    return tuple(dict.fromkeys(name.lower() for name in names if name))


def _rope(entry: Mapping[str, Any]) -> Rope | None:
    return canonical_rope(entry.get("rope_theta"), entry.get("rope_scaling"), None)


def load() -> Registry:
    """The packaged registry with the user's entries; read again only when the user's file changed."""
    path = registry_path()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return _packaged()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: can't read the target registry: {error}") from error
    return _with_user(str(path), text)


@lru_cache(maxsize=1)
def _packaged() -> Registry:
    data = json.loads((Path(__file__).parent / "data" / "targets.json").read_text("utf-8"))
    entries = {entry["id"]: entry for entry in data["targets"]}
    names = {name: entry["id"] for entry in data["targets"] for name in names_of(entry)}
    # The bare model name finds too, as long as it names one model alone.
    tails: dict[str, set[str]] = {}
    for name, owner in names.items():
        tails.setdefault(name.rpartition("/")[2], set()).add(owner)
    for tail, owners in tails.items():
        if tail not in names and len(owners) == 1:
            names[tail] = next(iter(owners))
    targets = {key: target_of(entry) for key, entry in entries.items()}
    return Registry(entries, targets, names, data["sources"])


@lru_cache(maxsize=4)
def _with_user(path: str, text: str) -> Registry:
    base = _packaged()
    entries, names, targets = dict(base.entries), dict(base.names), dict(base.targets)
    for entry in _user_entries(path, text):
        if base.entries.get(entry["id"]) == entry:
            continue
        for name in names_of(entry):
            if name in names:
                raise InputError(
                    f"{path}: the target {entry['id']!r} takes the name {name!r}, which belongs to "
                    f"{names[name]!r}; an entry of yours never replaces another",
                    "rename it or remove the entry",
                )
        entries[entry["id"]] = entry
        targets[entry["id"]] = target_of(entry)
        names.update(dict.fromkeys(names_of(entry), entry["id"]))
    return Registry(entries, targets, names, base.sources)


def _user_entries(path: str, text: str) -> Iterator[dict[str, Any]]:
    """Entries of the user's file; what would break a lookup is refused here, the rest when it is added."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}", "repair it or remove it") from error
    entries = data.get("targets") if isinstance(data, dict) else None
    if not isinstance(entries, list):
        raise InputError(f'{path}: expected {{"targets": [...]}}', "repair it or remove it")
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
            raise InputError(f"{path}: a target without an id", "repair it or remove it")
        for key, kind in (("architectures", list), ("aliases", list), ("wrapper", dict), ("source", dict)):
            if not isinstance(entry.get(key), kind | None):
                raise InputError(f"{path}: {entry['id']}: {key} must be a {kind.__name__} or null")
        yield entry


def _readings(text: str) -> Iterator[str]:
    """The names that *text* may stand for, the literal one first."""
    name = text.strip().removeprefix("hf://").lower()
    yield name
    name = name.partition("@")[0].rstrip("/")
    yield name
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".", "..", "~")]
    is_path = name.startswith((".", "/", "~")) or len(parts) > 2
    for part in reversed(parts):
        if part.startswith("models--"):  # a folder of the Hub's cache: models--owner--name/snapshots/<sha>
            yield part.removeprefix("models--").replace("--", "/", 1)
            return
    if is_path and parts:
        yield "/".join(parts[-2:])
        yield parts[-1]


def _plain(value: Any) -> Any:
    if isinstance(value, Rope):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
