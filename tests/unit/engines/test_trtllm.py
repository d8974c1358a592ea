"""TensorRT-LLM's EAGLE-3 loader, against what is known of it: the quoted sentences are its contract's (or name the source)."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckpt_tools.cli.root import main
from ckpt_tools.engines import contract_note, engines, load_map, resolve
from ckpt_tools.engines.capture import captured, default_layers
from ckpt_tools.engines.sglang.refusal import Refused
from ckpt_tools.engines.trtllm import capture, flags
from ckpt_tools.engines.trtllm.contract import SOURCES
from ckpt_tools.engines.trtllm.engine import ENGINE
from ckpt_tools.engines.trtllm.loading import files_read, load, renamed
from ckpt_tools.engines.trtllm.loadmap import parameter_shapes
from ckpt_tools.engines.trtllm.model import Module
from ckpt_tools.engines.versions import parse
from ckpt_tools.model import FileInfo, Fill, TensorInfo
from tests.conftest import ROOT
from tests.drafts import (
    DFLASH,
    DFLASH_CONFIG,
    EAGLE3,
    FLAT,
    LLAMA,
    A,
    D,
    F,
    H,
    K,
    V,
    W,
    checked,
    codes,
    draft,
    layer,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpt_tools.model import Checkpoint, LoadMap

TRTLLM = resolve("trtllm", "test")
PAIR = ROOT / "fixtures" / "pair"
LAYERS_0 = {name.replace("midlayer.", "layers.0."): shape for name, shape in EAGLE3.items()}
#: As Model-Optimizer exports it: layers.0.*, no t2d, no embedding, the explicit nulls of its template.
MODELOPT = {name: shape for name, shape in LAYERS_0.items() if name != "t2d"}
MODELOPT_CONFIG: dict[str, Any] = {
    **{k: v for k, v in FLAT.items() if k != "eagle_aux_hidden_state_layer_ids"},
    "attention_bias": False, "mlp_bias": False, "pad_token_id": None, "rope_scaling": None,
    "eagle_config": {
        "eagle_aux_hidden_state_layer_ids": [1, 3, 4], "next_layer_regular": True, "parallel_draft_step": 1,
        "use_aux_hidden_state": True, "use_input_layernorm_in_first_layer": True, "use_last_layernorm": True, "use_mtp_layernorm": False,
    },
}  # fmt: skip


def changed(
    add: Mapping[str, tuple[int, ...]] | None = None,
    remove: tuple[str, ...] = (),
    *,
    without: tuple[str, ...] = (),
    **fields: Any,
) -> Any:
    """An edit: tensors added and removed, config fields set and (``without``) taken away."""

    def edit(config: dict[str, Any], tensors: dict[str, tuple[int, ...]]) -> None:
        for name in remove:
            del tensors[name]
        tensors.update(add or {})
        config.update(fields)
        for name in without:
            del config[name]

    return edit


def prefixed(prefix: str) -> Any:
    """An edit: every name with *prefix* before it."""

    def edit(_: dict[str, Any], tensors: dict[str, tuple[int, ...]]) -> None:
        for name in list(tensors):
            tensors[prefix + name] = tensors.pop(name)

    return edit


def loaded(edit: Any = None, **parts: Any) -> LoadMap:
    return load_map(TRTLLM, draft(edit, **parts), algorithm="eagle3")


def filled(found: LoadMap) -> dict[str, str]:
    return {name: fill.filled_by for name, fill in found.parameters.items()}


# ---- the engine


def test_it_is_found_by_name() -> None:
    assert engines()["trtllm"] is ENGINE
    assert str(resolve("trtllm", "test")) == f"trtllm=={ENGINE.default}"


def test_no_release_is_claimed_to_have_been_read() -> None:
    assert parse("1.3.0rc9") < parse(ENGINE.default) < parse("1.4.0rc0")
    for version in ("1.0.0", "1.2.1", "1.4.0rc1"):
        assert "no contract of its own" in (contract_note(resolve(f"trtllm=={version}", "test")) or "")
    assert all(re.fullmatch(r"([0-9a-f]{40})?", commit) for commit in SOURCES.values())


# ---- names


def test_both_spellings_of_the_layer_load() -> None:
    """§4: "both `midlayer.*` and `layers.0.*` load"."""
    ours, theirs = loaded(), loaded(tensors=LAYERS_0)
    assert ours.refused is theirs.refused is None
    assert filled(ours) == filled(theirs)
    assert {"checkpoint", "target"} == set(filled(ours).values())
    assert ours.parameters["model.midlayer.self_attn.qkv_proj.weight"] == Fill(
        (
            "midlayer.self_attn.k_proj.weight",
            "midlayer.self_attn.q_proj.weight",
            "midlayer.self_attn.v_proj.weight",
        ),
        "checkpoint",
    )


def test_the_parameters_under_the_engine_s_names() -> None:
    """§10: fused `qkv_proj` and gate_up, `model.fc.weight`, the head at the root, the embedding shared with the target."""
    shapes = parameter_shapes(TRTLLM, draft())
    assert shapes == {
        "model.fc.weight": (H, 3 * H),
        "model.midlayer.self_attn.qkv_proj.weight": ((A + 2 * K) * D, 2 * H),
        "model.midlayer.self_attn.o_proj.weight": (H, A * D),
        "model.midlayer.mlp.gate_up_proj.weight": (2 * F, H),
        "model.midlayer.mlp.down_proj.weight": (H, F),
        "model.midlayer.input_layernorm.weight": (H,),
        "model.midlayer.hidden_norm.weight": (H,),
        "model.midlayer.post_attention_layernorm.weight": (H,),
        "model.norm.weight": (H,),
        "model.d2t": (W,),
        "lm_head.weight": (W, H),
    }
    assert set(loaded().parameters) == {*shapes, "model.embed_tokens.weight"}


@pytest.mark.parametrize(
    ("name", "layers", "expected"),
    [
        ("layers.0.mlp.up_proj.weight", 1, "model.midlayer.mlp.up_proj.weight"),
        ("layers.1.mlp.up_proj.weight", 1, "model.layers.1.mlp.up_proj.weight"),
        ("layers.1.mlp.up_proj.weight", 2, "model.midlayer.1.mlp.up_proj.weight"),
        ("midlayer.1.mlp.up_proj.weight", 2, "model.midlayer.1.mlp.up_proj.weight"),
        ("decoder.layers.0.norm", 1, "model.decoder.layers.0.norm"),
        ("lm_head.weight", 1, "lm_head.weight"),
        ("model.lm_head.weight", 1, "model.lm_head.weight"),
        ("d2t", 1, "model.d2t"),
    ],
)
def test_renaming(name: str, layers: int, expected: str) -> None:
    """§4: "`^layers.0.` → `midlayer.` (single layer) or `layers.X.` → `midlayer.X.` (multi); `model.` is prefixed to everything
    except `lm_head`"."""
    assert renamed(name, layers) == expected


def test_of_two_tensors_with_one_place_the_later_wins() -> None:
    found = loaded(changed({"layers.0.hidden_norm.weight": (H,)}))
    assert found.parameters["model.midlayer.hidden_norm.weight"].sources == ("midlayer.hidden_norm.weight",)
    assert "layers.0.hidden_norm.weight" in found.unused


@pytest.mark.parametrize("prefix", ["model.", "module.", "draft_model."])
def test_a_prefix_is_taken_off_nowhere(prefix: str) -> None:
    found = loaded(prefixed(prefix))
    assert found.stage == "load"
    assert found.refused is not None and "qkv_proj" in found.refused
    # A name with lm_head inside makes the engine count on the file's head, and it isn't at its place.
    assert found.parameters["lm_head.weight"].filled_by == "nothing"


# ---- what is borrowed and what is ignored


def test_the_embedding_is_the_target_s_and_a_trained_one_is_lost() -> None:
    """§4: "`embed_tokens` is always shared with the target unless `target_hidden_size != hidden_size` → trained embeddings
    silently ignored"; "`t2d` unused"."""
    found = loaded(changed({"embed_tokens.weight": (V, H)}, target_hidden_size=H))
    assert found.parameters["model.embed_tokens.weight"] == Fill((), "target")
    assert found.unused == ("embed_tokens.weight", "t2d")
    assert found.refused is None


def test_a_draft_of_another_width_has_an_embedding_of_its_own() -> None:
    wide = changed({"fc.weight": (H, 3 * 128), "embed_tokens.weight": (V, H)}, target_hidden_size=128)
    found = loaded(wide)
    assert found.parameters["model.embed_tokens.weight"] == Fill(("embed_tokens.weight",), "checkpoint")
    assert found.parameters["model.fc.weight"].filled_by == "checkpoint"
    missing = loaded(changed({"fc.weight": (H, 3 * 128)}, target_hidden_size=128))
    assert missing.parameters["model.embed_tokens.weight"].filled_by == "nothing"


def test_without_a_head_the_target_s_is_taken() -> None:
    """§4: "`lm_head` optional (target's used)"."""
    found = loaded(changed(remove=("lm_head.weight",)))
    assert found.parameters["lm_head.weight"].filled_by == "target"
    assert f"the draft has {W}" in (found.parameters["lm_head.weight"].cut or "")
    whole = loaded(changed(remove=("lm_head.weight", "d2t"), draft_vocab_size=V))
    assert whole.parameters["lm_head.weight"] == Fill((), "target")


def test_d2t_is_a_parameter_only_of_a_vocabulary_of_its_own() -> None:
    """§4: "`d2t` int32 parameter only if `Vd != V`"."""
    same = loaded(changed({"lm_head.weight": (V, H), "d2t": (V,)}, draft_vocab_size=V))
    assert "model.d2t" not in same.parameters
    assert same.unused == ("d2t", "t2d")
    missing = loaded(changed(remove=("d2t",)))
    assert missing.refused == (
        "AssertionError: load_single_module('model'): a bare assert, for d2t isn't there: model.d2t"
    )
    assert missing.parameters["model.fc.weight"].filled_by == "checkpoint", "modules load side by side"


@pytest.mark.parametrize("edit", [{"without": ("draft_vocab_size",)}, {"draft_vocab_size": None}])
def test_a_missing_draft_vocabulary_is_the_target_s(edit: dict[str, Any]) -> None:
    """§4: "Missing `draft_vocab_size` → warning, `vocab_size`"."""
    fits = loaded(changed({"lm_head.weight": (V, H)}, ("d2t",), **edit))
    assert (fits.refused, fits.parameters["lm_head.weight"].filled_by) == (None, "checkpoint")
    small = loaded(changed(**edit))
    assert f"size of tensor a ({V}) must match the size of tensor b ({W})" in (small.refused or "")


# ---- config


@pytest.mark.parametrize("name", ["Eagle3LlamaForCausalLM", "LlamaForCausalLM", "Unheard"])
def test_the_class_doesn_t_depend_on_architectures(name: str) -> None:
    """modeling_speculative.py _build_eagle3_one_model_draft."""
    found = loaded(changed(architectures=[name]))
    assert (found.architecture, found.refused, found.unused) == ("Eagle3ForCausalLM", None, ("t2d",))


def test_fc_takes_as_many_layers_as_are_captured() -> None:
    """§4: "`fc.weight [H, Ht*num_capture_layers]`, bias = `config.bias` (default False)"."""
    four = {"fc.weight": (H, 4 * H)}
    assert "size of tensor" in (loaded(changed(four, eagle_config={}, without=(TOP,))).refused or "")
    assert loaded(changed(four, eagle_config={IDS: [0, 2, 4, 6]})).refused is None
    assert (
        loaded(changed(four, eagle_config={}, eagle_aux_hidden_state_layer_ids=[1, 3, 5, 7])).refused is None
    )
    asked = load_map(TRTLLM, draft(changed(four)), algorithm="eagle3", captured=4)
    assert asked.refused is None
    biased = loaded(changed({"fc.bias": (H,)}, bias=True))
    assert biased.parameters["model.fc.bias"].sources == ("fc.bias",)
    assert "fc.bias" in loaded(changed({"fc.bias": (H,)})).unused


IDS = TOP = "eagle_aux_hidden_state_layer_ids"


def test_one_captured_layer_has_no_fc() -> None:
    """modeling_speculative.py Eagle3DraftModel.__init__ builds fc for more than one captured layer."""
    found = load_map(TRTLLM, draft(), algorithm="eagle3", captured=1)
    assert "model.fc.weight" not in found.parameters
    assert "fc.weight" in found.unused


def test_biases_follow_the_config() -> None:
    """§4: "q/k/v bias = `attention_bias`"; "`mlp_bias` optional"; attention.py gives the output layer the same bias."""
    attention = {
        "midlayer.self_attn.q_proj.bias": (A * D,),
        "midlayer.self_attn.k_proj.bias": (K * D,),
        "midlayer.self_attn.v_proj.bias": (K * D,),
        "midlayer.self_attn.o_proj.bias": (H,),
    }
    mlp = {
        "midlayer.mlp.gate_proj.bias": (F,),
        "midlayer.mlp.up_proj.bias": (F,),
        "midlayer.mlp.down_proj.bias": (H,),
    }
    found = loaded(changed(attention | mlp, attention_bias=True, mlp_bias=True))
    assert (found.refused, found.unused) == (None, ("t2d",))
    assert len(found.parameters["model.midlayer.self_attn.qkv_proj.bias"].sources) == 3
    without_o = {n: s for n, s in attention.items() if "o_proj" not in n}
    refused = loaded(changed(without_o, attention_bias=True)).refused
    assert "bias isn't there: model.midlayer.self_attn.o_proj.bias" in (refused or "")
    fused = loaded(changed(attention_bias=True)).refused
    assert "bias isn't there: model.midlayer.self_attn.q_proj.bias, model.midlayer.self_attn.k_proj.bias" in (
        fused or ""
    )
    ignored = loaded(changed(attention))
    assert set(ignored.unused) == {*attention, "t2d"}


def two_layers(norm: str, **eagle: Any) -> Any:
    width = H if eagle.get("next_layer_regular", True) else 2 * H
    second = {n: s for n, s in layer("layers.1.", width).items() if "input_layernorm" not in n}
    return changed(
        second | {f"layers.1.{norm}.weight": (H,)},
        num_hidden_layers=2,
        eagle_config={IDS: [1, 3, 4], **eagle},
    )


def test_later_layers_have_one_norm_before_attention() -> None:
    """§4: "Layers i>0 (when `next_layer_regular`) use `hidden_norm` only, no `input_layernorm`"."""
    right = loaded(two_layers("hidden_norm"), tensors=LAYERS_0)
    assert (right.refused, right.unused) == (None, ("t2d",))
    assert parameter_shapes(TRTLLM, draft(two_layers("hidden_norm"), tensors=LAYERS_0))[
        "model.midlayer.1.self_attn.qkv_proj.weight"
    ] == ((A + 2 * K) * D, H)
    wrong = loaded(two_layers("input_layernorm"), tensors=LAYERS_0)
    assert wrong.parameters["model.midlayer.1.hidden_norm.weight"].filled_by == "default"
    assert "layers.1.input_layernorm.weight" in wrong.unused


def test_a_layer_of_several_must_be_numbered() -> None:
    found = loaded(two_layers("hidden_norm"))
    assert "load_single_module('model.midlayer.0.self_attn.qkv_proj')" in (found.refused or "")


def test_layers_that_are_all_joined() -> None:
    found = loaded(two_layers("hidden_norm", next_layer_regular=False), tensors=LAYERS_0)
    assert found.refused is None
    assert found.parameters["model.midlayer.1.input_layernorm.weight"].filled_by == "default"


def test_a_projection_before_attention() -> None:
    """§4: "`eh_proj_before_attn` (False) + `eh_proj_bias` (`enorm`, `eh_proj [H,2H]`)"."""
    regular = {f"midlayer.self_attn.{p}_proj.weight": (n * D, H) for p, n in (("q", A), ("k", K), ("v", K))}
    extra = {"enorm.weight": (H,), "eh_proj.weight": (H, 2 * H), "eh_proj.bias": (H,)}
    eagle = {"eh_proj_before_attn": True, "eh_proj_bias": True}
    found = loaded(changed(regular | extra, ("midlayer.input_layernorm.weight",), eagle_config=eagle))
    assert (found.refused, found.unused) == (None, ("t2d",))
    lost = loaded(changed(regular, ("midlayer.input_layernorm.weight",), eagle_config=eagle))
    assert filled(lost)["model.eh_proj.weight"] == "nothing"
    assert filled(lost)["model.enorm.weight"] == "default"


def test_norms_before_fc() -> None:
    """§4: top-level `fc_norm`; `eagle_config`: "`norm_before_fc` (`input_norm [3Ht]`)"."""
    one = {"input_norm.weight": (3 * H,)}
    nested = loaded(changed(one, eagle_config={"norm_before_fc": True}))
    assert nested.parameters["model.input_norm.weight"].filled_by == "checkpoint"
    assert "input_norm.weight" in loaded(changed(one, norm_before_fc=True)).unused
    each = {f"fc_norm.{j}.weight": (H,) for j in range(3)}
    assert filled(loaded(changed(each, fc_norm=True)))["model.fc_norm.2.weight"] == "checkpoint"
    assert set(each) <= set(loaded(changed(each)).unused)


@pytest.mark.parametrize(
    ("flag", "config", "on"),
    [
        ("norm_before_fc", {"norm_before_fc": True}, False),
        ("norm_before_fc", {"eagle_config": {"norm_before_fc": True}}, True),
        ("fc_norm", {"fc_norm": True}, True),
        ("fc_norm", {"eagle_config": {"fc_norm": True}}, False),
        ("norm_output", {"norm_output": True}, True),
        ("norm_output", {"eagle_config": {"return_hidden_post_norm": True}}, True),
        ("norm_output", {"eagle_config": None}, False),
        ("norm_before_residual", {"norm_before_residual": True}, False),
    ],
)
def test_where_flags_are_read(flag: str, config: dict[str, Any], on: bool) -> None:
    """§4: "`norm_output`", "`return_hidden_post_norm` (alias of `norm_output`)"; §11: `norm_before_fc` nested."""
    assert flags.is_on(flag, config) is on
    assert (flags.places(flag) == ()) is (flag == "norm_before_residual")


def test_head_dim_is_honoured() -> None:
    """§11: `head_dim` honoured; attention.py divides where it is no integer."""
    shapes = parameter_shapes(TRTLLM, draft(changed(head_dim=24)))
    assert shapes["model.midlayer.self_attn.o_proj.weight"] == (H, A * 24)
    absent = parameter_shapes(TRTLLM, draft(changed(without=("head_dim",))))
    assert absent["model.midlayer.self_attn.o_proj.weight"] == (H, H)
    assert absent == parameter_shapes(TRTLLM, draft(changed(head_dim=None)))
    other = parameter_shapes(
        TRTLLM, draft(changed(model_type="qwen2", attention_bias=False, without=("head_dim",)))
    )
    assert other == absent


def test_the_inner_width_of_a_llama_4_draft() -> None:
    config: dict[str, Any] = {
        "model_type": "llama4_text",
        "intermediate_size_mlp": 32,
        "attention_bias": False,
    }
    assert parameter_shapes(TRTLLM, draft(changed(**config)))["model.midlayer.mlp.down_proj.weight"] == (
        H,
        32,
    )


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"without": ("model_type",)}, "ValueError: Unrecognized model"),
        ({"model_type": "unheard_of"}, "model type `unheard_of`"),
        ({"model_type": "qwen2"}, "'Qwen2Config' object has no attribute 'attention_bias'"),
        ({"without": ("architectures",)}, "TypeError: 'NoneType' object is not subscriptable"),
        ({"architectures": []}, "IndexError: list index out of range"),
        ({"target_hidden_size": None}, "TypeError: unsupported operand type(s) for *: 'NoneType' and 'int'"),
        ({"eagle_config": None}, "AttributeError: 'NoneType' object has no attribute 'get'"),
        ({"tie_word_embeddings": True}, "'NoneType' object has no attribute 'tp_size'"),
    ],
)
def test_configs_that_it_raises_on(fields: dict[str, Any], says: str) -> None:
    found = loaded(changed(**fields))
    assert (found.stage, found.parameters, len(found.unused)) == ("config", {}, len(EAGLE3))
    assert says in (found.refused or "")
    assert parameter_shapes(TRTLLM, draft(changed(**fields))) == {}


# ---- what isn't modelled


@pytest.mark.parametrize(
    "fields",
    [
        {"kv_lora_rank": 16},
        {"model_type": "kimi_k2"},
        {"model_type": "qwen3_5_text"},
        {"auto_map": {"AutoConfig": "config.Config"}},
        {"quantization_config": {"quant_method": "fp8"}},
        {"tie_word_embeddings": True, "target_hidden_size": 128},
    ],
)
def test_not_modelled_and_said_so(fields: dict[str, Any]) -> None:
    """§4: "MLA if `kv_lora_rank`"; quantised linears, remote code and a tied embedding of its own load in other ways."""
    found = loaded(changed(**fields))
    assert (found.parameters, found.unused, found.refused) == ({}, (), None)
    assert found.architecture == "Eagle3ForCausalLM"
    assert parameter_shapes(TRTLLM, draft(changed(**fields))) == {}


def test_a_quantised_export_is_not_modelled() -> None:
    plain = draft()
    listed = (*plain.files, FileInfo("hf_quant_config.json", 9, "other"))
    assert load_map(TRTLLM, replace(plain, files=listed), algorithm="eagle3").parameters == {}


@pytest.mark.parametrize("algorithm", ["eagle", "peagle", "dflash", "dspark", "mtp"])
def test_other_algorithms_are_not_modelled(algorithm: str) -> None:
    found = load_map(TRTLLM, draft(), algorithm=algorithm)
    assert (found.parameters, found.unused, found.refused, found.architecture) == ({}, (), None, None)


def test_a_draft_is_known_by_its_vocabulary_when_nothing_says_what_it_is() -> None:
    """§4: "Detection: `hasattr(config, "draft_vocab_size")`"."""
    assert load_map(TRTLLM, draft()).parameters
    assert not load_map(TRTLLM, draft(changed(without=("draft_vocab_size",)))).parameters
    assert not load_map(TRTLLM, replace(draft(), config=None)).parameters


# ---- loading


def test_what_is_missing_as_a_whole_is_left_without_a_word() -> None:
    found = loaded(changed(remove=("fc.weight", "norm.weight", "midlayer.mlp.down_proj.weight")))
    assert found.refused is None
    assert (
        filled(found)["model.fc.weight"] == filled(found)["model.midlayer.mlp.down_proj.weight"] == "nothing"
    )
    assert filled(found)["model.norm.weight"] == "default"


@pytest.mark.parametrize(
    ("part", "module"), [("self_attn.k_proj", "self_attn.qkv_proj"), ("mlp.up_proj", "mlp.gate_up_proj")]
)
def test_a_fused_layer_asks_for_its_parts(part: str, module: str) -> None:
    found = loaded(changed(remove=(f"midlayer.{part}.weight",)))
    assert found.refused == (
        f"AssertionError: load_single_module('model.midlayer.{module}'): a bare assert, for weight isn't there: "
        f"model.midlayer.{part}.weight"
    )
    assert found.parameters[f"model.midlayer.{module}.weight"] == Fill((), "nothing")


def test_a_prefix_is_compared_as_text() -> None:
    """base_weight_mapper.py filter_weights: fc_norm's tensors are found for fc, and then it wants a weight among them."""
    each = {f"fc_norm.{j}.weight": (H,) for j in range(3)}
    found = loaded(changed(each, ("fc.weight",), fc_norm=True))
    assert "load_single_module('model.fc'): a bare assert" in (found.refused or "")


def test_fused_parts_must_fit_each_other() -> None:
    k = "midlayer.self_attn.k_proj.weight"
    assert "got size 7 for tensor number 1" in (loaded(changed({k: (K * D, 7)})).refused or "")
    assert "same number of dimensions: got 2 and 1" in (loaded(changed({k: (K * D,)})).refused or "")
    assert "0-dim tensor" in (loaded(changed({k: ()})).refused or "")


def one_copy(parameter: tuple[int, ...], tensor: tuple[int, ...]) -> str | None:
    """What the loader says of one tensor into one parameter, without the module's name."""
    info = TensorInfo("norm.weight", "BF16", tensor, "model.safetensors", 0, 0)
    _, refusal = load([Module("norm", {"weight": parameter})], {"norm.weight": info})
    return None if refusal is None else str(refusal).replace("load_single_module('norm'): ", "")


SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple)


def torch_says(parameter: tuple[int, ...], tensor: tuple[int, ...]) -> str | None:
    """The same of torch's own copy, of the whole slice as the engine takes it."""
    torch = pytest.importorskip("torch")
    try:
        torch.zeros(parameter).copy_(torch.ones(tensor)[:])
    except (RuntimeError, IndexError) as error:
        return f"{type(error).__name__}: {error}"
    return None


@settings(deadline=None)
@given(SHAPES.filter(bool), SHAPES)
def test_a_copy_is_torch_s(parameter: tuple[int, ...], tensor: tuple[int, ...]) -> None:
    assert one_copy(parameter, tensor) == torch_says(parameter, tensor)


@pytest.mark.parametrize(
    ("names", "read"),
    [
        (("model.safetensors", "pytorch_model.bin"), ("model.safetensors",)),
        (("a.safetensors", "consolidated.safetensors"), ("a.safetensors",)),
        (("consolidated.safetensors",), ("consolidated.safetensors",)),
        (("pytorch_model.bin", "x.pth"), ("pytorch_model.bin",)),
        (("x.pth",), ("x.pth",)),
    ],
)
def test_files(names: tuple[str, ...], read: tuple[str, ...]) -> None:
    """hf/weight_loader.py HfWeightLoader.load_weights."""
    assert files_read(names) == read


def test_no_file_that_it_reads() -> None:
    with pytest.raises(Refused, match="No weight files found"):
        files_read(("training_state.pt",))
    found = load_map(TRTLLM, moved(draft(), "training_state.pt"), algorithm="eagle3")
    assert (found.stage, found.refused) == ("load", "RuntimeError: No weight files found")


def moved(checkpoint: Checkpoint, name: str) -> Checkpoint:
    return replace(
        checkpoint,
        files=(FileInfo(name, 1, "pickle"),),
        tensors={n: replace(t, file=name) for n, t in checkpoint.tensors.items()},
    )


def test_a_file_that_isn_t_read_fills_nothing() -> None:
    plain = draft()
    extra = TensorInfo("fc.weight.old", "BF16", (1,), "pytorch_model.bin", 0, 0)
    both = replace(
        plain,
        files=(*plain.files, FileInfo("pytorch_model.bin", 1, "pickle")),
        tensors={**plain.tensors, "norm.weight": replace(plain.tensors["norm.weight"], file=extra.file)},
    )
    found = load_map(TRTLLM, both, algorithm="eagle3")
    assert found.parameters["model.norm.weight"].filled_by == "default"
    assert "norm.weight" in found.unused


# ---- captured layers


@pytest.mark.parametrize("layers", [6, 8, 32, 61])
def test_default_capture_is_the_other_engines_too(layers: int) -> None:
    """§4: "default `(1, L//2-1, L-4)` sorted"; §0.3: outputs, the same physical layers as everywhere."""
    assert capture.default_layers(layers) == (1, layers // 2 - 1, layers - 4)
    assert tuple(sorted(set(capture.default_layers(layers) or ()))) == default_layers(layers)


def test_small_targets_have_no_default() -> None:
    """§4: "Defaults fail on targets with ≤5 layers"; the metadata takes the only layer of a target of one."""
    assert capture.default_layers(1) == (0,)
    assert {capture.default_layers(n) for n in range(2, 6)} == {None}


def test_ids_of_the_config_are_not_read() -> None:
    """§4: "Layer capture comes only from the LLM-API `eagle3_layers_to_capture`"."""
    found = captured(TRTLLM, "LlamaForCausalLM", 32, nested_ids=[4, 5, 6], top_level_ids=[5, 6, 7])
    assert (found.layers, found.source, found.configured) == ((1, 15, 28), "default", (4, 5, 6))
    assert capture.FIELD in (found.problem or "")


# ---- the checks


@pytest.mark.parametrize(
    "parts",
    [{}, {"tensors": LAYERS_0}, {"tensors": MODELOPT, "config": MODELOPT_CONFIG}],
    ids=["midlayer", "layers.0", "modelopt"],
)
def test_what_loads_right_draws_no_alarm(parts: dict[str, Any]) -> None:
    """§4: SpecForge and SGLang's `midlayer.*` and Model-Optimizer's `layers.0.*` load; §3.1 has the latter's fields."""
    findings, _ = checked(draft(**parts), "trtllm")
    assert codes(findings) == []


BIASES = {f"midlayer.self_attn.{p}_proj.bias": (n * D,) for p, n in (("q", A), ("k", K), ("v", K))}


@pytest.mark.parametrize(
    ("edit", "errors", "warnings"),
    [
        (changed({**BIASES, "midlayer.self_attn.o_proj.bias": (H,)}, attention_bias=True), [], []),
        (changed({"embed_tokens.weight": (V, H)}), [], []),
        (changed(BIASES), ["KEY005"], []),
        (changed(remove=("fc.weight",)), ["KEY002"], []),
        (changed(remove=("norm.weight",)), ["NRM006"], []),
        (changed(remove=("midlayer.self_attn.q_proj.weight",)), ["KEY007"], []),
        (changed(remove=("lm_head.weight",)), ["HED001"], []),
        (changed(remove=("d2t", "t2d")), ["VOC006"], []),
        (changed(without=("draft_vocab_size",)), ["HED008"], []),
        (changed(without=("model_type",)), ["CFG002"], []),
        (changed(tie_word_embeddings=True), ["HED002"], []),
        (changed(target_hidden_size=None), ["CFG005"], []),
        (changed(norm_before_residual=True), ["NRM001"], []),
        (changed({"input_norm.weight": (3 * H,)}, norm_before_fc=True), ["NRM005"], []),
        (changed({"decoder.weight": (H,)}), [], ["KEY001"]),
        (changed(eagle_config={IDS: [1, 3, 6]}, without=(TOP,)), [], ["CAP007"]),
        (prefixed("module."), ["KEY003"], []),
    ],
)  # fmt: skip
def test_one_cause_gives_one_code(edit: Any, errors: list[str], warnings: list[str]) -> None:
    findings, _ = checked(draft(edit), "trtllm")
    assert (codes(findings, "error"), codes(findings, "warning")) == (errors, warnings)
    assert "SGLang" not in " ".join(f.message for f in findings if f.code != "NRM001")
    assert "vLLM" not in " ".join(f.message for f in findings)


def test_the_map_of_a_full_vocabulary_may_go_unread() -> None:
    same = draft(changed({"lm_head.weight": (V, H), "d2t": (V,)}, draft_vocab_size=V))
    findings, _ = checked(same, "trtllm", tables={"d2t": (0,) * V, "t2d": (1,) * V})
    assert codes(findings) == []


def test_a_second_layer_s_norm_is_looked_for_where_this_engine_does() -> None:
    """§13: "Multi-layer norm name: SGLang/TRT-LLM `hidden_norm`"."""
    findings, _ = checked(draft(two_layers("input_layernorm"), tensors=LAYERS_0), "trtllm")
    (found,) = [f for f in findings if f.severity.value == "error"]
    assert (found.code, "model.midlayer.1.hidden_norm" in found.message) == ("NRM006", True)
    assert codes(checked(draft(two_layers("hidden_norm"), tensors=LAYERS_0), "trtllm")[0]) == []


def test_what_to_tell_the_engine_about_layers() -> None:
    other = changed(eagle_config={IDS: [1, 3, 6]}, without=(TOP,))
    (found,) = [f for f in checked(draft(other), "trtllm")[0] if f.code == "CAP007"]
    assert "[1, 3, 4]" in found.message
    assert found.hint == "build the engine with eagle3_layers_to_capture=[1, 3, 6]"
    small = replace(LLAMA, num_hidden_layers=4)
    (few,) = [
        f
        for f in checked(draft(changed(eagle_config={IDS: [1, 2, 3]}, without=(TOP,))), "trtllm", small)[0]
        if f.code == "CAP007"
    ]
    assert "Not enough hidden layers" in few.message
    (unknown,) = [f for f in checked(draft(other), "trtllm", None)[0] if f.code == "CAP007"]
    assert unknown.severity.value == "info"
    none = changed(eagle_config={}, without=(TOP,))
    assert codes(checked(draft(none), "trtllm", None)[0], "info").count("CAP007") == 0


def test_a_missing_map_is_refused() -> None:
    (found,) = [f for f in checked(draft(changed(remove=("d2t",))), "trtllm")[0] if f.code == "VOC006"]
    assert found.message.endswith(f"{TRTLLM} refuses the draft")


def test_an_embedding_that_is_replaced() -> None:
    with_embedding = draft(changed({"embed_tokens.weight": (V, H)}))
    (found,) = [f for f in checked(with_embedding, "trtllm", same=lambda *_: False)[0] if f.code == "HED005"]
    assert "trtllm replaces it" in found.message


def test_a_draft_that_no_load_map_answers_for_says_so() -> None:
    findings, _ = checked(draft(config=DFLASH_CONFIG, tensors=DFLASH), "trtllm")
    assert codes(findings) == []
    (found,) = [f for f in findings if f.code == "ENG006"]
    assert "this dflash draft isn't known to ckpt" in found.message
    mla, _ = checked(draft(changed(kv_lora_rank=16)), "trtllm")
    assert any(f.code == "ENG006" and "it builds Eagle3ForCausalLM" in f.message for f in mla)


# ---- the command line


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_a_speculators_folder_is_refused_and_its_conversion_passes(
    capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    """It has no model_type, which transformers asks for; `fix-keys --to sglang` writes a flat config."""
    served = ("--engine", "trtllm", "--target", str(PAIR / "target"))
    status, out, _ = run(capsys, "verify", str(PAIR / "draft"), *served)
    assert (status, "CFG002" in out) == (1, True)
    assert run(capsys, "fix-keys", str(PAIR / "draft"), str(tmp_path / "out"), "--to", "sglang")[0] == 0
    status, out, _ = run(capsys, "verify", str(tmp_path / "out"), *served)
    assert (status, out.rstrip().endswith("pass")) == (0, True)
    status, out, _ = run(capsys, "inspect", str(tmp_path / "out"), "--engine", "trtllm")
    assert (status, "model.midlayer.self_attn.qkv_proj.weight" in out) == (0, True)


def test_there_is_no_launch_command_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(
        capsys, "launch", str(PAIR / "draft"), "--target", str(PAIR / "target"), "--engine", "trtllm"
    )
    assert status == 2
    assert "no launch command for trtllm" in err
    assert "use --engine sglang or --engine vllm" in err
