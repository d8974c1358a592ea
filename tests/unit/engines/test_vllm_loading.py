"""Which tensor reaches which parameter in vLLM, by class and release."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckpt_tools.engines import engines, resolve
from ckpt_tools.engines.vllm.engine import ENGINE
from tests.unit.engines.vllm_drafts import (
    INTER,
    VD,
    H,
    V,
    checkpoint,
    config,
    eagle3,
    mapped,
    speculators,
    target,
)


def filled(found: Any) -> dict[str, str]:
    """Parameters by how they are filled, without the layer prefix."""
    return {name.removeprefix("model."): fill.filled_by for name, fill in found.parameters.items()}


def test_the_engine_is_found() -> None:
    assert engines()["vllm"] is ENGINE
    assert ENGINE.default == "0.33.0"
    found = ENGINE.load_map(
        resolve("vllm", "--engine"), checkpoint(config(), eagle3()), target(), algorithm="eagle3"
    )
    assert found.refused is None


def test_a_whole_draft_fills_everything_but_the_shared_embedding() -> None:
    found = mapped(config(), eagle3())
    assert found.refused is None
    assert found.architecture == "Eagle3LlamaForCausalLM"
    assert {name for name, how in filled(found).items() if how != "checkpoint"} == {"embed_tokens.weight"}
    assert found.parameters["model.embed_tokens.weight"].filled_by == "target"
    assert found.unused == ("t2d",)
    assert found.parameters["model.layers.0.self_attn.qkv_proj.weight"].sources == (
        "layers.0.self_attn.k_proj.weight",
        "layers.0.self_attn.q_proj.weight",
        "layers.0.self_attn.v_proj.weight",
    )


def test_midlayer_is_the_first_layer() -> None:
    assert mapped(config(), eagle3("midlayer.")).refused is None


def test_missing_tensors_are_silent() -> None:
    table = {
        n: s
        for n, s in eagle3().items()
        if n not in ("fc.weight", "norm.weight", "d2t", "layers.0.self_attn.k_proj.weight")
    }
    found = mapped(config(), table)
    assert found.refused is None
    how = filled(found)
    assert how["fc.weight"] == "nothing"
    assert how["norm.weight"] == "default"
    assert how["draft_id_to_target_id"] == "default"
    assert how["layers.0.self_attn.qkv_proj.weight"] == "partly"


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        (
            "model.norm.weight",
            (H,),
            "ValueError: There is no module or parameter named 'model' in LlamaModel.",
        ),
        ("verifier_norm.weight", (H,), "named 'verifier_norm' in LlamaModel."),
        ("layers.0.self_attn.q_norm.weight", (32,), "named 'layers.0.self_attn.q_norm' in LlamaModel."),
        ("layers.1.input_layernorm.weight", (H,), "named 'layers.1' in LlamaModel."),
        ("fc_norm.0.weight", (H,), "named 'fc_norm' in LlamaModel."),
        ("model.lm_head.weight", (VD, H), "named 'lm_head' in LlamaModel."),
        ("fc", (H,), "named 'fc' in LlamaModel."),
        (
            "norm.weight.foo",
            (H,),
            "Attempted to load nested weight 'norm.weight.foo' into a single parameter 'norm.weight'",
        ),
        (
            "layers.0.self_attn.q_proj.weight_scale",
            (1,),
            "AttributeError: 'QKVParallelLinear' object has no attribute 'data'",
        ),
        ("layers.0.self_attn.q_proj.a.b", (1,), "AttributeError: "),
    ],
)
def test_a_name_without_a_place_raises(name: str, shape: tuple[int, ...], message: str) -> None:
    found = mapped(config(), eagle3() | {name: shape})
    assert found.refused is not None
    assert message in found.refused
    assert found.stage == "load"


@pytest.mark.parametrize(
    "name",
    [
        "fc.bias", "lm_head.bias", "layers.0.self_attn.q_proj.bias", "layers.0.mlp.down_proj.bias", "norm.weight.bias",
        "layers.0.self_attn.rotary_emb.inv_freq", "input_norm.weight", "mask_hidden", "x.t2d", "draft_id_to_target_idx",
    ],
)  # fmt: skip
def test_some_names_are_dropped_without_a_word(name: str) -> None:
    table = (
        eagle3() if name != "draft_id_to_target_idx" else {n: s for n, s in eagle3().items() if n != "d2t"}
    )
    found = mapped(config(), table | {name: (3,)})
    assert found.refused is None
    assert name in found.unused


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        (
            "layers.0.self_attn.q_proj.weight",
            (127, 2 * H),
            "RuntimeError: start (0) + length (128) exceeds dimension size (127).",
        ),
        ("layers.0.self_attn.q_proj.weight", (128, H), "AssertionError: "),
        (
            "layers.0.self_attn.q_proj.weight",
            (),
            "RuntimeError: narrow() cannot be applied to a 0-dim tensor.",
        ),
        (
            "layers.0.self_attn.o_proj.weight",
            (H,),
            "IndexError: Dimension out of range (expected to be in range of [-1, 0], but got 1)",
        ),
        ("layers.0.self_attn.o_proj.weight", (H + 1, 128), "AssertionError: "),
        (
            "fc.weight",
            (H, 2 * H),
            "Tried to load weights of size torch.Size([64, 128])to a parameter of size torch.Size([64, 192])",
        ),
        ("fc.weight", (), "Tried to load weights of size torch.Size([1])to"),
        (
            "norm.weight",
            (H, 1),
            "Attempted to load weight (torch.Size([64, 1])) into parameter (torch.Size([64]))",
        ),
        ("d2t", (VD + 1,), "Attempted to load weight (torch.Size([129])) into parameter (torch.Size([128]))"),
        ("lm_head.weight", (VD + 1, H), "AssertionError: "),
        (
            "lm_head.weight",
            (VD, H + 1),
            "RuntimeError: The size of tensor a (64) must match the size of tensor b (65)",
        ),
        (
            "lm_head.weight",
            (VD, 1, H),
            "RuntimeError: output with shape [128, 64] doesn't match the broadcast shape [128, 1, 64]",
        ),
        ("lm_head.weight", (), "IndexError: tuple index out of range"),
    ],
)
def test_a_shape_that_does_not_fit_raises(name: str, shape: tuple[int, ...], message: str) -> None:
    found = mapped(config(), eagle3() | {name: shape})
    assert found.refused is not None
    assert message in found.refused


@pytest.mark.parametrize(
    ("name", "shape", "cut"),
    [
        ("layers.0.self_attn.q_proj.weight", (160, 2 * H), "has 160 rows; the engine keeps the first 128"),
        ("layers.0.self_attn.o_proj.weight", (H, 160), "has 160 columns; the engine keeps the first 128"),
        ("layers.0.mlp.up_proj.weight", (INTER + 1, H), "has 97 rows; the engine keeps the first 96"),
    ],
)
def test_too_big_a_projection_is_cut_without_a_word(name: str, shape: tuple[int, ...], cut: str) -> None:
    found = mapped(config(), eagle3() | {name: shape})
    assert found.refused is None
    [fill] = [fill for fill in found.parameters.values() if name in fill.sources]
    assert fill.filled_by == "checkpoint"
    assert fill.cut == f"{name} {cut}"


def test_a_fused_tensor_fills_all_parts_and_is_cut_too() -> None:
    table = {
        n: s for n, s in eagle3().items() if "q_proj" not in n and "k_proj" not in n and "v_proj" not in n
    }
    fused = "layers.0.self_attn.qkv_proj.weight"
    whole = mapped(config(), table | {fused: (256, 2 * H)})
    assert whole.parameters[f"model.{fused}"].sources == (fused,)
    assert whole.parameters[f"model.{fused}"].cut is None
    assert mapped(config(), table | {fused: (300, 2 * H)}).parameters[f"model.{fused}"].cut is not None
    assert mapped(config(), table | {fused: (200, 2 * H)}).stage == "load"


def test_flags_decide_which_norms_exist() -> None:
    norms = {f"fc_norm.{j}.weight": (H,) for j in range(3)}
    assert filled(mapped(config(fc_norm=True), eagle3() | norms))["fc_norm.2.weight"] == "checkpoint"
    assert filled(mapped(config(fc_norm=True), eagle3()))["fc_norm.0.weight"] == "default"
    before = mapped(config(norm_before_fc=True), eagle3() | {"input_norm.weight": (3 * H,)})
    assert filled(before)["input_norm.weight"] == "checkpoint"
    nested = mapped(config(norm_before_fc=True, eagle_config={"norm_before_fc": False}), eagle3())
    assert "model.input_norm.weight" not in nested.parameters


def test_bias_flags_build_biases() -> None:
    found = mapped(
        config(attention_bias=True, mlp_bias=True), eagle3() | {"layers.0.self_attn.o_proj.bias": (H,)}
    )
    how = filled(found)
    assert how["layers.0.self_attn.o_proj.bias"] == "checkpoint"
    assert how["layers.0.self_attn.qkv_proj.bias"] == "nothing"
    assert how["layers.0.mlp.gate_up_proj.bias"] == "nothing"
    assert "layers.0.self_attn.qkv_proj.bias" not in filled(mapped(config(bias=True), eagle3()))
    wrong = mapped(config(attention_bias=True), eagle3() | {"layers.0.self_attn.o_proj.bias": (H + 1,)})
    assert wrong.refused == "AssertionError: "


@pytest.mark.parametrize(
    ("changes", "width"),
    [
        ({"num_aux_hidden_states": 2}, 2 * H),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3, 4]}}, 4 * H),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 3, 4]}, 3 * H),
        ({"target_hidden_size": 32}, 96),
    ],
)
def test_fc_is_as_wide_as_the_config_says(changes: dict[str, Any], width: int) -> None:
    assert mapped(config(**changes), eagle3() | {"fc.weight": (H, width)}).refused is None
    assert mapped(config(**changes), eagle3() | {"fc.weight": (H, width + 1)}).stage == "load"


def test_a_qwen3_layer_counts_the_top_level_ids() -> None:
    settings = speculators(layer={"model_type": "qwen3"}, eagle_aux_hidden_state_layer_ids=[1, 2, 3, 4])
    found = mapped(settings, eagle3() | {"fc.weight": (H, 4 * H)})
    assert found.refused is None
    assert found.architecture == "Eagle3Qwen3ForCausalLM"
    assert filled(found)["layers.0.self_attn.q_norm.weight"] == "default"
    assert (
        mapped(
            speculators(layer={"model_type": "qwen3", "num_aux_layers": 2}),
            eagle3() | {"fc.weight": (H, 2 * H)},
        ).refused
        is None
    )


def test_without_captured_layers_there_is_no_fc() -> None:
    found = mapped(config(eagle_config={"use_aux_hidden_state": False}), eagle3())
    assert "model.fc.weight" not in found.parameters
    assert "fc.weight" in found.unused


def test_the_id_map_exists_only_for_a_reduced_vocabulary() -> None:
    full = config(draft_vocab_size=V)
    table = {n: s for n, s in eagle3().items() if n != "d2t"} | {"lm_head.weight": (V, H)}
    assert "draft_id_to_target_id" not in mapped(full, table).parameters
    assert "named 'draft_id_to_target_id'" in str(mapped(full, table | {"d2t": (V,)}).refused)
    assert (
        mapped(full, table, target=target(vocab_size=300)).parameters["draft_id_to_target_id"].filled_by
        == "default"
    )
    assert "draft_id_to_target_id" not in mapped(full, table, target=None).parameters


def test_who_owns_the_head_and_the_embedding() -> None:
    table = {n: s for n, s in eagle3().items() if n != "lm_head.weight"}
    found = mapped(config(), table)
    assert found.parameters["lm_head.weight"].filled_by == "target"
    assert "of the target's 256 rows the first 128" in str(found.parameters["lm_head.weight"].cut)
    own = mapped(config(), eagle3() | {"embed_tokens.weight": (V, H)})
    assert own.parameters["model.embed_tokens.weight"].filled_by == "checkpoint"
    wide = target(hidden_size=96)
    on_v1 = mapped(
        config(target_hidden_size=96), eagle3() | {"fc.weight": (H, 288)}, target=wide, runner="V1"
    )
    assert on_v1.parameters["model.embed_tokens.weight"].filled_by == "nothing"
    on_v2 = mapped(config(target_hidden_size=96), eagle3() | {"fc.weight": (H, 288)}, target=wide)
    assert on_v2.parameters["model.embed_tokens.weight"].filled_by == "target"
    assert "first forward fails" in str(on_v2.parameters["model.embed_tokens.weight"].cut)


def test_parallel_drafting_needs_its_mask() -> None:
    settings = speculators("peagle", mask_token_id=1)
    mask = {"mask_hidden": (1, 1, 3 * H)}
    found = mapped(settings, eagle3() | mask)
    assert found.refused is None
    assert "mask_hidden" not in found.unused
    assert "mask_hidden not found" in str(mapped(settings, eagle3()).refused)
    assert "must match the size of tensor b (5)" in str(
        mapped(settings, eagle3() | {"mask_hidden": (5,)}).refused
    )
    sequential = mapped(settings, eagle3() | mask, method="eagle3")
    assert "mask_hidden" in sequential.unused
    off = speculators("peagle", layer={"eagle_config": {"use_aux_hidden_state": False}}, mask_token_id=1)
    assert "no attribute 'fc_input_size'" in str(mapped(off, eagle3() | mask).refused)
    qwen = speculators(
        "peagle",
        layer={"eagle_config": {"use_aux_hidden_state": False}, "model_type": "qwen3"},
        mask_token_id=1,
    )
    assert mapped(qwen, eagle3() | {"mask_hidden": (H,)}).refused is None


def test_layers_above_the_first_take_the_hidden_size() -> None:
    second = {
        n.replace("layers.0.", "layers.1."): s for n, s in eagle3().items() if n.startswith("layers.0.")
    }
    second = {n: (s[0], H) if "self_attn" in n and "o_proj" not in n else s for n, s in second.items()}
    found = mapped(config(num_hidden_layers=2), eagle3() | second)
    assert found.refused is None
    assert filled(found)["layers.1.hidden_norm.weight"] == "checkpoint"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "ValueError: Unsupported activation: gelu"),
        ({"target_hidden_size": None}, "TypeError: unsupported operand type(s) for *: 'NoneType'"),
        ({"draft_vocab_size": "128"}, "TypeError: unsupported operand type(s) for -: 'str' and 'str'"),
        ({"rope_scaling": {"rope_type": "nope"}}, "ValueError: Unknown RoPE scaling type nope"),
        ({"rope_theta": None}, "TypeError: unsupported operand type(s) for ** or pow()"),
        ({"partial_rotary_factor": 1.5}, "ValueError: partial_rotary_factor=1.5 must be between 0.0 and 1.0"),
        ({"num_key_value_heads": 3}, "AssertionError: num_heads (4) is not divisible by num_kv_heads (3)"),
        ({"num_key_value_heads": 0}, "ZeroDivisionError: integer"),
        ({"eagle_config": [1]}, "AttributeError: 'list' object has no attribute 'get'"),
    ],
)
def test_a_class_that_cannot_be_built_is_refused(changes: dict[str, Any], message: str) -> None:
    found = mapped(config(**changes), eagle3())
    assert found.refused is not None
    assert message in found.refused
    assert (found.stage, found.architecture, found.parameters) == ("class", None, {})
    assert set(found.unused) == set(eagle3())


def test_speculators_needs_its_keys() -> None:
    for key in ("hidden_size", "rms_norm_eps", "hidden_act", "intermediate_size", "num_hidden_layers"):
        layer = {k: v for k, v in speculators()["transformer_layer_config"].items() if k != key}
        found = mapped(speculators(transformer_layer_config=layer), eagle3())
        assert found.refused == f"AttributeError: 'SpeculatorsConfig' object has no attribute '{key}'"
    bare = speculators(layer={"model_type": "qwen3", "num_attention_heads": 0, "head_dim": 0})
    assert mapped(bare, eagle3()).refused == "ZeroDivisionError: integer division or modulo by zero"
    none = speculators(layer={"intermediate_size": None})
    assert (
        mapped(none, eagle3()).refused == "TypeError: unsupported operand type(s) for %: 'NoneType' and 'int'"
    )


def mla_table() -> dict[str, tuple[int, ...]]:
    """An MLA draft of rank 32/64 with 4 heads of 32 + 32."""
    table = {n: s for n, s in eagle3().items() if "self_attn" not in n}
    return table | {
        "layers.0.self_attn.q_a_proj.weight": (32, 2 * H),
        "layers.0.self_attn.kv_a_proj_with_mqa.weight": (64 + 32, 2 * H),
        "layers.0.self_attn.q_a_layernorm.weight": (32,),
        "layers.0.self_attn.q_b_proj.weight": (4 * 64, 32),
        "layers.0.self_attn.kv_a_layernorm.weight": (64,),
        "layers.0.self_attn.kv_b_proj.weight": (4 * 64, 64),
        "layers.0.self_attn.o_proj.weight": (H, 128),
    }


def mla(**changes: Any) -> dict[str, Any]:
    """A kimi_k2 MLA config."""
    ranks = {
        "q_lora_rank": 32,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 32,
        "v_head_dim": 32,
    }
    return config(architectures=["Eagle3DeepseekV2ForCausalLM"], model_type="kimi_k2", **ranks, **changes)


def test_an_mla_draft() -> None:
    found = mapped(mla(), mla_table())
    assert found.refused is None
    assert found.architecture == "Eagle3DeepseekV2ForCausalLM"
    assert found.parameters["model.layers.0.self_attn.fused_qkv_a_proj.weight"].filled_by == "checkpoint"
    assert "named 'input_norm'" in str(
        mapped(mla(norm_before_fc=True), mla_table() | {"input_norm.weight": (192,)}).refused
    )
    plain = {n: s for n, s in mla_table().items() if "q_a" not in n and "q_b" not in n}
    without = plain | {"layers.0.self_attn.q_proj.weight": (256, 2 * H)}
    found = mapped(
        mla() | {"q_lora_rank": None}, without
    )  # its kv_a_proj_with_mqa is renamed into a layer that isn't built
    assert "named 'layers.0.self_attn.fused_qkv_a_proj'" in str(found.refused)
    assert "model.layers.0.self_attn.kv_a_proj_with_mqa.weight" in found.parameters
    assert (
        mapped(mla(rope_scaling={"type": "linear", "factor": 2.0}), mla_table()).refused
        == "KeyError: 'original_max_position_embeddings'"
    )
    assert mapped(mla(rope_scaling={"rope_type": "yarn", "factor": 2.0}), mla_table()).refused is None
    zero = config(architectures=["Eagle3DeepseekV2ForCausalLM"])
    assert "0.0 cannot be raised to a negative power" in str(mapped(zero, mla_table()).refused)


def eagle1_table() -> dict[str, tuple[int, ...]]:
    """EAGLE-1 without the parts that vLLM has no place for."""
    layer = {
        n: (s[0], H) if "_proj" in n and s[-1] == 2 * H else s
        for n, s in eagle3().items()
        if n.startswith("layers.0.")
    }
    dropped = ("layers.0.hidden_norm.weight", "layers.0.input_layernorm.weight")
    layer = {n: s for n, s in layer.items() if n not in dropped}
    layer["layers.0.self_attn.o_proj.weight"] = (H, 128)
    return layer | {"fc.weight": (H, 2 * H), "embed_tokens.weight": (V, H)}


def test_an_eagle1_draft() -> None:
    settings = config(architectures=["EagleLlamaForCausalLM"])
    found = mapped(settings, eagle1_table(), method="eagle")
    assert found.refused is None
    assert found.architecture == "EagleLlamaForCausalLM"
    assert "lm_head.weight" not in found.parameters
    assert "named 'lm_head'" in str(
        mapped(settings, eagle1_table() | {"lm_head.weight": (V, H)}, method="eagle").refused
    )
    normed = eagle1_table() | {"layers.0.input_layernorm.weight": (H,)}
    assert "named 'layers.0.input_layernorm.weight'" in str(mapped(settings, normed, method="eagle").refused)
    qkv = mapped(settings | {"qkv_bias": True}, eagle1_table(), method="eagle")
    assert qkv.parameters["model.layers.0.self_attn.qkv_proj.bias"].filled_by == "nothing"


def test_an_eagle1_draft_with_layer_types_is_never_built() -> None:
    settings = config(architectures=["EagleLlamaForCausalLM"], layer_types=["full_attention"])
    for served in (target(), None):
        found = mapped(settings, eagle1_table(), method="eagle", target=served)
        assert "is out of bounds for layer_types" in str(found.refused)


@pytest.mark.parametrize("version", ["0.10.1", "0.12.0", "0.17.0"])
def test_older_releases_look_names_up(version: str) -> None:
    settings = config(architectures=["Eagle3LlamaForCausalLM"])
    assert mapped(settings, eagle3("midlayer."), version).refused is None
    assert mapped(settings, eagle3() | {"foo.weight": (1,)}, version).refused == "KeyError: 'foo.weight'"
    assert mapped(settings, eagle3() | {"fc.bias": (H,)}, version).refused == "KeyError: 'fc.bias'"
    assert "model.fc_norm.0.weight" not in mapped(settings | {"fc_norm": True}, eagle3(), version).parameters


def test_older_releases_build_and_share_otherwise() -> None:
    settings = config(architectures=["Eagle3LlamaForCausalLM"])
    own = eagle3() | {"embed_tokens.weight": (V, H)}
    assert mapped(settings, own, "0.10.1").parameters["model.embed_tokens.weight"].filled_by == "target"
    assert (
        mapped(settings, own, "0.10.1", target=target(hidden_size=96))
        .parameters["model.embed_tokens.weight"]
        .filled_by
        == "checkpoint"
    )
    headless = {n: s for n, s in eagle3().items() if n != "lm_head.weight"}
    assert mapped(settings, headless, "0.10.1").parameters["lm_head.weight"].filled_by == "nothing"
    assert mapped(settings, headless, "0.12.0").parameters["lm_head.weight"].filled_by == "target"
    two = mapped(settings | {"num_hidden_layers": 2}, eagle3(), "0.10.1")
    assert not any("layers.1" in name for name in two.parameters)
    missing = mapped(
        config(architectures=["Eagle3LlamaForCausalLM"], draft_vocab_size=...), eagle3(), "0.10.1"
    )
    assert "no attribute 'draft_vocab_size'" in str(missing.refused)
    biased = settings | {"attention_bias": True}
    assert "model.layers.0.self_attn.qkv_proj.bias" not in mapped(biased, eagle3(), "0.12.0").parameters
    full = {n: s for n, s in eagle3().items() if n not in ("lm_head.weight", "d2t")} | {
        "lm_head.weight": (V, H),
        "d2t": (V,),
    }
    assert mapped(config(draft_vocab_size=V), full, "0.25.0").refused is None
    assert mapped(config(draft_vocab_size=V), full, "0.33.0").stage == "load"


def test_a_class_without_a_model_here_is_named_only() -> None:
    found = mapped(config(architectures=["EagleMiniCPMForCausalLM"]), eagle3(), method="eagle")
    assert (found.architecture, found.refused, found.parameters) == ("EagleMiniCPMForCausalLM", None, {})
    assert mapped(config(architectures=["LlamaForCausalLM"]), eagle3()).architecture == "LlamaForCausalLM"


def test_a_checkpoint_without_a_config_is_refused() -> None:
    assert mapped(None, eagle3()).stage == "config"


NAMES = st.lists(
    st.sampled_from(["layers", "0", "1", "midlayer", "fc", "norm", "weight", "bias", "d2t", "t2d", "lm_head", "embed_tokens",
                     "self_attn", "q_proj", "qkv_proj", "mask_hidden", "rotary_emb", "inv_freq", "", "model"]),
    min_size=1, max_size=5,
).map(".".join)  # fmt: skip
SHAPES = st.lists(st.integers(0, 200), max_size=3).map(tuple)


@settings(deadline=None)
@given(
    extra=st.dictionaries(NAMES, SHAPES, max_size=4),
    drop=st.sets(st.sampled_from(sorted(eagle3())), max_size=3),
)
def test_every_tensor_is_used_or_not_and_nothing_else_happens(
    extra: dict[str, tuple[int, ...]], drop: set[str]
) -> None:
    table = {n: s for n, s in eagle3().items() if n not in drop} | extra
    found = mapped(config(), table)
    used = {source for fill in found.parameters.values() for source in fill.sources}
    assert used <= set(table)
    assert set(found.unused) <= set(table)
    if found.refused is None:
        kept = set(found.unused) | used
        assert all(n in kept or "embed_tokens" in n or "lm_head" in n for n in table)


@settings(deadline=None)
@given(
    key=st.sampled_from(sorted(config())),
    value=st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 300),
        st.floats(0, 2),
        st.text(max_size=4),
        st.just([]),
        st.just({}),
    ),
)
def test_any_value_of_a_known_key_gives_a_map_or_the_engines_refusal(key: str, value: Any) -> None:
    drafts = (config(**{key: value}), speculators(layer={key: value}), speculators(**{key: value}))
    for draft in drafts:
        found = mapped(draft, eagle3(), method="eagle3")
        assert found.refused is not None or found.architecture is not None
