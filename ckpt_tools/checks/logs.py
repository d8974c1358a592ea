"""LOG: start-up and decode logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_tools.checks.base import Context, Hit, check
from ckpt_tools.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator


def _line(ctx: Context) -> int | None:
    lines = ctx.log.decisive_lines if ctx.log is not None else ()
    return lines[0] if lines else None


@check("LOG001", "start-failed", Severity.ERROR, needs=("log",))
def failed(ctx: Context) -> Iterator[Hit]:
    """The log's last start failed.

    Checks: the engine's own records of the last start show no failure. Words inside dumped arguments, prompts and handled
        tracebacks never count.
    Why: the server isn't there.
    Example: the start failed (out of memory while loading the draft): lower --mem-fraction-static
    Fix: As the message says.
    References: the table of known failures (docs/failures), each with the engine's own file and line.
    """
    log = ctx.log
    assert log is not None
    if log.state == "failed":
        yield Hit(
            f"the start failed ({log.cause}): {log.message or ''}".rstrip(": "),
            file="log",
            line=_line(ctx),
            hint=log.remedy,
        )


@check("LOG002", "log-notes", Severity.INFO, needs=("log",))
def notes(ctx: Context) -> Iterator[Hit]:
    """Lines that are no failure and yet mean something.

    Checks: records such as weights that the loader skips, a fallback to another class, captured layers taken from the model
        instead of the config.
    Why: the server runs, and drafting may suffer.
    Example: line 812: `not found in params_dict`: tensors of the draft were dropped
    Fix: As the note says.
    References: sglang 0.5.23 and vllm 0.33.0 format strings (docs/failures).
    """
    log = ctx.log
    assert log is not None
    for note in log.notes:
        yield Hit(
            f"{note.text.strip()[:160]}: {note.meaning}",
            file="log",
            line=note.line,
            severity=Severity.WARNING if note.severity == "warning" else None,
        )


@check("LOG003", "acceptance", Severity.INFO, needs=("log",))
def acceptance(ctx: Context) -> Iterator[Hit]:
    """What the decode statistics say, with the release's own formula.

    Checks: accept length and rate of the last start.
    Why: accept length counts the bonus token, so 1.00 means that nothing is accepted; the rate's formula changed twice, so a
        useless draft shows 1/num_draft_tokens in some releases and 0 in others.
    Example: accept len 2.71, accept rate 0.34 = len / 8 draft tokens in this release: a useless draft would show 0.12
    Fix: Compare lengths rather than rates across releases.
    References: sglang srt/managers/scheduler_metrics_mixin.py 0.5.9:376-390, 0.5.11:540; vllm v1/spec_decode/metrics.py:120-136.
    """
    log = ctx.log
    assert log is not None
    if log.acceptance is None or log.state == "failed":
        return
    got = log.acceptance
    useless = got.mean_accept_len < 1.05
    rate = ""
    if got.mean_accept_rate is not None:
        rate = f", accept rate {got.mean_accept_rate:.2f}{ctx.rate_note or ''}"
    yield Hit(
        f"accept len {got.mean_accept_len:.2f} over {got.n} lines{rate}"
        + (": nothing is accepted (the bonus token alone counts 1)" if useless else ""),
        file="log",
        line=got.first_line,
        severity=Severity.WARNING if useless and got.n >= 3 else None,
    )
