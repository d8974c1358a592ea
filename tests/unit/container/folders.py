"""Write small checkpoint folders, right and wrong, without the code under test."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ckpt_tools.model import Checkpoint, Finding

INDEX = "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 123456\n"


def framed(raw: bytes, data: bytes = b"") -> bytes:
    """A safetensors file of header bytes and data."""
    return len(raw).to_bytes(8, "little") + raw + data


def weights(tensors: Mapping[str, int], metadata: Mapping[str, str] | None = None) -> bytes:
    """A safetensors file of U8 tensors with that many elements, all bytes their position."""
    header: dict[str, Any] = {"__metadata__": dict({"format": "pt"} if metadata is None else metadata)}
    offset = 0
    for name, size in tensors.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [offset, offset + size]}
        offset += size
    return framed(json.dumps(header).encode(), bytes(index % 256 for index in range(offset)))


def draft(
    folder: Path, files: Mapping[str, bytes | str | dict[str, Any]] | None = None, *, config: Any = None
) -> Path:
    """A folder with a config.json and the files given; a dict is written as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    everything: dict[str, bytes | str | dict[str, Any]] = {"config.json": config or {"hidden_size": 4}}
    everything.update(files or {"model.safetensors": weights({"a": 4, "b": 2})})
    for name, content in everything.items():
        if isinstance(content, dict):
            content = json.dumps(content)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def sharded(folder: Path, weight_map: dict[str, str] | None = None, **files: bytes) -> Path:
    """Two shards (a, b | c) and their index."""
    return draft(
        folder,
        {
            SHARDS[0]: weights({"a": 4, "b": 2}),
            SHARDS[1]: weights({"c": 3}),
            INDEX: {
                "metadata": {"total_size": 9},
                "weight_map": weight_map or {"a": SHARDS[0], "b": SHARDS[0], "c": SHARDS[1]},
            },
            **files,
        },
    )


def codes(checkpoint: Checkpoint) -> list[str]:
    """The codes of its findings, sorted."""
    return sorted(finding.code for finding in checkpoint.findings)


def only(checkpoint: Checkpoint) -> Finding:
    """Its one finding."""
    (finding,) = checkpoint.findings
    return finding
