"""SGLang's load map: what the recorded cases don't reach, and what they pin by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt_tools.engines import load_map, resolve
from ckpt_tools.engines.sglang.architectures import registered
from ckpt_tools.engines.sglang.engine import ENGINE
from ckpt_tools.engines.sglang.features import features
from ckpt_tools.engines.sglang.loadmap import MODELLED, load_order, parameter_shapes
from ckpt_tools.engines.sglang.quantization import methods
from ckpt_tools.model import Checkpoint, FileInfo, LoadMap, TensorInfo

SGLANG = resolve("sglang", "test")

H, V, VD = 64, 256, 128
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1, "hidden_size": H,
    "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": V,
    "draft_vocab_size": VD, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
    "max_position_embeddings": 512, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip


def names(layer: str = "midlayer.") -> dict[str, tuple[int, ...]]:
    return {
        "d2t": (VD,), "fc.weight": (H, 3 * H), "norm.weight": (H,), "lm_head.weight": (VD, H),
        f"{layer}hidden_norm.weight": (H,), f"{layer}input_layernorm.weight": (H,),
        f"{layer}post_attention_layernorm.weight": (H,), f"{layer}self_attn.q_proj.weight": (128, 2 * H),
        f"{layer}self_attn.k_proj.weight": (64, 2 * H), f"{layer}self_attn.v_proj.weight": (64, 2 * H),
        f"{layer}self_attn.o_proj.weight": (H, 128), f"{layer}mlp.gate_proj.weight": (96, H),
        f"{layer}mlp.up_proj.weight": (96, H), f"{layer}mlp.down_proj.weight": (H, 96),
    }  # fmt: skip


def draft(
    shapes: dict[str, tuple[int, ...]], config: dict[str, Any] | None = None, **extra: Any
) -> Checkpoint:
    tensors = {
        n: TensorInfo(n, "I64" if "d2t" in n else "BF16", shape, "model.safetensors", 0, 0)
        for n, shape in shapes.items()
    }
    given = (config if config is not None else CONFIG) | extra
    return Checkpoint(
        "d", "/drafts/d", given, "", tensors, (FileInfo("model.safetensors", 0, "safetensors"),)
    )


def mapped(checkpoint: Checkpoint, engine: str = "sglang", algorithm: str | None = None) -> LoadMap:
    return load_map(resolve(engine, "test"), checkpoint, algorithm=algorithm)


def test_it_is_found_with_its_contracts() -> None:
    assert resolve("sglang", "test").contract == "0.5.23"
    assert resolve("sglang==0.5.16", "test").contract == "0.5.12"
    assert ENGINE.contracts == ("0.5.9", "0.5.12", "0.5.23")


def test_a_whole_head_is_filled() -> None:
    found = mapped(draft(names()))
    assert found.refused is None
    assert found.architecture == "LlamaForCausalLMEagle3"
    assert found.unused == ()
    by = {name: fill.filled_by for name, fill in found.parameters.items()}
    assert by.pop("model.embed_tokens.weight") == "target"
    assert set(by.values()) == {"checkpoint"}
    qkv = found.parameters["model.layers.0.self_attn.qkv_proj.weight"]
    assert qkv.sources == tuple(sorted(f"midlayer.self_attn.{n}_proj.weight" for n in "qkv"))


@pytest.mark.parametrize(
    ("version", "works"),
    [("0.4.9", False), ("0.5.9", False), ("0.5.11", False), ("0.5.12", True), ("0.5.23", True)],
)
def test_layers_0_names_load_as_nothing_before_0_5_12(version: str, works: bool) -> None:
    found = mapped(draft(names("layers.0.")), f"sglang=={version}")
    empty = [n for n, fill in found.parameters.items() if fill.filled_by in ("nothing", "default")]
    assert found.refused is None
    assert len(empty) == (0 if works else 7)
    assert len(found.unused) == (0 if works else 10)


@pytest.mark.parametrize(
    ("version", "built"), [("0.5.11", False), ("0.5.12", False), ("0.5.16", False), ("0.5.17", True)]
)
def test_norm_before_fc_since_0_5_17(version: str, built: bool) -> None:
    found = mapped(
        draft(names() | {"input_norm.weight": (3 * H,)}, norm_before_fc=True), f"sglang=={version}"
    )
    assert ("model.input_norm.weight" in found.parameters) == built
    assert ("input_norm.weight" in found.unused) == (not built)


def test_the_mla_head_is_unknown_before_0_5_12() -> None:
    assert "Eagle3DeepseekV2ForCausalLM" not in registered("0.5.11")
    assert "Eagle3DeepseekV2ForCausalLM" in registered("0.5.12.post1")
    assert "MistralForCausalLMEagle" in registered("0.5.11")
    found = mapped(draft(names(), architectures=["Eagle3DeepseekV2ForCausalLM"]), "sglang==0.5.11")
    assert found.refused is not None and "Cannot find model module" in found.refused
    assert (found.stage, found.architecture) == ("class", None)


def test_fc_has_a_bias_whatever_the_config_says_before_0_4_9() -> None:
    assert not features(resolve("sglang==0.4.8", "test")).fc_bias_from_config
    fill = mapped(draft(names()), "sglang==0.4.8").parameters["model.fc.bias"]
    assert fill.filled_by == "nothing"


@pytest.mark.parametrize(
    ("algorithm", "replaced"),
    [
        ("EAGLE3", {"model.embed_tokens.weight"}),
        ("EAGLE", {"model.embed_tokens.weight", "lm_head.weight"}),
        (None, {"model.embed_tokens.weight"}),
    ],
)
def test_what_the_server_replaces_counts_as_the_targets(algorithm: str | None, replaced: set[str]) -> None:
    found = mapped(draft(names() | {"embed_tokens.weight": (V, H)}), algorithm=algorithm)
    assert {n for n, fill in found.parameters.items() if fill.filled_by == "target"} == replaced
    assert found.parameters["model.embed_tokens.weight"].sources == ("embed_tokens.weight",)


def test_another_width_keeps_the_drafts_embedding() -> None:
    shapes = names() | {"embed_tokens.weight": (V, H), "fc.weight": (H, 3 * 96)}
    found = mapped(draft(shapes, target_hidden_size=96))
    assert found.parameters["model.embed_tokens.weight"].filled_by == "checkpoint"


def test_cuts_are_told() -> None:
    shapes = names() | {
        "midlayer.self_attn.q_proj.weight": (160, 2 * H),
        "midlayer.mlp.up_proj.weight": (80, H),
    }
    found = mapped(draft(shapes))
    qkv = found.parameters["model.layers.0.self_attn.qkv_proj.weight"]
    assert (qkv.filled_by, qkv.cut) == (
        "checkpoint",
        "midlayer.self_attn.q_proj.weight: only 128 of 160 rows are kept",
    )
    gate_up = found.parameters["model.layers.0.mlp.gate_up_proj.weight"]
    assert gate_up.cut == "midlayer.mlp.up_proj.weight: 16 of 96 rows are zeros"


def test_parts_may_miss() -> None:
    shapes = names()
    del shapes["midlayer.self_attn.k_proj.weight"]
    assert mapped(draft(shapes)).parameters["model.layers.0.self_attn.qkv_proj.weight"].filled_by == "partly"


def test_a_refusal_while_loading_keeps_what_was_filled() -> None:
    found = mapped(draft(names() | {"norm.weight": (32,)}))
    assert found.stage == "load"
    assert found.refused is not None and found.refused.startswith("AssertionError: Attempted to load weight")
    assert found.parameters["model.fc.weight"].filled_by == "checkpoint"
    assert "norm.weight" in found.unused


def test_a_refused_config_has_no_parameters() -> None:
    shapes = names()
    found = mapped(draft(shapes, {}))
    assert (found.stage, found.architecture, found.parameters) == ("config", None, {})
    assert set(found.unused) == set(shapes)
    assert (
        found.refused
        == "ValueError: Unrecognized model in /drafts/d. Should have a `model_type` key in its config.json."
    )
    assert parameter_shapes(resolve("sglang", "test"), draft(shapes, {})) == {}


def test_a_class_that_no_draft_is_served_by_is_not_mapped() -> None:
    found = mapped(draft(names(), architectures=["Qwen3ForCausalLM"]))
    assert (found.architecture, found.refused, found.parameters) == ("Qwen3ForCausalLM", None, {})
    assert "Qwen3ForCausalLM" not in MODELLED
    assert (
        parameter_shapes(resolve("sglang", "test"), draft(names(), architectures=["Qwen3ForCausalLM"])) == {}
    )


def test_a_targets_class_becomes_its_next_token_head() -> None:
    found = mapped(draft(names(), architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3"))
    assert found.architecture == "DeepseekV3ForCausalLMNextN"


def test_shapes_are_fused_and_padded() -> None:
    shapes = parameter_shapes(resolve("sglang", "test"), draft(names(), draft_vocab_size=100))
    assert shapes["lm_head.weight"] == (128, H)
    assert shapes["model.layers.0.self_attn.qkv_proj.weight"] == (256, 2 * H)


def test_shards_load_in_order_and_tensors_by_name() -> None:
    infos = [TensorInfo(n, "BF16", (1,), file, 0, 0) for n, file in (("c", "2"), ("b", "1"), ("a", "1"))]
    files = tuple(FileInfo(n, 0, "safetensors") for n in ("1", "2"))
    order = load_order(Checkpoint("d", "d", {}, "", {t.name: t for t in infos}, files))
    assert [t.name for t in order] == ["a", "b", "c"]


def test_pickles_beside_safetensors_are_not_read() -> None:
    whole = draft(names())
    beside = TensorInfo("norm.weight.old", "BF16", (H,), "pytorch_model.bin", 0, 0)
    files = (*whole.files, FileInfo("pytorch_model.bin", 0, "pickle"))
    both = Checkpoint("d", "d", CONFIG, "", dict(whole.tensors) | {beside.name: beside}, files)
    assert [t.name for t in load_order(both)] == sorted(whole.tensors)
    assert mapped(both).unused == (beside.name,)
    assert list(load_order(Checkpoint("d", "d", CONFIG, "", {beside.name: beside}, files[1:]))) == [beside]


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 8, "group_size": 32, "desc_act": False}
INTEGERS = {"type": "int", "num_bits": 8, "strategy": "group", "group_size": 32}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}


def tensors(weights: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    """A compressed-tensors config with one group."""
    group = {"targets": ["Linear"], "weights": weights} | {
        k: more.pop(k) for k in ("input_activations",) if k in more
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"g": group},
    } | more


def test_the_quantisation_of_an_older_release_is_its_own() -> None:
    assert "qoq" in methods("0.5.12")
    assert "qoq" not in methods("0.5.23")


@pytest.mark.parametrize(
    ("quant", "name"),
    [
        (AWQ, "qweight"),
        (AWQ | {"group_size": -1}, "scales"),
        (GPTQ, "g_idx"),
        (GPTQ | {"group_size": -1}, "qzeros"),
        (tensors(INTEGERS), "weight_packed"),
        (tensors(INTEGERS | {"strategy": "channel", "group_size": None}), "weight_scale"),
        (tensors(INTEGERS | {"symmetric": False}), "weight_zero_point"),
        (tensors(INTEGERS | {"actorder": "group"}), "weight_g_idx"),
    ],
)
def test_a_copied_quantization_config_renames_every_linear(quant: dict[str, Any], name: str) -> None:
    found = mapped(draft(names(), quantization_config=quant))
    layer = "model.layers.0.self_attn.o_proj"
    assert found.parameters[f"{layer}.{name}"].filled_by == "nothing"
    assert f"{layer}.weight" not in found.parameters
    assert "midlayer.self_attn.o_proj.weight" in found.unused


@pytest.mark.parametrize(
    ("quant", "layers"),
    [
        (FP8 | {"ignored_layers": ["model.layers.0.mlp.down_proj"]}, ""),  # the name of a target's layer
        (FP8 | {"ignored_layers": ["down_proj"]}, "down_proj"),
        (FP8 | {"modules_to_not_convert": ["self_attn"]}, "o_proj"),
        (FP8 | {"ignored_layers": ["q_proj", "k_proj", "v_proj"]}, "qkv_proj"),
        (AWQ | {"modules_to_not_convert": ["own_"]}, "down_proj"),
        (tensors(INTEGERS, ignore=["re:.*self_attn.*"]), "o_proj"),
        (tensors(INTEGERS, ignore=["model.layers.0.mlp.down_proj"]), ""),
        (tensors(INTEGERS, ignore=["down_proj"]), "down_proj"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "*self_attn*"]}, "o_proj"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["down_*"]}, "down_proj"),
        (tensors(INTEGERS) | {"config_groups": {}}, "qkv_proj o_proj gate_up_proj down_proj"),
    ],
)
def test_layers_are_left_alone_by_the_names_of_modules(quant: dict[str, Any], layers: str) -> None:
    built = parameter_shapes(SGLANG, draft(names(), quantization_config=quant))
    plain = [n for n in built if n.startswith("model.layers.") and n.endswith("_proj.weight")]
    scaled = {n.rpartition(".")[0] for n in built if n.endswith(("_scale", "scales"))}
    assert {n.split(".")[-2] for n in plain if n.removesuffix(".weight") not in scaled} == set(layers.split())


@pytest.mark.parametrize(
    ("quant", "error"),
    [
        ({"quant_method": None}, "AttributeError: 'NoneType' object has no attribute 'lower'"),
        ({"quant_method": "fp8"}, "ValueError: Cannot find any of ['activation_scheme']"),
        (FP8 | {"activation_scheme": "odd"}, "ValueError: Unsupported activation scheme odd"),
        (FP8 | {"weight_block_size": [32]}, "ValueError: The quantization block size of weight must have 2"),
        (FP8 | {"activation_scheme": "static", "weight_block_size": [32, 32]}, "ValueError: The block-wise quantization only"),
        (FP8 | {"quant_method": "FP8", "weight_block_size": [32, 32]}, "ValueError: The block-wise quantization only"),
        (FP8 | {"weight_block_size": [96, 32]}, "ValueError: Weight output_partition_size = "),
        (FP8 | {"ignored_layers": ["q_proj"]}, "ValueError: Detected some but not all shards"),
        (GPTQ | {"bits": 5}, "ValueError: Currently, only 2/3/4/8-bit"),
        (AWQ | {"bits": 8}, "ValueError: Currently, only 4-bit"),
        (tensors(INTEGERS | {"group_size": None}), "ValidationError: strategy group"),
        (tensors(INTEGERS | {"group_size": 1000}), "AssertionError"),
        (tensors(INTEGERS, format="dense"), "ImportError: Other method"),
        (tensors(INTEGERS | {"strategy": "tensor"}, format="dense"), "NotImplementedError: No compressed-tensors"),
        (tensors(INTEGERS) | {"config_groups": {"g": {"targets": ["re:x"], "weights": INTEGERS}}}, "ValueError: Unable to find"),
        ({"quant_method": "modelopt"}, "ValueError: Cannot find 'quant_algo'"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8"}, "ValueError: ModelOptFp8Config only supports"),
        ({"quant_method": "modelopt_fp4"}, "ValueError: Cannot find 'quant_algo'"),
        ({"quant_method": "modelopt_fp4", "quant_algo": "FP4"}, "ValueError: ModelOpt currently only supports"),
        ({"quant_method": "modelopt_fp4", "quantization": {"quant_algo": "NVFP4"}}, "ValueError: NVFP4 quantization requires"),
    ],
)  # fmt: skip
def test_a_quantisation_that_is_refused(quant: dict[str, Any], error: str) -> None:
    found = mapped(draft(names(), quantization_config=quant))
    assert found.refused is not None
    assert found.refused.startswith(error)


def test_eight_bits_take_plain_weights_and_lack_their_scales() -> None:
    tokens = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
    channel = {"num_bits": 8, "type": "float", "strategy": "channel"}
    whole = {"quant_method": "modelopt", "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    for quant in (
        FP8 | {"activation_scheme": "static"},
        whole,
        {"quant_method": "modelopt_fp8", "quant_algo": "FP8", "kv_cache_scheme": {"type": "float", "num_bits": 8}},
        tensors(channel, input_activations=tokens, format="float-quantized"),
        tensors(channel, format="float-quantized"),
        tensors(channel | {"strategy": "tensor"}, input_activations=tokens | {"dynamic": False, "strategy": "tensor"}, format="float-quantized"),
        tensors(channel | {"type": "int"}, input_activations=tokens | {"type": "int"}, format="int-quantized"),
        tensors(channel | {"type": "int", "strategy": "tensor"}, input_activations=tokens | {"type": "int"}, format="int-quantized"),
    ):  # fmt: skip
        found = mapped(draft(names(), quantization_config=quant))
        layer = "model.layers.0.self_attn.o_proj"
        assert found.parameters[f"{layer}.weight"].filled_by == "checkpoint"
        assert found.parameters[f"{layer}.weight_scale"].filled_by == "nothing"


def test_a_method_in_capitals_quantises_after_loading() -> None:
    found = parameter_shapes(SGLANG, draft(names(), quantization_config=FP8 | {"quant_method": "FP8"}))
    assert "model.layers.0.self_attn.o_proj.weight_scale" not in found
    assert "model.layers.0.self_attn.attn.k_scale" in found


def test_a_head_that_the_method_takes_is_packed() -> None:
    quant = {"quant_method": "modelopt_fp4", "quant_algo": "NVFP4", "exclude_modules": []}
    found = parameter_shapes(SGLANG, draft(names(), quantization_config=quant))
    rows, width = parameter_shapes(SGLANG, draft(names()))["lm_head.weight"]
    assert found["lm_head.weight"] == (rows, width // 2)
    assert found["lm_head.weight_scale"] == (rows, width // 16)
    assert found["lm_head.input_scale"] == (1,)


def test_a_quantisation_that_is_not_mapped_says_nothing() -> None:
    floats = {"num_bits": 8, "type": "float", "strategy": "channel"}
    for quant in (
        {"quant_method": "bitsandbytes"},
        {"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ", "ignore": [], "group_size": 16},
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
        tensors(None),
        tensors(INTEGERS, linear_fp8_config={"quant_method": "fp8"}),
        GPTQ | {"dynamic": {"-:.*o_proj": {}}},
        tensors(floats | {"num_bits": 4}, format="float-quantized"),
        tensors(floats, format="float-quantized", input_activations={"type": "float", "strategy": "token"}),
        tensors(floats | {"type": "int"}, format="int-quantized", input_activations={"type": "int", "strategy": "tensor"}),
        tensors(INTEGERS) | {"config_groups": {"g": {"targets": ["re:.*lm_head"], "weights": INTEGERS}}},
    ):  # fmt: skip
        found = mapped(draft(names(), quantization_config=quant))
        assert (found.architecture, found.refused, found.parameters) == ("LlamaForCausalLMEagle3", None, {})


FP4 = {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}


@pytest.mark.parametrize(
    ("beside", "config", "said"),  # what 0.5.23 builds o_proj with, and what 0.5.9 refuses
    [
        ({"quantization": {"quant_algo": "FP8"}}, {}, ("weight_scale", None)),
        ({"quantization": FP4}, {}, ("weight_scale_2", None)),
        ({"quantization": {"quant_algo": None}}, {}, (None, None)),
        ({"quantization": {"quant_algo": "W8A8_SQ"}}, {}, (None, None)),
        ({"quantization": FP4}, {"quantization_config": AWQ}, ("qweight", None)),
        ({"quant_algo": "FP8"}, {}, ("weight_scale", "KeyError: 'quantization'")),
    ],
)
def test_hf_quant_config_counts_where_the_config_says_nothing(
    beside: dict[str, Any], config: dict[str, Any], said: tuple[str | None, str | None]
) -> None:
    checkpoint = replace(draft(names(), **config), extra={"hf_quant_config": beside})
    built = parameter_shapes(SGLANG, checkpoint)
    layer = "model.layers.0.self_attn.o_proj."
    names_ = {name.removeprefix(layer) for name in built if name.startswith(layer)}
    assert (said[0] in names_) if said[0] else names_ == {"weight"}
    old = load_map(resolve("sglang==0.5.9", "test"), checkpoint)
    assert (old.refused if old.stage == "config" else None) == said[1]


def test_modelopt_s_mxfp8_is_its_own_method_once() -> None:
    quant = {"quant_method": "modelopt", "quant_algo": "MXFP8"}
    checkpoint = draft(names(), quantization_config=quant)
    assert parameter_shapes(SGLANG, checkpoint) == {}
    old = parameter_shapes(resolve("sglang==0.5.12", "test"), checkpoint)
    assert "model.layers.0.self_attn.o_proj.input_scale" in old


def test_compression_config_counts_too() -> None:
    found = mapped(draft(names(), compression_config={"quant_method": "nonsense"}))
    assert found.refused == "ValueError: Unknown quantization method: nonsense."


def test_more_layers_than_any_memory_holds() -> None:
    found = mapped(draft(names(), num_hidden_layers=10**12))
    assert found.refused == "MemoryError: 1000000000000 modules"


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 300), st.floats(allow_nan=False), st.text(max_size=3),
    st.lists(st.integers(-1, 5), max_size=3), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)  # fmt: skip
FIELDS = (*CONFIG, "eagle_config", "target_hidden_size", "num_aux_hidden_states", "fc_norm", "bias", "rope_scaling", "rope_parameters",
          "quantization_config", "hot_vocab_size", "dflash_config", "markov_rank", "q_lora_rank", "text_config", "layer_types",
          "auto_map")  # fmt: skip


@given(
    config=st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=3),
    architecture=st.sampled_from(MODELLED),
    model_type=st.sampled_from(["llama", "qwen3", "kimi_k2", "deepseek_v3"]),
    version=st.sampled_from(["0.5.9", "0.5.12", "0.5.23"]),
)
def test_no_config_crashes_it(
    config: dict[str, Any], architecture: str, model_type: str, version: str
) -> None:
    given_ = {"architectures": [architecture], "model_type": model_type} | config
    found = mapped(draft(names(), CONFIG | given_), f"sglang=={version}")
    assert found.refused is not None or found.parameters or found.architecture is not None
    assert set(found.unused) <= set(names())


@pytest.mark.parametrize(
    ("extra", "errors"),  # 0.5.23, then 0.5.9
    [
        ({"text_config": {}}, ("AssertionError", "AssertionError")),
        ({"llm_config": {"num_attention_heads": 4}}, ("AttributeError", "AssertionError")),
        ({"language_config": {}}, ("AttributeError", "AttributeError")),
        ({"thinker_config": {"text_config": {}}}, ("AttributeError", "AssertionError")),
        ({"thinker_config": {}}, ("AttributeError", "AttributeError")),
        ({"text_config": "x"}, ("AttributeError", "AssertionError")),
        ({"text_config": "x", "torch_dtype": None}, ("AttributeError", "AssertionError")),
        ({"thinker_config": None}, (None, "AttributeError")),
        ({"text_config": CONFIG}, (None, "AssertionError")),
        ({"seq_length": "x"}, ("ValueError", "ValueError")),
        ({"quantization_config": "fp8"}, ("AttributeError", "AttributeError")),
        ({"architectures": {}}, ("KeyError", "KeyError")),
        ({"architectures": [None]}, ("AttributeError", "AttributeError")),
        ({"architectures": ["DeepseekV3ForCausalLM"]}, ("AttributeError", "AttributeError")),
    ],
)
def test_a_config_that_is_refused_before_a_model_is_built(
    extra: dict[str, Any], errors: tuple[str | None, ...]
) -> None:
    for engine, error in zip(("sglang", "sglang==0.5.9"), errors, strict=True):
        found = mapped(draft(names(), **extra), engine)
        assert (found.refused or "").partition(":")[0] == (error or "")
        assert found.stage == ("config" if error else None)


LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 16, "long_factor": [1.0] * 16}
NESTED = {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}


@pytest.mark.parametrize(
    ("extra", "error"),
    [
        ({"rope_theta": "10000"}, "TypeError: unsupported operand"),
        ({"rope_theta": []}, "TypeError: unhashable type: 'list'"),
        ({"rope_scaling": NESTED}, "TypeError: unhashable type: 'dict'"),
        ({"model_type": "gemma3_text"}, "TypeError: unhashable type: 'dict'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": "4"}}, "TypeError: "),
        ({"rope_theta": 0, "rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "ValueError: "),
        ({"rope_scaling": LONGROPE | {"long_factor": [1.0] * 8}}, "RuntimeError: The size of tensor a (8)"),
        ({"rope_scaling": {"rope_type": "odd"}}, "ValueError: Unknown RoPE scaling type odd"),
        ({"max_position_embeddings": -1}, "RuntimeError: upper bound"),
        ({"num_key_value_heads": -2}, "AssertionError: "),
        ({"target_hidden_size": -64}, "RuntimeError: Trying to create tensor with negative dimension -192"),
        ({"num_aux_hidden_states": "3"}, "TypeError: empty()"),
        ({"torch_dtype": "int8"}, "TypeError: only floating-point types"),
        ({"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 0}, "AssertionError: "),
    ],
)
def test_values_that_no_model_is_built_from(extra: dict[str, Any], error: str) -> None:
    found = mapped(draft(names(), **extra))
    assert (found.refused or "").startswith(error)
    assert found.stage == "class"


def test_rope_types_that_are_built() -> None:
    for scaling in (LONGROPE, {"rope_type": "proportional"}):
        assert mapped(draft(names(), rope_scaling=scaling)).refused is None


def test_0_5_9_asks_for_a_scaling_s_keys() -> None:
    found = mapped(draft(names(), rope_scaling=LONGROPE), "sglang==0.5.9")
    assert found.refused == "KeyError: 'original_max_position_embeddings'"
    assert mapped(draft(names(), num_hidden_layers=1.0), "sglang==0.5.9").refused is None


def test_a_nested_config_fills_what_the_draft_s_own_lacks() -> None:
    """A target's text_config that came along decides where the draft's config is silent."""
    nested = CONFIG | {"bias": True, "head_dim": 16, "quantization_config": FP8, "fc_norm": True}
    built = parameter_shapes(SGLANG, draft(names(), text_config=nested))
    assert "model.fc.bias" in built
    assert "model.fc_norm.2.weight" in built
    assert "model.layers.0.self_attn.o_proj.weight_scale" in built
    assert built["model.layers.0.self_attn.o_proj.weight"] == (H, 128)  # the draft's own head_dim
    nameless = {key: value for key, value in CONFIG.items() if key != "architectures"}
    assert mapped(draft(names(), nameless, text_config=nested)).refused == (
        "TypeError: 'NoneType' object is not subscriptable"
    )


def test_0_5_9_takes_no_nested_dict() -> None:
    for extra, error in (
        ({"language_config": "x"}, "TypeError"),
        ({"thinker_config": {"text_config": {}}}, "AssertionError"),
        ({"language_config": CONFIG}, "AttributeError"),
    ):
        found = mapped(draft(names(), **extra), "sglang==0.5.9")
        assert (found.refused or "").partition(":")[0] == error


@pytest.mark.parametrize("engine", ["sglang==0.5.9", "sglang==0.5.12", "sglang==0.5.23"])
def test_a_rope_in_sections_is_read_as_the_default_one(engine: str) -> None:
    """The class sets the type itself (0.5.23 models/llama_eagle3.py:132-142); recorded in ``mixed``, too."""
    scaling = {"type": "mrope", "mrope_section": [2, 3, 3]}
    found = mapped(draft(names(), rope_scaling=scaling), engine)
    assert found.refused is None
    assert {fill.filled_by for fill in found.parameters.values()} <= {"checkpoint", "target"}
    other = mapped(draft(names(), rope_scaling={"rope_type": "mrope"}), engine)
    assert other.refused is not None
