"""transformers' config classes as vLLM sees them: the attributes that a config.json becomes.

A plain draft's config.json goes through ``AutoConfig``: the class of its ``model_type`` adds its defaults, checks
types, derives fields and moves rope settings into ``rope_parameters`` (transformers 5.19
``configuration_utils.py:314-395``, ``modeling_rope_utils.py:752-843``). The defaults are data, taken from the
classes themselves (``data/config_classes.json``).
"""

from __future__ import annotations

import json
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckpt_tools.engines.vllm.refusal import refuse_config

if TYPE_CHECKING:
    from collections.abc import Mapping

DATA = Path(__file__).parent / "data"
Attributes = dict[str, Any]

# transformers 5.19 configuration_utils.py:65-80 and :92-97
LAYER_TYPES = frozenset(
    {
        "full_attention", "sliding_attention", "chunked_attention", "window_attention", "indexed_attention",
        "compressed_sparse_attention", "heavily_compressed_attention", "minimax_m3_sparse", "conv", "moe", "hybrid",
        "hybrid_sliding", "linear_attention",
    }
)  # fmt: skip
LAYER_TYPE_ALIASES = {
    "mamba": "linear_attention", "attention": "full_attention", "deepseek_sparse_attention": "indexed_attention",
    "qwen_sparse_attention": "indexed_attention",
}  # fmt: skip
# transformers 5.19 modeling_rope_utils.py:896-1080; a missing one raises KeyError
ROPE_REQUIRED: Mapping[str, frozenset[str]] = {
    "linear": frozenset({"factor"}),
    "dynamic": frozenset({"factor"}),
    "yarn": frozenset({"factor", "original_max_position_embeddings"}),
    "longrope": frozenset({"short_factor", "long_factor", "original_max_position_embeddings"}),
    "llama3": frozenset(
        {"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "rope_theta"}
    ),
    "proportional": frozenset({"rope_theta"}),
}
TORCH_DTYPES = frozenset(
    {"float32", "float", "float16", "half", "bfloat16", "float64", "double", "int8", "uint8", "int16", "int32", "int64",
     "bool", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"}
)  # fmt: skip
_TYPES: Mapping[str, tuple[type, ...]] = {
    "int": (int,), "float": (float,), "bool": (bool,), "str": (str,), "list": (list,), "dict": (dict,), "None": (type(None),),
}  # fmt: skip


@cache
def classes() -> Mapping[str, Any]:
    """Every config class that vLLM can build, by ``model_type`` (transformers 5.19 and vLLM's own registry)."""
    data: Mapping[str, Any] = json.loads((DATA / "config_classes.json").read_text(encoding="utf-8"))
    return data


def auto_config(config: Mapping[str, Any]) -> Attributes:
    """The attributes of ``AutoConfig.from_pretrained`` over this config.json.

    Raises:
        Refused: As transformers would: no or unknown ``model_type``, a wrong type, a rope without its keys.
    """
    if "model_type" not in config:
        raise refuse_config("ValueError", "Unrecognized model in")
    model_type = config["model_type"]
    if model_type == "mistral" and "layer_types" in config:
        model_type = "ministral"
    if not isinstance(model_type, str) or model_type not in classes():
        raise refuse_config(
            "ValueError", f"The checkpoint you are trying to load has model type `{model_type}`"
        )
    return {
        "model_type": model_type,
        **_construct(classes()[model_type], {**config, "model_type": model_type}),
    }


def bare_config(values: Mapping[str, Any]) -> Attributes:
    """The attributes of a class that adds no defaults (``SpeculatorsConfig``): the given values, rope normalised."""
    attributes = {k: v for k, v in deepcopy(dict(values)).items() if k != "model_type"}
    if (
        "rope_scaling" in attributes
    ):  # a property that writes rope_parameters (configuration_utils.py:589-590)
        attributes["rope_parameters"] = attributes.pop("rope_scaling")
    attributes.setdefault("architectures", None)
    if "torch_dtype" in attributes:  # a property that writes dtype as it is (configuration_utils.py:512-514)
        old = attributes.pop("torch_dtype")
        attributes.setdefault("dtype", None)
        attributes["dtype"] = old if attributes["dtype"] is None else _dtype(attributes["dtype"])
    else:
        attributes["dtype"] = _dtype(attributes.get("dtype"))
    if "rope_parameters" in attributes:
        _convert_rope(attributes, attributes, 10000.0)
    _remap_layer_types(attributes)
    _validate(attributes, ())
    return attributes


def _construct(cls: Mapping[str, Any], config: Mapping[str, Any]) -> Attributes:
    """The dataclass part: typed fields with defaults, then derivations, then everything else as it is."""
    values = deepcopy(dict(config))
    aliases: Mapping[str, str] = cls.get("aliases", {})
    fields: Mapping[str, Any] = cls["fields"]
    attributes: Attributes = {"architectures": values.pop("architectures", None)}
    for field, (default, kind) in fields.items():
        value = values.pop(field, deepcopy(default))
        _check_type(field, value, kind)
        attributes[field] = value
    derived = cls.get("derived", ())
    _derive(attributes, derived)
    old, new = values.pop("torch_dtype", None), values.pop("dtype", None)
    attributes["dtype"] = _dtype(old if new is None else new)
    values.pop("model_type", None)
    if "rope_parameters" in fields:
        _convert_rope(attributes, values, cls.get("theta", 10000.0))
    elif values.get("rope_scaling") and values.get("rope_theta"):
        attributes["rope_parameters"] = None
        _convert_rope(attributes, values, 10000.0)
    if "rope_scaling" in values:
        attributes["rope_parameters"] = values.pop("rope_scaling")
    for key, value in values.items():
        name = aliases.get(key, key)
        if name in fields:
            _check_type(name, value, fields[name][1])
        attributes[name] = value
    for key in cls.get(
        "computed", ()
    ):  # a property: its value is no attribute that a wrapping config would copy
        attributes.pop(key, None)
    _remap_layer_types(attributes)
    _validate(attributes, derived)
    return attributes


def _check_type(field: str, value: Any, kind: str) -> None:
    """huggingface_hub's strict dataclasses: an int is no float, a bool is no int (dataclasses.py:620-629)."""
    parts = kind.split("|")
    if "any" in parts:
        return
    for part in parts:
        if isinstance(value, _TYPES[part]) and not (part == "int" and isinstance(value, bool)):
            return
    raise refuse_config("StrictDataclassFieldValidationError", f"Validation error for field '{field}':")


def _dtype(name: Any) -> Any:
    """A string must name a torch dtype (configuration_utils.py:321-327)."""
    if isinstance(name, str) and name not in TORCH_DTYPES:
        raise refuse_config("AttributeError", f"module 'torch' has no attribute '{name}'")
    return name


def _derive(attributes: Attributes, derived: tuple[str, ...]) -> None:
    """The ``__post_init__`` of the classes, rule by rule."""
    if "qk_head_dim" in derived:
        attributes["head_dim"] = attributes["qk_rope_head_dim"]
    if "head_dim" in derived and attributes.get("head_dim") is None:
        if attributes["num_attention_heads"] == 0:
            raise refuse_config("ZeroDivisionError", "integer")
        attributes["head_dim"] = attributes["hidden_size"] // attributes["num_attention_heads"]
    if "kv_heads" in derived and attributes.get("num_key_value_heads") is None:
        attributes["num_key_value_heads"] = attributes["num_attention_heads"]
    if "window_if_used" in derived and not attributes["use_sliding_window"]:
        attributes["sliding_window"] = None
    if attributes.get("layer_types", 0) is None:
        layers = range(attributes["num_hidden_layers"])
        if "layers_by_window" in derived:
            windowed = attributes["sliding_window"] is not None
            first = attributes["max_window_layers"]
            attributes["layer_types"] = [
                "sliding_attention" if windowed and i >= first else "full_attention" for i in layers
            ]
        elif "layers_alternate" in derived:
            attributes["layer_types"] = ["full_attention" if i % 2 else "sliding_attention" for i in layers]
        elif "layers_chunked" in derived:  # every fourth layer has no rope and attends to everything
            attributes["layer_types"] = [
                "chunked_attention" if (i + 1) % 4 else "full_attention" for i in layers
            ]


def _convert_rope(attributes: Attributes, values: dict[str, Any], default_theta: float) -> None:
    """``rope_scaling``/``rope_theta`` into ``rope_parameters`` (modeling_rope_utils.py:752-843).

    A non-empty ``rope_scaling`` replaces ``rope_parameters`` whole; ``rope_theta`` fills in only what they lack.
    """
    rope = values.pop("rope_scaling", None) or attributes.get("rope_parameters") or {}
    theta = values.pop("rope_theta", default_theta)
    partial = values.get("partial_rotary_factor", attributes.get("partial_rotary_factor"))
    if not isinstance(rope, dict):
        raise refuse_config("AttributeError", "object has no attribute 'setdefault'")
    nested = [key for key in rope if key in (attributes.get("layer_types") or ())]
    for part in [rope[key] for key in nested] or [rope]:
        if part is None:
            continue
        part.setdefault("rope_theta", theta)
        if partial is not None:
            part.setdefault("partial_rotary_factor", partial)
        part.setdefault("rope_type", part.get("type", "default"))
        if part["rope_type"] in ("llama3", "yarn", "longrope"):
            original = values.get(
                "original_max_position_embeddings", attributes.get("original_max_position_embeddings")
            )
            if original is not None:
                part["original_max_position_embeddings"] = original
            else:
                part.setdefault("original_max_position_embeddings", attributes.get("max_position_embeddings"))
    attributes["rope_parameters"] = rope


def _remap_layer_types(attributes: Attributes) -> None:
    if isinstance(attributes.get("layer_types"), list):
        attributes["layer_types"] = [LAYER_TYPE_ALIASES.get(t, t) for t in attributes["layer_types"]]


def _validate(attributes: Attributes, derived: tuple[str, ...]) -> None:
    """The class validators, in the order in which they run (by name)."""
    if "heads_divide_hidden" in derived:
        hidden, heads = attributes["hidden_size"], attributes["num_attention_heads"]
        if heads == 0:
            raise refuse_config("ZeroDivisionError", "integer modulo by zero")
        if hidden % heads:
            raise _class_validation("validate_architecture", f"The hidden size ({hidden}) is not a multiple")
    kinds = attributes.get("layer_types")
    if kinds is not None and "num_hidden_layers" in attributes:
        layers = attributes["num_hidden_layers"]
        if not all(kind in LAYER_TYPES for kind in kinds):
            raise _class_validation("validate_layer_type", "The `layer_types` entries must be in")
        if layers is not None and layers != len(kinds):
            raise _class_validation("validate_layer_type", f"`num_hidden_layers` ({layers}) must be equal to")
    validate_rope(attributes)


def validate_rope(attributes: Attributes) -> None:
    """transformers' check of ``rope_parameters`` (modeling_rope_utils.py:845-891)."""
    rope = attributes.get("rope_parameters")
    if not rope:
        return
    nested = [key for key in rope if key in (attributes.get("layer_types") or ())]
    head_dim = attributes.get("head_dim")
    for part in [rope[key] for key in nested] or [rope]:
        if part is None:
            continue
        kind = part.setdefault("rope_type", part.get("type", "default"))
        missing = ROPE_REQUIRED.get(kind, frozenset()) - set(part)
        if missing:
            raise refuse_config(
                "KeyError", f"Missing required keys in `rope_parameters` for 'rope_type'='{kind}'"
            )
        share = part.get("partial_rotary_factor", 1.0)
        if isinstance(head_dim, int) and head_dim > 4 and head_dim % 2 and int(head_dim * share) == head_dim:
            raise _class_validation("validate_rope", "RoPE requires an even rotary dimension")


def _class_validation(validator: str, message: str) -> Exception:
    return refuse_config(
        "StrictDataclassClassValidationError",
        f"Class validation error for validator '{validator}':\n    ValueError: {message}",
    )
