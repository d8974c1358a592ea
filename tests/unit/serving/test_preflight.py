"""The machine, and what is judged of it."""

from __future__ import annotations

import importlib
import os
import py_compile
import socket
import struct
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest

from ckpt_tools.errors import Unavailable
from ckpt_tools.serving import machine
from ckpt_tools.serving.installed import Installed, find_engine
from ckpt_tools.serving.machine import Bytecode, Gpu, GpuProcess, Segment
from ckpt_tools.serving.preflight import Found, Wanted, clean, gather, judge, ready
from ckpt_tools.serving.static_hooks import Answer, Patch

GIB = 1 << 30
SGLANG = Installed("sglang", "0.5.23", Path("/x"), "python", "3.11")
GOOD = Found(gpus=(Gpu(0, "H200", 140 * GIB, 0),), ram=64 * GIB, disk=99 * GIB, shm=9 * GIB, installed=SGLANG)


def verdicts(wanted: Wanted, found: Found) -> dict[str, str]:
    return {item.id: item.status for item in judge(wanted, found)}


def test_all_is_well() -> None:
    items = judge(Wanted(), GOOD)
    assert {item.status for item in items} == {"ok"}
    assert ready(items)


def test_gpus() -> None:
    busy = (Gpu(0, "H200", 140 * GIB, 9 * GIB, (GpuProcess(42, "python", 9 * GIB),)),)
    items = judge(Wanted(), replace(GOOD, gpus=busy))
    assert "kill 42" in (items[0].hint or "")
    assert not ready(items)
    assert verdicts(Wanted(), replace(GOOD, gpus=(Gpu(0, "x", 9, 2 * GIB),)))["gpu"] == "warning"
    assert verdicts(Wanted(), replace(GOOD, gpus=None))["gpu"] == "unknown"
    assert verdicts(Wanted(tp=2), GOOD)["gpu-count"] == "fail"
    assert verdicts(Wanted(weight_bytes=200 * GIB), GOOD)["gpu-memory"] == "fail"
    assert "gpu-memory" not in verdicts(Wanted(weight_bytes=20 * GIB, tp=1), GOOD)


def test_port_memory_disk() -> None:
    assert verdicts(Wanted(), replace(GOOD, port_free=False))["port"] == "fail"
    assert verdicts(Wanted(largest_file=99 * GIB), GOOD)["ram"] == "fail"
    assert verdicts(Wanted(weight_bytes=99 * GIB, largest_file=GIB), GOOD)["ram"] == "warning"
    assert verdicts(Wanted(), replace(GOOD, disk=GIB, shm=1))["disk"] == "warning"
    assert verdicts(Wanted(), replace(GOOD, shm=1))["shm-size"] == "warning"
    assert "ram" not in verdicts(Wanted(), replace(GOOD, ram=None, disk=None, shm=None))


def test_engine_and_hooks() -> None:
    assert verdicts(Wanted(), replace(GOOD, installed=None))["engine"] == "fail"
    assert verdicts(Wanted(version="0.5.9"), GOOD)["engine"] == "warning"
    assert verdicts(Wanted(version="0.5.23"), GOOD)["engine"] == "ok"
    wanted = Wanted(architecture="X", algorithm="eagle3")
    assert verdicts(wanted, replace(GOOD, hooks=Answer(True, (), None, {})))["hooks"] == "ok"
    assert (
        verdicts(wanted, replace(GOOD, hooks=Answer(None, (), None, {}), registered=True))["hooks"] == "fail"
    )
    assert verdicts(wanted, GOOD)["hooks"] == "unknown"
    assert verdicts(wanted, replace(GOOD, hooks=Answer(False, ("h",), None, {})))["hooks"] == "fail"
    patch = Patch("x.py", 7, ("    def h(self):",))
    (item,) = [
        i for i in judge(wanted, replace(GOOD, hooks=Answer(False, ("h",), patch, {}))) if i.id == "hooks"
    ]
    assert item.lines == patch.lines
    assert "line 7 of srt/models/x.py" in (item.hint or "")
    assert verdicts(wanted, replace(GOOD, eagle3_interface=True))["hooks"] == "ok"
    assert verdicts(wanted, replace(GOOD, eagle3_interface=False))["hooks"] == "fail"
    assert (
        verdicts(replace(wanted, algorithm="eagle"), replace(GOOD, eagle3_interface=False))["hooks"] == "ok"
    )


def test_draft_class() -> None:
    wanted = Wanted(draft_architectures=("Y",))
    assert verdicts(wanted, replace(GOOD, registered=True))["draft-class"] == "fail"
    assert verdicts(wanted, replace(GOOD, registered=True, draft_class="Y"))["draft-class"] == "ok"
    assert "draft-class" not in verdicts(wanted, GOOD)


def test_nothing_goes_without_a_yes(tmp_path: Path) -> None:
    stale, held, cache = tmp_path / "psm_1", tmp_path / "psm_2", tmp_path / "x.pyc"
    for path in (stale, held, cache):
        path.write_text("x")
    found = replace(
        GOOD,
        segments=(Segment(stale, 1, ()), Segment(held, 1, (4,))),
        bytecode=(Bytecode(cache, tmp_path / "x.py", "why"),),
    )
    items = judge(Wanted(), found)
    assert {i.id: i.status for i in items}["shared-memory"] == "warning"
    assert clean(items, lambda _: False) == ()
    assert stale.exists()
    assert clean(items, lambda path: path != cache) == (stale,)
    assert (stale.exists(), held.exists(), cache.exists()) == (False, True, True)


# ---- the machine itself


def test_segments_and_their_owners(tmp_path: Path) -> None:
    shm, proc = tmp_path / "shm", tmp_path / "proc"
    shm.mkdir()
    for name in ("psm_a", "psm_b", "psm_c", "other"):
        (shm / name).write_bytes(b"12345")
    assert machine.segments(tmp_path / "none", proc) == ()
    for pid in ("10", "11"):
        (proc / pid / "fd").mkdir(parents=True)
    (proc / "10" / "maps").write_text(f"7f00-7f01 rw-s 0 00:01 9 {shm / 'psm_a'}\n7f02-7f03 r-xp 0 0 0\n")
    (proc / "11" / "fd" / "3").symlink_to(shm / "psm_b")
    (proc / "11" / "fd" / "4").write_text("no link")
    (proc / "12").mkdir()
    assert {s.path.name: s.owners for s in machine.segments(shm, proc)} == {
        "psm_a": (10,),
        "psm_b": (11,),
        "psm_c": (),
    }
    assert machine.segments(shm, proc)[0].size == 5


def test_ports() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not machine.port_free(port)
    assert machine.port_free(port)


def test_ram(tmp_path: Path) -> None:
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    proc.mkdir()
    cgroup.mkdir()
    assert machine.available_ram(proc, cgroup) is None
    (proc / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 8 kB\n")
    assert machine.available_ram(proc, cgroup) == 8192
    (cgroup / "memory.max").write_text("max\n")
    assert machine.available_ram(proc, cgroup) == 8192
    (cgroup / "memory.max").write_text("5000\n")
    (cgroup / "memory.current").write_text("1000\n")
    assert machine.available_ram(proc, cgroup) == 4000


def test_disk(tmp_path: Path) -> None:
    assert (machine.free_disk(tmp_path / "not" / "there") or 0) > 0


def test_bytecode_that_doesn_t_belong(tmp_path: Path) -> None:
    source = tmp_path / "model.py"
    source.write_text("a = 1\n")
    os.utime(source, (1, 1))
    cache = Path(py_compile.compile(str(source), doraise=True) or "")
    assert machine.stale_bytecode(tmp_path) == ()
    os.utime(cache, (100, 100))  # as if it had been compiled long ago, before the source below was put in
    source.write_text("a = 2\n")
    os.utime(source, (1, 1))
    (found,) = machine.stale_bytecode(tmp_path)
    assert (found.source, found.path) == (source, cache)
    os.utime(source, (2, 2))  # another time: Python sees it
    assert machine.stale_bytecode(tmp_path) == ()
    cache.write_bytes(b"magi" + struct.pack("<III", 1, 0, 0))
    os.utime(cache, (100, 100))
    assert "unchecked" in machine.stale_bytecode(tmp_path)[0].reason
    cache.write_bytes(b"magi" + struct.pack("<III", 3, 0, 0))
    os.utime(cache, (100, 100))
    assert machine.stale_bytecode(tmp_path) == ()
    cache.write_bytes(b"short")
    assert machine.stale_bytecode(tmp_path) == ()


def smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n" + script)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def test_gpus_by_nvidia_smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    script = """case "$1" in
      *gpu=*) echo "0, GPU-1, NVIDIA H200, 143771, 512";;
      *) echo "GPU-1, 7, 256"; echo "GPU-1, 8, [N/A]";;
    esac
    """
    smi(monkeypatch, tmp_path, script)
    (gpu,) = machine.gpus(tmp_path) or ()
    assert (gpu.index, gpu.name, gpu.total, gpu.used) == (0, "NVIDIA H200", 143771 << 20, 512 << 20)
    assert [(p.pid, p.name, p.used) for p in gpu.processes] == [(7, "?", 256 << 20), (8, "?", 0)]
    smi(monkeypatch, tmp_path, "exit 9\n")
    assert machine.gpus(tmp_path) is None


def nvml(fails: str = "") -> types.ModuleType:
    module = types.ModuleType("pynvml")

    class NVMLError(Exception):
        pass

    def call(name: str, value: object) -> object:
        def function(*_: object) -> object:
            if name == fails:
                raise NVMLError
            return value

        return function

    module.__dict__.update(
        NVMLError=NVMLError,
        nvmlInit=call("nvmlInit", None),
        nvmlShutdown=call("nvmlShutdown", None),
        nvmlDeviceGetCount=call("nvmlDeviceGetCount", 1),
        nvmlDeviceGetHandleByIndex=call("nvmlDeviceGetHandleByIndex", 0),
        nvmlDeviceGetMemoryInfo=call("nvmlDeviceGetMemoryInfo", types.SimpleNamespace(total=9, used=3)),
        nvmlDeviceGetName=call("nvmlDeviceGetName", b"H200"),
        nvmlDeviceGetComputeRunningProcesses=call(
            "nvmlDeviceGetComputeRunningProcesses",
            [types.SimpleNamespace(pid=os.getpid(), usedGpuMemory=None)],
        ),
    )
    return module


def test_gpus_by_nvml(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    (gpu,) = machine.gpus() or ()
    assert (gpu.name, gpu.total, gpu.used) == ("H200", 9, 3)
    assert gpu.processes[0].pid == os.getpid()
    assert gpu.processes[0].name != "?"
    smi(monkeypatch, tmp_path, "exit 9\n")
    for fails in ("nvmlInit", "nvmlDeviceGetCount"):
        monkeypatch.setitem(sys.modules, "pynvml", nvml(fails))
        assert machine.gpus() is None


# ---- the installed engine


def package(site: Path, name: str, version: str) -> Path:
    folder = site / name
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise SystemExit('imported')\n")
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


def test_what_an_interpreter_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = package(tmp_path, "sglang", "9.8.7")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = find_engine("sglang-ext")
    assert found is not None
    assert (found.version, found.package, found.python) == ("9.8.7", folder, sys.executable)
    assert find_engine("trtllm") is None
    with pytest.raises(Unavailable, match="can't be asked"):
        find_engine("vllm", str(tmp_path / "no-python"))
    with pytest.raises(Unavailable):
        find_engine("vllm", "/bin/false")


def test_a_look_at_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = package(tmp_path, "sglang", "9.8.7") / "srt" / "models"
    models.mkdir(parents=True)
    (models / "x.py").write_text("class X:\n    def get_embed_and_head(self): ...\nEntryClass = X\n")
    vllm = package(tmp_path, "vllm", "1.2.3") / "model_executor" / "models"
    vllm.mkdir(parents=True)
    (vllm / "registry.py").write_text('A = {"X": ("x", "X")}\n')
    (vllm / "x.py").write_text("class SupportsEagle3: ...\nclass X(SupportsEagle3): ...\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    wanted = Wanted(architecture="X", algorithm="eagle", draft_architectures=("X",), port=port)
    status = verdicts(wanted, gather(wanted, cache=tmp_path))
    assert (status["engine"], status["hooks"], status["draft-class"], status["port"]) == (
        "ok",
        "ok",
        "ok",
        "ok",
    )
    wanted = replace(wanted, engine="vllm", algorithm="eagle3")
    found = gather(wanted, cache=tmp_path)
    assert found.eagle3_interface
    assert verdicts(wanted, found)["draft-class"] == "ok"
    assert gather(replace(wanted, engine="trtllm")).installed is None
    assert gather(Wanted(port=port)).hooks is None
    assert importlib.util.find_spec("sglang") is None  # nothing of it was imported or put on our path
    assert subprocess.run([sys.executable, "-c", "pass"], check=True).returncode == 0
