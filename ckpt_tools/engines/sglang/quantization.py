"""What a ``quantization_config`` in the draft's config makes of its linear layers.

A config copied from a quantised target is enough: the parameters then have other names, or other dtypes, and plain weights
reach none of them. References are to SGLang 0.5.23, below ``sglang/srt/``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckpt_tools.engines.sglang import quantized_linear as linears
from ckpt_tools.engines.sglang import unquantized_layers as left
from ckpt_tools.engines.sglang.linear import CLASS_NAMES, UNQUANTIZED, Linear, Method
from ckpt_tools.engines.sglang.quantized_linear import refuse
from ckpt_tools.engines.sglang.refusal import Refused
from ckpt_tools.engines.versions import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ckpt_tools.engines.sglang.features import Features
    from ckpt_tools.engines.sglang.parameters import Parameter


@dataclass(frozen=True)
class Quantization:
    """The method of a config.

    Attributes:
        name: ``None`` when not quantised.
        linear: Gives a linear layer's parameters.
        attention_scales: Whether attention gets ``k_scale`` and ``v_scale`` parameters.
        modelled: Whether the parameters are known here.
        head: Gives the head's parameters, where the method quantises it too.
    """

    name: str | None
    linear: Method
    attention_scales: bool = False
    modelled: bool = True
    head: Method | None = None


NONE = Quantization(None, UNQUANTIZED)


@lru_cache(maxsize=8)
def methods(version: str) -> frozenset[str]:
    """The methods that a release knows on a GPU (layers/quantization/__init__.py ``BASE_QUANTIZATION_METHODS``)."""
    text = (Path(__file__).parent / "data" / "quantization.json").read_text("utf-8")
    known: Mapping[str, list[str]] = json.loads(text)
    return frozenset(known[nearest(tuple(known), version)])


def method_name(config: Mapping[str, Any] | None, version: str, features: Features) -> str | None:
    """The method that ``_verify_quantization`` chooses (configs/model_config.py:2000-2171).

    Raises:
        Refused: At stage ``config``: no such method.
    """
    if config is None:
        return None
    given = config.get("quant_method", "")
    parsed = None
    if given == "" or (given == "modelopt" and features.modelopt_from_config):
        parsed = modelopt_method(config, features)
    if not isinstance(given, str):
        raise Refused("AttributeError", f"'{type(given).__name__}' object has no attribute 'lower'", "config")
    name = parsed or given.lower()
    if name not in methods(version):
        raise Refused("ValueError", f"Unknown quantization method: {name}.", "config")
    return name


def modelopt_method(config: Mapping[str, Any], features: Features) -> str | None:
    """``_parse_modelopt_quant_config`` (configs/model_config.py:1839-1897); ``None`` when nothing is quantised."""
    inner = config.get("quantization", config)
    algo = inner.get("quant_algo") if isinstance(inner, dict) else None
    if not isinstance(algo, str):
        return None
    if algo == "MIXED_PRECISION":
        return "w4afp8"
    if "FP4" in algo:
        return "modelopt_fp4"
    if algo == "MXFP8" and features.modelopt_exact:
        return "mxfp8"
    return "modelopt_fp8" if algo == "FP8" or ("FP8" in algo and not features.modelopt_exact) else None


def resolve(name: str | None, config: Mapping[str, Any] | None, features: Features) -> Quantization:
    """The method's own reading of *config* (each ``from_config``).

    Raises:
        Refused: At stage ``class``: the config isn't one that the method takes.
    """
    if name is None or config is None:
        return NONE
    if name == "fp8":
        return _fp8(config, features)
    if name == "compressed-tensors":
        return _compressed_tensors(config, features)
    if name in ("gptq", "gptq_marlin"):
        bits, group, _ = (_need(config, key) for key in ("bits", "group_size", "desc_act"))
        if bits not in (2, 3, 4, 8):
            raise refuse(
                f"Currently, only 2/3/4/8-bit weight quantization is supported for GPTQ, but got {bits} bits."
            )
        return Quantization(name, linears.gptq(bits, group), modelled=not config.get("dynamic"))
    if name in ("awq", "awq_marlin"):
        bits = _need(config, "w_bit", "bits")
        group = _need(config, "q_group_size", "group_size")
        _need(config, "zero_point")
        if bits != 4:
            raise refuse(
                f"Currently, only 4-bit weight quantization is supported for AWQ, but got {bits} bits."
            )
        ignored = config.get("modules_to_not_convert") or ()
        return Quantization(
            name, _except(linears.awq(bits, group), lambda path: left.by_piece(path, ignored))
        )
    if name in ("modelopt", "modelopt_fp8"):
        return _modelopt_fp8(name, config, features)
    if name == "modelopt_fp4":
        return _modelopt_fp4(config, features)
    return Quantization(name, UNQUANTIZED, modelled=False)


def _except(method: Method, skipped: Callable[[str], bool]) -> Method:
    """*method* but for the layers that the config leaves alone."""

    def chosen(name: str, linear: Linear) -> dict[str, Parameter]:
        return (UNQUANTIZED if skipped(linear.path) else method)(name, linear)

    return chosen


def _need(config: Mapping[str, Any], *keys: str) -> Any:
    """``get_from_keys`` (layers/quantization/base_config.py)."""
    for key in keys:
        if key in config:
            return config[key]
    raise refuse(f"Cannot find any of {list(keys)} in the model's quantization config.")


def _fp8(config: Mapping[str, Any], features: Features) -> Quantization:
    """layers/quantization/fp8.py:210-290, 346-386."""
    serialized = "fp8" in config["quant_method"]
    scheme = _need(config, "activation_scheme")
    ignored = (
        next((config[k] for k in ("ignored_layers", "modules_to_not_convert") if k in config), None) or []
    )
    if features.skips_whole_names:
        bases = [name.removeprefix("model.") for name in ignored]
        ignored = [*bases, *(f"model.{base}" for base in bases)]
    if scheme not in ("static", "dynamic"):
        raise refuse(f"Unsupported activation scheme {scheme}")
    block = config.get("weight_block_size")
    if block is not None:
        if not serialized:
            raise refuse("The block-wise quantization only supports fp8-serialized checkpoint for now.")
        if len(block) != 2:
            raise refuse(
                f"The quantization block size of weight must have 2 dimensions, but got {len(block)} dimensions."
            )
        if scheme != "dynamic":
            raise refuse(
                f"The block-wise quantization only supports dynamic activation scheme for now, but got {scheme} activation scheme."
            )
        method = linears.fp8_block(block)
    elif serialized:
        method = partial(linears.fp8_tensor, static=scheme == "static")
    else:
        method = linears.fp8_unserialized
    return Quantization(
        "fp8", _except(method, lambda path: left.by_path(path, ignored, features)), attention_scales=True
    )


def _modelopt_fp8(name: str, config: Mapping[str, Any], features: Features) -> Quantization:
    """layers/quantization/modelopt_quant.py:466-522."""
    algo, excluded = config.get("quant_algo"), config.get("ignore")
    cache: Any = None
    if algo is not None:
        scheme = config.get("kv_cache_scheme")
        if isinstance(scheme, dict):
            cache = "FP8" if scheme.get("type") == "float" and scheme.get("num_bits") == 8 else None
        elif features.quantized_head:
            cache = config.get("kv_cache_quant_algo")
    elif isinstance(config.get("quantization"), dict):
        inner = config["quantization"]
        algo, excluded, cache = (
            inner.get(key) for key in ("quant_algo", "exclude_modules", "kv_cache_quant_algo")
        )
    if algo is None:
        raise refuse("Cannot find 'quant_algo' in the model's quantization config.")
    if algo != "FP8" if features.modelopt_exact else "FP8" not in algo:
        raise refuse(f"ModelOptFp8Config only supports regular FP8 quantization, but found {algo!r}.")
    return _modelopt(
        name, partial(linears.fp8_tensor, static=True), excluded or [], features, scales=bool(cache)
    )


def _modelopt_fp4(config: Mapping[str, Any], features: Features) -> Quantization:
    """layers/quantization/modelopt_quant.py:1595-1702."""
    algo, name = config.get("quant_algo"), "modelopt_fp4"
    excluded: Any
    if algo is not None:
        group = config.get("group_size")
        if group is None and config.get("config_groups"):
            group = next(iter(config["config_groups"].values())).get("weights", {}).get("group_size")
        if group is None and "NVFP4" in algo:
            group = 16
        keys = (
            ("ignore", "modules_to_not_convert", "exclude_modules")
            if features.quantized_head
            else ("ignore",)
        )
        excluded = next((config[key] for key in keys if key in config), [])
    else:
        inner = config.get("quantization")
        if not isinstance(inner, dict) or "quant_algo" not in inner:
            raise refuse("Cannot find 'quant_algo' in the model's quantization config.")
        algo, group, excluded = inner["quant_algo"], inner.get("group_size"), inner.get("exclude_modules", [])
    if algo not in ("FP8", "NVFP4", "NVFP4_AWQ", "W4A16_NVFP4"):
        raise refuse(
            "ModelOpt currently only supports: FP8, NVFP4, NVFP4_AWQ, W4A16_NVFP4 quantizations in sglang."
        )
    if group is None or excluded is None:
        raise refuse(
            "NVFP4 quantization requires group_size and exclude_modules specified in the quantization config"
        )
    if algo != "NVFP4":
        return Quantization(name, UNQUANTIZED, modelled=False)
    return _modelopt(name, linears.nvfp4(int(group)), excluded, features, scales=True)


def _modelopt(
    name: str, method: Method, excluded: Sequence[str], features: Features, *, scales: bool
) -> Quantization:
    """layers/quantization/modelopt_quant.py:329-356; the head is a linear like any other, once it wasn't."""

    def skipped(path: str) -> bool:
        return left.by_path(path, excluded, features) or left.by_pattern(path, excluded)

    quantized = _except(method, skipped)
    return Quantization(name, quantized, scales, head=quantized if features.quantized_head else None)


_PACKED, _ACTIVATIONS = (
    "pack-quantized",
    ("naive-quantized", "int-quantized", "float-quantized", "nvfp4-pack-quantized"),
)


def _compressed_tensors(config: Mapping[str, Any], features: Features) -> Quantization:
    """layers/quantization/compressed_tensors/compressed_tensors.py:250-430, 690-860."""
    name = "compressed-tensors"
    if config.get("linear_fp8_config") or config.get("sparsity_config"):
        return Quantization(name, UNQUANTIZED, modelled=False)
    schemes: dict[str, Method] = {}
    for group in (config.get("config_groups") or {}).values():
        for target in group.get("targets") or ():
            found = _scheme(group, config.get("format"), features)
            if found is None:
                return Quantization(name, UNQUANTIZED, modelled=False)
            schemes[target] = found
    ignored = config.get("ignore") or []
    if features.tensors_head and any(
        left.by_suffix("lm_head", (target,), features) for target in schemes if target != "Linear"
    ):
        return Quantization(name, UNQUANTIZED, modelled=False)

    def method(layer: str, linear: Linear) -> dict[str, Parameter]:
        if not schemes or left.by_suffix(linear.path, ignored, features):
            return UNQUANTIZED(layer, linear)
        return schemes[_target(linear, schemes)](layer, linear)

    return Quantization(name, method, _cache_scales(config.get("kv_cache_scheme"), features))


def _cache_scales(scheme: Any, features: Features) -> bool:
    """compressed_tensors.py:212-226, 1276-1285."""
    return (
        features.tensors_head
        and isinstance(scheme, dict)
        and (scheme.get("type"), scheme.get("num_bits"), scheme.get("strategy")) == ("float", 8, "tensor")
        and bool(scheme.get("symmetric", True))
        and not scheme.get("dynamic", False)
    )


def _target(linear: Linear, targets: Mapping[str, Any]) -> str:
    """``find_matched_target`` (compressed_tensors/utils.py:107-153): the path, then the class."""
    for value, pieces in ((linear.path, False), (CLASS_NAMES[linear.kind], True)):
        for target in targets:
            if target.startswith("re:"):
                if re.match(target[3:], value):
                    return target
            elif value == target or (pieces and target.lower() in value.lower()):
                return target
    raise refuse(f"Unable to find matching target for {linear.path} in the compressed-tensors config.")


def _scheme(group: Mapping[str, Any], form: Any, features: Features) -> Method | None:
    """``_get_scheme_from_parts`` (compressed_tensors.py:735-860); ``None`` for what isn't known here.

    A scheme that SGLang lacks refuses the first layer that it is chosen for.
    """
    form = (group.get("format") or form) if features.group_formats else form
    weights, given = group.get("weights"), group.get("input_activations")
    if not isinstance(weights, dict):
        return None
    activated = form in (*_ACTIVATIONS, *((_PACKED,) if features.packed_activations else ()))
    inputs = given if activated and isinstance(given, dict) else None
    bits, kind, strategy = weights.get("num_bits"), weights.get("type", "int"), weights.get("strategy")
    if strategy == "group" and not (weights.get("group_size") or 0) > 0:
        raise refuse("strategy group requires group_size to be set to a positive value", "ValidationError")
    symmetric, static = bool(weights.get("symmetric", True)), not weights.get("dynamic", False)
    if (
        inputs is None
        and strategy in ("channel", "group")
        and static
        and kind == "int"
        and (symmetric or features.asymmetric)
    ):
        if form != _PACKED or bits not in (4, 8):
            return _refusing(
                "Other method (CompressedTensorsW4A16Sparse24) is not supported now", "ImportError"
            )
        ordered = weights.get("actorder") == "group"
        return linears.packed(bits, weights.get("group_size"), symmetric=symmetric, ordered=ordered)
    if activated and bits == 8 and strategy in ("tensor", "channel") and symmetric and static:
        found = _eight_bits(kind, strategy, inputs)
        if found is not None:
            return found
    if kind == "int" and not activated:
        return _refusing("No compressed-tensors compatible scheme was found.", "NotImplementedError")
    return None


def _eight_bits(kind: str, strategy: str, inputs: Mapping[str, Any] | None) -> Method | None:
    """Weights of 8 bits with a scale per tensor or row (compressed_tensors.py:795-850)."""
    dynamic = inputs is None or bool(inputs.get("dynamic", False))
    if kind == "float" and (inputs is None or inputs.get("type") == "float"):
        if not dynamic and not (inputs and inputs.get("strategy") == "tensor"):
            return None
        if strategy == "channel":
            return linears.channel("F8_E4M3", static=not dynamic)
        return partial(linears.fp8_tensor, static=not dynamic)
    if kind == "int" and inputs is not None and dynamic and inputs.get("strategy") == "token":
        if strategy == "channel":
            return linears.channel("I8")
        return partial(linears.fp8_tensor, static=False, dtype="I8")
    return None


def _refusing(message: str, error: str) -> Method:
    def method(name: str, linear: Linear) -> dict[str, Parameter]:  # noqa: ARG001
        raise refuse(message, error)

    return method
