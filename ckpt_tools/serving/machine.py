"""What this machine offers a server, as a snapshot: GPUs, memory, disk, shared memory, ports."""

from __future__ import annotations

import importlib
import os
import shutil
import socket
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckpt_tools.serving import process

SHM = Path("/dev/shm")
_STALE = ("psm_*", "nccl-*", "torch_*")  # of multiprocessing, NCCL and torch


@dataclass(frozen=True)
class GpuProcess:
    """A process on a GPU and the memory that it holds there, in bytes (0 where the driver doesn't say)."""

    pid: int
    name: str
    used: int


@dataclass(frozen=True)
class Gpu:
    """A GPU; memory in bytes."""

    index: int
    name: str
    total: int
    used: int
    processes: tuple[GpuProcess, ...] = ()


@dataclass(frozen=True)
class Segment:
    """A shared-memory segment, and the processes that have it mapped or open."""

    path: Path
    size: int
    owners: tuple[int, ...]


@dataclass(frozen=True)
class Bytecode:
    """A bytecode cache that doesn't belong to its source."""

    path: Path
    source: Path
    reason: str


def gpus(proc: Path = process.PROC) -> tuple[Gpu, ...] | None:
    """The GPUs, by NVML where its Python binding is there, else by ``nvidia-smi``; ``None`` without a driver."""
    found = _by_nvml(proc)
    return _by_smi(proc) if found is None else found


def _by_nvml(proc: Path) -> tuple[Gpu, ...] | None:
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    try:
        out = []
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            name = nvml.nvmlDeviceGetName(handle)
            holders = tuple(
                GpuProcess(p.pid, _name(proc, p.pid), int(p.usedGpuMemory or 0))
                for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            )
            text = name.decode() if isinstance(name, bytes) else str(name)
            out.append(Gpu(index, text, int(memory.total), int(memory.used), holders))
        return tuple(out)
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()


def _by_smi(proc: Path) -> tuple[Gpu, ...] | None:
    rows = _smi("--query-gpu=index,uuid,name,memory.total,memory.used")
    if rows is None:
        return None
    holders: dict[str, list[GpuProcess]] = {}
    for uuid, pid, used in _smi("--query-compute-apps=gpu_uuid,pid,used_memory") or []:
        holders.setdefault(uuid, []).append(GpuProcess(int(pid), _name(proc, int(pid)), _mib(used)))
    return tuple(
        Gpu(int(index), name, _mib(total), _mib(used), tuple(holders.get(uuid, ())))
        for index, uuid, name, total, used in rows
    )


def _smi(query: str) -> list[list[str]] | None:
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]


def _mib(text: str) -> int:
    return int(text) * 1024**2 if text.isdigit() else 0


def _name(proc: Path, pid: int) -> str:
    try:
        return (proc / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return "?"


def segments(shm: Path = SHM, proc: Path = process.PROC) -> tuple[Segment, ...]:
    """Shared-memory segments of servers and who uses them."""
    files = sorted(path for pattern in _STALE for path in shm.glob(pattern))
    if not files:
        return ()
    users: dict[str, set[int]] = {str(path): set() for path in files}
    for pid in process.pids(proc):
        for name in _mapped(proc / str(pid)):
            if name in users:
                users[name].add(pid)
    out = []
    for path in files:
        try:
            out.append(Segment(path, path.stat().st_size, tuple(sorted(users[str(path)]))))
        except OSError:  # gone meanwhile
            continue
    return tuple(out)


def _mapped(folder: Path) -> set[str]:
    """Paths that a process has mapped or open; those of another user's process can't be seen."""
    out: set[str] = set()
    try:
        for line in (folder / "maps").read_text(errors="replace").splitlines():
            name = line[line.find("/") :] if "/" in line else ""
            out.add(name.removesuffix(" (deleted)"))
    except OSError:
        pass
    try:
        for descriptor in os.listdir(folder / "fd"):
            try:
                out.add(os.readlink(folder / "fd" / descriptor))
            except OSError:
                continue
    except OSError:
        pass
    return out


def port_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server can listen on *port*."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def available_ram(proc: Path = process.PROC, cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes that processes can still take: the kernel's estimate, or what the container's limit leaves."""
    available = None
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
        limit = (cgroup / "memory.max").read_text().strip()
        if limit.isdigit():
            left = int(limit) - int((cgroup / "memory.current").read_text())
            available = left if available is None else min(available, left)
    except (OSError, ValueError, IndexError):
        pass
    return available


def free_disk(path: Path) -> int | None:
    """Bytes free where *path* is (or where its nearest existing parent is)."""
    for place in (path, *path.parents):
        if place.exists():
            return shutil.disk_usage(place).free
    return None


def stale_bytecode(folder: Path) -> tuple[Bytecode, ...]:
    """Bytecode caches below *folder* that Python would run although their source says something else.

    Python recognises a changed source by its time and size, so a patch that keeps both (a copy with old
    times, an edit within the second) goes unseen, and a cache marked as unchecked is never looked at.
    """
    out = []
    for cache in sorted(folder.rglob("__pycache__/*.pyc")):
        source = cache.parent.parent / (cache.name.split(".")[0] + ".py")
        try:
            with cache.open("rb") as file:
                header = file.read(16)
            flags, stamp, size = struct.unpack("<III", header[4:16])
            there = source.stat()
            made = cache.stat().st_mtime
        except (OSError, struct.error):
            continue
        if flags & 1:
            if not flags & 2 and there.st_ctime > made + 1:
                out.append(Bytecode(cache, source, "it is marked unchecked, and its source changed after it"))
            continue
        seen_as_same = int(there.st_mtime) & 0xFFFFFFFF == stamp and there.st_size & 0xFFFFFFFF == size
        if seen_as_same and there.st_ctime > made + 1 and there.st_mtime < made:
            out.append(Bytecode(cache, source, "its source was replaced with the same time and size"))
    return tuple(out)
