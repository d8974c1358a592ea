"""Facts of a target from its own config and headers: wrappers, odd names, tied heads, quantisation, padding."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckpt_tools.model import Rope, TensorInfo
from ckpt_tools.targets import from_config, unwrap
from ckpt_tools.targets.rope import rope_of


def tensors(**shapes: tuple[int, ...]) -> dict[str, TensorInfo]:
    return {
        name.replace("__", "."): TensorInfo(name.replace("__", "."), "BF16", shape, "m.safetensors", 0, 0)
        for name, shape in shapes.items()
    }


def named(*names: str, shape: tuple[int, ...] = (256, 64)) -> dict[str, TensorInfo]:
    return {name: TensorInfo(name, "BF16", shape, "m.safetensors", 0, 0) for name in names}


PLAIN = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 8,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16",
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}


def test_a_plain_config() -> None:
    found = from_config(PLAIN, "./t")
    assert (found.id, found.origin) == ("./t", "local")
    assert found.architectures == found.text_architectures == ("LlamaForCausalLM",)
    assert found.model_type == found.text_model_type == "llama"
    assert (found.hidden_size, found.num_hidden_layers, found.vocab_size, found.head_dim) == (64, 8, 256, 16)
    assert (found.dtype, found.rms_norm_eps, found.tie_word_embeddings) == ("bfloat16", 1e-6, False)
    assert found.rope == Rope(theta=10000.0)
    assert found.sources["hidden_size"] == "config.json /hidden_size"
    assert found.config is PLAIN
    assert found.quantization is None


def test_nothing_stated_is_none() -> None:
    found = from_config({}, "x", origin="hub")
    assert found.origin == "hub"
    for field in (
        "hidden_size", "num_hidden_layers", "vocab_size", "head_dim", "tie_word_embeddings", "dtype", "rope",
        "quantization", "model_type", "text_model_type", "embed_tensor", "num_nextn_predict_layers",
    ):  # fmt: skip
        assert getattr(found, field) is None, field
    assert found.architectures == found.text_architectures == ()
    assert found.sources == {}


@pytest.mark.parametrize(
    ("wrapper", "path"),
    [
        ({"text_config": PLAIN}, "text_config"),
        ({"llm_config": PLAIN, "text_config": {}}, "llm_config"),
        ({"language_config": PLAIN}, "language_config"),
        ({"thinker_config": {"text_config": PLAIN}}, "thinker_config/text_config"),
        ({"thinker_config": PLAIN}, "thinker_config"),
    ],
)
def test_wrappers(wrapper: dict[str, Any], path: str) -> None:
    config = {"architectures": ["OuterForConditionalGeneration"], "model_type": "outer", **wrapper}
    assert unwrap(config).path == path
    found = from_config(config, "x")
    assert found.architectures == ("OuterForConditionalGeneration",)
    assert found.text_architectures == ("LlamaForCausalLM",)
    assert (found.model_type, found.text_model_type) == ("outer", "llama")
    assert found.hidden_size == 64
    assert found.sources["hidden_size"] == f"config.json /{path}/hidden_size"
    assert found.rope == Rope(theta=10000.0)


def test_outside_the_wrapper_what_is_not_inside() -> None:
    config = {
        "text_config": {"hidden_size": 64},
        "hidden_size": 9,
        "vocab_size": 256,
        "dtype": "torch.float16",
    }
    found = from_config(config, "x")
    assert (found.hidden_size, found.vocab_size, found.dtype) == (64, 256, "float16")
    assert found.sources["vocab_size"] == "config.json /vocab_size"
    assert found.text_architectures == ()


@pytest.mark.parametrize(
    ("config", "field", "value"),
    [
        ({"n_embd": 768}, "hidden_size", 768),
        ({"d_model": 512}, "hidden_size", 512),
        ({"n_layer": 12}, "num_hidden_layers", 12),
        ({"num_layers": 28}, "num_hidden_layers", 28),
        ({"padded_vocab_size": 65024}, "vocab_size", 65024),
        ({"n_positions": 1024}, "max_position_embeddings", 1024),
        ({"seq_length": 8192}, "max_position_embeddings", 8192),
        ({"max_seq_len": 2048}, "max_position_embeddings", 2048),
        ({"n_head": 12}, "num_attention_heads", 12),
        ({"multi_query_group_num": 2}, "num_key_value_heads", 2),
        ({"kv_channels": 128}, "head_dim", 128),
        ({"ffn_hidden_size": 13696}, "intermediate_size", 13696),
        ({"layernorm_epsilon": 1e-5}, "rms_norm_eps", 1e-5),
        ({"num_nextn_predict_layers": 0}, "num_nextn_predict_layers", 0),
        ({"mtp_num_hidden_layers": 1}, "num_nextn_predict_layers", 1),
    ],
)
def test_odd_names(config: dict[str, Any], field: str, value: object) -> None:
    found = from_config(config, "x")
    assert getattr(found, field) == value
    assert found.sources[field] == f"config.json /{next(iter(config))}"


@pytest.mark.parametrize("value", [None, "64", True, 6.5, [64], {}])
def test_values_of_another_kind_are_not_taken(value: object) -> None:
    found = from_config({"hidden_size": value, "n_embd": 7, "architectures": value, "model_type": value}, "x")
    assert found.hidden_size == 7


@pytest.mark.parametrize(
    ("config", "tied", "source"),
    [
        ({"tie_word_embeddings": True}, True, "config.json /tie_word_embeddings"),
        (
            {"tie_word_embeddings": True, "text_config": {"tie_word_embeddings": False}},
            False,
            "config.json /text_config/tie_word_embeddings",
        ),
        (
            {"tie_word_embeddings": True, "text_config": {"model_type": "llama"}},
            True,
            "config.json /tie_word_embeddings",
        ),
        ({"model_type": "llama"}, False, "transformers 5.19 default of model_type llama"),
        (
            {"text_config": {"model_type": "gemma3_text"}},
            True,
            "transformers 5.19 default of model_type gemma3_text",
        ),
        ({"model_type": "something_new"}, None, None),
    ],
)
def test_tied_heads(config: dict[str, Any], tied: bool | None, source: str | None) -> None:
    found = from_config(config, "x")
    assert (found.tie_word_embeddings, found.sources.get("tie_word_embeddings")) == (tied, source)


@pytest.mark.parametrize(
    ("config", "hf_quant", "method", "source"),
    [
        ({"quantization_config": {"quant_method": "fp8"}}, None, "fp8", "config.json /quantization_config"),
        (
            {"text_config": {"quantization_config": {"quant_method": "compressed-tensors"}}},
            None,
            "compressed-tensors",
            "config.json /text_config/quantization_config",
        ),
        ({"compression_config": {"quant_method": "x"}}, None, "x", "config.json /compression_config"),
        ({}, {"producer": {}, "quantization": {"quant_algo": "NVFP4"}}, "modelopt", "hf_quant_config.json"),
        ({}, {"quant_method": "modelopt_fp4"}, "modelopt_fp4", "hf_quant_config.json"),
    ],
)
def test_quantisation(config: dict[str, Any], hf_quant: Any, method: str, source: str) -> None:
    found = from_config(config, "x", hf_quant)
    assert found.quantization is not None
    assert found.quantization["quant_method"] == method
    assert found.sources["quantization"] == source


@pytest.mark.parametrize("hf_quant", [None, {}, {"quantization": None}])
def test_no_quantisation(hf_quant: Any) -> None:
    assert from_config({"quantization_config": {}}, "x", hf_quant).quantization is None


@pytest.mark.parametrize(
    ("names", "embed", "head"),
    [
        (("model.embed_tokens.weight", "lm_head.weight"), "model.embed_tokens.weight", "lm_head.weight"),
        (
            ("language_model.model.embed_tokens.weight", "language_model.lm_head.weight"),
            "language_model.model.embed_tokens.weight",
            "language_model.lm_head.weight",
        ),
        (("model.language_model.embed_tokens.weight",), "model.language_model.embed_tokens.weight", None),
        (
            ("model.word_embeddings.weight", "lm_head.weight"),
            "model.word_embeddings.weight",
            "lm_head.weight",
        ),
        (
            ("transformer.embedding.word_embeddings.weight", "transformer.output_layer.weight"),
            "transformer.embedding.word_embeddings.weight",
            "transformer.output_layer.weight",
        ),
        (("transformer.wte.weight",), "transformer.wte.weight", None),
        (("wte.weight",), "wte.weight", None),
        (
            ("model.llm.embed.weight", "model.llm.lm_head.weight"),
            "model.llm.embed.weight",
            "model.llm.lm_head.weight",
        ),
        (("tok_embeddings.weight", "output.weight"), "tok_embeddings.weight", "output.weight"),
        (("backbone.embeddings.weight",), "backbone.embeddings.weight", None),
        (("visual.embed_tokens.weight", "model.embed_tokens.weight"), "model.embed_tokens.weight", None),
        (("mtp.embed_tokens.weight", "mtp.lm_head.weight"), None, None),
        (
            (
                "model.layers.61.embed_tokens.weight",
                "model.layers.61.shared_head.head.weight",
                "model.embed_tokens.weight",
            ),
            "model.embed_tokens.weight",
            None,
        ),
        (("model.layers.0.attention.output.weight",), None, None),
        (("my_lm_head.weight",), None, None),
        (("a.b.embed_tokens.weight", "a.embed_tokens.weight"), "a.embed_tokens.weight", None),
    ],
)
def test_embedding_and_head_among_the_tensors(
    names: tuple[str, ...], embed: str | None, head: str | None
) -> None:
    found = from_config({}, "x", tensors=named(*names))
    assert (found.embed_tensor, found.lm_head_tensor) == (embed, head)
    if embed:
        assert found.sources["embed_tensor"] == "m.safetensors header"


def test_without_a_head_among_the_tensors_it_is_tied() -> None:
    found = from_config({}, "x", tensors=named("model.embed_tokens.weight"))
    assert found.tie_word_embeddings is True
    assert found.sources["tie_word_embeddings"] == "no output head among the tensors"
    assert from_config({}, "x", tensors=named("model.norm.weight")).tie_word_embeddings is None
    assert from_config({}, "x", tensors={}).tie_word_embeddings is None


def test_files_that_contradict_the_config_are_noted() -> None:
    both = named("model.embed_tokens.weight", "lm_head.weight")
    found = from_config({"tie_word_embeddings": True}, "x", tensors=both)
    assert found.notes == ("tie_word_embeddings is true, yet the files hold lm_head.weight.",)
    missing = from_config({"tie_word_embeddings": False}, "x", tensors=named("model.embed_tokens.weight"))
    assert "no output head was found" in missing.notes[0]
    agreed = from_config({"tie_word_embeddings": False}, "x", tensors=both)
    assert agreed.notes == ()


def test_a_padded_vocabulary_is_noted() -> None:
    found = from_config({"vocab_size": 250}, "x", tensors=named("embed_tokens.weight", "lm_head.weight"))
    assert found.notes == ("embed_tokens.weight has 256 rows for a vocabulary of 250: padded.",)
    scalar = from_config({"vocab_size": 250}, "x", tensors=named("embed_tokens.weight", shape=()))
    assert scalar.notes == ()


@pytest.mark.parametrize(
    ("config", "rope"),
    [
        ({"rope_theta": 10000}, Rope(10000.0)),
        ({"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}}, Rope(10000.0)),
        (
            {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
            Rope(5e5, {"rope_type": "linear", "factor": 2.0}),
        ),
        (
            {"rope_parameters": {"rope_theta": 1.0, "rope_type": "yarn", "factor": 4}, "rope_theta": 2.0,
             "rope_scaling": {"type": "linear", "factor": 2}},
            Rope(1.0, {"rope_type": "yarn", "factor": 4}),
        ),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [1, 2]}, "rope_theta": 1e6},
         Rope(1e6, {"rope_type": "default", "mrope_section": [1, 2]})),
        ({"partial_rotary_factor": 0.25, "rope_theta": 1e4}, Rope(1e4, None, 0.25)),
        ({"rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 1e4}, "partial_rotary_factor": 0.25},
         Rope(1e4, None, 0.5)),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}},
            Rope(None, {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}),
        ),
        ({"rope_parameters": {"rope_type": "default"}}, Rope()),
        ({"rope_theta": "big", "rope_scaling": "none"}, None),
        ({"rope_theta": True}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_rope(config: dict[str, Any], rope: Rope | None) -> None:
    assert rope_of(config) == rope


JSON = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.text(max_size=5),
    st.lists(st.integers() | st.text(max_size=3), max_size=2),
    st.dictionaries(st.sampled_from(["factor", "type", "rope_type"]), st.integers() | st.text(max_size=3)),
)
KEYS = st.sampled_from(
    ["text_config", "thinker_config", "architectures", "hidden_size", "rope_parameters", "rope_scaling", "dtype",
     "quantization_config", "tie_word_embeddings", "vocab_size", "model_type", "rope_theta"]
)  # fmt: skip
CONFIGS = st.dictionaries(KEYS, JSON | st.dictionaries(KEYS, JSON, max_size=4), max_size=6)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(CONFIGS, st.none() | CONFIGS)
def test_no_config_breaks_it(config: dict[str, Any], hf_quant: dict[str, Any] | None) -> None:
    found = from_config(config, "x", hf_quant, named("model.embed_tokens.weight"))
    assert found.id == "x"
    for field, source in found.sources.items():
        assert getattr(found, field) is not None
        assert source


def test_sizes_that_the_config_leaves_out_are_those_of_the_embedding() -> None:
    embedding = TensorInfo("model.embed_tokens.weight", "BF16", (320, 64), "m.safetensors", 0, 0)
    found = from_config({"model_type": "llama"}, "x", tensors={embedding.name: embedding})
    assert (found.vocab_size, found.hidden_size) == (320, 64)
    assert found.sources["vocab_size"] == "m.safetensors header: the shape of model.embed_tokens.weight"
    stated = from_config({"vocab_size": 256, "hidden_size": 64}, "x", tensors={embedding.name: embedding})
    assert stated.vocab_size == 256
    assert any("320 rows for a vocabulary of 256" in note for note in stated.notes)
