"""transformers' config classes as vLLM sees them: the attributes that a config.json becomes.

A plain draft's config.json goes through ``AutoConfig``: the class of its ``model_type`` adds its defaults, checks
types, derives fields and moves rope settings into ``rope_parameters`` (transformers 5.19
``configuration_utils.py:314-395``). The defaults are data, taken from the classes themselves
(``data/config_classes.json``).
"""

from __future__ import annotations

import json
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckpt_tools.engines.vllm import rope
from ckpt_tools.engines.vllm.refusal import refuse_config

if TYPE_CHECKING:
    from collections.abc import Mapping

DATA = Path(__file__).parent / "data"
Attributes = dict[str, Any]

# transformers 5.19 configuration_utils.py:92-97
LAYER_TYPE_ALIASES = {
    "mamba": "linear_attention", "attention": "full_attention", "deepseek_sparse_attention": "indexed_attention",
    "qwen_sparse_attention": "indexed_attention",
}  # fmt: skip
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
    _ = "auto_map" in config and "AutoConfig" in config["auto_map"]  # models/auto/configuration_auto.py:398
    if "model_type" not in config:
        raise refuse_config("ValueError", "Unrecognized model in")
    model_type = config["model_type"]
    if model_type == "mistral" and "layer_types" in config:
        model_type = "ministral"
    if model_type not in classes():
        raise refuse_config(
            "ValueError", f"The checkpoint you are trying to load has model type `{model_type}`"
        )
    block = config.get("quantization_config")
    if block is not None and not isinstance(
        block, dict
    ):  # the config is logged (configuration_utils.py:1066)
        raise refuse_config("AttributeError", f"'{type(block).__name__}' object has no attribute 'to_dict'")
    return {
        "model_type": model_type,
        **_construct(classes()[model_type], {**config, "model_type": model_type}),
    }


def bare_config(values: Mapping[str, Any]) -> Attributes:
    """The attributes of a class that adds no defaults (``SpeculatorsConfig``): the given values, rope normalised."""
    attributes: Attributes = {}
    for key, value in deepcopy(dict(values)).items():
        # rope_scaling is a property that writes rope_parameters: the later of the two counts (configuration_utils.py:589)
        attributes["rope_parameters" if key == "rope_scaling" else key] = value
    attributes.pop("model_type", None)
    attributes.setdefault("architectures", None)
    if "torch_dtype" in attributes:  # a property that writes dtype as it is (configuration_utils.py:512-514)
        old = attributes.pop("torch_dtype")
        attributes.setdefault("dtype", None)
        attributes["dtype"] = old if attributes["dtype"] is None else _dtype(attributes["dtype"])
    else:
        attributes["dtype"] = _dtype(attributes.get("dtype"))
    if "rope_parameters" in attributes:
        rope.convert(attributes, {}, 10000.0)
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
        if values.get("rope_scaling"):
            _check_type("rope_parameters", values["rope_scaling"], fields["rope_parameters"][1])
        rope.convert(attributes, values, cls.get("theta", 10000.0))
    elif values.get("rope_scaling") and values.get("rope_theta"):
        attributes["rope_parameters"] = None
        rope.convert(attributes, values, 10000.0)
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


def assign(model_type: str, attributes: Attributes, key: str, value: Any) -> None:
    """``setattr`` on a config, which checks the type of a typed field."""
    field = classes()[model_type]["fields"].get(key)
    if field is not None:
        _check_type(key, value, field[1])
    attributes[key] = value


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
        if not all(kind in rope.LAYER_TYPES for kind in kinds):
            raise _class_validation("validate_layer_type", "The `layer_types` entries must be in")
        if layers is not None and layers != len(kinds):
            raise _class_validation("validate_layer_type", f"`num_hidden_layers` ({layers}) must be equal to")
    validate_rope(attributes)


def validate_rope(attributes: Attributes) -> None:
    """The rope validator of a class, whose errors are wrapped (huggingface_hub ``dataclasses.py``)."""
    try:
        rope.validate(attributes)
    except (TypeError, ValueError) as error:
        raise _class_validation("validate_rope", str(error), type(error).__name__) from error


def _class_validation(validator: str, message: str, error: str = "ValueError") -> Exception:
    return refuse_config(
        "StrictDataclassClassValidationError",
        f"Class validation error for validator '{validator}':\n    {error}: {message}",
    )
