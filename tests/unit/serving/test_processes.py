"""What is read from /proc, on a made one."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from ckpt_tools.serving import process

if TYPE_CHECKING:
    from pathlib import Path


def fake(
    proc: Path, pid: int, parent: int = 1, cpu: int = 5, io: int = 100, state: str = "S", pages: int = 3
) -> Path:
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "fdinfo").mkdir()
    fields = [state, str(parent), *["0"] * 9, str(cpu), "0"]
    (folder / "stat").write_text(f"{pid} (a) name) {' '.join(fields)}")
    (folder / "io").write_text(f"rchar: {io}\nwchar: 0\nread_bytes: 0\nwrite_bytes: 0\n")
    (folder / "statm").write_text(f"9 {pages} 0")
    return folder


def test_a_tree_is_counted_together(tmp_path: Path) -> None:
    fake(tmp_path, 10, cpu=1, io=10)
    fake(tmp_path, 11, 10, cpu=2, io=20)
    fake(tmp_path, 12, 11, cpu=4, io=40)
    fake(tmp_path, 13, cpu=100)
    assert sorted(process.tree(10, tmp_path)) == [10, 11, 12]
    assert process.usage(10, tmp_path) == process.Usage(7, 70)
    assert process.resident(10, tmp_path) == 9 * os.sysconf("SC_PAGE_SIZE")


def test_gone_and_zombie(tmp_path: Path) -> None:
    fake(tmp_path, 10, state="Z")
    assert not process.alive(10, tmp_path)
    assert process.usage(11, tmp_path) is None
    assert process.pids(tmp_path / "none") == []
    assert process.resident(99, tmp_path) == 0


def test_private_io(tmp_path: Path) -> None:
    (fake(tmp_path, 10, cpu=3) / "io").unlink()
    assert process.usage(10, tmp_path) == process.Usage(3, 0)


def test_who_writes_a_file(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("")
    proc = tmp_path / "proc"
    for pid, flags in ((10, "0100001"), (11, "0100000")):
        folder = fake(proc, pid)
        (folder / "fd" / "3").symlink_to(log)
        (folder / "fdinfo" / "3").write_text(f"pos:\t0\nflags:\t{flags}\n")
    broken = fake(proc, 12)
    (broken / "fd" / "3").symlink_to(log)
    (broken / "fd" / "4").symlink_to(tmp_path)
    (fake(proc, 13) / "fd").rmdir()
    assert process.writers(log, proc) == [10]
    assert process.writers(tmp_path / "none", proc) == []


def test_a_real_writer(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=file)
    try:
        assert child.pid in process.writers(log)
    finally:
        child.communicate(b"\n")
