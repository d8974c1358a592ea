"""Text from files and servers, made safe to show; and the few phrases that all outputs share.

File names, tensor names and messages come from checkpoints that somebody else made: a control character in one
could move a terminal's cursor, forge a line of a log or turn text round.
"""

from __future__ import annotations

import json
import re
import unicodedata
from typing import TYPE_CHECKING, Any

from ckpt_tools.model import Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ckpt_tools.model import Engine, Finding, Report, Target

HOME = "https://github.com/ckpt-tools/ckpt-tools"
_BREAKS = re.compile(r"[\t\n\v\f\r\x85\u2028\u2029]+ *")


def visible(text: str) -> str:
    """A name with every character that doesn't print as itself written as an escape (``\\x1b``, ``\\u202e``)."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or unicodedata.category(c) == "Zs" else _escape(ord(c)) for c in text)


def line(text: str) -> str:
    """A message on one line: breaks become spaces, other control characters escapes."""
    return visible(_BREAKS.sub(" ", text.strip()))


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def page_url(code: str) -> str:
    """Where a code's page is read on the web."""
    return f"{HOME}/blob/main/docs/checks/{code}.md"


def counted(findings: Iterable[Finding]) -> str:
    """How many of each severity, worst first: ``1 error, 2 warnings, 3 info``; "" for none."""
    found = [f.severity for f in findings]
    counts = ((s, found.count(s)) for s in sorted(Severity, key=lambda s: -s.rank))
    return ", ".join(
        f"{n} {s.value}{'s' if n != 1 and s is not Severity.INFO else ''}" for s, n in counts if n
    )


def kind_of(report: Report) -> str:
    """What the subject is: format and algorithm."""
    subject = report.subject
    return " ".join(visible(x) for x in (subject.format, subject.algorithm) if x)


def engine_line(engine: Engine) -> str:
    """An engine with what chose it, and whose contract answers when it isn't its own."""
    note = "" if engine.contract == engine.version else f", answered by the contract of {engine.contract}"
    return visible(f"{engine} ({engine.why}{note})")


def target_line(target: Target) -> str:
    """A target with its class and where its facts come from."""
    named = f" {target.architectures[0]}" if target.architectures else ""
    return visible(f"{target.id}{named} ({target.origin})")


def spot(finding: Finding) -> str:
    """Where a finding points: ``config.json:17 /pointer``, a tensor, or "" for the whole checkpoint."""
    where = finding.location
    file = where.file or ""
    if file and where.line is not None:
        file += f":{where.line}"
    return " ".join(visible(x) for x in (file, where.pointer, where.tensor) if x)


def short(value: Any) -> str:
    """A fact's value in a few characters."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    if hasattr(value, "items"):
        stated = {k: v for k, v in value.items() if v not in (None, [], ())}
        return visible(json.dumps(stated, ensure_ascii=False, default=list))
    return visible(str(value))


def rope(value: Mapping[str, Any]) -> str:
    """Rotary settings as one says them: ``base 50000, yarn, factor 64``."""
    theta, factor = value.get("theta"), value.get("partial_rotary_factor")
    parts = [f"base {theta:g}" if isinstance(theta, (int, float)) else "base not stated"]
    scaling = value.get("scaling")
    if scaling:
        stated = {k: v for k, v in scaling.items() if v is not None}
        kind = stated.pop("rope_type", None) or stated.pop("type", "scaled")
        parts += [str(kind), *(f"{k} {short(v)}" for k, v in stated.items())]
    if factor is not None:
        parts.append(f"partial {short(factor)}")
    return visible(", ".join(parts))


def verifier(value: Mapping[str, Any]) -> str:
    """The target that a draft names: ``moonshotai/Kimi-K2.5 (KimiK25ForConditionalGeneration)``."""
    classes = ", ".join(value.get("architectures") or ())
    named = str(value.get("name") or "not named")
    return visible(f"{named} ({classes})" if classes else named)


#: Facts that have a way of being said of their own.
SAID: Mapping[str, Callable[[Mapping[str, Any]], str]] = {"rope": rope, "verifier": verifier}


def fact(name: str, value: Any) -> str:
    """A draft's or target's fact as one says it."""
    return SAID[name](value) if name in SAID and hasattr(value, "items") else short(value)


def size(n: float) -> str:
    """Bytes in decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.0f} B" if unit == "B" else f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} TB"
