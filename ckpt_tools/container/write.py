"""Write a checkpoint folder so that it is there as a whole or not at all.

Staged beside OUT, synced, reopened, compared with the plan and the sources, then renamed into place
(:mod:`~ckpt_tools.container.stage`). Tensor data moves as byte ranges (:mod:`~ckpt_tools.container.clone`)
and never passes through this process where the kernel can do without.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ckpt_tools.container import clone, stage
from ckpt_tools.container.fill import READABLE, compare_file, open_source, sync_file, write_file
from ckpt_tools.container.layout import FileRange, Layout, Move, OutWeights, plan_layout
from ckpt_tools.errors import InputError, WriteError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

    from ckpt_tools.container.layout import OutFile

    Progress = Callable[[int, int], None]

# Where the file system states none that can be one: the page size of most machines, and the block size of
# XFS, btrfs and ext4 as made by default.
USUAL_BLOCK = 4096

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@dataclass(frozen=True)
class Written:
    """What a write did.

    Attributes:
        path: The output folder.
        bytes_shared: Bytes whose blocks are shared with the source.
        bytes_copied: Bytes that were written.
        replaced: An older checkpoint was there.
        atomic: It got there in one step; False for a mount point, a symlink or the working directory.
        content: With ``checksum``, each file's ``sha256:…``; else ``None``.
        leftover: A stage with the old checkpoint that couldn't be removed, or ``None``.
    """

    path: Path
    bytes_shared: int
    bytes_copied: int
    replaced: bool
    atomic: bool
    content: Mapping[str, str] | None = None
    leftover: Path | None = None


def write_folder(
    out: Path | str,
    files: Sequence[OutWeights | OutFile],
    *,
    source: Path | str | None = None,
    force: bool = False,
    checksum: bool = False,
    progress: Progress | None = None,
) -> Written:
    """Write ``files`` as the folder ``out``; on any failure ``out`` is as it was and nothing is left behind.

    An ``out`` that can't be renamed over, i.e. a mount point, a symlink or the working directory, is filled
    file by file instead, config.json last: a kill in between leaves it incomplete, without a config.json.

    Args:
        out: The output folder; absent or empty, or with ``force`` a checkpoint to replace.
        files: What to write, in this order.
        source: The input as the user gave it; ``out`` may not overlap with it.
        force: Replace a checkpoint that is there.
        checksum: Compare every byte with its source after writing, and hash each file.
        progress: Called with (bytes done, bytes in all).

    Raises:
        UsageError: ``out`` overlaps with the input, or is there and may not be replaced.
        InputError: A source can't be read.
        WriteError: Anything that keeps the output from being written whole.
    """
    out = Path(os.path.abspath(out))
    paths = tuple(dict.fromkeys(r.path for r in _ranges(files)))
    with _explained(out):
        for path in (*([Path(source)] if source is not None else []), *paths):
            stage.refuse_overlap(path, out)
        stage.recover(out)
        place = stage.find_place(out, force)
        seen = _states(paths)
        layout = plan_write(out, files)
    with _terminable(), _explained(out, layout):
        _check_space(out, layout)
        staged = stage.Stage(out, place)
        done = _Count(layout.total_bytes * (2 if checksum else 1), progress)
        try:
            staged.create()
            records = [write_file(staged.payload, f, checksum, done) for f in layout.files]
            for file in layout.files:
                sync_file(staged.payload / file.name)
            stage.sync_folder(staged.payload)
            digests = [
                compare_file(staged.payload, f, r, checksum, done)
                for f, r in zip(layout.files, records, strict=True)
            ]
            if _states(paths) != seen:
                raise WriteError(f"the input of {out} changed while it was read", "wait until it is complete")
            replaced = place is stage.Place.SWAP or (
                place is stage.Place.FILL and _has_files(out, staged.path)
            )
            staged.commit()
        except BaseException:
            staged.remove(failed=True)
            raise
        gone = staged.remove(failed=False)
    shared = sum(record.shared for record in records)
    names = [file.name for file in layout.files]
    return Written(
        path=out,
        bytes_shared=shared,
        bytes_copied=layout.total_bytes - shared,
        replaced=replaced,
        atomic=place is not stage.Place.FILL,
        content={name: f"sha256:{digest}" for name, digest in zip(names, digests, strict=True) if digest}
        or None,
        leftover=None if gone else staged.path,
    )


def plan_write(out: Path | str, files: Sequence[OutWeights | OutFile]) -> Layout:
    """The layout of ``files`` on the file system where ``out`` is or will be; nothing is left on it.

    ``bytes_shared`` and ``bytes_copied`` of the result are what a write will do: whether blocks can be shared
    is tried on a file without a name.

    Raises:
        WriteError: As :func:`~ckpt_tools.container.layout.plan_layout`.
    """
    home = _existing(Path(os.path.abspath(out)))
    block = _block_size(home)
    shareable = set()
    answers: dict[int, bool] = {}
    for path in dict.fromkeys(r.path for r in _ranges(files)):
        status = _state(path)
        if status.st_size >= block:
            if status.st_dev not in answers:
                answers[status.st_dev] = _can_share(path, home, block)
            if answers[status.st_dev]:
                shareable.add(path)
    return plan_layout(files, block, shareable)


class _Count:
    """Adds up bytes and tells the caller's progress function."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._done = 0
        self._total = total
        self._progress = progress

    def __call__(self, nbytes: int) -> None:
        self._done += nbytes
        if self._progress is not None:
            self._progress(self._done, self._total)


def _ranges(files: Sequence[OutWeights | OutFile]) -> Iterator[FileRange]:
    for file in files:
        if isinstance(file, OutWeights):
            yield from (t.data for t in file.tensors if isinstance(t.data, FileRange))
        elif isinstance(file.data, FileRange):
            yield file.data


def _existing(path: Path) -> Path:
    """The nearest folder that is there: the path itself or one that it will lie in."""
    return next(p for p in (path, *path.parents) if p.is_dir())


def _block_size(folder: Path) -> int:
    if sys.platform == "win32":
        return USUAL_BLOCK
    size = os.statvfs(folder).f_bsize
    # Network file systems state the size of a request here.
    return size if 512 <= size <= 65536 and size & (size - 1) == 0 else USUAL_BLOCK


def _can_share(path: Path, folder: Path, block: int) -> bool:
    """Try to share the first block of ``path`` with a nameless file in ``folder``."""
    if not hasattr(os, "O_TMPFILE"):
        return False
    try:
        with open_source(path) as src:
            probe = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
            try:
                return clone.share(src.fileno(), probe, 0, block, 0)
            finally:
                os.close(probe)
    except OSError:  # no nameless files here, or no right to write: then nothing is promised
        return False


def _state(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise InputError(f"can't read {path}: {error.strerror}", READABLE) from error


def _states(paths: Sequence[Path]) -> list[tuple[int, int, int]]:
    """What changes when a file is written to or replaced: size, time, inode."""
    return [(s.st_size, s.st_mtime_ns, s.st_ino) for s in map(_state, paths)]


def _has_files(out: Path, staged: Path) -> bool:
    return any(name not in (staged.name, stage.LOST_AND_FOUND) for name in os.listdir(out))


def _need(layout: Layout) -> int:
    """Bytes that the output takes on disk at least: holes and shared blocks of the sources take none."""
    copied: dict[Path, int] = {}
    rest = layout.total_bytes
    for file in layout.files:
        for step in file.steps:
            if isinstance(step, Move):
                rest -= step.nbytes
                copied[step.source.path] = copied.get(step.source.path, 0) + step.nbytes - step.blocks
    if hasattr(os.stat_result, "st_blocks"):
        copied = {path: min(size, _state(path).st_blocks * 512) for path, size in copied.items()}
    return rest + sum(copied.values())


def _check_space(out: Path, layout: Layout) -> None:
    """Refuse early what can't fit. That it seems to fit promises nothing: quotas and other writers exist."""
    need = _need(layout)
    home = _existing(out)
    free = shutil.disk_usage(home).free
    if sys.platform != "win32":
        room = os.statvfs(home)
        if not room.f_blocks:  # some file systems don't say
            return
        free = (room.f_bavail if os.geteuid() else room.f_bfree) * room.f_frsize
    if need > free:
        raise _no_space(out, need, free)


def _no_space(out: Path, need: int, free: int | None = None) -> WriteError:
    found = "" if free is None else f", {free} bytes are free"
    return WriteError(
        f"no room for {out}: the output needs {need} bytes{found}; nothing was changed",
        "free some space, or choose an output folder on another disk",
    )


@contextmanager
def _explained(out: Path, layout: Layout | None = None) -> Iterator[None]:
    """Turn the system's errors into ours; ``layout`` is what the output needs, once that is known."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE and layout is not None:
            raise _no_space(out, _need(layout)) from error
        where = "" if error.filename is None else f" ({os.fsdecode(error.filename)})"
        raise WriteError(
            f"can't write {out}: {error.strerror or error}{where}",
            "check the folder and your rights on it with `ls -la`, or choose another output folder",
        ) from error


class _Terminated(BaseException):
    """SIGTERM arrived."""


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM unwind the stack, so that the stage is removed, then take its course."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return

    def unwind(_signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough; don't cut the cleaning short
        raise _Terminated

    signal.signal(signal.SIGTERM, unwind)
    try:
        yield
    except _Terminated:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)
        raise
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
