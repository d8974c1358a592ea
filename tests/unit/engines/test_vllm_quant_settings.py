"""What vLLM refuses in a draft's quantisation block, and which layers the block takes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.engines.vllm_drafts import H, config, eagle3, mapped

GROUP = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
FP8 = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
TOKEN = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}


def compressed(weights: Any, layout: str | None = "pack-quantized", **changes: Any) -> dict[str, Any]:
    """A block with one group; keys of the group beside its targets go in ``group``."""
    group = {"targets": ["Linear"], "weights": weights} | changes.pop("group", {})
    return {"quant_method": "compressed-tensors", "format": layout, "config_groups": {"a": group}} | changes


def refused(block: dict[str, Any]) -> str | None:
    """The engine's words."""
    return mapped(config(quantization_config=block), {}).refused


@pytest.mark.parametrize(
    ("block", "says"),
    [
        (
            {"quant_method": "fp8"},
            "Cannot find any of ['activation_scheme'] in the model's quantization config.",
        ),
        ({"quant_method": "fp8", "activation_scheme": "x"}, "Unsupported activation scheme x"),
        (
            {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32]},
            "but got 1 dimensions",
        ),
        (
            {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": [32, 32]},
            "only supports",
        ),
        (
            {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
            "block_n = 128",
        ),
        (AWQ | {"bits": 8}, "ValueError: Unsupported num_bits = 8. Supported: 4."),
        (AWQ | {"bits": 4.0, "modules_to_not_convert": ["x"]}, "must be tuple of ints,but got float"),
        ({"quant_method": "awq", "bits": 4, "group_size": 32}, "Cannot find any of ['zero_point']"),
        (GPTQ | {"bits": 3}, "Unsupported quantization config: bits=3, sym=True"),
        (GPTQ | {"sym": None}, "Unsupported quantization config: bits=4, sym=None"),
        (GPTQ | {"desc_act": True}, "GPTQ group activation ordering (desc_act=True) is no longer supported."),
        (
            GPTQ | {"group_size": 48, "modules_in_block_to_quantize": ["fc"]},
            "does not support group_size = 48",
        ),
        (GPTQ | {"bits": "4"}, "unsupported operand type(s) for //: 'int' and 'str'"),
        (NVFP4 | {"quant_algo": None}, "Missing 'quant_algo'"),
        (NVFP4 | {"quant_algo": "x"}, "ModelOpt currently only supports:"),
        (NVFP4 | {"ignore": "fc"}, "exclude_modules must be a list, got <class 'str'>"),
        (
            NVFP4 | {"quantization": {"quant_algo": "NVFP4"}},
            "requires the following fields in hf_quant_config.json:",
        ),
        (NVFP4 | {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": 0}}, "must be a string, got"),
        (compressed(GROUP, group={"output_activations": "x"}), "Input should be a valid dictionary"),
        (NVFP4 | {"quantization": []}, "Expected 'quantization' to be a dictionary in config"),
        (compressed(None), "Input should be a valid dictionary"),
        (compressed(GROUP | {"type": "x"}), "'x' is not a valid QuantizationType"),
        (compressed(GROUP | {"strategy": "x"}), "'x' is not a valid QuantizationStrategy"),
        (compressed(TOKEN | {"dynamic": False}), "Cannot perform static token quantization"),
        (compressed(GROUP | {"group_size": -1}), "strategy group requires group_size to be set"),
        (compressed(GROUP | {"strategy": "channel"}), "group_size requires strategy to be set to 'group'"),
        (compressed(FP8 | {"strategy": "block"}), "Block str"),
        (compressed(FP8 | {"actorder": "dynamic"}), "Must use group or tensor_group quantization strategy"),
        (compressed(FP8 | {"dynamic": True}), "ValidationError: Value error, One of ("),
        (compressed(FP8 | {"num_bits": 3}), "Only num_bits in (8) are supported"),
        (compressed(GROUP | {"actorder": "group"}), "(actorder='group') is no longer"),
        (compressed(GROUP | {"actorder": True}), "(actorder='group') is no longer"),
        (
            compressed(GROUP | {"group_size": 128}),
            "Weight input_size_per_partition=64 for layer 'model.layers.8.",
        ),
        (compressed(GROUP | {"num_bits": 9}), "Unsupported num_bits = 9."),
        (
            compressed(GROUP, None),
            "No compressed-tensors compatible scheme was found for layer_name='model.layers.8.",
        ),
        (compressed(GROUP, "int-quantized"), "AssertionError"),
        (compressed(GROUP, group={"input_activations": TOKEN}), "No compressed-tensors compatible scheme"),
        (compressed(GROUP, sparsity_config={"targets": ["Linear"]}), "Sparsity support has been removed"),
        (compressed(GROUP, config_groups={"a": {"weights": GROUP}}), "KeyError: 'targets'"),
        (compressed(GROUP, ignore=None), "'NoneType' object is not iterable"),
    ],
)
def test_a_block_that_is_refused(block: dict[str, Any], says: str) -> None:
    assert says in str(refused(block))


@pytest.mark.parametrize(
    "block",
    [
        NVFP4 | {"quant_algo": "MIXED_PRECISION"},
        NVFP4 | {"quant_algo": "FP8_PB_WO"},
        AWQ | {"lm_head": True, "modules_to_not_convert": ["x"]},
        GPTQ | {"lm_head": True, "modules_in_block_to_quantize": ["lm_head"]},
        compressed(GROUP | {"type": "float"}),
        compressed(GROUP, group={"input_activations": TOKEN | {"type": "int"}}),
        compressed(
            FP8 | {"type": "int"}, "int-quantized", group={"input_activations": TOKEN | {"type": "int"}}
        ),
        compressed(GROUP, group={"targets": ["Linear", "LMHead"]}),
    ],
)
def test_a_scheme_or_a_quantised_head_without_a_table_is_named_only(block: dict[str, Any]) -> None:
    found = mapped(config(quantization_config=block), eagle3())
    assert (found.refused, found.parameters, found.architecture) == (None, {}, "Eagle3LlamaForCausalLM")


def taken(block: dict[str, Any], weight: str, **changes: Any) -> set[str]:
    """The layers that hold a quantised weight, by the engine's names."""
    found = mapped(config(quantization_config=block, **changes), {})
    assert found.refused is None
    return {
        name.removeprefix("model.").removesuffix(f".{weight}")
        for name in found.parameters
        if name.endswith(f".{weight}")
    }


QKV, OUT, UP, DOWN = (
    f"layers.0.{n}" for n in ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")
)
ALL = {QKV, OUT, UP, DOWN, "fc"}


@pytest.mark.parametrize(
    ("block", "weight", "expected"),
    [
        (compressed(GROUP), "weight_packed", ALL),
        (compressed(GROUP, ignore=["re:.*self_attn.*", "model.fc"]), "weight_packed", {UP, DOWN}),
        (compressed(GROUP, ignore=["model.layers.8.self_attn.q_proj"]), "weight_packed", ALL),
        (compressed(GROUP, ignore=["model.layers.8.self_attn.qkv_proj"]), "weight_packed", ALL - {QKV}),
        (compressed(GROUP, ignore=["fc", "fc*"]), "weight_packed", ALL),
        (compressed(GROUP, group={"targets": ["re:.*mlp.*"]}), "weight_packed", {UP, DOWN}),
        (compressed(GROUP, group={"targets": ["ReplicatedLinear"]}), "weight_packed", {"fc"}),
        (compressed(GROUP, group={"targets": ["LlamaAttention"]}), "weight_packed", set()),
        (compressed(GROUP, config_groups={}), "weight_packed", set()),
        (compressed(GROUP | {"strategy": None}), "weight_packed", ALL),
        (NVFP4 | {"ignore": ["lm_head", "self_attn"]}, "weight_scale_2", {UP, DOWN, "fc"}),
        (NVFP4 | {"ignore": ["lm_head", "fc"]}, "weight_scale_2", ALL - {"fc"}),
        (NVFP4 | {"ignore": ["lm_head", "model.layers.0*"]}, "weight_scale_2", ALL),
        (NVFP4 | {"quant_algo": "fp8"}, "weight_scale", ALL),
        (NVFP4 | {"config_groups": {"a": {"input_activations": None}}}, "input_scale", set()),
        (GPTQ | {"dynamic": {"-:.*fc": {}, "+:.*mlp.*": {"bits": 8}}}, "qweight", ALL - {"fc"}),
        (GPTQ | {"group_size": -1, "desc_act": True, "dynamic": None}, "qweight", ALL),
        (GPTQ | {"modules_in_block_to_quantize": [["mlp"], ["fc"]]}, "qweight", {UP, DOWN, "fc"}),
        (AWQ | {"group_size": -1, "modules_to_not_convert": ["self_attn"]}, "qweight", {UP, DOWN, "fc"}),
    ],
)
def test_the_layers_that_a_block_takes(block: dict[str, Any], weight: str, expected: set[str]) -> None:
    assert taken(block, weight) == expected


def test_qwen3_names_its_qkv_without_self_attn() -> None:
    block = compressed(GROUP, ignore=["re:.*self_attn.*"])
    found = taken(block, "weight_packed", architectures=["Eagle3Qwen3ForCausalLM"], model_type="qwen3")
    assert found == {QKV, UP, DOWN, "fc"}


def test_outputs_that_fill_no_word_are_left_out() -> None:
    """Two heads of ten outputs are two words and a half."""
    block = AWQ | {"modules_to_not_convert": ["fc"]}
    found = mapped(
        config(quantization_config=block, head_dim=10), {"layers.0.self_attn.k_proj.qweight": (2 * H, 2)}
    )
    assert found.refused is None
    assert found.parameters["model.layers.0.self_attn.qkv_proj.qweight"].filled_by == "partly"


def test_latent_attention_keeps_scales_of_a_modelopt_cache() -> None:
    block = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}
    latent = {
        "q_lora_rank": 32,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 32,
        "v_head_dim": 32,
    }
    name = {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "head_dim": ...}
    found = mapped(config(quantization_config=block, **latent, **name), {})
    assert found.refused is None
    assert "model.layers.0.self_attn.mla_attn.mla_attn.k_scale" in found.parameters


def test_block_fp8_of_compressed_tensors() -> None:
    weights = FP8 | {"strategy": "block", "block_structure": [32, 32]}
    assert taken(compressed(weights, "float-quantized"), "weight_scale") == ALL
    weights = FP8 | {"strategy": "tensor"}
    static = {"num_bits": 8, "type": "float", "strategy": "tensor"}
    block = compressed(weights, "float-quantized", group={"input_activations": static})
    assert taken(block, "input_scale") == ALL


@pytest.mark.parametrize(
    "block", [GPTQ | {"desc_act": True}, {"quant_method": "bitsandbytes"}, GPTQ | {"group_size": 48}]
)
def test_an_older_release_may_take_what_the_newest_refuses(block: dict[str, Any]) -> None:
    """Which settings it refuses was not read: nothing is said."""
    block = block | {"modules_in_block_to_quantize": ["fc"]}
    old = mapped(config(quantization_config=block), eagle3(), version="0.25.0")
    assert (old.refused, old.parameters, old.architecture) == (None, {}, "Eagle3LlamaForCausalLM")
    assert mapped(config(quantization_config=block), eagle3()).refused is not None
