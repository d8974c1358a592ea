"""What vLLM computes with a draft, as its config decides."""

from __future__ import annotations

from typing import Any

import pytest

from ckpt_tools.engines import resolve
from ckpt_tools.engines.vllm import semantics
from tests.unit.engines.vllm_drafts import VD, H, V, checkpoint, config, speculators


def of(settings: dict[str, Any] | None, version: str = "0.33.0", **options: Any) -> dict[str, Any]:
    return semantics(resolve(f"vllm=={version}", "--engine"), checkpoint(settings, {}), **options)


def test_a_plain_draft_has_the_engines_defaults() -> None:
    found = of(config(head_dim=..., num_key_value_heads=..., rope_theta=...))
    assert found["layer_type"] == "llama"
    assert (found["norm_before_residual"], found["residual"]) == (False, "raw")
    assert (found["norm_output"], found["next_state"]) == (False, "raw")
    assert (found["norm_before_fc"], found["fc_norm"], found["num_aux"]) == (False, False, 3)
    assert (found["head_dim"], found["num_key_value_heads"]) == (16, 4)
    assert found["upper_layer_norm"] == "input_layernorm"
    assert found["rope"] == {"rope_theta": 10000.0, "rope_type": "default", "stated": True, "neox": True}
    assert (found["vocab_size"], found["draft_vocab_size"], found["d2t"]) == (V, VD, "offset")
    assert found["target_hidden_size"] == H
    assert found["logit_scale"] == 1.0


def test_speculators_eagle3_norms_before_the_residual_when_not_told() -> None:
    assert of(speculators())["residual"] == "normed"
    assert of(speculators(norm_before_residual=False))["residual"] == "raw"
    assert of(speculators("peagle", mask_token_id=1))["residual"] == "raw"
    assert of(speculators("peagle", mask_token_id=1))["parallel_drafting"] is True


def test_a_missing_base_is_the_classes_own() -> None:
    layer = {k: v for k, v in speculators()["transformer_layer_config"].items() if k != "rope_theta"}
    llama = of(speculators(transformer_layer_config=layer))["rope"]
    assert (llama["rope_theta"], llama["stated"]) == (10000, False)
    qwen = of(speculators(transformer_layer_config={**layer, "model_type": "qwen3"}))["rope"]
    assert qwen["rope_theta"] == 1000000


def test_mla_rope_is_deepseeks_own() -> None:
    ranks = {
        "q_lora_rank": 32,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 32,
        "v_head_dim": 32,
    }
    settings = config(
        architectures=["Eagle3DeepseekV2ForCausalLM"], model_type="kimi_k2", norm_before_fc=True, **ranks
    )
    assert of(settings)["norm_before_fc"] is False
    assert of(settings)["rope"]["neox"] is False
    yarn = {"rope_type": "yarn", "factor": 2.0}
    assert of(settings | {"rope_scaling": yarn})["rope"]["rope_type"] == "deepseek_yarn"
    assert (
        of(settings | {"rope_scaling": yarn | {"attention_factor": 1.0}})["rope"]["rope_type"]
        == "deepseek_llama_scaling"
    )
    assert of(settings)["sliding_window"] == (None,)


def test_windows_follow_layer_types() -> None:
    settings = config(
        num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"], sliding_window=8
    )
    assert of(settings)["sliding_window"] == (8, None)
    dflash = config(architectures=["DFlashDraftModel"], model_type="qwen3", num_hidden_layers=2)
    swa = {"use_swa": True, "swa_window_size": 4, "target_layer_ids": [1, 2]}
    found = of(dflash | {"dflash_config": swa})
    assert found["sliding_window"] == (4, 4)
    assert found["capture_ids_v2"] == (2, 3)
    assert of(dflash | {"dflash_config": {"layer_ids": [1]}})["sliding_window"] == (None, None)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"eagle_aux_hidden_state_layer_ids": [2, 4]}, (2, 4)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 4]}}, ()),
        ({"dflash_config": {"target_layer_ids": [1]}}, (2,)),
        ({"dspark_target_layer_ids": [1]}, (2,)),
        ({"target_layer_ids": [1]}, (2,)),
        ({"eagle_config": {"layer_ids": [1]}}, (1,)),
        ({}, ()),
    ],
)
def test_the_v2_runner_reads_ids_in_order(changes: dict[str, Any], expected: tuple[int, ...]) -> None:
    assert of(config(**changes))["capture_ids_v2"] == expected


def test_eagle1_and_unknown_classes() -> None:
    one = of(config(architectures=["EagleLlamaForCausalLM"]), method="eagle")
    assert (one["final_norm"], one["fc_order"]) == (False, ("embedding", "hidden"))
    assert of(config(architectures=["EagleMiniCPMForCausalLM"]), method="eagle")["kind"] is None


def test_older_releases_know_fewer_switches() -> None:
    settings = config(fc_norm=True, norm_output=True, norm_before_fc=True, num_aux_hidden_states=5)
    old, new = of(settings, "0.17.0"), of(settings)
    assert (old["fc_norm"], old["norm_output"], old["norm_before_fc"], old["num_aux"]) == (
        False,
        False,
        False,
        3,
    )
    assert (new["fc_norm"], new["norm_output"], new["norm_before_fc"], new["num_aux"]) == (
        True,
        True,
        True,
        5,
    )
    assert of(config(eagle_config={"use_aux_hidden_state": False}))["num_aux"] == 0


def test_a_refused_config_says_so() -> None:
    assert of(None)["refused"].startswith("ValueError: Unrecognized model in")
    assert of(config(eagle_config=3))["refused"] == "AttributeError: 'int' object has no attribute 'get'"
