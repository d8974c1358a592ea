"""HED: embed_tokens, lm_head, tying."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_tools.checks.base import Context, Hit, check
from ckpt_tools.checks.parallel import FAMILY as PARALLEL
from ckpt_tools.checks.parallel import borrows_head
from ckpt_tools.engines.history import family, first_release, holds
from ckpt_tools.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator


@check(
    "HED001", "lm-head-missing", Severity.ERROR, needs=("draft", "load"), after=("FIL", "KEY003", "HED002")
)
def head_missing(ctx: Context) -> Iterator[Hit]:
    """The draft's own head is missing.

    Checks: an EAGLE-3 draft with a vocabulary of its own has lm_head.weight; so has a DFlash or DSpark draft on vLLM.
    Why: SGLang builds a head of draft_vocab_size rows and leaves it uninitialised; vLLM takes the first rows of the target's head
        and maps them through d2t; TensorRT-LLM takes all of them, and d2t has no entry for most. All start, and accept nothing.
    Example: lm_head.weight is missing and draft_vocab_size is 256: SGLang leaves the head uninitialised (accept length 1.00)
    Fix: Take the tensor from the training checkpoint; with the target's own vocabulary, draft_vocab_size: null shares its head.
    References: sglang 0.5.23 srt/models/llama_eagle3.py:303-318 (run); vllm 0.33.0 v1/worker/gpu/spec_decode/eagle/utils.py:107-119
        (run); TensorRT-LLM _torch/models/modeling_speculative.py Eagle3ForCausalLM.load_weights_from_target_model.
    """
    assert ctx.draft is not None and ctx.load is not None
    facts = ctx.draft.facts
    engine = family(ctx.engine.name if ctx.engine else "")
    own = ctx.draft.algorithm in ("eagle3", "peagle") or (
        engine == "vllm" and ctx.draft.algorithm in PARALLEL
    )
    if not own or "lm_head.weight" in ctx.draft.tensors or borrows_head(ctx):
        return
    if not ctx.checkpoint.tensors or (ctx.load.refused and ctx.draft.algorithm != "dspark"):
        return
    size = facts.draft_vocab_size
    stated = (ctx.checkpoint.config or {}).get("draft_vocab_size")
    unfilled = any(f.filled_by == "nothing" and "lm_head" in n for n, f in ctx.load.parameters.items())
    if unfilled and not ctx.load.refused:
        yield Hit(
            f"lm_head.weight is missing and draft_vocab_size is {stated}: {ctx.engine} builds a head of its own and leaves it "
            "uninitialised; accept length is exactly 1.00",
            tensor="lm_head.weight",
            hint="take it from the training checkpoint"
            + ("; null shares the target's head" if size == facts.vocab_size and engine == "sglang" else ""),
        )
    elif engine != "sglang" and size is not None and facts.vocab_size is not None and size < facts.vocab_size:
        takes = (
            f"the target's whole head, and d2t maps {size} of its rows"
            if engine == "trtllm"
            else f"the first {size} rows of the target's head and maps them through d2t"
        )
        effect = "refuses the draft" if ctx.load.refused else f"takes {takes}"
        yield Hit(
            f"lm_head.weight is missing and draft_vocab_size {size} is below vocab_size {facts.vocab_size}: {ctx.engine} {effect}",
            tensor="lm_head.weight",
            hint="take it from the training checkpoint",
        )


@check("HED002", "tied-embeddings", Severity.ERROR, needs=("draft", "engine"), engines=("sglang", "trtllm"))
def tied(ctx: Context) -> Iterator[Hit]:
    """tie_word_embeddings is true in a draft.

    Checks: tie_word_embeddings is false or absent.
    Why: SGLang makes the embedding the head, drops the draft's lm_head and cuts the logits to draft_vocab_size: acceptance is
        zero. For EAGLE-1 heads it deletes the one shared weight twice and raises. TensorRT-LLM raises while building an EAGLE-3
        head: the draft has no embedding yet to tie it to. The flag is often copied from a small target.
    Example: tie_word_embeddings is true and lm_head.weight has 96 rows of its own
    Fix: Set it to false; ckpt fix-keys does.
    References: sglang 0.5.23 srt/models/llama_eagle3.py:303 (run), srt/models/llama_eagle.py set_embed_and_head (run); sglang#33964,
        SpecForge#140; TensorRT-LLM _torch/models/modeling_utils.py DecoderModelForCausalLM.__init__.
    """
    assert ctx.draft is not None
    config = ctx.checkpoint.config or {}
    if config.get("tie_word_embeddings") is not True or ctx.draft.format == "speculators":
        return
    if ctx.engine is not None and ctx.engine.name == "trtllm":
        if ctx.load is not None and ctx.load.refused and "tie_word_embeddings" in ctx.load.refused:
            yield Hit(
                f"tie_word_embeddings is true: {ctx.engine} raises {ctx.load.refused}",
                pointer="/tie_word_embeddings",
                hint='set "tie_word_embeddings": false; ckpt fix-keys IN OUT does',
            )
        return
    if ctx.draft.algorithm == "eagle3" and ctx.draft.facts.layer_type != "mla":
        head = ctx.draft.tensors.get("lm_head.weight")
        rows = ctx.checkpoint.tensors[head].shape[0] if head else None
        yield Hit(
            "tie_word_embeddings is true: SGLang makes the target's embedding the head"
            + (f" and drops {head} with its {rows} rows" if head else "")
            + "; acceptance is zero",
            pointer="/tie_word_embeddings",
            hint='set "tie_word_embeddings": false; ckpt fix-keys IN OUT does',
        )
    elif ctx.draft.algorithm == "eagle":
        yield Hit(
            "tie_word_embeddings is true: handing over embedding and head, SGLang deletes the one shared weight twice and raises "
            "AttributeError",
            pointer="/tie_word_embeddings",
            hint='set "tie_word_embeddings": false',
        )


@check(
    "HED005",
    "embedding-replaced",
    Severity.ERROR,
    needs=("draft", "engine", "same", "target.embed_tensor"),
    after=("SHP003", "VOC010"),
)
def embedding_replaced(ctx: Context) -> Iterator[Hit]:
    """The draft's embedding or head isn't the target's.

    Checks: (with the target's shards at hand) embed_tokens.weight and a full-vocabulary lm_head.weight have the shape of the target's
        matrices; the embedding's values are the target's (a few rows are compared, all with --deep).
    Why: SGLang and TensorRT-LLM put the target's embedding in its place unless the widths differ; a head trained with another one
        drafts worse. vLLM keeps a draft's own: right if it was trained, wrong if it is a stale or untrained copy.
    Example: embed_tokens.weight differs from the target's model.embed_tokens.weight
    Fix: Serve with vLLM if it was trained; else take it from the target, or leave it out.
    References: sglang 0.5.23 srt/speculative/eagle_worker_v2.py:353-363; TensorRT-LLM _torch/models/modeling_speculative.py
        Eagle3DraftModel.__init__, Eagle3ForCausalLM.load_weights_from_target_model; vllm 0.33.0 v1/worker/gpu/spec_decode/eagle/utils.py:
        45-77.
    """
    assert ctx.draft is not None and ctx.target is not None and ctx.same is not None
    yield from _head_shape(ctx)
    native, theirs = ctx.draft.tensors.get("embed_tokens.weight"), ctx.target.embed_tensor
    facts = ctx.draft.facts
    if native is None or theirs is None or facts.target_hidden_size not in (None, facts.hidden_size):
        return
    name = ctx.engine.name if ctx.engine is not None else ""
    if ctx.own_class:
        return
    if ctx.same(native, theirs) is False:
        mine = ctx.checkpoint.tensors[native].shape
        other = (
            ctx.target_tensors[theirs].shape if ctx.target_tensors and theirs in ctx.target_tensors else mine
        )
        if mine != other:
            yield Hit(
                f"{native} is {list(mine)} and the target's {theirs} is {list(other)}: the draft belongs to another model",
                tensor=native,
            )
        elif family(name) == "vllm":
            trained = facts.embed_requires_grad or ctx.draft.algorithm == "peagle"
            yield Hit(
                f"{native} differs from the target's {theirs}: vLLM keeps the draft's own, which is right only if it was trained",
                tensor=native,
                severity=Severity.INFO if trained else Severity.WARNING,
                hint="if it is an old copy, remove it: vLLM then shares the target's",
            )
        else:
            yield Hit(
                f"{native} differs from the target's {theirs}: {'SGLang' if family(name) == 'sglang' else name} replaces it, and if "
                "it was trained, that is lost",
                tensor=native,
                severity=None if facts.embed_requires_grad else Severity.WARNING,
                hint="vLLM keeps a draft's own embedding",
            )


def _head_shape(ctx: Context) -> Iterator[Hit]:
    """A head of the target's whole vocabulary that has another shape than the target's."""
    assert ctx.draft is not None and ctx.target is not None
    native, theirs = ctx.draft.tensors.get("lm_head.weight"), ctx.target.lm_head_tensor
    facts = ctx.draft.facts
    if native is None or theirs is None or ctx.target_tensors is None or theirs not in ctx.target_tensors:
        return
    mine, other = ctx.checkpoint.tensors[native].shape, ctx.target_tensors[theirs].shape
    whole = "d2t" not in ctx.draft.tensors and facts.draft_vocab_size in (None, facts.vocab_size)
    if whole and len(mine) == len(other) == 2 and mine[0] != other[0] and facts.vocab_size == mine[0]:
        yield Hit(
            f"{native} has {mine[0]} rows and the target's {theirs} has {other[0]}: row i of one isn't row i of the other, or one is padded",
            tensor=native,
            severity=Severity.WARNING,
            hint="use the draft that was trained for this target",
        )


@check(
    "HED006", "embedding-needed", Severity.ERROR, needs=("draft", "engine"), after=("FIL", "KEY003", "SHP001")
)
def embedding_needed(ctx: Context) -> Iterator[Hit]:
    """A draft of another width than its target lacks its own embedding.

    Checks: with target_hidden_size different from hidden_size there is embed_tokens.weight.
    Why: the target's embedding doesn't fit. SGLang leaves the draft's uninitialised; vLLM's default runner fails in the forward
        pass, its older one keeps uninitialised memory.
    Example: hidden_size 48 differs from the target's 64 and embed_tokens.weight is missing
    Fix: Take the tensor from the training checkpoint.
    References: sglang 0.5.23 srt/models/llama.py:910-918; vllm 0.33.0 v1/worker/gpu/spec_decode/eagle/utils.py:18-77,
        v1/spec_decode/llm_base_proposer.py:1476-1498.
    """
    assert ctx.draft is not None
    facts = ctx.draft.facts
    wide = ctx.target.hidden_size if ctx.target is not None else None
    theirs = facts.target_hidden_size or wide
    if (
        facts.hidden_size is None
        or theirs in (None, facts.hidden_size)
        or "embed_tokens.weight" in ctx.draft.tensors
    ):
        return
    if ctx.draft.algorithm not in ("eagle3", "peagle") or not ctx.checkpoint.tensors:
        return
    yield Hit(
        f"hidden_size {facts.hidden_size} differs from the target's {theirs} and embed_tokens.weight is missing: the target's "
        "embedding doesn't fit and the draft's stays uninitialised",
        tensor="embed_tokens.weight",
        hint="take it from the training checkpoint",
    )


@check("HED007", "speculators-embedding-missing", Severity.INFO, needs=("draft",))
def speculators_embedding(ctx: Context) -> Iterator[Hit]:
    """A speculators EAGLE-3 folder without an embedding.

    Checks: a speculators eagle3 or peagle folder holds embed_tokens.weight.
    Why: engines share the target's, so serving works; speculators itself loads uninitialised memory without a message.
    Example: embed_tokens.weight is missing: engines share the target's, speculators itself loads uninitialised memory
    Fix: Nothing for serving; to load it with speculators, add the target's embedding.
    References: speculators 0.9.0 models/eagle3/core.py:37-42, model.py:73-79 (run).
    """
    assert ctx.draft is not None
    if ctx.draft.format != "speculators" or ctx.draft.algorithm not in ("eagle3", "peagle"):
        return
    if "embed_tokens.weight" not in ctx.draft.tensors and ctx.checkpoint.tensors:
        yield Hit(
            "embed_tokens.weight is missing: engines share the target's; speculators itself would load uninitialised memory",
            tensor="embed_tokens.weight",
        )


@check("HED008", "draft-vocab-size-missing", Severity.ERROR, needs=("draft", "engine"), after=("FIL",))
def size_missing(ctx: Context) -> Iterator[Hit]:
    """draft_vocab_size is missing or null.

    Checks: config.json states draft_vocab_size, and it is the head's number of rows.
    Why: SGLang's Llama class reads it as an attribute and raises when the key is missing; with null it takes the target's head and
        drops the draft's. vLLM and TensorRT-LLM take vocab_size, and then refuse the smaller head.
    Example: draft_vocab_size is missing; lm_head.weight has 96 rows
    Fix: Add it; ckpt fix-keys does.
    References: sglang 0.5.23 srt/models/llama_eagle3.py:306-318 (run: AttributeError); vllm 0.33.0 llama_eagle3.py (run).
    """
    assert ctx.draft is not None and ctx.engine is not None
    config = ctx.checkpoint.config
    if config is None or ctx.draft.algorithm != "eagle3":
        return
    flat = config.get("draft_vocab_size")
    if isinstance(flat, int):
        return
    head = ctx.draft.tensors.get("lm_head.weight")
    rows = ctx.checkpoint.tensors[head].shape[0] if head else None
    sglang = family(ctx.engine.name) == "sglang"
    present = "draft_vocab_size" in config
    refused = ctx.load is not None and ctx.load.refused is not None
    vocab = ctx.draft.facts.vocab_size
    if present and sglang and (rows is None or rows == vocab) and not refused:
        return  # null on purpose: the target's head is shared
    if present and sglang and holds("vocab.draft_vocab_null", ctx.engine) is False:
        yield Hit(
            f"draft_vocab_size is null: SGLang shares the target's head then from {first_release('vocab.draft_vocab_null')} on, and this is "
            f"{ctx.engine.version}",
            pointer="/draft_vocab_size",
            hint=f"serve with sglang >= {first_release('vocab.draft_vocab_null')}",
        )
        return
    if present and sglang and (rows is None or rows == vocab):
        return  # something else is refused
    if not sglang and (not refused or ctx.engine.name == "trtllm") and (rows is None or rows == vocab):
        return
    if sglang and not present and ctx.draft.facts.layer_type == "mla" and (rows is None or rows == vocab):
        return
    shown = "null" if present else "missing"
    effect = (
        "SGLang takes the target's head and drops the draft's"
        if sglang and (present or ctx.draft.facts.layer_type == "mla")
        else "SGLang raises AttributeError: 'LlamaConfig' object has no attribute 'draft_vocab_size'"
        if sglang
        else f"{ctx.engine} takes vocab_size and refuses the smaller head"
    )
    yield Hit(
        f"draft_vocab_size is {shown}"
        + (f"; lm_head.weight has {rows} rows (vocab_size {vocab})" if rows is not None else "")
        + f". {effect}",
        pointer="/draft_vocab_size" if present else None,
        file="config.json",
        tensor=head,
        hint=f'write "draft_vocab_size": {rows}' if rows is not None else "write the head's number of rows",
    )
