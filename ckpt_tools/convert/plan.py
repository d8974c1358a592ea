"""The plan of a conversion: everything that will happen, as data, made from headers alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ckpt_tools.model import EMPTY, Severity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.model import Draft, Finding, Verifier

Origin = Literal["draft", "target"]


@dataclass(frozen=True)
class Part:
    """A range of bytes inside a tensor of the input."""

    source: str
    start: int
    stop: int


@dataclass(frozen=True)
class Tensor:
    """One tensor of the output.

    Attributes:
        name: In the output.
        dtype: In the output.
        source: Name in the input's files; ``None`` for a synthesised one.
        source_dtype: In the input; differs from ``dtype`` for a cast.
        data: The bytes of a synthesised tensor.
        rows: Row order to take the source in, or ``None`` for as it is.
        parts: Ranges of the input that follow one another in it; empty for the whole source.
        shard: Output file.
        origin: Whose files the source is in.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    shard: str
    source: str | None = None
    source_dtype: str | None = None
    data: bytes | None = None
    rows: tuple[int, ...] | None = None
    parts: tuple[Part, ...] = ()
    origin: Origin = "draft"


@dataclass(frozen=True)
class Rename:
    """A tensor and its name in the output (equal names are kept as they are)."""

    source: str
    name: str


@dataclass(frozen=True)
class Synthesised:
    """A tensor that the input doesn't hold."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    how: str


@dataclass(frozen=True)
class Cast:
    """A tensor that changes its dtype."""

    name: str
    source: str
    result: str


@dataclass(frozen=True)
class ConfigEdit:
    """One difference between the input's config and the output's."""

    pointer: str
    action: Literal["set", "moved", "dropped"]
    value: Any = None
    reason: str | None = None


@dataclass(frozen=True)
class Plan:
    """What ``fix-keys`` will do; ``--dry-run`` prints the same object.

    Attributes:
        tensors: The output, in order.
        config: The output's config.json.
        edits: How it came about.
        refusals: Why nothing will be written (errors that no ``--allow`` covers).
        notes: What is worth knowing (allowed losses, first releases, launch flags).
        launch_flags: Flags that must stand in for what the config can't say.
        carried: Other files that go along.
        left: Other files that don't, with the reason.
        verifier: The target that the output is for: the given one, else the one that the draft names.
        unsaid: Facts of the source that the output's config doesn't state, by name; the way back takes them up again.
    """

    source: str
    fingerprint: str
    draft: Draft
    to: str
    tensors: tuple[Tensor, ...] = ()
    renames: tuple[Rename, ...] = ()
    copies: tuple[Rename, ...] = ()
    drops: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    synthesised: tuple[Synthesised, ...] = ()
    casts: tuple[Cast, ...] = ()
    config: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    edits: tuple[ConfigEdit, ...] = ()
    refusals: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()
    launch_flags: tuple[str, ...] = ()
    carried: tuple[str, ...] = ()
    left: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    allowed: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()
    verifier: Verifier | None = None
    unsaid: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    bytes_shared: int | None = None
    bytes_copied: int | None = None

    @property
    def refused(self) -> bool:
        """Whether nothing may be written."""
        return any(f.severity is Severity.ERROR for f in self.refusals)


def plan_json(plan: Plan) -> dict[str, Any]:
    """The plan as the report and ``conversion.json`` hold it (schema ``plan.v1.json``)."""
    return {
        "from": plan.draft.format,
        "to": plan.to,
        "algorithm": plan.draft.algorithm,
        "renames": [{"from": r.source, "to": r.name} for r in plan.renames],
        "copies": [{"from": r.source, "to": r.name} for r in plan.copies],
        "drops": [{"tensor": name, "reason": why} for name, why in plan.drops.items()],
        "synthesised": [
            {"tensor": s.name, "dtype": s.dtype, "shape": list(s.shape), "how": s.how}
            for s in plan.synthesised
        ],
        "casts": [{"tensor": c.name, "from": c.source, "to": c.result} for c in plan.casts],
        "config": {
            "result": dict(plan.config),
            "edits": [
                {"pointer": e.pointer, "action": e.action, "value": e.value, "reason": e.reason}
                for e in plan.edits
            ],
        },
        "refusals": [
            {"code": f.code, "name": f.name, "message": f.message, "hint": f.hint} for f in plan.refusals
        ],
        "allowed": list(plan.allowed),
        "repairs": list(plan.repairs),
        "launch_flags": list(plan.launch_flags),
        "files": {"carried": list(plan.carried), "left": dict(plan.left)},
        "bytes_shared": plan.bytes_shared,
        "bytes_copied": plan.bytes_copied,
    }
