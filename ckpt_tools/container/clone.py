"""Move byte ranges between open files by the cheapest way that the file systems allow.

In order: share blocks (the FICLONERANGE ioctl, XFS and btrfs), ``copy_file_range``, ``sendfile``, and read
and write. What the kernel or the file system lacks is passed over; a full disk or a broken one is not.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import struct
import sys
from typing import TYPE_CHECKING

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

# _IOW(0x94, 13, struct file_clone_range), linux/fs.h
FICLONERANGE = 0x4020940D
# One ioctl or call never takes longer than a moment, so that progress shows and Ctrl-C is heard;
# copy_file_range and sendfile also stop short of 2 GiB.
SHARE_CALL = 1 << 30
COPY_CALL = 16 << 20
BUFFER = 4 << 20
# Not worth a call of its own before the final sync.
SMALL = 1 << 20

_SYNC_FILE_RANGE_WRITE = 2

# "Not here, not between these two": the next way may work.
UNSUPPORTED = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM, errno.ENOTTY, errno.ENOTSUP}
)


class SourceTooShort(Exception):
    """The source ended before the range did."""


def share(src: int, dst: int, start: int, stop: int, at: int) -> bool:
    """Let ``dst`` at ``at`` share the blocks ``[start, stop)`` of ``src``; False when that can't be done.

    All offsets are multiples of the file system's block size. After a False, part of the range may be
    shared already; copying it again is harmless.

    Raises:
        OSError: A real failure, such as a full disk.
    """
    if not sys.platform.startswith("linux"):
        return False
    for begin in range(start, stop, SHARE_CALL):
        length = min(SHARE_CALL, stop - begin)
        try:
            fcntl.ioctl(dst, FICLONERANGE, struct.pack("qQQQ", src, begin, length, at + begin - start))
        except OSError as error:
            if error.errno in UNSUPPORTED:
                return False
            raise
    return True


def copy(src: int, dst: int, start: int, stop: int, at: int, moved: Callable[[int], None]) -> None:
    """Copy ``[start, stop)`` of ``src`` to offset ``at`` of ``dst``; holes stay holes.

    ``dst`` must have its full size already and nothing written there yet. ``moved`` is told of bytes done.

    Raises:
        SourceTooShort: ``src`` is shorter than ``stop``.
        OSError: The last way failed too, or the disk is full.
    """
    if os.fstat(src).st_size < stop:
        raise SourceTooShort
    position = start
    for begin, end in data_extents(src, start, stop):
        if begin > position:
            moved(begin - position)
        _copy_extent(src, dst, begin, end, at + begin - start, moved)
        position = end
    if stop > position:
        moved(stop - position)


def data_extents(fd: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """The parts of ``[start, stop)`` that aren't holes; one part where the file system can't tell."""
    if not hasattr(os, "SEEK_DATA"):
        yield start, stop
        return
    while start < stop:
        try:
            begin = os.lseek(fd, start, os.SEEK_DATA)
            end = os.lseek(fd, begin, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # a hole up to the end of the file
                return
            yield start, stop
            return
        if begin >= stop:
            return
        yield begin, min(end, stop)
        start = end


def _copy_extent(src: int, dst: int, start: int, stop: int, at: int, moved: Callable[[int], None]) -> None:
    ways = [_copy_file_range, _sendfile, _read_write]
    while start < stop:
        try:
            done = ways[0](src, dst, start, min(COPY_CALL, stop - start), at)
        except OSError as error:
            if error.errno not in UNSUPPORTED or len(ways) == 1:
                raise
            done = 0
        if done:
            start_writing(dst, at, done)
            start, at = start + done, at + done
            moved(done)
        elif len(ways) > 1:  # some file systems answer 0 instead of an error
            ways.pop(0)
        else:
            raise SourceTooShort


def start_writing(fd: int, at: int, length: int) -> None:
    """Have the kernel write these bytes to the disk now, so that the disk works while the copying goes on.

    Only a hint (sync_file_range, Linux): what fails here is found by the sync at the end.
    """
    call = _sync_file_range()
    if call is not None and length >= SMALL:
        call(fd, ctypes.c_int64(at), ctypes.c_int64(length), _SYNC_FILE_RANGE_WRITE)


@functools.cache
def _sync_file_range() -> Any:
    return getattr(ctypes.CDLL(None), "sync_file_range", None) if sys.platform.startswith("linux") else None


def _copy_file_range(src: int, dst: int, start: int, length: int, at: int) -> int:
    if not hasattr(os, "copy_file_range"):
        return 0
    return os.copy_file_range(src, dst, length, start, at)


def _sendfile(src: int, dst: int, start: int, length: int, at: int) -> int:
    if not sys.platform.startswith("linux"):  # elsewhere only sockets take it
        return 0
    os.lseek(dst, at, os.SEEK_SET)
    return os.sendfile(dst, src, start, length)


def _read_write(src: int, dst: int, start: int, length: int, at: int) -> int:
    os.lseek(src, start, os.SEEK_SET)
    data = os.read(src, min(length, BUFFER))
    os.lseek(dst, at, os.SEEK_SET)
    return os.write(dst, data) if data else 0
