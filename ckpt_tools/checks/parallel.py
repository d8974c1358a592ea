"""PAR: parallel drafting: P-EAGLE, DFlash, DSpark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_tools.checks.base import Context, Hit, check
from ckpt_tools.engines.history import family
from ckpt_tools.formats.base import pointer
from ckpt_tools.formats.facts import id_list
from ckpt_tools.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

FAMILY = ("dflash", "dflash2", "domino", "dspark", "xpress")


@check("PAR002", "algorithm-not-in-engine", Severity.ERROR, needs=("draft", "engine"))
def not_in_engine(ctx: Context) -> Iterator[Hit]:
    """The engine has no worker for this algorithm.

    Checks: the engine implements the draft's algorithm.
    Why: SGLang has no P-EAGLE or XPress at all: the flag is refused, or an EAGLE-3 worker drafts one token at a time from a head that
        was trained to draft in parallel; so with TensorRT-LLM, which also loses a P-EAGLE draft's embedding and mask_hidden. vLLM
        reads no speculators mtp or xpress folder.
    Example: peagle: no SGLang release has a worker for it
    Fix: Serve with an engine that has it (P-EAGLE: vLLM).
    References: sglang 0.5.23 srt/speculative/spec_info.py:65; vllm 0.33.0 transformers_utils/configs/speculators/base.py:51-56;
        TensorRT-LLM _torch/speculative/utils.py get_spec_worker.
    """
    assert ctx.draft is not None and ctx.engine is not None
    engine = family(ctx.engine.name)
    algorithm = ctx.draft.algorithm
    if engine in ("sglang", "trtllm") and algorithm in ("peagle", "xpress"):
        who = "no SGLang release has" if engine == "sglang" else "TensorRT-LLM has no"
        yield Hit(
            f"{algorithm}: {who} {'a ' if engine == 'sglang' else ''}worker for it",
            pointer="/speculators_model_type" if ctx.draft.format == "speculators" else "/architectures",
            hint="vLLM serves P-EAGLE (ckpt fix-keys IN OUT --to vllm)" if algorithm == "peagle" else None,
        )
    elif engine == "vllm" and ctx.draft.format == "speculators" and algorithm in ("mtp", "xpress", "eagle"):
        yield Hit(
            f"speculators_model_type {algorithm}: vLLM reads no such folder",
            pointer="/speculators_model_type",
            hint="stitch MTP weights back into the target" if algorithm == "mtp" else None,
        )


def layer_ids(ctx: Context) -> tuple[tuple[int, ...] | None, str]:
    """(ids of the target layers that a DFlash or DSpark draft reads, where they stand): outputs, but for speculators' field."""
    assert ctx.draft is not None
    config = ctx.checkpoint.config or {}
    paths = (
        ("aux_hidden_state_layer_ids",)
        if ctx.draft.format == "speculators"
        else ("dflash_config/target_layer_ids", "target_layer_ids", "dspark_target_layer_ids")
    )
    for path in paths:
        ids = id_list(pointer(config, path))
        if ids:
            return ids, path
    return None, paths[0]


def borrows_head(ctx: Context) -> bool:
    """Whether a DFlash draft has neither a head nor a map of its own."""
    return (
        ctx.draft is not None
        and ctx.draft.algorithm in ("dflash", "dflash2")
        and not {"d2t", "lm_head.weight"} & set(ctx.draft.tensors)
    )


def _block_refused(ctx: Context) -> bool:
    """Whether dflash_config is null, which CFG005 says of vLLM."""
    config = ctx.checkpoint.config or {}
    vllm = ctx.engine is not None and family(ctx.engine.name) == "vllm"
    return vllm and "dflash_config" in config and config["dflash_config"] is None


def mask_token(ctx: Context) -> tuple[int | None, str]:
    """(mask token id, where it stands)."""
    config = ctx.checkpoint.config or {}
    for path in (
        "dflash_config/mask_token_id",
        "mask_token_id",
        "dspark_noise_token_id",
        "pard_token",
        "ptd_token_id",
    ):
        value = pointer(config, path)
        if isinstance(value, int) and not isinstance(value, bool):
            return value, "/" + path
    return None, ""


@check("PAR003", "mask-token-outside-vocabulary", Severity.ERROR, needs=("draft", "config"))
def mask_outside(ctx: Context) -> Iterator[Hit]:
    """The mask token has no row in the target's embedding.

    Checks: mask_token_id is below the target's vocabulary.
    Why: SGLang's worker refuses it; elsewhere it indexes past the embedding.
    Example: mask_token_id 260 is outside the target's vocabulary (256)
    Fix: Write the id that the draft was trained with.
    References: sglang 0.5.23 srt/arg_groups/speculative_hook.py:1391-1471, srt/speculative/dspark_components/dspark_config.py:119-128.
    """
    assert ctx.draft is not None
    if ctx.draft.algorithm not in (*FAMILY, "peagle"):
        return
    value, at = mask_token(ctx)
    vocab = (ctx.target.vocab_size if ctx.target else None) or ctx.draft.facts.vocab_size
    if value is not None and vocab is not None and not 0 <= value < vocab:
        yield Hit(
            f"mask_token_id {value} is outside the target's vocabulary ({vocab} ids)",
            pointer=at,
            hint="write the id that the draft was trained with",
        )


@check("PAR004", "mask-token-missing", Severity.ERROR, needs=("draft", "config"), after=("PAR002",))
def mask_missing(ctx: Context) -> Iterator[Hit]:
    """A parallel draft without a mask token.

    Checks: DFlash, DSpark and P-EAGLE configs state the mask token's id where the engine reads it.
    Why: vLLM refuses to start; SGLang falls back to a token of the tokenizer for DFlash and refuses DSpark.
    Example: no mask_token_id: vLLM refuses (Model config must specify …)
    Fix: Write the id that the draft was trained with (SpecForge keeps P-EAGLE's in training_state.pt).
    References: vllm 0.33.0 v1/worker/gpu/spec_decode/utils.py:92-114; sglang 0.5.23 dspark_config.py:119-128.
    """
    assert ctx.draft is not None
    if (
        ctx.draft.algorithm not in (*FAMILY, "peagle")
        or mask_token(ctx)[0] is not None
        or _block_refused(ctx)
    ):
        return
    sglang_dflash = (
        ctx.engine is not None
        and family(ctx.engine.name) == "sglang"
        and ctx.draft.algorithm in ("dflash", "dflash2", "domino")
    )
    yield Hit(
        "mask_token_id is stated nowhere: "
        + (
            "SGLang looks for a mask token in the target's tokenizer"
            if sglang_dflash
            else "the engine refuses to start"
        ),
        file="config.json",
        severity=Severity.WARNING if sglang_dflash else None,
        hint="write the id that the draft was trained with",
    )


@check("PAR005", "mask-token-is-special", Severity.WARNING, needs=("draft", "config"))
def mask_special(ctx: Context) -> Iterator[Hit]:
    """The mask token is a token that text contains.

    Checks: mask_token_id isn't the bos, eos or pad id of draft or target.
    Why: the head was trained to see the mask where a token is missing; a real token of that id is read as one.
    Example: ptd_token_id 2 is the eos_token_id
    Fix: Check the id against training.
    References: vllm 0.33.0 (run: nothing compares); vllm-project/speculators#393.
    """
    assert ctx.draft is not None
    value, at = mask_token(ctx)
    if value is None or ctx.draft.algorithm not in (*FAMILY, "peagle"):
        return
    configs = [ctx.checkpoint.config or {}, (ctx.target.config or {}) if ctx.target else {}]
    for config in configs:
        for key in ("eos_token_id", "bos_token_id"):
            ids = config.get(key)
            listed = ids if isinstance(ids, list) else [ids]
            if value in listed:
                yield Hit(
                    f"{at.rsplit('/', 1)[-1]} {value} is the {key}",
                    pointer=at,
                    hint="check the id against training",
                )
                return


@check("PAR006", "target-layers-missing", Severity.ERROR, needs=("draft", "config"), after=("CAP006", "FIL"))
def layers_missing(ctx: Context) -> Iterator[Hit]:
    """A DFlash draft doesn't say which target layers it reads.

    Checks: target_layer_ids stand where the engine reads them, and fc takes as many.
    Why: SGLang computes a default list of num_hidden_layers layers, vLLM takes the target's three; the right number can still be the
        wrong layers, and the wrong number is refused.
    Example: dflash_config.target_layer_ids is missing; fc takes 3 x 64 and needs exactly 3 layers that can't be guessed
    Fix: Write dflash_config.target_layer_ids as the draft was trained.
    References: sglang 0.5.23 srt/speculative/dflash_utils.py:348-385, 556-571; vllm 0.33.0 qwen3_dflash.py:84-93 (both run).
    """
    assert ctx.draft is not None
    if ctx.draft.algorithm not in FAMILY:
        return
    config = ctx.checkpoint.config or {}
    speculators = ctx.draft.format == "speculators"
    ids, path = layer_ids(ctx)
    if ids is not None or _block_refused(ctx):
        return
    takes = ctx.draft.facts.num_aux
    other = "aux_hidden_state_layer_ids"
    note = (
        f" ({other} is speculators' spelling, which this engine ignores)"
        if not speculators and id_list(config.get(other))
        else ""
    )
    fc = ctx.draft.tensors.get("fc.weight")
    yield Hit(
        f"{path.replace('/', '.')} is missing{note}"
        + (
            f"; {fc} takes {takes} x {ctx.draft.facts.hidden_size} and needs exactly {takes} layers that can't be guessed"
            if takes and fc
            else ""
        ),
        file="config.json",
        pointer="/dflash_config" if isinstance(config.get("dflash_config"), dict) else None,
        hint=f"write {path.replace('/', '.')} as the draft was trained",
    )


@check(
    "PAR007",
    "dflash-vocabulary",
    Severity.WARNING,
    needs=("draft", "engine", "target.vocab_size"),
    engines=("vllm",),
)
def dflash_vocabulary(ctx: Context) -> Iterator[Hit]:
    """A DFlash draft with another vocabulary than its target and no map.

    Checks: vocab_size equals the target's when there is neither lm_head nor d2t.
    Why: vLLM builds a map that stays zero and cuts the target's head; some versions skip sharing the head.
    Example: vocab_size is 248, the target's 256, and there is neither lm_head nor d2t
    Fix: Write the target's (padded) vocabulary.
    References: vllm 0.33.0 model_executor/models/qwen3_dflash.py (run); vllm#46435.
    """
    assert ctx.draft is not None and ctx.target is not None
    mine, theirs = ctx.draft.facts.vocab_size, ctx.target.vocab_size
    if mine in (None, theirs) or not borrows_head(ctx):
        return
    yield Hit(
        f"vocab_size is {mine}, the target's {theirs}, and there is neither lm_head nor d2t: the target's head is cut to {mine} rows",
        pointer="/vocab_size",
        hint=f'write "vocab_size": {theirs}',
    )


@check("PAR008", "anchor-layout", Severity.ERROR, needs=("draft", "engine", "config"))
def anchor(ctx: Context) -> Iterator[Hit]:
    """A DFlash draft that samples from its anchor slot.

    Checks: sample_from_anchor isn't true for DFlash.
    Why: SGLang ignores the flag and shifts every position (accept length about 1.06 with a healthy server); vLLM refuses to start.
    Example: sample_from_anchor is true: SGLang ignores it and shifts every position
    Fix: No engine serves it; retrain with sample_from_anchor false, or as DSpark.
    References: sglang#30982, #40144; vllm 0.33.0 v1/worker/gpu/spec_decode/dflash/speculator.py:83-88.
    """
    assert ctx.draft is not None and ctx.engine is not None
    config = ctx.checkpoint.config or {}
    if (
        ctx.draft.algorithm not in ("dflash", "dflash2", "domino")
        or config.get("sample_from_anchor") is not True
    ):
        return
    sglang = family(ctx.engine.name) == "sglang"
    yield Hit(
        "sample_from_anchor is true: "
        + ("SGLang ignores it and shifts every position" if sglang else "vLLM raises ValueError at start-up"),
        pointer="/sample_from_anchor",
        hint="no engine serves it; retrain with sample_from_anchor false",
    )


@check("PAR009", "block-causality", Severity.ERROR, needs=("draft", "engine", "config"), engines=("vllm",))
def causality(ctx: Context) -> Iterator[Hit]:
    """vLLM makes every layer of a speculators DFlash draft causal.

    Checks: a speculators dflash draft with full-attention layers doesn't say sliding_window_non_causal false.
    Why: vLLM turns false into causal for all layers, full-attention ones included, which were trained bidirectional.
    Example: sliding_window_non_causal is false and 2 layers are full_attention: vLLM runs them causally
    Fix: Write true when every layer is full attention (it has no meaning in training then).
    References: vllm 0.33.0 transformers_utils/configs/speculators/algos.py:90-126 (run); vLLM PR #56692 isn't in 0.33.0.
    """
    assert ctx.draft is not None
    config = ctx.checkpoint.config or {}
    if ctx.draft.format != "speculators" or ctx.draft.algorithm not in ("dflash", "dflash2"):
        return
    kinds = ctx.draft.facts.layer_types or ()
    full = [k for k in kinds if k == "full_attention"]
    if config.get("sliding_window_non_causal") is False and full:
        yield Hit(
            f"sliding_window_non_causal is false and {len(full)} of {len(kinds)} layers are full_attention: vLLM runs them causally, and they "
            "were trained bidirectional",
            pointer="/sliding_window_non_causal",
            hint="write true" if len(full) == len(kinds) else "vLLM can't express this mix",
        )


@check("PAR010", "peagle-mask-missing", Severity.ERROR, needs=("draft",), after=("FIL",))
def mask_hidden_missing(ctx: Context) -> Iterator[Hit]:
    """A P-EAGLE draft without its mask_hidden tensor.

    Checks: mask_hidden is there with one value per captured feature.
    Why: vLLM raises when parallel drafting is on; speculators loads uninitialised memory.
    Example: mask_hidden is missing
    Fix: Take the tensor from the training checkpoint.
    References: vllm 0.33.0 model_executor/models/llama_eagle3.py:431-442 (run).
    """
    assert ctx.draft is not None
    if ctx.draft.algorithm == "peagle" and "mask_hidden" not in ctx.draft.tensors and ctx.checkpoint.tensors:
        yield Hit("mask_hidden is missing: vLLM raises when parallel drafting is on", tensor="mask_hidden")


@check(
    "PAR016",
    "parallel-drafting-by-flag",
    Severity.INFO,
    needs=("draft", "engine", "load"),
    engines=("vllm",),
    after=("CFG002", "CFG003", "PAR010"),
)
def by_flag(ctx: Context) -> Iterator[Hit]:
    """vLLM drafts in parallel only when the launch says so.

    Checks: (info) how a P-EAGLE draft has to be launched.
    Why: vLLM takes parallel_drafting from --speculative-config, not from the draft; without it mask_hidden is dropped with a warning and
        the head runs as a sequential EAGLE-3 head.
    Example: --speculative-config needs "parallel_drafting": true
    Fix: ckpt launch writes it. `vllm serve` of a speculators folder itself sets it.
    References: vllm 0.33.0 config/speculative.py:1581-1582, model_executor/models/llama_eagle3.py:431-442 (run).
    """
    assert ctx.draft is not None and ctx.load is not None
    if ctx.draft.algorithm != "peagle" or ctx.launch is not None or ctx.load.refused:
        return
    yield Hit(
        'P-EAGLE: --speculative-config needs "parallel_drafting": true, which vLLM doesn\'t take from the draft; without it the head runs '
        "sequentially, with only a warning",
        hint="ckpt launch writes it",
    )


@check(
    "PAR017",
    "block-size-unstated",
    Severity.WARNING,
    needs=("draft", "config", "engine"),
    engines=("sglang",),
    after=("CFG002", "CFG003", "PAR002"),
)
def block_size(ctx: Context) -> Iterator[Hit]:
    """A parallel draft doesn't say how many tokens its block has.

    Checks: block_size stands at the top level or in dflash_config, or the launch gives it.
    Why: SGLang takes 16 for DFlash and 7 for DSpark. A block of another size than in training puts mask tokens where the head never saw
        them.
    Example: block_size is stated nowhere: SGLang takes 16
    Fix: Write the block size that the draft was trained with.
    References: sglang 0.5.23 srt/speculative/dflash_utils.py:588-813, srt/arg_groups/speculative_hook.py:287-446, 666-883.
    """
    assert ctx.draft is not None
    config = ctx.checkpoint.config or {}
    if ctx.draft.algorithm not in FAMILY or ctx.draft.format == "speculators":
        return
    places = ("block_size", "dflash_config/block_size", "dspark_block_size")
    flags = (
        "--speculative-dflash-block-size",
        "--speculative-dspark-block-size",
        "--speculative-num-draft-tokens",
    )
    if any(pointer(config, p) is not None for p in places):
        return
    if ctx.launch is not None and any(ctx.launch.given(f) for f in flags):
        return
    yield Hit(
        f"block_size is stated nowhere: SGLang takes {7 if ctx.draft.algorithm == 'dspark' else 16}",
        file="config.json",
        hint="write the block size that the draft was trained with",
    )
