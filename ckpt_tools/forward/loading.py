"""Tensors of a draft, from their bytes to canonical torch tensors.

q, k and v (and gate and up, and MLA's two down projections) land one after the other in one buffer, so that the
layers fuse them without a copy. Bytes that lie in a file are read straight into that buffer by several threads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
PIECE = 16 << 20
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


@dataclass(frozen=True)
class _Job:
    """Bytes that belong at `at`: given, or at `start` of the file at `source`."""

    at: int
    size: int
    source: str | bytes | memoryview
    start: int = 0

    def fill(self, buffer: memoryview) -> None:
        """Writes the bytes into a buffer of their size."""
        if isinstance(self.source, str):
            _fill(buffer, self.source, self.start)
        else:
            buffer[:] = self.source


def _place(whole: torch.Tensor, job: _Job) -> None:
    job.fill(whole[job.at : job.at + job.size].numpy().data)


_own = threading.local()


def _place_on_gpu(whole: torch.Tensor, job: _Job) -> None:  # pragma: no cover - needs a GPU
    """Through a pinned buffer and a stream of this thread's own."""
    if getattr(_own, "buffer", None) is None or _own.buffer.numel() < job.size:
        _own.buffer = torch.empty(max(PIECE, job.size), dtype=torch.uint8, pin_memory=True)
    with torch.cuda.device(whole.device), torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        part = _own.buffer[: job.size]
        job.fill(part.numpy().data)
        whole[job.at : job.at + job.size].copy_(part, non_blocking=True)
        torch.cuda.current_stream().synchronize()


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
        device: Where the tensors go.
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
    whole = torch.empty(total, dtype=torch.uint8, device=device)
    place = _place_on_gpu if whole.is_cuda else _place
    jobs: list[_Job] = []
    for name in names:
        info, at = infos[name], offsets[name]
        source = reader(info.name)
        if isinstance(source, (bytes, memoryview)):
            _checked(info, len(source))
            jobs.append(_Job(at, info.nbytes, source))
        else:
            _checked(info, source.stop - source.start)
            path = os.fspath(source.path)
            jobs += [
                _Job(at + piece, min(PIECE, info.nbytes - piece), path, source.start + piece)
                for piece in range(0, info.nbytes, PIECE)
            ]
    with ThreadPoolExecutor(threads or min(16, os.cpu_count() or 1)) as pool:
        list(pool.map(lambda job: place(whole, job), jobs))
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
