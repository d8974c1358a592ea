"""A draft folder and its reports, as small as a push needs them."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from ckpt_tools.model import Engine, Report, Subject, Target

if TYPE_CHECKING:
    from pathlib import Path

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "draft_vocab_size": 96,
}


def weights(seed: int, size: int) -> bytes:
    """A safetensors file of one tensor."""
    data = (hashlib.sha256(str(seed).encode()).digest() * (size // 32 + 1))[:size]
    head = json.dumps({f"layers.{seed}.weight": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}})
    return struct.pack("<Q", len(head)) + head.encode() + data


def make_draft(folder: Path, *, shards: int = 2, size: int = 300_000) -> Path:
    """A sharded draft."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2))
    index = {}
    for number in range(1, shards + 1):
        name = f"model-{number:05}-of-{shards:05}.safetensors" if shards > 1 else "model.safetensors"
        (folder / name).write_bytes(weights(number, size))
        index[f"layers.{number}.weight"] = name
    if shards > 1:
        text = json.dumps({"metadata": {"total_size": size * shards}, "weight_map": index})
        (folder / "model.safetensors.index.json").write_text(text)
    return folder


def passing(folder: Path, **changes: Any) -> Report:
    """The report of a verify that passes."""
    values: dict[str, Any] = {
        "command": "verify",
        "subject": Subject(str(folder), format="safeailab", algorithm="eagle3", fingerprint="sha256:0"),
        "verdict": "pass",
        "target": Target(id="tiny", origin="registry", hf_repo="base/target"),
        "engines": (Engine("sglang", "0.5.23", "0.5.23"),),
        "facts": {"num_parameters": 1234, "draft": {"num_layers": 1, "capture_layers": (2, 4, 5)}},
    }
    return Report(**{**values, **changes})


def smoked(folder: Path, **changes: Any) -> Report:
    """The report of a smoke test of exactly these weights."""
    content = {
        p.name: f"sha256:{hashlib.sha256(p.read_bytes()).hexdigest()}" for p in folder.glob("*.safetensors")
    }
    subject = Subject(str(folder), format="safeailab", algorithm="eagle3", content=content)
    return Report("smoke", changes.pop("subject", subject), changes.pop("verdict", "pass"), **changes)


def render(report: Report) -> str:
    """A report as JSON."""
    return json.dumps(_plain(report), sort_keys=True)


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
