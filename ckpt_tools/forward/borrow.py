"""What a head borrows from its target, read by byte ranges: some embedding rows, and a head where it has none.

A target of hundreds of gigabytes costs the rows that are looked up, and its output head only when the draft's own files
hold none.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckpt_tools.container.read import is_pickled, read_rows, read_tensor
from ckpt_tools.container.windows import workers
from ckpt_tools.errors import InputError
from ckpt_tools.forward._torch import torch
from ckpt_tools.forward.loading import DTYPES, load
from ckpt_tools.forward.parts import NOTHING, Rows, Table, TargetParts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ckpt_tools.container.source import ByteSource
    from ckpt_tools.forward.parts import Lookup
    from ckpt_tools.forward.spec import HeadSpec
    from ckpt_tools.model import Checkpoint, Target, TensorInfo

# Rows that a stand-in for an unknown output head has at most.
STAND_IN_ROWS = 8192
_REQUESTS = 8  # that run at once
# Endings under which quantised layers store their weights; none of them is a matrix of floats.
PACKED = (".qweight", ".weight_packed", ".qzeros", ".weight_scale", ".weight_scale_inv", ".scales")


@dataclass(frozen=True)
class FileRange:
    """Bytes of a local file."""

    path: Path
    start: int
    stop: int


class Reader:
    """Bytes of a checkpoint's tensors, or where they lie; counts what it reads.

    Args:
        checkpoint: The checkpoint.
        source: Where its bytes are.
    """

    def __init__(self, checkpoint: Checkpoint, source: ByteSource) -> None:
        self.checkpoint, self.source = checkpoint, source
        self.bytes_read = 0

    def __call__(self, name: str) -> bytes | FileRange:
        """A whole tensor; a range where the file is local, since that is read faster."""
        info = self.checkpoint.tensors[name]
        self.bytes_read += info.nbytes
        if not is_pickled(self.checkpoint, info):
            path = self.source.local(info.file)
            if path is not None:
                return FileRange(path, info.start, info.stop)
        return read_tensor(self.checkpoint, name, self.source)

    def rows(self, name: str, ids: Sequence[int]) -> bytes:
        """Rows of a matrix, neighbours in one read. ``ids`` are ascending and inside it."""
        info = self.checkpoint.tensors[name]
        if is_pickled(self.checkpoint, info):
            whole, width = self._pickled(name), info.nbytes // info.shape[0]
            return b"".join(whole[i * width : (i + 1) * width] for i in ids)
        starts = [at for at in range(len(ids)) if at == 0 or ids[at] != ids[at - 1] + 1]
        runs = [(ids[at], ids[end - 1] + 1) for at, end in zip(starts, [*starts[1:], len(ids)], strict=True)]

        def read(run: tuple[int, int]) -> bytes:
            return read_rows(self.checkpoint, name, *run, self.source)

        if self.source.local(info.file) is not None:
            pieces = [read(run) for run in runs]
        else:
            with workers(_REQUESTS) as pool:  # over a network, each run of rows costs a round trip
                pieces = list(pool.map(read, runs))
        out = b"".join(pieces)
        self.bytes_read += len(out)
        return out

    @functools.cache  # noqa: B019  # one per run, and the run ends with it
    def _pickled(self, name: str) -> bytes:
        self.bytes_read += self.checkpoint.tensors[name].nbytes
        return read_tensor(self.checkpoint, name, self.source)


def _matrix(target: Target, checkpoint: Checkpoint, name: str | None, what: str) -> TensorInfo:
    """The target's embedding or head, when it is a matrix that can be computed with.

    Raises:
        InputError: It isn't there, or it is packed.
    """
    info = checkpoint.tensors.get(name) if name is not None else None
    stem = "lm_head" if what == "lm_head" else "embed"
    if info is None:
        packed = [n for n in checkpoint.tensors if stem in n and n.endswith(PACKED)]
        if packed:
            raise InputError(
                f"{target.id}: its {what} is quantised ({packed[0]}), and rows of a packed matrix can't be borrowed",
                f"give a copy of the target whose {what} is not quantised, or put the matrix into the draft",
            )
        raise InputError(
            f"{target.id}: no {what} among its {len(checkpoint.tensors)} tensors",
            "is this folder the whole target? `ckpt inspect` lists its tensors",
        )
    if len(info.shape) != 2 or info.dtype not in DTYPES or not DTYPES[info.dtype].is_floating_point:
        raise InputError(
            f"{info.file}: {info.name} is {info.dtype} {list(info.shape)}, expected a matrix of floats",
            f"give a copy of the target whose {what} is not quantised",
        )
    return info


def borrow(
    spec: HeadSpec,
    target: Target,
    reader: Reader,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> TargetParts:
    """What ``spec`` takes from the target: nothing, embedding rows when they are first looked up, a whole head.

    Args:
        spec: The head.
        target: The target's facts, with the names of its matrices as in its files.
        reader: Of the target's files.
        device, dtype: What the rows are handed out in.

    Raises:
        InputError: A matrix is absent or packed, or its width isn't the draft's.
    """
    files = reader.checkpoint
    embed: Lookup | None = None
    head: torch.Tensor | None = None
    if spec.embedding == "target":
        info = _matrix(target, files, target.embed_tensor, "embed_tokens")
        _check_width(info, spec.hidden_size, target)

        embed = _lookup(info, reader, whole=spec.head == "embedding", device=device, dtype=dtype)
    if spec.head == "target":
        tied = target.lm_head_tensor is None and target.tie_word_embeddings
        name = target.embed_tensor if tied else target.lm_head_tensor
        info = _matrix(target, files, name, "lm_head")
        _check_width(info, spec.hidden_size, target)
        head = load({"lm_head.weight": info}, reader, device=device, dtype=dtype)["lm_head.weight"]
    return TargetParts(embed, head) if embed is not None or head is not None else NOTHING


def _lookup(
    info: TensorInfo, reader: Reader, *, whole: bool, device: torch.device | str, dtype: torch.dtype
) -> Lookup:
    """Rows when they are asked for; the whole matrix at once for a head that is tied to it."""
    if whole:
        return Table(load({info.name: info}, reader, device=device, dtype=dtype)[info.name])

    def fetch(ids: Sequence[int]) -> torch.Tensor:
        raw = bytearray(reader.rows(info.name, ids))
        return torch.frombuffer(raw, dtype=DTYPES[info.dtype]).view(len(ids), info.shape[1])

    return Rows(fetch, info.shape[0], dtype=dtype, device=device)


def _check_width(info: TensorInfo, hidden_size: int, target: Target) -> None:
    if info.shape[1] != hidden_size:
        raise InputError(
            f"{target.id}: {info.name} is {info.shape[1]} wide, the draft's hidden states are {hidden_size}",
            "is this the target that the draft was trained for?",
        )


def stand_in(spec: HeadSpec, table: torch.Tensor | None, seed: int = 0) -> TargetParts:
    """Parts of a target that isn't at hand, the same for everyone who asks: for comparing two drafts with each other.

    Args:
        spec: The head.
        table: An embedding [vocab, hidden] to use as the target's, such as the other draft's own.
        seed: Of what is drawn.
    """
    hidden = spec.hidden_size

    def fetch(ids: Sequence[int]) -> torch.Tensor:
        if table is not None:
            return table.index_select(0, torch.tensor(ids))
        rows = [torch.randn(hidden, generator=torch.Generator().manual_seed(seed + i)) for i in ids]
        return torch.stack(rows).mul(hidden**-0.5)

    size = table.shape[0] if table is not None else spec.vocab_size or STAND_IN_ROWS
    embed = Rows(fetch, size, dtype=torch.float32) if spec.embedding == "target" else None
    head = None
    if spec.head == "target":
        rows = min(spec.draft_vocab_size or size, STAND_IN_ROWS)
        head = torch.randn(rows, hidden, generator=torch.Generator().manual_seed(seed)) * hidden**-0.5
    return TargetParts(embed, head)


__all__ = ["Reader", "borrow", "stand_in"]
