"""The report for a terminal: facts, findings worst first, a verdict; at -v each finding in full."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ckpt_tools.model import Finding, Report
    from ckpt_tools.render import Style

_COLOR = {"error": "bold red", "warning": "yellow", "info": "cyan"}
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
    out = io.StringIO()
    console = Console(
        file=out,
        width=style.width,
        force_terminal=style.color,
        no_color=not style.color,
        color_system="standard" if style.color else None,
        highlight=False,
        soft_wrap=False,
    )
    for i, report in enumerate(reports):
        if i:
            console.print()
        _one(console, report, style)
    return out.getvalue().rstrip("\n")


def _one(console: Console, report: Report, style: Style) -> None:
    if style.verbosity >= 0:
        _head(console, report)
        _sections(console, report, style)
    for finding in report.findings:
        if style.verbosity < 0 and finding.severity.value == "info":
            continue
        _finding(console, finding, style)
    if style.verbosity > 0:
        for skipped in report.skipped:
            console.print(Text(f"skipped {skipped.code}: {skipped.reason}", style="dim"))
    _verdict(console, report)


def _head(console: Console, report: Report) -> None:
    subject = report.subject
    what = " ".join(x for x in (subject.format, subject.algorithm) if x) or "unrecognised"
    console.print(Text.assemble((subject.path, "bold"), f"  {what}"))
    for engine in report.engines:
        note = "" if engine.contract == engine.version else f", answered by the contract of {engine.contract}"
        console.print(f"  engine {engine} ({engine.why}{note})")
    if report.target is not None:
        t = report.target
        named = f" {t.architectures[0]}" if t.architectures else ""
        console.print(f"  target {t.id}{named} ({t.origin})")


def _sections(console: Console, report: Report, style: Style) -> None:
    facts = report.facts
    if report.command == "inspect":
        _inspect(console, facts, style)
    if facts.get("plan") is not None:
        _plan(console, facts)
    if facts.get("load") is not None and (report.command == "inspect" or style.verbosity > 0):
        _load(console, facts["load"])
    for name, rows in (facts.get("tables") or {}).items():
        _grid(console, name, rows)


def _inspect(console: Console, facts: Mapping[str, Any], style: Style) -> None:
    if "training_output" in facts:
        _training(console, facts["training_output"])
        return
    size = facts["total_bytes"]
    dtypes = ", ".join(f"{n} {d}" for d, n in facts["dtypes"].items())
    console.print(
        f"  {facts['num_tensors']} tensors ({dtypes}), {facts['num_parameters']:,} parameters, {_bytes(size)}"
    )
    if facts.get("wrapper"):
        console.print(f"  wrapper prefix {facts['wrapper']}")
    draft = facts.get("draft")
    if draft:
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
        for key in _FACTS:
            if draft.get(key) is not None:
                value = draft[key]
                if key == "capture_layers":
                    value = f"{value} ({draft['capture_convention']} ids)"
                table.add_row(Text(key, style="dim"), Text(_short(value)))
        console.print(table)
    for e in facts.get("evidence", []) if style.verbosity >= 0 else []:
        console.print(Text(f"  {e['kind']} {e['key']}: {e['says']}", style="dim"))
    for t in facts.get("tensors", []):
        renamed = f"  = {t['canonical']}" if t["canonical"] and t["canonical"] != t["name"] else ""
        console.print(f"  {t['name']}  {t['dtype']} {t['shape']}{renamed}")
    for name, s in facts.get("stats", {}).items():
        console.print(f"  {name}  " + "  ".join(f"{k} {_short(v)}" for k, v in (s or {}).items()))


def _training(console: Console, out: Mapping[str, Any]) -> None:
    console.print(f"  a training output of {out['framework']}: {len(out['epochs'])} checkpoints")
    for epoch in out["epochs"]:
        mark = " (best)" if out["best"] == epoch["path"].rsplit("/", 1)[-1] else ""
        shown = ", ".join(
            f"{k} {v:.4g}" for k, v in list(epoch["metrics"].items())[:6] if isinstance(v, (int, float))
        )
        console.print(f"  {epoch['path']}{mark}  {shown}")
    console.print(f"  next: {out['next']}")


def _plan(console: Console, facts: Mapping[str, Any]) -> None:
    plan = facts["plan"]
    renamed = [r for r in plan["renames"] if r["from"] != r["to"]]
    parts = [
        f"{len(renamed)} renamed",
        f"{len(plan['copies'])} under a second name",
        f"{len(plan['drops'])} dropped",
        f"{len(plan['synthesised'])} derived",
        f"{len(plan['casts'])} cast",
    ]
    console.print(
        f"  {plan['from']} → {plan['to']}: {len(plan['renames'])} tensors, "
        + ", ".join(p for p in parts if p[0] != "0")
    )
    for r in renamed:
        console.print(Text(f"  {r['from']} → {r['to']}", style="dim"))
    for r in plan["copies"]:
        console.print(Text(f"  {r['from']} → also {r['to']}", style="dim"))
    for d in plan["drops"]:
        console.print(Text(f"  drop {d['tensor']}: {d['reason']}", style="dim"))
    for s in plan["synthesised"]:
        console.print(Text(f"  derive {s['tensor']}: {s['how']}", style="dim"))
    if plan["launch_flags"]:
        console.print(f"  serve with {' '.join(plan['launch_flags'])}")
    if plan["bytes_copied"] is not None:
        console.print(f"  {_bytes(plan['bytes_shared'])} shared, {_bytes(plan['bytes_copied'])} copied")
    if facts.get("written"):
        console.print(Text(f"  written to {facts['written']}", style="green"))


def _load(console: Console, load: Mapping[str, Any]) -> None:
    if load["refused"]:
        console.print(f"  refused: {load['refused']}")
    table = Table(box=None, padding=(0, 2, 0, 2))
    for column in ("parameter", "filled by", "from"):
        table.add_column(column, style="dim" if column == "from" else "")
    for name, fill in load["parameters"].items():
        table.add_row(name, fill["filled_by"], ", ".join(fill["from"]))
    if load["parameters"]:
        console.print(table)
    if load["unused"]:
        console.print(f"  unused: {', '.join(load['unused'])}")


def _grid(console: Console, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        return
    table = Table(box=None, padding=(0, 2, 0, 2), title=title, title_justify="left")
    for column in rows[0]:
        table.add_column(column)
    for row in rows:
        table.add_row(*(_short(v) for v in row.values()))
    console.print(table)


def _finding(console: Console, finding: Finding, style: Style) -> None:
    head = Text.assemble(
        (f"{finding.severity.value}[{finding.code}]", _COLOR[finding.severity.value]),
        f": {finding.message}",
    )
    console.print(head)
    where = finding.location
    place = where.file or ""
    if where.line is not None:
        place += f":{where.line}"
    if where.pointer:
        place += f"  {where.pointer}"
    if where.tensor:
        place += f"  {where.tensor}"
    if style.verbosity > 0:
        if place.strip():
            console.print(Text(f"  --> {place.strip()}", style="blue"))
        if finding.engine:
            console.print(Text(f"   = engine: {finding.engine}"))
        if finding.hint:
            console.print(Text(f"   = help: {finding.hint}"))
        console.print(Text(f"   = help: ckpt explain {finding.code}", style="dim"))
    elif finding.hint:
        console.print(Text(f"  hint: {finding.hint}", style="dim"))


def _verdict(console: Console, report: Report) -> None:
    if report.error is not None:
        console.print(Text(f"error: {report.error.message}", style="bold red"))
        if report.error.hint:
            console.print(f"hint: {report.error.hint}")
        return
    if report.command == "inspect" and not report.findings:
        return
    counts = {s: sum(f.severity.value == s for f in report.findings) for s in ("error", "warning", "info")}
    listed = ", ".join(f"{n} {s}{'s' if n != 1 and s != 'info' else ''}" for s, n in counts.items() if n)
    colour = "green" if report.verdict == "pass" else "bold red"
    console.print(Text(f"{report.verdict}{': ' + listed if listed else ''}", style=colour))


def _short(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    if hasattr(value, "items"):
        return json.dumps({k: v for k, v in value.items() if v is not None}, ensure_ascii=False)
    return str(value)


def _bytes(n: int) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.3g} {unit}" if unit != "B" else f"{n} B"
        n /= 1000  # type: ignore[assignment]
    return f"{n:.3g} TB"
