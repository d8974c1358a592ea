"""Whether a conversion kept the function: its tensors and facts, and what source and result compute."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from ckpt_tools.api.compare import comparer
from ckpt_tools.api.numbers import stated
from ckpt_tools.checks.base import finding
from ckpt_tools.errors import CkptError, InputError, Unavailable, UsageError
from ckpt_tools.formats import formats
from ckpt_tools.formats.facts import facts_json
from ckpt_tools.model import FLOAT_DTYPES, Skipped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ckpt_tools.api.sides import Lender
    from ckpt_tools.api.subjects import Opened
    from ckpt_tools.forward.equivalence import Proof, Side
    from ckpt_tools.forward.semantics import Semantics
    from ckpt_tools.model import Draft, Engine, Finding, LoadMap, Target

# Steps, sequences and tokens of a proof.
STEPS, BATCH, LENGTH = 5, 2, 24
# Part of the largest logit that rounding to a narrower dtype may move a logit by; measured on the trained pair.
ROUNDING = {"BF16": 0.1, "F16": 0.02}
# Facts that decide what the weights compute. Others (a verifier's name, a dtype) may differ.
FUNCTION = (
    "num_layers",
    "hidden_size",
    "target_hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "draft_vocab_size",
    "capture_layers",
    "norm_before_residual",
    "norm_before_fc",
    "fc_norm",
    "norm_output",
    "rope",
    "hidden_act",
    "rms_norm_eps",
    "block_size",
    "mask_token_id",
)
# Not stated and false are the same for these.
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


@dataclass(frozen=True)
class Known:
    """An opened draft with what it was read as."""

    opened: Opened
    draft: Draft


@dataclass(frozen=True)
class Verdict:
    """What comparing two drafts found.

    Attributes:
        facts: ``proof`` as the report has it, ``None`` when the heads weren't run.
        findings: EQV findings.
        skipped: Why the heads weren't run.
    """

    facts: dict[str, Any] | None
    findings: tuple[Finding, ...]
    skipped: tuple[Skipped, ...] = ()


def lost(source: Known, result: Known) -> Iterator[Finding]:
    """EQV002 and EQV003: tensors of the source that the result lacks or holds otherwise; facts that differ.

    Tables that name rows (t2d, and d2t of a full vocabulary) are derived, and a copy of the target's embedding may be left out: the
    engine has its own.
    """
    same = comparer(source.opened, result.opened)
    left, right = source.opened.checkpoint.tensors, result.opened.checkpoint.tensors
    reordered = all(_same(same, source.draft, result.draft, n) is False for n in ("d2t", "lm_head.weight"))
    for canonical, name in source.draft.tensors.items():
        theirs = result.draft.tensors.get(canonical)
        if reordered and canonical in ("d2t", "t2d", "lm_head.weight"):
            continue  # rows in another order: whether head and table still agree is the proof's question
        if theirs is None:
            if canonical not in ("t2d", "d2t", "embed_tokens.weight"):
                yield finding(
                    "EQV002", f"{name} of the source is not in the result ({canonical})", tensor=canonical
                )
            continue
        a, b = left[name], right[theirs]
        if a.shape != b.shape:
            message = f"{name} is {list(a.shape)} in the source, {theirs} is {list(b.shape)} in the result"
            yield finding("EQV002", message, tensor=theirs)
        elif a.dtype == b.dtype and same(name, theirs) is False:
            yield finding("EQV002", f"{theirs} holds other values than the source's {name}", tensor=theirs)
    yield from _facts_that_differ(source.draft, result.draft)


def _same(
    same: Callable[[str, str], bool | None], source: Draft, result: Draft, canonical: str
) -> bool | None:
    mine, theirs = source.tensors.get(canonical), result.tensors.get(canonical)
    return same(mine, theirs) if mine is not None and theirs is not None else None


def _facts_that_differ(source: Draft, result: Draft) -> Iterator[Finding]:
    a, b = facts_json(source.facts), facts_json(result.facts)
    for key in FUNCTION:
        mine = a[key] if key in a else getattr(source.facts, key)
        theirs = b[key] if key in b else getattr(result.facts, key)
        if key in FLAGS:
            mine, theirs = bool(mine), bool(theirs)
        if mine is None or theirs is None or mine == theirs:
            continue
        yield finding(
            "EQV003",
            f"{key}: the source says {mine}, the result {theirs}",
            file="config.json",
            pointer=f"/{key}",
        )


def engines_of(to: str) -> tuple[str | None, ...]:
    """The frameworks that a format's folders are for; a folder for two engines is proven under both.

    ``None`` stands for a training framework's own computation.
    """
    if to == "dual":
        return ("sglang", "vllm")
    if to == "speculators":
        return ("speculators",)
    return (formats()[to].engine,)


def combined(verdicts: Sequence[Verdict]) -> dict[str, Any] | None:
    """``facts.proof`` of proofs under several engines: the first that fails, else the first, and under which all were run."""
    ran = [v.facts for v in verdicts if v.facts is not None]
    if not ran:
        return None
    shown = next((f for f in ran if not f["proven"]), ran[0])
    return {**shown, "proven": all(f["proven"] for f in ran), "under": [f["result_semantics"] for f in ran]}


def prove(
    source: Known,
    result: Known,
    *,
    framework: str | None,
    version: str | None = None,
    engine: Engine | None = None,
    load: LoadMap | None = None,
    target: Target | None = None,
) -> Verdict:
    """Run both on the same inputs, the source under its own framework, the result under ``framework``.

    What the two borrow comes from the target's files where they are on this machine, else from stand-ins that are the same for
    both: the source's own embedding as the target's.

    Args:
        source, result: The drafts.
        framework, version: Whose semantics serve the result; no framework is the one that the result's format is of.
        engine: Named in findings.
        load: The engine's load map of the result: what it leaves unused isn't there.
        target: Lends its matrices.

    Raises:
        Unavailable: torch is missing, or no reference head computes such a draft.
        UsageError: A framework without reference semantics.
    """
    from ckpt_tools.api import sides
    from ckpt_tools.forward import devices
    from ckpt_tools.forward.equivalence import FLOAT_ERROR, random_inputs
    from ckpt_tools.forward.equivalence import prove as compare
    from ckpt_tools.forward.semantics import find

    trained = sides.semantics_as_trained(source.draft)
    served = sides.semantics_as_trained(result.draft) if framework is None else find(framework, version)
    try:
        left, right = _sides(source, result, trained, served, load, target)
    except InputError as error:
        broken = finding("EQV001", f"the heads can't be compared: {error.message}", hint=error.hint)
        return Verdict(None, (_of(broken, engine),))
    sizes = [s.spec.vocab_size or s.spec.draft_vocab_size or 2 for s in (left, right)]
    inputs = random_inputs([left, right], batch=BATCH, length=LENGTH, vocab_size=min(sizes))
    with devices.threads_for(sum(t.numel() for n, t in left.tensors.items() if n != "embed_tokens.weight")):
        proof = compare(left, right, inputs, STEPS, tolerance=_tolerance(source, result) or FLOAT_ERROR)
    facts = _proof_facts(proof, trained, served)
    return Verdict(facts, () if proof.proven else (_of(_changed(proof, served), engine),))


def _of(found: Finding, engine: Engine | None) -> Finding:
    return replace(found, engine=str(engine)) if engine is not None else found


def _tolerance(source: Known, result: Known) -> float | None:
    """Wider where the conversion rounded to a narrower dtype."""
    a = {t.dtype for t in source.opened.checkpoint.tensors.values()} & FLOAT_DTYPES
    b = {t.dtype for t in result.opened.checkpoint.tensors.values()} & FLOAT_DTYPES
    widths = [ROUNDING[d] for d in b - a if d in ROUNDING]
    return max(widths) if widths else None


def _sides(
    source: Known,
    result: Known,
    trained: Semantics,
    served: Semantics,
    load: LoadMap | None,
    target: Target | None,
) -> tuple[Side, Side]:
    from ckpt_tools.api import sides

    before = sides.as_read_by(source.draft, source.opened, trained)
    after = sides.as_read_by(result.draft, result.opened, served)
    spec = sides.spec_of(source.opened, before, trained)
    known = sides.spec_of(result.opened, after, served)
    gone = sides.unfilled(after, known, load)
    theirs = sides.spec_of(result.opened, after, served, without=gone) if gone else known
    lender = _lender(target) if sides.needs_target(spec) or sides.needs_target(theirs) else None
    # a side that doesn't state its captured layers takes the other's: what it doesn't say isn't changed
    left = sides.side_of(
        source.opened,
        before,
        spec,
        _parts(spec, lender, None),
        capture_layers=after.facts.capture_layers,
        dtype="float32",
    )
    table = left.tensors.get("embed_tokens.weight")
    right = sides.side_of(
        result.opened,
        after,
        theirs,
        _parts(theirs, lender, table),
        capture_layers=before.facts.capture_layers,
        dtype="float32",
        without=gone,
    )
    return left, right


def _lender(target: Target | None) -> Lender | None:
    """The target's files when they are on this machine; the Hub isn't asked for a proof."""
    if target is None or target.origin != "local":
        return None
    from ckpt_tools.api import sides

    try:
        return sides.open_target(target)
    except CkptError:
        return None


def _parts(spec: Any, lender: Lender | None, table: Any) -> Any:
    from ckpt_tools.api import sides
    from ckpt_tools.forward.parts import NOTHING

    if not sides.needs_target(spec):
        return NOTHING
    if lender is not None:
        return sides.borrow(spec, lender.target, lender.reader)
    return sides.stand_in(spec, table)


def _proof_facts(proof: Proof, trained: Semantics, served: Semantics) -> dict[str, Any]:
    return {
        "proven": proof.proven,
        "identical": proof.identical,
        "source_semantics": str(trained),
        "result_semantics": str(served),
        "per_step": stated([asdict(s) for s in proof.per_step]),
        "causes": stated([asdict(c) for c in proof.causes]),
    }


def _changed(proof: Proof, served: Semantics) -> Finding:
    first = proof.per_step[0]
    worst = max(proof.per_step, key=lambda s: s.kl if s.kl == s.kl else float("inf"))
    cause = proof.cause
    says = (
        f"likeliest cause: {cause.name}{'' if cause.explains else ' (in part)'}"
        if cause is not None
        else "no single semantic explains it"
    )
    return finding(
        "EQV001",
        f"not the same function under {served}: step 0 agrees in {first.top1_agreement:.0%} of the proposals, "
        f"step {worst.step} has KL {worst.kl:.3g} nats; {says}",
        hint="`ckpt verify` on the result says what that engine does with it",
    )


def prove_or_skip(*args: Any, **options: Any) -> Verdict:
    """:func:`prove`; what can't be run, for want of torch or of an engine's reference semantics, is a skipped check."""
    try:
        return prove(*args, **options)
    except (Unavailable, UsageError) as error:
        return Verdict(None, (), (Skipped("EQV001", error.message),))
