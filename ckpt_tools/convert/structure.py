"""What is wrong with a draft whatever it is converted to: fields of the wrong kind, tensors that don't fit or aren't there.

A conversion that passed such a draft on would write a folder that no reader can use, and say that all is well.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ckpt_tools.checks.base import Context, finding
from ckpt_tools.checks.runner import run_checks
from ckpt_tools.container.wrappers import unwrap
from ckpt_tools.formats import formats
from ckpt_tools.formats.base import pointer
from ckpt_tools.formats.canonical import ALGORITHMS
from ckpt_tools.formats.eagle3 import SGLANG
from ckpt_tools.formats.names import fits
from ckpt_tools.model import Location, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from ckpt_tools.formats.canonical import Slot
    from ckpt_tools.model import Checkpoint, Draft, DraftFacts, Finding, Target

#: Checks of the input: what can't be read is taken as absent, and that must not pass in silence.
INPUT = ("CAP006", "CAP011", "CAP012", "CFG013", "ROP001")
#: Checks of the output, where what the conversion completes or repairs is in place already.
OUTPUT = ("SHP", "LAY002", "LAY003")
#: Refusals whose followers the output's checks would only repeat.
CAUSES = ("CAP006", "CFG013", "LAY004", "QNT001", "VOC004")


def of_input(checkpoint: Checkpoint, draft: Draft) -> Iterator[Finding]:
    """Fields that can't be taken as they stand, and those that a conversion settles one way or the other."""
    for f in run_checks([Context(checkpoint, draft)], select=INPUT).findings:
        if f.code == "ROP001":
            hint = "rope_parameters' values are written in both spellings; if training used the others, correct config.json first"
            yield replace(f, severity=Severity.WARNING, hint=hint)
        elif f.code != "CFG013":
            yield f
        elif _of_wrong_kind(f, checkpoint.config or {}):
            yield replace(
                f,
                severity=Severity.ERROR,
                message=f"{f.message}; it would be taken as not stated",
                hint="write the field as its schema says",
            )


def _of_wrong_kind(found: Finding, config: Mapping[str, object]) -> bool:
    """Whether a field is stated: null and absent fields are what they seem."""
    at = found.location.pointer
    return at is not None and "required property" not in found.message and pointer(config, at) is not None


def of_output(
    made: Checkpoint, back: Draft, source: Checkpoint, names: Mapping[str, str], target: Target | None
) -> Iterator[Finding]:
    """Shapes and layers that the output's config doesn't describe, placed where they stand in the input.

    Args:
        made: The output's headers.
        back: The output as its format reads it.
        source: The input.
        names: Output name -> name in the input's files.
    """
    own = run_checks([Context(made, back)], select=OUTPUT).findings
    against = run_checks([Context(made, back, target)], select=OUTPUT).findings if target and not own else ()
    # That a draft doesn't fit the named target makes the folder no worse: verify refuses the pair.
    for f in (*own, *(replace(f, severity=Severity.WARNING) for f in against)):
        native = names.get(f.location.tensor or "")
        info = source.tensors.get(native or "")
        yield replace(f, location=Location(info.file if info else "config.json", None, native))


def absent(draft: Draft, facts: DraftFacts, there: Collection[str]) -> list[str]:
    """Canonical names of tensors that the algorithm always has, or a flag asks for, and that aren't there.

    Args:
        there: Canonical names of what the output will hold.
    """
    flags = {"always": True, "norm_before_fc": facts.norm_before_fc, "fc_norm": facts.fc_norm}
    layers = _layers(draft)
    wanted = [s for s in ALGORITHMS[draft.algorithm] if flags.get(s.need) and "**" not in s.name]
    return [
        n
        for slot in wanted
        if not _other_attention(slot, facts)
        for n in _expanded(slot, facts, layers)
        if n not in there
    ]


def _other_attention(slot: Slot, facts: DraftFacts) -> bool:
    """MLA projects through tensors of its own, which depend on its ranks."""
    return facts.layer_type == "mla" and any(f".{p}_proj." in slot.name for p in "qkv")


def _layers(draft: Draft) -> list[int]:
    """Layers that a draft has; one of which nothing is there is LAY002's affair. Next-token layers keep the target's numbers."""
    mtp = draft.algorithm == "mtp"
    pattern = "mtp_layers.{i}.**" if mtp else "layers.{i}.**"
    there = {int(n.split(".")[1]) for n in draft.tensors if fits(pattern, n)}
    return sorted(there) if mtp else list(range(max(there, default=0) + 1))


def _expanded(slot: Slot, facts: DraftFacts, layers: Sequence[int]) -> Iterator[str]:
    if "{i}" in slot.name or "{n}" in slot.name:
        for i in layers:
            if i or "{i}" in slot.name:
                yield slot.name.replace("{i}", str(i)).replace("{n}", str(i))
    elif "{j}" in slot.name:
        yield from (slot.name.replace("{j}", str(j)) for j in range(facts.num_aux or 3))
    else:
        yield slot.name


def unasked(draft: Draft, facts: DraftFacts) -> Iterator[Finding]:
    """Norms that are there although their flag says that the head was trained without them."""
    for flag, tensor in (("norm_before_fc", "input_norm.weight"), ("fc_norm", "fc_norm.0.weight")):
        if tensor in draft.tensors and getattr(facts, flag) is False:
            yield finding(
                "NRM004",
                f"{draft.tensors[tensor]} is there and {flag} is false: readers leave the norm out without a word",
                tensor=draft.tensors[tensor],
                hint=f"write {flag} as the draft was trained",
            )


def twins(
    checkpoint: Checkpoint, draft: Draft, equal: Callable[[str, str], bool | None] | None
) -> Iterator[Finding]:
    """Tensors that are left behind as second names of others and hold other values.

    Args:
        equal: Whether two tensors of the input hold the same bytes; without it nothing is said.
    """
    bare = unwrap(checkpoint.tensors).names
    own = [v.names for v in formats()[draft.format].variants if v.algorithm == draft.algorithm]
    for native in draft.dropped if equal is not None else ():
        names = (m.canonical(bare[native]) for m in (*own, SGLANG))
        taken = next((draft.tensors[n] for n in names if n is not None and n in draft.tensors), None)
        if taken is not None and equal is not None and equal(native, taken) is not True:
            yield finding(
                "KEY004",
                f"{native} and {taken} are two names of one tensor and hold different values; readers of this format take {taken}, and "
                f"{native} would be left out",
                tensor=native,
                hint="find out which one training used, and remove the other",
            )
