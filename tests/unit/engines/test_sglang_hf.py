"""What transformers makes of a config, per pin: classes, types, derived values and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from ckpt_tools.engines import resolve
from ckpt_tools.engines.sglang import architectures
from ckpt_tools.engines.sglang.features import features
from ckpt_tools.engines.sglang.hf import HfConfig, pin, read
from ckpt_tools.engines.sglang.refusal import Refused

NEW, MIDDLE, OLD = "5.19.0", "5.6.0", "4.57.1"


def refused(config: dict[str, Any], transformers: str = NEW, path: str = "/drafts/d") -> Refused:
    with pytest.raises(Refused) as caught:
        read(config, transformers, path)
    assert caught.value.stage == "config"
    return caught.value


@pytest.mark.parametrize(
    ("asked", "used"),
    [("5.3.0", MIDDLE), ("5.8.1", MIDDLE), ("5.20.0", NEW), ("4.51.1", OLD), ("4.57.1", OLD)],
)
def test_the_nearest_recorded_pin_of_the_same_major_answers(asked: str, used: str) -> None:
    assert pin(asked)["transformers"] == used


def test_a_class_adds_its_defaults_and_derives() -> None:
    config = read({"model_type": "llama", "hidden_size": 96, "num_attention_heads": 6}, NEW, "")
    assert config.name == "LlamaConfig"
    assert (config.get("head_dim"), config.get("num_key_value_heads"), config.get("vocab_size")) == (
        16,
        6,
        32000,
    )
    assert (
        read({"model_type": "qwen3", "hidden_size": 96, "num_attention_heads": 6}, NEW, "").get("head_dim")
        == 128
    )


def test_mlas_head_dim_is_the_rotary_part_unless_given() -> None:
    given = {"model_type": "kimi_k2", "qk_rope_head_dim": 40}
    assert read(given, NEW, "").get("head_dim") == 40
    assert read(given | {"head_dim": 8}, NEW, "").get("head_dim") == 8


@pytest.mark.parametrize("transformers", [NEW, MIDDLE])
def test_types_are_checked_since_transformers_5(transformers: str) -> None:
    error = refused({"model_type": "llama", "hidden_size": "64"}, transformers)
    assert str(error).startswith(
        "StrictDataclassFieldValidationError: Validation error for field 'hidden_size'"
    )
    assert "got bool" in str(refused({"model_type": "llama", "vocab_size": True}, transformers))
    assert "doesn't match any type" in str(
        refused({"model_type": "llama", "pad_token_id": "a"}, transformers)
    )
    assert (
        read({"model_type": "llama", "hidden_size": "64", "head_dim": 1}, OLD, "").get("hidden_size") == "64"
    )


def test_lists_are_types_too() -> None:
    assert read({"model_type": "llama", "eos_token_id": [1, 2]}, NEW, "").get("eos_token_id") == [1, 2]


def test_an_unknown_model_type_is_refused() -> None:
    assert "does not recognize this architecture" in str(refused({"model_type": "speculator_model"}))
    assert "custom code" in str(refused({"model_type": "x", "auto_map": {"AutoConfig": "a.B"}}))
    assert "kimi_k2" in str(refused({"model_type": "kimi_k2"}, OLD))


def test_a_missing_model_type_was_guessed_from_the_path() -> None:
    assert read({}, OLD, "/drafts/my-llama-head").name == "LlamaConfig"
    refused({}, OLD, "/drafts/d")
    refused({}, NEW, "/drafts/my-llama-head")


def test_mistral_with_layer_types_is_ministral() -> None:
    assert (
        read(
            {"model_type": "mistral", "layer_types": ["full_attention"], "num_hidden_layers": 1}, NEW, ""
        ).name
        == "MinistralConfig"
    )


def test_rope_ends_in_one_dict() -> None:
    given: dict[str, Any] = {
        "model_type": "llama",
        "rope_theta": 5e5,
        "rope_scaling": {"type": "yarn", "factor": 4.0},
        "partial_rotary_factor": 0.5,
    }
    rope = read(given, NEW, "").get("rope_parameters")
    assert rope == {
        "type": "yarn", "factor": 4.0, "rope_theta": 5e5, "partial_rotary_factor": 0.5, "rope_type": "yarn",
        "original_max_position_embeddings": 2048,
    }  # fmt: skip
    assert read({"model_type": "llama"}, NEW, "").get("rope_parameters") == {
        "rope_theta": 10000.0,
        "rope_type": "default",
    }
    assert given["rope_scaling"] == {"type": "yarn", "factor": 4.0}  # the draft's config is left alone


def test_a_rope_that_is_no_dict_is_refused() -> None:
    assert str(refused({"model_type": "llama", "rope_scaling": "yarn"})).startswith("StrictDataclassField")


def test_missing_rope_keys_are_refused() -> None:
    assert str(refused({"model_type": "llama", "rope_scaling": {"rope_type": "linear"}})).startswith(
        "KeyError"
    )
    assert str(refused({"model_type": "llama", "rope_scaling": {"factor": 2.0}}, OLD)).startswith("KeyError")
    assert (
        read({"model_type": "llama", "rope_scaling": {"factor": 2.0}}, NEW, "").get("rope_parameters")[
            "rope_type"
        ]
        == "default"
    )


def test_heads_must_divide_the_width() -> None:
    assert "not a multiple" in str(
        refused({"model_type": "llama", "hidden_size": 63, "num_attention_heads": 4, "head_dim": 16})
    )
    assert str(refused({"model_type": "llama", "num_attention_heads": 0, "head_dim": 16})).startswith(
        "ZeroDivisionError"
    )
    assert str(refused({"model_type": "llama", "num_attention_heads": 0})).startswith("ZeroDivisionError")


def test_odd_heads_are_refused_by_the_newest_alone() -> None:
    assert "even rotary dimension" in str(refused({"model_type": "llama", "head_dim": 33}))
    assert read({"model_type": "llama", "head_dim": 33}, MIDDLE, "").get("head_dim") == 33


def test_layer_types_are_counted() -> None:
    given = {"model_type": "qwen3", "num_hidden_layers": 1, "layer_types": ["full_attention"] * 4}
    assert "must be equal to the number" in str(refused(given))


def test_qwen_drops_a_window_that_is_not_used() -> None:
    given = {"model_type": "qwen3", "sliding_window": 64}
    assert read(given, NEW, "").get("sliding_window") is None
    assert read(given | {"use_sliding_window": True}, NEW, "").get("sliding_window") == 64


def test_dtypes_are_torchs() -> None:
    assert (
        read({"model_type": "llama", "torch_dtype": "float16", "dtype": "bfloat16"}, NEW, "").get("dtype")
        == "bfloat16"
    )
    assert "no attribute 'nonsense'" in str(refused({"model_type": "llama", "torch_dtype": "nonsense"}))


def test_an_alias_stands_for_its_field() -> None:
    config = HfConfig("X", {"b": 1}, {"a": "b"})
    assert config.has("a") and config.need("a") == 1
    with pytest.raises(Refused, match="'X' object has no attribute 'c'"):
        config.need("c")


def test_a_class_of_transformers_alone_is_the_fallback_or_refused() -> None:
    known = architectures.registered("0.5.23")
    switches = features(resolve("sglang==0.5.23", "test"))
    classes = pin(NEW)["classes"]
    compatible = next(n for n in classes["true"] if n not in known)
    other = next(n for n in classes["false"] if n not in known)
    assert (
        architectures.choose(HfConfig("X", {"architectures": [compatible]}), known, switches)
        == architectures.FALLBACK
    )
    with pytest.raises(Refused, match="not compatible with SGLang"):
        architectures.choose(HfConfig("X", {"architectures": [other]}), known, switches)


def test_remote_modules_raised_before_0_5_10() -> None:
    config = HfConfig("X", {"architectures": ["Nothing"], "auto_map": {"AutoModel": "m.M"}})
    for version, error in (("0.5.9", "OSError"), ("0.5.23", "ValueError")):
        engine = resolve(f"sglang=={version}", "test")
        with pytest.raises(Refused, match=error):
            architectures.choose(config, architectures.registered(version), features(engine))


LLAMA = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4}


@pytest.mark.parametrize(
    ("key", "value", "errors"),  # newest first; None where it is taken
    [
        ("id2label", "x", ("AttributeError", "StrictDataclassFieldValidationError", "ValueError")),
        ("id2label", {"a": "b"}, ("ValueError", "ValueError", "ValueError")),
        ("id2label", {"0": "b"}, (None, None, None)),
        ("num_labels", "x", ("TypeError", "TypeError", "TypeError")),
        ("num_labels", 3, (None, None, None)),
        ("problem_type", "x", (None, "StrictDataclassFieldValidationError", "ValueError")),
        ("use_return_dict", True, ("AttributeError", "AttributeError", "AttributeError")),
        ("quantization_config", None, (None, None, "AttributeError")),
        ("auto_map", None, ("TypeError", "TypeError", "TypeError")),
        ("rope_parameters", [], ("StrictDataclassFieldValidationError", "StrictDataclassFieldValidationError", None)),
        ("rope_scaling", 2.0, ("StrictDataclassFieldValidationError", "StrictDataclassFieldValidationError", "TypeError")),
        ("rope_scaling", {"type": "linear", "rope_type": "llama3", "factor": 2.0}, ("KeyError", "KeyError", None)),
        ("architectures", [3], (None, "StrictDataclassFieldValidationError", None)),
    ],
)  # fmt: skip
def test_fields_of_every_config_are_refused_as_each_release_does(
    key: str, value: Any, errors: tuple[str | None, ...]
) -> None:
    for transformers, error in zip((NEW, MIDDLE, OLD), errors, strict=True):
        if error is None:
            read(LLAMA | {key: value}, transformers, "")
        else:
            assert str(refused(LLAMA | {key: value}, transformers)).startswith(error)


def test_layer_types_are_known_and_as_many_as_layers() -> None:
    config = LLAMA | {"num_hidden_layers": 1}
    for transformers, model_type, error in (
        (NEW, "llama", "StrictDataclassClassValidationError"),
        (OLD, "qwen3", "ValueError"),
    ):
        for types in (["odd_attention"], ["full_attention"] * 2):
            given = config | {"model_type": model_type, "layer_types": types}
            assert str(refused(given, transformers)).startswith(error)
        read(config | {"model_type": model_type, "layer_types": ["sliding_attention"]}, transformers, "")
    assert str(refused(config | {"layer_types": 3}, NEW)).startswith("TypeError")
    assert str(refused({"model_type": "qwen3", "num_hidden_layers": "1"}, OLD)).startswith("TypeError")


def test_what_a_class_sets_last_wins() -> None:
    assert read({"model_type": "llama4_text", "attention_bias": True}, OLD, "").get("attention_bias") is False
    assert (
        read({"model_type": "deepseek_v2", "head_dim": 8, "qk_rope_head_dim": 40}, OLD, "").get("head_dim")
        == 40
    )


def test_a_class_s_own_name_for_a_field_stands_for_it() -> None:
    config = read({"model_type": "bloom", "num_hidden_layers": 1}, NEW, "")
    assert (config.get("n_layer"), config.get("num_hidden_layers")) == (1, 1)
