"""``ckpt preflight``: is this machine ready to launch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckpt_tools.api.choosing import INSTALLED
from ckpt_tools.api.subjects import find_target, named_target, open_draft, target_checkpoint
from ckpt_tools.checks.base import finding
from ckpt_tools.engines import resolve
from ckpt_tools.engines.sglang_ext.head import ARCHITECTURE
from ckpt_tools.engines.sglang_ext.releases import UnknownRelease, release
from ckpt_tools.engines.sglang_ext.targets import wrapped
from ckpt_tools.errors import WriteError
from ckpt_tools.formats import read_draft
from ckpt_tools.model import Report, Subject
from ckpt_tools.serving import preflight
from ckpt_tools.serving.installed import finds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ckpt_tools.model import Finding
    from ckpt_tools.serving.installed import Installed

PACKAGE = "ckpt_tools.sglang_models"


@dataclass(frozen=True)
class PreflightRequest:
    """What the user asked ``preflight`` for; see the command's help."""

    path: str | None = None
    target: str | None = None
    engine: str = "sglang"
    why: str = "default"
    tp: int | None = None
    port: int = 30000
    engine_python: str | None = None
    offline: bool = False


def look(request: PreflightRequest, confirm: Callable[[Path], bool] | None = None) -> Report:
    """Look at the machine; nothing is deleted unless ``confirm`` says yes to each file.

    Raises:
        InputError: The draft or the target can't be read.
        UsageError: No such engine.
        Unavailable: The interpreter that is to have the engine can't be run.
        WriteError: A file that was to go can't be deleted.
    """
    named, _, version = (part.strip() for part in request.engine.partition("=="))
    engine = resolve(named if version == INSTALLED else request.engine, request.why)
    opened = open_draft(request.path, offline=request.offline) if request.path else None
    target = find_target(request.target, offline=request.offline) if request.target else None
    draft = read_draft(opened.checkpoint, target) if opened else None
    target = target or named_target(draft)
    shards = target_checkpoint(target)
    sizes = [f.size for o in (opened, shards) if o is not None for f in o.checkpoint.weight_files]
    listed = (opened.checkpoint.config or {}).get("architectures") if opened else None
    wanted = preflight.Wanted(
        engine=engine.name,
        version=version if version and version != INSTALLED else None,
        architecture=target.architectures[0] if target and target.architectures else None,
        algorithm=draft.algorithm if draft else None,
        draft_architectures=tuple(map(str, listed)) if isinstance(listed, list) else (),
        weight_bytes=sum(sizes) or None,
        largest_file=max(sizes, default=None),
        tp=request.tp,
        port=request.port,
    )
    items = _judged(wanted, request)
    removed = _removed(items, confirm) if confirm is not None else ()
    if removed:
        items = _judged(wanted, request)
    found = [f for item in items if (f := _finding(item)) is not None]
    facts = {
        "ready": preflight.ready(items),
        "removed": [str(p) for p in removed],
        "tables": {
            "machine": [{"item": i.id, "status": i.status, "what": i.message} for i in items],
            **{f"lines to add ({i.id})": [{"line": text} for text in i.lines] for i in items if i.lines},
        },
        "lines": {i.id: list(i.lines) for i in items if i.lines},
    }
    return Report(
        command="preflight",
        subject=Subject(request.path or "."),
        verdict="pass" if preflight.ready(items) else "fail",
        target=target,
        engines=(engine,),
        facts=facts,
        findings=tuple(found),
    )


def _judged(wanted: preflight.Wanted, request: PreflightRequest) -> tuple[preflight.Item, ...]:
    """A look at the machine; what ckpt's model package brings isn't looked for in SGLang's own."""
    found = preflight.gather(wanted, engine_python=request.engine_python)
    if wanted.engine == "sglang-ext":
        release, name = found.installed, wanted.architecture
        if release is not None and name is not None and wrapped(name, release.version):
            wanted = replace(wanted, architecture=None)
        if ARCHITECTURE in wanted.draft_architectures:
            wanted = replace(wanted, draft_architectures=())
        return (*preflight.judge(wanted, found), _package(found.installed))
    return preflight.judge(wanted, found)


def _package(engine: Installed | None) -> preflight.Item:
    """Whether the engine's Python finds ckpt's model package, and whether the package knows that SGLang."""
    item = "model package"
    if engine is None:
        return preflight.Item(item, "unknown", "SGLang isn't installed there")
    try:
        release(engine.version)
    except UnknownRelease as error:
        return preflight.Item(item, "fail", str(error), "serve with one of those releases")
    if not finds(engine.python, PACKAGE):
        return preflight.Item(
            item,
            "fail",
            f"{engine.python} finds no {PACKAGE}",
            f"{engine.python} -m pip install --no-deps ckpt-tools",
        )
    return preflight.Item(item, "ok", f"{PACKAGE} is there and knows SGLang {engine.version}")


def _removed(items: tuple[preflight.Item, ...], confirm: Callable[[Path], bool]) -> tuple[Path, ...]:
    try:
        return preflight.clean(items, confirm)
    except OSError as error:
        raise WriteError(
            f"{error.filename}: can't be deleted ({error.strerror})", "its owner can delete it"
        ) from error


def _finding(item: preflight.Item) -> Finding | None:
    code = {"fail": "LCH020", "warning": "LCH021"}.get(item.status)
    return finding(code, f"{item.id}: {item.message}", hint=item.hint) if code else None
