"""JUnit XML: a suite per report, a case per code, and one for the verdict.

A suite has failures exactly when its report fails, whatever ``--fail-on`` was.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

from ckpt_tools.model import Severity
from ckpt_tools.render._pages import page_of
from ckpt_tools.render._text import counted, engine_line, kind_of, line, spot, target_line, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ckpt_tools.model import Finding, Report
    from ckpt_tools.render import Style


def render(reports: Sequence[Report], style: Style) -> str:  # noqa: ARG001  # a machine's format has no style
    """The document."""
    root = ET.Element("testsuites", name="ckpt")
    for report in reports:
        root.append(_suite(report))
    for key in ("tests", "failures", "errors"):
        root.set(key, str(sum(int(suite.get(key, "0")) for suite in root)))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode")


def failing(report: Report) -> frozenset[Severity]:
    """The severities that failed this report; empty when it passed.

    A report doesn't hold its ``--fail-on``; its verdict and what is in it say enough.
    """
    if report.verdict != "fail":
        return frozenset()
    if any(f.severity is Severity.ERROR for f in report.findings):
        return frozenset({Severity.ERROR})
    return frozenset({Severity.WARNING})


def _suite(report: Report) -> ET.Element:
    path = visible(report.subject.path)
    suite = ET.Element("testsuite", name=f"ckpt {report.command} {path}", time="0")
    properties = ET.SubElement(suite, "properties")
    for name, value in _properties(report):
        ET.SubElement(properties, "property", name=name, value=value)
    cases = [_verdict(report), *_cases(report)]
    suite.extend(cases)
    suite.set("tests", str(len(cases)))
    for key, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(key, str(sum(case.find(tag) is not None for case in cases)))
    return suite


def _properties(report: Report) -> Iterable[tuple[str, str]]:
    yield "verdict", report.verdict
    if kind_of(report):
        yield "draft", kind_of(report)
    for engine in report.engines:
        yield "engine", engine_line(engine)
    if report.target is not None:
        yield "target", target_line(report.target)


def _verdict(report: Report) -> ET.Element:
    case = _case(report, report.command, "verdict")
    if report.error is not None:
        error = ET.SubElement(case, "error", type=report.error.kind, message=line(report.error.message))
        error.text = line(report.error.hint or "")
    elif report.verdict == "fail" and not _blamed(report):
        ET.SubElement(case, "failure", type="verdict", message=f"ckpt {report.command} failed")
    elif report.findings:
        ET.SubElement(case, "system-out").text = counted(report.findings)
    return case


def _blamed(report: Report) -> bool:
    return any(f.severity in failing(report) for f in report.findings)


def _cases(report: Report) -> Iterable[ET.Element]:
    bad = failing(report)
    by_code: dict[str, list[Finding]] = {}
    for finding in report.findings:
        by_code.setdefault(finding.code, []).append(finding)
    for code, findings in by_code.items():
        yield _found(report, code, findings, bad)
    reasons: dict[str, list[str]] = {}
    for skipped in report.skipped:
        reasons.setdefault(skipped.code, []).append(line(skipped.reason))
    for code, why in reasons.items():
        if code not in by_code:
            case = _case(report, code)
            ET.SubElement(case, "skipped", message="; ".join(why))
            yield case
    for code in report.facts.get("ran", ()):
        if code not in by_code and code not in reasons:
            yield _case(report, code)


def _found(report: Report, code: str, findings: list[Finding], bad: frozenset[Severity]) -> ET.Element:
    case = _case(report, code, findings[0].name)
    texts = {True: [_text(f) for f in findings if f.severity in bad]}
    texts[False] = [_text(f) for f in findings if f.severity not in bad]
    if texts[True]:
        first = next(f for f in findings if f.severity in bad)
        failure = ET.SubElement(case, "failure", type=first.severity.value, message=line(first.message))
        failure.text = "\n".join(texts[True])
    if texts[False]:
        ET.SubElement(case, "system-out").text = "\n".join(texts[False])
    return case


def _case(report: Report, code: str, name: str | None = None) -> ET.Element:
    if name is None:
        page = page_of(code)
        name = page.name if page is not None else None
    title = f"{code} {name}" if name else code
    return ET.Element("testcase", classname=f"ckpt.{report.command}", name=title, time="0")


def _text(finding: Finding) -> str:
    parts = [f"{finding.severity.value}[{finding.code}]: {line(finding.message)}"]
    if spot(finding):
        parts.append(f"  at {spot(finding)}")
    if finding.engine:
        parts.append(f"  engine {visible(finding.engine)}")
    if finding.hint:
        parts.append(f"  help: {line(finding.hint)}")
    return "\n".join(parts)
