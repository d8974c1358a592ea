"""vLLM's own view of a draft's config, which it checks before it builds anything.

``ModelConfig`` derives a handful of facts from the config (``transformers_utils/model_arch_config_convertor.py``),
validates them with pydantic (``config/model_arch.py``) and computes the context length (``config/model.py:2527-2610``).
The config keeps its own values: a number written as a string passes here and fails where it is computed with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckpt_tools.engines.vllm import rope
from ckpt_tools.engines.vllm.refusal import refuse_config

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# model_arch_config_convertor.py:340-372, and what an ``eagle`` config may wrap (:376-389)
MLA_TYPES = frozenset(
    {
        "axk1", "deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_v4", "deepseek_v41", "dots3_note", "deepseek_mtp",
        "k3_dspark", "glm5_next", "glm5_next_text", "glm_moe_dsa", "glm4_moe_lite", "glm4_moe_lite_mtp", "kimi_k2",
        "kimi_linear", "longcat_flash", "pangu_ultra_moe", "pangu_ultra_moe_mtp", "bailing_hybrid", "bailing_hybrid_mtp",
        "bailing_hybrid_v3_mtp", "hy_v4", "hy_v4_mtp",
    }
)  # fmt: skip
LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length",
           "max_target_positions", "max_sequence_length", "max_seq_length", "seq_len")  # fmt: skip
# their factor doesn't lengthen the context (config/model.py:2575-2583)
UNSCALED = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")


def check(attributes: Mapping[str, Any]) -> None:
    """The facts of a config, as the engine reads and validates them.

    Raises:
        Refused: A value that can't be computed with, or that pydantic refuses.
    """
    heads = attributes.get("num_attention_heads", 0)
    facts = (
        ("hidden_size", attributes.get("hidden_size", 0)),
        ("total_num_hidden_layers", attributes.get("num_hidden_layers", 0)),
        ("total_num_attention_heads", heads),
        ("head_size", _head_size(attributes, heads)),
        ("vocab_size", attributes.get("vocab_size", 0)),
        ("total_num_kv_heads", _first(attributes, ("n_head_kv", "num_kv_heads", "num_key_value_heads",
                                                   "multi_query_group_num", "num_attention_groups"), heads)),
        ("num_experts", _experts(attributes)),
        ("num_experts_per_token", _experts_per_token(attributes)),
    )  # fmt: skip
    quantization(attributes)
    _length(attributes)
    _names(attributes["architectures"])
    for field, value in facts:
        _integer(field, value)


def quantization(attributes: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The block that names a method, ``compression_config`` where there is no other (``:258-303``)."""
    block: Any = attributes.get("quantization_config")
    if block is None:
        block = attributes.get("compression_config")
    else:
        producer, nested = block.get("producer", {}).get("name"), block.get("quantization", {})
        if producer == "modelopt" or (isinstance(nested, dict) and "modelopt_quant_config" in nested):
            algorithm = nested.get("quant_algo")
            known = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4")
            if algorithm is not None and str(algorithm).upper() not in known:
                raise refuse_config("ValueError", f"Unknown ModelOpt quant algo: {algorithm}")
            if algorithm is not None:
                return {
                    **block,
                    "quant_method": "modelopt_fp4" if str(algorithm).upper() == "NVFP4" else "modelopt",
                }
    if block is None:
        return None
    method = block.get("quant_method", "").lower().replace("compressed_tensors", "compressed-tensors")
    return {**block, "quant_method": method}


def check_length(attributes: Mapping[str, Any]) -> None:
    """``max_model_len`` of the draft, which must be positive (``config/model.py:1057-1062``)."""
    length = float(_length(attributes))
    settings = attributes.get("rope_parameters")
    parts = [part for part in rope.stated(settings) if part] if isinstance(settings, dict) else []
    if length == float("inf"):
        return
    scale: Any = 1.0
    if "gemma3" not in attributes["model_type"]:
        for part in parts:
            if part["rope_type"] not in UNSCALED:
                scale = part.get("factor", scale)
        length *= 1.0 if scale is None else scale
    if any(part["rope_type"] == "longrope" for part in parts):
        length = attributes.get("original_max_position_embeddings", length)
    if int(length) < 1:
        raise refuse_config("ValueError", f"max_model_len must be a positive integer, got int: {int(length)}")


def _head_size(attributes: Mapping[str, Any], heads: Any) -> Any:
    mla = attributes["model_type"] in MLA_TYPES
    if mla and attributes.get("kv_lora_rank") is not None:
        return attributes["kv_lora_rank"] + attributes.get("qk_rope_head_dim", 0)
    stated = attributes.get("head_dim")
    if stated is not None and stated > 0:
        return stated
    if attributes.get("hidden_size_per_head") is not None:
        return attributes["hidden_size_per_head"]
    return 0 if heads == 0 else attributes.get("hidden_size", 0) // heads


def _experts(attributes: Mapping[str, Any]) -> Any:
    count = _first(attributes, ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts"), 0)
    return (count[0] if isinstance(count, list) else count) or 0


def _experts_per_token(attributes: Mapping[str, Any]) -> Any:
    names = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k")
    count = _first(attributes, names, 0)
    return max(count, default=0) if isinstance(count, list) else count or 0


def _first(attributes: Mapping[str, Any], names: Sequence[str], default: Any) -> Any:
    """The first of the names that is there, whatever it holds (``config/utils.py:132-158``)."""
    return next((attributes[name] for name in names if name in attributes), default)


def _length(attributes: Mapping[str, Any]) -> Any:
    """The smallest stated length; ``model_max_length`` wins (``:401-438``)."""
    length: Any = float("inf")
    for key in LENGTHS:
        stated = attributes.get(key)
        if stated is not None:
            length = min(length, stated)
    return attributes.get("model_max_length") or length


def _names(names: Any) -> None:
    if not isinstance(names, list):
        raise refuse_config("ValidationError", "architectures\n  Input should be a valid list")
    for place, name in enumerate(names):
        if not isinstance(name, str):
            raise refuse_config("ValidationError", f"architectures.{place}\n  Input should be a valid string")


def _integer(field: str, value: Any) -> None:
    """pydantic's lax integer: a whole float and a string of digits pass."""
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return
    if isinstance(value, float):
        problem = "Input should be a valid integer, got a number with a fractional part"
    elif isinstance(value, str):
        try:
            int(value.strip())
        except ValueError:
            problem = "Input should be a valid integer, unable to parse string as an integer"
        else:
            return
    else:
        problem = "Input should be a valid integer"
    raise refuse_config("ValidationError", f"{field}\n  {problem}")
