"""Which of a folder's files vLLM reads, and in which order their tensors come.

``model_executor/model_loader/default_loader.py:147-263`` and ``weight_utils.py:585-620``: the first kind that is there
is taken (``consolidated*.safetensors``, ``*.safetensors``, ``*.bin``, ``*.pt``); an index limits the safetensors files
to those that it names; without one every file of the kind is read, a left-over one too.
"""

from __future__ import annotations

import json
import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from ckpt_tools.container.index import SAFETENSORS_INDEX, Index
from ckpt_tools.engines.vllm.modules import load_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ckpt_tools.engines.vllm.modules import Shape
    from ckpt_tools.model import Checkpoint, FileInfo

PATTERNS = ("consolidated*.safetensors", "*.safetensors", "*.bin", "*.pt")
# weight_utils.py:620-640
TRAINING = ("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt")


def tensors(checkpoint: Checkpoint) -> list[tuple[str, Shape]]:
    """Names and shapes in the order in which they are offered: files in natural order, names sorted within each.

    A name that several files hold comes several times.

    Raises:
        Refused: No file to read, or one that the index names is missing.
    """
    chosen = _chosen(checkpoint)
    out: list[tuple[str, Shape]] = []
    for file in sorted(chosen, key=lambda info: _natural(info.name)):
        rows = _rows(checkpoint, file)
        out += sorted(rows) if file.kind == "safetensors" else rows
    return out


def _chosen(checkpoint: Checkpoint) -> list[FileInfo]:
    top = [file for file in checkpoint.files if "/" not in file.name]
    for pattern in PATTERNS:
        found = [f for f in top if fnmatchcase(f.name, pattern) and not f.name.endswith(TRAINING)]
        if not found:
            continue
        index = checkpoint.extra.get("index")
        if pattern == "*.safetensors" and isinstance(index, Index) and index.name == SAFETENSORS_INDEX:
            named = set(index.shards)
            missing = named - {f.name for f in found}
            if missing:
                raise load_error("FileNotFoundError", "Weight files referenced in index but missing:")
            found = [f for f in found if f.name in named]
        return found
    raise load_error("RuntimeError", "Cannot find any model weights with")


def _rows(checkpoint: Checkpoint, file: FileInfo) -> list[tuple[str, Shape]]:
    """One file's tensors, from its own header where there is one: the checkpoint keeps one place per name."""
    if file.header:
        header: Mapping[str, Mapping[str, Iterable[int]]] = json.loads(file.header)
        return [(name, tuple(row["shape"])) for name, row in header.items() if name != "__metadata__"]
    return [(info.name, info.shape) for info in checkpoint.tensors.values() if info.file == file.name]


def _natural(name: str) -> list[tuple[int, int, str]]:
    parts = re.split(r"(\d+)", name)
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts]
