"""Where every byte of an output folder comes from, worked out before anything is written.

Pure: no file is opened here, so the same plan serves ``--dry-run`` and the write.

A safetensors file is an 8-byte length, a JSON header and the tensors' data without gaps. The header may end
in spaces, and that freedom is used: it is padded so that the data keeps its source offset modulo the block
size of the file system, because only then can whole blocks be shared instead of copied.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING

from ckpt_tools.errors import WriteError
from ckpt_tools.model import DTYPE_BITS, EMPTY

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

# Data starts at a multiple of this in every file that safetensors writes (safetensors `serialize`).
DATA_ALIGNMENT = 8
# A longer header is refused by every reader (safetensors `MAX_HEADER_SIZE`).
MAX_HEADER = 100_000_000
METADATA = "__metadata__"


@dataclass(frozen=True)
class FileRange:
    """Bytes ``[start, stop)`` of an existing local file."""

    path: Path
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return self.stop - self.start


@dataclass(frozen=True)
class Produced:
    """Bytes that are made while writing (synthesised or cast); ``chunks`` yields ``nbytes`` in all."""

    nbytes: int
    chunks: Callable[[], Iterator[bytes]]


@dataclass(frozen=True)
class OutTensor:
    """One tensor of an output file: what its header says and where its data comes from."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: FileRange | Produced


@dataclass(frozen=True)
class OutWeights:
    """A safetensors file to write; its tensors' data follow one another in the order given.

    Readers map values in place, so tensors of wider elements belong before those of narrower ones where
    sizes are odd; an order taken from an existing file already is like that.
    """

    name: str
    tensors: tuple[OutTensor, ...]
    metadata: Mapping[str, str] = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True)
class OutFile:
    """Any other file to write: its bytes, or a range of an existing file."""

    name: str
    data: bytes | FileRange


@dataclass(frozen=True)
class Move:
    """A source range for offset ``at``: ``head`` bytes are copied, ``blocks`` shared, the rest copied."""

    source: FileRange
    at: int
    head: int
    blocks: int

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return self.source.nbytes

    def pieces(self) -> Iterator[tuple[int, int, int, bool]]:
        """The non-empty pieces as (source start, source stop, destination, whether to share)."""
        first, last = self.source.start + self.head, self.source.start + self.head + self.blocks
        shift = self.at - self.source.start
        for start, stop, share in (
            (self.source.start, first, False),
            (first, last, True),
            (last, self.source.stop, False),
        ):
            if start < stop:
                yield start, stop, start + shift, share


@dataclass(frozen=True)
class Emit:
    """Produced bytes that go to offset ``at``; ``name`` is the tensor's, for messages."""

    name: str
    source: Produced
    at: int

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return self.source.nbytes


Step = Move | Emit


@dataclass(frozen=True)
class FileLayout:
    """One output file: ``prefix`` at offset 0 (the header, or the whole of a small file), then the steps."""

    name: str
    prefix: bytes
    steps: tuple[Step, ...]
    size: int

    @property
    def bytes_shared(self) -> int:
        """Bytes that the output will share with its source."""
        return sum(step.blocks for step in self.steps if isinstance(step, Move))


@dataclass(frozen=True)
class Layout:
    """Every file of an output folder, in writing order."""

    files: tuple[FileLayout, ...]

    @property
    def total_bytes(self) -> int:
        """Size of the output in bytes: what is shared and what is copied."""
        return sum(f.size for f in self.files)

    @property
    def bytes_shared(self) -> int:
        """Bytes that will be shared with the source's blocks (reflink)."""
        return sum(f.bytes_shared for f in self.files)

    @property
    def bytes_copied(self) -> int:
        """Bytes that will be written: headers, produced tensors, and all that can't be shared."""
        return self.total_bytes - self.bytes_shared

    @property
    def sources(self) -> tuple[Path, ...]:
        """The files that are read, each once, in order of first use."""
        return tuple(dict.fromkeys(m.source.path for f in self.files for m in f.steps if isinstance(m, Move)))


def plan_layout(
    files: Sequence[OutWeights | OutFile], block: int, shareable: Collection[Path] | None = None
) -> Layout:
    """Lay out an output folder.

    Args:
        files: What to write.
        block: Block size of the output's file system in bytes, a multiple of 8.
        shareable: The source paths whose blocks the output may share; ``None`` for all of them.

    Raises:
        WriteError: A file name that would leave the folder, a repeated name, a tensor whose dtype, shape
            and data disagree, or a header that no reader takes.
    """
    if block <= 0 or block % DATA_ALIGNMENT:
        raise ValueError(f"block size {block} is not a positive multiple of {DATA_ALIGNMENT}")
    _check_names([f.name for f in files])
    plans = [_weights(f, block) if isinstance(f, OutWeights) else _plain(f) for f in files]

    def blocks_of(step: Step) -> Step:
        if isinstance(step, Emit) or not (shareable is None or step.source.path in shareable):
            return step
        return _split(step, block)

    return Layout(
        tuple(FileLayout(p.name, p.prefix, tuple(blocks_of(s) for s in p.steps), p.size) for p in plans)
    )


def _check_names(names: Iterable[str]) -> None:
    counts = Counter(names)
    for name, count in counts.items():
        # A Windows path is the stricter reading: it also stops at backslashes and drive letters.
        if name in ("", ".", "..") or "\0" in name or PureWindowsPath(name).name != name:
            raise WriteError(
                f"{name!r} is no plain file name: an output file can't lie outside the output folder",
                "give a name without separators",
            )
        if count > 1:
            raise WriteError(f"{name!r} is to be written {count} times", "give each output file its own name")


def _plain(file: OutFile) -> FileLayout:
    if isinstance(file.data, bytes):
        return FileLayout(file.name, file.data, (), len(file.data))
    _check_range(file.name, file.data)
    steps = (Move(file.data, 0, 0, 0),) if file.data.nbytes else ()
    return FileLayout(file.name, b"", steps, file.data.nbytes)


def _weights(file: OutWeights, block: int) -> FileLayout:
    entries: dict[str, object] = {}
    if file.metadata:
        entries[METADATA] = _metadata(file)
    offset = 0
    steps: list[Step] = []
    for tensor in file.tensors:
        if tensor.name in entries or tensor.name == METADATA:
            raise WriteError(f"{file.name}: tensor name {tensor.name!r} is taken twice or reserved")
        nbytes = _check_tensor(file.name, tensor)
        entries[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + nbytes],
        }
        if nbytes:
            _append(steps, tensor, offset)
        offset += nbytes
    try:
        text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise WriteError(
            f"{file.name}: {error.object!r} holds a name or value that is no Unicode text"
        ) from None
    data_start = _data_start(8 + len(text), steps, block)
    length = data_start - 8
    if length > MAX_HEADER:
        raise WriteError(
            f"{file.name}: its header would take {length} bytes, readers take at most {MAX_HEADER}",
            "write the tensors to more files, with --max-shard-size",
        )
    prefix = length.to_bytes(8, "little") + text.ljust(length)
    return FileLayout(file.name, prefix, tuple(_shifted(steps, data_start)), data_start + offset)


def _metadata(file: OutWeights) -> dict[str, str]:
    values: Mapping[str, object] = file.metadata  # as somebody else's header had them
    for key, value in values.items():
        if not isinstance(value, str):
            raise WriteError(f"{file.name}: metadata {key!r} is {type(value).__name__}, it must be text")
    return dict(file.metadata)


def _check_tensor(file: str, tensor: OutTensor) -> int:
    """Bytes of the tensor, once its dtype, shape and data agree."""
    bits = DTYPE_BITS.get(tensor.dtype)
    if bits is None:
        raise WriteError(
            f"{file}: tensor {tensor.name!r} has dtype {tensor.dtype!r}, which safetensors lacks"
        )
    for dim in tensor.shape:
        if dim < 0:
            raise WriteError(f"{file}: tensor {tensor.name!r} has a negative dimension in {tensor.shape}")
        bits *= dim
    if bits % 8:
        raise WriteError(
            f"{file}: tensor {tensor.name!r}, {tensor.dtype}{list(tensor.shape)}, ends inside a byte"
        )
    if isinstance(tensor.data, FileRange):
        _check_range(file, tensor.data)
    if tensor.data.nbytes != bits // 8:
        raise WriteError(
            f"{file}: tensor {tensor.name!r}, {tensor.dtype}{list(tensor.shape)}, takes {bits // 8} bytes,"
            f" its data has {tensor.data.nbytes}"
        )
    return bits // 8


def _check_range(file: str, data: FileRange) -> None:
    if not 0 <= data.start <= data.stop:
        raise WriteError(f"{file}: bytes {data.start} to {data.stop} of {data.path} are no range")


def _append(steps: list[Step], tensor: OutTensor, at: int) -> None:
    """Add the tensor's data, as part of the last step when it follows that in the source too."""
    if isinstance(tensor.data, Produced):
        steps.append(Emit(tensor.name, tensor.data, at))
        return
    last = steps[-1] if steps else None
    if (
        isinstance(last, Move)
        and last.source.path == tensor.data.path
        and last.source.stop == tensor.data.start
    ):
        steps[-1] = Move(FileRange(last.source.path, last.source.start, tensor.data.stop), last.at, 0, 0)
    else:
        steps.append(Move(tensor.data, at, 0, 0))


def _data_start(least: int, steps: Sequence[Step], block: int) -> int:
    """The first data offset from ``least`` on that lets the most whole blocks keep their phase."""
    votes: Counter[int] = Counter()
    for step in steps:
        if isinstance(step, Move):
            phase = (step.source.start - step.at) % block
            if phase % DATA_ALIGNMENT == 0:
                votes[phase] += _whole_blocks(step.source, block)
    best = max(votes, key=lambda phase: (votes[phase], -((phase - least) % block)), default=None)
    if best is None or not votes[best]:
        return least + -least % DATA_ALIGNMENT
    return least + (best - least) % block


def _whole_blocks(source: FileRange, block: int) -> int:
    """Bytes of the whole blocks inside the range."""
    return max(0, source.stop // block * block - -(-source.start // block) * block)


def _shifted(steps: Iterable[Step], by: int) -> Iterator[Step]:
    for step in steps:
        if isinstance(step, Move):
            yield Move(step.source, step.at + by, step.head, step.blocks)
        else:
            yield Emit(step.name, step.source, step.at + by)


def _split(move: Move, block: int) -> Move:
    blocks = _whole_blocks(move.source, block)
    if not blocks or (move.source.start - move.at) % block:
        return move
    return Move(move.source, move.at, -move.source.start % block, blocks)
