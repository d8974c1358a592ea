"""One self-contained page: no script, nothing fetched, readable in the dark and on paper."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ckpt_tools
from ckpt_tools.render._html import Html, el, join
from ckpt_tools.render._pages import page_of
from ckpt_tools.render._panels import panels, section, table
from ckpt_tools.render._style import CSS
from ckpt_tools.render._text import counted, engine_line, kind_of, line, size, spot, target_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ckpt_tools.model import Finding, Report
    from ckpt_tools.render import Style

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def render(reports: Sequence[Report], style: Style) -> str:
    """The page."""
    title = f"ckpt {reports[0].command}: {reports[0].verdict}" if len(reports) == 1 else "ckpt"
    body = [_index(reports)] if len(reports) > 1 else []
    body += [_report(report, i, style) for i, report in enumerate(reports)]
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("link", rel="icon", href="data:,"),
        el("title", title),
        Html(f"<style>{CSS}</style>"),
    )
    foot = el("footer", f"ckpt {ckpt_tools.__version__}")
    return "<!doctype html>\n" + el("html", head, el("body", el("main", *body, foot)), lang="en")


def _index(reports: Sequence[Report]) -> Html:
    rows = (
        (_badge(r.verdict), el("a", r.subject.path, href=f"#r{i}"), kind_of(r), counted(r.findings))
        for i, r in enumerate(reports)
    )
    return el("nav", el("h1", f"{len(reports)} reports"), table(("", "draft", "format", "found"), rows))


def _badge(verdict: str) -> Html:
    return el("span", verdict, cls=f"badge {verdict}")


def _report(report: Report, number: int, style: Style) -> Html:
    infos = style.verbosity >= 0
    findings = [f for f in report.findings if infos or f.severity.value != "info"]
    return el(
        "article",
        el("header", _badge(report.verdict), el("h1", report.subject.path), _about(report)),
        _failure(report),
        section("Findings", *(_finding(f, len(report.engines) > 1) for f in findings)) if findings else None,
        panels(report),
        _skipped(report),
        id=f"r{number}",
    )


def _about(report: Report) -> Html:
    rows: list[tuple[str, str]] = [("command", f"ckpt {report.command}")]
    if kind_of(report):
        rows.append(("draft", kind_of(report)))
    rows += [("engine", engine_line(engine)) for engine in report.engines]
    if report.target is not None:
        rows.append(("target", target_line(report.target)))
    if report.facts.get("num_tensors") is not None:
        rows.append(("weights", _weights(report.facts)))
    if report.subject.fingerprint:
        rows.append(("fingerprint", report.subject.fingerprint))
    if report.findings:
        rows.append(("found", counted(report.findings)))
    return el("dl", *(join(el("dt", k), el("dd", v)) for k, v in rows))


def _weights(facts: Mapping[str, Any]) -> str:
    kinds = ", ".join(f"{n} {dtype}" for dtype, n in (facts.get("dtypes") or {}).items())
    return (
        f"{facts['num_tensors']} tensors ({kinds}), {facts['num_parameters']:,} parameters, "
        f"{size(facts['total_bytes'])}"
    )


def _failure(report: Report) -> Html | None:
    if report.error is None:
        return None
    return el(
        "section",
        el("p", line(report.error.message), cls="message"),
        el("p", line(report.error.hint), cls="hint") if report.error.hint else None,
        cls="finding error",
    )


def _finding(finding: Finding, several: bool) -> Html:
    where = spot(finding)
    engine = finding.engine if several and finding.engine else ""
    return el(
        "section",
        el(
            "h3",
            el("span", finding.severity.value, cls="severity"),
            el("code", finding.code),
            el("span", finding.name, cls="muted"),
        ),
        el("p", line(finding.message), cls="message"),
        el("p", el("code", where), f" {engine}", cls="muted") if where or engine else None,
        el("p", line(finding.hint), cls="hint") if finding.hint else None,
        _fix(finding),
        _explained(finding.code),
        cls=f"finding {finding.severity.value}",
    )


def _fix(finding: Finding) -> Html | None:
    if finding.fix is None:
        return None
    safe = "loses nothing" if finding.fix.safe else "look at its result"
    return el("p", el("code", finding.fix.command), el("span", f" {safe}", cls="muted"))


def _explained(code: str) -> Html | None:
    page = page_of(code)
    if page is None:
        return None
    rows = (join(el("dt", heading), el("dd", body)) for heading, body in page.sections)
    return el("details", el("summary", f"About {code}: {page.title}"), el("dl", *rows))


def _skipped(report: Report) -> Html | None:
    if not report.skipped:
        return None
    rows = ((el("code", s.code), line(s.reason)) for s in report.skipped)
    return el(
        "details",
        el("summary", f"{len(report.skipped)} checks were skipped"),
        table(("code", "why"), rows),
    )
