"""Every ordered pair of formats that share an algorithm: converted, read back, converted again, compared."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ckpt_tools.api.converting import Request, fix_keys
from ckpt_tools.container.open import open_checkpoint
from ckpt_tools.container.read import read_tensor
from ckpt_tools.convert.build import EXPLAINS
from ckpt_tools.convert.lost import differing
from ckpt_tools.formats import formats, read_draft
from ckpt_tools.model import Draft, Report

FIXTURES = Path(__file__).parents[2] / "fixtures"
TARGET = FIXTURES / "models" / "llama_tiny"
#: Folders that another format's writer was the model for: their format is what they are read as.
SAMPLES = sorted(p.parent for p in (FIXTURES / "formats").glob("*/*/config.json"))


@dataclass(frozen=True)
class Outcome:
    """What became of one sample on the way to a format and back.

    Attributes:
        sample: ``folder/name`` of the fixture.
        source: The format that it is read as.
        to: The format that was asked for.
        read_as: The format that the output is recognised as; ``None`` when refused.
        refused: Codes of the refusal.
        back_refused: Codes of the refusal on the way back.
        one_way: The source's format is only read, so there is no way back.
        tensors: Canonical tensors that differ after the way back (for one way: that the output lacks).
        facts: Canonical facts that differ.
        unnamed: Differences that no finding and no line of the plan names; always empty.
    """

    sample: str
    algorithm: str
    source: str
    to: str
    read_as: str | None = None
    refused: tuple[str, ...] = ()
    back_refused: tuple[str, ...] = ()
    one_way: bool = False
    tensors: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    unnamed: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Converted, and nothing differs."""
        return not (self.refused or self.back_refused or self.tensors or self.facts)


def writes(form: str, algorithm: str) -> bool:
    """Whether a format has a way of writing an algorithm."""
    known = formats()[form]
    return known.write is not None and any(
        v.algorithm == algorithm and not v.read_only for v in known.variants
    )


@lru_cache(maxsize=1)
def walk() -> tuple[Outcome, ...]:
    """The whole matrix over the samples."""
    return tuple(_outcomes())


def _outcomes() -> Iterator[Outcome]:
    for sample in SAMPLES:
        draft = read_draft(open_checkpoint(sample))
        if draft is None:
            continue
        for to in formats():
            if writes(to, draft.algorithm):
                with tempfile.TemporaryDirectory() as place:
                    yield one(sample, draft, to, Path(place))


def one(sample: Path, draft: Draft, to: str, place: Path) -> Outcome:
    """One sample to one format and back."""
    name = f"{sample.parent.name}/{sample.name}"
    base: dict[str, Any] = {"sample": name, "algorithm": draft.algorithm, "source": draft.format, "to": to}
    # Next-token layers have their own target's config with them.
    target = None if draft.algorithm == "mtp" else str(TARGET)
    there = fix_keys(Request(str(sample), str(place / "there"), to=to, target=target))
    if there.verdict != "pass":
        return Outcome(**base, refused=_codes(there))
    made = read_draft(open_checkpoint(place / "there"))
    assert made is not None
    base["read_as"] = made.format
    if not writes(draft.format, draft.algorithm):
        return Outcome(**base, one_way=True, **_differences(draft, made, None, [there]))
    back = fix_keys(Request(str(place / "there"), str(place / "back"), to=draft.format, target=target))
    if back.verdict != "pass":
        return Outcome(**base, back_refused=_codes(back))
    again = read_draft(open_checkpoint(place / "back"))
    assert again is not None
    changed = _changed(_values(sample, draft), _values(place / "back", again))
    return Outcome(**base, **_differences(draft, again, changed, [there, back]))


def _codes(report: Report) -> tuple[str, ...]:
    return tuple(dict.fromkeys(f.code for f in report.findings if f.severity.value == "error"))


def _values(folder: Path, draft: Draft) -> dict[str, bytes]:
    checkpoint = open_checkpoint(folder)
    return {name: read_tensor(checkpoint, native) for name, native in draft.tensors.items()}


def _changed(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> set[str]:
    return {n for n in {*before, *after} if before.get(n) != after.get(n)}


def _differences(
    before: Draft, after: Draft, changed: set[str] | None, reports: list[Report]
) -> dict[str, tuple[str, ...]]:
    """Tensors and facts that differ, and those of them that nothing names."""
    tensors = sorted(
        changed if changed is not None else set(before.tensors) - set(after.tensors) - _fused(before)
    )
    facts = sorted(differing(before.facts, after.facts))
    named_tensors: set[str] = set()
    named_facts: set[str] = set()
    for report in reports:
        plan = report.facts["plan"]
        lines = [d["tensor"] for d in plan["drops"]] + [s["tensor"] for s in plan["synthesised"]]
        named_tensors |= {
            canonical for canonical in tensors for line in lines if _is(canonical, line, before, after)
        }
        for finding in report.findings:
            named_facts |= set(EXPLAINS.get(finding.code, ()))
            if finding.code == "CFG014":
                named_facts.add(finding.message.split(" ", 1)[0])
            if finding.code == "VOC007":  # rows and table moved together
                named_tensors |= {"d2t", "lm_head.weight"}
    unnamed = [*(set(tensors) - named_tensors), *(set(facts) - named_facts)]
    return {"tensors": tuple(tensors), "facts": tuple(facts), "unnamed": tuple(sorted(unnamed))}


def _fused(draft: Draft) -> set[str]:
    return {n for n in draft.tensors if ".mlp.experts." in n}


def _is(canonical: str, line: str, *drafts: Draft) -> bool:
    return any(draft.tensors.get(canonical) == line for draft in drafts) or canonical == line


def counts(outcomes: tuple[Outcome, ...]) -> dict[str, int]:
    """How many pairs ended how."""
    return {
        "pairs": len(outcomes),
        "there and back, bit for bit": sum(o.same and not o.one_way for o in outcomes),
        "converted, source format only read": sum(o.one_way for o in outcomes),
        "converted, named losses": sum(bool(o.tensors or o.facts) and not o.one_way for o in outcomes),
        "refused by code": sum(bool(o.refused) for o in outcomes),
        "refused on the way back": sum(bool(o.back_refused) for o in outcomes),
    }
