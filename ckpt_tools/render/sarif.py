"""SARIF 2.1.0, for code scanning: one run per report, a rule per code that was found.

Paths are relative to the repository's root; fingerprints don't depend on messages, lines or versions, so that an
alert stays the same alert from one run to the next.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import ckpt_tools
from ckpt_tools.render._pages import page_of
from ckpt_tools.render._places import BESIDE, Around, look_around, place, subject_place
from ckpt_tools.render._text import HOME, line, page_url, visible
from ckpt_tools.render.json import engine_json, target_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckpt_tools.model import Finding, Report, Severity
    from ckpt_tools.render import Style

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS = {"error": "error", "warning": "warning", "info": "note"}
_BASE = "%SRCROOT%"


def render(reports: Sequence[Report], style: Style) -> str:  # noqa: ARG001  # a machine's format has no style
    """The log as JSON."""
    return json.dumps(sarif_log(reports, look_around(reports)), indent=2, ensure_ascii=True)


def sarif_log(reports: Sequence[Report], around: Around) -> dict[str, Any]:
    """A SARIF log of reports, with places relative to *around*."""
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [_run(r, around) for r in reports]}


def _run(report: Report, around: Around) -> dict[str, Any]:
    codes = list(dict.fromkeys([f.code for f in report.findings] + [s.code for s in report.skipped]))
    subject = subject_place(report.subject.path, around)
    return {
        "tool": {
            "driver": {
                "name": "ckpt",
                "version": ckpt_tools.__version__,
                "semanticVersion": ckpt_tools.__version__,
                "informationUri": HOME,
                "rules": [_rule(code, report) for code in codes],
            }
        },
        # A trailing slash: the whole is a category, in which each upload replaces the one before.
        "automationDetails": {"id": f"ckpt/{report.command}/{subject.uri}/"},
        "originalUriBaseIds": {_BASE: {"description": {"text": "The repository's root."}}},
        "invocations": [_invocation(report)],
        "columnKind": "unicodeCodePoints",
        "results": _results(report, codes, around),
        "properties": {
            "path": visible(report.subject.path),
            "verdict": report.verdict,
            "format": report.subject.format,
            "algorithm": report.subject.algorithm,
            "fingerprint": report.subject.fingerprint,
            "engines": [engine_json(e) for e in report.engines],
            "target": target_json(report.target),
        },
    }


def _rule(code: str, report: Report) -> dict[str, Any]:
    page = page_of(code)
    if page is None:  # a code of a newer part than the pages
        name = next((f.name for f in report.findings if f.code == code), code)
        return {"id": code, "name": name, "shortDescription": {"text": name}}
    sections = dict(page.sections)
    text = "\n\n".join(f"{heading}: {body}" for heading, body in page.sections)
    return {
        "id": code,
        "name": page.name,
        "shortDescription": {"text": page.title},
        "fullDescription": {
            "text": " ".join([page.title, sections.get("Why it breaks serving", "")]).strip()
        },
        "help": {
            "text": text,
            "markdown": "\n\n".join(f"**{heading}**\n\n{body}" for heading, body in page.sections),
        },
        "helpUri": page_url(code),
        "defaultConfiguration": {"level": LEVELS[page.severity]},
        "properties": {"tags": [code[:3]]},
    }


def _invocation(report: Report) -> dict[str, Any]:
    out: dict[str, Any] = {"executionSuccessful": report.error is None}
    if report.error is not None:
        text = " ".join(line(x) for x in (report.error.message, report.error.hint) if x)
        out["toolExecutionNotifications"] = [
            {"level": "error", "message": {"text": text}, "descriptor": {"id": report.error.kind}}
        ]
    if report.skipped:
        out["toolConfigurationNotifications"] = [
            {
                "level": "note",
                "message": {"text": f"{s.code} was skipped: {line(s.reason)}"},
                "associatedRule": {"id": s.code},
            }
            for s in report.skipped
        ]
    return out


def _results(report: Report, codes: list[str], around: Around) -> list[dict[str, Any]]:
    seen: Counter[str] = Counter()
    return [_result(f, report, codes.index(f.code), around, seen) for f in report.findings]


def _result(
    finding: Finding, report: Report, rule: int, around: Around, seen: Counter[str]
) -> dict[str, Any]:
    message = line(finding.message)
    if finding.hint:
        message += f"\nHelp: {line(finding.hint)}"
    properties: dict[str, Any] = {"engine": finding.engine, "hint": finding.hint}
    if finding.fix is not None:
        properties["fix"] = {"command": finding.fix.command, "safe": finding.fix.safe}
    return {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": level(finding.severity),
        "message": {"text": message},
        "locations": [_location(finding, report, around)],
        "partialFingerprints": {"ckptFinding/v1": _fingerprint(finding, report, around, seen)},
        "properties": {k: v for k, v in properties.items() if v is not None},
    }


def level(severity: Severity) -> str:
    """SARIF's word for a severity."""
    return LEVELS[severity.value]


def _location(finding: Finding, report: Report, around: Around) -> dict[str, Any]:
    where = finding.location
    at = place(report.subject.path, where.file, around)
    artifact: dict[str, Any] = {"uri": at.uri}
    if at.path is not None:
        artifact["uriBaseId"] = _BASE
    physical: dict[str, Any] = {"artifactLocation": artifact}
    if where.file in BESIDE:
        return {"physicalLocation": physical, "logicalLocations": [_beside(finding)]}
    # Scanners that show text want a line; a finding about a whole text file is shown at its top.
    if where.line is not None or at.uri.endswith(".json"):
        physical["region"] = {"startLine": where.line or 1}
    logical = []
    if where.pointer:
        logical.append(_logical(where.pointer.rsplit("/", 1)[-1], where.pointer, "property"))
    if where.tensor:
        logical.append(_logical(where.tensor.rsplit(".", 1)[-1], where.tensor, "tensor"))
    return {"physicalLocation": physical, **({"logicalLocations": logical} if logical else {})}


def _beside(finding: Finding) -> dict[str, str]:
    where = finding.location
    full = f"{where.file}:{where.line}" if where.line is not None else str(where.file)
    return _logical(str(where.file), full, "resource")


def _logical(name: str, full: str, kind: str) -> dict[str, str]:
    return {"name": visible(name), "fullyQualifiedName": visible(full), "kind": kind}


def _fingerprint(finding: Finding, report: Report, around: Around, seen: Counter[str]) -> str:
    where = finding.location
    engine = (finding.engine or "").partition("==")[0]
    parts = (
        finding.code,
        engine,
        place(report.subject.path, where.file, around).uri,
        where.pointer or "",
        where.tensor or "",
    )
    key = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]
    seen[key] += 1
    return f"{key}:{seen[key]}"
