"""The report for a terminal: facts, findings worst first, a verdict; at -v each finding in full."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from ckpt_tools.render._layout import columns, row_lines, together, wrapped
from ckpt_tools.render._text import (
    counted,
    engine_line,
    fact,
    kind_of,
    line,
    short,
    size,
    spot,
    target_line,
    visible,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ckpt_tools.model import Finding, Report
    from ckpt_tools.render import Style

#: A line and its style.
Line = tuple[str, str]

_COLOR = {"error": "bold red", "warning": "yellow", "info": "cyan"}
_FILL = {"nothing": "red", "partly": "red", "default": "yellow"}
_FACTS = (
    "num_layers",
    "hidden_size",
    "target_hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "draft_vocab_size",
    "capture_layers",
    "norm_before_residual",
    "norm_before_fc",
    "fc_norm",
    "norm_output",
    "rope",
    "max_position_embeddings",
    "sliding_window",
    "verifier",
)


def render(reports: Sequence[Report], style: Style) -> str:
    """All reports, one after another."""
    texts = []
    for report in reports:
        lines = ((visible(text), colour if style.color else "") for text, colour in _lines(report, style))
        texts.append("\n".join(_coloured(text, colour) for text, colour in lines))
    return "\n\n".join(texts)


def _coloured(text: str, colour: str) -> str:
    """A line in its colour; of ``error[CODE]: message`` only the head has it."""
    if not text or not colour:
        return text
    if colour in _COLOR:
        head, bracket, rest = text.partition("]")
        return _painted(head + bracket, _COLOR[colour]) + rest
    return _painted(text, colour)


def _painted(text: str, colour: str) -> str:
    """Text in a style such as ``bold red``."""
    words = colour.split()
    name = next((w for w in words if w not in ("bold", "dim")), None)
    return click.style(text, fg=name, bold="bold" in words or None, dim="dim" in words or None)


def _lines(report: Report, style: Style) -> Iterator[Line]:
    if style.verbosity >= 0:
        yield from _head(report)
        yield from _sections(report, style)
    for finding in report.findings:
        if style.verbosity >= 0 or finding.severity.value != "info":
            yield from _finding(finding, style, several=len(report.engines) > 1)
    if style.verbosity > 0:
        yield from _skipped(report, style)
    yield from _verdict(report, style)


def _head(report: Report) -> Iterator[Line]:
    # a log and a machine are of no format
    otherwise = "" if report.command in ("watch", "preflight", "accept") else "unrecognised"
    yield f"{visible(report.subject.path)}  {kind_of(report) or otherwise}".rstrip(), "bold"
    for engine in report.engines:
        yield f"  engine {engine_line(engine)}", ""
    if report.target is not None:
        yield f"  target {target_line(report.target)}", ""


def _sections(report: Report, style: Style) -> Iterator[Line]:
    facts = report.facts
    if report.command == "inspect":
        yield from _inspect(facts, style)
    if facts.get("plan") is not None:
        yield from _plan(facts, style)
    if facts.get("load") is not None and (report.command == "inspect" or style.verbosity > 0):
        for engine, load in (facts.get("loads") or {"": facts["load"]}).items():
            yield from _load(engine, load, style)
    for name, rows in (facts.get("tables") or {}).items():
        yield from _grid(name, rows, style)


def _plain(lines: Iterable[str], colour: str = "") -> Iterator[Line]:
    return ((text, colour) for text in lines)


def _inspect(facts: Mapping[str, Any], style: Style) -> Iterator[Line]:
    if "training_output" in facts:
        yield from _training(facts["training_output"])
        return
    dtypes = ", ".join(f"{n} {d}" for d, n in facts["dtypes"].items())
    yield (
        f"  {facts['num_tensors']} tensors ({dtypes}), {facts['num_parameters']:,} parameters, "
        f"{size(facts['total_bytes'])}",
        "",
    )
    if facts.get("wrapper"):
        yield f"  wrapper prefix {visible(facts['wrapper'])}", ""
    draft = facts.get("draft")
    if draft:
        yield from _plain(
            columns([(k, _fact(k, draft)) for k in _FACTS if draft.get(k) is not None], style.width)
        )
    for e in facts.get("evidence", []):
        yield from _plain(
            wrapped(line(f"{e['kind']} {e['key']}: {e['says']}"), style.width, "  ", "    "), "dim"
        )
    yield from _plain(columns([_tensor(t) for t in facts.get("tensors", [])], style.width))
    yield from _stats(facts.get("stats") or {})


def _fact(key: str, draft: Mapping[str, Any]) -> str:
    value = draft[key]
    if key == "capture_layers":
        return f"{short(value)} ({draft['capture_convention']} ids)"
    return fact(key, value)


def _tensor(t: Mapping[str, Any]) -> tuple[str, ...]:
    renamed = t["canonical"] if t["canonical"] != t["name"] else None
    shape = "[" + ", ".join(map(str, t["shape"])) + "]"
    return visible(t["name"]), t["dtype"], shape, f"= {visible(renamed)}" if renamed else ""


def _stats(stats: Mapping[str, Any]) -> Iterator[Line]:
    if not stats:
        return
    figures, counts = ("min", "mean", "max", "rms"), ("zero", "nan", "inf")
    rows: list[tuple[str, ...]] = [("tensor", *figures, *counts)]
    for name, s in stats.items():
        known = s or dict.fromkeys((*figures, *counts))
        cells = [f"{known[k]:.3g}" if known[k] is not None else "–" for k in figures]
        cells += [f"{known[k]:,}" if known[k] is not None else "–" for k in counts]
        rows.append((visible(name), *cells))
    # A row of numbers is read as a row: too narrow a terminal wraps it.
    yield from _plain(columns(rows, sys.maxsize))


def _training(out: Mapping[str, Any]) -> Iterator[Line]:
    yield f"  a training output of {out['framework']}: {len(out['epochs'])} checkpoints", ""
    for epoch in out["epochs"]:
        mark = " (best)" if out["best"] == epoch["path"].rsplit("/", 1)[-1] else ""
        shown = ", ".join(
            f"{k} {v:.4g}" for k, v in list(epoch["metrics"].items())[:6] if isinstance(v, (int, float))
        )
        yield f"  {visible(epoch['path'])}{mark}  {visible(shown)}", ""
    yield f"  next: {visible(out['next'])}", ""


def _plan(facts: Mapping[str, Any], style: Style) -> Iterator[Line]:
    plan = facts["plan"]
    renamed = [r for r in plan["renames"] if r["from"] != r["to"]]
    counts = (
        (len(renamed), "renamed"),
        (len(plan["copies"]), "under a second name"),
        (len(plan["drops"]), "dropped"),
        (len(plan["synthesised"]), "derived"),
        (len(plan["casts"]), "cast"),
    )
    said = ", ".join(f"{n} {what}" for n, what in counts if n)
    yield f"  {plan['from']} → {plan['to']}: {len(plan['renames'])} tensors{', ' + said if said else ''}", ""
    rows = [(visible(r["from"]), f"→ {visible(r['to'])}") for r in renamed]
    rows += [(visible(r["from"]), f"→ also {visible(r['to'])}") for r in plan["copies"]]
    yield from _plain(columns(rows, style.width), "dim")
    for d in plan["drops"]:
        yield from _plain(
            wrapped(f"drop {visible(d['tensor'])}: {line(d['reason'])}", style.width, "  ", "    "), "dim"
        )
    for s in plan["synthesised"]:
        yield from _plain(
            wrapped(f"derive {visible(s['tensor'])}: {line(s['how'])}", style.width, "  ", "    "), "dim"
        )
    if plan["launch_flags"]:
        yield f"  serve with {visible(' '.join(plan['launch_flags']))}", ""
    if plan["bytes_copied"] is not None:
        yield f"  {size(plan['bytes_shared'])} shared, {size(plan['bytes_copied'])} copied", ""
    if facts.get("written"):
        yield f"  written to {visible(facts['written'])}", "green"


def _load(engine: str, load: Mapping[str, Any], style: Style) -> Iterator[Line]:
    if engine:
        yield f"  {engine}:", "bold"
    if load["refused"]:
        yield from _plain(wrapped(f"refused: {line(load['refused'])}", style.width, "  ", "    "), "red")
    rows = [("parameter", "filled by", "from")]
    for name, fill in load["parameters"].items():
        source = together([visible(n) for n in fill["from"]])
        cut = f" ({line(fill['cut'])})" if fill.get("cut") else ""
        rows.append((visible(name), fill["filled_by"], source + cut))
    if len(rows) > 1:
        for row, lines in zip(rows, row_lines(rows, style.width), strict=True):
            yield from _plain(lines, _FILL.get(row[1], ""))
    if load["unused"]:
        names = ", ".join(visible(n) for n in load["unused"])
        yield from _plain(wrapped(f"unused: {names}", style.width, "  ", "    "))


def _grid(title: str, rows: Sequence[Mapping[str, Any]], style: Style) -> Iterator[Line]:
    if rows:
        yield f"  {title}", "bold"
        yield from _plain(
            columns([tuple(rows[0]), *(tuple(map(short, r.values())) for r in rows)], style.width)
        )


def _finding(finding: Finding, style: Style, *, several: bool) -> Iterator[Line]:
    level = finding.severity.value
    first, *rest = wrapped(f"{level}[{finding.code}]: {line(finding.message)}", style.width, rest="  ")
    yield first, level
    yield from _plain(rest)
    if style.verbosity <= 0:
        if several and finding.engine:
            yield f"  engine {visible(finding.engine)}", "dim"
        if finding.hint:
            yield from _plain(wrapped(f"hint: {line(finding.hint)}", style.width, "  ", "    "), "dim")
        return
    if spot(finding):
        yield f"  --> {spot(finding)}", "blue"
    for label, text in _details(finding):
        yield from _plain(wrapped(text, style.width, f"   = {label}: ", " " * 5), "")


def _skipped(report: Report, style: Style) -> Iterator[Line]:
    reasons: dict[str, list[str]] = {}
    for skipped in report.skipped:
        reasons.setdefault(line(skipped.reason), []).append(skipped.code)
    for reason, codes in reasons.items():
        yield from _plain(wrapped(f"skipped ({reason}): {', '.join(codes)}", style.width, rest="  "), "dim")


def _details(finding: Finding) -> Iterator[tuple[str, str]]:
    if finding.engine:
        yield "engine", visible(finding.engine)
    if finding.hint:
        yield "help", line(finding.hint)
    if finding.fix is not None:
        yield "fix", f"{line(finding.fix.command)}{'' if finding.fix.safe else ' (look at its result)'}"
    yield "see", f"ckpt explain {finding.code}"


def _verdict(report: Report, style: Style) -> Iterator[Line]:
    if report.error is not None:
        yield from _plain(wrapped(f"error: {line(report.error.message)}", style.width, rest="  "), "bold red")
        if report.error.hint:
            yield from _plain(wrapped(f"hint: {line(report.error.hint)}", style.width, rest="  "))
        return
    if report.command == "inspect" and not report.findings:
        return
    said = counted(report.findings)
    yield (
        f"{report.verdict}{': ' + said if said else ''}",
        "green" if report.verdict == "pass" else "bold red",
    )
