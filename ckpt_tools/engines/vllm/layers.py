"""The decoder layers that vLLM's draft classes are made of, from the attributes of a resolved config."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckpt_tools.engines.vllm import rope
from ckpt_tools.engines.vllm.modules import Module, ShardId, column, divided, fused, norm, replicated, row
from ckpt_tools.engines.vllm.refusal import refuse_class

if TYPE_CHECKING:
    from ckpt_tools.engines.vllm.config import Fields


def check_window(fields: Fields, index: int) -> None:
    """Llama layers index ``layer_types`` by ``index`` (``models/llama.py:186-204``).

    EAGLE-3 subtracts the target's layers first; EAGLE-1 doesn't, so any ``layer_types`` is too short for it.
    """
    kinds = fields.get("layer_types")
    if kinds:
        if index >= len(kinds):
            raise refuse_class(
                "AssertionError", f"effective_layer_idx: {index} is out of bounds for layer_types: {kinds}"
            )
        if kinds[index] == "sliding_attention":
            fields.need("sliding_window")


def head_counts(fields: Fields, kv_default: bool) -> tuple[Any, Any, Any]:
    """(heads, key/value heads, head_dim) as the attention classes take them (``models/llama.py:140-160``)."""
    hidden, heads = fields.need("hidden_size"), fields.need("num_attention_heads")
    groups = fields.get("num_key_value_heads", heads) if kv_default else fields.need("num_key_value_heads")
    divided(heads)
    if (groups % 1) if groups >= 1 else (1 % groups):
        raise refuse_class("AssertionError", "")
    head_dim = fields.get("head_dim") or hidden // heads
    _ = head_dim**-0.5
    return heads, groups, head_dim


def check_groups(heads: Any, groups: Any) -> None:
    """The attention backend wants whole groups of heads."""
    groups = max(1, groups // 1)
    if heads % groups:
        raise refuse_class(
            "AssertionError", f"num_heads ({heads}) is not divisible by num_kv_heads ({groups})"
        )


def qkv(heads: Any, groups: Any, head_dim: Any, inp: Any, bias: bool) -> Module:
    """Fused q/k/v over ``inp`` columns (``model_executor/layers/linear.py:1043-1078``)."""
    kept = 1 if groups <= 1 else divided(groups)
    parts: dict[ShardId, Any] = {"q": divided(heads) * head_dim, "k": kept * head_dim, "v": kept * head_dim}
    return fused("QKVParallelLinear", parts, inp, bias)


def attention(heads: Any, groups: Any, head_dim: Any, hidden: Any, *, qkv_bias: bool, o_bias: bool) -> Module:
    """Self-attention of the llama family."""
    return Module(
        "LlamaAttention",
        children={
            "qkv_proj": qkv(heads, groups, head_dim, hidden, qkv_bias),
            "o_proj": row(hidden, heads * head_dim, o_bias),
            "rotary_emb": Module("RotaryEmbedding"),
            "attn": Module("Attention"),
        },
    )


def mlp(fields: Fields, cls: str, bias: bool = False) -> Module:
    """Gate/up fused, down; only SiLU (``models/llama.py:112``)."""
    hidden, inter, act = (fields.need(key) for key in ("hidden_size", "intermediate_size", "hidden_act"))
    module = Module(
        cls,
        children={
            "gate_up_proj": fused("MergedColumnParallelLinear", {0: inter, 1: inter}, hidden, bias),
            "down_proj": row(hidden, inter, bias),
            "act_fn": Module("SiluAndMul"),
        },
    )
    if act != "silu":
        raise refuse_class("ValueError", f"Unsupported activation: {act}. Only silu is supported for now.")
    return module


def llama_layer(fields: Fields, index: int) -> Module:
    """vLLM's LlamaDecoderLayer (``models/llama.py:245-320``).

    ``index`` is the place in ``layer_types``.
    """
    hidden = fields.need("hidden_size")
    heads, groups, head_dim = head_counts(fields, kv_default=True)
    o_bias = bool(fields.get("attention_bias", False) or fields.get("bias", False))
    qkv_bias = bool(fields["qkv_bias"]) if "qkv_bias" in fields else o_bias
    self_attn = attention(heads, groups, head_dim, hidden, qkv_bias=qkv_bias, o_bias=o_bias)
    rope.build(fields.get("rope_parameters"), head_dim, fields.get("max_position_embeddings", 8192))
    check_window(fields, index)
    check_groups(heads, groups)
    layer = Module("LlamaDecoderLayer", children={"self_attn": self_attn})
    layer.children["mlp"] = mlp(fields, "LlamaMLP", bool(fields.get("mlp_bias", False)))
    fields.need("rms_norm_eps")
    layer.children["input_layernorm"] = norm(hidden)
    layer.children["post_attention_layernorm"] = norm(hidden)
    return layer


def qwen3_layer(fields: Fields) -> Module:
    """vLLM's Qwen3DecoderLayer: per-head norms, no o_proj bias (``models/qwen3.py:165-220``)."""
    hidden = fields.need("hidden_size")
    fields.need("max_position_embeddings")
    heads, groups, head_dim = head_counts(fields, kv_default=False)
    fields.need("rms_norm_eps")
    bias = bool(fields.get("attention_bias", False))
    self_attn = attention(heads, groups, head_dim, hidden, qkv_bias=bias, o_bias=False)
    self_attn.cls = "Qwen3Attention"
    rope.build(fields.get("rope_parameters"), head_dim, fields["max_position_embeddings"])
    check_groups(heads, groups)
    self_attn.children["q_norm"] = norm(head_dim)
    self_attn.children["k_norm"] = norm(head_dim)
    return Module(
        "Qwen3DecoderLayer",
        children={
            "self_attn": self_attn,
            "mlp": mlp(fields, "Qwen2MLP"),
            "input_layernorm": norm(hidden),
            "post_attention_layernorm": norm(hidden),
        },
    )


def mla_layer(fields: Fields, inp: int) -> Module:
    """DeepSeek's latent attention over ``inp`` columns with a dense MLP (``models/deepseek_v2.py:1000-1240``)."""
    hidden, heads = fields.need("hidden_size"), fields.need("num_attention_heads")
    nope, rotated, value = (
        fields.get(key, 0) for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    )
    rank, q_rank = fields.get("kv_lora_rank", 0), fields.get("q_lora_rank")
    if nope + rotated == 0:
        raise refuse_class("ZeroDivisionError", "0.0 cannot be raised to a negative power")
    children: dict[str, Module] = {}
    if q_rank is not None:
        parts: dict[ShardId, int] = {0: q_rank, 1: rank + rotated}
        children["fused_qkv_a_proj"] = fused("DeepSeekV2FusedQkvAProjLinear", parts, inp)
        children["q_a_layernorm"] = norm(q_rank)
        children["q_b_proj"] = column(heads * (nope + rotated), q_rank)
    else:
        children["kv_a_proj_with_mqa"] = replicated(rank + rotated, inp)
        children["q_proj"] = column(heads * (nope + rotated), inp)
    children["kv_a_layernorm"] = norm(rank)
    children["kv_b_proj"] = column(heads * (nope + value), rank)
    children["o_proj"] = row(hidden, heads * value)
    children["rotary_emb"] = Module("RotaryEmbedding")
    children["mla_attn"] = Module(
        "MultiHeadLatentAttentionWrapper", children={"mla_attn": Module("MLAAttention")}
    )
    _check_mla_rope(fields, rotated)
    layer = Module(
        "DeepseekV2Eagle3DecoderLayer",
        children={"self_attn": Module("DeepseekV2MLAAttention", children=children)},
    )
    layer.children["mlp"] = mlp(fields, "DeepseekV2MLP")
    fields.need("rms_norm_eps")
    layer.children |= {"input_layernorm": norm(hidden), "post_attention_layernorm": norm(hidden)}
    return layer


def _check_mla_rope(fields: Fields, rotated: Any) -> None:
    """Any rope but the default becomes deepseek's own yarn, which needs two keys (deepseek_v2.py:1115-1136)."""
    settings = fields.need("rope_parameters")
    if settings["rope_type"] != "default":
        settings = {**settings, "rope_type": "deepseek_yarn"}
    rope.build(settings, rotated, fields.get("max_position_embeddings", 8192))
