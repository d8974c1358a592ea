"""The report as JSON, ``schemas/report.v1.json``."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import ckpt_tools

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckpt_tools.model import Engine, Finding, Report, Target
    from ckpt_tools.render import Style

SCHEMA = "ckpt-tools/report.v1"
#: What JSON lets through and a terminal or an encoder doesn't bear: C1 controls, marks that turn text, lone surrogates.
_UNSAFE = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def finding_json(finding: Finding) -> dict[str, Any]:
    """One finding."""
    where = finding.location
    return {
        "code": finding.code,
        "name": finding.name,
        "severity": finding.severity.value,
        "engine": finding.engine,
        "message": finding.message,
        "hint": finding.hint,
        "fix": {"command": finding.fix.command, "safe": finding.fix.safe} if finding.fix else None,
        "location": {
            "file": where.file,
            "pointer": where.pointer,
            "tensor": where.tensor,
            "line": where.line,
        },
    }


def engine_json(engine: Engine) -> dict[str, Any]:
    """One engine."""
    return {"name": engine.name, "version": engine.version, "contract": engine.contract, "why": engine.why}


def target_json(target: Target | None) -> dict[str, Any] | None:
    """What identifies the target, and the facts that decide most."""
    if target is None:
        return None
    return {
        "id": target.id,
        "origin": target.origin,
        "hf_repo": target.hf_repo,
        "architectures": list(target.architectures),
        "hidden_size": target.hidden_size,
        "num_hidden_layers": target.num_hidden_layers,
        "vocab_size": target.vocab_size,
        "max_position_embeddings": target.max_position_embeddings,
        "dtype": target.dtype,
    }


def report_json(report: Report) -> dict[str, Any]:
    """A report as plain data."""
    return {
        "schema": SCHEMA,
        "command": report.command,
        "version": ckpt_tools.__version__,
        "verdict": report.verdict,
        "subject": {
            "path": report.subject.path,
            "format": report.subject.format,
            "algorithm": report.subject.algorithm,
            "fingerprint": report.subject.fingerprint,
            "content": dict(report.subject.content) if report.subject.content else None,
        },
        "target": target_json(report.target),
        "engines": [engine_json(e) for e in report.engines],
        "facts": dict(report.facts),
        "skipped": [{"code": s.code, "reason": s.reason} for s in report.skipped],
        "error": {"kind": report.error.kind, "message": report.error.message, "hint": report.error.hint}
        if report.error
        else None,
        "findings": [finding_json(f) for f in report.findings],
    }


def render(reports: Sequence[Report], style: Style) -> str:
    """One object, or a list of them when several PATHs were given."""
    data: Any = [report_json(r) for r in reports]
    if not style.many and len(reports) == 1:
        data = data[0]
    text = json.dumps(data, indent=2, ensure_ascii=False, default=_plain)
    return _UNSAFE.sub(lambda m: f"\\u{ord(m.group()):04x}", text)


def _plain(value: Any) -> Any:
    if hasattr(value, "items"):
        return dict(value)
    if isinstance(value, (set, frozenset, tuple)):
        return list(value)
    raise TypeError(f"{type(value).__name__} in a report")
