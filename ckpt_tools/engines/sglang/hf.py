"""What transformers makes of a config.json, for the transformers that a SGLang release pins.

The known ``model_type``s with their classes, fields, types and defaults are data, read from the classes themselves; this module
applies them: which class, which values, what is derived, what is refused. References are to transformers 5.19.0 unless said.
"""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckpt_tools.engines.sglang.refusal import Refused
from ckpt_tools.engines.versions import nearest, parse

if TYPE_CHECKING:
    from collections.abc import Mapping

PINS = ("4.57.1", "5.6.0", "5.19.0")
_TYPES: Mapping[str, type] = {"int": int, "float": float, "bool": bool, "str": str, "None": type(None)}
_NO_SCALING_LENGTH = ("llama3", "yarn", "longrope")


@dataclass
class HfConfig:
    """A config object: its class and the attributes that a loader reads.

    Attributes:
        name: The class, e.g. ``LlamaConfig``.
        attributes: By attribute name.
        aliases: Attribute names that stand for another one.
    """

    name: str
    attributes: dict[str, Any]
    aliases: Mapping[str, str] = field(default_factory=dict)

    def has(self, key: str) -> bool:
        """``hasattr``."""
        return self.aliases.get(key, key) in self.attributes

    def get(self, key: str, default: Any = None) -> Any:
        """``getattr`` with a default."""
        return self.attributes.get(self.aliases.get(key, key), default)

    def need(self, key: str) -> Any:
        """``getattr`` without one.

        Raises:
            Refused: No such attribute.
        """
        if not self.has(key):
            raise Refused("AttributeError", f"'{self.name}' object has no attribute '{key}'", "class")
        return self.get(key)


@lru_cache(maxsize=len(PINS))
def pin(transformers: str) -> Mapping[str, Any]:
    """The data of the newest recorded transformers that isn't newer than *transformers*."""
    major = parse(transformers).major
    version = nearest(tuple(p for p in PINS if parse(p).major == major) or PINS, transformers)
    text = (Path(__file__).parent / "data" / f"transformers-{version}.json").read_text("utf-8")
    data: Mapping[str, Any] = json.loads(text)
    return data


def read(config: Mapping[str, Any], transformers: str, path: str) -> HfConfig:
    """The config object that ``AutoConfig.from_pretrained`` gives.

    Args:
        config: Parsed ``config.json``.
        transformers: The version that the engine pins.
        path: The folder, as given to the server (transformers before 5 guesses a missing ``model_type`` from it).

    Raises:
        Refused: At stage ``config``.
    """
    data = pin(transformers)
    model_type = _model_type(config, data, path)
    name, own, rules, aliases = data["model_types"][model_type]
    fields = {**data["base"], **own}
    strict = parse(data["transformers"]) >= parse("5")
    given = deepcopy(dict(config))
    given.pop("model_type", None)
    attributes: dict[str, Any] = {"model_type": model_type}
    for key, (kind, default) in fields.items():
        value = given.pop(key) if key in given else deepcopy(default)
        if strict and kind:
            _check_type(key, value, kind)
        attributes[key] = value
    for rule in rules:
        _derive(attributes, rule)
    _torch_dtype(attributes, given)
    if strict and "rope_parameters" in attributes:
        _rope_to_parameters(attributes, given)
    for key, value in given.items():
        attributes[aliases.get(key, key)] = value
    result = HfConfig(name, attributes, aliases)
    _validate(attributes, rules)
    return result


def _model_type(config: Mapping[str, Any], data: Mapping[str, Any], path: str) -> str:
    """models/auto/configuration_auto.py:from_pretrained."""
    known = data["model_types"]
    if "model_type" not in config:
        if parse(data["transformers"]) < parse("5"):  # 4.57.1 configuration_auto.py:1376
            for pattern in sorted(known, key=len, reverse=True):
                if pattern in path:
                    return str(pattern)
        raise Refused(
            "ValueError",
            f"Unrecognized model in {path}. Should have a `model_type` key in its config.json.",
            "config",
        )
    model_type = config["model_type"]
    if model_type == "mistral" and "layer_types" in config:
        return "ministral"
    if model_type in known:
        return str(model_type)
    if "AutoConfig" in (config.get("auto_map") or {}):
        raise Refused(
            "ValueError",
            f"The repository {path} contains custom code which must be executed to correctly load the model.",
            "config",
        )
    raise Refused(
        "ValueError",
        f"The checkpoint you are trying to load has model type `{model_type}` but Transformers does not recognize this "
        "architecture. This could be because of an issue with the checkpoint, or because your version of Transformers is out of date.",
        "config",
    )


def _check_type(key: str, value: Any, kind: str) -> None:
    """Fields are validated on assignment (huggingface_hub dataclasses.py:608-618); a bool is no int."""
    kinds = [part.strip() for part in kind.split("|")]
    for name in kinds:
        if name.startswith("list"):
            if isinstance(value, list):
                return
        elif isinstance(value, _TYPES[name]) and not (name == "int" and isinstance(value, bool)):
            return
    found = type(value).__name__
    said = (
        f"expected {kinds[0]}, got {found} (value: {value!r})"
        if len(kinds) == 1
        else f"with value {value!r} doesn't match any type"
    )
    raise Refused(
        "StrictDataclassFieldValidationError",
        f"Validation error for field '{key}': TypeError: Field '{key}' {said}",
        "config",
    )


def _derive(attributes: dict[str, Any], rule: str) -> None:
    """What a class computes when it is built (each class's ``__post_init__`` or ``__init__``)."""
    if rule == "head_dim=hidden_size//num_attention_heads" and attributes.get("head_dim") is None:
        attributes["head_dim"] = _divide(attributes["hidden_size"], attributes["num_attention_heads"])
    elif rule == "head_dim:=qk_rope_head_dim":
        attributes["head_dim"] = attributes["qk_rope_head_dim"]
    elif rule == "sliding_window:=use_sliding_window" and not attributes.get("use_sliding_window"):
        attributes["sliding_window"] = None
    elif rule == "num_key_value_heads=num_attention_heads" and attributes.get("num_key_value_heads") is None:
        attributes["num_key_value_heads"] = attributes["num_attention_heads"]


def _torch_dtype(attributes: dict[str, Any], given: dict[str, Any]) -> None:
    """``dtype`` wins over ``torch_dtype``; a string must name an attribute of torch (configuration_utils.py:314-327)."""
    old = given.pop("torch_dtype", None)
    dtype = given.pop("dtype", None)
    if dtype is None:
        dtype = old
    if isinstance(dtype, str) and dtype not in TORCH_DTYPES:
        raise Refused("AttributeError", f"module 'torch' has no attribute '{dtype}'", "config")
    attributes["dtype"] = dtype


TORCH_DTYPES = frozenset(
    {"float32", "float", "float64", "double", "float16", "half", "bfloat16", "uint8", "int8", "int16", "short", "int32", "int", "int64", "long",
     "bool", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "complex64"}
)  # fmt: skip


def _rope_to_parameters(attributes: dict[str, Any], given: dict[str, Any]) -> None:
    """``convert_rope_params_to_dict`` and ``standardize_rope_params`` (modeling_rope_utils.py:752-843), one dict for all layers."""
    parameters = given.pop("rope_scaling", None) or attributes["rope_parameters"] or {}
    attributes["rope_parameters"] = parameters
    theta = given.pop("rope_theta", attributes.get("rope_theta", 10000.0))
    if not isinstance(parameters, dict):
        raise Refused(
            "AttributeError", f"'{type(parameters).__name__}' object has no attribute 'setdefault'", "config"
        )
    parameters.setdefault("rope_theta", theta)
    partial = given.get("partial_rotary_factor", attributes.get("partial_rotary_factor"))
    if partial is not None:
        parameters.setdefault("partial_rotary_factor", partial)
    parameters.setdefault("rope_type", parameters.get("type", "default"))
    if parameters["rope_type"] in _NO_SCALING_LENGTH:
        parameters.setdefault("original_max_position_embeddings", attributes.get("max_position_embeddings"))


def _validate(attributes: dict[str, Any], rules: list[str]) -> None:
    """What a class refuses once it is built; the class validators run in the order of their names (configuration_utils.py:500-550)."""
    if "refuse:hidden_size%num_attention_heads" in rules:
        hidden, heads = attributes["hidden_size"], attributes["num_attention_heads"]
        if heads == 0:
            raise Refused("ZeroDivisionError", "integer modulo by zero", "config")
        if hidden % heads:
            raise _class_error(
                "architecture",
                f"The hidden size ({hidden}) is not a multiple of the number of attention heads ({heads}).",
            )
    layer_types, layers = attributes.get("layer_types"), attributes.get("num_hidden_layers")
    if (
        "refuse:len(layer_types)" in rules
        and layer_types is not None
        and layers is not None
        and len(layer_types) != layers
    ):
        raise _class_error(
            "layer_type",
            f"`num_hidden_layers` ({layers}) must be equal to the number of `layer_types` ({len(layer_types)})",
        )
    rope = attributes.get("rope_parameters", attributes.get("rope_scaling"))
    if not isinstance(rope, dict) or not rope:
        return
    _validate_rope(rope, rules)
    head_dim, share = attributes.get("head_dim"), rope.get("partial_rotary_factor", 1.0)
    if (
        "refuse:head_dim%2" in rules
        and isinstance(head_dim, int)
        and head_dim > 4
        and head_dim % 2
        and int(head_dim * share) == head_dim
    ):
        raise _class_error("rope", f"RoPE requires an even rotary dimension, but got `head_dim`={head_dim}")


ROPE_REQUIRED: Mapping[str, frozenset[str]] = {
    "linear": frozenset({"factor"}),
    "dynamic": frozenset({"factor"}),
    "yarn": frozenset({"factor"}),
    "longrope": frozenset({"short_factor", "long_factor"}),
    "llama3": frozenset(
        {"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"}
    ),
}


def _validate_rope(rope: dict[str, Any], rules: list[str]) -> None:
    """A rope type's missing keys raise; unknown types and extra keys only warn (modeling_rope_utils.py:896-1080)."""
    if "type" in rope:
        rope["rope_type"] = rope["type"]
    kind = rope.get("rope_type")
    missing = (
        set(ROPE_REQUIRED.get(str(kind), frozenset()) - set(rope)) if "refuse:rope_keys" in rules else set()
    )
    if "refuse:rope_type" in rules and kind is None:
        missing = {"rope_type"}
    if missing:
        raise Refused(
            "KeyError",
            f"\"Missing required keys in `rope_scaling` for 'rope_type'='{kind}': {missing}\"",
            "config",
        )


def _class_error(validator: str, message: str) -> Refused:
    return Refused(
        "StrictDataclassClassValidationError",
        f"Class validation error for validator 'validate_{validator}': ValueError: {message}",
        "config",
    )


def _divide(a: Any, b: Any) -> int:
    if b == 0:
        raise Refused("ZeroDivisionError", "integer division or modulo by zero", "config")
    return int(a // b)
