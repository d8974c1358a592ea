"""Sources to write from, and what a finished folder has to look like."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from safetensors import safe_open
from safetensors.numpy import save_file

from ckpt_tools.container.layout import FileRange, OutFile, OutTensor, OutWeights, Produced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import numpy as np

CONFIG = OutFile("config.json", b'{"model_type": "llama"}\n')


def save(folder: Path, tensors: dict[str, np.ndarray], name: str = "model.safetensors") -> Path:
    """Write a source with the reference library."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / name, {"format": "pt"})
    return folder / name


def ranges(path: Path, prefix: str = "") -> tuple[OutTensor, ...]:
    """The file's tensors in file order, renamed by a prefix."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    start = 8 + length
    found = []
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        data = FileRange(path, start + begin, start + end)
        found.append(OutTensor(prefix + name, entry["dtype"], tuple(entry["shape"]), data))
    return tuple(found)


def produced(name: str, chunks: list[bytes], nbytes: int | None = None) -> OutTensor:
    """A U8 tensor that is made while writing."""
    size = sum(map(len, chunks)) if nbytes is None else nbytes
    return OutTensor(name, "U8", (size,), Produced(size, lambda: iter(chunks)))


def draft(path: Path, *more: OutTensor) -> list[OutWeights | OutFile]:
    """The usual output: the file's tensors renamed, and a config."""
    return [OutWeights(path.name, (*ranges(path, "midlayer."), *more), {"format": "pt"}), CONFIG]


def read(path: Path) -> dict[str, np.ndarray]:
    """All tensors as the reference library reads them."""
    with safe_open(path, "np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below the folder with its content."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def renamed(tensor: OutTensor, name: str) -> OutTensor:
    """The same data under another name."""
    return replace(tensor, name=name)


def with_chunks(tensor: OutTensor, chunks: Callable[[], Iterator[bytes]]) -> OutTensor:
    """A produced tensor whose bytes come from elsewhere."""
    return replace(tensor, data=Produced(tensor.data.nbytes, chunks))
