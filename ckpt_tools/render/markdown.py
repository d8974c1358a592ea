"""Markdown for a pull request: the verdict, what was found, and what the engine would load."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ckpt_tools.render._text import (
    counted,
    engine_line,
    kind_of,
    line,
    page_url,
    spot,
    target_line,
    visible,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ckpt_tools.model import Finding, Report
    from ckpt_tools.render import Style

_SIGNS = {"pass": "✅", "fail": "❌", "error": "⚠️"}
_MARKUP = re.compile(r"[\\`*_\[\]|~!]")
_BEYOND = re.compile(r"[<>&@#$]")  # HTML, mentions, issues and formulas, which a backslash doesn't stop


def render(reports: Sequence[Report], style: Style) -> str:
    """All reports, a heading each."""
    return "\n\n".join("\n".join(_one(report, style)).strip() for report in reports)


def escape(text: str) -> str:
    """Text that Markdown (and the HTML in it) shows as it is: no link, mention or image comes of it."""
    marked = _MARKUP.sub(lambda m: f"\\{m.group()}", line(text))
    return _BEYOND.sub(lambda m: f"&#{ord(m.group())};", marked)


def code(text: str) -> str:
    """Text as code: a fence longer than any run of backticks in it; a bar is fine outside a table."""
    shown = visible(text)
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if longest or not shown.strip() else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def cell(text: str) -> str:
    """Code inside a table's cell, where a bar ends the cell even in code."""
    return code(text).replace("|", "\\|")


def _one(report: Report, style: Style) -> Iterator[str]:
    yield f"### {_SIGNS[report.verdict]} ckpt {report.command} {code(report.subject.path)}: {report.verdict}"
    yield ""
    yield from _about(report)
    if report.error is not None:
        yield f"**{escape(report.error.message)}**"
        if report.error.hint:
            yield f"\n{escape(report.error.hint)}"
    shown = [f for f in report.findings if style.verbosity >= 0 or f.severity.value != "info"]
    if shown:
        several = len(report.engines) > 1
        yield from _table(
            ("", "code", "where", "finding"),
            (
                (f.severity.value, f"[{f.code}]({page_url(f.code)})", _place(f), _said(f, several))
                for f in shown
            ),
        )
        yield ""
    said = counted(report.findings)
    if report.error is None:
        yield f"{said[:1].upper()}{said[1:]}." if said else "Nothing found."
        yield ""
    if style.verbosity >= 0:
        yield from _plan(report.facts.get("plan"))
        yield from _loads(report)
        yield from _skipped(report)


def _about(report: Report) -> Iterator[str]:
    rows = []
    if kind_of(report):
        rows.append(f"- draft {escape(kind_of(report))}")
    rows += [f"- engine {escape(engine_line(engine))}" for engine in report.engines]
    if report.target is not None:
        rows.append(f"- target {escape(target_line(report.target))}")
    if rows:
        yield from (*rows, "")


def _place(finding: Finding) -> str:
    return cell(spot(finding)) if spot(finding) else ""


def _said(finding: Finding, several: bool) -> str:
    text = escape(finding.message)
    if finding.hint:
        text += f"<br>*{escape(finding.hint)}*"
    if finding.engine and several:
        text += f"<br><sub>{escape(finding.engine)}</sub>"
    return text


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"| {' | '.join('---' for _ in head)} |"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _details(summary: str, inner: Iterable[str]) -> Iterator[str]:
    yield f"<details><summary>{summary}</summary>"
    yield ""
    yield from inner
    yield ""
    yield "</details>"
    yield ""


def _plan(plan: Mapping[str, Any] | None) -> Iterator[str]:
    if plan is None:
        return
    rows = [(cell(r["from"]), cell(r["to"])) for r in plan["renames"] if r["from"] != r["to"]]
    rows += [(cell(r["from"]), f"also {cell(r['to'])}") for r in plan["copies"]]
    rows += [(cell(d["tensor"]), f"dropped: {escape(d['reason'])}") for d in plan["drops"]]
    rows += [("", f"{cell(s['tensor'])} {escape(s['how'])}") for s in plan["synthesised"]]
    rows += [
        (cell(c["tensor"]), f"cast from {escape(c['from'])} to {escape(c['to'])}") for c in plan["casts"]
    ]
    title = f"Plan: {escape(plan['from'])} to {escape(plan['to'])}, {len(plan['renames'])} tensors"
    yield from _details(title, _table(("tensor", "becomes"), rows) if rows else ("All names stay.",))


def _loads(report: Report) -> Iterator[str]:
    loads = report.facts.get("loads")
    if loads is None and report.facts.get("load") is not None:
        loads = {str(report.engines[0]) if report.engines else "the engine": report.facts["load"]}
    for engine, load in (loads or {}).items():
        yield from _details(f"What {escape(engine)} loads", _load(load))


def _load(load: Mapping[str, Any]) -> Iterator[str]:
    if load["refused"]:
        yield f"Refused: {escape(load['refused'])}\n"
    if load["parameters"]:
        yield from _table(
            ("parameter", "filled by", "from"),
            (
                (cell(name), fill["filled_by"], "<br>".join([*map(cell, fill["from"]), *_cut(fill)]))
                for name, fill in load["parameters"].items()
            ),
        )
    if load["unused"]:
        yield f"\nUnused: {', '.join(code(name) for name in load['unused'])}"


def _cut(fill: Mapping[str, Any]) -> Iterator[str]:
    if fill.get("cut"):
        yield escape(fill["cut"])


def _skipped(report: Report) -> Iterator[str]:
    if report.skipped:
        rows = ((s.code, escape(s.reason)) for s in report.skipped)
        yield from _details(f"{len(report.skipped)} checks skipped", _table(("code", "why"), rows))
