"""``ckpt push``: verify, smoke if asked, then card, plan, upload, and a look at what arrived."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckpt_tools.api.launching import LaunchRequest, launch
from ckpt_tools.api.subjects import find_target
from ckpt_tools.api.verifying import VerifyRequest, verify
from ckpt_tools.errors import CkptError, InputError, UsageError
from ckpt_tools.hub.card import Acceptance
from ckpt_tools.hub.published import without_path
from ckpt_tools.hub.push import PushPlan, plan_push
from ckpt_tools.hub.upload import apply_push
from ckpt_tools.model import EMPTY, Report, Severity, Subject, worst_first
from ckpt_tools.render import Style, render

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Literal

    from ckpt_tools.model import Target


@dataclass(frozen=True)
class PushRequest:
    """What the user asked ``push`` for; see the command's help.

    Attributes:
        smoke: Run the smoke test first.
        reports: JSON reports of ``smoke`` or ``accept``, for the card.
    """

    path: str
    repo_id: str
    target: str
    engines: tuple[str, ...] = ()
    why: str = "--engine"
    license: str | None = None
    base_model: str | None = None
    tags: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    revision: str | None = None
    create_pr: bool = False
    private: bool = False
    dry_run: bool = False
    smoke: bool = False
    reports: tuple[str, ...] = ()
    offline: bool = False


def _json(report: Report) -> str:
    return render("json", [report], Style()) + "\n"


def public_name(request: PushRequest, target: Target) -> str | None:
    """What others call a target on this machine; ``None`` for one that has its name from elsewhere."""
    if target.origin != "local":
        return request.base_model
    return request.base_model or target.hf_repo or Path(target.id).name


def serving_commands(request: PushRequest, target: Target) -> dict[str, str]:
    """The launch command of each engine that can serve the draft, for the card: others' names in it, not ours."""
    from ckpt_tools.serving.args.command import Place

    public = public_name(request, target)
    out: dict[str, str] = {}
    for engine in request.engines or ("sglang", "vllm"):
        asked = LaunchRequest(
            request.path,
            request.target,
            engine,
            request.why,
            draft_as=Place(request.repo_id, None if request.create_pr else request.revision),
            target_as=Place(public) if public is not None else None,
        )
        try:
            made = launch(asked)
        except CkptError:
            continue  # an engine without this algorithm has no command to show
        if made.report.verdict == "pass":
            out[made.plan.engine.name] = made.plan.line
    return out


def read_report(file: str) -> Report:
    """As much of a JSON report as a card needs: command, verdict, content hashes and facts.

    Raises:
        InputError: It can't be read, or is no single report of ``smoke`` or ``accept``.
    """
    hint = "`ckpt smoke … --format json --output FILE` writes one"
    try:
        data = json.loads(Path(file).read_text("utf-8"))
    except OSError as error:
        raise InputError(f"{file}: can't be read ({error.strerror})", hint) from error
    except ValueError as error:
        raise InputError(f"{file}: not JSON ({error})", hint) from error
    if not isinstance(data, dict) or data.get("command") not in ("smoke", "accept"):
        raise InputError(f"{file}: no report of smoke or accept", hint)
    subject = data.get("subject") or {}
    verdict: Literal["pass", "fail"] = "pass" if data.get("verdict") == "pass" else "fail"
    return Report(
        data["command"],
        Subject(str(subject.get("path")), content=subject.get("content")),
        verdict,
        facts=data.get("facts") or {},
    )


def acceptance_of(report: Report) -> Acceptance:
    """The figures of an accept report with what they were measured on."""
    facts = report.facts
    names = {"source": "from", "engine": "engine", "version": "version", "texts": "texts", "tokens": "tokens"}
    said = {name: str(facts[key]) for key, name in names.items() if facts.get(key) is not None}
    lengths = {
        depth: {"value": row["mean"], "low": row["low"], "high": row["high"]}
        for depth, row in (facts.get("expected_length") or {}).items()
    }
    return Acceptance({**facts, "expected_length": lengths}, said)


def push(
    request: PushRequest,
    *,
    notify: Callable[[str], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Push a verified draft; nothing is uploaded when a check fails.

    Raises:
        UsageError: PATH is no folder, or the arguments contradict each other.
        Unavailable: The Hub refused or is down.
        InputError: The folder or a report can't be read.
    """
    if request.offline:
        raise UsageError("--offline and push: a push needs the Hub", "leave --offline out")
    given = [read_report(file) for file in request.reports]
    path = Path(request.path)
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file, and push takes the draft's folder", "give its folder")
    target = find_target(request.target)
    # Absolute paths can be told from other words when they are taken out of what is published.
    request = replace(
        request,
        path=str(path.resolve()) if path.is_dir() else request.path,
        target=str(Path(target.id).resolve()) if target.origin == "local" else request.target,
    )
    checked = verify(
        VerifyRequest(
            path=request.path, target=request.target, engines=request.engines, why=request.why, deep=True
        )
    )
    if not path.is_dir():
        raise UsageError(f"{path} is on the Hub already, and push takes a folder", "`hf download` gets it")
    passed = checked.verdict == "pass"
    ran = _smoke(request) if request.smoke and passed else None
    smoked = ran or next((r for r in given if r.command == "smoke"), None)
    accepted = next((r for r in given if r.command == "accept"), None)
    plan = plan_push(
        request.path,
        request.repo_id,
        verify=_publishable(checked, request, target),
        render_report=_json,
        smoke=smoked,
        license=request.license,
        base_model=request.base_model,
        serve=serving_commands(request, target) if passed else EMPTY,
        acceptance=acceptance_of(accepted) if accepted is not None else None,
        tags=request.tags,
        include=request.include,
        revision=request.revision,
        create_pr=request.create_pr,
        private=request.private,
        notify=notify,
        progress=progress,
    )
    facts: dict[str, Any] = {**checked.facts, "push": plan_facts(plan)}
    findings = (*checked.findings, *(ran.findings if ran is not None else ()), *plan.findings)
    if not plan.blocked and not request.dry_run:
        pushed = apply_push(plan, notify=notify, progress=progress)
        findings = (*findings, *pushed.findings)
        facts["push"] |= {"commit": pushed.commit, "url": pushed.url, "pull_request": pushed.pull_request}
    facts["tables"] = {"push": [{"what": k, "says": v} for k, v in _rows(facts["push"], plan).items()]}
    failed = any(f.severity is Severity.ERROR for f in findings)
    return replace(
        checked,
        command="push",
        subject=replace(checked.subject, path=str(path)),
        facts=facts,
        findings=worst_first(findings),
        verdict="fail" if failed else "pass",
    )


def _publishable(report: Report, request: PushRequest, target: Target) -> Report:
    """The report without the place of a target on this machine."""
    if target.origin != "local":
        return report
    name = str(public_name(request, target))
    return replace(without_path(replace(report, target=None), request.target, name), target=report.target)


def _smoke(request: PushRequest) -> Report:
    from ckpt_tools.api.smoking import SmokeRequest, smoke

    return smoke(SmokeRequest(request.path, request.target))


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


def _rows(facts: Mapping[str, Any], plan: PushPlan) -> dict[str, str]:
    """What was done, or would be, in words."""
    if plan.blocked:
        return {"uploaded": "nothing: a check refuses it"}
    rows = {f.name: f"{f.state}, {f.size:,} bytes" for f in plan.files}
    rows |= dict.fromkeys(plan.deletes, "removed")
    if "commit" not in facts:
        rows["uploaded"] = "nothing: --dry-run"
    elif plan.nothing_to_do:
        rows["uploaded"] = f"nothing: {facts['url']} holds exactly this"
    else:
        rows["uploaded"] = str(facts["url"])
    return rows
