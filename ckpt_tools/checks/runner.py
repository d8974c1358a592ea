"""Running the checks: what each needs, what explains it away, one finding per cause."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckpt_tools.checks.base import Check, Context, as_finding, checks
from ckpt_tools.engines.history import family
from ckpt_tools.model import Severity, Skipped

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ckpt_tools.model import Engine, Finding

#: How a check says what it lacks.
_LACK = {
    "draft": "no draft format fits these files",
    "target": "no target is known; give --target",
    "engine": "no engine was asked for",
    "load": "the engine has no load map for this draft",
    "config": "there is no readable config.json",
    "table": "tables can't be read here",
    "values": "values are read with --deep",
    "target_tensors": "the target's shards aren't at hand",
    "same": "the target's shards aren't at hand",
    "launch": "no --launch was given",
    "launch_problems": "no --launch was given",
    "log": "no --log was given",
    "tp": "no --tp was given",
    "served": "the served length isn't known: no --context-length, and no target that states its own",
}


#: Defects of the container that an engine takes harder than most: vLLM reads a consolidated copy instead of the shards and
#: raises on its names (vllm 0.33.0 model_executor/model_loader/default_loader.py:168-182, run).
_HARDER: Mapping[tuple[str, str], Severity] = {("FIL015", "vllm"): Severity.ERROR}


def for_engines(findings: Iterable[Finding], engines: Sequence[Engine]) -> tuple[Finding, ...]:
    """Container findings with the severity that they have under these engines."""
    out: list[Finding] = []
    for f in findings:
        harder = [(e, s) for e in engines if (s := _HARDER.get((f.code, family(e.name)))) is not None]
        out += [replace(f, severity=s, engine=str(e)) for e, s in harder] or [f]
    return tuple(out)


@dataclass(frozen=True)
class Outcome:
    """What the checks said.

    Attributes:
        ran: Codes of the checks that ran, in order.
    """

    findings: tuple[Finding, ...]
    skipped: tuple[Skipped, ...]
    ran: tuple[str, ...]


def selected(code: str, select: Sequence[str], ignore: Sequence[str]) -> bool:
    """Whether a code is wanted: codes and family prefixes, ignore over select."""
    if any(code.startswith(i) for i in ignore):
        return False
    return not select or any(code.startswith(s) for s in select)


def lacking(check: Check, ctx: Context) -> str | None:
    """Why a check can't run, or ``None``."""
    for need in check.needs:
        if need == "config":
            if ctx.checkpoint.config is None:
                return _LACK["config"]
            continue
        head, _, fact = need.partition(".")
        value = getattr(ctx, head)
        if value is None:
            return _LACK[head]
        if fact and getattr(value, fact) in (None, ()):
            return f"{head} {value.id if head == 'target' else ''} states no {fact}".replace("  ", " ")
    return None


def _explained(check: Check, errors: Iterable[str]) -> str | None:
    return next((e for e in errors if any(e.startswith(a) for a in check.after) and e != check.code), None)


def _ordered() -> tuple[Check, ...]:
    """Checks so that what explains another comes before it.

    A family prefix in ``after`` orders only against checks that don't name this one in turn.
    """
    every = checks()
    done: dict[str, Check] = {}
    busy: set[str] = set()

    def visit(code: str) -> None:
        if code in done or code in busy:
            return
        busy.add(code)
        for name in every[code].after:
            for other in every:
                if other.startswith(name) and other != code:
                    visit(other)
        busy.discard(code)
        done[code] = every[code]

    for code in every:
        visit(code)
    return tuple(done.values())


def run_checks(
    contexts: Sequence[Context],
    *,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    known: Iterable[Finding] = (),
) -> Outcome:
    """Run every check over every context (one per engine).

    Args:
        contexts: The same draft and target under each engine; one without an engine when none is asked for.
        select: Codes and prefixes to run; all when empty.
        ignore: Codes and prefixes to leave out.
        known: Findings that are there already (of the container); their errors explain followers away, under their own engine alone
            where they name one.

    A check that names no engine and whose answer is the same under all is reported once.
    """
    found: list[Finding] = []
    skipped: dict[tuple[str, str], Skipped] = {}
    ran: dict[str, None] = {}
    container = [f for f in known if f.severity is Severity.ERROR]
    for ctx in contexts:
        errors = [f.code for f in container if f.engine in (None, str(ctx.engine))]
        for check in _ordered():
            if not selected(check.code, select, ignore):
                continue
            if check.engines and (ctx.engine is None or family(ctx.engine.name) not in check.engines):
                continue
            reason = lacking(check, ctx)
            if reason is None:
                cause = _explained(check, errors)
                reason = f"{cause} explains it" if cause else None
            if reason is not None:
                skipped[check.code, reason] = Skipped(check.code, reason)
                continue
            ran[check.code] = None
            for hit in check.function(ctx):
                finding = as_finding(check, hit, ctx.engine)
                found.append(finding)
                if finding.severity is Severity.ERROR:
                    errors.append(finding.code)
    return Outcome(_merged(found, len(contexts)), tuple(skipped.values()), tuple(ran))


def _merged(found: list[Finding], contexts: int) -> tuple[Finding, ...]:
    """One finding where every engine draws the same."""
    if contexts < 2:
        return tuple(found)
    seen: dict[Finding, list[Finding]] = {}
    for f in found:
        seen.setdefault(replace(f, engine=None), []).append(f)
    out: list[Finding] = []
    for bare, same in seen.items():
        out += [bare] if len({f.engine for f in same}) == contexts else same
    return tuple(out)
