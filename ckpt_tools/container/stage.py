"""The folder beside OUT in which an output grows until it is whole, and the swap that puts it in place.

A stage is ``.<name>.ckpt-<16 hex digits>`` and holds::

    lock      the writer's pid, under flock while the writer lives
    out/      what becomes OUT
    backup/   the old OUT, only where two folders can't be exchanged in one call

Whatever a killed writer leaves is in its stage, unlocked, and :func:`recover` of the next one clears it.
``lock`` is the first thing made and the last thing removed, so a stage without it is empty.

An OUT that can't be renamed over (a mount point, a symlink, the working directory) is filled file by file
from a stage inside it. That isn't atomic: its old config.json goes first and the new one comes last, so a
folder caught in between doesn't pass for a checkpoint.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import secrets
import shutil
import stat
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from ckpt_tools.errors import UsageError, WriteError

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIG = "config.json"
WEIGHT_SUFFIXES = frozenset({".safetensors", ".bin", ".pt"})
LOCK, PAYLOAD, BACKUP = "lock", "out", "backup"
# What an empty ext4 file system holds; neither content nor ours to remove.
LOST_AND_FOUND = "lost+found"

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


class Place(Enum):
    """What OUT is, and so how an output gets there."""

    FRESH = "absent or an empty folder: one rename"
    SWAP = "a checkpoint to replace: one exchange"
    FILL = "a folder that can't be renamed over: file by file"


def find_place(out: Path, force: bool) -> Place:
    """How to put an output at ``out``.

    Raises:
        UsageError: Something is there and ``force`` is off, or it is no checkpoint.
        WriteError: A file or a dangling symlink is there.
    """
    if not os.path.lexists(out):
        return Place.FRESH
    if not out.exists():
        raise WriteError(f"{out} is a symlink to nothing", "remove it or choose another output folder")
    if not out.is_dir():
        raise WriteError(
            f"{out} is a file, the output is a folder", "remove it or choose another output folder"
        )
    fixed = out.is_symlink() or is_mount(out) or os.path.samefile(out, os.curdir)
    names = [name for name in os.listdir(out) if name != LOST_AND_FOUND]
    if names:
        if not force:
            raise UsageError(
                f"{out} exists and isn't empty", "replace it with --force, or choose another folder"
            )
        if not any(name == CONFIG or Path(name).suffix in WEIGHT_SUFFIXES for name in names):
            raise UsageError(
                f"{out} holds no checkpoint (no {CONFIG}, no weight files): --force won't replace it",
                "choose another output folder, or remove this one yourself",
            )
    if fixed:
        return Place.FILL
    return Place.SWAP if names else Place.FRESH


def is_mount(path: Path) -> bool:
    """Whether something is mounted there, bind mounts within one file system included."""
    if os.path.ismount(path):
        return True
    try:
        table = Path("/proc/self/mountinfo").read_bytes()
    except OSError:
        return False
    real = os.fsencode(os.path.realpath(path))
    # proc(5): field 5 is the mount point, with space, tab, newline and backslash as octal escapes
    points = (line.split(b" ")[4] for line in table.splitlines())
    return any(re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m[1], 8)]), p) == real for p in points)


def refuse_overlap(source: Path, out: Path) -> None:
    """Refuse an OUT that is IN, lies in it or holds it, by any path that leads there.

    Args:
        source: The input: a folder, or a single file, which may lie beside OUT.
        out: The output folder, which needn't exist.

    Raises:
        UsageError: They overlap.
    """
    hint = "choose an output folder elsewhere; the input is never changed in place"
    inputs = _lineage(source)
    outputs = _lineage(out)
    if out.exists() and outputs[0] in inputs:
        same = inputs[0] == outputs[0]
        raise UsageError(f"{out} is the input itself" if same else f"{out} holds the input {source}", hint)
    if source.is_dir() and inputs[0] in outputs:
        raise UsageError(f"{out} lies inside the input {source}", hint)


def _lineage(path: Path) -> list[tuple[int, int]]:
    """(device, inode) of the path, where it exists, and of every folder that it lies in."""
    real = Path(os.path.realpath(path))
    found = []
    for place in (real, *real.parents):
        try:
            status = os.stat(place)
        except (FileNotFoundError, NotADirectoryError):
            continue
        found.append((status.st_dev, status.st_ino))
    return found


class Stage:
    """A stage of our own: made, filled by the caller at :attr:`payload`, then put in place or removed."""

    def __init__(self, out: Path, place: Place) -> None:
        self._out = out
        self._place = place
        self._made_parents = _missing_parents(out)
        home, name = (Path(os.path.realpath(out)), None) if place is Place.FILL else (out.parent, out.name)
        self._home = home
        self._name = name or home.name
        self.path = home / ""
        self._lock = -1

    @property
    def payload(self) -> Path:
        """The folder to fill."""
        return self.path / PAYLOAD

    def create(self) -> None:
        """Make the stage and lock it; :meth:`remove` is right at any point of it."""
        self._home.mkdir(parents=True, exist_ok=True)
        while self._lock < 0:
            self.path = self._home / f".{self._name}.ckpt-{secrets.token_hex(8)}"
            self.path.mkdir(0o700)
            self._lock = _new_lock(self.path)
        os.write(self._lock, f"{os.getpid()}\n".encode())
        self.payload.mkdir()

    def commit(self) -> None:
        """Put the payload, which is synced, in OUT's place."""
        if self._place is Place.FILL:
            _fill(self._home, self.payload, self.path.name)
            return
        if self._place is Place.FRESH:
            try:
                os.rename(self.payload, self._out)
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise WriteError(
                        f"{self._out} appeared while the output was written",
                        "see who made it, then run this again with another output folder or --force",
                    ) from None
                raise
        elif not _exchange(self.payload, self._out):
            _swap_by_backup(self.path, self._out)
        sync_folder(self._home)

    def remove(self, failed: bool) -> bool:
        """Remove the stage; after a failure also the parents of OUT that were made for it.

        Returns:
            Whether nothing is left of it.
        """
        gone = self.path == self._home or _clear(self.path, self._out)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        if failed:
            for parent in self._made_parents:
                try:
                    parent.rmdir()
                except OSError:  # in use by now
                    break
        return gone


def _missing_parents(out: Path) -> list[Path]:
    """Folders that have to be made for OUT to lie in, deepest first."""
    missing = []
    for parent in out.parents:
        if parent.exists():
            break
        missing.append(parent)
    return missing


def recover(out: Path) -> None:
    """Clear what killed writers of ``out`` left: put a backup back if OUT is missing, remove their stages."""
    out = Path(os.path.abspath(out))
    for stage in _stages(out):
        lock = _take(stage)
        if lock is not None:
            _clear(stage, out)
            os.close(lock)


def _stages(out: Path) -> Iterator[Path]:
    """Stages of ``out``, beside it and inside it."""
    inside = Path(os.path.realpath(out))
    for home, name in ((out.parent, out.name), (inside, inside.name)):
        pattern = re.compile(rf"\.{re.escape(name)}\.ckpt-[0-9a-f]{{16}}")
        try:
            names = os.listdir(home)
        except OSError:  # not there, or no folder: then nothing was staged in it
            continue
        yield from (home / entry for entry in sorted(names) if pattern.fullmatch(entry))


def _take(stage: Path) -> int | None:
    """Lock an abandoned stage. None when it has a living owner, or is gone, or is no stage of ours."""
    try:
        lock = os.open(stage / LOCK, os.O_RDWR)
    except OSError:
        try:
            stage.rmdir()  # killed before the lock was made, or after it was removed
        except OSError:
            pass  # not empty, so not ours
        return None
    try:
        _lock(lock)
    except OSError:
        os.close(lock)
        return None
    return lock


def _new_lock(stage: Path) -> int:
    """The lock of a new stage, held; -1 when another process took the stage for an abandoned one."""
    try:
        lock = os.open(stage / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except FileNotFoundError:
        return -1
    try:
        _lock(lock)
    except BlockingIOError:
        os.close(lock)
        return -1
    except OSError:
        pass  # a file system without locks: nobody else gets one either, so nobody removes the stage
    if os.fstat(lock).st_nlink:
        return lock
    os.close(lock)
    return -1


def _lock(fd: int) -> None:
    """Take the exclusive lock at once, or raise OSError."""
    if sys.platform == "win32":
        raise OSError(errno.ENOLCK, "no flock on this system")
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _clear(stage: Path, out: Path) -> bool:
    """Remove a stage whose lock is ours. A backup goes back while OUT is missing; False if anything stays."""
    backup, payload = stage / BACKUP, stage / PAYLOAD
    if backup.exists() and payload.exists():  # stopped between the two renames of a swap
        try:
            os.rename(backup, out)
        except OSError:  # OUT was made anew by someone else: the old one isn't ours to delete
            return False
    for folder in (payload, backup):
        _remove_tree(folder)
    try:
        (stage / LOCK).unlink(missing_ok=True)
        stage.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _remove_tree(folder: Path) -> None:
    """Remove a folder, read-only folders in it included; what can't be removed stays."""
    for root, _, _ in os.walk(folder):
        if not os.access(root, os.W_OK | os.X_OK):
            try:
                os.chmod(root, stat.S_IRWXU)
            except OSError:  # not ours; removing it below fails too
                pass
    shutil.rmtree(folder, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step (renameat2, Linux); False where there is no such call."""
    if not sys.platform.startswith("linux"):
        return False
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:  # musl before 1.2.6
        return False
    if call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
        return False
    if code == errno.EXDEV:
        raise WriteError(
            f"{other} can't be replaced: it belongs to a lower layer of an overlay, such as a container's image",
            "remove it yourself first, or choose another output folder",
        )
    raise OSError(code, os.strerror(code), os.fspath(other))


def _swap_by_backup(stage: Path, out: Path) -> None:
    backup = stage / BACKUP
    os.rename(out, backup)
    try:
        os.rename(stage / PAYLOAD, out)
    except BaseException:
        if not out.exists():
            os.rename(backup, out)
        raise


def _fill(home: Path, payload: Path, stage_name: str) -> None:
    """Replace the content of a folder file by file, config.json last."""
    (home / CONFIG).unlink(missing_ok=True)
    new = sorted(os.listdir(payload), key=lambda name: (name == CONFIG, name))
    keep = {stage_name, LOST_AND_FOUND}
    for name in os.listdir(home):
        old = home / name
        if name in keep or (name in new and not old.is_dir()):
            continue
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old)
        else:
            old.unlink()
    for name in new:
        if name == CONFIG:
            sync_folder(home)
        os.replace(payload / name, home / name)
    sync_folder(home)


def sync_folder(folder: Path) -> None:
    """Make the folder's entries durable, where the system syncs folders at all."""
    if sys.platform == "win32":
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
    finally:
        os.close(fd)
