"""What the DFlash family's formats share: names, signatures, and the config block that holds the captured layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckpt_tools.formats.base import Clue, any_of, has_tensor, no_tensor
from ckpt_tools.formats.canonical import vocabulary
from ckpt_tools.formats.facts import decoder_facts, id_list, integer, overlay
from ckpt_tools.formats.names import NameMap, Row

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.model import DraftFacts

#: Tensors that make a DFlash head one of its descendants.
MARKS: Mapping[str, str] = {
    "dflash2": "candidate_selector.**",
    "domino": "prefix_gru.**",
    "dspark": "markov_head.**",
    "xpress": "refiner_head.**",
}
_ALIASES = (
    Row("encoder.fc.**", "fc.**", read_only=True),
    Row("encoder.output_norm_enc.**", "hidden_norm.**", read_only=True),
    Row("logit_head.**", "**", read_only=True),
)
SIGNATURE: Clue = any_of(
    "the body of DFlash: fc, then a norm over its output, layers with q/k norms",
    has_tensor("hidden_norm.weight", ""),
    has_tensor("encoder.output_norm_enc.weight", ""),
    has_tensor("candidate_selector.**", ""),
)

#: Fields that stand in dflash_config or, as a fallback, on top.
BLOCK_FIELDS = ("block_size", "mask_token_id", "num_target_layers")
#: Facts of the heads, by the names that every framework uses.
HEAD_FIELDS = (
    "conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k", "markov_rank", "markov_head_type",
    "enable_confidence_head", "confidence_head_with_markov", "sample_from_anchor", "sliding_window_non_causal",
    "is_causal", "projector_type", "shift_label", "pure_draft_prefix_len", "gru_hidden_dim", "emb_dim", "xpress_rank",
    "xpress_mlp_ratio", "num_jacobi_passes", "num_target_layers", "use_gemma_norm", "confidence_head_alpha",
    "attention_mode", "output_multiplier", "final_logit_softcapping",
)  # fmt: skip


def names(algorithm: str) -> NameMap:
    """Names of an algorithm of the family: the canonical ones, with the aliases that readers take."""
    return NameMap((*_ALIASES, Row("**", "**")), vocabulary(algorithm))


def only(algorithm: str) -> tuple[Clue, ...]:
    """Clues that tell one algorithm of the family from the others."""
    mine = MARKS.get(algorithm)
    own = (has_tensor(mine, f"{mine.split('.')[0]} ({algorithm})", 2),) if mine else ()
    return (*own, *(no_tensor(p, f"no {p.split('.')[0]} ({a})") for a, p in MARKS.items() if a != algorithm))


def read_flat(config: Mapping[str, Any]) -> DraftFacts:
    """Facts of a flat DFlash config: the decoder on top, the rest in ``dflash_config`` or on top."""
    block = config.get("dflash_config")
    inner: Mapping[str, Any] = block if isinstance(block, dict) else {}
    both = {**config, **inner}
    ids = id_list(both.get("target_layer_ids"))
    extra = {k: both[k] for k in HEAD_FIELDS if both.get(k) is not None}
    facts = decoder_facts(config)
    return overlay(
        facts,
        layer_type="qwen3",
        block_size=integer(both, "block_size", "dspark_block_size"),
        mask_token_id=integer(both, "mask_token_id", "dspark_noise_token_id"),
        num_aux=len(ids) if ids else None,
        extra={**facts.extra, **extra},
    )
