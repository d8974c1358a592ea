"""Quantised drafts in vLLM."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ckpt_tools.engines import resolve
from ckpt_tools.engines.vllm.arch import quantization
from ckpt_tools.engines.vllm.loadmap import load_map
from ckpt_tools.model import TensorInfo
from tests.unit.engines.vllm_drafts import H, checkpoint, config, eagle3, mapped, target

INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
FP8 = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}


def compressed(weights: dict[str, Any], layout: str = "pack-quantized", **changes: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "config_groups": {"group_0": group},
    } | changes


def parameters(settings: dict[str, Any], prefix: str = "model.fc.") -> set[str]:
    """The parameters of one linear layer under a quantisation."""
    found = mapped(config(quantization_config=settings), eagle3())
    return {name.removeprefix(prefix) for name in found.parameters if name.startswith(prefix)}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, {"weight", "weight_scale"}),
        ({"quant_method": "fp8", "activation_scheme": "static"}, {"weight", "weight_scale", "input_scale"}),
        (
            {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32]},
            {"weight", "weight_scale_inv"},
        ),
        ({"quant_method": "fp8", "activation_scheme": "dynamic", "ignored_layers": ["model.fc"]}, {"weight"}),
        ({"quant_method": "gptq", "desc_act": False, "sym": True, "bits": 4, "group_size": 32}, {"weight"}),
        (
            {
                "quant_method": "gptq",
                "desc_act": False,
                "sym": True,
                "bits": 4,
                "group_size": -1,
                "modules_in_block_to_quantize": [["fc"]],
            },
            {"qweight", "scales", "qzeros"},
        ),
        (
            {
                "quant_method": "awq",
                "w_bit": 4,
                "q_group_size": 32,
                "zero_point": True,
                "modules_to_not_convert": ["x"],
            },
            {"qweight", "scales", "qzeros"},
        ),
        (compressed(INT4), {"weight_packed", "weight_scale", "weight_shape"}),
        (
            compressed(INT4 | {"symmetric": False}),
            {"weight_packed", "weight_scale", "weight_shape", "weight_zero_point"},
        ),
        (
            compressed(INT4 | {"strategy": "channel", "group_size": None}),
            {"weight_packed", "weight_scale", "weight_shape"},
        ),
        (compressed(FP8, "float-quantized"), {"weight", "weight_scale"}),
        (compressed(INT4, ignore=["re:.*fc$"]), {"weight"}),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
            {"weight", "weight_scale", "weight_scale_2", "input_scale"},
        ),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["model.f*", "lm_head"]}, {"weight"}),
    ],
)
def test_the_parameters_of_a_linear_layer(settings: dict[str, Any], expected: set[str]) -> None:
    assert parameters(settings) == expected


def test_static_fp8_of_one_group() -> None:
    block = compressed(FP8 | {"strategy": "tensor"}, "float-quantized")
    block["config_groups"]["group_0"]["input_activations"] = {"type": "float", "strategy": "tensor"}
    assert parameters(block) == {"weight", "weight_scale", "input_scale"}


@pytest.mark.parametrize(
    "settings",
    [
        {"quant_method": "torchao"},
        compressed(INT4 | {"type": "float"}),
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    ],
)
def test_rare_schemes_are_named_only(settings: dict[str, Any]) -> None:
    found = mapped(config(quantization_config=settings), eagle3())
    assert (found.refused, found.parameters) == (None, {})


def test_a_block_copied_onto_a_bf16_draft_casts_without_scales() -> None:
    found = mapped(
        config(quantization_config={"quant_method": "fp8", "activation_scheme": "dynamic"}), eagle3()
    )
    assert found.refused is None
    assert found.parameters["model.fc.weight"].filled_by == "checkpoint"
    assert found.parameters["model.fc.weight_scale"].filled_by == "nothing"
    assert found.parameters["model.layers.0.self_attn.attn.k_scale"].filled_by == "default"


def test_real_fp8_scales_reach_their_parts() -> None:
    scales = {f"layers.0.self_attn.{p}_proj.weight_scale": () for p in "qkv"} | {"fc.weight_scale": (1,)}
    settings = config(quantization_config={"quant_method": "fp8", "activation_scheme": "dynamic"})
    found = mapped(settings, eagle3() | scales)
    assert found.refused is None
    assert found.parameters["model.layers.0.self_attn.qkv_proj.weight_scale"].filled_by == "checkpoint"
    one = mapped(settings, eagle3() | {"layers.0.self_attn.qkv_proj.weight_scale": ()})
    assert one.parameters["model.layers.0.self_attn.qkv_proj.weight_scale"].filled_by == "checkpoint"
    wrong = mapped(settings, eagle3() | {"layers.0.self_attn.q_proj.weight_scale": (2,)})
    assert wrong.refused == "AssertionError: "


def test_cache_scales_are_mapped_or_forgiven() -> None:
    fp8 = config(quantization_config={"quant_method": "fp8", "activation_scheme": "dynamic"})
    found = mapped(fp8, eagle3() | {"layers.0.self_attn.k_proj.k_scale": ()})
    assert found.parameters["model.layers.0.self_attn.attn.k_scale"].filled_by == "checkpoint"
    gptq = config(
        quantization_config={
            "quant_method": "gptq",
            "desc_act": False,
            "sym": True,
            "bits": 4,
            "group_size": 32,
        }
    )
    found = mapped(gptq, eagle3() | {"layers.0.self_attn.k_scale": (1,), "fc.g_idx": (3,)})
    assert found.refused is None
    assert set(found.unused) >= {"layers.0.self_attn.k_scale", "fc.g_idx"}


def test_a_packed_draft_whose_numbers_match_no_runtime_layer_raises() -> None:
    table = {n: s for n, s in eagle3().items() if n != "layers.0.mlp.down_proj.weight"}
    table |= {
        "layers.0.mlp.down_proj.qweight": (12, H),
        "layers.0.mlp.down_proj.qzeros": (3, 8),
        "layers.0.mlp.down_proj.scales": (3, H),
    }
    settings = config(
        quantization_config={
            "quant_method": "gptq",
            "desc_act": False,
            "sym": True,
            "bits": 4,
            "group_size": 32,
        }
    )
    draft = checkpoint(settings, table)
    tensors = {
        n: TensorInfo(n, "I32" if "qweight" in n else i.dtype, i.shape, i.file, 0, 0)
        for n, i in draft.tensors.items()
    }
    draft = replace(draft, tensors=tensors)
    engine = resolve("vllm", "--engine")
    assert "named 'layers.0.mlp.down_proj.qweight'" in str(load_map(engine, draft, target()).refused)
    assert load_map(engine, draft, target(num_hidden_layers=0)).refused is None
    assert load_map(engine, draft, None).refused is not None


def test_names_of_methods() -> None:
    def name(block: dict[str, Any] | None) -> str | None:
        found = quantization({"quantization_config": block})
        return None if found is None else found["quant_method"]

    assert name(None) is None
    assert name({"quant_method": "compressed_tensors"}) == "compressed-tensors"
    assert name({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}) == "modelopt_fp4"
    assert name({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}) == "modelopt"
