"""``ckpt launch``: the serving command, verified together with the pair before it is printed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckpt_tools.api.choosing import choose_engine
from ckpt_tools.api.subjects import find_target, open_draft
from ckpt_tools.api.verifying import VerifyRequest, verify
from ckpt_tools.errors import InputError
from ckpt_tools.formats import read_draft
from ckpt_tools.serving.args.command import (
    LaunchPlan,
    Wish,
    as_compose,
    as_k8s,
    as_shell,
    launch_command,
    one_line,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ckpt_tools.model import Report, Target

RENDERERS: Mapping[str, Callable[[LaunchPlan], str]] = {
    "shell": as_shell,
    "k8s": as_k8s,
    "compose": as_compose,
}


@dataclass(frozen=True)
class LaunchRequest:
    """What the user asked ``launch`` for; see the command's help."""

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


@dataclass(frozen=True)
class Launched:
    """The command and what verify says of the pair with it."""

    plan: LaunchPlan
    report: Report


def served_path(given: str, target: Target) -> str:
    """The target as a server would name it: a folder as given, else its Hub id."""
    path = Path(given)
    if path.is_file():
        return str(path.parent)
    return given if path.exists() else target.hf_repo or given


def launch(request: LaunchRequest) -> Launched:
    """Make the command, and verify draft and target together with it.

    Raises:
        UsageError: What is asked can't be on this engine.
        InputError: The path is no draft.
    """
    engine = choose_engine(request.engine, request.why)
    opened = open_draft(request.path, offline=request.offline)
    target = find_target(request.target, offline=request.offline)
    draft = read_draft(opened.checkpoint, target)
    if draft is None:
        raise InputError(
            f"{request.path}: no draft format fits", "`ckpt inspect --tensors` shows what is there"
        )
    plan = launch_command(
        draft,
        target,
        engine,
        draft_path=request.path,
        target_path=served_path(request.target, target),
        config=opened.checkpoint.config,
        wish=Wish(
            tp=request.tp,
            steps=request.steps,
            topk=request.topk,
            draft_tokens=request.draft_tokens,
            context_length=request.context_length,
            port=request.port,
            draft_bytes=opened.checkpoint.total_bytes or None,
            extra=request.extra,
        ),
    )
    checked = verify(
        VerifyRequest(
            path=request.path,
            target=request.target,
            engines=(str(engine),),
            why=request.why,
            launch=one_line(plan),
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
    return Launched(plan, replace(checked, command="launch", facts=facts))
