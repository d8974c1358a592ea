"""``ModelConfig`` of a draft: what SGLang derives from the config object and refuses before it builds a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckpt_tools.engines.sglang.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.engines.sglang.features import Features
    from ckpt_tools.engines.sglang.hf import HfConfig

TEXT_CONFIGS = ("thinker_config", "llm_config", "language_config", "text_config")
MLA_FIELDS = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def derive(config: HfConfig, features: Features, architectures: Any, registered: frozenset[str]) -> None:
    """``_derive_context_length`` and ``_derive_model_shapes`` (configs/model_config.py:1291-1602), in place.

    Raises:
        Refused: At stage ``config``.
    """
    for key in TEXT_CONFIGS[1:]:  # utils/hf_transformers/common.py:591-606
        nested = config.get(key)
        if isinstance(nested, dict) and key != "language_config" and "num_attention_heads" not in nested:
            raise Refused("AssertionError", "", "config")
    if not config.has(
        "hidden_size"
    ):  # a wrapper's config: its text config is read, and no draft class takes it
        return
    if features.eager_head_dim:
        _divide(_need(config, "hidden_size"), _need(config, "num_attention_heads"))
    elif config.get("head_dim") is None:
        config.attributes["head_dim"] = _divide(
            _need(config, "hidden_size"), _need(config, "num_attention_heads")
        )
    if "Eagle3DeepseekV2ForCausalLM" in architectures and "Eagle3DeepseekV2ForCausalLM" in registered:
        for key in MLA_FIELDS:
            _need(config, key)
    if config.get("v_head_dim") in (None, 0):
        config.attributes["v_head_dim"] = config.get("head_dim")


def _divide(hidden: Any, heads: Any) -> int:
    for value in (hidden, heads):
        if not isinstance(value, int):
            names = " and ".join(f"'{type(v).__name__}'" for v in (hidden, heads))
            raise Refused("TypeError", f"unsupported operand type(s) for //: {names}", "config")
    if heads == 0:
        raise Refused("ZeroDivisionError", "integer division or modulo by zero", "config")
    return int(hidden // heads)


def _need(config: HfConfig, key: str) -> Any:
    if not config.has(key):
        raise Refused("AttributeError", f"'{config.name}' object has no attribute '{key}'", "config")
    return config.get(key)


def quantization_config(config: HfConfig) -> Mapping[str, Any] | None:
    """The dict that decides the quantisation method (configs/model_config.py:1727-1746)."""
    for key in ("quantization_config", "compression_config"):
        found = config.get(key)
        if isinstance(found, dict):
            return found
    return None
