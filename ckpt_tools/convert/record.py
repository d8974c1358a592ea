"""``conversion.json``: how a folder came about, so that a conversion can be checked and reversed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from ckpt_tools.checks.base import finding
from ckpt_tools.convert.plan import plan_json
from ckpt_tools.formats.facts import plain
from ckpt_tools.model import EMPTY, RECORD, DraftFacts, Finding, Rope, Severity, Verifier

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ckpt_tools.convert.plan import Plan
    from ckpt_tools.model import Draft

SCHEMA = "ckpt-tools/conversion.v1"
_CANONICAL: Mapping[str, str] = {f.name: str(f.type) for f in fields(DraftFacts)}
_ROPE = frozenset(f.name for f in fields(Rope))
#: What a fact of each annotated kind may be.
_KINDS: Mapping[str, Callable[[Any], bool]] = {
    "int | None": lambda v: type(v) is int,
    "float | None": lambda v: type(v) in (int, float),
    "bool | None": lambda v: type(v) is bool,
    "str | None": lambda v: type(v) is str,
    "tuple[int, ...] | None": lambda v: type(v) is tuple and all(type(i) is int for i in v),
    "tuple[str, ...] | None": lambda v: type(v) is tuple and all(type(i) is str for i in v),
    "Rope | None": lambda v: type(v) is Rope,
}
#: Blocks of a framework's own that a flat config has no place for.
_BLOCKS = ("speculators_config",)


def record(plan: Plan, version: str) -> dict[str, Any]:
    """What was converted, how, and by which version of ckpt."""
    verifier = plan.verifier
    return {
        "schema": SCHEMA,
        "version": version,
        "source": {"path": plan.source.rstrip("/").rsplit("/", 1)[-1], "fingerprint": plan.fingerprint},
        "verifier": {"name_or_path": verifier.name, "architectures": list(verifier.architectures)}
        if verifier
        else None,
        "unsaid": {name: plain(value) for name, value in plan.unsaid.items()},
        "plan": {k: v for k, v in plan_json(plan).items() if k not in ("bytes_shared", "bytes_copied")},
    }


@dataclass(frozen=True)
class Recorded:
    """What an earlier conversion left beside its output.

    Attributes:
        derived: Tensors that it made up; reversing it drops them.
        verifier: The target that the draft named before.
        unsaid: Facts of its source that the output's config doesn't state.
        blocks: Framework blocks of its source's config, as far as they were left behind.
        damage: Why there is nothing to take from it, or ``None``.
    """

    derived: frozenset[str] = frozenset()
    verifier: Verifier | None = None
    unsaid: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    blocks: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    damage: str | None = None


def read_record(data: bytes) -> Recorded:
    """An earlier ``conversion.json``; what is wrong with one is said and never fatal."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        return Recorded(damage=f"it isn't JSON ({error})")
    plan = document.get("plan") if isinstance(document, dict) else None
    if not isinstance(plan, dict):
        return Recorded(damage="it holds no plan")
    made = plan.get("synthesised")
    unsaid = document.get("unsaid")
    return Recorded(
        frozenset(
            s["tensor"]
            for s in (made if isinstance(made, list) else ())
            if isinstance(s, dict) and isinstance(s.get("tensor"), str)
        ),
        _verifier(document.get("verifier")),
        unsaid if isinstance(unsaid, dict) else EMPTY,
        _left_blocks(plan),
    )


def _verifier(block: object) -> Verifier | None:
    if not isinstance(block, dict) or not isinstance(block.get("name_or_path"), str):
        return None
    listed = block.get("architectures")
    return Verifier(block["name_or_path"], tuple(map(str, listed)) if isinstance(listed, list) else ())


def _left_blocks(plan: Mapping[str, Any]) -> dict[str, Any]:
    """The framework's own blocks, from the edits that dropped their fields."""
    config = plan.get("config")
    edits = config.get("edits") if isinstance(config, dict) else None
    found: dict[str, Any] = {}
    for edit in edits if isinstance(edits, list) else ():
        at = edit.get("pointer") if isinstance(edit, dict) else None
        if not isinstance(at, str) or edit.get("action") != "dropped":
            continue
        block, _, name = at.removeprefix("/").partition("/")
        if block in _BLOCKS and name and "/" not in name:
            found.setdefault(block, {})[name] = edit.get("value")
    return found


def with_recorded(draft: Draft, recorded: Recorded) -> Draft:
    """The draft with what its config doesn't state and the record does; each fact that was taken up is said."""
    facts, taken = draft.facts, dict[str, Any]()
    if facts.verifier is None and recorded.verifier is not None:
        facts = replace(facts, verifier=recorded.verifier)
    for name, value in recorded.unsaid.items():
        canonical = name in _CANONICAL
        if value is None or (getattr(facts, name) if canonical else facts.extra.get(name)) is not None:
            continue
        stated = _fact(name, value)
        if stated is None:
            continue
        facts = (
            replace(facts, **{name: stated})
            if canonical
            else replace(facts, extra={**facts.extra, name: stated})
        )
        taken[name] = value
    found: list[Finding] = []
    if taken:
        listed = ", ".join(f"{name} {value}" for name, value in taken.items())
        found.append(
            finding(
                "CFG016",
                f"config.json doesn't say, and {RECORD} has it from the source: {listed}",
                file=RECORD,
            )
        )
    if recorded.damage is not None:
        found.append(
            finding(
                "CFG016",
                f"{RECORD} can't be used: {recorded.damage}; what it recorded of the source is unknown",
                file=RECORD,
                severity=Severity.WARNING,
                hint=f"remove {RECORD} if this folder wasn't made by ckpt fix-keys",
            )
        )
    return (
        replace(draft, facts=facts, findings=(*draft.findings, *found))
        if found or facts is not draft.facts
        else draft
    )


def _fact(name: str, value: Any) -> Any:
    """A fact as the canonical form has it; ``None`` for a value that isn't of its kind."""
    if isinstance(value, list):
        value = tuple(value)
    elif name == "rope":
        value = Rope(**value) if isinstance(value, dict) and set(value) <= _ROPE else None
    fits = _KINDS.get(_CANONICAL.get(name, ""))
    return value if fits is None or fits(value) else None
