"""What the DFlash family's formats share: names, signatures, and the config block that holds the captured layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckpt_tools.formats.base import Clue, Limit, any_of, has_tensor, no_tensor
from ckpt_tools.formats.canonical import vocabulary
from ckpt_tools.formats.facts import boolean, decoder_facts, id_list, integer, overlay
from ckpt_tools.formats.flat import flat_config
from ckpt_tools.formats.names import NameMap, Row

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.formats.base import WriteRequest
    from ckpt_tools.model import DraftFacts

FAMILY = ("dflash", "dflash2", "domino", "dspark", "xpress")
#: Tensors that make a DFlash head one of its descendants.
MARKS: Mapping[str, tuple[str, ...]] = {
    "dflash2": ("candidate_selector.**",),
    "domino": ("prefix_gru.**", "logit_head.prefix_gru.**", "embed_proj.**", "logit_head.embed_proj.**"),
    "dspark": (
        "markov_head.**", "logit_head.markov_head.**", "confidence_head.**", "logit_head.confidence_head.**",
        "markov_w1.weight", "markov_w2.weight", "confidence_proj.**",
    ),
    "xpress": ("refiner_head.**",),
    "dflare": ("layer_fusion_weights",),
}  # fmt: skip
_ALIASES = (
    Row("encoder.fc.**", "fc.**", read_only=True),
    Row("encoder.output_norm_enc.**", "hidden_norm.**", read_only=True),
    Row("logit_head.**", "**", read_only=True),
)
#: Model-Optimizer's flat names of DSpark's heads.
FLAT_HEADS = (
    Row("markov_w1.**", "markov_head.markov_w1.**", read_only=True),
    Row("markov_w2.**", "markov_head.markov_w2.**", read_only=True),
    Row("gate_proj.**", "markov_head.gate_proj.**", read_only=True),
    Row("joint_proj.**", "markov_head.joint_proj.**", read_only=True),
    Row("confidence_proj.**", "confidence_head.proj.**", read_only=True),
)
SIGNATURE: Clue = any_of(
    "the body of DFlash: fc, then a norm over its output, layers with q/k norms",
    has_tensor("hidden_norm.weight", ""),
    has_tensor("encoder.output_norm_enc.weight", ""),
    has_tensor("candidate_selector.**", ""),
)

#: Facts of the heads, by the names that every framework uses.
HEAD_FIELDS = (
    "conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k", "markov_rank", "markov_head_type",
    "enable_confidence_head", "confidence_head_with_markov", "sample_from_anchor", "shift_label",
    "pure_draft_prefix_len", "gru_hidden_dim", "emb_dim", "xpress_rank", "xpress_mlp_ratio", "num_jacobi_passes",
    "num_target_layers", "use_gemma_norm", "confidence_head_alpha", "attention_mode", "output_multiplier",
    "final_logit_softcapping", "input_embedding_scale", "attention_sink_bias",
)  # fmt: skip
#: Of these, the ones that SGLang and vLLM read in ``dflash_config`` alone (sglang 0.5.23 dflash_utils.py:619-725).
NESTED = (
    "conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k", "output_multiplier",
    "final_logit_softcapping", "attention_sink_bias", "shift_label", "pure_draft_prefix_len", "gru_hidden_dim", "emb_dim",
)  # fmt: skip
#: Of these, the ones that SGLang and vLLM read on top alone (sglang 0.5.23 dspark.py:385-405, vllm 0.33.0 qwen3_dspark.py:209-223).
ON_TOP = (
    "markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov",
    "confidence_head_alpha", "attention_mode", "use_gemma_norm", "input_embedding_scale",
)  # fmt: skip
PROJECTORS: Mapping[str, str] = {"domino": "domino", "dspark": "dspark"}

#: What the target gives: engines that know no draft vocabulary take the whole of it.
TARGETS_OWN = (
    ("embed_tokens.weight", "the target's own embedding, which every reader of this format takes"),
    ("lm_head.weight", "the target's head is used, with the target's whole vocabulary"),
    ("d2t", "the draft's vocabulary is the target's here"),
    ("t2d", "the draft's vocabulary is the target's here"),
)


def names(algorithm: str, *more: Row) -> NameMap:
    """Names of an algorithm of the family: the canonical ones, with the aliases that readers take."""
    return NameMap((*more, *_ALIASES, Row("**", "**")), vocabulary(algorithm))


def only(algorithm: str) -> tuple[Clue, ...]:
    """Clues that tell one algorithm of the family from the others."""
    mine = MARKS.get(algorithm, ())
    own = (
        (any_of(f"{mine[0].split('.')[0]} ({algorithm})", *(has_tensor(p, "") for p in mine), weight=2),)
        if mine
        else ()
    )
    others = [
        no_tensor(p, f"no {p.split('.')[0]} ({a})") for a, ps in MARKS.items() if a != algorithm for p in ps
    ]
    return (*own, *others)


#: Model-Optimizer's names, which other readers drop.
NOT_FLAT = no_tensor("markov_w1.weight", "DSpark's heads aren't under Model-Optimizer's flat names")


def windows(config: Mapping[str, Any]) -> dict[str, Any]:
    """How layers see their block, as facts.

    Readers of flat configs let sliding layers be causal in their block and full ones bidirectional; ``is_causal`` overrules
    that for all layers (sglang 0.5.23 models/dflash.py:156-190). Without sliding layers, false says what is so anyway.
    """
    causal = boolean(config, "is_causal", "causal")
    kinds = config.get("layer_types")
    slides = isinstance(kinds, list) and "sliding_attention" in kinds
    if causal is True:
        return {"is_causal": True}
    return {"sliding_window_non_causal": True} if causal is False and slides else {}


def read_flat(config: Mapping[str, Any]) -> DraftFacts:
    """Facts of a flat DFlash config: the decoder on top, the rest in ``dflash_config`` or on top."""
    block = config.get("dflash_config")
    inner: Mapping[str, Any] = block if isinstance(block, dict) else {}
    both = {**config, **{k: v for k, v in inner.items() if v is not None}}
    ids = id_list(both.get("target_layer_ids"))
    extra = {k: both[k] for k in HEAD_FIELDS if both.get(k) is not None}
    if isinstance(both.get("use_confidence_head"), bool):  # Model-Optimizer's spelling
        extra.setdefault("enable_confidence_head", both["use_confidence_head"])
    facts = decoder_facts(config)
    swa = integer(inner, "swa_window_size") if inner.get("use_swa") else None
    return overlay(
        facts,
        layer_type="qwen3",
        block_size=integer(both, "block_size", "dspark_block_size"),
        mask_token_id=integer(both, "mask_token_id", "dspark_noise_token_id"),
        num_aux=len(ids) if ids else None,
        sliding_window=swa,
        layer_types=("sliding_attention",) * (facts.num_layers or 1)
        if swa and "sliding_attention" not in (facts.layer_types or ())
        else None,
        extra={**facts.extra, **extra, **windows(both)},
    )


def write_flat(request: WriteRequest, architecture: str, *, flat_heads: bool = True) -> dict[str, Any]:
    """A flat config of the family: decoder fields and windows on top, captured layers and mask in ``dflash_config``.

    Args:
        flat_heads: Write the heads' facts on top, as engines read them, or in the block, as SpecForge does.
    """
    facts = request.facts
    config = flat_config(request, architecture, "qwen3")
    block: dict[str, Any] = {"target_layer_ids": list(facts.capture_layers or ())}
    if facts.mask_token_id is not None:
        block["mask_token_id"] = facts.mask_token_id
    if request.algorithm in PROJECTORS:
        block["projector_type"] = PROJECTORS[request.algorithm]
    block |= {k: facts.extra[k] for k in NESTED if k in facts.extra}
    heads = {k: facts.extra[k] for k in ON_TOP if k in facts.extra}
    (config if flat_heads else block).update(heads)
    config["dflash_config"] = block
    if facts.block_size is not None:
        config["block_size"] = facts.block_size
    depth = facts.extra.get("num_target_layers") or (
        request.target.num_hidden_layers if request.target else None
    )
    if depth is not None:
        config["num_target_layers"] = depth
    config["attention_bias"] = bool(facts.attention_bias)
    if facts.layer_types is not None:
        config["layer_types"] = list(facts.layer_types)
    if facts.sliding_window is not None:
        config["sliding_window"] = facts.sliding_window
        config["use_sliding_window"] = True
    if facts.extra.get("is_causal"):
        config["is_causal"] = True
    elif facts.extra.get("sliding_window_non_causal"):
        # Sliding layers that see their whole block; readers have one override for all layers.
        config["is_causal"] = False
    return config


def _anchor(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:  # noqa: ARG001
    if not facts.extra.get("sample_from_anchor"):
        return None
    return (
        "sample_from_anchor is true: the head was trained to predict from its anchor slot on, and DFlash workers shift every "
        "position by one (SGLang ignores the field, vLLM refuses it)"
    )


def _causal(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:  # noqa: ARG001
    return (
        "is_causal is true for all layers, which this format has no field for"
        if facts.extra.get("is_causal")
        else None
    )


def _mask(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:  # noqa: ARG001
    return (
        None
        if facts.mask_token_id is not None
        else "mask_token_id is stated nowhere, and readers of this format need it"
    )


def _capture(facts: DraftFacts, tensors: Mapping[str, str]) -> str | None:  # noqa: ARG001
    return (
        None if facts.capture_layers else "no captured layers are stated, and each reader would take others"
    )


ANCHOR = Limit(
    "PAR008",
    "anchor-layout",
    _anchor,
    "no DFlash worker serves it; retrain with sample_from_anchor false, or keep it in speculators' format",
    algorithms=("dflash", "dflash2", "domino"),
)
CAUSAL = Limit(
    "LAY007", "window-inexpressible", _causal, "keep the draft in z-lab's format", algorithms=FAMILY
)
MASK = Limit(
    "PAR004",
    "mask-token-missing",
    _mask,
    "add mask_token_id as the draft was trained",
    algorithms=(*FAMILY, "peagle"),
)
CAPTURE = Limit(
    "PAR006",
    "target-layers-missing",
    _capture,
    "add target_layer_ids as the draft was trained",
    algorithms=FAMILY,
)
