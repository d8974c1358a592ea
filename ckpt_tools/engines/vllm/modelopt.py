"""ModelOpt blocks: FP8 and NVFP4 (``model_executor/layers/quantization/modelopt.py``)."""

from __future__ import annotations

from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any

from ckpt_tools.engines.vllm.modules import allocated
from ckpt_tools.engines.vllm.refusal import refuse_class
from ckpt_tools.engines.vllm.schemes import FP8_CACHE, Layout, Linear, Method, NotModelled

if TYPE_CHECKING:
    from collections.abc import Mapping

# modelopt.py:130-156: algorithm -> the method that owns it
ALGORITHMS: Mapping[str, str] = {
    "FP8": "modelopt",
    "FP8_PER_CHANNEL_PER_TOKEN": "modelopt",
    "FP8_PB_WO": "modelopt",
    "NVFP4": "modelopt_fp4",
    "W4A16_NVFP4": "modelopt_fp4",
    "MXFP8": "modelopt_mxfp8",
}


def read(settings: Mapping[str, Any], _tensors: Mapping[str, str]) -> Method:
    """Every layer and the head, but those that the list excludes (:321-402, :186-243)."""
    nested = "quantization" in settings
    block = settings["quantization"] if nested else settings
    if not isinstance(block, dict):
        raise refuse_class("ValueError", "Expected 'quantization' to be a dictionary in config")
    algorithm = block.get("quant_algo")
    if not algorithm:
        raise refuse_class("ValueError", "Missing 'quant_algo' in quantization config")
    algorithm = str(algorithm).upper()
    cache = block.get("kv_cache_quant_algo") if nested else None
    if cache is not None and not isinstance(cache, str):
        raise refuse_class("ValueError", f"kv_cache_quant_algo must be a string, got {type(cache)}")
    excluded = block.get("exclude_modules" if nested else "ignore", [])
    if not isinstance(excluded, list):
        raise refuse_class("ValueError", f"exclude_modules must be a list, got {type(excluded)}")
    size = block.get("group_size")
    size = 16 if size is None else int(size)
    if algorithm not in ALGORITHMS or (nested and algorithm == "NVFP4"):
        missing = [k for k in ("group_size", "kv_cache_quant_algo", "exclude_modules") if k not in block]
        if algorithm not in ALGORITHMS:
            if algorithm == "MIXED_PRECISION":
                raise NotModelled(algorithm)
            raise refuse_class("ValueError", "ModelOpt currently only supports:")
        if missing:
            raise refuse_class(
                "ValueError",
                f"NVFP4 quantization requires the following fields in hf_quant_config.json: {missing}",
            )
    groups = settings.get("config_groups")
    weights_only = (
        isinstance(groups, dict)
        and groups
        and all(
            isinstance(group, dict) and group.get("input_activations") is None for group in groups.values()
        )
    )
    if algorithm == "NVFP4" and weights_only:
        algorithm = "W4A16_NVFP4"
    if algorithm not in ("FP8", "NVFP4", "W4A16_NVFP4"):
        raise NotModelled(algorithm)

    def layout(linear: Linear) -> Layout:  # :1987-2040, :2104-2150
        if algorithm == "FP8":
            return {"weight": linear.matrix(), "weight_scale": linear.scale(), "input_scale": linear.scale()}
        allocated("empty", linear.outputs, linear.inputs // size)
        out = {
            "weight": linear.matrix(inputs=linear.inputs // 2),
            "weight_scale_2": linear.scale(),
            "weight_scale": linear.matrix(inputs=linear.inputs // size),
        }
        return out | ({"input_scale": linear.scale()} if algorithm == "NVFP4" else {})

    def taken(name: str) -> bool:
        return not any(item in name or fnmatch(name, item) for item in excluded)

    return Method(
        lambda name, _: layout if taken(name) else None, lambda name, _: taken(name), FP8_CACHE, latent=True
    )
