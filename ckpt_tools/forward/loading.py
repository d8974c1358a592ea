"""Tensors of a draft, from their bytes to canonical torch tensors.

q, k and v (and gate and up, and MLA's two down projections) land one after the other in one buffer, so that the
layers fuse them without a copy. Bytes that lie in a file are read straight into that buffer by several threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from ckpt_tools.errors import InputError
from ckpt_tools.forward._torch import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from ckpt_tools.model import Checkpoint, Draft, TensorInfo

DTYPES: Mapping[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
# Tensors that one matrix product reads together, in the order of its rows.
FUSED = (
    ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    ("self_attn.q_a_proj.weight", "self_attn.kv_a_proj_with_mqa.weight"),
    ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
)
PIECE = 32 << 20
ALIGN = 64


class Range(Protocol):
    """Where bytes lie in a local file."""

    @property
    def path(self) -> Path:
        """The file."""

    @property
    def start(self) -> int:
        """First byte."""

    @property
    def stop(self) -> int:
        """One past the last byte."""


Reader = Callable[[str], "bytes | memoryview | Range"]


def _order(names: Iterable[str]) -> list[str]:
    """Names with the parts of a fused matrix next to each other."""
    left = dict.fromkeys(names)
    out = []
    for name in list(left):
        if name not in left:
            continue
        for group in FUSED:
            if name.endswith(group):
                stem = name[: -len(next(g for g in group if name.endswith(g)))]
                members = [stem + g for g in group if stem + g in left]
                break
        else:
            members = [name]
        for member in members:
            del left[member]
            out.append(member)
    return out


def _fill(buffer: memoryview, path: str, start: int) -> None:
    """Fills `buffer` from `path` at `start`."""
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        done = 0
        while done < len(buffer):
            got = file.readinto(buffer[done:])
            if not got:
                raise InputError(
                    f"{path} ends {len(buffer) - done} bytes early",
                    hint="the file is truncated: download or copy it again",
                )
            done += got


def _checked(info: TensorInfo, size: int) -> None:
    if size != info.nbytes:
        raise InputError(
            f"{info.file}: tensor {info.name!r} should hold {info.nbytes} bytes, found {size}",
            hint="the file is truncated or its header is wrong: ckpt verify PATH",
        )


def load(
    infos: Mapping[str, TensorInfo],
    reader: Callable[[str], bytes | memoryview | Range],
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    threads: int | None = None,
) -> dict[str, torch.Tensor]:
    """Tensors by canonical name.

    Args:
        infos: Canonical name -> what the header says of it.
        reader: Name in the files -> its bytes, or where they lie in a local file.
        device: Where the tensors go; on a GPU they travel through pinned memory.
        dtype: Floating-point tensors are cast to it; `None` keeps theirs.
        threads: Reading threads; `None` is one per core, at most 16.

    Raises:
        InputError: A dtype that torch lacks, or bytes that don't agree with the header.
    """
    names = _order(infos)
    for name in names:
        if infos[name].dtype not in DTYPES:
            raise InputError(
                f"tensor {infos[name].name!r} has dtype {infos[name].dtype}, which a head can't compute with",
                hint="ckpt fix-keys IN OUT --dtype bf16",
            )
    offsets, total = {}, 0
    for name in names:
        # parts of one matrix have to touch; a new matrix starts aligned
        touching = any(name.endswith(group[1:]) for group in FUSED)
        total = total if touching else -(-total // ALIGN) * ALIGN
        offsets[name] = total
        total += infos[name].nbytes
    target = torch.device(device)
    pinned = target.type == "cuda"
    staged = torch.empty(total, dtype=torch.uint8, pin_memory=pinned)
    view = staged.numpy().data
    jobs: list[tuple[int, int, str, int]] = []
    for name in names:
        info, at = infos[name], offsets[name]
        source = reader(info.name)
        if isinstance(source, (bytes, memoryview)):
            _checked(info, len(source))
            view[at : at + info.nbytes] = source
        else:
            _checked(info, source.stop - source.start)
            jobs += [
                (at + piece, min(PIECE, info.nbytes - piece), os.fspath(source.path), source.start + piece)
                for piece in range(0, info.nbytes, PIECE)
            ]
    whole = torch.empty(total, dtype=torch.uint8, device=target) if pinned else staged

    def run(job: tuple[int, int, str, int]) -> None:
        at, size, path, start = job
        _fill(view[at : at + size], path, start)
        if pinned:  # pragma: no cover - needs a GPU
            whole[at : at + size].copy_(staged[at : at + size], non_blocking=True)

    with ThreadPoolExecutor(threads or min(16, os.cpu_count() or 1)) as pool:
        list(pool.map(run, jobs))
    if pinned:  # pragma: no cover - needs a GPU
        for name in names:
            if isinstance(reader(infos[name].name), (bytes, memoryview)):
                part = slice(offsets[name], offsets[name] + infos[name].nbytes)
                whole[part].copy_(staged[part], non_blocking=True)
        torch.cuda.synchronize(target)
    out = {}
    for name in names:
        info, at = infos[name], offsets[name]
        tensor = whole[at : at + info.nbytes].view(DTYPES[info.dtype]).view(info.shape)
        out[name] = tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor
    return out


def load_tensors(
    draft: Draft,
    checkpoint: Checkpoint,
    reader: Callable[[str], bytes | memoryview | Range],
    *,
    skip: Sequence[str] = (),
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    threads: int | None = None,
) -> dict[str, torch.Tensor]:
    """The draft's tensors by canonical name; see :func:`load`. `skip` names those not to read."""
    infos = {
        canonical: checkpoint.tensors[name]
        for canonical, name in draft.tensors.items()
        if canonical not in skip and name in checkpoint.tensors
    }
    return load(infos, reader, device=device, dtype=dtype, threads=threads)


def shapes_of(draft: Draft, checkpoint: Checkpoint) -> dict[str, tuple[int, ...]]:
    """Canonical name -> shape, from headers alone."""
    return {
        canonical: checkpoint.tensors[name].shape
        for canonical, name in draft.tensors.items()
        if name in checkpoint.tensors
    }
