"""Where the bytes of a checkpoint come from: a local folder here, the Hub elsewhere."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Protocol

from ckpt_tools.errors import InputError


class ByteSource(Protocol):
    """Files of one checkpoint by relative, "/"-separated name.

    ``read`` may return fewer bytes than asked only at the end of the file. Failures to reach the bytes are
    :class:`~ckpt_tools.errors.CkptError`, never a bare ``OSError``.
    """

    root: str

    def list(self) -> dict[str, int]:
        """Name -> size in bytes of every file."""
        ...

    def read(self, name: str, start: int, stop: int) -> bytes:
        """The bytes ``start`` to ``stop`` (exclusive) of a file."""
        ...

    def local(self, name: str) -> Path | None:
        """A real path of the file, when there is one."""
        ...


def leaves_folder(name: str) -> bool:
    """Whether a relative name could lead out of the folder that it is relative to.

    Backslashes and drive letters count: an index written on Windows, or to attack it, is read everywhere.
    """
    parts = name.replace("\\", "/").split("/")
    return not name or "\0" in name or name[0] in "/\\" or ".." in parts or (len(name) > 1 and name[1] == ":")


class LocalSource:
    """A local folder (only its top level: engines look no deeper), or one file and its neighbours.

    Symbolic links are followed wherever they lead, since the Hub's cache is made of links; it is *names* that
    may not leave the folder. A link that leads nowhere is listed with size 0.

    Args:
        path: A folder, or a file in it.
    """

    def __init__(self, path: str | Path) -> None:
        given = Path(path)
        self.folder = given.parent if given.is_file() else given
        self.root = str(self.folder)

    def list(self) -> dict[str, int]:
        """Name -> size of every regular file in the folder, by name."""
        found: dict[str, int] = {}
        try:
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    try:
                        status = entry.stat()
                    except OSError:
                        if entry.is_symlink():
                            found[entry.name] = 0
                        continue
                    if stat.S_ISREG(status.st_mode):
                        found[entry.name] = status.st_size
        except OSError as error:
            raise InputError(
                f"{self.root}: the folder can't be listed ({error.strerror})",
                "check the path and its permissions with `ls -la`",
            ) from error
        return dict(sorted(found.items()))

    def read(self, name: str, start: int, stop: int) -> bytes:
        """The bytes ``start`` to ``stop`` of a file; fewer when it ends before."""
        path = self.local(name)
        try:
            with open(path, "rb", buffering=0) as file:
                if start:
                    file.seek(start)
                data = file.read(stop - start)
                if len(data) == stop - start or not data:
                    return data
                # One call returns at most 2 GiB on Linux, and any call may return less than asked.
                pieces = [data]
                missing = stop - start - len(data)
                while missing and (more := file.read(missing)):
                    pieces.append(more)
                    missing -= len(more)
                return b"".join(pieces)
        except OSError as error:
            raise InputError(
                f"{path}: the file can't be read ({error.strerror})",
                "check that it exists and that you may read it with `ls -la`",
            ) from error

    def local(self, name: str) -> Path:
        """The path of a file.

        Raises:
            InputError: The name leads out of the folder.
        """
        if leaves_folder(name):
            raise InputError(
                f"{name!r} leads out of {self.root}", "file names in a checkpoint are relative to its folder"
            )
        return self.folder / name
