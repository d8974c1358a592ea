"""Which output file each tensor goes to."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ckpt_tools.model import DTYPE_BITS

if TYPE_CHECKING:
    from ckpt_tools.convert.plan import Tensor

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def nbytes(tensor: Tensor) -> int:
    """Size of a tensor's data in the output."""
    count = 1
    for dim in tensor.shape:
        count *= dim
    return (count * DTYPE_BITS[tensor.dtype] + 7) // 8


def _name(index: int, total: int) -> str:
    return SINGLE if total == 1 else f"model-{index + 1:05d}-of-{total:05d}.safetensors"


def assign_shards(tensors: tuple[Tensor, ...], max_shard_size: int | None) -> tuple[Tensor, ...]:
    """Keep the input's grouping, or fill shards up to a size in order; a larger tensor gets a shard of its own."""
    groups: list[list[Tensor]] = []
    if max_shard_size is None:
        by_file: dict[str, list[Tensor]] = {}
        for t in tensors:
            by_file.setdefault(t.shard, []).append(t)
        groups = list(by_file.values())
    else:
        room = 0
        for t in tensors:
            size = nbytes(t)
            if not groups or size > room:
                groups.append([])
                room = max_shard_size
            groups[-1].append(t)
            room -= size
    return tuple(replace(t, shard=_name(i, len(groups))) for i, group in enumerate(groups) for t in group)
