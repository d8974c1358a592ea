"""What a conversion is asked for, what it is given to read with, and how its findings become refusals."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ckpt_tools.checks.base import names_of_codes
from ckpt_tools.convert.record import Recorded
from ckpt_tools.model import EMPTY, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ckpt_tools.convert.sidecars import Beside
    from ckpt_tools.model import Checkpoint, Finding, TensorInfo


@dataclass(frozen=True)
class Options:
    """How the user asked for the conversion.

    Attributes:
        allow: Codes whose loss is accepted (or family prefixes).
        repairs: Names of documented repairs.
        dtype: ``BF16``, ``F16`` or ``F32`` to cast floating-point tensors to, or ``None``.
        max_shard_size: In bytes; ``None`` keeps the input's sharding.
    """

    allow: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()
    dtype: str | None = None
    max_shard_size: int | None = None


@dataclass(frozen=True)
class Readers:
    """What a plan may look at beside headers.

    Attributes:
        ints: Integers of a small table of the input, by name in its files.
        raw: Bytes of a small tensor of the input (norms, biases).
        same: Whether a draft tensor's bytes equal a target tensor's, ``None`` when it can't be told.
        equal: Whether two tensors of the draft hold the same bytes.
        beside: The vocabulary tables that lie in a file beside the weights.
        target: The target's own files, headers alone, when they are at hand.
        recorded: What an earlier conversion left in its ``conversion.json``: tensors that it derived go again.
    """

    ints: Callable[[str], tuple[int, ...]]
    raw: Callable[[str], bytes] | None = None
    same: Callable[[str, str], bool | None] | None = None
    equal: Callable[[str, str], bool | None] | None = None
    beside: Beside | None = None
    target: Checkpoint | None = None
    recorded: Recorded = field(default_factory=Recorded)


@dataclass
class Findings:
    """Findings on their way into refusals and notes; one about a tensor of the input names its file."""

    allow: tuple[str, ...]
    tensors: Mapping[str, TensorInfo] = field(default_factory=lambda: EMPTY)
    refusals: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    allowed: list[str] = field(default_factory=list)

    def add(self, found: Finding, *, allowable: bool = True) -> None:
        """An error refuses unless it is allowed, then it stays as a warning."""
        info = self.tensors.get(found.location.tensor or "")
        if info is not None and found.location.file is None:
            found = replace(found, location=replace(found.location, file=info.file))
        if found.severity is not Severity.ERROR:
            self.notes.append(found)
        elif allowable and any(found.code.startswith(a) for a in self.allow):
            self.allowed.append(found.code)
            self.notes.append(
                replace(found, severity=Severity.WARNING, message=f"allowed: {found.message}", hint=None)
            )
        else:
            hint = found.hint
            if allowable:
                hint = f"{hint + '; ' if hint else ''}--allow {found.code} writes it anyway"
            self.refusals.append(replace(found, hint=hint))


def allowable(codes: tuple[str, ...]) -> tuple[str, ...]:
    """The given codes and prefixes, checked. Raises ``ValueError`` naming those that no code begins with."""
    known = names_of_codes()
    wrong = [c for c in codes if not any(k.startswith(c) for k in known)]
    if wrong:
        raise ValueError(", ".join(wrong))
    return codes
