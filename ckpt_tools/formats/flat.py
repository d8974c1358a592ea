"""Writing a flat decoder config (SGLang, vLLM, EAGLE, SpecForge): canonical facts plus what the source says beside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckpt_tools.formats.rope import write_rope

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.formats.base import WriteRequest

#: Fields that ckpt writes from canonical facts; a source's own spelling of them is never copied.
OWNED = frozenset(
    {
        "architectures", "auto_map", "model_type", "num_hidden_layers", "hidden_size", "target_hidden_size",
        "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "vocab_size",
        "draft_vocab_size", "eagle_config", "eagle_aux_hidden_state_layer_ids", "num_aux_hidden_states",
        "norm_before_residual", "norm_before_fc", "fc_norm", "use_aux_norm", "norm_output", "rope_theta",
        "rope_scaling", "rope_parameters", "partial_rotary_factor", "max_position_embeddings", "sliding_window",
        "use_sliding_window", "layer_types", "max_window_layers", "hidden_act", "rms_norm_eps", "attention_bias",
        "mlp_bias", "bias", "tie_word_embeddings", "dtype", "torch_dtype", "embed_requires_grad",
        "transformer_layer_config", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
        "v_head_dim", "method", "model", "transformers_version", "dflash_config", "block_size", "dspark_block_size",
        "mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id", "parallel_drafting", "target_layer_ids",
        "dspark_target_layer_ids", "aux_hidden_state_layer_ids", "sample_from_anchor", "sliding_window_non_causal",
        "is_causal", "projector_type", "markov_rank", "markov_head_type", "enable_confidence_head",
        "confidence_head_with_markov", "confidence_head_alpha", "conv_kernel_size", "conv_group_size", "selector_rank",
        "selector_top_k", "xpress_rank", "xpress_mlp_ratio", "num_jacobi_passes", "num_target_layers", "shift_label",
        "pure_draft_prefix_len", "gru_hidden_dim", "emb_dim", "attention_mode", "num_nextn_predict_layers",
        "num_aux_layers", "target_model_type", "quantization_config", "compression_config", "medusa", "modal_type",
        "use_mrope", "fusion_bias", "layernorms", "transformer_layer_architecture", "has_own_lm_head",
    }
)  # fmt: skip

#: Fields that only their own framework reads, with the reason for leaving them behind.
FRAMEWORK_ONLY: Mapping[str, str] = {
    "speculators_config": "speculators' own block; the verifier is recorded in conversion.json",
    "speculators_model_type": "speculators' own discriminator",
    "speculators_version": "speculators' own version",
    "auto_map": "points at Python code that is not part of the draft",
    "has_no_defaults_at_init": "written by transformers, read by nobody",
    "base_model_ep_plan": "written by transformers, read by nobody",
    "base_model_tp_plan": "written by transformers, read by nobody",
    "_name_or_path": "a path on the machine that trained the draft",
    "quantization_config": "the target's; the draft's own tensors are plain",
    "compression_config": "the target's; the draft's own tensors are plain",
    "modal_type": "AngelSlim's own bookkeeping",
    "target_model_type": "the trainer's own bookkeeping",
    "transformers_version": "of the writer, not of the draft",
}


def source_decoder(config: Mapping[str, Any]) -> dict[str, Any]:
    """The decoder fields of any source config, flat: nested blocks over the top level."""
    inner = config.get("transformer_layer_config")
    if isinstance(inner, dict):
        return {**{k: v for k, v in config.items() if k != "transformer_layer_config"}, **inner}
    model = config.get("model")
    return dict(model) if isinstance(model, dict) else dict(config)


def carried(request: WriteRequest) -> dict[str, Any]:
    """Fields of the source that no framework-specific rule claims: token ids, initialiser, dropout, …; nulls stay behind."""
    flat = source_decoder(request.source_config)
    return {k: v for k, v in flat.items() if k not in OWNED and k not in FRAMEWORK_ONLY and v is not None}


def flat_config(request: WriteRequest, architecture: str, model_type: str) -> dict[str, Any]:
    """A flat config without any null: engines choke on some (``target_hidden_size: null`` is multiplied).

    References: sglang 0.5.23 models/llama_eagle3.py:151-154 (target_hidden_size), :306 (draft_vocab_size).
    """
    facts = request.facts
    extra = {k: facts.extra[k] for k in sorted(facts.extra) if k.endswith(("_rank", "_head_dim"))}
    out: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": facts.hidden_size,
        "num_hidden_layers": facts.num_layers,
        "num_attention_heads": facts.num_attention_heads,
        "num_key_value_heads": facts.num_key_value_heads,
        "head_dim": facts.head_dim,
        "intermediate_size": facts.intermediate_size,
        "vocab_size": facts.vocab_size,
        "draft_vocab_size": facts.draft_vocab_size,
        "hidden_act": facts.hidden_act,
        "rms_norm_eps": facts.rms_norm_eps,
        "max_position_embeddings": facts.max_position_embeddings,
        **extra,
        **(write_rope(facts.rope) if facts.rope else {}),
        "tie_word_embeddings": False,
        "dtype": facts.dtype,
        "torch_dtype": facts.dtype,
    }
    if facts.target_hidden_size is not None and facts.target_hidden_size != facts.hidden_size:
        out["target_hidden_size"] = facts.target_hidden_size
    for flag in ("norm_before_fc", "fc_norm", "norm_output"):
        if getattr(facts, flag):
            out[flag] = True
    if facts.fc_bias:
        out["bias"] = True
    merged = {**carried(request), **out}
    return {k: merged[k] for k in sorted(merged) if merged[k] is not None}
