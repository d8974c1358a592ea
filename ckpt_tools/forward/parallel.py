"""Tensor parallelism under torchrun: the same head, cut over ranks as the engines cut it.

q, k, v, gate and up by rows, o and down by columns with a sum after, lm_head by rows with a join after; fc, norms and
the embedding whole on every rank.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckpt_tools.errors import UsageError
from ckpt_tools.forward._torch import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Group:
    """The ranks of this torchrun; a :class:`~ckpt_tools.forward.layers.Comm`."""

    rank: int
    size: int
    device: torch.device

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over ranks."""
        out = x.contiguous()
        torch.distributed.all_reduce(out)
        return out

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """The ranks' shares joined along the last dimension, in rank order."""
        parts = [torch.empty_like(x) for _ in range(self.size)]
        torch.distributed.all_gather(parts, x.contiguous())
        return torch.cat(parts, dim=-1)


@contextmanager
def torchrun(size: int, device: str) -> Iterator[Group]:
    """Joins the group of `size` ranks that torchrun started; gloo on CPUs, NCCL on GPUs.

    Raises:
        UsageError: This process wasn't started by torchrun, or with another number of ranks.
    """
    found = os.environ.get("WORLD_SIZE")
    if found is None or int(found) != size:
        raise UsageError(
            f"--tp {size} runs under torchrun with {size} processes, found {found or 'no torchrun'}",
            hint=f"torchrun --nproc-per-node {size} -m ckpt_tools smoke … --tp {size}",
        )
    gpu = device.startswith("cuda")
    local = int(os.environ.get("LOCAL_RANK", "0"))
    place = torch.device(f"cuda:{local}" if gpu else "cpu")
    if gpu:  # pragma: no cover - needs GPUs
        torch.cuda.set_device(place)
    torch.distributed.init_process_group("nccl" if gpu else "gloo")
    try:
        yield Group(torch.distributed.get_rank(), size, place)
    finally:
        torch.distributed.destroy_process_group()
