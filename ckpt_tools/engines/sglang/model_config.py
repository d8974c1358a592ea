"""``ModelConfig`` of a draft: what SGLang derives from the config object and refuses before it builds a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckpt_tools.engines.sglang import quantization
from ckpt_tools.engines.sglang.hf import FLOATS, HfConfig
from ckpt_tools.engines.sglang.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.engines.sglang.features import Features

MLA_FIELDS = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
# configs/model_config.py:1372-1400; a release that lacks a class doesn't ask for its fields
MLA_CLASSES = frozenset(
    {"DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV3ForCausalLMNextN", "DeepseekV32ForCausalLM", "DotsVLMForCausalLM",
     "Eagle3DeepseekV2ForCausalLM", "Glm4MoeLiteForCausalLM", "GlmMoeDsaForCausalLM", "KimiK25ForConditionalGeneration",
     "LongcatFlashForCausalLM", "LongcatFlashForCausalLMNextN", "MistralLarge3ForCausalLM", "MistralLarge3ForCausalLMEagle"}
)  # fmt: skip
# utils/hf_transformers/common.py:668-674
CONTEXT_LENGTHS = (
    "max_sequence_length",
    "seq_length",
    "max_seq_len",
    "model_max_length",
    "max_position_embeddings",
)


def derive(
    config: HfConfig, text: HfConfig, features: Features, architectures: Any, registered: frozenset[str]
) -> None:
    """``_derive_context_length`` and ``_derive_model_shapes`` (configs/model_config.py:1291-1602), in place.

    *text* is the config whose sizes are read (:func:`text_config`).

    Raises:
        Refused: At stage ``config``.
    """
    if not config.has("hidden_size"):  # a wrapper's own class, which no draft class takes
        return
    _context_length(text, features)
    if features.eager_head_dim or text.get("head_dim") is None:
        head_dim = _need(text, "hidden_size") // _need(text, "num_attention_heads")
        if not features.eager_head_dim:
            text.attributes["head_dim"] = head_dim
    if MLA_CLASSES & registered & set(architectures):
        for key in MLA_FIELDS:
            _need(text, key)
    for key in ("hidden_size", "num_hidden_layers", "vocab_size"):  # :1566-1605
        _need(text, key)
    if text.get("v_head_dim") in (None, 0):
        text.attributes["v_head_dim"] = text.get("head_dim")


def text_config(config: HfConfig, features: Features) -> HfConfig:
    """The config whose sizes are read: a nested one, if there is any (utils/hf_transformers/common.py:547-613).

    The model is built from the outer one all the same: a draft's config that holds a target's ``text_config`` is refused for
    what that lacks, and takes from it what it lacks itself (utils/hf_transformers/config.py:258-268), in place.

    Raises:
        Refused: At stage ``config``.
    """
    if not config.has("hidden_size"):
        return config
    if not features.nested_configs:
        return _text_dict(config)
    nested: dict[str, HfConfig | None] = {}
    for key in ("text_config", "llm_config", "language_config", "thinker_config"):
        if config.has(key):
            nested[key] = _nested(config, config.get(key))
    if "thinker_config" in nested:
        found = nested["thinker_config"]
        if found is not None and found.has("text_config"):
            kind = type(found.get("text_config")).__name__
            raise Refused("AttributeError", f"'{kind}' object has no attribute 'dtype'", "config")
    elif "llm_config" in nested:
        found = _with_heads(nested["llm_config"])
    elif "language_config" in nested:
        found = nested["language_config"]
    else:
        found = _with_heads(nested["text_config"]) if "text_config" in nested else None
    _fill(config, found.attributes if found else {})
    return found or config


def _fill(config: HfConfig, nested: Mapping[str, Any]) -> None:
    for key, value in nested.items():
        if value is not None and not config.has(key):
            config.attributes[key] = value


def _nested(config: HfConfig, value: Any) -> HfConfig | None:
    """A dict becomes a config of no class; anything else must be one already (:566-580)."""
    if isinstance(value, dict):
        return HfConfig("PreTrainedConfig", dict(value))
    if value is not None and config.get("dtype") is not None:
        raise Refused("AttributeError", f"'{type(value).__name__}' object has no attribute 'dtype'", "config")
    if value is not None:
        raise Refused(
            "AttributeError", f"'{type(value).__name__}' object has no attribute 'hidden_size'", "config"
        )
    return None


def _with_heads(nested: HfConfig | None) -> HfConfig:
    if nested is None or not nested.has("num_attention_heads"):
        raise Refused("AssertionError", "", "config")
    return nested


def _text_dict(config: HfConfig) -> HfConfig:
    """0.5.9 utils/hf_transformers_utils.py:132-174: nested configs stay dicts, which have no attributes."""
    if config.has("text_config") or config.has("llm_config"):
        raise Refused("AssertionError", "", "config")
    for key in ("language_config", "thinker_config"):
        if not config.has(key):
            continue
        nested = config.get(key)
        if isinstance(nested, dict):
            _fill(config, nested)
        elif nested is not None:
            raise Refused("TypeError", "vars() argument must have __dict__ attribute", "config")
        if config.has("text_config") or config.has("llm_config"):  # that came with it
            raise Refused("AssertionError", "", "config")
        kind = type(nested).__name__
        raise Refused("AttributeError", f"'{kind}' object has no attribute 'hidden_size'", "config")
    return config


def _context_length(config: HfConfig, features: Features) -> None:
    """``get_context_length`` (utils/hf_transformers/common.py:677-694): the first length there is must be a number."""
    rope, factor = config.get("rope_parameters" if features.rope_parameters else "rope_scaling"), 1
    if rope:
        factor = rope.get("factor", 1)
        if "original_max_position_embeddings" in rope or rope.get("rope_type") == "llama3":
            factor = 1
    length = next((config.get(key) for key in CONTEXT_LENGTHS if config.get(key) is not None), 2048)
    int(factor * length)


def check_dtype(config: HfConfig) -> None:
    """``set_default_torch_dtype`` (model_loader/utils.py): a model is built in a float's dtype.

    Raises:
        Refused: At stage ``class``.
    """
    dtype = config.get("dtype")
    if dtype is not None and dtype not in FLOATS:
        raise Refused("TypeError", "only floating-point types are supported as the default type", "class")


def _need(config: HfConfig, key: str) -> Any:
    if not config.has(key):
        raise Refused("AttributeError", f"'{config.name}' object has no attribute '{key}'", "config")
    return config.get(key)


def quantization_config(
    config: HfConfig, beside: Mapping[str, Any] | None, features: Features
) -> Mapping[str, Any] | None:
    """The dict that decides the quantisation method (configs/model_config.py:99-102, 1727-1828).

    Args:
        config: The draft's.
        beside: Its ``hf_quant_config.json``, which counts where the config says nothing.
        features: Of the release.

    Raises:
        Refused: At stage ``config``: it is none.
    """
    found = config.get("quantization_config")
    if found is not None and not isinstance(found, dict):
        raise Refused(
            "AttributeError", f"'{type(found).__name__}' object has no attribute 'to_dict'", "config"
        )
    found = config.get("compression_config") if found is None else found
    if isinstance(found, dict):
        return found
    if found is not None or beside is None:
        return None
    if not features.flat_quantization and "quantization" not in beside:
        raise Refused("KeyError", "'quantization'", "config")
    method = quantization.modelopt_method(beside, features)
    return None if method is None else {**beside, "quant_method": method}
