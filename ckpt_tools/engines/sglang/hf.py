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

from ckpt_tools.engines.sglang.refusal import Refused, values_as_in_the_engine
from ckpt_tools.engines.versions import nearest, parse

if TYPE_CHECKING:
    from collections.abc import Mapping

PINS = ("4.57.1", "5.6.0", "5.19.0")
_TYPES: Mapping[str, type] = {
    "int": int,
    "float": float,
    "bool": bool,
    "str": str,
    "dict": dict,
    "None": type(None),
}
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
    with values_as_in_the_engine("config"):
        return _read(config, pin(transformers), path)


def _read(config: Mapping[str, Any], data: Mapping[str, Any], path: str) -> HfConfig:
    model_type = _model_type(config, data, path)
    name, own, rules, aliases = data["model_types"][model_type]
    fields = {**data["base"], **own}
    strict = parse(data["transformers"]) >= parse("5")
    given = {aliases.get(key, key): value for key, value in deepcopy(dict(config)).items()}
    given.pop("model_type", None)
    attributes: dict[str, Any] = {"model_type": model_type, "architectures": None}
    # a class that checks its fields' types sees a dtype's name only later (5.6.0); others see it first (5.19.0)
    late = data["refuses"]["id2label"] == "AttributeError"
    if not late:
        _check_common(given, data["refuses"])
    for key, (kind, default) in fields.items():
        if key in aliases:  # a class's own name for it is a field too
            continue
        value = given.pop(key) if key in given else deepcopy(default)
        if strict and kind:
            _check_type(key, value, kind)
        attributes[key] = value
    if "refuse:rope_parameters" in rules and "rope_parameters" in attributes:
        for value in (attributes["rope_parameters"], given.get("rope_scaling") or None):
            _check_type("rope_parameters", value, "dict | None")
    for rule in rules:
        _derive(attributes, rule)
    _torch_dtype(attributes, given)
    if late:
        _check_common(given, data["refuses"])
    if strict and "rope_parameters" in attributes:
        _rope_to_parameters(attributes, given, nested="rope:by_layer_type" in rules)
    if "use_return_dict" in given:
        raise Refused("AttributeError", "property 'use_return_dict' has no setter", "config")
    attributes |= given
    if "last:head_dim:=qk_rope_head_dim" in rules:
        attributes["head_dim"] = attributes["qk_rope_head_dim"]
    if "last:attention_bias:=False" in rules:
        attributes["attention_bias"] = False
    result = HfConfig(name, attributes, aliases)
    _validate(attributes, data, rules, stated=frozenset(config))
    quantization = config.get("quantization_config", {})
    if not strict and not isinstance(quantization, dict):
        # the finished config is printed, and a null too is asked for its dict (4.57.1 configuration_utils.py:928-933)
        kind = type(quantization).__name__
        raise Refused("AttributeError", f"'{kind}' object has no attribute 'to_dict'", "config")
    return result


def _check_common(given: Mapping[str, Any], refuses: Mapping[str, str | None]) -> None:
    """What every config's base class refuses; *refuses* names each field's error (configuration_utils.py:282-300, 4.57.1: 240-305)."""
    labels = given.get("id2label")
    if labels is not None and not isinstance(labels, dict):
        raise Refused(str(refuses["id2label"]), "id2label isn't a dictionary", "config")
    if labels is not None:
        _ = [int(key) for key in labels]
    elif given.get("num_labels") is not None:
        _ = range(given["num_labels"])
    kinds = ("regression", "single_label_classification", "multi_label_classification")
    if refuses["problem_type"] and given.get("problem_type") not in (None, *kinds):
        raise Refused(str(refuses["problem_type"]), "problem_type is none of its kinds", "config")


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
    remote = "auto_map" in config and "AutoConfig" in config["auto_map"]
    if model_type == "mistral" and "layer_types" in config:
        return "ministral"
    if model_type in known:
        return str(model_type)
    if remote:
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
            item = _TYPES[name[5:-1]]
            if isinstance(value, list) and all(
                isinstance(v, item) and not isinstance(v, bool) for v in value
            ):
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
        attributes["head_dim"] = attributes["hidden_size"] // attributes["num_attention_heads"]
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


FLOATS = frozenset(
    {"float32", "float", "float64", "double", "float16", "half", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
     "float8_e5m2fnuz", "float8_e8m0fnu"}
)  # fmt: skip
TORCH_DTYPES = FLOATS | frozenset(
    {"uint8", "int8", "int16", "short", "int32", "int", "int64", "long", "bool", "bit", "complex32", "complex64", "complex128", "chalf",
     "cfloat", "cdouble", "uint16", "uint32", "uint64", "qint8", "qint32", "quint8", *(f"{u}int{n}" for u in ("", "u") for n in range(1, 8))}
)  # fmt: skip


def _rope_to_parameters(attributes: dict[str, Any], given: dict[str, Any], *, nested: bool) -> None:
    """``convert_rope_params_to_dict`` and ``standardize_rope_params`` (modeling_rope_utils.py:752-843), one dict for all layers
    but in classes that keep one for each type of layer."""
    parameters = given.pop("rope_scaling", None) or attributes["rope_parameters"] or {}
    attributes["rope_parameters"] = parameters
    if nested:
        attributes["rope_parameters"] = dict.fromkeys(("full_attention", "sliding_attention"), parameters)
        return
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


def _validate(
    attributes: dict[str, Any], data: Mapping[str, Any], rules: list[str], *, stated: frozenset[str]
) -> None:
    """What a class refuses once it is built; the class validators run in the order of their names (configuration_utils.py:500-550)."""
    strict = parse(data["transformers"]) >= parse("5")
    if "refuse:hidden_size%num_attention_heads" in rules:
        hidden, heads = attributes["hidden_size"], attributes["num_attention_heads"]
        if heads == 0:
            raise Refused("ZeroDivisionError", "integer modulo by zero", "config")
        if hidden % heads:
            raise _class_error(
                "architecture",
                f"The hidden size ({hidden}) is not a multiple of the number of attention heads ({heads}).",
            )
    types = attributes.get("layer_types") if "layer_types" in stated else None
    if "refuse:layer_types" in rules and types is None and not strict and "num_hidden_layers" in stated:
        types = ["full_attention"] * len(range(attributes["num_hidden_layers"]))  # each class's own line
    if "refuse:layer_types" in rules and types is not None:
        message = _layer_types(types, attributes.get("num_hidden_layers"), data["layer_types"])
        if message:
            raise _class_error("layer_type", message) if strict else Refused("ValueError", message, "config")
    rope = attributes.get("rope_parameters" if strict else "rope_scaling")
    if not strict and rope is not None and "refuse:rope_keys" in rules:
        if "type" in rope:  # each class's own line before it validates
            rope["rope_type"] = rope["type"]
        _validate_rope({"rope_type": rope.get("rope_type", "default")} | rope, rope, rules)
    if not isinstance(rope, dict) or not rope or not strict or "rope:by_layer_type" in rules:
        return
    _validate_rope(rope, rope, rules)
    head_dim, share = attributes.get("head_dim"), rope.get("partial_rotary_factor", 1.0)
    if (
        "refuse:head_dim%2" in rules
        and isinstance(head_dim, int)
        and head_dim > 4
        and head_dim % 2
        and int(head_dim * share) == head_dim
    ):
        raise _class_error("rope", f"RoPE requires an even rotary dimension, but got `head_dim`={head_dim}")


def _layer_types(types: Any, layers: Any, known: list[str]) -> str | None:
    """``validate_layer_type`` (configuration_utils.py:557-573; ``layer_type_validation`` before 5)."""
    if not all(kind in known for kind in types):
        return f"The `layer_types` entries must be in {tuple(known)} but got {types}"
    if layers is not None and layers != len(types):
        return f"`num_hidden_layers` ({layers}) must be equal to the number of `layer_types` ({len(types)})"
    return None


ROPE_REQUIRED: Mapping[str, frozenset[str]] = {
    "linear": frozenset({"factor"}),
    "dynamic": frozenset({"factor"}),
    "yarn": frozenset({"factor"}),
    "longrope": frozenset({"short_factor", "long_factor"}),
    "llama3": frozenset(
        {"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"}
    ),
}


def _validate_rope(typed: dict[str, Any], rope: dict[str, Any], rules: list[str]) -> None:
    """A rope type's missing keys raise; unknown types and extra keys only warn (modeling_rope_utils.py:896-1080)."""
    kind = str(typed.get("rope_type"))
    missing = set(ROPE_REQUIRED.get(kind, ())) - set(rope) if "refuse:rope_keys" in rules else set()
    if "refuse:rope_type" in rules and kind == "default" and "rope_type" not in rope:
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
