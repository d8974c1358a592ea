"""Is this machine ready to launch: what was found is gathered by effects, and judged by pure functions.

Nothing is deleted but by :func:`clean`, and there only what its caller confirms.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ckpt_tools.engines.versions import parse
from ckpt_tools.serving import machine, static_hooks
from ckpt_tools.serving.installed import Installed, find_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ckpt_tools.serving.machine import Bytecode, Gpu, Segment
    from ckpt_tools.serving.static_hooks import Answer

Status = Literal["ok", "warning", "fail", "unknown"]
_BUSY = 1 << 30  # memory in use on a GPU that nobody claims: a driver's own is less
_SHM = 1 << 30


@dataclass(frozen=True)
class Item:
    """One thing that was looked at.

    Attributes:
        id: Short name.
        removable: Files that :func:`clean` may delete.
        lines: Lines to add somewhere, as they stand.
    """

    id: str
    status: Status
    message: str
    hint: str | None = None
    removable: tuple[Path, ...] = ()
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wanted:
    """What the launch needs.

    Attributes:
        engine: As in ``--engine``; ``version`` is the one that was asked for, if any.
        architecture: The target's outermost class.
        algorithm: The draft's.
        draft_architectures: Classes that the draft's config names.
        weight_bytes: Of target and draft together.
        largest_file: Of the weight files.
        tp: GPUs that are needed.
    """

    engine: str = "sglang"
    version: str | None = None
    architecture: str | None = None
    algorithm: str | None = None
    draft_architectures: tuple[str, ...] = ()
    weight_bytes: int | None = None
    largest_file: int | None = None
    tp: int | None = None
    port: int = 30000


@dataclass(frozen=True)
class Found:
    """What was seen."""

    gpus: tuple[Gpu, ...] | None = None
    segments: tuple[Segment, ...] = ()
    port_free: bool = True
    ram: int | None = None
    disk: int | None = None
    shm: int | None = None
    installed: Installed | None = None
    bytecode: tuple[Bytecode, ...] = ()
    hooks: Answer | None = None
    eagle3_interface: bool | None = None
    draft_class: str | None = None
    registered: bool = field(default=False)


def gather(wanted: Wanted, *, engine_python: str | None = None, cache: Path | None = None) -> Found:
    """Look at the machine.

    Args:
        engine_python: The interpreter that has the engine; this one by default.
        cache: Where the engine keeps compiled kernels; the home folder's cache by default.

    Raises:
        Unavailable: *engine_python* can't be run.
    """
    installed = find_engine(wanted.engine, engine_python)
    hooks: Answer | None = None
    interface: bool | None = None
    bytecode: tuple[Bytecode, ...] = ()
    draft_class: str | None = None
    registered = False
    if installed is not None and installed.package is not None:
        if wanted.engine in ("sglang", "sglang-ext"):
            classes = static_hooks.sglang_classes(installed.package)
            bytecode = machine.stale_bytecode(installed.package / "srt" / "models")
            if wanted.architecture:
                hooks = static_hooks.answer(classes, wanted.architecture, wanted.algorithm or "eagle3")
            draft_class = next((name for name in wanted.draft_architectures if name in classes), None)
            registered = True
        elif wanted.engine == "vllm":
            known = static_hooks.vllm_classes(installed.package)
            bytecode = machine.stale_bytecode(installed.package / "model_executor" / "models")
            if wanted.architecture and wanted.architecture in known:
                interface = static_hooks.supports_eagle3(known[wanted.architecture])
            draft_class = next((name for name in wanted.draft_architectures if name in known), None)
            registered = True
    return Found(
        gpus=machine.gpus(),
        segments=machine.segments(),
        port_free=machine.port_free(wanted.port),
        ram=machine.available_ram(),
        disk=machine.free_disk(cache or Path.home() / ".cache"),
        shm=machine.free_disk(machine.SHM) if machine.SHM.is_dir() else None,
        installed=installed,
        bytecode=bytecode,
        hooks=hooks,
        eagle3_interface=interface,
        draft_class=draft_class,
        registered=registered,
    )


def judge(wanted: Wanted, found: Found) -> tuple[Item, ...]:
    """What was found, against what is wanted."""
    items = [*_gpus(wanted, found.gpus), *_segments(found.segments)]
    free = found.port_free
    items.append(
        Item(
            "port",
            "ok" if free else "fail",
            f"port {wanted.port} is {'free' if free else 'taken'}",
            None if free else "stop what listens there, or use another --port",
        )
    )
    items += _memory(wanted, found)
    items += _engine(wanted, found)
    items += _bytecode(found.bytecode)
    return tuple(items)


def ready(items: Sequence[Item]) -> bool:
    """Whether nothing failed."""
    return not any(item.status == "fail" for item in items)


def clean(items: Sequence[Item], confirm: Callable[[Path], bool]) -> tuple[Path, ...]:
    """Delete what is stale, each file only when *confirm* says so; what was deleted."""
    gone = []
    for path in (path for item in items for path in item.removable):
        if confirm(path):
            path.unlink(missing_ok=True)
            gone.append(path)
    return tuple(gone)


def _gib(size: int) -> str:
    return f"{size / 1024**3:.1f} GiB"


def _gpus(wanted: Wanted, gpus: tuple[Gpu, ...] | None) -> list[Item]:
    if gpus is None:
        return [Item("gpu", "unknown", "no NVIDIA driver here: the GPUs weren't looked at")]
    items = []
    if wanted.tp and len(gpus) < wanted.tp:
        items.append(
            Item(
                "gpu-count",
                "fail",
                f"{len(gpus)} GPUs are here, --tp {wanted.tp} needs {wanted.tp}",
                "lower --tp",
            )
        )
    for gpu in gpus:
        holders = ", ".join(f"{p.name} (pid {p.pid}, {_gib(p.used)})" for p in gpu.processes)
        if gpu.processes:
            hint = f"stop them: kill {' '.join(str(p.pid) for p in gpu.processes)}"
            items.append(Item("gpu", "fail", f"GPU {gpu.index} is in use: {holders}", hint))
        elif gpu.used > _BUSY:
            message = f"GPU {gpu.index} has {_gib(gpu.used)} in use, by no process that can be seen from here"
            items.append(
                Item("gpu", "warning", message, "another container's server, or one that died badly")
            )
        else:
            items.append(Item("gpu", "ok", f"GPU {gpu.index} ({gpu.name}, {_gib(gpu.total)}) is idle"))
    total = sum(gpu.total for gpu in (gpus[: wanted.tp] if wanted.tp else gpus[:1]))
    if wanted.weight_bytes and total and wanted.weight_bytes > total:
        message = f"the weights take {_gib(wanted.weight_bytes)}, the GPUs have {_gib(total)}"
        items.append(Item("gpu-memory", "fail", message, "raise --tp, or quantise the target"))
    return items


def _segments(segments: tuple[Segment, ...]) -> list[Item]:
    stale = [segment for segment in segments if not segment.owners]
    if not stale:
        return [Item("shared-memory", "ok", "no stale shared memory")]
    size = sum(segment.size for segment in stale)
    return [
        Item(
            "shared-memory",
            "warning",
            f"{len(stale)} shared-memory segments of an earlier server, {_gib(size)}, have no owner any more: "
            + ", ".join(segment.path.name for segment in stale[:4]),
            "ckpt preflight --clean",
            tuple(segment.path for segment in stale),
        )
    ]


def _memory(wanted: Wanted, found: Found) -> list[Item]:
    items = []
    if found.ram is not None and wanted.largest_file and found.ram < wanted.largest_file:
        message = (
            f"{_gib(found.ram)} of RAM are left, the largest weight file has {_gib(wanted.largest_file)}"
        )
        items.append(
            Item("ram", "fail", message, "the loader is killed: free memory, or raise the container's limit")
        )
    elif found.ram is not None and wanted.weight_bytes and found.ram < wanted.weight_bytes:
        message = f"{_gib(found.ram)} of RAM are left for {_gib(wanted.weight_bytes)} of weights: every rank reads the disk"
        items.append(Item("ram", "warning", message, "loading will be slow; it isn't stuck"))
    elif found.ram is not None:
        items.append(Item("ram", "ok", f"{_gib(found.ram)} of RAM are left"))
    if found.disk is not None:
        low = found.disk < 5 << 30
        hint = "compiled kernels and graphs need a few GiB in the cache folder" if low else None
        items.append(Item("disk", "warning" if low else "ok", f"{_gib(found.disk)} of disk are free", hint))
    if found.shm is not None and found.shm < _SHM:
        message = f"/dev/shm has {_gib(found.shm)} left"
        items.append(Item("shm-size", "warning", message, "docker run --shm-size 16g, or --ipc host"))
    return items


def _engine(wanted: Wanted, found: Found) -> list[Item]:
    installed = found.installed
    if installed is None:
        hint = "--engine-python PATH names another interpreter"
        return [Item("engine", "fail", f"{wanted.engine} is not installed in this interpreter", hint)]
    items = [Item("engine", "ok", f"{wanted.engine} {installed.version} (Python {installed.python_version})")]
    if wanted.version and parse(wanted.version) != parse(installed.version):
        message = f"{wanted.engine} {installed.version} is installed, {wanted.version} was asked for"
        items[0] = Item(
            "engine", "warning", message, f"verify with --engine {wanted.engine}=={installed.version}"
        )
    items += _hooks(wanted, found, installed)
    if wanted.draft_architectures and found.registered and found.draft_class is None:
        names = ", ".join(wanted.draft_architectures)
        items.append(
            Item("draft-class", "fail", f"{wanted.engine} {installed.version} registers no class {names}",
                 "ckpt inspect --engine says which ones it takes")
        )  # fmt: skip
    elif found.draft_class:
        items.append(Item("draft-class", "ok", f"{found.draft_class} is registered"))
    return items


def _hooks(wanted: Wanted, found: Found, installed: Installed) -> list[Item]:
    name, hooks = wanted.architecture, found.hooks
    if name is None:
        return []
    label = f"{wanted.engine} {installed.version}"
    if found.eagle3_interface is not None:
        if found.eagle3_interface or wanted.algorithm in ("eagle", "mtp"):
            return [Item("hooks", "ok", f"{name} serves {wanted.algorithm} drafts in {label}")]
        return [
            Item("hooks", "fail", f"{name} has no SupportsEagle3 interface in {label}", "use a newer release")
        ]
    if hooks is None or hooks.ok is None:
        return [
            Item("hooks", "fail" if found.registered else "unknown", f"{label} registers no class {name}")
        ]
    if hooks.ok:
        return [Item("hooks", "ok", f"{name} has what {wanted.algorithm} drafts need in {label}")]
    missing = ", ".join(hooks.missing)
    message = f"{name} lacks {missing} in {label}"
    if hooks.patch is None:
        return [
            Item("hooks", "fail", message, "use a release that serves this target; the draft is not at fault")
        ]
    hint = f"its inner model has them: add these lines after line {hooks.patch.after_line} of srt/models/{hooks.patch.file}"
    return [Item("hooks", "fail", message, hint, lines=hooks.patch.lines)]


def _bytecode(stale: tuple[Bytecode, ...]) -> list[Item]:
    return [
        Item(
            "bytecode",
            "fail",
            f"{item.path.name} is stale: {item.reason}; Python runs the old {item.source.name}",
            "ckpt preflight --clean",
            (item.path,),
        )
        for item in stale
    ]
