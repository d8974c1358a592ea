"""Shard indexes and shard names: what a folder says about which of its files belong together."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckpt_tools.container.codes import finding
from ckpt_tools.container.header import LFS_MAGIC, lfs_damage
from ckpt_tools.container.source import leaves_folder
from ckpt_tools.model import Finding, Location

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# The only index that engines look for, and its counterpart for pickles, which they don't read at all.
SAFETENSORS_INDEX = "model.safetensors.index.json"
PICKLE_INDEX = "pytorch_model.bin.index.json"
MAX_INDEX = 100_000_000

_NUMBERED = re.compile(r"^(?P<stem>.+)-(?P<part>[0-9]{1,6})-of-(?P<total>[0-9]{1,6})(?P<suffix>\.\w+)$")


@dataclass(frozen=True)
class Index:
    """A readable index.

    Attributes:
        name: Its file name.
        weight_map: Tensor name -> file name, without the entries that leave the folder.
        metadata: ``metadata`` as parsed.
    """

    name: str
    weight_map: Mapping[str, str]
    metadata: Mapping[str, Any]

    @property
    def shards(self) -> tuple[str, ...]:
        """The files it names, sorted as engines read them."""
        return tuple(sorted(set(self.weight_map.values())))


def parse_index(name: str, data: bytes) -> tuple[Index | None, tuple[Finding, ...]]:
    """Read an index; ``None`` and the reason when it can't be used at all."""

    def damaged(why: str, hint: str, line: int | None = None) -> tuple[None, tuple[Finding, ...]]:
        return None, (finding("FIL010", f"{name} {why}", Location(name, line=line), hint),)

    again = f"write {name} again from the shards, or remove it: engines then read every file of the kind"
    if data.startswith(LFS_MAGIC):
        pointer = lfs_damage(data, name)
        return None, (finding(pointer.code, pointer.message, Location(name), pointer.hint),)
    if len(data) > MAX_INDEX:
        return damaged(f"is too large to be an index (more than {MAX_INDEX:,} bytes)", again)
    try:
        document = json.loads(data.decode())
    except UnicodeDecodeError as error:
        return damaged(f"is not UTF-8 (byte {error.start})", again)
    except RecursionError:
        return damaged("is nested too deeply", again)
    except ValueError as error:
        return damaged(f"is not JSON ({error})", again, getattr(error, "lineno", None))
    if not isinstance(document, dict):
        return damaged("is not a JSON object", again)
    weight_map = document.get("weight_map")
    if not isinstance(weight_map, dict):
        return damaged("has no weight_map, expected an object of tensor name to file name", again)
    if not weight_map:
        return damaged("has an empty weight_map", again)
    if set(map(type, weight_map.values())) != {str}:
        tensor, file = next(item for item in weight_map.items() if type(item[1]) is not str)
        return damaged(f"maps {tensor!r:.80} to {file!r:.40}, expected a file name", again)
    escaping = sorted(file for file in set(weight_map.values()) if leaves_folder(file))
    findings: tuple[Finding, ...] = ()
    if escaping:
        findings = (
            finding(
                "SEC003",
                f"{name} names {escaping[0]!r:.200}, which leaves the folder; it is not read"
                + (f" (and {len(escaping) - 1} more)" if len(escaping) > 1 else ""),
                Location(name, pointer="/weight_map"),
                f"write {name} again from the shards, and mistrust its source",
            ),
        )
        outside = set(escaping)
        weight_map = {tensor: file for tensor, file in weight_map.items() if file not in outside}
    metadata = document.get("metadata")
    return Index(name, weight_map, metadata if isinstance(metadata, dict) else {}), findings


def missing_parts(names: Iterable[str]) -> tuple[str, ...]:
    """Names that a set of numbered shards lacks (``model-00002-of-00003.safetensors``), by name.

    Sets are told apart by everything but the part's number. A set with an absurd total isn't completed.
    """
    sets: dict[tuple[str, str, str], set[str]] = {}
    for name in names:
        if match := _NUMBERED.match(name):
            sets.setdefault((match["stem"], match["total"], match["suffix"]), set()).add(match["part"])
    missing: list[str] = []
    for (stem, total, suffix), parts in sets.items():
        if not len(parts) <= int(total) <= 10_000:
            continue
        width = len(next(iter(parts)))
        have = {int(part) for part in parts}
        # Parts count from 1; some writers count from 0.
        first = 0 if 0 in have else 1
        missing.extend(
            f"{stem}-{part:0{width}d}-of-{total}{suffix}"
            for part in range(first, first + int(total))
            if part not in have
        )
    return tuple(sorted(missing))


def is_numbered(name: str) -> bool:
    """Whether a file name is that of one shard of several."""
    match = _NUMBERED.match(name)
    return match is not None and int(match["total"]) > 1


def same_set(name: str, others: Iterable[str]) -> bool:
    """Whether a numbered shard belongs with one of the others (same stem and suffix)."""
    match = _NUMBERED.match(name)
    if match is None:
        return False
    return any(
        (other := _NUMBERED.match(candidate)) is not None
        and (other["stem"], other["suffix"]) == (match["stem"], match["suffix"])
        for candidate in others
    )
