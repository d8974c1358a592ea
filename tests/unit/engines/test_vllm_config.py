"""How vLLM resolves a draft's config.json."""

from __future__ import annotations

from typing import Any

import pytest

from ckpt_tools.engines.vllm.config import Asked, Fields, derive_method, detect_method, rename, resolve_config
from ckpt_tools.engines.vllm.contract import CONTRACTS
from ckpt_tools.engines.vllm.hf import classes
from ckpt_tools.engines.vllm.refusal import Refused
from tests.unit.engines.vllm_drafts import config, speculators

LATEST = CONTRACTS["0.33.0"]


def resolved(settings: dict[str, Any], method: str | None = None, version: str = "0.33.0") -> Any:
    return resolve_config(settings, Asked(method), CONTRACTS[version])


@pytest.mark.parametrize(
    ("name", "method", "expected"),
    [
        ("LlamaForCausalLMEagle3", "eagle3", "LlamaForCausalLMEagle3"),
        ("Qwen3ForCausalLM", "eagle3", "Eagle3Qwen3ForCausalLM"),
        ("PEagleDraftModel", "eagle3", "Eagle3PEagleDraftModel"),
        ("LlamaForCausalLM", "eagle", "EagleLlamaForCausalLM"),
        ("LlamaForCausalLMEagle3", "eagle", "EagleLlamaForCausalLMEagle3"),
        ("DFlashDraftModel", "dflash", "DFlashDraftModel"),
        ("LiLiCorrDraftModel", "dflash", "LiLiCorrDraftModel"),
        ("Qwen3ForCausalLM", "dflash", "DFlashQwen3ForCausalLM"),
    ],
)
def test_architecture_names_are_rewritten_by_method(name: str, method: str, expected: str) -> None:
    assert rename([name], method) == [expected]


def test_an_unknown_method_has_no_rewrite() -> None:
    with pytest.raises(Refused, match="Supported methods are eagle, eagle3, and dflash"):
        rename(["X"], "medusa")


def test_a_plain_config_gets_its_class_defaults() -> None:
    found = resolved(config(head_dim=..., num_key_value_heads=..., max_position_embeddings=...))
    assert found.config_class == "EAGLEConfig"
    assert found.fields["head_dim"] == 16
    assert found.fields["num_key_value_heads"] == 4
    assert found.fields["max_position_embeddings"] == 2048
    assert found.fields["rope_parameters"] == {"rope_theta": 10000.0, "rope_type": "default"}


def test_a_speculators_config_gets_no_class_defaults() -> None:
    found = resolved(speculators(layer={"rope_theta": 5.0}))
    assert found.config_class == "SpeculatorsConfig"
    assert "max_window_layers" not in found.fields
    with pytest.raises(Refused, match="'SpeculatorsConfig' object has no attribute 'nope'"):
        found.fields.need("nope")


def test_norm_before_residual_defaults_by_algorithm() -> None:
    assert resolved(speculators()).fields["norm_before_residual"] is True
    peagle = resolved(speculators("peagle", mask_token_id=3))
    assert peagle.fields["norm_before_residual"] is False
    assert peagle.fields["pard_token"] == 3
    assert (peagle.method, peagle.parallel_drafting, peagle.architecture) == (
        "eagle3",
        True,
        "PeagleLlamaForCausalLM",
    )
    assert "norm_before_residual" not in resolved(config()).fields


def test_a_speculators_qwen3_layer_builds_the_qwen3_class() -> None:
    assert resolved(speculators(layer={"model_type": "qwen3"})).architecture == "Eagle3Qwen3ForCausalLM"


def test_speculators_ids_reach_the_engine_as_they_are() -> None:
    found = resolved(speculators(eagle_aux_hidden_state_layer_ids=[2, 4]))
    assert found.fields["eagle_aux_hidden_state_layer_ids"] == [2, 4]


def test_dflash_ids_are_kept_and_lowered() -> None:
    found = resolved(
        speculators(
            "dflash", mask_token_id=1, aux_hidden_state_layer_ids=[2, 4], sliding_window_non_causal=False
        )
    )
    assert found.method == "dflash"
    assert found.fields["eagle_aux_hidden_state_layer_ids"] == [2, 4]
    assert found.fields["dflash_config"] == {
        "mask_token_id": 1,
        "target_layer_ids": [1, 3],
        "sample_from_anchor": False,
        "causal": True,
    }


def test_dflash2_and_dspark_keep_their_own_fields() -> None:
    two = resolved(speculators("dflash2", mask_token_id=1, aux_hidden_state_layer_ids=[2], selector_rank=8))
    assert (two.method, two.architecture) == ("dflash", "DFlash2DraftModel")
    assert two.fields["dflash_config"]["selector_rank"] == 8
    spark = resolved(
        speculators("dspark", aux_hidden_state_layer_ids=[2], markov_rank=4, architectures=["X"])
    )
    assert (spark.method, spark.architecture) == ("dspark", "Qwen3DSparkModel")
    assert spark.fields["markov_rank"] == 4
    assert spark.fields["dspark_bonus_anchor"] is True


def test_the_native_form_reads_the_inner_config() -> None:
    native = {
        "model_type": "eagle",
        "method": "eagle3",
        "model": config(architectures=["LlamaForCausalLM"]),
        "vocab_size": 300,
    }
    found = resolved(native, "eagle3")
    assert found.architecture == "Eagle3LlamaForCausalLM"
    assert found.fields["vocab_size"] == 300


@pytest.mark.parametrize(
    ("settings", "method", "error", "message"),
    [
        ({"hidden_size": 1}, "eagle3", "ValueError", "Unrecognized model in"),
        (config(model_type="nope"), "eagle3", "ValueError", "has model type `nope`"),
        (config(model_type=None), "eagle3", "ValueError", "has model type `None`"),
        (
            config(model_type="deepseek_v3"),
            "eagle3",
            "ValueError",
            "['Eagle3DeepSeekMTPModel'] are not supported",
        ),
        (config(architectures=["Foo"]), "eagle3", "ValueError", "['Foo'] are not supported"),
        (
            config(architectures=..., model_type="llama"),
            "eagle3",
            "ValueError",
            "['Eagle3LlamaModel'] are not supported",
        ),
        (
            config(architectures="LlamaForCausalLMEagle3"),
            "eagle3",
            "ValidationError",
            "Input should be a valid list",
        ),
        (config(hidden_size="64"), "eagle3", "StrictDataclassFieldValidationError", "field 'hidden_size'"),
        (config(rms_norm_eps=1), "eagle3", "StrictDataclassFieldValidationError", "field 'rms_norm_eps'"),
        (config(hidden_size=63), "eagle3", "StrictDataclassClassValidationError", "is not a multiple"),
        (config(num_attention_heads=0), "eagle3", "ZeroDivisionError", "integer"),
        (config(num_attention_heads=0, head_dim=...), "eagle3", "ZeroDivisionError", "integer"),
        (config(head_dim=33), "eagle3", "StrictDataclassClassValidationError", "even rotary dimension"),
        (
            config(layer_types=["full_attention"] * 2),
            "eagle3",
            "StrictDataclassClassValidationError",
            "must be equal to",
        ),
        (config(layer_types=["nope"]), "eagle3", "StrictDataclassClassValidationError", "entries must be in"),
        (config(rope_scaling={"rope_type": "linear"}), "eagle3", "KeyError", "'rope_type'='linear'"),
        (
            config(rope_parameters=[1]),
            "eagle3",
            "StrictDataclassFieldValidationError",
            "field 'rope_parameters'",
        ),
        (config(torch_dtype="nope"), "eagle3", "AttributeError", "no attribute 'nope'"),
        (
            config(max_position_embeddings=0),
            "eagle3",
            "ValueError",
            "max_model_len must be a positive integer",
        ),
        (config(text_config={"a": 1}), "eagle3", "ValueError", "The text_config extracted"),
        (
            config(quantization_config={"quant_method": "x"}),
            "eagle3",
            "ValueError",
            "Unknown quantization method: x",
        ),
        (config(), "medusa", "ValidationError", "Input should be 'ngram'"),
        (speculators("mtp"), None, "ValueError", "Expected one of"),
        (
            speculators("eagle3", speculators_config={}),
            None,
            "ValueError",
            "Invalid speculators config structure",
        ),
        (
            speculators(transformer_layer_config=...),
            None,
            "ValueError",
            "Must provide transformer_layer_config",
        ),
        (speculators(transformer_layer_config=[]), None, "TypeError", "must be a dictionary"),
        (
            speculators(layer={"model_type": "gemma2"}),
            None,
            "ValueError",
            "Unsupported model_type gemma2 for Eagle3",
        ),
        (
            speculators(layer={"vocab_size": None}),
            None,
            "ValidationError",
            "vocab_size\n  Input should be a valid integer",
        ),
        (speculators("peagle"), None, "KeyError", "'mask_token_id'"),
        (speculators("dflash", mask_token_id=1), None, "KeyError", "'aux_hidden_state_layer_ids'"),
        (
            speculators("dflash", mask_token_id=1, aux_hidden_state_layer_ids=None),
            None,
            "TypeError",
            "not iterable",
        ),
        (
            {"model_type": "eagle"},
            "eagle3",
            "AssertionError",
            "model should not be None when method is eagle",
        ),
        ({"model_type": "eagle", "method": "x"}, "eagle3", "ValueError", "Invalid method x"),
        (
            {"model_type": "eagle", "model": {}},
            "eagle3",
            "TypeError",
            "missing 1 required positional argument",
        ),
        ({"model_type": "eagle", "model": config(architectures=...)}, "eagle3", "TypeError", "not iterable"),
    ],
)
def test_a_config_is_refused_as_the_engine_does(
    settings: dict[str, Any], method: str | None, error: str, message: str
) -> None:
    with pytest.raises(Refused) as refused:
        resolved(settings, method)
    assert str(refused.value).startswith(f"{error}: ")
    assert message in str(refused.value)
    assert refused.value.stage == "config"


def test_rope_scaling_replaces_rope_parameters_and_theta_fills_in() -> None:
    both = config(
        rope_scaling={"type": "linear", "factor": 2.0},
        rope_parameters={"rope_theta": 7.0, "rope_type": "default"},
    )
    assert resolved(both).fields["rope_parameters"] == {
        "type": "linear",
        "factor": 2.0,
        "rope_theta": 10000.0,
        "rope_type": "linear",
    }
    yarn = config(rope_scaling={"rope_type": "yarn", "factor": 4.0})
    assert resolved(yarn).fields["rope_parameters"]["original_max_position_embeddings"] == 512
    own = config(
        rope_scaling={"rope_type": "yarn", "factor": 4.0},
        original_max_position_embeddings=64,
        partial_rotary_factor=0.5,
    )
    assert resolved(own).fields["rope_parameters"]["original_max_position_embeddings"] == 64
    assert resolved(own).fields["rope_parameters"]["partial_rotary_factor"] == 0.5


def test_layer_types_follow_the_class() -> None:
    qwen = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "num_hidden_layers": 3,
        "head_dim": 32,
    }
    windowed = config(**qwen, use_sliding_window=True, sliding_window=8, max_window_layers=1)
    assert resolved(windowed, "eagle3").fields["layer_types"] == [
        "full_attention",
        "sliding_attention",
        "sliding_attention",
    ]
    assert resolved(config(**qwen), "eagle3").fields["layer_types"] == ["full_attention"] * 3
    oss = config(model_type="gpt_oss", num_hidden_layers=2)
    assert resolved(oss).fields["layer_types"] == ["sliding_attention", "full_attention"]
    llama4 = config(model_type="llama4_text", num_hidden_layers=4)
    assert resolved(llama4).fields["layer_types"] == ["chunked_attention"] * 3 + ["full_attention"]
    assert resolved(config(layer_types=["attention"])).fields["layer_types"] == ["full_attention"]


def test_mistral_with_layer_types_is_ministral() -> None:
    found = resolved(config(model_type="mistral", layer_types=["full_attention"]))
    assert found.fields["layer_types"] == ["full_attention"]


def test_a_target_type_becomes_its_mtp_model() -> None:
    found = resolved(
        config(model_type="qwen3_next", architectures=["Qwen3NextForCausalLM"], num_nextn_predict_layers=1),
        "mtp",
    )
    assert (found.architecture, found.method) == ("Qwen3NextMTP", "mtp")
    nemotron = config(
        model_type="nemotron_h", architectures=["NemotronHForCausalLM"], num_nextn_predict_layers=1
    )
    assert resolved(nemotron, "mtp").architecture == "NemotronHMTPModel"
    assert resolved(config(architectures=["MiMoForCausalLM"]), "mtp").architecture == "MiMoMTPModel"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (config(), "eagle3"),
        (config(architectures=["EagleLlamaForCausalLM"]), "eagle"),
        (config(architectures=["DFlashDraftModel"]), "dflash"),
        (config(architectures=["LlamaForCausalLM"]), None),
        (config(architectures=...), None),
        (speculators("dflash2"), "dflash"),
        (speculators("peagle"), "eagle3"),
    ],
)
def test_the_method_is_derived_from_the_draft(settings: dict[str, Any], expected: str | None) -> None:
    assert derive_method(settings) == expected


@pytest.mark.parametrize(
    ("path", "names", "kind", "expected"),
    [
        ("/x/eagle-drafts/qwen_eagle3", (), "llama", "eagle"),
        ("/x/Qwen3-8B_EAGLE3", (), "llama", "eagle3"),
        ("/x/p-eagle-x", (), "llama", "eagle"),
        ("/x/my-dflash", (), "qwen3", "dflash"),
        ("/x/y", ("MuseGlimmerAssistantModel",), "z", "dflash"),
        ("/x/y", ("Qwen3DSparkModel",), "qwen3", "dspark"),
        ("/x/y", ("DSparkDraftModel",), "qwen3", "dspark"),
        ("/x/y", ("DeepSeekMTPModel",), "deepseek_mtp", "mtp"),
        ("/x/y", ("LlamaForCausalLMEagle3",), "llama", "draft_model"),
        ("/x/y", (), None, "draft_model"),
    ],
)
def test_the_path_decides_when_no_method_is_given(
    path: str, names: tuple[str, ...], kind: str | None, expected: str
) -> None:
    assert detect_method(path, names, kind) == expected


def test_older_releases_know_fewer_types_and_classes() -> None:
    with pytest.raises(Refused, match="Expected one of"):
        resolved(speculators("peagle", mask_token_id=1), version="0.17.0")
    assert (
        resolved(speculators(layer={"model_type": "qwen3"}), version="0.17.0").architecture
        == "Eagle3LlamaForCausalLM"
    )
    with pytest.raises(Refused, match="are not supported"):
        resolved(config(), version="0.10.1")
    assert resolved(config(), version="0.12.0").architecture == "LlamaForCausalLMEagle3"
    ids = speculators(eagle_aux_hidden_state_layer_ids=[1])
    assert "eagle_aux_hidden_state_layer_ids" not in resolved(ids, version="0.10.1").fields
    assert "fc_norm" not in resolved(speculators(fc_norm=True), version="0.17.0").fields


def test_fields_read_like_a_mapping() -> None:
    assert Fields({"a": 1}).need("a") == 1
    assert LATEST.runners == ("V2", "V1")


def test_a_speculators_config_keeps_what_the_layer_says() -> None:
    found = resolved(
        speculators(layer={"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "torch_dtype": "nope"})
    )
    assert found.fields["rope_parameters"]["factor"] == 2.0
    assert found.fields["dtype"] == "nope"  # a property: nobody looks it up
    newer = resolved(speculators(layer={"dtype": "float32", "torch_dtype": "float16"}))
    assert newer.fields["dtype"] == "float32"
    with pytest.raises(Refused, match="no attribute 'nope'"):
        resolved(speculators(layer={"dtype": "nope"}))


def test_no_known_class_is_stumbled_over() -> None:
    outcomes = set()
    for kind in classes():
        settings = config(model_type=kind, rope_scaling={"rope_type": "linear", "factor": 2.0})
        for method in ("eagle3", "eagle", "dflash", "mtp"):
            try:
                outcomes.add(resolved(settings, method).config_class)
            except Refused as refused:
                outcomes.add(refused.stage)
    assert {"EAGLEConfig", "DeepseekV3Config", "config"} <= outcomes


def test_a_class_with_computed_layers_has_none_to_copy() -> None:
    assert "num_hidden_layers" not in resolved(config(model_type="nemotron_h")).fields


def test_rope_nested_by_layer_type() -> None:
    nested = {"full_attention": {"rope_theta": 5.0}, "sliding_attention": None}
    found = resolved(
        config(
            num_hidden_layers=2, layer_types=["full_attention", "sliding_attention"], rope_parameters=nested
        )
    )
    assert found.fields["rope_parameters"]["full_attention"] == {"rope_theta": 5.0, "rope_type": "default"}
    with pytest.raises(Refused, match="Validation error for field 'rope_parameters'"):
        resolved(config(rope_scaling=[1]))


def test_a_name_that_only_transformers_builds_is_no_draft() -> None:
    with pytest.raises(Refused, match="Eagle3BioGptForCausalLM"):
        resolved(config(architectures=["BioGptForCausalLM"]), "eagle3")
    plain = resolved(config(architectures=["BioGptForCausalLM"]), "draft_model")
    assert (plain.architecture, plain.method) == ("BioGptForCausalLM", "draft_model")
    with pytest.raises(Refused, match="Unsupported speculative method: 'mtp'"):
        resolved(config(architectures=["BioGptForCausalLM"]), "mtp")


def test_the_native_form_takes_a_list_of_names() -> None:
    with pytest.raises(Refused, match="not iterable"):
        resolved({"model_type": "eagle", "model": config(architectures=None)}, "eagle3")


def test_an_empty_list_of_architectures_is_the_bare_class() -> None:
    with pytest.raises(Refused, match="Eagle3LlamaModel"):
        resolved(config(architectures=[]), "eagle3")
    with pytest.raises(Refused, match="list index out of range"):
        resolved(config(architectures=[], model_type="kimi_k2"), "eagle3")
    with pytest.raises(Refused, match="not subscriptable"):
        resolved(config(architectures=..., model_type="kimi_k2"), "eagle3")


def test_a_resolved_name_may_be_a_later_one_of_the_list() -> None:
    assert (
        resolved(config(architectures=["Foo", "LlamaForCausalLMEagle3"])).architecture
        == "LlamaForCausalLMEagle3"
    )


@pytest.mark.parametrize("kind", ["LlamaConfig", None, ["llama"]])
def test_the_native_form_names_an_unknown_inner_type(kind: Any) -> None:
    with pytest.raises(Refused, match="Unrecognized model identifier"):
        resolved({"model_type": "eagle", "model": config(model_type=kind)}, "eagle3")


def test_a_key_named_model_takes_the_wrapped_configs_place() -> None:
    native = {"model_type": "eagle", "method": "eagle3", "model": config(model={})}
    for settings in (native, config(model={})):
        with pytest.raises(Refused, match="'dict' object has no attribute 'model_type'"):
            resolved(settings, "eagle3")


def test_the_algorithm_decides_where_the_config_names_no_method() -> None:
    bare = config(architectures=["LlamaForCausalLM"])
    assert resolve_config(bare, Asked(algorithm="eagle"), LATEST).architecture == "EagleLlamaForCausalLM"
    assert (
        resolve_config(bare, Asked(method="eagle3", algorithm="eagle"), LATEST).architecture
        == "Eagle3LlamaForCausalLM"
    )
    assert resolve_config(bare, Asked(), LATEST).method == "draft_model"


def test_parallel_drafting_may_be_told() -> None:
    peagle = speculators("peagle", mask_token_id=1)
    assert (
        resolve_config(peagle, Asked(method="eagle3", parallel_drafting=True), LATEST).parallel_drafting
        is True
    )
    assert resolve_config(peagle, Asked(method="eagle3"), LATEST).parallel_drafting is False
    assert resolve_config(peagle, Asked(parallel_drafting=False), LATEST).parallel_drafting is False
