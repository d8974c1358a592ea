"""GitHub's workflow commands: an annotation per finding, and a line per report for the log.

GitHub shows the first ten annotations of each kind per step; findings come worst first.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ckpt_tools.render._places import BESIDE, look_around, place
from ckpt_tools.render._text import counted, line, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ckpt_tools.model import Finding, Report
    from ckpt_tools.render import Style
    from ckpt_tools.render._places import Around

KINDS = {"error": "error", "warning": "warning", "info": "notice"}


def render(reports: Sequence[Report], style: Style) -> str:
    """The commands, for stdout of a workflow's step."""
    workspace = os.environ.get("GITHUB_WORKSPACE")
    around = look_around(reports, Path(workspace) if workspace else None)
    return "\n".join(text for report in reports for text in report_lines(report, around, style.verbosity))


def report_lines(report: Report, around: Around, verbosity: int = 0) -> Iterable[str]:
    """Lines of one report; at verbosity -1 without infos."""
    what = f"ckpt {report.command} {visible(report.subject.path)}"
    if report.error is not None:
        hint = f"\n{line(report.error.hint)}" if report.error.hint else ""
        yield command("error", {"title": what}, line(report.error.message) + hint)
    for finding in report.findings:
        if verbosity >= 0 or finding.severity.value != "info":
            yield _annotation(finding, report, around)
    said = counted(report.findings)
    yield f"{what}: {report.verdict}{f' ({said})' if said else ''}"


def command(kind: str, properties: Mapping[str, str], message: str) -> str:
    """One workflow command, escaped as GitHub's runner unescapes it."""
    given = ",".join(f"{k}={_data(v).replace(':', '%3A').replace(',', '%2C')}" for k, v in properties.items())
    return f"::{kind} {given}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _annotation(finding: Finding, report: Report, around: Around) -> str:
    where = finding.location
    at = place(report.subject.path, where.file, around)
    properties = {}
    if at.path is not None:
        properties["file"] = visible(at.path)
        if where.line is not None and where.file not in BESIDE:
            properties["line"] = str(where.line)
    properties["title"] = f"{finding.code} {finding.name}"
    parts = [line(finding.message)]
    if where.file in BESIDE and where.line is not None:
        parts.append(f"{where.file}, line {where.line}")
    if where.tensor:
        parts.append(f"tensor {visible(where.tensor)}")
    if at.path is None:
        parts.append(f"in {visible(at.uri)}")
    if finding.engine:
        parts.append(f"engine {visible(finding.engine)}")
    if finding.hint:
        parts.append(f"help: {line(finding.hint)}")
    return command(KINDS[finding.severity.value], properties, "\n".join(parts))
