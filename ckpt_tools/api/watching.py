"""``ckpt watch``: a start-up log, and what it comes to."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ckpt_tools.checks.base import finding
from ckpt_tools.model import Report, Subject

if TYPE_CHECKING:
    from ckpt_tools.model import Finding
    from ckpt_tools.serving.logs.state import LogState
    from ckpt_tools.serving.watch import Watched


def log_facts(log: LogState) -> dict[str, Any]:
    """What the interface promises of a log, and what else it says."""
    got = log.acceptance
    return {
        "state": log.state,
        "phase": log.phase,
        "progress": asdict(log.progress) if log.progress is not None else None,
        "cause": log.cause,
        "decisive_lines": list(log.decisive_lines),
        "starts": log.starts,
        "acceptance": {
            "n": got.n,
            "mean_accept_len": got.mean_accept_len,
            "mean_accept_rate": got.mean_accept_rate,
        }
        if got is not None
        else None,
        "engine": log.engine,
        "version": log.version,
        "target_class": log.target_class,
        "draft_class": log.draft_class,
        "message": log.message,
        "remedy": log.remedy,
        "reference": log.reference,
        "notes": [
            {"id": n.id, "line": n.line, "text": n.text, "count": n.count, "meaning": n.meaning}
            for n in log.notes
        ],
        "lines": log.lines,
    }


def watch_report(name: str, watched: Watched) -> Report:
    """The report of a look at a log: ``fail`` for failed, stalled and stopped, ``pass`` otherwise."""
    log = watched.log
    found: list[Finding] = []
    if log.state == "failed":
        lines = log.decisive_lines
        found.append(
            finding(
                "LOG001",
                f"the start failed ({log.cause}): {log.message or ''}".rstrip(": "),
                file=name,
                line=lines[0] if lines else None,
                hint=log.remedy,
            )
        )
    elif log.state in ("stalled", "stopped"):
        found.append(
            finding("LOG004", f"the server has {log.state}: {log.phase}", file=name, line=log.lines or None)
        )
    facts = {**log_facts(log), "signals": asdict(watched.signals), "timed_out": watched.timed_out}
    return Report(
        command="watch",
        subject=Subject(name),
        verdict="fail" if found else "pass",
        facts=facts,
        findings=tuple(found),
    )
