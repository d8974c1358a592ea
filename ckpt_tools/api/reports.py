"""Building the report that every command returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckpt_tools.container.fingerprint import fingerprint
from ckpt_tools.container.jsontext import line_of
from ckpt_tools.formats.facts import facts_json
from ckpt_tools.model import Failure, Report, Severity, Subject, worst_first

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ckpt_tools.api.subjects import Opened
    from ckpt_tools.errors import CkptError
    from ckpt_tools.model import Checkpoint, Draft, Engine, Finding, LoadMap, Skipped, Target

from dataclasses import asdict, replace


def with_lines(findings: Iterable[Finding], checkpoint: Checkpoint) -> tuple[Finding, ...]:
    """Findings that point into config.json get their line."""
    out = []
    for f in findings:
        where = f.location
        if where.file == "config.json" and where.pointer and where.line is None and checkpoint.config_text:
            line = line_of(checkpoint.config_text, where.pointer)
            f = replace(f, location=replace(where, line=line)) if line is not None else f
        out.append(f)
    return tuple(out)


def subject_of(
    checkpoint: Checkpoint, draft: Draft | None, content: Mapping[str, str] | None = None
) -> Subject:
    """What the report is about."""
    return Subject(
        checkpoint.path,
        draft.format if draft else None,
        draft.algorithm if draft else None,
        fingerprint(checkpoint),
        content,
    )


def verdict_of(findings: Iterable[Finding], fail_on: Severity | None) -> str:
    """``fail`` when a finding is at or above the threshold."""
    if fail_on is None:
        return "pass"
    return "fail" if any(f.severity.rank >= fail_on.rank for f in findings) else "pass"


def value_facts(opened: Opened) -> dict[str, Any]:
    """Statistics of every tensor's values, ``None`` for dtypes without plain values; reads all bytes."""
    from ckpt_tools.container.values import scan

    scanned = scan(opened.checkpoint, source=opened.source)
    return {name: asdict(stats) if stats is not None else None for name, stats in scanned.items()}


def draft_facts(checkpoint: Checkpoint, draft: Draft | None) -> dict[str, Any]:
    """The facts that inspect and verify state of a draft."""
    dtypes: dict[str, int] = {}
    for t in checkpoint.tensors.values():
        dtypes[t.dtype] = dtypes.get(t.dtype, 0) + 1
    out: dict[str, Any] = {
        "format": draft.format if draft else None,
        "evidence": [{"kind": e.kind, "key": e.key, "says": e.says} for e in draft.evidence] if draft else [],
        "algorithm": draft.algorithm if draft else None,
        "num_tensors": len(checkpoint.tensors),
        "num_parameters": checkpoint.num_parameters,
        "total_bytes": checkpoint.total_bytes,
        "dtypes": dict(sorted(dtypes.items())),
        "wrapper": draft.wrapper if draft else "",
        "draft": facts_json(draft.facts) if draft else None,
    }
    if draft is not None and draft.ambiguous_capture is not None:
        out["ambiguous_capture"] = list(draft.ambiguous_capture)
    state = checkpoint.extra.get("training_state")
    if state is not None:
        out["training_state"] = dict(state)
    return out


def load_json(load: LoadMap) -> dict[str, Any]:
    """A load map as ``facts.load`` has it."""
    return {
        "architecture": load.architecture,
        "parameters": {
            name: {"from": list(f.sources), "filled_by": f.filled_by, **({"cut": f.cut} if f.cut else {})}
            for name, f in load.parameters.items()
        },
        "unused": list(load.unused),
        "refused": load.refused,
    }


def report(
    command: str,
    checkpoint: Checkpoint,
    draft: Draft | None,
    *,
    findings: Iterable[Finding],
    facts: Mapping[str, Any],
    target: Target | None = None,
    engines: tuple[Engine, ...] = (),
    skipped: tuple[Skipped, ...] = (),
    fail_on: Severity | None = Severity.ERROR,
    content: Mapping[str, str] | None = None,
) -> Report:
    """A finished report of a command over a checkpoint."""
    ordered = worst_first(with_lines(findings, checkpoint))
    return Report(
        command=command,
        subject=subject_of(checkpoint, draft, content),
        verdict="fail" if verdict_of(ordered, fail_on) == "fail" else "pass",
        target=target,
        engines=engines,
        facts=facts,
        findings=ordered,
        skipped=skipped,
    )


def failed(command: str, path: str, error: CkptError) -> Report:
    """The report of a command that couldn't do its work."""
    return Report(
        command=command,
        subject=Subject(path),
        verdict="error",
        error=Failure(error.kind, error.message, error.hint),
    )
