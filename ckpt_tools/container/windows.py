"""Whole tensors read in pieces by several threads, over memory maps where there is a file to map."""

from __future__ import annotations

import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ckpt_tools.container.read import find, is_pickled, iter_tensor
from ckpt_tools.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from typing_extensions import Self

    from ckpt_tools.container.source import ByteSource
    from ckpt_tools.model import Checkpoint, TensorInfo

WINDOW = 32 * 1024 * 1024  # bytes that one task maps; a multiple of every block and page size
_MAX_THREADS = 8


def workers(threads: int | None = None) -> ThreadPoolExecutor:
    """A pool of that many threads; of as many as there are cores, at most 8, by default."""
    return ThreadPoolExecutor(threads or min(os.cpu_count() or 1, _MAX_THREADS))


class _Adds(Protocol):
    def __add__(self, other: Self, /) -> Self: ...


Part = TypeVar("Part", bound=_Adds)


def fold(
    checkpoint: Checkpoint,
    kernels: Mapping[str, Callable[[Any], Part]],
    empty: Part,
    source: ByteSource,
    threads: int | None = None,
) -> dict[str, Part]:
    """What a kernel finds in each tensor: the sum of its answers to pieces of whole elements, each read once.

    Memory stays flat: a few windows of :data:`WINDOW` bytes, whatever the size of the checkpoint.

    Args:
        checkpoint: Where the tensors are.
        kernels: By tensor name, what reads the bytes of a piece. Pieces come in order; threads are many.
        empty: The answer for no bytes, which changes no sum.
        source: Where the bytes are.
        threads: How many to use; as many as there are cores (at most 8) by default.

    Raises:
        InputError: There is no such tensor, or a file ends before it.
        Unavailable: A pickle, and torch isn't installed.
    """
    parts = dict.fromkeys(kernels, empty)
    maps = _Maps()
    with workers(threads) as pool:
        pending = []
        for name, kernel in kernels.items():
            tensor = find(checkpoint, name)
            path = None if is_pickled(checkpoint, tensor) else source.local(tensor.file)
            if path is None:
                # Not mappable: the bytes come in pieces, one after the other.
                pieces = iter_tensor(checkpoint, name, source, WINDOW)
                pending.append((name, pool.submit(_read, kernel, empty, pieces)))
                continue
            if tensor.start == tensor.stop:
                continue
            mapped = maps.of(str(path), tensor)
            for start in range(tensor.start, tensor.stop, WINDOW):
                stop = min(start + WINDOW, tensor.stop)
                pending.append((name, pool.submit(_window, kernel, mapped, start, stop)))
        for name, future in pending:
            parts[name] += future.result()
    return parts


def _read(kernel: Callable[[Any], Part], empty: Part, pieces: Iterator[bytes]) -> Part:
    for piece in pieces:
        empty += kernel(piece)
    return empty


class _Maps:
    """Memory maps of files, each made once; they close when the last view of them goes."""

    def __init__(self) -> None:
        self._maps: dict[str, mmap.mmap] = {}

    def of(self, path: str, tensor: TensorInfo) -> mmap.mmap:
        """The map that holds a tensor.

        Raises:
            InputError: The file can't be mapped, or ends before the tensor does.
        """
        if path not in self._maps:
            try:
                with open(path, "rb") as file:
                    self._maps[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:
                raise InputError(
                    f"{path}: the file can't be mapped ({error})", "check with `ls -la`"
                ) from error
        mapped = self._maps[path]
        if len(mapped) < tensor.stop:
            raise InputError(
                f"{tensor.file} ends inside tensor {tensor.name!r}: "
                f"{len(mapped):,} bytes, {tensor.stop:,} needed",
                "the file is truncated; download or copy it again",
            )
        return mapped


def _window(kernel: Callable[[Any], Part], mapped: mmap.mmap, start: int, stop: int) -> Part:
    part = kernel(memoryview(mapped)[start:stop])
    if hasattr(mmap, "MADV_DONTNEED"):
        # Whole pages inside the window leave this process; they stay in the page cache.
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        length = stop // mmap.PAGESIZE * mmap.PAGESIZE - first
        if length > 0:
            mapped.madvise(mmap.MADV_DONTNEED, first, length)
    return part
