"""``ckpt launch``: the serving command, verified together with the pair before it is printed."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckpt_tools.api.choosing import choose_engine
from ckpt_tools.api.recorded import with_record
from ckpt_tools.api.subjects import find_target, open_draft, target_checkpoint
from ckpt_tools.api.verifying import VerifyRequest, verify
from ckpt_tools.errors import InputError
from ckpt_tools.formats import read_draft
from ckpt_tools.model import Severity
from ckpt_tools.serving.args.command import LaunchPlan, Place, Wish, launch_command

if TYPE_CHECKING:
    from ckpt_tools.model import Report, Target


@dataclass(frozen=True)
class LaunchRequest:
    """What the user asked ``launch`` for; see the command's help.

    Attributes:
        gpu_bytes: Memory of one GPU; with it, releases that load the draft after the target's pool get a fraction.
        force: Findings don't fail it.
        draft_as, target_as: What the command calls them, where that isn't what they were given as.
        contained: The command is for a container, which needs this machine's folders at the same place.
    """

    path: str
    target: str
    engine: str = "sglang"
    why: str = "default"
    tp: int | None = None
    steps: int | None = None
    topk: int | None = None
    draft_tokens: int | None = None
    context_length: int | None = None
    port: int | None = None
    extra: tuple[str, ...] = ()
    offline: bool = False
    engine_python: str | None = None
    gpu_bytes: int | None = None
    force: bool = False
    draft_as: Place | None = None
    target_as: Place | None = None
    contained: bool = False


@dataclass(frozen=True)
class Launched:
    """The command, what verify says of the pair with it, and the bytes of the target's weights, if known."""

    plan: LaunchPlan
    report: Report
    weight_bytes: int | None = None


def draft_place(given: str) -> Place:
    """The draft as a server would name it: a folder as given, else its Hub id and revision."""
    return Place(given) if Path(given).exists() else hub_place(given)


def target_place(given: str, target: Target) -> Place:
    """The target as a server would name it: a folder as given, else its Hub id and revision."""
    if target.origin == "registry":
        return Place(target.hf_repo or given)
    path = Path(given)
    if path.exists():
        return Place(str(path.parent) if path.is_file() else given)
    return hub_place(given)


def hub_place(given: str) -> Place:
    """A Hub id as a server takes it: without ``hf://``, and its revision apart."""
    repo, _, revision = given.removeprefix("hf://").partition("@")
    return Place(repo, revision or None)


def mounts_of(folder: str) -> tuple[str, ...]:
    """The folders that a container needs to read one: itself, and where its links lead (the Hub's cache is made of links)."""
    found = {folder}
    for entry in os.scandir(folder):
        if entry.is_symlink() and os.path.exists(entry.path):
            found.add(os.path.dirname(os.path.realpath(entry.path)))
    inside = {f for f in found for other in found - {f} if f.startswith(other.rstrip("/") + "/")}
    return tuple(sorted(found - inside))


_SETTING = re.compile(r"[A-Z_][A-Z0-9_]*=")


def _port(plan: LaunchPlan) -> LaunchPlan:
    """The plan with the port that is among the words after ``--``, if one is."""
    given = plan.launch().number("--port")
    return plan if given is None else replace(plan, port=given)


def launch(request: LaunchRequest) -> Launched:
    """Make the command, and verify draft and target together with it.

    Raises:
        UsageError: What is asked can't be on this engine.
        InputError: The path is no draft.
    """
    engine = choose_engine(request.engine, request.why, request.engine_python)
    opened = open_draft(request.path, offline=request.offline)
    target = find_target(request.target, offline=request.offline)
    draft = read_draft(opened.checkpoint, target)
    if draft is None:
        raise InputError(
            f"{request.path}: no draft format fits", "`ckpt inspect --tensors` shows what is there"
        )
    draft = with_record(opened, draft)  # a window, say, that the written config can't state
    env, extra = _environment(request.extra)
    draft_at = request.draft_as or draft_place(request.path)
    target_at = request.target_as or target_place(request.target, target)
    mounts: tuple[str, ...] = ()
    if request.contained:
        draft_at, target_at = _absolute(draft_at), _absolute(target_at)
        local = dict.fromkeys(p.path for p in (target_at, draft_at) if os.path.isdir(p.path))
        mounts = tuple(dict.fromkeys(m for folder in local for m in mounts_of(folder)))
    made = launch_command(
        draft,
        target,
        engine,
        draft_at=draft_at,
        target_at=target_at,
        config=opened.checkpoint.config,
        wish=Wish(
            tp=request.tp,
            steps=request.steps,
            topk=request.topk,
            draft_tokens=request.draft_tokens,
            context_length=request.context_length,
            port=request.port,
            gpu_bytes=request.gpu_bytes,
            draft_bytes=opened.checkpoint.total_bytes or None,
            extra=extra,
        ),
    )
    reasons = {**made.env_reasons, **dict.fromkeys(env, "as given after --")}
    plan = _port(replace(made, env={**made.env, **env}, env_reasons=reasons, mounts=mounts))
    checked = verify(
        VerifyRequest(
            path=request.path,
            target=request.target,
            engines=(str(engine),),
            why=request.why,
            launch=plan.line,
            fail_on=None if request.force else Severity.ERROR,
            offline=request.offline,
        )
    )
    facts: dict[str, Any] = {
        **checked.facts,
        "argv": list(plan.argv),
        "env": dict(plan.env),
        "reasons": dict(plan.reasons),
        "notes": list(plan.notes),
    }
    return Launched(plan, replace(checked, command="launch", facts=facts), weight_bytes(target))


def _absolute(at: Place) -> Place:
    return replace(at, path=os.path.abspath(at.path)) if os.path.isdir(at.path) else at


def weight_bytes(target: Target) -> int | None:
    """Bytes of weights that a server reads for the target; ``None`` when they aren't on this machine."""
    shards = target_checkpoint(target)
    return sum(f.size for f in shards.checkpoint.weight_files) if shards is not None else None


def _environment(extra: tuple[str, ...]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Settings such as ``NCCL_DEBUG=INFO`` before the first flag, as in a shell, and the words after them."""
    env: dict[str, str] = {}
    for i, word in enumerate(extra):
        if _SETTING.match(word) is None:
            return env, extra[i:]
        name, _, value = word.partition("=")
        env[name] = value
    return env, ()
