"""Write the files of a layout into a folder, and compare what arrived with where it came from."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckpt_tools.container import clone
from ckpt_tools.container.layout import Emit
from ckpt_tools.errors import InputError, WriteError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import FileIO
    from pathlib import Path

    from ckpt_tools.container.layout import FileLayout, Move

# Compared at each end of every range after the write.
EDGE = 4096
CHUNK = 4 << 20
READABLE = "check that it is there and that you may read it with `ls -la`"


@dataclass(frozen=True)
class EmitRecord:
    """What is remembered of produced bytes: both ends, and the hash when every byte is to be compared."""

    head: bytes
    tail: bytes
    sha256: str | None


@dataclass(frozen=True)
class FileRecord:
    """How a file was written: bytes that share their source's blocks, and the produced parts by offset."""

    shared: int
    emitted: dict[int, EmitRecord]


def open_source(path: Path) -> FileIO:
    """Open a source for reading, unbuffered.

    Raises:
        InputError: It can't be read.
    """
    try:
        return open(path, "rb", buffering=0)
    except OSError as error:
        raise InputError(f"can't read {path}: {error.strerror}", READABLE) from error


def write_file(folder: Path, plan: FileLayout, checksum: bool, moved: Callable[[int], None]) -> FileRecord:
    """Write one file, which must not be there yet; ``moved`` is told of bytes done.

    Raises:
        InputError: A source can't be read or ends too early.
        WriteError: A tensor's chunks aren't as long as promised.
        OSError: The system refuses to write.
    """
    shared = 0
    emitted = {}
    with open(folder / plan.name, "xb", buffering=0) as dst:
        _write_all(dst, plan.prefix)
        moved(len(plan.prefix))
        dst.truncate(plan.size)  # holes of the sources are left out, one at the end too
        for step in plan.steps:
            if isinstance(step, Emit):
                emitted[step.at] = _emit(dst, step, plan.name, checksum, moved)
            else:
                shared += _move(dst, step, moved)
    return FileRecord(shared, emitted)


def _move(dst: FileIO, move: Move, moved: Callable[[int], None]) -> int:
    shared = 0
    with open_source(move.source.path) as src:
        for start, stop, at, share in move.pieces():
            if share and clone.share(src.fileno(), dst.fileno(), start, stop, at):
                shared += stop - start
                moved(stop - start)
                continue
            try:
                clone.copy(src.fileno(), dst.fileno(), start, stop, at, moved)
            except clone.SourceTooShort:
                raise InputError(
                    f"{move.source.path} has {os.fstat(src.fileno()).st_size} bytes, its header promises"
                    f" at least {move.source.stop}",
                    "it is truncated: copy or download it again",
                ) from None
    return shared


def _emit(dst: FileIO, emit: Emit, file: str, checksum: bool, moved: Callable[[int], None]) -> EmitRecord:
    dst.seek(emit.at)
    head = tail = b""
    done = 0
    digest = hashlib.sha256() if checksum else None
    for chunk in emit.source.chunks():
        done += len(chunk)
        if done > emit.nbytes:
            break
        _write_all(dst, chunk)
        clone.start_writing(dst.fileno(), emit.at + done - len(chunk), len(chunk))
        if len(head) < EDGE:
            head += bytes(chunk[: EDGE - len(head)])
        tail = (tail + bytes(chunk[-EDGE:]))[-EDGE:]
        if digest is not None:
            digest.update(chunk)
        moved(len(chunk))
    if done != emit.nbytes:
        came = f"{done} or more" if done > emit.nbytes else f"{done}"
        raise WriteError(f"{file}: tensor {emit.name!r} takes {emit.nbytes} bytes, {came} came")
    return EmitRecord(head, tail, digest.hexdigest() if digest is not None else None)


def _write_all(dst: FileIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[dst.write(view) :]


def sync_file(path: Path) -> None:
    """Make a written file durable."""
    with open(path, "r+b", buffering=0) as file:
        os.fsync(file.fileno())


def compare_file(
    folder: Path, plan: FileLayout, record: FileRecord, checksum: bool, moved: Callable[[int], None]
) -> str | None:
    """Compare a written file with its plan and its sources.

    The header and the size are compared as a whole, each range at both ends, or, with ``checksum``, byte by
    byte as the disk gives it back.

    Returns:
        With ``checksum``, the file's SHA-256 in hex, else ``None``.

    Raises:
        WriteError: Something differs.
    """
    digest = hashlib.sha256() if checksum else None
    with open(folder / plan.name, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size != plan.size:
            raise WriteError(f"{plan.name} came out with {size} bytes, {plan.size} were written")
        if digest is not None and hasattr(os, "posix_fadvise"):
            # It is synced, so the cache can go: what is compared is what the disk holds.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        prefix = _read_at(file, 0, len(plan.prefix))
        if prefix != plan.prefix:
            raise _differs(plan.name, 0)
        if digest is not None:
            digest.update(prefix)
            moved(len(prefix))
        for step in plan.steps:
            if isinstance(step, Emit):
                same = _same_emitted(file, step, record.emitted[step.at], digest, moved)
            else:
                same = _same_moved(file, step, digest, moved)
            if not same:
                raise _differs(plan.name, step.at)
    return None if digest is None else digest.hexdigest()


def _same_moved(file: FileIO, move: Move, digest: hashlib._Hash | None, moved: Callable[[int], None]) -> bool:
    with open_source(move.source.path) as src:
        for start, stop in _windows(move.nbytes, every=digest is not None):
            found = _read_at(file, move.at + start, stop - start)
            if found != _read_at(src, move.source.start + start, stop - start):
                return False
            if digest is not None:
                digest.update(found)
                moved(len(found))
    return True


def _same_emitted(
    file: FileIO, emit: Emit, record: EmitRecord, digest: hashlib._Hash | None, moved: Callable[[int], None]
) -> bool:
    if digest is None:
        head = _read_at(file, emit.at, len(record.head))
        tail = _read_at(file, emit.at + emit.nbytes - len(record.tail), len(record.tail))
        return head == record.head and tail == record.tail
    own = hashlib.sha256()
    for start, stop in _windows(emit.nbytes, every=True):
        found = _read_at(file, emit.at + start, stop - start)
        own.update(found)
        digest.update(found)
        moved(len(found))
    return own.hexdigest() == record.sha256


def _windows(length: int, every: bool) -> Iterator[tuple[int, int]]:
    """The parts of ``length`` bytes to compare: all of it in chunks, or both ends."""
    if every:
        for start in range(0, length, CHUNK):
            yield start, min(start + CHUNK, length)
    else:
        yield 0, min(EDGE, length)
        yield max(0, length - EDGE), length


def _read_at(file: FileIO, start: int, length: int) -> bytes:
    """``length`` bytes from ``start``, fewer at the end of the file."""
    file.seek(start)
    parts = []
    while length:
        data = file.read(length)
        if not data:
            break
        parts.append(data)
        length -= len(data)
    return b"".join(parts)


def _differs(name: str, at: int) -> WriteError:
    return WriteError(
        f"{name}: what the disk gives back from byte {at} on isn't what was written",
        "check the disk; nothing was changed",
    )
