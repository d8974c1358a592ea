"""VOC: d2t, t2d and the draft's vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_tools.checks.base import Context, Hit, check
from ckpt_tools.checks.parallel import borrows_head
from ckpt_tools.engines.history import family
from ckpt_tools.formats import tables
from ckpt_tools.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

INTEGERS = ("I64", "I32", "I16", "I8", "U8")
PADDING = 512  # rows that frameworks add at most to round a vocabulary up
WITH_MAP = ("eagle3", "peagle", "dflash", "dspark")


def _table(ctx: Context, name: str) -> tuple[int, ...] | None:
    if ctx.draft is None or ctx.table is None or name not in ctx.draft.tensors:
        return None
    return ctx.table(ctx.draft.tensors[name])


def _sizes(ctx: Context) -> tuple[int | None, int | None]:
    """(target vocabulary, draft vocabulary); the tensors' rows where the config is silent."""
    assert ctx.draft is not None
    facts = ctx.draft.facts
    vocab = facts.vocab_size
    if ctx.target is not None and ctx.target.vocab_size is not None and vocab is None:
        vocab = ctx.target.vocab_size
    return vocab, facts.draft_vocab_size


def _problems(ctx: Context, kind: str) -> Iterator[Hit]:
    d2t = _table(ctx, "d2t")
    if d2t is None or ctx.draft is None or ctx.draft.algorithm not in WITH_MAP:
        return
    vocab, small = _sizes(ctx)
    native = ctx.draft.tensors["d2t"]
    for problem in tables.problems(d2t, vocab, small, _table(ctx, "t2d")):
        if problem.kind == kind:
            tensor = ctx.draft.tensors.get("t2d", native) if kind == "mask" else native
            yield Hit(problem.message, tensor=tensor, file=ctx.checkpoint.tensors[tensor].file)


@check("VOC001", "d2t-absolute", Severity.ERROR, needs=("draft", "table"), after=("FIL",))
def absolute(ctx: Context) -> Iterator[Hit]:
    """d2t holds target ids where offsets belong.

    Checks: i + d2t[i] are target ids, not d2t[i] itself.
    Why: every engine adds the row number. Absolute ids then leave the vocabulary (an index error or a CUDA device assert at the
        first draft) or name wrong tokens without a word.
    Example: d2t holds absolute target ids (3, 5, … 250) where offsets belong
    Fix: ckpt fix-keys IN OUT --repair d2t-absolute
    References: sglang 0.5.23 srt/models/llama_eagle3.py:350-353; vllm 0.33.0 model_executor/models/llama_eagle3.py:385-394 (run:
        IndexError at the first draft).
    """
    for hit in _problems(ctx, "absolute"):
        yield Hit(
            hit.message,
            hit.file,
            tensor=hit.tensor,
            hint="ckpt fix-keys IN OUT --repair d2t-absolute rewrites it",
        )


@check("VOC002", "d2t-out-of-range", Severity.ERROR, needs=("draft", "table"), after=("FIL", "VOC001"))
def out_of_range(ctx: Context) -> Iterator[Hit]:
    """A draft row maps outside the target's vocabulary.

    Checks: 0 <= i + d2t[i] < vocab_size.
    Why: the id indexes the target's embedding: a CUDA device assert, or garbage.
    Example: d2t[0] maps to target id 300, outside 0..255
    Fix: Take the table from the training run's vocabulary mapping.
    References: sglang 0.5.23 srt/speculative/eagle_worker_v2.py:757-758.
    """
    yield from _problems(ctx, "range")


@check("VOC003", "d2t-duplicate", Severity.ERROR, needs=("draft", "table"), after=("FIL", "VOC001", "VOC002"))
def duplicate(ctx: Context) -> Iterator[Hit]:
    """Two draft rows map to one target id.

    Checks: i + d2t[i] are all different.
    Why: one of the rows was trained for another token; whenever it wins, the draft proposes the wrong one.
    Example: 3 rows of d2t map to a target id already taken (such as 17)
    Fix: Take the table from the training run's vocabulary mapping.
    References: llama.cpp conversion/llama.py (refuses duplicates); SpecForge compact_teacher.validate_vocab_mapping_consistency.
    """
    yield from _problems(ctx, "duplicate")


@check("VOC004", "d2t-length", Severity.ERROR, needs=("draft", "table"), after=("FIL",))
def length(ctx: Context) -> Iterator[Hit]:
    """d2t has another number of rows than the head.

    Checks: d2t has draft_vocab_size rows.
    Why: SGLang loads it without a word and indexes past its end; vLLM raises.
    Example: d2t has 60 rows, the draft's vocabulary has 96
    Fix: Take the table that belongs to this head.
    References: sglang 0.5.23 srt/models/llama_eagle3.py:350-353 (run); vllm 0.33.0 (run: AssertionError).
    """
    yield from _problems(ctx, "length")


@check(
    "VOC005", "t2d-disagrees", Severity.WARNING, needs=("draft", "table"), after=("FIL", "VOC001", "VOC012")
)
def mask(ctx: Context) -> Iterator[Hit]:
    """t2d and d2t contradict each other.

    Checks: t2d has vocab_size rows and selects exactly the ids that d2t maps to.
    Why: engines never read t2d, so serving works; but the tables come from two mappings, and the wrong one may be d2t.
    Example: t2d selects 40 target ids, d2t maps to 96
    Fix: Find out which mapping the head was trained with; ckpt fix-keys derives t2d anew when it is missing.
    References: sglang 0.5.23 srt/models/llama_eagle3.py (t2d dropped); vllm 0.33.0 llama_eagle3.py:426 (dropped).
    """
    yield from _problems(ctx, "mask")


@check("VOC006", "d2t-missing", Severity.ERROR, needs=("draft",), after=("FIL", "KEY003", "HED008"))
def missing(ctx: Context) -> Iterator[Hit]:
    """A reduced vocabulary without a map to the target's.

    Checks: with draft_vocab_size below the target's vocabulary there is a d2t (DFlash and DSpark: on vLLM, as SGLang drafts with the
        target's whole head).
    Why: draft ids are read as target ids without a word; acceptance is next to zero. TensorRT-LLM alone raises.
    Example: draft_vocab_size 96 is below vocab_size 256 and d2t is missing: draft ids are read as target ids 0..95
    Fix: Take d2t from the training run's vocabulary mapping; ckpt fix-keys derives it from t2d when that is there.
    References: sglang 0.5.23 srt/models/llama_eagle3.py:350 (hot_token_id stays None); vllm 0.33.0 (run: the map stays at zeros);
        TensorRT-LLM _torch/models/checkpoints/base_weight_mapper.py handle_manual_copy.
    """
    assert ctx.draft is not None
    on_vllm = ctx.engine is not None and family(ctx.engine.name) == "vllm"
    if ctx.draft.algorithm not in (WITH_MAP if on_vllm else ("eagle3", "peagle")):
        return
    if "d2t" in ctx.draft.tensors or not ctx.checkpoint.tensors:
        return
    vocab, small = _sizes(ctx)
    if vocab is None or small is None or small >= vocab:
        return
    mask_there = "t2d" in ctx.draft.tensors
    effect = (
        f"{ctx.engine} refuses the draft"
        if ctx.engine is not None
        and (ctx.engine.name == "trtllm" or ctx.draft.algorithm == "dspark")
        and ctx.load is not None
        and ctx.load.refused
        else f"draft ids are read as target ids 0..{small - 1} without a word"
    )
    yield Hit(
        f"draft_vocab_size {small} is below vocab_size {vocab} and d2t is missing: {effect}",
        tensor="d2t",
        hint="ckpt fix-keys IN OUT derives it from t2d"
        if mask_there
        else "take d2t from the training run's vocabulary mapping",
    )


@check("VOC011", "d2t-not-integers", Severity.ERROR, needs=("draft", "engine"), after=("FIL", "VOC008"))
def not_integers(ctx: Context) -> Iterator[Hit]:
    """d2t isn't a list of integers.

    Checks: d2t has one dimension and an integer dtype.
    Why: its values index the target's embedding. SGLang adds them to row numbers and fails at the first draft (tensors used as indices
        must be integers); vLLM casts them, and a fraction is lost.
    Example: d2t is F32 [32000]
    Fix: Write it as int64.
    References: sglang 0.5.23 srt/models/llama_eagle3.py:350-353, srt/speculative/eagle_worker_v2.py:757-758 (run: loaded as it is);
        vllm 0.33.0 model_executor/models/llama_eagle3.py:385-394 (run: cast).
    """
    assert ctx.draft is not None and ctx.engine is not None
    native = ctx.draft.tensors.get("d2t")
    if native is None or ctx.draft.algorithm not in WITH_MAP:
        return
    info = ctx.checkpoint.tensors[native]
    if info.dtype in INTEGERS and len(info.shape) == 1:
        return
    vllm = family(ctx.engine.name) == "vllm" and len(info.shape) == 1
    yield Hit(
        f"{native} is {info.dtype} {list(info.shape)}, expected a list of integers: "
        + (f"{ctx.engine} casts it" if vllm else "the first draft fails"),
        tensor=native,
        severity=Severity.WARNING if vllm else None,
        hint="write it as int64",
    )


@check("VOC012", "d2t-unset", Severity.ERROR, needs=("draft", "table"), after=("FIL",))
def unset(ctx: Context) -> Iterator[Hit]:
    """d2t of a reduced vocabulary is all zero.

    Checks: with a reduced vocabulary d2t isn't all zero, unless t2d says that the draft has the target's first ids.
    Why: zeros map row i to target id i. That is what a table looks like that was never filled; the draft then proposes other tokens than
        it means.
    Example: d2t is all zero and the draft has 96 of 256 ids: they are read as target ids 0..95
    Fix: Take the table from the training run's vocabulary mapping; ckpt fix-keys derives it from t2d.
    References: sglang 0.5.23 srt/models/llama_eagle3.py:350-353; vllm 0.33.0 model_executor/models/llama_eagle3.py:385-394.
    """
    assert ctx.draft is not None
    d2t = _table(ctx, "d2t")
    vocab, small = _sizes(ctx)
    if not d2t or any(d2t) or vocab is None or small is None or small >= vocab:
        return
    if ctx.draft.algorithm not in WITH_MAP:
        return
    t2d = _table(ctx, "t2d")
    if t2d is not None and tuple(i for i, on in enumerate(t2d) if on) == tuple(range(len(d2t))):
        return
    yield Hit(
        f"d2t is all zero and the draft has {small} of {vocab} ids: they are read as target ids 0..{small - 1}"
        + (", and t2d selects others" if t2d is not None else ""),
        tensor=ctx.draft.tensors["d2t"],
        severity=None if t2d is not None else Severity.WARNING,
        hint="ckpt fix-keys IN OUT derives it from t2d"
        if t2d is not None
        else "right only if the draft was trained on the target's first ids",
    )


@check(
    "VOC013",
    "d2t-without-own-head",
    Severity.ERROR,
    needs=("draft", "engine"),
    engines=("sglang",),
    after=("FIL", "HED008"),
)
def without_own_head(ctx: Context) -> Iterator[Hit]:
    """draft_vocab_size is null and d2t is shorter than the target's vocabulary.

    Checks: with draft_vocab_size null d2t is absent, or has a row for every id.
    Why: SGLang then drafts with the target's whole head and looks each of its ids up in d2t: past the end of the table, a CUDA device
        assert.
    Example: draft_vocab_size is null and d2t has 96 rows for 256 ids
    Fix: Write draft_vocab_size, with its lm_head; or remove d2t.
    References: sglang 0.5.23 srt/models/llama_eagle3.py:306-318, 350-353, srt/speculative/eagle_worker_v2.py:757-758.
    """
    assert ctx.draft is not None
    config = ctx.checkpoint.config or {}
    native = ctx.draft.tensors.get("d2t")
    if native is None or ctx.draft.algorithm != "eagle3" or "draft_vocab_size" not in config:
        return
    rows = ctx.checkpoint.tensors[native].shape[0] if ctx.checkpoint.tensors[native].shape else 0
    vocab = ctx.draft.facts.vocab_size
    if config["draft_vocab_size"] is None and vocab is not None and rows < vocab:
        yield Hit(
            f"draft_vocab_size is null and {native} has {rows} rows for {vocab} ids: SGLang drafts with the target's whole head and looks "
            "past the end of the table",
            tensor=native,
            pointer="/draft_vocab_size",
            hint="write draft_vocab_size and take its lm_head from the training checkpoint, or remove d2t",
        )


@check("VOC008", "d2t-at-full-vocabulary", Severity.ERROR, needs=("draft", "load"), engines=("vllm",))
def full_vocabulary(ctx: Context) -> Iterator[Hit]:
    """d2t in a draft that has the target's whole vocabulary.

    Checks: (vLLM) d2t is there only when the draft's vocabulary is smaller than the target's.
    Why: vLLM 0.33 builds no map for a full vocabulary and raises on the tensor. SGLang takes it.
    Example: d2t is there and the draft has the target's whole vocabulary (256): vLLM raises
    Fix: ckpt fix-keys IN OUT --to vllm leaves it out.
    References: vllm 0.33.0 model_executor/models/llama_eagle3.py:339.
    """
    assert ctx.draft is not None and ctx.load is not None and ctx.engine is not None
    vocab, small = _sizes(ctx)
    if "d2t" in ctx.draft.tensors and vocab is not None and small == vocab and ctx.load.refused:
        yield Hit(
            f"d2t is there and the draft has the target's whole vocabulary ({vocab}): {ctx.engine} raises on it",
            tensor=ctx.draft.tensors["d2t"],
            hint="ckpt fix-keys IN OUT --to vllm leaves it out",
        )


@check("VOC010", "vocabulary-differs", Severity.ERROR, needs=("draft", "target.vocab_size"))
def differs(ctx: Context) -> Iterator[Hit]:
    """The draft's config has another vocabulary than the target.

    Checks: vocab_size equals the target's.
    Why: the engine puts the target's embedding into the draft without comparing; ids then mean other tokens, or shards differ
        under tensor parallelism.
    Example: vocab_size is 160000 and kimi-k2.5 has 163840
    Fix: Use the draft that was trained for this target.
    References: sglang 0.5.23 srt/models/llama.py:910-918 (embedding swapped unchecked); vllm 0.33.0 config/speculative.py:2040-2055
        (checked for draft models only).
    """
    assert ctx.draft is not None and ctx.target is not None
    mine, theirs = ctx.draft.facts.vocab_size, ctx.target.vocab_size
    if mine is None or theirs is None or mine == theirs:
        return
    if ctx.engine is not None and family(ctx.engine.name) == "vllm" and borrows_head(ctx):
        return  # PAR007 says what vLLM does then
    close = abs(mine - theirs) <= PADDING
    yield Hit(
        f"vocab_size is {mine} and {ctx.target.id} has {theirs}"
        + (": one of the two is padded" if close else ": the draft belongs to another model"),
        pointer="/vocab_size",
        severity=Severity.WARNING if close else None,
        hint=None if close else "use the draft that was trained for this target",
    )
