"""What vLLM derives from a config and validates before it builds anything."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ckpt_tools.engines import resolve
from ckpt_tools.engines.vllm import arch
from ckpt_tools.engines.vllm.loadmap import load_map
from ckpt_tools.engines.vllm.modules import allocated
from ckpt_tools.engines.vllm.refusal import Refused
from tests.unit.engines.vllm_drafts import checkpoint, config, eagle3, mapped, speculators, target

FACTS: dict[str, Any] = {
    "architectures": ["A"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
}


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": "64", "num_attention_heads": 4.0, "head_dim": 16},
        {"n_head_kv": " 2 ", "num_key_value_heads": None},
        {"num_experts": [4, 4], "num_experts_per_tok": [1, 2]},
        {"num_experts": None, "num_experts_per_tok": None},
        {"model_type": "deepseek_v2", "kv_lora_rank": 32, "qk_rope_head_dim": 16},
        {"hidden_size_per_head": 8},
        {"num_attention_heads": 0},
        {"max_position_embeddings": 512, "seq_length": 64.0},
    ],
)
def test_what_passes(changes: dict[str, Any]) -> None:
    arch.check(FACTS | changes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"hidden_size": 64.5, "head_dim": 16},
            "hidden_size\n  Input should be a valid integer, got a number with",
        ),
        (
            {"num_hidden_layers": "x"},
            "total_num_hidden_layers\n  Input should be a valid integer, unable to parse",
        ),
        ({"vocab_size": None}, "vocab_size\n  Input should be a valid integer"),
        ({"num_key_value_heads": None}, "total_num_kv_heads"),
        ({"architectures": "A"}, "architectures\n  Input should be a valid list"),
        ({"architectures": ["A", 3]}, "architectures.1\n  Input should be a valid string"),
    ],
)
def test_what_pydantic_refuses(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(Refused) as found:
        arch.check(FACTS | changes)
    assert says in str(found.value)


def test_the_block_that_names_a_method() -> None:
    old = {"quantization": {"quant_algo": "fp8", "modelopt_quant_config": {}}}
    assert (arch.quantization({"quantization_config": old}) or {})["quant_method"] == "modelopt"
    other = {"compression_config": {"quant_method": "Compressed_Tensors"}}
    assert (arch.quantization(other) or {})["quant_method"] == "compressed-tensors"
    with pytest.raises(Refused, match="Unknown ModelOpt quant algo: x"):
        arch.quantization(
            {"quantization_config": {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "x"}}}
        )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"max_position_embeddings": 0}, "max_model_len must be a positive integer, got int: 0"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 0}}, "got int: 0"),
        ({"model_max_length": "512"}, "'<' not supported between instances of 'str' and"),
        ({"model_type": [2]}, "unhashable type: 'list'"),
        ({"auto_map": -1}, "argument of type 'int' is not iterable"),
        ({"quantization_config": "fp8"}, "'str' object has no attribute 'to_dict'"),
        ({"quantization_config": {"quant_method": None}}, "'NoneType' object has no attribute 'lower'"),
        ({"quantization_config": {"quant_method": "fbgemm_fp8"}}, "is deprecated"),
        ({"initializer_range": 0}, "Validation error for field 'initializer_range'"),
        ({"eos_token_id": False}, "Validation error for field 'eos_token_id'"),
        ({"model_type": "gemma3"}, "The text_config extracted from the model config does not have"),
        ({"num_key_value_heads": -2}, "AssertionError"),
        ({"intermediate_size": -96}, "Trying to create tensor with negative dimension -192"),
        ({"target_hidden_size": 64.0}, "type must be tuple of ints,but got float"),
        ({"draft_vocab_size": -1}, "zeros: Dimension size must be non-negative."),
    ],
)
def test_a_value_that_the_engine_stumbles_over(changes: dict[str, Any], says: str) -> None:
    assert says in str(mapped(config(**changes), eagle3()).refused)


def test_numbers_of_other_kinds_that_it_computes_with() -> None:
    """Python and torch take a bool for a number."""
    found = mapped(speculators(target_hidden_size=False), eagle3())
    assert "parameter of size torch.Size([64, 0])" in str(found.refused)
    assert mapped(speculators(layer={"sliding_window": 0}), eagle3()).refused is None
    native = {"model_type": "eagle", "method": "eagle3", "model": config(), "mlp_bias": 0.0}
    assert "Validation error for field 'mlp_bias'" in str(mapped(native, eagle3()).refused)
    native = {
        "model_type": "eagle",
        "method": "eagle3",
        "model": config(),
        "rope_scaling": {"rope_type": "default"},
    }
    assert "unsupported operand type(s) for **" in str(mapped(native, eagle3()).refused)


def test_the_tokens_that_a_speculators_config_asks_for() -> None:
    assert mapped(speculators(layer={"n_predict": 1}), eagle3()).refused is None
    found = mapped(speculators(layer={"n_predict": 2}), eagle3())
    assert "num_speculative_tokens:3 must be divisible by n_predict=2" in str(found.refused)
    block = {"proposal_methods": [{"speculative_tokens": None}], "verifier": {"name_or_path": "a/b"}}
    found = mapped(speculators(speculators_config=block), eagle3())
    assert "Missing 'speculative_tokens' in proposal method." in str(found.refused)


def test_dimensions_as_torch_takes_them() -> None:
    assert allocated("empty", 4, True) == (4, 1)
    for dims, says in (
        ((2.0, 4), "takes 1 positional argument but 2 were given"),
        (("x",), "tuple of ints, not str"),
    ):
        with pytest.raises(Refused, match=says):
            allocated("empty", *dims)
    with pytest.raises(Refused, match="found element of type bool at pos 0"):
        allocated("empty", True, 4, together=True)


@pytest.mark.parametrize(
    ("path", "method", "says"),
    [
        ("a/eagle3-b", "mtp", None),
        ("a/b", "mtp", "NotImplementedError: Unsupported speculative method: 'mtp'"),
        ("a/eagle-b", "draft_model", "EagleLlamaForCausalLMEagle3"),
    ],
)
def test_a_method_that_yields_to_the_path(path: str, method: str, says: str | None) -> None:
    draft = replace(checkpoint(config(), eagle3()), path=path)
    found = load_map(resolve("vllm", "--engine"), draft, target(), method=method)
    assert found.refused is None if says is None else says in str(found.refused)


def test_a_draft_model_scores_the_targets_tokens() -> None:
    plain = config(architectures=["Qwen3ForCausalLM"], model_type="qwen3", vocab_size=320)
    found = mapped(plain, {}, method="draft_model")
    assert "Target and draft model should have the same vocabulary size." in str(found.refused)
