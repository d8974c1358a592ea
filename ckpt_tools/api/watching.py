"""``ckpt watch``: a start-up log, and what it comes to."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ckpt_tools.checks.base import finding
from ckpt_tools.model import Failure, Report, Subject

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    """The report of a look at a log: ``pass`` when the server is ready, ``error`` when the time was up before it was
    decided, else ``fail``."""
    log = watched.log
    late = watched.timed_out and log.state not in ("ready", "failed")
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
    elif log.state != "ready" and not late:
        found.append(
            finding(
                "LOG005",
                f"not ready: {log.state}, {log.phase}",
                file=name,
                line=log.lines or None,
                hint="`ckpt watch --follow` waits for it",
            )
        )
    facts = {
        **log_facts(log),
        "signals": asdict(watched.signals),
        "timed_out": watched.timed_out,
        "tables": {"log": [{"what": what, "says": says} for what, says in _rows(log)]},
    }
    return Report(
        command="watch",
        subject=Subject(name),
        verdict="error" if late else "pass" if log.state == "ready" else "fail",
        facts=facts,
        findings=tuple(found),
        error=_late(watched) if late else None,
    )


def _late(watched: Watched) -> Failure:
    log = watched.log
    return Failure(
        "unavailable",
        f"not ready after {watched.elapsed_s:.0f} s: {log.state}, {log.phase}",
        "it works on: give it a longer --timeout"
        if watched.signals.working
        else "look whether it still works, or give it a longer --timeout",
    )


def _rows(log: LogState) -> Iterator[tuple[str, str]]:
    """The log in words."""
    done = f" {log.progress.percent:.0f} %" if log.progress is not None else ""
    yield "state", f"{log.state}: {log.phase}{done}"
    if log.engine is not None:
        yield "engine", f"{log.engine} {log.version}" if log.version else log.engine
    if log.target_class is not None:
        yield "target", log.target_class
    if log.draft_class is not None:
        yield "draft", log.draft_class
    if log.starts > 1:
        yield "starts", f"{log.starts}; the last one counts"
    if log.acceptance is not None:
        lines = "1 line" if log.acceptance.n == 1 else f"{log.acceptance.n} lines"
        yield "accepted length", f"{log.acceptance.mean_accept_len:.2f} over {lines} (1.00: nothing accepted)"
    for note in log.notes:
        yield f"line {note.line}", note.meaning
