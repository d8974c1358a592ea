"""What a conversion says beside its plan: limits of the format written, what the source leaves open, what engines replace."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ckpt_tools.checks.base import finding
from ckpt_tools.checks.quantization import PACKED
from ckpt_tools.convert import ids
from ckpt_tools.convert.vocabulary import TABLES
from ckpt_tools.formats import formats
from ckpt_tools.formats.dflash import FAMILY
from ckpt_tools.formats.names import fits
from ckpt_tools.formats.rope import by_layer_type
from ckpt_tools.model import RECORD, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ckpt_tools.convert.options import Readers
    from ckpt_tools.formats.base import Format, Variant
    from ckpt_tools.model import Checkpoint, Draft, DraftFacts, Finding, Target, TensorInfo

#: Where a format's limit points in config.json, for those that are about one field.
_FIELD_OF: Mapping[str, str] = {
    "NRM001": "/norm_before_residual",
    "HED003": "/embed_requires_grad",
    "CFG006": "/hidden_act",
}


def limits(draft: Draft, facts: DraftFacts, to: Format) -> Iterator[Finding]:
    """What the format can't carry of this draft."""
    for limit in to.limits:
        if limit.algorithms and draft.algorithm not in limit.algorithms:
            continue
        lost = limit.lost(facts, draft.tensors)
        if lost is not None:
            place = {"pointer": _FIELD_OF[limit.code]} if limit.code in _FIELD_OF else {}
            yield finding(limit.code, lost, severity=Severity(limit.severity), hint=limit.hint, **place)


def cautions(
    draft: Draft, source: Format, config: Mapping[str, Any], repairs: tuple[str, ...]
) -> Iterator[Finding]:
    """What the source's own files leave open, unless a repair settles it."""
    for caution in source.cautions:
        if caution.algorithms and draft.algorithm not in caution.algorithms:
            continue
        if caution.repair is not None and caution.repair in repairs:
            continue
        says = caution.says(draft.facts, config)
        if says is not None:
            yield finding(
                caution.code,
                says,
                severity=Severity(caution.severity),
                hint=caution.hint,
                pointer=caution.pointer,
                file="config.json",
            )


def implied(before: DraftFacts, after: DraftFacts, source: Format) -> Iterator[Finding]:
    """What is stated now because every reader of the source takes it so."""
    if source.implied is not None and before != after:
        yield finding("CFG016", source.implied.reason, file="config.json")


def default_capture(facts: DraftFacts, source: Format, depth: int) -> Finding:
    """The layers that the source's framework captures for a target of this depth are stated."""
    return finding(
        "CFG016",
        f"no captured layers are stated; {source.title} always takes layers {list(facts.capture_layers or ())} of a target of {depth}",
        file="config.json",
    )


def other_target(draft: Draft, target: Target | None) -> Iterator[Finding]:
    """Next-token layers of another model than the one that they would go into."""
    if target is None:
        return
    facts = draft.facts
    pairs = (
        ("hidden_size", facts.hidden_size, target.hidden_size),
        ("vocab_size", facts.vocab_size, target.vocab_size),
        ("model_type", facts.extra.get("model_type"), target.text_model_type or target.model_type),
    )
    differing = [f"{n} {a} and {b}" for n, a, b in pairs if a is not None and b is not None and a != b]
    if differing:
        yield finding(
            "MTP002",
            f"the layers and {target.hf_repo or target.id} aren't of one model: {', '.join(differing)}",
            file="config.json",
            hint="give the target that the layers belong to",
        )


def carriers(algorithm: str) -> str:
    """What to type for a format that writes an algorithm."""
    names = [
        name
        for name, form in formats().items()
        if form.write is not None and any(v.algorithm == algorithm and not v.read_only for v in form.variants)
    ]
    return " or ".join(f"--to {name}" for name in names)


def without_mask(draft: Draft) -> Draft:
    """A P-EAGLE draft as the EAGLE-3 head that it is on its first step."""
    native = draft.tensors.get("mask_hidden")
    left = {native: "P-EAGLE's learned hidden state, which EAGLE-3 has no use for"} if native else {}
    return replace(
        draft,
        algorithm="eagle3",
        tensors={n: native for n, native in draft.tensors.items() if n != "mask_hidden"},
        dropped={**draft.dropped, **left},
        facts=replace(draft.facts, mask_token_id=None),
    )


def no_parallel_drafting(to: Format) -> Finding:
    """P-EAGLE, which the format can carry as a plain EAGLE-3 head only."""
    engine = "SGLang" if to.engine is not None and to.engine.startswith("sglang") else to.title
    return finding(
        "PAR001",
        f"a P-EAGLE draft: {engine} implements no parallel drafting (mask_hidden, one pass for all steps). Written as EAGLE-3 only its "
        "first step is the one that was trained",
        hint=f"{carriers('peagle')} carries it",
        severity=Severity.ERROR,
    )


def no_home(draft: Draft, to: Format) -> Finding:
    """The format has no way of writing this draft."""
    if draft.algorithm == "unexported":
        return finding(
            "PAR015",
            "a training checkpoint of Model-Optimizer: the head lies inside its target, under names that no engine reads",
            hint="export it with Model-Optimizer's own exporter (modelopt.torch.export), then convert the export",
        )
    code = (
        "LAY004" if any(v.algorithm == draft.algorithm and not v.read_only for v in to.variants) else "PAR001"
    )
    listed = ", ".join(sorted({v.algorithm for v in to.variants if not v.read_only}))
    removed = draft.algorithm == "eagle" and to.name == "speculators"
    return finding(
        code,
        f"{to.title} has no way of writing a {draft.algorithm} draft with {draft.facts.layer_type or 'these'} layers "
        + ("(speculators removed EAGLE-1 in 0.7)" if removed else f"(it writes {listed})"),
        hint=f"{carried} carries it"
        if (carried := carriers(draft.algorithm))
        else "keep it as it is: no format here writes it",
        severity=Severity.ERROR,
    )


def rope(draft: Draft) -> Iterator[Finding]:
    """Rotary settings that differ between kinds of layers."""
    if by_layer_type(draft.facts.rope):
        scaling = (draft.facts.rope.scaling if draft.facts.rope else None) or {}
        kinds = [k for k, v in scaling.items() if isinstance(v, dict)]
        yield finding(
            "ROP006",
            f"rope_parameters differs between {' and '.join(kinds)}, and no draft's class takes more than one rope",
            pointer="/transformer_layer_config/rope_parameters"
            if draft.format == "speculators"
            else "/rope_parameters",
            severity=Severity.ERROR,
            hint="write the one that the draft's layers were trained with, or layer_types that says which they are",
        )


def window(draft: Draft, to: Format) -> Iterator[Finding]:
    """A window that SGLang's EAGLE-3 takes from a flag, or that engines count otherwise than training did."""
    facts, algorithm = draft.facts, draft.algorithm
    if facts.sliding_window is None:
        return
    if algorithm in FAMILY:
        if draft.format == "speculators" and to.name != "speculators":
            yield finding(
                "LAY009",
                f"training counted the sliding window of {facts.sliding_window} from the anchor, for every slot of the block alike; "
                f"engines count it from each slot, so slot k sees k tokens less of the far end (at most {(facts.block_size or 1) - 1} "
                f"of {facts.sliding_window})",
                pointer="/transformer_layer_config/sliding_window",
            )
    elif to.engine == "sglang" and ids.some_layers_slide(facts):
        slide = [i for i, kind in enumerate(facts.layer_types or ()) if kind != "full_attention"]
        yield finding(
            "LAY007",
            f"a sliding window of {facts.sliding_window} in {'layer' if len(slide) == 1 else 'layers'} {', '.join(map(str, slide))} of "
            f"{facts.num_layers} alone: SGLang reads none from the config, and its flag is for every layer of the draft",
            pointer="/transformer_layer_config/layer_types"
            if draft.format == "speculators"
            else "/layer_types",
            severity=Severity.ERROR,
            hint="vLLM windows the layers that the config names (--to vllm)",
        )
    elif to.engine == "sglang":
        kept = to.name == "dual"
        yield finding(
            "LAY001",
            f"the draft was trained with a sliding window of {facts.sliding_window}; SGLang doesn't read it from the config"
            + (", vLLM does: an SGLang server" if kept else ", so the field is dropped and the server")
            + " must get the flag instead",
            pointer="/sliding_window",
            hint=f"serve with {' '.join(ids.launch_flags(facts, algorithm, to))} (SGLang 0.5.12 and later)",
        )


def embedding(
    draft: Draft, target: Target | None, to: Format, variant: Variant, readers: Readers
) -> Iterator[Finding]:
    """A trained embedding that SGLang will overwrite, or that the format has no room for, as far as the files can tell."""
    native = draft.tensors.get("embed_tokens.weight")
    facts = draft.facts
    left = any(pattern == "embed_tokens.weight" for pattern, _ in variant.omits)
    if (
        not (left or to.engine == "sglang")
        or native is None
        or facts.target_hidden_size not in (None, facts.hidden_size)
    ):
        return
    if facts.embed_requires_grad or draft.algorithm in FAMILY:
        return  # the format's own limit says so; the family's embedding is dropped, which is said
    theirs = target.embed_tensor if target else None
    equal = readers.same(native, theirs) if readers.same is not None and theirs is not None else None
    if equal is False:
        yield finding(
            "HED003",
            f"{native} differs from the target's {theirs}: the embedding was trained, and "
            + ("this format holds none" if left else "SGLang replaces it by the target's"),
            tensor=native,
            severity=Severity.ERROR,
            hint="vLLM keeps a draft's own embedding (--to vllm)",
        )
    elif equal is None:
        yield finding(
            "HED004",
            f"{native} was not compared with the target's embedding, which "
            + ("readers of this format take" if left else "SGLang puts in its place"),
            tensor=native,
        )


def omitted(
    draft: Draft, facts: DraftFacts, variant: Variant, target: Target | None, readers: Readers
) -> tuple[dict[str, str], list[Finding]]:
    """Tensors that the format has no room for, with the reason, and what is to be said of them."""
    drops: dict[str, str] = {}
    found: list[Finding] = []
    for canonical, native in draft.tensors.items():
        reason = next((why for pattern, why in variant.omits if fits(pattern, canonical)), None)
        if reason is None:
            continue
        drops[native] = reason
        if canonical == "lm_head.weight":
            found += _head(draft, facts, native, target, readers)
        elif canonical == "fc.bias":
            found += _zero(native, readers)
    return drops, found


def _head(
    draft: Draft, facts: DraftFacts, native: str, target: Target | None, readers: Readers
) -> Iterator[Finding]:
    """The draft's own head gives way to the target's: nothing lost when it holds the target's rows."""
    if draft.algorithm not in FAMILY:
        return
    reduced = facts.draft_vocab_size not in (None, facts.vocab_size)
    theirs = (target.lm_head_tensor or target.embed_tensor) if target else None
    equal = readers.same(native, theirs) if readers.same is not None and theirs and not reduced else None
    frozen = draft.format == "speculators"
    if equal is False or (equal is None and not frozen):
        yield finding(
            "HED009",
            f"{native} is a head of the draft's own, and this format's readers take the target's: "
            + ("it differs from the target's" if equal is False else "whether it was trained isn't known"),
            tensor=native,
            severity=Severity.ERROR,
            hint="vLLM keeps it (--to vllm)",
        )
    elif reduced:
        yield finding(
            "HED009",
            f"{native} holds {facts.draft_vocab_size} of the target's {facts.vocab_size} rows, frozen in training (speculators 0.5 and "
            "later); with the target's own head the draft may propose every id, among them ones that it never learned",
            tensor=native,
            severity=Severity.INFO,
        )


def _zero(native: str, readers: Readers) -> Iterator[Finding]:
    if readers.raw is not None and not any(readers.raw(native)):
        return
    yield finding(
        "KEY005",
        f"{native}: vLLM's EAGLE-1 class builds fc without a bias and drops the tensor without a word",
        tensor=native,
        severity=Severity.ERROR,
        hint="SGLang keeps it (--to sglang)",
    )


def verifier(draft: Draft, target: Target | None) -> Iterator[Finding]:
    """The draft names another target than the given one."""
    named = draft.facts.verifier.name if draft.facts.verifier else None
    if target is None or named is None or ids.names_target(named, target):
        return
    yield finding(
        "CFG008",
        f"the draft names {named} as its target, and --target is {target.hf_repo or target.id}",
        pointer="/speculators_config/verifier/name_or_path"
        if draft.format == "speculators"
        else "/verifier/name_or_path",
        file="config.json" if draft.format == "speculators" else RECORD,
        hint="give the target that the draft was trained for",
    )


def quantization(checkpoint: Checkpoint, draft: Draft, variant: Variant) -> Iterator[Finding]:
    """A quantised draft, whose config no format carries over; or a quantization_config over tensors that are all plain."""
    if variant.inside is not None:
        return  # the target's config stays as it is
    config = checkpoint.config or {}
    named = next((k for k in ("quantization_config", "compression_config") if config.get(k)), None)
    tables = {draft.tensors.get(n) for n in TABLES}
    own = (n for n in (*draft.tensors.values(), *draft.unknown) if n not in tables)
    quantised = [n for n in own if is_quantised(checkpoint.tensors[n])]
    if quantised:
        yield finding(
            "QNT001",
            f"{len(quantised)} quantised tensors (such as {quantised[0]}, {checkpoint.tensors[quantised[0]].dtype}): their "
            f"{named or 'quantization_config'} names the source's own modules and is left behind, so an engine would build plain layers",
            pointer=f"/{named}" if named else None,
            tensor=quantised[0],
            severity=Severity.ERROR,
            hint="convert the draft as it was before, then quantise the result",
        )
    elif named is not None and draft.tensors:
        yield finding(
            "QNT002",
            f"{named} is the target's: the draft's own tensors are plain, and engines would look for scales that aren't there; it is left "
            "behind",
            pointer=f"/{named}",
            severity=Severity.INFO,
        )


def is_quantised(tensor: TensorInfo) -> bool:
    """Packed or scaled by its name, or of a dtype that no plain weight has."""
    packed = tensor.name.rsplit(".", 1)[-1] in PACKED
    return (
        packed
        or tensor.dtype.startswith(("F8", "F6", "F4"))
        or tensor.dtype in ("I8", "U8", "U16", "U32", "U64")
    )
