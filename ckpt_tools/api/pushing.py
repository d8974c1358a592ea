"""``ckpt push``: verify, then card, plan, upload, and a look at what arrived."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ckpt_tools.api.launching import LaunchRequest, launch
from ckpt_tools.api.verifying import VerifyRequest, verify
from ckpt_tools.errors import CkptError
from ckpt_tools.hub.push import PushPlan, plan_push
from ckpt_tools.hub.upload import apply_push
from ckpt_tools.model import Severity
from ckpt_tools.render import Style, render

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckpt_tools.model import Report


@dataclass(frozen=True)
class PushRequest:
    """What the user asked ``push`` for; see the command's help."""

    path: str
    repo_id: str
    target: str
    engines: tuple[str, ...] = ()
    license: str | None = None
    revision: str | None = None
    create_pr: bool = False
    private: bool = False
    dry_run: bool = False


def _json(report: Report) -> str:
    return render("json", [report], Style()) + "\n"


def serving_commands(request: PushRequest) -> dict[str, str]:
    """The launch command of each engine that can serve the draft, for the card."""
    from ckpt_tools.serving.args.command import one_line

    out: dict[str, str] = {}
    for engine in request.engines or ("sglang", "vllm"):
        try:
            made = launch(LaunchRequest(request.path, request.target, engine))
        except CkptError:
            continue  # an engine without this algorithm has no command to show
        if made.report.verdict == "pass":
            out[made.plan.engine.name] = one_line(made.plan).replace(request.path, request.repo_id)
    return out


def push(
    request: PushRequest,
    *,
    smoke: Report | None = None,
    notify: Callable[[str], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Push a verified draft; nothing is uploaded when a check fails.

    Raises:
        Unavailable: The Hub refused or is down.
        InputError: The folder can't be read.
    """
    checked = verify(
        VerifyRequest(path=request.path, target=request.target, engines=request.engines, deep=True)
    )
    plan = plan_push(
        request.path,
        request.repo_id,
        verify=checked,
        render_report=_json,
        smoke=smoke,
        license=request.license,
        serve=serving_commands(request),
        revision=request.revision,
        create_pr=request.create_pr,
        private=request.private,
        notify=notify,
        progress=progress,
    )
    facts: dict[str, Any] = {**checked.facts, "push": plan_facts(plan)}
    findings = (*checked.findings, *plan.findings)
    if not plan.blocked and not request.dry_run:
        pushed = apply_push(plan, notify=notify, progress=progress)
        findings = (*findings, *pushed.findings)
        facts["push"] |= {"commit": pushed.commit, "url": pushed.url, "pull_request": pushed.pull_request}
    failed = any(f.severity is Severity.ERROR for f in findings)
    return replace(
        checked, command="push", facts=facts, findings=findings, verdict="fail" if failed else "pass"
    )


def plan_facts(plan: PushPlan) -> dict[str, Any]:
    """A push plan as the report shows it."""
    return {
        "repo_id": plan.repo_id,
        "revision": plan.revision,
        "parent": plan.parent,
        "files": [{"name": f.name, "size": f.size, "sha256": f.sha256, "state": f.state} for f in plan.files],
        "deletes": list(plan.deletes),
        "left_out": {x.name: x.reason for x in plan.left_out},
        "bytes_to_send": plan.bytes_to_send,
        "nothing_to_do": plan.nothing_to_do,
    }
