"""The decoder layers that vLLM's draft classes are made of, from the attributes of a resolved config."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckpt_tools.engines.vllm.modules import Module, ShardId, column, fused, norm, replicated, row
from ckpt_tools.engines.vllm.refusal import refuse_class

if TYPE_CHECKING:
    from ckpt_tools.engines.vllm.config import Fields

# model_executor/layers/rotary_embedding/__init__.py:102-350
ROPE_TYPES = frozenset(
    {"default", "proportional", "llama3", "mllama4", "linear", "ntk", "dynamic", "yarn", "deepseek_yarn",
     "deepseek_llama_scaling", "longrope", "openpangu", "bailing_mrope"}
)  # fmt: skip


def whole(value: Any, operation: str) -> int:
    """A number that the engine computes with; anything else is its TypeError."""
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    raise refuse_class("TypeError", f"unsupported operand type(s) for {operation}: '{type(value).__name__}'")


def hidden_width(value: Any) -> int:
    """The hidden size, which the embedding allocates with first."""
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    raise refuse_class("TypeError", "empty(): argument 'size' failed to unpack the object")


def vocabulary_size(value: Any) -> int:
    """Rows of an embedding: the engine subtracts the size from itself first (vocab_parallel_embedding.py:253)."""
    if isinstance(value, int):
        return value
    kind = type(value).__name__
    raise refuse_class("TypeError", f"unsupported operand type(s) for -: '{kind}' and '{kind}'")


def check_rope(fields: Fields) -> None:
    """``get_rope`` over ``rope_parameters``.

    Raises:
        Refused: Unknown type, no base, a partial rotation outside (0, 1].
    """
    rope = fields.get("rope_parameters") or {}
    share = rope.get("partial_rotary_factor", 1.0)
    if share <= 0.0 or share > 1.0:
        raise refuse_class("ValueError", f"partial_rotary_factor={share} must be between 0.0 and 1.0")
    kind = rope.get("rope_type", "default")
    if kind not in ROPE_TYPES:
        raise refuse_class("ValueError", f"Unknown RoPE scaling type {kind}")
    if rope.get("rope_theta", 10000) is None:
        raise refuse_class("TypeError", "unsupported operand type(s) for ** or pow()")


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


def head_counts(fields: Fields, kv_default: bool) -> tuple[int, int, int]:
    """(heads, key/value heads, head_dim) as the attention classes take them."""
    hidden = fields.need("hidden_size")
    heads = whole(fields.need("num_attention_heads"), "%")
    groups = fields.get("num_key_value_heads", heads) if kv_default else fields.need("num_key_value_heads")
    head_dim = fields.get("head_dim")
    if not head_dim:
        if heads == 0:
            raise refuse_class("ZeroDivisionError", "integer division or modulo by zero")
        head_dim = whole(hidden, "//") // heads
    return heads, whole(groups, "%"), head_dim


def check_groups(heads: int, groups: int) -> None:
    """The attention backend wants whole groups of heads."""
    if groups == 0:
        raise refuse_class("ZeroDivisionError", "integer")
    if heads % groups:
        raise refuse_class(
            "AssertionError", f"num_heads ({heads}) is not divisible by num_kv_heads ({groups})"
        )


def attention(
    heads: int, groups: int, head_dim: int, inp: int, out: int, *, qkv_bias: bool, o_bias: bool
) -> Module:
    """Self-attention of the llama family: fused q/k/v over ``inp`` columns, o_proj to ``out`` rows."""
    parts: dict[ShardId, int] = {"q": heads * head_dim, "k": groups * head_dim, "v": groups * head_dim}
    return Module(
        "LlamaAttention",
        children={
            "qkv_proj": fused("QKVParallelLinear", parts, inp, qkv_bias),
            "o_proj": row(out, heads * head_dim, o_bias),
            "rotary_emb": Module("RotaryEmbedding"),
            "attn": Module("Attention"),
        },
    )


def mlp(fields: Fields, cls: str, bias: bool = False) -> Module:
    """Gate/up fused, down; only SiLU (``models/llama.py:112``)."""
    hidden, inter = fields.need("hidden_size"), whole(fields.need("intermediate_size"), "%")
    act = fields.need("hidden_act")
    if act != "silu":
        raise refuse_class("ValueError", f"Unsupported activation: {act}. Only silu is supported for now.")
    return Module(
        cls,
        children={
            "gate_up_proj": fused("MergedColumnParallelLinear", {0: inter, 1: inter}, hidden, bias),
            "down_proj": row(hidden, inter, bias),
            "act_fn": Module("SiluAndMul"),
        },
    )


def llama_layer(fields: Fields, index: int, inp: int, *, qkv_bias: bool) -> Module:
    """vLLM's LlamaDecoderLayer with q/k/v over ``inp`` columns (``models/llama.py:245-320``).

    ``index`` is the place in ``layer_types``.
    """
    hidden = fields.need("hidden_size")
    heads, groups, head_dim = head_counts(fields, kv_default=True)
    o_bias = bool(fields.get("attention_bias", False) or fields.get("bias", False))
    self_attn = attention(heads, groups, head_dim, inp, hidden, qkv_bias=qkv_bias, o_bias=o_bias)
    check_rope(fields)
    check_window(fields, index)
    check_groups(heads, groups)
    layer = Module("LlamaDecoderLayer", children={"self_attn": self_attn})
    layer.children["mlp"] = mlp(fields, "LlamaMLP", bool(fields.get("mlp_bias", False)))
    fields.need("rms_norm_eps")
    layer.children["input_layernorm"] = norm(hidden)
    layer.children["post_attention_layernorm"] = norm(hidden)
    return layer


def qwen3_layer(fields: Fields, inp: int) -> Module:
    """vLLM's Qwen3DecoderLayer: per-head norms, no o_proj bias (``models/qwen3.py:165-220``)."""
    hidden = fields.need("hidden_size")
    fields.need("max_position_embeddings")
    heads, groups, head_dim = head_counts(fields, kv_default=False)
    fields.need("rms_norm_eps")
    bias = bool(fields.get("attention_bias", False))
    self_attn = attention(heads, groups, head_dim, inp, hidden, qkv_bias=bias, o_bias=False)
    self_attn.cls = "Qwen3Attention"
    check_rope(fields)
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
    hidden = fields.need("hidden_size")
    heads = whole(fields.need("num_attention_heads"), "%")
    nope, rope, value = (fields.get(key, 0) for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    rank, q_rank = fields.get("kv_lora_rank", 0), fields.get("q_lora_rank")
    if nope + rope == 0:
        raise refuse_class("ZeroDivisionError", "0.0 cannot be raised to a negative power")
    children: dict[str, Module] = {}
    if q_rank is not None:
        parts: dict[ShardId, int] = {0: q_rank, 1: rank + rope}
        children["fused_qkv_a_proj"] = fused("DeepSeekV2FusedQkvAProjLinear", parts, inp)
        children["q_a_layernorm"] = norm(q_rank)
        children["q_b_proj"] = column(heads * (nope + rope), q_rank)
    else:
        children["kv_a_proj_with_mqa"] = replicated(rank + rope, inp)
        children["q_proj"] = column(heads * (nope + rope), inp)
    children["kv_a_layernorm"] = norm(rank)
    children["kv_b_proj"] = column(heads * (nope + value), rank)
    children["o_proj"] = row(hidden, heads * value)
    children["rotary_emb"] = Module("RotaryEmbedding")
    children["mla_attn"] = Module("MultiHeadLatentAttentionWrapper")
    _check_mla_rope(fields)
    layer = Module(
        "DeepseekV2Eagle3DecoderLayer",
        children={"self_attn": Module("DeepseekV2MLAAttention", children=children)},
    )
    layer.children["mlp"] = mlp(fields, "DeepseekV2MLP")
    fields.need("rms_norm_eps")
    layer.children |= {"input_layernorm": norm(hidden), "post_attention_layernorm": norm(hidden)}
    return layer


def _check_mla_rope(fields: Fields) -> None:
    """Any rope but the default becomes deepseek's own yarn, which needs two keys (deepseek_v2.py:1115-1136)."""
    rope = fields.need("rope_parameters")
    if rope["rope_type"] == "default":
        check_rope(fields)
        return
    for key in ("factor", "original_max_position_embeddings"):
        if key not in rope:
            raise refuse_class("KeyError", f"'{key}'")
