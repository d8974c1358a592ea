"""What the kernel says of a process: is it there, does it work, which files does it write."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class Usage:
    """What a process and its descendants have used so far: CPU in clock ticks, I/O in bytes."""

    cpu: int
    io: int


def _stat(proc: Path, pid: int) -> tuple[int, str, int] | None:
    """Parent, state and CPU ticks; the name in brackets may hold anything, so the last bracket counts."""
    try:
        fields = (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return int(fields[1]), fields[0], int(fields[11]) + int(fields[12])
    except (OSError, ValueError, IndexError):
        return None


def pids(proc: Path = PROC) -> list[int]:
    """Processes that there are; empty where there is no /proc."""
    try:
        return sorted(int(name) for name in os.listdir(proc) if name.isdigit())
    except OSError:
        return []


def alive(pid: int, proc: Path = PROC) -> bool:
    """Whether *pid* runs (a zombie doesn't)."""
    stat = _stat(proc, pid)
    return stat is not None and stat[1] not in "ZX"


def tree(pid: int, proc: Path = PROC) -> list[int]:
    """*pid* and its descendants."""
    children: dict[int, list[int]] = {}
    for other in pids(proc):
        if (stat := _stat(proc, other)) is not None:
            children.setdefault(stat[0], []).append(other)
    out, queue = [], [pid]
    while queue:
        current = queue.pop()
        out.append(current)
        queue += children.get(current, [])
    return out


def usage(pid: int, proc: Path = PROC) -> Usage | None:
    """What *pid* and its descendants have used; ``None`` when it is gone."""
    if not alive(pid, proc):
        return None
    cpu = io = 0
    for member in tree(pid, proc):
        if (stat := _stat(proc, member)) is not None:
            cpu += stat[2]
        io += _io(proc / str(member) / "io")
    return Usage(cpu, io)


def _io(path: Path) -> int:
    """Bytes read and written: what storage moved and what passed through calls; 0 where that is private."""
    try:
        pairs = dict(line.split(": ") for line in path.read_text().splitlines())
        return sum(int(pairs.get(key, 0)) for key in ("rchar", "wchar", "read_bytes", "write_bytes"))
    except (OSError, ValueError):
        return 0


def resident(pid: int, proc: Path = PROC) -> int:
    """Bytes of memory that *pid* and its descendants hold."""
    total = 0
    for member in tree(pid, proc):
        try:
            total += int((proc / str(member) / "statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            continue
    return total * os.sysconf("SC_PAGE_SIZE")


def writers(path: Path, proc: Path = PROC) -> list[int]:
    """Processes that hold *path* open for writing, oldest first."""
    try:
        wanted = path.stat()
    except OSError:
        return []
    out = []
    for pid in pids(proc):
        folder = proc / str(pid) / "fd"
        try:
            names = os.listdir(folder)
        except OSError:  # another user's, or gone
            continue
        if any(_writes(folder / name, proc / str(pid) / "fdinfo" / name, wanted) for name in names):
            out.append(pid)
    return out


def _writes(link: Path, info: Path, wanted: os.stat_result) -> bool:
    try:
        found = link.stat()
        if (found.st_dev, found.st_ino) != (wanted.st_dev, wanted.st_ino):
            return False
        flags = next(line for line in info.read_text().splitlines() if line.startswith("flags:"))
        return int(flags.split()[1], 8) & (os.O_WRONLY | os.O_RDWR) != 0
    except (OSError, ValueError, StopIteration):
        return False
