"""Making the plan: canonical draft in, output tensors and config out, every loss named."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ckpt_tools.checks.base import finding
from ckpt_tools.convert import experts, hazards, ids, known, lost, structure
from ckpt_tools.convert.edits import config_edits
from ckpt_tools.convert.files import other_files
from ckpt_tools.convert.lost import read_back
from ckpt_tools.convert.options import Findings, Options
from ckpt_tools.convert.plan import Plan
from ckpt_tools.convert.repairs import HIDDEN_NORM, folded_norm, repaired_facts
from ckpt_tools.convert.shards import assign_shards
from ckpt_tools.convert.stitch import TARGETS_OWN, stitched, stitched_config
from ckpt_tools.convert.tensors import Made, missing, plan_tensors
from ckpt_tools.convert.vocabulary import TABLES, plan_tables
from ckpt_tools.engines.capture import default_layers
from ckpt_tools.formats import formats
from ckpt_tools.formats.base import Variant, WriteRequest
from ckpt_tools.model import Severity, Verifier

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ckpt_tools.convert.options import Readers
    from ckpt_tools.convert.vocabulary import Vocabulary
    from ckpt_tools.formats.base import Format
    from ckpt_tools.model import Checkpoint, Draft, DraftFacts, Finding, Target

#: Codes whose finding already names the loss of these facts.
EXPLAINS: Mapping[str, tuple[str, ...]] = {
    "NRM001": ("norm_before_residual",),
    "NRM005": ("norm_before_fc", "fc_norm", "norm_output"),
    "NRM009": ("norm_output",),
    "LAY001": ("sliding_window", "layer_types"),
    "LAY007": ("sliding_window", "layer_types", "is_causal"),
    "KEY005": ("attention_bias", "mlp_bias"),
    "CAP001": ("capture_layers",),
    "CAP002": ("capture_layers", "num_aux"),
    "CAP009": ("capture_layers", "num_aux"),
    "CAP015": ("num_aux", "capture_layers"),
    "PAR001": ("mask_token_id",),
    "PAR008": ("sample_from_anchor",),
    "PAR013": ("sample_from_anchor",),
    "ROP006": ("rope",),
    "SHP004": ("target_hidden_size",),
    "SHP005": ("head_dim",),
    "HED003": ("embed_requires_grad",),
    "HED002": ("tie_word_embeddings",),
    "HED009": ("draft_vocab_size",),
}


def choose_variant(to: Format, draft: Draft) -> Variant | None:
    """The way in which a format writes this draft's algorithm and layers."""
    fitting = [v for v in to.variants if v.algorithm == draft.algorithm and not v.read_only]
    kind = draft.facts.layer_type
    exact = [v for v in fitting if v.layer_type == kind]
    loose = [v for v in fitting if v.layer_type is None or (v.layer_type == "llama" and kind != "mla")]
    return next(iter((*exact, *loose)), None)


def plan_conversion(
    checkpoint: Checkpoint,
    draft: Draft,
    to: Format,
    fingerprint: str,
    readers: Readers,
    *,
    target: Target | None = None,
    options: Options | None = None,
) -> Plan:
    """Plan the conversion of a draft into a format.

    Args:
        checkpoint: The input, headers alone.
        draft: Its canonical form.
        to: The format to write.
        fingerprint: Of the input.
        readers: What may be looked at beside headers.
        target: Facts of the target, if known.
        options: What the user asked for.
    """
    asked = options or Options()
    found = Findings(asked.allow, checkpoint.tensors)
    for f in (*draft.findings, *structure.of_input(checkpoint, draft)):
        found.add(f)
    base = Plan(checkpoint.path, fingerprint, draft, to.name, repairs=asked.repairs)
    variant = choose_variant(to, draft)
    if variant is None and draft.algorithm == "peagle":
        # The same tensors but one make an EAGLE-3 head, whose first step is the one that was trained.
        plain = hazards.without_mask(draft)
        variant = choose_variant(to, plain)
        if variant is not None:
            found.add(hazards.no_parallel_drafting(to))
            draft = plain
    if variant is None or to.write is None:
        found.add(hazards.no_home(draft, to), allowable=False)
    if variant is None or to.write is None or any(f.code == "PAR001" for f in found.refusals):
        return replace(base, refusals=tuple(found.refusals), notes=tuple(found.notes))
    facts = _facts(checkpoint, draft, target, asked, found)
    given, draft = draft, replace(draft, facts=facts)
    written = ids.decide(draft, to, target)
    for f in (
        *hazards.limits(draft, facts, to),
        *(() if any(f.code == "CAP006" for f in found.refusals) else written.findings),
        *hazards.window(draft, to),
        *hazards.rope(draft),
        *ids.first_releases(facts, draft.algorithm, to, written),
        *hazards.embedding(draft, target, to, variant, readers),
        *hazards.verifier(given, target),
        *hazards.quantization(checkpoint, draft, variant),
    ):
        found.add(f)
    vocabulary = plan_tables(checkpoint, draft, facts, to, variant, readers, asked)
    drops = _drops(checkpoint, draft, facts, variant, vocabulary, target, readers, found)
    if vocabulary.draft_vocab_size is not None:
        facts = replace(facts, draft_vocab_size=vocabulary.draft_vocab_size)
    uneven = list(experts.incomplete(checkpoint, draft))
    if uneven:
        for f in uneven:
            found.add(f, allowable=False)
        return replace(base, drops=drops, refusals=tuple(found.refusals), notes=tuple(found.notes))
    made = _made(checkpoint, draft, variant, readers, asked, drops)
    out = plan_tensors(checkpoint, draft, variant, drops, vocabulary, made, asked)
    request = WriteRequest(
        facts=known.with_geometry(facts, draft, checkpoint),
        algorithm=draft.algorithm,
        variant=variant,
        target=target,
        source_config={**readers.recorded.blocks, **(checkpoint.config or {})},
        nested_ids=written.nested,
        top_level_ids=written.top_level,
        tensors=frozenset(draft.tensors),
    )
    if variant.inside is not None and readers.target is not None:
        for f in hazards.other_target(draft, target):
            found.add(f)
    for f in known.required(request.facts, draft.algorithm):
        found.add(f, allowable=False)
    unfilled = _unfilled(draft, request.facts, variant, vocabulary, made)
    if any(f.code == "KEY004" for f in found.refusals):
        unfilled = iter(())  # what is missing may well be there under a name that isn't known
    for f in (*unfilled, *structure.unasked(draft, facts)):
        found.add(f)
    config = to.write(request)
    unsaid: dict[str, Any] = {}
    if draft.algorithm != "mtp":
        made_headers, back = read_back(out.tensors, config, to, variant, target)
        unsaid = lost.unsaid(request.facts, back)
        for f in _lost(request.facts, back, to, found):
            found.add(f)
        if not any(f.code in structure.CAUSES for f in found.refusals):
            names = {t.name: t.source for t in out.tensors if t.source is not None}
            for f in structure.of_output(made_headers, back, checkpoint, names, target):
                found.add(f)
    tensors = assign_shards(tuple(out.tensors), asked.max_shard_size)
    carried, left = other_files(checkpoint)
    if variant.inside is not None and readers.target is not None:
        tensors = assign_shards(stitched(readers.target, out.tensors), asked.max_shard_size)
        config = stitched_config(readers.target.config or {}, 1)
        carried, _ = other_files(readers.target)
    return replace(
        base,
        tensors=tensors,
        renames=tuple(out.renames),
        copies=tuple(out.copies),
        drops=drops,
        synthesised=tuple(out.synthesised),
        casts=tuple(out.casts),
        config=config,
        edits=config_edits(checkpoint.config or {}, config),
        refusals=tuple(found.refusals),
        notes=tuple(found.notes),
        launch_flags=ids.launch_flags(facts, draft.algorithm, to),
        carried=carried,
        left=left,
        allowed=tuple(dict.fromkeys(found.allowed)),
        unsaid=unsaid,
        verifier=facts.verifier,
    )


def _facts(
    checkpoint: Checkpoint, draft: Draft, target: Target | None, asked: Options, found: Findings
) -> DraftFacts:
    """The facts to write: repaired, with what every reader of the source implies and what the tensors show."""
    source = formats()[draft.format]
    for f in hazards.cautions(draft, source, checkpoint.config or {}, asked.repairs):
        found.add(f)
    facts = repaired_facts(draft.facts, asked.repairs)
    if source.implied is not None:
        completed = source.implied.facts(facts, draft.algorithm)
        for f in hazards.implied(facts, completed, source):
            found.add(f)
        facts = completed
    depth = target.num_hidden_layers if target else None
    if source.fixed_capture and facts.capture_layers is None and depth and draft.algorithm == "eagle3":
        facts = replace(facts, capture_layers=default_layers(depth), capture_convention="layer_output")
        found.add(hazards.default_capture(facts, source, depth))
    facts = known.with_tensor_flags(known.with_written_dtype(facts, checkpoint, draft, asked), draft)
    if target is not None:
        facts = replace(facts, verifier=Verifier(target.hf_repo or target.id, target.architectures))
        if facts.vocab_size is None:
            facts = replace(facts, vocab_size=target.vocab_size)
    return facts


def _drops(
    checkpoint: Checkpoint,
    draft: Draft,
    facts: DraftFacts,
    variant: Variant,
    vocabulary: Vocabulary,
    target: Target | None,
    readers: Readers,
    found: Findings,
) -> dict[str, str]:
    """Names in the input's files that stay behind, with the reason."""
    drops = dict(draft.dropped)
    for f in structure.twins(checkpoint, draft, readers.equal):
        found.add(f)
    unknown = [n for n in draft.unknown if not hazards.is_quantised(checkpoint.tensors[n])]
    if unknown:
        listed = ", ".join(unknown[:3]) + (f" and {len(unknown) - 3} more" if len(unknown) > 3 else "")
        found.add(
            finding(
                "KEY004",
                f"{listed} {'have' if len(unknown) > 1 else 'has'} no place in {draft.format}'s {draft.algorithm} drafts; "
                f"{'they' if len(unknown) > 1 else 'it'} would be left out",
                tensor=unknown[0],
            )
        )
    for name in draft.unknown:
        drops[name] = (
            "no place in this algorithm (allowed)"
            if name in unknown
            else "belongs to quantised weights, which are refused as a whole"
        )
    for f in vocabulary.findings:
        found.add(f)
    drops.update(vocabulary.drops)
    omitted, said = hazards.omitted(draft, facts, variant, target, readers)
    for f in said:
        found.add(f)
    drops.update(omitted)
    native = draft.tensors.get("fc.bias")
    if native in readers.recorded.derived and "fc.bias" not in variant.needs and native is not None:
        drops[native] = "made by the conversion that wrote this folder"
    if variant.inside is not None:
        drops.update({n: "the target's own" for n in TARGETS_OWN if n in checkpoint.tensors})
    return drops


def _made(
    checkpoint: Checkpoint,
    draft: Draft,
    variant: Variant,
    readers: Readers,
    asked: Options,
    drops: dict[str, str],
) -> dict[str, Made]:
    """Tensors that are made: what readers can't do without, and what a repair changes."""
    made = missing(draft, variant, checkpoint.tensors)
    if "modelopt-double-norm" in asked.repairs and readers.raw is not None:
        data = folded_norm(draft, checkpoint, readers.raw)
        if data is not None:
            native = draft.tensors[HIDDEN_NORM]
            info = checkpoint.tensors[native]
            made[HIDDEN_NORM] = Made(
                info.dtype, info.shape, data, "input_layernorm folded in (--repair modelopt-double-norm)"
            )
            drops[native] = "replaced by --repair modelopt-double-norm"
    return made


def _unfilled(
    draft: Draft, facts: DraftFacts, variant: Variant, vocabulary: Vocabulary, made: Mapping[str, Made]
) -> Iterator[Finding]:
    """What the head can't do without, the draft hasn't, and nothing can stand in for."""
    there = {*draft.tensors, *made, *vocabulary.made}
    needed = (n for n in variant.needs if n not in TABLES and n not in there)
    absent = list(dict.fromkeys((*needed, *structure.absent(draft, facts, there))))
    if absent:
        listed = ", ".join(absent[:3]) + (f" and {len(absent) - 3} more" if len(absent) > 3 else "")
        yield finding(
            "KEY009",
            f"{listed} {'are' if len(absent) > 1 else 'is'}n't there, and no reader of this format can do without "
            f"{'them' if len(absent) > 1 else 'it'}",
            tensor=absent[0],
            hint="take it from the training checkpoint",
        )


def _lost(facts: DraftFacts, back: Draft, to: Format, found: Findings) -> list[Finding]:
    """Facts that the output doesn't say and no finding names."""
    named = {f.code for f in (*found.notes, *found.refusals)}
    explained = frozenset(fact for code, facts in EXPLAINS.items() if code in named for fact in facts)
    return [
        f
        for f in lost.lost_facts(facts, back, to, explained)
        if not (f.severity is Severity.ERROR and found.refusals)
    ]
