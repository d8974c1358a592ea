"""Which format a checkpoint is in, with the evidence; and reading it into the canonical form."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from ckpt_tools.container.wrappers import unwrap
from ckpt_tools.formats.base import Format, Seen, Variant
from ckpt_tools.formats.capture import read_capture
from ckpt_tools.formats.facts import complete_from_shapes, overlay
from ckpt_tools.formats.names import fits
from ckpt_tools.model import (
    CaptureConvention,
    Checkpoint,
    Draft,
    DraftFacts,
    Evidence,
    Finding,
    Location,
    Severity,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.model import Target, TensorInfo


@lru_cache(maxsize=1)
def formats() -> Mapping[str, Format]:
    """All formats by name: every module of this package that holds a ``FORMAT``."""
    import ckpt_tools.formats as package

    found: dict[str, Format] = {}
    for info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        declared = getattr(module, "FORMAT", None)
        if isinstance(declared, Format):
            found[declared.name] = declared
    return dict(sorted(found.items()))


@dataclass(frozen=True)
class Match:
    """A format that no clue speaks against.

    Attributes:
        score: Sum of the weights of the clues that hold.
    """

    format: Format
    variant: Variant
    score: int
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True)
class Detection:
    """All matches, best first, and the tensors as recognition saw them.

    Attributes:
        wrapper: Prefix that was taken off, or "".
        raw: Name with the wrapper off -> name in the files.
    """

    matches: tuple[Match, ...]
    wrapper: str
    seen: Seen
    raw: Mapping[str, str]

    @property
    def best(self) -> Match | None:
        """The highest match."""
        return self.matches[0] if self.matches else None

    @property
    def rivals(self) -> tuple[Match, ...]:
        """Other formats that it may as well be: those that score as high as the best; with the config or the weights
        missing all that fit, because the half that would decide isn't there."""
        best = self.best
        if best is None:
            return ()
        others: dict[str, Match] = {}
        for m in self.matches[1:]:
            if m.format.name != best.format.name and (m.score == best.score or not self.seen.whole):
                others.setdefault(m.format.name, m)
        return tuple(others.values())


def _match(form: Format, variant: Variant, seen: Seen) -> Match | None:
    verdicts = [(clue, clue.test(seen)) for clue in variant.must]
    if any(v is False for _, v in verdicts) or not any(v for _, v in verdicts):
        return None
    # What isn't there rules out; only what is there speaks for a format, unless it is a hint.
    score = sum(clue.weight for clue, v in verdicts if v and not clue.absent)
    hints = [(clue, clue.test(seen)) for clue in variant.hints]
    score += sum(clue.weight for clue, v in hints if v)
    verdicts += hints
    held = [clue for clue, v in verdicts if v and not clue.absent]
    if not held:
        return None
    shown = {(c.kind, c.key): c.evidence() for c in held}
    return Match(form, variant, score, tuple(shown.values()))


def detect(checkpoint: Checkpoint) -> Detection:
    """Rank the formats that a checkpoint can be in."""
    wrapper = unwrap(checkpoint.tensors)
    raw = {bare: native for native, bare in wrapper.names.items()}
    tensors: dict[str, TensorInfo] = {name: checkpoint.tensors[native] for name, native in raw.items()}
    seen = Seen(
        checkpoint.config, tensors, checkpoint.extra, tuple(f.name for f in checkpoint.files), wrapper.prefix
    )
    matches = [
        m for form in formats().values() for v in form.variants if (m := _match(form, v, seen)) is not None
    ]
    matches.sort(key=lambda m: (-m.score, not m.format.usual))
    return Detection(tuple(matches), wrapper.prefix, seen, raw)


def read_draft(
    checkpoint: Checkpoint,
    target: Target | None = None,
    convention: CaptureConvention | None = None,
    detection: Detection | None = None,
) -> Draft | None:
    """Read a checkpoint into the canonical form; ``None`` when no format fits.

    Args:
        target: Its depth decides capture ids that are undecided without it.
        convention: How the user says that uncertain ids count.
        detection: Of this checkpoint, when it is known already.
    """
    detection = detection or detect(checkpoint)
    best = detection.best
    if best is None:
        return None
    return read_as(checkpoint, detection, best.format, best.variant, best.evidence, target, convention)


def read_as(
    checkpoint: Checkpoint,
    detection: Detection,
    form: Format,
    variant: Variant,
    evidence: tuple[Evidence, ...] = (),
    target: Target | None = None,
    convention: CaptureConvention | None = None,
) -> Draft:
    """Read a checkpoint as a given format's variant, whatever recognition makes of it."""
    kept: dict[str, str] = {}
    dropped: dict[str, str] = {}
    inside = variant.inside(detection.seen) if variant.inside is not None else ("**",)
    for name, native in detection.raw.items():
        if not any(fits(pattern, name) for pattern in inside):
            continue
        reason = next((why for pattern, why in variant.drops if fits(pattern, name)), None)
        if reason is None:
            kept[name] = native
        else:
            dropped[native] = reason
    mapped = variant.names.read(kept)
    tensors = {name: kept[native] for name, native in mapped.tensors.items()}
    for native, name in mapped.twins.items():
        dropped[kept[native]] = f"a second name for {name}, which {tensors[name]} already gives"
    config = checkpoint.config if checkpoint.config is not None else {}
    facts = form.read(config, detection.seen, variant)
    if variant.layer_type is not None:
        facts = overlay(facts, layer_type=variant.layer_type)
    captured = read_capture(config, form.capture, target.num_hidden_layers if target else None, convention)
    facts = replace(facts, capture_layers=captured.layers, capture_convention=captured.convention)
    facts = complete_from_shapes(facts, variant.algorithm, tensors, checkpoint.tensors)
    return Draft(
        format=form.name,
        algorithm=variant.algorithm,
        evidence=evidence,
        facts=facts,
        tensors=tensors,
        unknown=tuple(kept[n] for n in mapped.unknown),
        dropped=dropped,
        wrapper=detection.wrapper,
        ambiguous_capture=captured.ids if captured.undecided else None,
        findings=tuple(_rival_findings(detection)),
    )


def _rival_findings(detection: Detection) -> list[Finding]:
    best = detection.best
    if best is None or not detection.rivals:
        return []
    listed = "; ".join(
        f"{m.format.name} ({', '.join(f'{e.key}: {e.says}' if e.says not in e.key else e.key for e in m.evidence)})"
        for m in (best, *detection.rivals)
    )
    return [
        Finding(
            "CFG001",
            "format-ambiguous",
            Severity.INFO,
            f"these files fit {1 + len(detection.rivals)} formats"
            f"{' equally' if detection.seen.whole else ', and the half that would decide is missing'}: {listed}",
            Location("config.json" if detection.seen.config is not None else None),
            hint=f"read as {best.format.name}; a config.json with its framework's fields would decide",
        )
    ]


__all__ = ["Detection", "DraftFacts", "Match", "detect", "formats", "read_as", "read_draft"]
