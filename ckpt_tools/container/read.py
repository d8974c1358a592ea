"""Read the values of tensors: raw bytes, in chunks, or as plain integers."""

from __future__ import annotations

import sys
from array import array
from pathlib import Path
from typing import TYPE_CHECKING

from ckpt_tools.container.source import ByteSource, LocalSource
from ckpt_tools.errors import InputError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckpt_tools.model import Checkpoint, TensorInfo

CHUNK = 8 * 1024 * 1024

# Only types whose size is the same everywhere ("l" isn't).
_TYPECODES = {
    "BOOL": "B",
    "U8": "B",
    "I8": "b",
    "U16": "H",
    "I16": "h",
    "U32": "I",
    "I32": "i",
    "U64": "Q",
    "I64": "q",
}


#: Dtypes that :func:`read_ints` takes.
INTEGERS = frozenset(_TYPECODES)


def read_tensor(checkpoint: Checkpoint, name: str, source: ByteSource | None = None) -> bytes:
    """All bytes of a tensor: little-endian, row-major, as safetensors stores them.

    Args:
        checkpoint: Where the tensor is.
        name: Its name as in the files.
        source: Where the bytes are, when not in the local folder ``checkpoint.root``.

    Raises:
        InputError: There is no such tensor, or the file ends before it.
        Unavailable: A pickle, and torch isn't installed.
    """
    return b"".join(iter_tensor(checkpoint, name, source))


def iter_tensor(
    checkpoint: Checkpoint, name: str, source: ByteSource | None = None, chunk: int = CHUNK
) -> Iterator[bytes]:
    """The bytes of a tensor in pieces of ``chunk`` bytes (a multiple of 8 keeps elements whole).

    Raises:
        InputError: There is no such tensor, or the file ends before it.
        Unavailable: A pickle, and torch isn't installed.
    """
    tensor = find(checkpoint, name)
    source = source or local_source(checkpoint)
    if is_pickled(checkpoint, tensor):
        from ckpt_tools.container.pickle import read_pickled_tensor

        path = source.local(tensor.file)
        if path is None:
            raise Unavailable(
                f"{tensor.file} is a pickle, which can't be read over byte ranges", "download it first"
            )
        whole = memoryview(read_pickled_tensor(path, name))
        for start in range(0, len(whole), chunk):
            yield bytes(whole[start : start + chunk])
        return
    for start in range(tensor.start, tensor.stop, chunk):
        yield _exactly(source, tensor, start, min(start + chunk, tensor.stop))


def read_rows(
    checkpoint: Checkpoint, name: str, first: int, stop: int, source: ByteSource | None = None
) -> bytes:
    """The bytes of some rows of a tensor, ``first`` to ``stop`` (exclusive).

    Raises:
        InputError: There is no such tensor, or the file ends before it.
        Unavailable: A pickle, and torch isn't installed.
    """
    tensor = find(checkpoint, name)
    row = tensor.nbytes // tensor.shape[0]
    if is_pickled(checkpoint, tensor):
        return read_tensor(checkpoint, name, source)[first * row : stop * row]
    source = source or local_source(checkpoint)
    return _exactly(source, tensor, tensor.start + first * row, tensor.start + stop * row)


def _exactly(source: ByteSource, tensor: TensorInfo, start: int, stop: int) -> bytes:
    data = source.read(tensor.file, start, stop)
    if len(data) != stop - start:
        raise InputError(
            f"{tensor.file} ends inside tensor {tensor.name!r}: byte {start + len(data):,} of {tensor.stop:,}",
            "the file is truncated; download or copy it again",
        )
    return data


def read_ints(checkpoint: Checkpoint, name: str, source: ByteSource | None = None) -> array[int]:
    """The elements of an integer or bool tensor, flat, without numpy: for d2t and t2d tables.

    Raises:
        InputError: The tensor isn't there, isn't of integers, or can't be read.
    """
    tensor = find(checkpoint, name)
    typecode = _TYPECODES.get(tensor.dtype)
    if typecode is None:
        raise InputError(
            f"{tensor.file}: tensor {name!r} is {tensor.dtype}, expected integers",
            f"one of {', '.join(_TYPECODES)} is readable as a table",
        )
    values = array(typecode)
    values.frombytes(read_tensor(checkpoint, name, source))
    if sys.byteorder == "big":
        values.byteswap()
    return values


def find(checkpoint: Checkpoint, name: str) -> TensorInfo:
    """The tensor of that name.

    Raises:
        InputError: There is none; the hint has the nearest name.
    """
    tensor = checkpoint.tensors.get(name)
    if tensor is None:
        import difflib

        near = difflib.get_close_matches(name, list(checkpoint.tensors)[:10_000], n=1)
        raise InputError(
            f"{checkpoint.path}: no tensor {name!r}", f"did you mean {near[0]!r}?" if near else None
        )
    return tensor


def local_source(checkpoint: Checkpoint) -> LocalSource:
    """The folder that a checkpoint was opened from.

    Raises:
        InputError: It wasn't a local folder, so a source is needed.
    """
    if checkpoint.root.startswith("hf://"):
        raise InputError(
            f"{checkpoint.path} is not on this machine", "pass the source that it was opened from"
        )
    return LocalSource(Path(checkpoint.root))


def is_pickled(checkpoint: Checkpoint, tensor: TensorInfo) -> bool:
    """Whether a tensor's bytes have no place of their own in the file."""
    return any(info.kind == "pickle" and info.name == tensor.file for info in checkpoint.files)
